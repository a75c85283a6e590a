"""Opens an archive in the store that a URL names: a directory, S3, GCS, or any installed package's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import TrioStore
from sessionfs.sessions.archive.archive import Archive, NoteCheckpoint
from sessionfs.sessions.archive.blocking import BlockingArchive
from sessionfs.sessions.archive.stored_objects import StoredObjects
from sessionfs.sessions.portal import Portal
from sessionfs.stores.open_store import open_store


@asynccontextmanager
async def open_archive(
    url: str,
    *,
    state_directory: str | None = None,
    note_checkpoint: NoteCheckpoint | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Archive]:
    """Open an archive while the block lasts; its keys are below ``archive/`` of the store.

    Args:
        url: As a mount takes it: ``s3://BUCKET``, ``gs://BUCKET``, ``file:///DIRECTORY`` or a bare path.
        state_directory: As for `Archive`.
        note_checkpoint: As for `Archive`.
        clock: The system's when None.

    Raises:
        StoreUrlError, AccessError, BucketNotFoundError, StoreRefusedError: As ``open_store``.
    """
    clock = clock or SystemClock()
    settings = ReplicationSettings()
    store = await trio.to_thread.run_sync(open_store, url)
    try:
        objects = StoredObjects(TrioStore(store, clock, settings), clock, settings)
        yield Archive(objects, clock, state_directory=state_directory, note_checkpoint=note_checkpoint)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)


@contextmanager
def open_blocking_archive(
    url: str,
    *,
    state_directory: str | None = None,
    note_checkpoint: NoteCheckpoint | None = None,
    clock: Clock | None = None,
) -> Iterator[BlockingArchive]:
    """As `open_archive`, for programs that have no event loop: it has one in a thread of its own while the block lasts."""
    with Portal() as portal:
        opening = open_archive(
            url, state_directory=state_directory, note_checkpoint=note_checkpoint, clock=clock
        )
        archive, leave = portal.enter(opening)
        try:
            yield BlockingArchive(archive, portal)
        finally:
            leave()
