"""Listing a directory store in the byte order of its keys, so that a page can start anywhere."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterator
from dataclasses import replace

from sessionfs.model.errors import InvalidKeyError
from sessionfs.model.keys import validate_any_key
from sessionfs.stores.base import ListPage, ObjectStat
from sessionfs.stores.local_objects import is_missing, noted_size, read_marker, stat_of_file
from sessionfs.stores.local_temporary import HIDDEN


def list_directory(
    root: str, prefix: str, *, after: str | None, whole_segments: bool, limit: int
) -> ListPage:
    """List one page.

    Args:
        root: The store's directory.
        prefix: "" or whole segments ending in ``/``.
        after: Only entries whose key sorts after this.
        whole_segments: Direct children only.
        limit: Most entries of the page.

    Raises:
        OSError: The disk refused.
    """
    objects: list[ObjectStat] = []
    prefixes: list[str] = []
    last = ""
    for entry in _walk(root, prefix, after or "", whole_segments=whole_segments):
        if len(objects) + len(prefixes) == limit:
            return ListPage(tuple(objects), tuple(prefixes), last)
        if isinstance(entry, str):
            prefixes.append(entry)
            last = entry
        else:
            objects.append(entry)
            last = entry.key
    return ListPage(tuple(objects), tuple(prefixes), None)


def _walk(root: str, prefix: str, after: str, *, whole_segments: bool) -> Iterator[ObjectStat | str]:
    path = os.path.join(root, prefix.rstrip("/"))
    if prefix and _sorts_after(prefix, after):
        marker = read_marker(path, prefix)
        if marker is not None:
            yield _bare(marker)
    for name in _names(path, prefix):
        key = prefix + name
        if not name.endswith("/"):
            if _sorts_after(key, after):
                found = _file(os.path.join(root, key), key)
                if found is not None:
                    yield found
        elif whole_segments:
            if _sorts_after(key, after) and _holds_objects(root, key):
                yield key
        elif _sorts_after(key, after) or after.startswith(key):
            yield from _walk(root, key, after, whole_segments=False)


def _names(path: str, prefix: str) -> list[str]:
    """Give the children that keys can name, directories with a slash, in byte order."""
    names: list[str] = []
    try:
        entries = os.scandir(path)
    except OSError as error:
        if is_missing(error):
            return []
        raise
    with entries:
        for entry in entries:
            if prefix == "" and entry.name == HIDDEN:
                continue
            is_directory = entry.is_dir(follow_symlinks=False)
            name = entry.name + "/" if is_directory else entry.name
            if (is_directory or entry.is_file(follow_symlinks=False)) and _is_key(prefix + name):
                names.append(name)
    return sorted(names, key=lambda name: name.encode("utf-8"))


def _is_key(key: str) -> bool:
    try:
        validate_any_key(key)
    except InvalidKeyError:
        return False
    return True


def _file(path: str, key: str) -> ObjectStat | None:
    try:
        found = os.lstat(path)
    except OSError as error:
        if is_missing(error):
            return None
        raise
    if not modes.S_ISREG(found.st_mode):
        return None
    stat = stat_of_file(key, found, None)
    whole_bytes = noted_size(path)
    # What a writer left that died while it added to the file is shown by nobody.
    return stat if whole_bytes is None else replace(stat, size_bytes=min(whole_bytes, stat.size_bytes))


def _holds_objects(root: str, key: str) -> bool:
    """Whether a directory is a common prefix: it, or anything below, is an object."""
    return next(_walk(root, key, "", whole_segments=False), None) is not None


def _bare(stat: ObjectStat) -> ObjectStat:
    return ObjectStat(stat.key, stat.size_bytes, stat.token, stat.modified_ns)


def _sorts_after(key: str, after: str) -> bool:
    return key.encode("utf-8") > after.encode("utf-8")
