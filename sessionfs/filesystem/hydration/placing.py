"""How things from the bucket get their place in the working copy, and leave it: attributes, times, and directories on the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from sessionfs.filesystem.inodes import Directory, InodeTable
from sessionfs.formats.link_message import Entry

_log = structlog.get_logger(__name__)

_CHANGES = stat.S_IWUSR | stat.S_IXUSR
_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unlocked:
    """Keeps a directory's times, and lets a daemon that is not root change one that its owner may not.

    Args:
        descriptor: Of the directory.
        as_root: Whether modes do not bind us.
    """

    def __init__(self, descriptor: int, *, as_root: bool) -> None:
        self._descriptor = descriptor
        self._as_root = as_root
        self._locked = False

    def __enter__(self) -> None:
        """Remember its times, and open it."""
        self._before = os.stat(b".", dir_fd=self._descriptor)
        self._locked = not self._as_root and self._before.st_mode & _CHANGES != _CHANGES
        if self._locked:
            os.chmod(b".", stat.S_IMODE(self._before.st_mode) | 0o700, dir_fd=self._descriptor)

    def __exit__(self, *_: object) -> None:
        """Close it, and give its times back."""
        if self._locked:
            os.chmod(b".", stat.S_IMODE(self._before.st_mode), dir_fd=self._descriptor)
        os.utime(b".", ns=(self._before.st_atime_ns, self._before.st_mtime_ns), dir_fd=self._descriptor)


def adorn(place: bytes, entry: Entry, *, as_root: bool, used_ns: int | None = None) -> None:
    """Give something on disk the attributes that the bucket describes, times last.

    Args:
        place: Its path.
        entry: What it must be.
        as_root: Whether it may be given away.
        used_ns: Its access time; None for its modification time.

    Raises:
        OSError: The disk refused.
    """
    if as_root:
        os.chown(place, entry.uid, entry.gid, follow_symlinks=False)
    for name, value in entry.xattrs.items():
        try:
            os.setxattr(place, name, value, follow_symlinks=False)
        except OSError as problem:
            _log.warning("xattr.not_kept", name=name.decode("utf-8", "replace"), reason=problem.strerror)
    if not stat.S_ISLNK(entry.mode):
        os.chmod(place, stat.S_IMODE(entry.mode))
    used_ns = entry.mtime_ns if used_ns is None else used_ns
    os.utime(place, ns=(used_ns, entry.mtime_ns), follow_symlinks=False)


def entry_of(number: int, name: bytes, status: os.stat_result) -> Entry:
    """Describe a file whose bytes leave the working copy."""
    return Entry(
        name=name, number=number, present=False, mode=status.st_mode, uid=status.st_uid, gid=status.st_gid,
        size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, nlink=status.st_nlink,
    )  # fmt: skip


def remove_below(descriptor: int, name: bytes) -> None:
    """Remove a directory with everything in it."""
    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        for child in os.listdir(below):
            try:
                os.unlink(child, dir_fd=below)
            except IsADirectoryError:
                remove_below(below, os.fsencode(child))
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=descriptor)


@contextmanager
def reached(table: InodeTable, session_number: int, path: bytes) -> Iterator[tuple[Directory, bytes]]:
    """Give the directory and the name of a path; unknown directories on the way stay out of the table.

    Args:
        table: The inodes.
        session_number: Of the session's root, 0 when nobody used the session.
        path: Session first.

    Raises:
        OSError: A directory on the way is not here.
    """
    *above, last = path.split(b"/")
    opened: list[int] = []
    here = table.root
    try:
        for name in above:
            inside = table.find(here, name)[0] if here is not table.root and here.number else 0
            below = table.by_number.get(session_number if here is table.root else inside)
            if not isinstance(below, Directory):
                below = Directory(0, None)
                below.descriptor = os.open(name, _DIRECTORY_FLAGS, dir_fd=table.descriptor(here))
                opened.append(below.descriptor)
            here = below
        yield here, last
    finally:
        for descriptor in opened:
            os.close(descriptor)
