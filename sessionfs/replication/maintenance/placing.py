"""Puts what a generation names under a live key: by a copy on the server, as a body only where no object is exactly these bytes.

No bytes through this host, except for what has none or next to none (directories, links, empty files) and for named prefixes: a store copies whole
objects.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sessionfs.formats.manifest import ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model import keys, names
from sessionfs.model.errors import CorruptDataError, PreconditionFailedError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import NewerGenerations
from sessionfs.replication.hydration.named_content import (
    EMPTY_SHA256,
    NamedContent,
    Source,
)
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.maintenance.verified_bytes import VerifiedBytes, disk_error, sha256_of_bytes
from sessionfs.replication.trio_store import Landed, Moved, NotLanded, SourceMoved
from sessionfs.stores.base import Condition, ObjectMetadata, ObjectStat

_COPY_TRIES = 8
_SINGLE_PUT_BYTES = 64 << 20
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry's object.

    Attributes:
        token: Its token.
        sent_bytes: Bytes that left this host for it.
    """

    token: str
    sent_bytes: int = 0


class Placing:
    """Gives keys the bytes of entries.

    Args:
        patient: Sends requests.
        epoch: The owner's, for the metadata.
    """

    def __init__(self, patient: PatientStore, epoch: int) -> None:
        self._patient = patient
        self._epoch = epoch
        self._content = NamedContent(patient.store)
        self._bytes = VerifiedBytes(patient.store)

    async def place(
        self,
        source: SessionId,
        entry: ManifestEntry,
        key: str,
        *,
        condition: Condition,
        newer: NewerGenerations,
        live: Mapping[str, ObjectStat],
    ) -> Placed:
        """Give a live key, or one of content, what an entry names.

        Args:
            source: The session whose entry it is.
            entry: A file, directory or link.
            key: Where it goes.
            condition: On the key.
            newer: The generations after the entry's.
            live: A listing of the source's live objects.

        Raises:
            CorruptDataError: Its bytes are nowhere.
            PreconditionFailedError: The key's object is not what the caller knew.
            SessionFSError: The store refused, or did not answer in five tries.
        """
        metadata = self._metadata(entry, key)
        small = _small_body(entry)
        if small is not None:
            return await self._put(key, small, condition, metadata)
        excluded: set[Source] = set()
        for _ in range(_COPY_TRIES):
            found = await self._content.whole_source(source, entry, live=live, excluded=frozenset(excluded))
            if found is None:
                break
            outcome = await self._patient.copy(
                found.key, key, source_token=found.token, condition=condition, metadata=metadata
            )
            if not isinstance(outcome, SourceMoved):
                return Placed(_landed(key, outcome))
            excluded.add(found)
        return await self._send_body(source, entry, key, condition, newer, metadata)

    def _metadata(self, entry: ManifestEntry, key: str) -> ObjectMetadata:
        if keys.parse_live_key(key) is None:
            return self._patient.content_metadata(entry.sha256, epoch=self._epoch)
        attributes = FileAttributes(entry.mode, entry.uid, entry.gid, entry.mtime_ns)
        sha256 = EMPTY_SHA256 if stat.S_ISDIR(entry.mode) else entry.sha256
        return self._patient.file_metadata(key, attributes, sha256=sha256, epoch=self._epoch)

    async def _put(self, key: str, body: bytes, condition: Condition, metadata: ObjectMetadata) -> Placed:
        outcome = await self._patient.put(key, body, condition=condition, metadata=metadata)
        return Placed(_landed(key, outcome), len(body))

    async def _send_body(
        self,
        source: SessionId,
        entry: ManifestEntry,
        key: str,
        condition: Condition,
        newer: NewerGenerations,
        metadata: ObjectMetadata,
    ) -> Placed:
        try:
            with tempfile.TemporaryFile() as file:
                await self._bytes.write(source, entry, newer, file.fileno())
                size_bytes = os.fstat(file.fileno()).st_size
                if size_bytes <= _SINGLE_PUT_BYTES:
                    body = os.pread(file.fileno(), size_bytes, 0)
                    _require(sha256_of_bytes(body), entry)
                    return await self._put(key, body, condition, metadata)
                return await self._put_parts(key, file.fileno(), entry, condition, metadata)
        except OSError as problem:
            raise disk_error(f"cannot keep {names.display(entry.path)} for a moment", problem) from None

    async def _put_parts(
        self, key: str, descriptor: int, entry: ManifestEntry, condition: Condition, metadata: ObjectMetadata
    ) -> Placed:
        async def request() -> Landed | NotLanded | Moved:
            digest = hashlib.sha256()
            return await self._patient.store.put_parts(
                key,
                _parts(descriptor, entry.size_bytes, digest),
                condition=condition,
                metadata=metadata,
                before_complete=lambda: _require(digest.hexdigest(), entry),
            )

        outcome: Landed | Moved = await self._patient.send(key, request)
        return Placed(_landed(key, outcome), entry.size_bytes)


def _small_body(entry: ManifestEntry) -> bytes | None:
    """The body of what has no bytes, or whose bytes the manifest itself has."""
    if stat.S_ISDIR(entry.mode) or (entry.sha256 == EMPTY_SHA256 and not entry.size_bytes):
        return b""
    if stat.S_ISLNK(entry.mode) and entry.target and sha256_of_bytes(entry.target) == entry.sha256:
        return entry.target
    return None


def _landed(key: str, outcome: Landed | Moved) -> str:
    if isinstance(outcome, Landed):
        return outcome.token
    raise PreconditionFailedError(f"{key} was changed by somebody else meanwhile", remedy="run it again")


def _parts(descriptor: int, size_bytes: int, digest: hashlib._Hash) -> Iterator[bytes]:
    part_bytes = max(_PART_BYTES, -(-size_bytes // _MOST_PARTS))
    offset = 0
    while part := os.pread(descriptor, part_bytes, offset):
        digest.update(part)
        offset += len(part)
        yield part


def _require(sha256: str, entry: ManifestEntry) -> None:
    if entry.sha256 and sha256 != entry.sha256:
        raise CorruptDataError(f"the bytes of {names.display(entry.path)} changed on this disk")
