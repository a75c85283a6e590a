"""What a door says of a file of a working copy, and the names that files have while they are written.

A file is written under a temporary name in the root directory of its session and then renamed, so that its path never shows a part of it. A program
that is killed in between leaves the temporary file: no door lists it, and the next door that writes the session removes it.
"""

from __future__ import annotations

import os
import stat

from sessionfs.model.clock import Clock
from sessionfs.sessions.port import FileStat
from sessionfs.working_copy.layout import StateLayout

PRIVATE_MODE = 0o600
FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
WRITE_BYTES = 4 << 20
"""So much is written at once; an append is always one write."""

_TEMPORARY = b".sessionfs-new-"


def file_stat(path: str, *, size_bytes: int, modified_ns: int, number: int) -> FileStat:
    """Describe a file; its revision is of its length, its time and its inode, as a file's bytes never change without one of them."""
    return FileStat(path, size_bytes, modified_ns, f"{size_bytes}-{modified_ns}-{number}")


def stat_of(path: str, status: os.stat_result) -> FileStat:
    """Describe a file by its ``stat``."""
    return file_stat(path, size_bytes=status.st_size, modified_ns=status.st_mtime_ns, number=status.st_ino)


def later_than(modified_ns: int, size_bytes: int, before: FileStat | None) -> int:
    """Give the time that a file's new bytes need for another revision: the disk's clock may stand still between two writes.

    Args:
        modified_ns: The time that the disk gave them.
        size_bytes: Their length.
        before: What they replace.
    """
    if before is None or before.size_bytes != size_bytes or before.modified_ns != modified_ns:
        return modified_ns
    return before.modified_ns + 1


def mode_of(before: int | None, *, is_private: bool) -> int:
    """Give the mode of a file that is written: a private one is the owner's alone, one that is replaced keeps its own.

    Args:
        before: The mode of what is replaced, None for nothing.
        is_private: Whether only the owner may read it.
    """
    if is_private:
        return PRIVATE_MODE
    return FILE_MODE if before is None else stat.S_IMODE(before) & 0o777


def temporary_name(clock: Clock) -> bytes:
    """Give a name that nobody else has."""
    return _TEMPORARY + clock.unique_id().encode()


def is_temporary(name: bytes) -> bool:
    """Say whether a name in a session's root is one of these."""
    return name.startswith(_TEMPORARY)


def in_order(found: list[FileStat]) -> list[FileStat]:
    """Sort by path, as its bytes."""
    return sorted(found, key=lambda one: os.fsencode(one.path))


def is_here(layout: StateLayout, session: str) -> bool:
    """Say whether a session has a working copy on this disk."""
    return os.path.isdir(os.path.join(layout.sessions, session))
