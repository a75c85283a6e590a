"""The working copy's files, opened component by component: no path is too long, no symlink is followed."""

from __future__ import annotations

import os
import stat
from contextlib import AbstractContextManager

from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.working_copy.exclusions import side_file_of
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.open_below import parent_directory

SQLITE_MAGIC = b"SQLite format 3\x00"
# Source: sqlite.org/fileformat2.html (journal and WAL headers), walformat.html (iVersion of the index).
_SIDE_MAGICS = (
    b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7",
    b"\x37\x7f\x06\x82",
    b"\x37\x7f\x06\x83",
    (3_007_000).to_bytes(4, "little"),
    (3_007_000).to_bytes(4, "big"),
)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Identity = tuple[int, int, int]
"""(size, mtime_ns, ctime_ns): what moves whenever bytes or attributes do."""


def identity_of(status: os.stat_result) -> Identity:
    """Give a file's identity."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def attributes_of(status: os.stat_result) -> FileAttributes:
    """Give the attributes that the bucket keeps."""
    return FileAttributes(status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)


class WorkingFiles:
    """Files below the working copy. All methods block, shortly.

    Args:
        layout: The state directory.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout

    def status(self, session: str, path: bytes) -> os.stat_result | None:
        """Describe a path, a symlink as itself; None when nothing is there."""
        try:
            with self._parent(session, path) as (directory, name):
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def link_target(self, session: str, path: bytes) -> bytes:
        """Read a symlink.

        Raises:
            OSError: There is none.
        """
        with self._parent(session, path) as (directory, name):
            return os.readlink(name, dir_fd=directory)

    def open(self, session: str, path: bytes) -> int:
        """Open a file for reading; the caller closes the descriptor.

        Raises:
            OSError: There is no such regular file.
        """
        with self._parent(session, path) as (directory, name):
            try:
                return os.open(name, _READ, dir_fd=directory)
            except PermissionError:
                return _open_unreadable(directory, name)

    def is_side_file(self, session: str, path: bytes) -> bool:
        """Whether a file is one that SQLite keeps beside a database that is there."""
        base = side_file_of(path.rpartition(b"/")[2])
        if base is None:
            return False
        beside = path[: len(path) - len(path.rpartition(b"/")[2])] + base
        head = self._head(session, beside)
        if head is None:
            return False
        # A database that was never checkpointed is empty: then the side file itself must look like one.
        return head == SQLITE_MAGIC or (
            head == b"" and (self._head(session, path) or b"").startswith(_SIDE_MAGICS)
        )

    def is_database(self, session: str, path: bytes) -> bool:
        """Whether a file looks like a SQLite database."""
        return self._head(session, path) == SQLITE_MAGIC

    def _head(self, session: str, path: bytes) -> bytes | None:
        try:
            descriptor = self.open(session, path)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return os.pread(descriptor, len(SQLITE_MAGIC), 0)
        finally:
            os.close(descriptor)

    def _parent(self, session: str, path: bytes) -> AbstractContextManager[tuple[int, bytes]]:
        return parent_directory(self._layout.sessions, session, path)


def _open_unreadable(directory: int, name: bytes) -> int:
    """Open a file of ours whose mode forbids reading: without root the mode must give way for a moment."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise PermissionError(13, "Permission denied", name)
        mode = stat.S_IMODE(status.st_mode)
        through = f"/proc/self/fd/{handle}"
        os.chmod(through, mode | stat.S_IRUSR)
        try:
            return os.open(through, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.chmod(through, mode)
    finally:
        os.close(handle)
