"""Whether a store may be used, and with which capabilities.

The probe runs once for a state directory; its record is kept in ``capabilities.json``. Later starts only ask
whether the store answers: one that does not is used degraded, because what it can do is known; one that
refuses us is not.
"""

from __future__ import annotations

import os

import msgspec
import structlog

from sessionfs.model.clock import Clock
from sessionfs.model.errors import AccessError, CorruptDataError, NotFoundError, UnavailableError
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.open_store import open_store
from sessionfs.stores.probe import ProbeResult, probe
from sessionfs.working_copy.layout import StateLayout

_log = structlog.get_logger("sessionfs.replication")


def record_path(layout: StateLayout) -> str:
    """Where the record is kept."""
    return os.path.join(layout.root, "capabilities.json")


def read_record(layout: StateLayout) -> ProbeResult | None:
    """Read the record; None when there is none or it cannot be read: then the probe runs again.

    Raises:
        UnsupportedFormatError: A newer version wrote it.
    """
    try:
        with open(record_path(layout), "rb") as file:
            return ProbeResult.from_json(file.read(), name=record_path(layout))
    except (OSError, CorruptDataError):
        return None


def admit_store(
    store_url: str,
    *,
    layout: StateLayout,
    clock: Clock,
    connections: int,
    single_host: bool,
    first: bool,
) -> tuple[ObjectStore, str]:
    """Open a store and require what a mount needs of it.

    Args:
        store_url: Canonical URL.
        layout: Where the record is kept.
        clock: Names the scratch keys.
        connections: How many requests may be under way at once.
        single_host: Accept a store that cannot refuse a second writer.
        first: A refusal is an error; else it is only the reason of being degraded.

    Returns:
        The store, and why it cannot be used now, "" when it can.

    Raises:
        StoreRefusedError: It ignores conditions, and `single_host` is false.
        AccessError, BucketNotFoundError: It refuses us.
        UnavailableError: It does not answer and is not known yet.
    """
    store = open_store(store_url, max_connections=connections)
    record = read_record(layout)
    if record is None or not (record.capabilities.conditional_put or single_host):
        return _probed(store, layout=layout, clock=clock, single_host=single_host), ""
    store = store.with_capabilities(record.capabilities)
    try:
        store.list_page("probe/", page=None, whole_segments=True, limit=1)
    except UnavailableError as error:
        return store, str(error)
    except (AccessError, NotFoundError) as error:
        if first:
            raise
        return store, str(error)
    return store, ""


def _probed(store: ObjectStore, *, layout: StateLayout, clock: Clock, single_host: bool) -> ObjectStore:
    result = probe(store, clock, single_host=single_host)
    fresh = record_path(layout) + ".new"
    with open(fresh, "wb") as file:
        file.write(msgspec.json.format(result.to_json()) + b"\n")
    os.replace(fresh, record_path(layout))
    _log.info("store probed", store=store.url, quirks=result.quirks)
    return store.with_capabilities(result.capabilities)
