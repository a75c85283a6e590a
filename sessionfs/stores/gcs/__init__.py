"""The GCS store, the only place with google-cloud-storage: connection, errors, reading, uploads, appends, the store itself.

Importing this package imports none of it: the library is an extra, and opening a URL is what asks for it.
"""

from __future__ import annotations

from sessionfs.model.clock import Clock
from sessionfs.model.errors import StoreUrlError
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.store_urls import parse_gs_url

__all__ = ["open_url"]


def open_url(url: str, *, max_connections: int = 32, clock: Clock | None = None) -> ObjectStore:
    """Open ``gs://bucket[/prefix]?endpoint=URL``; sends nothing to the bucket yet.

    Args:
        url: The store's URL.
        max_connections: Size of the connection pool, from 1.
        clock: The system's when None.

    Raises:
        StoreUrlError: The URL is malformed, or google-cloud-storage is not installed.
        AccessError: No usable credentials.
    """
    location = parse_gs_url(url)
    try:
        from sessionfs.stores.gcs import store  # noqa: PLC0415 - the library is an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"google", "google_crc32c", "requests", "urllib3"}:
            raise
        raise StoreUrlError(
            f"a gs: URL needs the package google-cloud-storage, which is not installed ({error.name} is missing)",
            remedy="pip install 'sessionfs[gcs]'",
        ) from error
    return store.open_location(location, max_connections=max_connections, clock=clock)
