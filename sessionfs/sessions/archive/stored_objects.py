"""The archive's objects in an object store: below ``archive/`` of any store that takes conditions.

Invariants:

* An immutable object is put on the condition that there is none. When that does not hold, the bytes that are there decide.
* A lost answer is looked up by the attempt's write id; what did not arrive is sent again under the same id and condition, so that a late
  arrival and its repetition are one.
* A passing error is retried `TRIES` times in all, then raised.
"""

from __future__ import annotations

import errno

import trio

from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    StoreRefusedError,
)
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.replication.trio_store import Landed, Moved, NotLanded, TrioStore
from sessionfs.sessions.archive.objects import (
    MAX_OBJECT_BYTES,
    PREFIX,
    Objects,
    checked_body,
    checked_key,
)
from sessionfs.stores.base import (
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStat,
    Unconditional,
)

TRIES = 5


class StoredObjects(Objects):
    """Objects of an object store.

    Args:
        store: The store; its keys below ``archive/`` belong to the archive.
        clock: Gives write ids, and the jitter of repetitions.
        settings: How long to back off.

    Raises:
        StoreRefusedError: The store takes no condition on a put.
    """

    def __init__(self, store: TrioStore, clock: Clock, settings: ReplicationSettings) -> None:
        if not store.capabilities.conditional_put:
            raise StoreRefusedError(
                f"{store.url} takes no condition on a put, so nothing in it is immutable",
                remedy="use a store that takes If-None-Match",
            )
        self._store = store
        self._clock = clock
        self._settings = settings

    async def put(self, key: str, body: bytes, *, immutable: bool) -> None:
        """Put under a condition, or without one."""
        checked_key(key)
        checked_body(key, body)
        outcome = await self._send(key, body, IfAbsent() if immutable else Unconditional())
        if isinstance(outcome, Landed):
            return
        held = await self._find(key)
        if held is None or held[1] != body:
            raise AlreadyExistsError(f"{key!r} has other bytes, and is never changed")

    async def get(self, key: str) -> bytes:
        """Read at most one byte more than an object may have."""
        checked_key(key)
        held = await self._find(key)
        if held is None:
            raise FileNotFoundError(errno.ENOENT, "no such object in the archive", key)
        if len(held[1]) > MAX_OBJECT_BYTES:
            raise CorruptDataError(f"{key!r} is longer than {MAX_OBJECT_BYTES} bytes, it is none of ours")
        return held[1]

    async def swap(self, key: str, body: bytes, *, old: bytes | None) -> None:
        """Put on the condition that it is still the object that holds `old`."""
        checked_key(key)
        checked_body(key, body)
        held = await self._find(key)
        if held is not None and held[1] == body:
            return
        if (None if held is None else held[1]) != old:
            raise _not_as_read(key)
        outcome = await self._send(key, body, IfAbsent() if held is None else IfMatch(held[0].token))
        if not isinstance(outcome, Landed):
            raise _not_as_read(key)

    async def _find(self, key: str) -> tuple[ObjectStat, bytes] | None:
        try:
            return await self._store.read_with_stat(
                PREFIX + key, byte_range=ByteRange(0, MAX_OBJECT_BYTES + 1), tries=TRIES
            )
        except ObjectNotFoundError:
            return None

    async def _send(self, key: str, body: bytes, condition: Condition) -> Landed | Moved:
        metadata = ObjectMetadata({"sessionfs-write": self._clock.unique_id()})
        tried = 0
        while True:
            problem: SessionFSError
            try:
                outcome = await self._store.put(PREFIX + key, body, condition=condition, metadata=metadata)
            except SessionFSError as error:
                problem = error
            else:
                if not isinstance(outcome, NotLanded):
                    return outcome
                problem = OutcomeUnknownError(f"the answer to a put of {key!r} was lost")
            tried += 1
            if tried >= TRIES or not retry_policy.is_transient(problem):
                raise problem
            await trio.sleep(retry_policy.backoff_seconds(tried, self._settings, self._clock))


def _not_as_read(key: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"{key!r} is not what was read any more")
