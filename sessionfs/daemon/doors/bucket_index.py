"""``sessions.json``, which belongs to no session: it lives in the bucket only, whatever place a door works on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from sessionfs.daemon.replication.admission import read_record
from sessionfs.model.clock import Clock
from sessionfs.model.settings import ReplicationSettings
from sessionfs.sessions.object_place import ObjectPlace, open_object_place
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.open_store import open_store
from sessionfs.working_copy.layout import StateLayout

_CONNECTIONS = 4


class BucketIndex:
    """The index of a store; the store is opened at the first use.

    Args:
        store_url: Canonical URL.
        layout: Where the record of what the store can do is kept.
        settings: Back-off.
        clock: Time and names.
    """

    def __init__(
        self, store_url: str, *, layout: StateLayout, settings: ReplicationSettings, clock: Clock
    ) -> None:
        self._store_url = store_url
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._store: ObjectStore | None = None
        self._opening = trio.Lock()

    async def read(self) -> bytes | None:
        """Read it; None when there is none."""
        async with self._bucket() as bucket:
            return await bucket.read_index()

    async def write(self, body: bytes) -> None:
        """Replace it."""
        async with self._bucket() as bucket:
            await bucket.write_index(body)

    async def set_aside(self, stamp_seconds: int) -> str | None:
        """Rename it; gives the new name."""
        async with self._bucket() as bucket:
            return await bucket.set_index_aside(stamp_seconds)

    def close(self) -> None:
        """Let the store go."""
        if self._store is not None:
            self._store.close()
            self._store = None

    @asynccontextmanager
    async def _bucket(self) -> AsyncIterator[ObjectPlace]:
        async with self._opening:
            if self._store is None:
                self._store = await trio.to_thread.run_sync(self._open)
            store = self._store
        async with open_object_place(store, self._clock, self._settings) as bucket:
            yield bucket

    def _open(self) -> ObjectStore:
        store = open_store(self._store_url, max_connections=_CONNECTIONS)
        record = read_record(self._layout)
        return store if record is None else store.with_capabilities(record.capabilities)
