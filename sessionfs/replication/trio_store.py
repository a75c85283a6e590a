"""The store for asynchronous callers: threads, limits, repeated reads, and lost responses.

Invariants:

* A changing request is sent once. Its outcome is looked up when the answer was lost, by its write id alone: equal bytes or an
  equal token prove nothing (a copy onto itself moves neither).
* A changing request is never abandoned: its thread ends before its caller goes on, cancelled or not.
* A read is repeated only as often as its caller says.
* What ownership hangs on (beats, records, fences: ``urgent``) has threads of its own: it never waits behind uploads or downloads, and a
  lost answer is looked up once, because its caller tries again by itself.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import trio

from sessionfs.formats import object_metadata
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
)
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.stores.base import (
    ByteRange,
    Capabilities,
    Condition,
    IfAbsent,
    IfMatch,
    ListPage,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
    UploadUnderWay,
)

READ_TRIES = 5
"""For callers whose read should outlast a passing error."""

_URGENT_THREADS = 4
_CHUNK_BYTES = 256 << 10
"""So small that a slow line is seen to move."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Landed:
    """The request was applied.

    Attributes:
        token: The object's new token.
    """

    token: Token


@dataclass(frozen=True, slots=True)
class NotLanded:
    """The request was sent, its answer was lost, and the object is as it was. It may still arrive late."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The condition did not hold: the object is not what the caller knew.

    Attributes:
        found: What is there, with its metadata; None for nothing.
    """

    found: ObjectStat | None


@dataclass(frozen=True, slots=True)
class SourceMoved:
    """The source of a copy is gone or is another object."""


Outcome = Landed | NotLanded | Moved | SourceMoved


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What `TrioStore.download` wrote.

    Attributes:
        stat: The object.
        size_bytes: Bytes written.
        sha256: Of the bytes written.
    """

    stat: ObjectStat
    size_bytes: int
    sha256: str


class TrioStore:
    """A store behind threads.

    Args:
        store: The bucket.
        clock: Jitter of repeated reads.
        settings: How many requests at once, and how long to back off.

    Attributes:
        requests: Requests sent so far, by kind.
        changes_answered: Changing requests that the store answered, whatever it said about their condition.
        downloaded_bytes: Bytes of objects that came so far.
        guard: Called with the key right before a changing request is sent, and before a long object appears; in the request's thread, when
            no queue is left before it. What it raises ends the request unsent.
    """

    def __init__(self, store: ObjectStore, clock: Clock, settings: ReplicationSettings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        # Reads have their own: what a program waits for must not queue behind uploads.
        self._changing = trio.CapacityLimiter(settings.concurrent_uploads)
        self._reading = trio.CapacityLimiter(settings.concurrent_uploads)
        self._urgent = trio.CapacityLimiter(_URGENT_THREADS)
        self.guard: Callable[[str], None] = _permit
        self.requests: Counter[str] = Counter()
        self.changes_answered = 0
        self.downloaded_bytes = 0

    @property
    def url(self) -> str:
        """The store's URL."""
        return self._store.url

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._store.capabilities

    # --- reads

    async def head(self, key: str, *, tries: int = 1, urgent: bool = False) -> ObjectStat | None:
        """Describe an object; None when there is none.

        Args:
            key: The key.
            tries: How often to try while the error is a passing one.
            urgent: Wait behind nothing.

        Raises:
            UnavailableError, AccessError, BucketNotFoundError: Nothing is known.
        """

        def call() -> ObjectStat | None:
            try:
                return self._store.head(key)
            except ObjectNotFoundError:
                return None

        return await self._read("head", call, tries, urgent=urgent)

    async def read(
        self, key: str, *, byte_range: ByteRange | None = None, expected: Token | None = None, tries: int = 1
    ) -> bytes:
        """Read an object, or a part of it, into memory.

        Raises:
            ObjectNotFoundError, PreconditionFailedError, UnavailableError, AccessError: As ``ObjectStore.get``.
        """
        return (await self.read_with_stat(key, byte_range=byte_range, expected=expected, tries=tries))[1]

    async def read_with_stat(
        self,
        key: str,
        *,
        byte_range: ByteRange | None = None,
        expected: Token | None = None,
        tries: int = 1,
        urgent: bool = False,
    ) -> tuple[ObjectStat, bytes]:
        """As `read`, with what the store says about the object; `urgent` as for `head`."""

        def call() -> tuple[ObjectStat, bytes]:
            with self._store.get(key, byte_range=byte_range, expected=expected) as body:
                return body.stat, body.read()

        return await self._read("get", call, tries, urgent=urgent)

    async def download(
        self,
        key: str,
        descriptor: int,
        *,
        byte_range: ByteRange | None = None,
        expected: Token | None = None,
        position: int = 0,
        tries: int = 1,
    ) -> Downloaded:
        """Write an object, or a part of it, into a file.

        Args:
            key: The key.
            descriptor: Open for writing; it must stay open until this returns, cancelled or not.
            byte_range: The part wanted, None for all.
            expected: The token it must have, None for any.
            position: Where in the file the bytes go; a repeated try starts there again.
            tries: As `head`.

        Raises:
            OSError: The file cannot be written.
            ObjectNotFoundError, PreconditionFailedError, UnavailableError, AccessError: As ``ObjectStore.get``.
        """

        def call() -> Downloaded:
            digest = hashlib.sha256()
            offset = position
            with self._store.get(key, byte_range=byte_range, expected=expected) as body:
                for chunk in body.chunks(_CHUNK_BYTES):
                    trio.from_thread.check_cancelled()
                    digest.update(chunk)
                    self.downloaded_bytes += len(chunk)
                    view = memoryview(chunk)
                    while view:
                        written = os.pwrite(descriptor, view, offset)
                        offset += written
                        view = view[written:]
            return Downloaded(body.stat, offset - position, digest.hexdigest())

        return await self._read("get", call, tries, abandon=False)

    async def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000, tries: int = 1
    ) -> ListPage:
        """List one page; as ``ObjectStore.list_page``."""
        return await self._read(
            "list",
            lambda: self._store.list_page(prefix, page=page, whole_segments=whole_segments, limit=limit),
            tries,
        )

    async def list_all(
        self, prefix: str, *, whole_segments: bool, tries: int = READ_TRIES
    ) -> tuple[list[ObjectStat], list[str]]:
        """List every page: the objects and the common prefixes."""
        objects: list[ObjectStat] = []
        prefixes: list[str] = []
        page: str | None = None
        while True:
            found = await self.list_page(prefix, page=page, whole_segments=whole_segments, tries=tries)
            objects.extend(found.objects)
            prefixes.extend(found.prefixes)
            page = found.next_page
            if page is None:
                return objects, prefixes

    # --- changes: the metadata carries the write id by which a lost answer is settled

    async def put(
        self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata, urgent: bool = False
    ) -> Landed | NotLanded | Moved:
        """Store an object in one request.

        Args:
            key: The key.
            body: The bytes.
            condition: On the key.
            metadata: With a ``sessionfs-write`` of its own, else a lost answer cannot be told from another writer.
            urgent: Wait behind nothing, and look up a lost answer once only.

        Raises:
            OutcomeUnknownError: The answer was lost and the key could not be looked at.
            UnavailableError, AccessError, BucketNotFoundError, InvalidKeyError, ConcurrentRequestError: Nothing was stored.
        """
        return await self._change(
            "put",
            key,
            condition,
            metadata,
            lambda: self._store.put(key, body, condition=condition, metadata=metadata),
            urgent=urgent,
        )

    async def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Landed | NotLanded | Moved:
        """Store an object in several requests. `parts` and `before_complete` run in a thread; what they raise passes through."""
        return await self._change(
            "put_parts",
            key,
            condition,
            metadata,
            lambda: self._store.put_parts(
                key,
                parts,
                condition=condition,
                metadata=metadata,
                before_complete=lambda: self._guarded(key, before_complete),
            ),
        )

    async def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Landed | NotLanded | Moved:
        """Replace an object by itself and a tail; as `put_parts`."""
        return await self._change(
            "append",
            key,
            IfMatch(base.token),
            metadata,
            lambda: self._store.append(
                key,
                tail,
                base=base,
                metadata=metadata,
                before_complete=lambda: self._guarded(key, before_complete),
            ),
        )

    async def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Outcome:
        """Copy on the server; `SourceMoved` when the source is gone or is another object. Else as `put`."""

        def call() -> Token:
            return self._store.copy(
                source, target, source_token=source_token, condition=condition, metadata=metadata
            )

        try:
            outcome = await self._change("copy", target, condition, metadata, call)
        except ObjectNotFoundError:
            return SourceMoved()
        if not isinstance(outcome, Moved) or not _holds(condition, outcome.found):
            return outcome
        # The target is as it should be, so the condition that failed was the source's.
        return SourceMoved()

    async def delete(
        self, key: str, *, condition: IfMatch, urgent: bool = False
    ) -> Landed | NotLanded | Moved:
        """Remove an object. An object that is gone already counts as removed.

        Raises:
            As `put`.
        """

        def call() -> Token:
            self._store.delete(key, condition=condition)
            return condition.token

        outcome = await self._change("delete", key, condition, ObjectMetadata(), call, urgent=urgent)
        if isinstance(outcome, Moved) and outcome.found is None:
            return Landed(condition.token)
        return outcome

    async def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
        """List the uploads in parts below a prefix; as ``ObjectStore.uploads_under_way``."""
        return await self._read("list_uploads", lambda: self._store.uploads_under_way(prefix), READ_TRIES)

    async def abort_upload(self, upload: UploadUnderWay) -> None:
        """Give an upload up; as ``ObjectStore.abort_upload``. Repeating it changes nothing."""
        await self._read("abort_upload", lambda: self._store.abort_upload(upload), READ_TRIES, abandon=False)

    # --- how

    async def _read(
        self, kind: str, call: Callable[[], Result], tries: int, *, abandon: bool = True, urgent: bool = False
    ) -> Result:
        limiter = self._urgent if urgent else self._reading
        tried = 0
        while True:
            self.requests[kind] += 1
            try:
                return await trio.to_thread.run_sync(call, abandon_on_cancel=abandon, limiter=limiter)
            except SessionFSError as error:
                tried += 1
                if tried >= tries or not retry_policy.is_transient(error):
                    raise
            await trio.sleep(retry_policy.backoff_seconds(tried, self._settings, self._clock))

    async def _change(
        self,
        kind: str,
        key: str,
        condition: Condition,
        metadata: ObjectMetadata,
        call: Callable[[], Token],
        *,
        urgent: bool = False,
    ) -> Landed | NotLanded | Moved:
        def guarded() -> Token:
            self.guard(key)
            return call()

        self.requests[kind] += 1
        limiter = self._urgent if urgent else self._changing
        try:
            token = await trio.to_thread.run_sync(guarded, abandon_on_cancel=False, limiter=limiter)
        except PreconditionFailedError as error:
            self.changes_answered += 1
            # Also after a 412: a proxy may have repeated a request that was applied the first time.
            return await self._resolve(key, None, metadata, error, urgent=urgent)
        except OutcomeUnknownError as error:
            return await self._resolve(key, condition, metadata, error, urgent=urgent)
        self.changes_answered += 1
        return Landed(token)

    def _guarded(self, key: str, before_complete: Callable[[], None]) -> None:
        before_complete()
        self.guard(key)

    async def _resolve(
        self,
        key: str,
        condition: Condition | None,
        metadata: ObjectMetadata,
        cause: SessionFSError,
        *,
        urgent: bool,
    ) -> Landed | NotLanded | Moved:
        """Look what became of a request; `condition` is None when the store said that it did not hold."""
        try:
            found = await self.head(key, tries=1 if urgent else READ_TRIES, urgent=urgent)
        except SessionFSError as error:
            if isinstance(cause, OutcomeUnknownError):
                raise cause from error
            raise OutcomeUnknownError(
                f"{cause.message}; then the object could not be looked at: {error}"
            ) from None
        ours = metadata.user.get("sessionfs-write", "")
        if found is not None and ours and write_id_of(found) == ours:
            return Landed(found.token)
        if condition is not None and _holds(condition, found):
            return NotLanded()
        return Moved(found)


def write_id_of(stat: ObjectStat) -> str:
    """The write id in an object's metadata, "" for another tool's."""
    return object_metadata.decode_provenance(stat.metadata.user).write_id if stat.metadata else ""


def _permit(_key: str) -> None:
    """Every request may be sent."""


def _holds(condition: Condition, found: ObjectStat | None) -> bool:
    if isinstance(condition, IfAbsent):
        return found is None
    if isinstance(condition, IfMatch):
        return found is not None and found.token == condition.token
    return True
