"""Which names never leave this host, and never come to it from the bucket."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

SQLITE_SIDE_SUFFIXES = (b"-wal", b"-shm", b"-journal")
"""Endings of the files that SQLite keeps beside a database; they are local while the database is one."""


class Exclusions:
    """Patterns of names and paths.

    Args:
        globs: A pattern without a slash matches a name anywhere; one with a slash matches the whole path inside the session.
    """

    def __init__(self, globs: Sequence[str]) -> None:
        self._name = _compile([glob for glob in globs if "/" not in glob])
        self._path = _compile([glob for glob in globs if "/" in glob])

    def match(self, path: bytes) -> bool:
        """Whether a path inside a session is excluded, or lies below an excluded directory."""
        text = path.decode("utf-8", "surrogateescape")
        if self._path is not None and self._path.match(text):
            return True
        return self._name is not None and any(self._name.match(name) for name in text.split("/"))


def side_file_of(name: bytes) -> bytes | None:
    """The database that a file with this name would belong to, None when the name is no side file's."""
    for suffix in SQLITE_SIDE_SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def _compile(globs: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs), re.DOTALL) if globs else None
