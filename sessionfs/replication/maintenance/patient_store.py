"""Changing requests of a command: permitted, repeated a few times while the error is a passing one, settled by their write id.

A repeated request carries the same write id and the same bytes, so one that arrives late changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from sessionfs.formats import object_metadata
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model.clock import Clock
from sessionfs.model.errors import SessionFSError, UnavailableError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.replication.trio_store import READ_TRIES, Landed, Moved, NotLanded, SourceMoved, TrioStore
from sessionfs.replication.uploads.key_upload import content_type_of
from sessionfs.stores.base import Condition, IfMatch, ObjectMetadata, Token

_Outcome = TypeVar("_Outcome")
JSON_TYPE = "application/json"


class PatientStore:
    """Sends changing requests.

    Args:
        store: The bucket, also for reads.
        clock: Write ids and jitter.
        settings: How long to back off.
        check: Called before every request; raises when it may not be sent.

    Attributes:
        store: The bucket.
    """

    def __init__(
        self, store: TrioStore, clock: Clock, settings: ReplicationSettings, check: Callable[[], None]
    ) -> None:
        self.store = store
        self._clock = clock
        self._settings = settings
        self._check = check

    def record_metadata(self, *, encoding: str = "") -> ObjectMetadata:
        """Metadata of a JSON record."""
        return ObjectMetadata({"sessionfs-write": self._clock.unique_id()}, JSON_TYPE, encoding)

    def file_metadata(
        self, key: str, attributes: FileAttributes, *, sha256: str, epoch: int
    ) -> ObjectMetadata:
        """Metadata of a live object that begins a lineage of its own."""
        provenance = Provenance(sha256, self._clock.unique_id(), epoch, self._clock.unique_id())
        return ObjectMetadata(
            object_metadata.encode(attributes, provenance), content_type_of(key, attributes.mode)
        )

    def content_metadata(self, sha256: str, *, epoch: int) -> ObjectMetadata:
        """Metadata of an object kept by its content."""
        return ObjectMetadata(
            {
                "sessionfs-sha256": sha256,
                "sessionfs-write": self._clock.unique_id(),
                "sessionfs-epoch": str(epoch),
            }
        )

    async def put(
        self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata
    ) -> Landed | Moved:
        """As ``TrioStore.put``.

        Raises:
            SessionFSError: What did not pass in five tries.
        """
        return await self._patiently(
            key, lambda: self.store.put(key, body, condition=condition, metadata=metadata)
        )

    async def copy(
        self, source: str, target: str, *, source_token: str, condition: Condition, metadata: ObjectMetadata
    ) -> Landed | Moved | SourceMoved:
        """As ``TrioStore.copy``; raises as `put`."""
        return await self._patiently(
            target,
            lambda: self.store.copy(
                source, target, source_token=Token(source_token), condition=condition, metadata=metadata
            ),
        )

    async def delete(self, key: str, token: str) -> Landed | Moved:
        """Remove an object that still is the one known; raises as `put`."""
        return await self._patiently(key, lambda: self.store.delete(key, condition=IfMatch(Token(token))))

    async def send(self, key: str, request: Callable[[], Awaitable[_Outcome | NotLanded]]) -> _Outcome:
        """Send any other request the same way."""
        return await self._patiently(key, request)

    async def _patiently(self, key: str, request: Callable[[], Awaitable[_Outcome | NotLanded]]) -> _Outcome:
        problem: SessionFSError = UnavailableError(f"{key} could not be changed", remedy="try again")
        for tried in range(1, READ_TRIES + 1):
            self._check()
            try:
                outcome = await request()
            except SessionFSError as error:
                if not retry_policy.is_transient(error):
                    raise
                problem = error
            else:
                if not isinstance(outcome, NotLanded):
                    return outcome
            if tried < READ_TRIES:
                await trio.sleep(retry_policy.backoff_seconds(tried, self._settings, self._clock))
        raise problem
