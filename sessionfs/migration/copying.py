"""One object from one store to another: read, put under a condition, read back, compared.

Invariants:

* Bytes, user metadata, content type and content encoding at the destination are those of the source: compared after the put, with what one read
  of the destination gives. A server may put a type of its own where the source has none (``application/octet-stream``), and leave out user metadata
  without a value: SeaweedFS 4.48 does both.
* A put replaces nothing but the object that the survey saw: only if absent, or only at that token.
* What is there already with the same bytes and metadata is kept, and counts as copied by an earlier run.
* An object of the source that is not the one that was listed ends the run: the source is in use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import trio

from sessionfs.formats import object_metadata
from sessionfs.formats.migration.checksum import metadata_sha256
from sessionfs.formats.migration.records import Entry
from sessionfs.migration.plan import Step
from sessionfs.model.errors import (
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectMetadata, ObjectStat, ObjectStore, Token

_INLINE_HASH_BYTES = 256 << 10
_LARGE_BYTES = 1 << 20
_MOST_PARTS = 9000
"""Below the 10,000 that S3 takes."""
_DEFAULT_CONTENT_TYPE = ObjectMetadata().content_type


@dataclass(slots=True)
class Tally:
    """What a run did so far.

    Attributes:
        copied: Objects that were put.
        copied_bytes: Their length.
        kept: Objects that an earlier run had put, found equal by reading them.
        damaged: Keys whose bytes are not those that their own metadata says; they were copied as they are.
    """

    copied: int = 0
    copied_bytes: int = 0
    kept: int = 0
    damaged: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Content:
    """What an object holds."""

    size_bytes: int
    sha256: str
    metadata: ObjectMetadata

    @property
    def metadata_sha256(self) -> str:
        return metadata_sha256(self.metadata.user, self.metadata.content_encoding)

    def is_kept_as(self, found: _Content) -> bool:
        """Whether a destination has what was sent to it."""
        sums = (self.size_bytes, self.sha256, self.metadata_sha256)
        if sums != (found.size_bytes, found.sha256, found.metadata_sha256):
            return False
        content_type = self.metadata.content_type
        return content_type in {_DEFAULT_CONTENT_TYPE, found.metadata.content_type}


class _SourceMovedError(Exception):
    """The object is not the one that was listed; no error of the store, so nothing takes it for one."""


class Copying:
    """Copies objects. Use as a context manager.

    Args:
        source: The source.
        plain_source: The same, for reading a long object while it is sent.
        destination: The destination.
        settings: Lengths of parts, and how much may be in memory.

    Attributes:
        tally: What was done.
    """

    def __init__(
        self,
        source: TrioStore,
        plain_source: ObjectStore,
        destination: PatientStore,
        settings: ReplicationSettings,
    ) -> None:
        self._source = source
        self._plain_source = plain_source
        self._destination = destination
        self._settings = settings
        self._at_once = trio.CapacityLimiter(settings.concurrent_uploads)
        self._large = trio.CapacityLimiter(max(1, settings.upload_memory_bytes // settings.part_bytes // 2))
        self._nowhere = -1
        self.tally = Tally()

    def __enter__(self) -> Self:
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._nowhere)

    async def copy(self, step: Step) -> Entry:
        """Bring one object to the destination, and give what the journal says of it.

        Raises:
            ConflictError: The source changed, or somebody else wrote the key at the destination.
            CorruptDataError: What was read back is not what was sent.
            SessionFSError: A store does not answer, or cannot keep the object.
        """
        async with self._at_once:
            try:
                if step.source.size_bytes < _LARGE_BYTES:
                    return await self._copy_small(step)
                async with self._large:
                    if step.source.size_bytes <= self._settings.part_bytes:
                        return await self._copy_small(step)
                    return await self._copy_in_parts(step)
            except (_SourceMovedError, ObjectNotFoundError) as problem:
                raise ConflictError(
                    f"{step.source.key} of {self._source.url} changed while it was copied",
                    remedy="end what writes the source (sessionfs umount DIR), and run this again",
                ) from problem

    async def _copy_small(self, step: Step) -> Entry:
        try:
            found, body = await self._source.read_with_stat(
                step.source.key, expected=step.source.token, tries=READ_TRIES
            )
        except PreconditionFailedError as problem:
            raise _SourceMovedError from problem
        content = _Content(len(body), await _sum_of(body), _metadata_of(found))
        there = await self._present(step, content)
        if there is not None:
            return self._kept(step, content, there)
        outcome = await self._destination.put(
            step.source.key, body, condition=_condition(step), metadata=content.metadata
        )
        return await self._verified(step, content, outcome.token if isinstance(outcome, Landed) else None)

    async def _copy_in_parts(self, step: Step) -> Entry:
        key = step.source.key
        head = await self._source.head(key, tries=READ_TRIES)
        if head is None or head.token != step.source.token:
            raise _SourceMovedError
        content = _Content(step.source.size_bytes, "", _metadata_of(head))
        if step.there is not None:
            content = replace(content, sha256=(await self._read(self._source, head)).sha256)
            there = await self._present(step, content)
            if there is not None:
                return self._kept(step, content, there)
        part_bytes = max(
            self._settings.part_bytes,
            self._destination.store.capabilities.minimum_part_bytes,
            -(-step.source.size_bytes // _MOST_PARTS),
        )
        digest = hashlib.sha256()

        async def send() -> object:
            nonlocal digest
            digest = hashlib.sha256()
            return await self._destination.store.put_parts(
                key,
                self._parts(step.source, part_bytes, digest.update),
                condition=_condition(step),
                metadata=content.metadata,
                before_complete=lambda: None,
            )

        outcome = await self._destination.send(key, send)
        content = replace(content, sha256=digest.hexdigest())
        return await self._verified(step, content, outcome.token if isinstance(outcome, Landed) else None)

    def _parts(
        self, wanted: ObjectStat, part_bytes: int, hash_part: Callable[[bytes], object]
    ) -> Iterator[bytes]:
        """Read the source in parts, in the thread that sends them."""
        try:
            body = self._plain_source.get(wanted.key, byte_range=None, expected=wanted.token)
        except (PreconditionFailedError, ObjectNotFoundError) as problem:
            raise _SourceMovedError from problem
        waiting: list[bytes] = []
        length = total = 0
        with body:
            for chunk in body.chunks():
                waiting.append(chunk)
                length += len(chunk)
                if length >= part_bytes:
                    part = b"".join(waiting)
                    total += length
                    waiting, length = [], 0
                    hash_part(part)
                    yield part
        if waiting:
            part = b"".join(waiting)
            total += length
            hash_part(part)
            yield part
        if total != wanted.size_bytes:
            raise UnavailableError(f"{wanted.key!r} ended after {total} of {wanted.size_bytes} bytes")

    # --- what is at the destination

    async def _present(self, step: Step, content: _Content) -> str | None:
        """Give the token of what is at the destination when it is what shall be there."""
        if step.there is None:
            return None
        if step.known is not None:
            known = (step.known.sha256, step.known.metadata_sha256, step.known.content_type)
            wanted = (content.sha256, content.metadata_sha256, content.metadata.content_type)
            return step.known.token if known == wanted else None
        # A run stopped before it could say what it had put.
        found = await self._read(self._destination.store, step.there)
        return step.there.token if content.is_kept_as(found) else None

    def _kept(self, step: Step, content: _Content, token: str) -> Entry:
        self.tally.kept += 1
        return self._entry(step, content, token)

    async def _verified(self, step: Step, content: _Content, token: str | None) -> Entry:
        """Read back what was put; without a token somebody else's, or ours whose answer came late, is there."""
        key = step.source.key
        there = replace(step.source, token=Token(token or ""))
        if token is None:
            now = await self._destination.store.head(key, tries=READ_TRIES)
            if now is None:
                raise self._taken(key)
            there = now
        found = await self._read(self._destination.store, there)
        is_kept = content.is_kept_as(found)
        if not is_kept and token is None:
            raise self._taken(key)
        if not is_kept:
            raise CorruptDataError(
                f"{key} at {self._destination.store.url} is not what was sent: {_difference(content, found)}",
                remedy="check that store, and run this again",
            )
        self.tally.copied += 1
        self.tally.copied_bytes += content.size_bytes
        return self._entry(step, content, there.token)

    async def _read(self, store: TrioStore, wanted: ObjectStat) -> _Content:
        """Read an object without keeping it."""
        try:
            found = await store.download(
                wanted.key, self._nowhere, expected=Token(wanted.token), tries=READ_TRIES
            )
        except (PreconditionFailedError, ObjectNotFoundError) as problem:
            if store is self._source:
                raise _SourceMovedError from problem
            raise self._taken(wanted.key) from problem
        return _Content(found.size_bytes, found.sha256, _metadata_of(found.stat))

    def _entry(self, step: Step, content: _Content, token: str) -> Entry:
        own = object_metadata.decode_provenance(content.metadata.user).sha256
        if own and own != content.sha256:
            self.tally.damaged.append(step.source.key)
        return Entry(
            step.source.key,
            content.size_bytes,
            step.source.token,
            step.source.modified_ns,
            token,
            content.sha256,
            content.metadata_sha256,
            content.metadata.content_type,
        )

    def _taken(self, key: str) -> ConflictError:
        return ConflictError(
            f"{key} at {self._destination.store.url} was written by somebody else meanwhile",
            remedy="let nothing else write the destination, and run this again",
        )


def _condition(step: Step) -> Condition:
    return IfMatch(step.there.token) if step.there is not None else IfAbsent()


def _metadata_of(found: ObjectStat) -> ObjectMetadata:
    metadata = found.metadata or ObjectMetadata()
    return replace(metadata, content_type=metadata.content_type or _DEFAULT_CONTENT_TYPE)


async def _sum_of(body: bytes) -> str:
    if len(body) < _INLINE_HASH_BYTES:
        return hashlib.sha256(body).hexdigest()
    return await trio.to_thread.run_sync(lambda: hashlib.sha256(body).hexdigest())


def _difference(wanted: _Content, found: _Content) -> str:
    if wanted.size_bytes != found.size_bytes:
        return f"{found.size_bytes} bytes, not {wanted.size_bytes}"
    return "its bytes differ" if wanted.sha256 != found.sha256 else "its metadata differ"
