"""From a store URL to an open store. Backends are imported only when their scheme is opened."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from sessionfs.model.errors import LocalDiskError, StoreUrlError
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.store_urls import file_url, parse_file_url, scheme_of, store_id

__all__ = ["default_store_url", "known_schemes", "open_store", "store_id"]

ENTRY_POINT_GROUP = "sessionfs.stores"

_BUILT_IN: Mapping[str, str] = {
    "file": "sessionfs.stores.local_directory",
    "gs": "sessionfs.stores.gcs",
    "memory": "sessionfs.stores.memory",
    "s3": "sessionfs.stores.s3",
}


def open_store(url: str, *, max_connections: int = 32, allow_memory: bool = False) -> ObjectStore:
    """Open the store that a URL names.

    Args:
        url: ``file:///dir``, a bare path, ``s3://bucket[/prefix]?endpoint=URL&region=R``,
            ``gs://bucket[/prefix]?endpoint=URL``, or the scheme of an installed package.
        max_connections: How many requests may be under way at once, from 1.
        allow_memory: Whether ``memory:`` may be named: only tests do.

    Raises:
        StoreUrlError: The URL is malformed or its scheme unknown.
        AccessError: No usable credentials.
        BucketNotFoundError: The directory does not exist.
        StoreRefusedError: The directory cannot keep a store's promises.
    """
    scheme = scheme_of(url) or "file"
    if scheme == "memory" and not allow_memory:
        raise StoreUrlError(
            "a memory store loses everything with its process", remedy="name a directory: file:///DIRECTORY"
        )
    if scheme == "file" and parse_file_url(url) == _default_directory():
        _make_default_directory()
    opener = _opener(scheme, url)
    store: ObjectStore = opener(url, max_connections=max_connections)
    return store


def default_store_url() -> str:
    """Give the URL used when none is named: a directory of the user's, made when it is first opened."""
    return file_url(_default_directory())


def known_schemes() -> tuple[str, ...]:
    """Give the schemes that can be opened here, sorted."""
    return tuple(sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))}))


def _opener(scheme: str, url: str) -> Any:
    if scheme in _BUILT_IN:
        return importlib.import_module(_BUILT_IN[scheme]).open_url
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == scheme:
            return entry.load()
    schemes = known_schemes()
    nearest = difflib.get_close_matches(scheme, schemes, n=1, cutoff=0.3)
    hint = f"did you mean {nearest[0]}:" if nearest else f"known: {', '.join(schemes)}"
    shown = url.partition("?")[0].rpartition("@")[2][:80]
    raise StoreUrlError(f"unknown scheme {scheme!r} in store URL {shown!r}", remedy=hint)


def _default_directory() -> str:
    data_home = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(data_home):
        data_home = os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(os.path.abspath(data_home), "sessionfs", "store")


def _make_default_directory() -> None:
    directory = _default_directory()
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        raise LocalDiskError(
            f"the default store {directory} cannot be made: {error.strerror}",
            errno_number=error.errno or 0,
            remedy="name a store, or set XDG_DATA_HOME",
        ) from error
