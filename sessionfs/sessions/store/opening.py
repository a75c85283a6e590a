"""From a store URL, or from a ``session-store.json``, to an open session store that works on the bucket or directory itself.

What a bucket can do is found out once by the probe, as a mount does it, and remembered in the state directory of the store when one is named;
a directory of this host needs no probe.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import trio

from sessionfs.formats.store_settings import FILE_NAME, StoreSettings, decode
from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import CorruptDataError, LocalDiskError, NotFoundError
from sessionfs.model.keys import PROBE_PREFIX
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.maintenance.unfinished_migration import require_finished
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.store.place_session_store import PlaceSessionStore
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.open_store import default_store_url, open_store
from sessionfs.stores.probe import ProbeResult, probe
from sessionfs.stores.store_urls import scheme_of

_NEED_NO_PROBE = ("", "file", "memory")


@asynccontextmanager
async def open_session_store(
    store: str | StoreSettings | None = None,
    *,
    capabilities_file: str | None = None,
    settings: ReplicationSettings | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[PlaceSessionStore]:
    """Open a session store on a bucket or a local directory. Use as an asynchronous context manager.

    Args:
        store: A store URL, a directory (made when only its last component is missing), the path of a ``session-store.json``, what one says, or
            None for the default directory.
        capabilities_file: Where the probe's result is kept, so that it runs once: ``capabilities.json`` of a mount's state directory serves.
            None to probe each time.
        settings: Concurrency and back-off; ``single_host`` accepts a bucket that cannot refuse a second writer.
        clock: Times and names; the machine's when None.

    Raises:
        StoreUrlError: It names no store.
        NotFoundError: There is no such ``session-store.json``, directory or bucket.
        SettingsError: The ``session-store.json`` names no store; the error names it.
        StoreRefusedError: The bucket ignores conditions.
        ConflictError: A migration to it has not finished.
        AccessError, UnavailableError: The bucket refuses us, or does not answer.
    """
    problem: Exception | None = None
    used_clock, used = clock or SystemClock(), settings or ReplicationSettings()
    url = await trio.to_thread.run_sync(_url_of, store)
    opened = await trio.to_thread.run_sync(_admitted, url, capabilities_file, used, used_clock)
    try:
        async with open_object_place(opened, used_clock, used) as place:
            try:
                yield PlaceSessionStore(place, used_clock, backing_off=used)
            except Exception as error:  # noqa: BLE001 - it is raised below: the place's tasks would wrap it in a group
                problem = error
    finally:
        opened.close()
    if problem is not None:
        raise problem


def _url_of(store: str | StoreSettings | None) -> str:
    if store is None:
        return default_store_url()
    if isinstance(store, StoreSettings):
        return store.url() or default_store_url()
    if os.path.basename(store) != FILE_NAME or scheme_of(store):
        return store
    try:
        with open(store, "rb") as file:
            return decode(file.read(), store).url() or default_store_url()
    except FileNotFoundError:
        raise NotFoundError(f"there is no {store}") from None
    except OSError as error:
        raise LocalDiskError(
            f"{store} cannot be read: {error.strerror}", errno_number=error.errno or 0
        ) from error


def _admitted(url: str, record: str | None, settings: ReplicationSettings, clock: Clock) -> ObjectStore:
    """Open a store, with what it can do."""
    store = open_store(url, max_connections=2 * settings.concurrent_uploads + 4, allow_memory=True)
    try:
        require_finished(store)
        if scheme_of(url) in _NEED_NO_PROBE:
            return store
        known = _read_record(record) if record is not None else None
        if known is None or not (known.capabilities.conditional_put or settings.single_host):
            known = probe(store, clock, single_host=settings.single_host)
            if record is not None:
                _write_record(record, known)
        else:
            # A bucket that is gone, or refuses us, is told now and not by the first operation.
            store.list_page(PROBE_PREFIX, page=None, whole_segments=True, limit=1)
        return store.with_capabilities(known.capabilities)
    except BaseException:
        store.close()
        raise


def _read_record(path: str) -> ProbeResult | None:
    with suppress(OSError, CorruptDataError), open(path, "rb") as file:
        return ProbeResult.from_json(file.read(), name=path)
    return None


def _write_record(path: str, found: ProbeResult) -> None:
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
        fresh = f"{path}.new"
        with open(fresh, "wb") as file:
            file.write(msgspec.json.format(found.to_json()) + b"\n")
        os.replace(fresh, path)
    except OSError as error:
        raise LocalDiskError(
            f"{path} cannot be written: {error.strerror}", errno_number=error.errno or 0
        ) from error
