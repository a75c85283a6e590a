"""The files of one session through a live mount, with ordinary system calls in threads.

Every path is walked component by component from the mount's root, and no symlink is followed. A file is written beside its place and renamed over it
(made new: linked to it); an append is one ``write(2)``, which the kernel lets nobody of this host come between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import trio

from sessionfs.daemon.doors.disk_sync import sync_disk, sync_name
from sessionfs.daemon.doors.file_states import (
    DIRECTORY_MODE,
    FILE_MODE,
    WRITE_BYTES,
    in_order,
    is_temporary,
    later_than,
    mode_of,
    stat_of,
    temporary_name,
)
from sessionfs.daemon.doors.refusals import refusal, shown
from sessionfs.daemon.doors.request_checks import checked_range, own_path
from sessionfs.daemon.doors.ruling import Ruling
from sessionfs.daemon.doors.through_mount.mount_point import MountPoint
from sessionfs.daemon.doors.unit_paths import unit_path
from sessionfs.filesystem.inodes import failure
from sessionfs.model.clock import Clock
from sessionfs.model.errors import NotFoundError, PreconditionFailedError
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat, SessionFiles
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.open_below import parent_directory

Result = TypeVar("Result")
_Found = list[FileStat]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFTOVER_NS = 600 * 1_000_000_000
"""A temporary file this old is nobody's: the programs of a mount cannot be asked."""


class MountFiles(SessionFiles):
    """One session's.

    Args:
        session: The session.
        mount: The mount.
        layout: The state directory of the mount.
        clock: Names and ages of temporary files.
        ruling: Says whether this place may go on, and hears of changes.
    """

    def __init__(
        self, session: SessionId, mount: MountPoint, *, layout: StateLayout, clock: Clock, ruling: Ruling
    ) -> None:
        self._session = session
        self._mount = mount
        self._layout = layout
        self._clock = clock
        self._ruling = ruling

    @property
    def session(self) -> SessionId:
        """Whose files."""
        return self._session

    async def stat(self, path: str) -> FileStat:
        """Describe a file."""
        return await self._look(path, partial(self._stat, own_path(path)))

    async def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a part of a file."""
        start, end = checked_range(own_path(path), start, end)
        return await self._look(path, partial(self._read, path, start, end))

    async def write(
        self,
        path: str,
        body: bytes,
        *,
        is_private: bool = False,
        is_new: bool = False,
        base: FileStat | None = None,
    ) -> FileStat:
        """Replace a file, or make it."""
        call = partial(self._write, own_path(path), body, base, is_private=is_private, is_new=is_new)
        return await self._change(path, call)

    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        """Add to a file in one write."""
        call = partial(self._append, own_path(path), tail, base, is_synced=is_synced)
        return await self._change(path, call)

    async def list(self, below: str = "") -> list[FileStat]:
        """List the files at and below a directory."""
        try:
            return await self._look(below, partial(self._list, own_path(below) if below else ""))
        except NotFoundError:
            return []

    async def remove(self, path: str) -> None:
        """Remove a file."""
        await self._change(path, partial(self._remove, own_path(path)))

    async def rename(self, path: str, new: str) -> None:
        """Give a file another path."""
        await self._change(path, partial(self._rename, own_path(path), own_path(new)))

    async def sync(self, path: str = "") -> None:
        """Return when a file, or everything, is on the disk, and with ``fsync = bucket`` in the bucket."""
        await self._look(path, partial(self._sync, own_path(path)) if path else self._sync_all)

    # --- in a thread

    @contextmanager
    def _place(self, path: str = "", *, make: bool = False) -> Iterator[tuple[int, bytes]]:
        """Open the directory of a path; gives its descriptor and the last component."""
        parts = unit_path(self._session, path)
        with self._mount.root() as root:
            if make:
                _make_above(root, parts)
            with parent_directory(root, os.fsdecode(parts[0]), b"/".join(parts[1:])) as place:
                yield place

    def _stat(self, path: str) -> FileStat:
        with self._place(path) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise failure(errno.ENOENT)
            return stat_of(path, status)

    def _read(self, path: str, start: int, end: int | None) -> bytes:
        with self._place(path) as (directory, name):
            descriptor = _open_file(name, _READ, directory)
            try:
                pieces: list[bytes] = []
                while end is None or start < end:
                    length = WRITE_BYTES if end is None else min(WRITE_BYTES, end - start)
                    piece = os.pread(descriptor, length, start)
                    if not piece:
                        break
                    pieces.append(piece)
                    start += len(piece)
                return b"".join(pieces)
            finally:
                os.close(descriptor)

    def _write(
        self, path: str, body: bytes, base: FileStat | None, *, is_private: bool, is_new: bool
    ) -> FileStat:
        with self._place(path, make=True) as (directory, name), self._place("x") as (root, _):
            before = _status(name, directory)
            if is_new and before is not None:
                raise failure(errno.EEXIST)
            self._require_base(path, before, base)
            mode = mode_of(before.st_mode if before is not None else None, is_private=is_private)
            temporary = temporary_name(self._clock)
            try:
                self._write_beside(path, (root, temporary), body, mode, before)
                if is_new:
                    os.link(temporary, name, src_dir_fd=root, dst_dir_fd=directory, follow_symlinks=False)
                    os.unlink(temporary, dir_fd=root)
                else:
                    self._require_base(path, _status(name, directory), base)
                    os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=root)
                raise
            return stat_of(path, os.stat(name, dir_fd=directory, follow_symlinks=False))

    def _require_base(self, path: str, now: os.stat_result | None, base: FileStat | None) -> None:
        if base is not None and (now is None or stat_of(path, now).revision != base.revision):
            raise self._moved(path)

    def _write_beside(
        self, path: str, place: tuple[int, bytes], body: bytes, mode: int, before: os.stat_result | None
    ) -> None:
        root, temporary = place
        descriptor = os.open(temporary, _WRITE | os.O_CREAT | os.O_EXCL, mode, dir_fd=root)
        try:
            view = memoryview(body)
            while view:
                view = view[os.write(descriptor, view[:WRITE_BYTES]) :]
            status = os.fstat(descriptor)
            known = stat_of(path, before) if before is not None else None
            later = later_than(status.st_mtime_ns, status.st_size, known)
            if later != status.st_mtime_ns:
                os.utime(descriptor, ns=(later, later))
            # A file that is replaced keeps its mode, whatever the process's umask.
            if before is not None and stat.S_IMODE(status.st_mode) != mode:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def _append(self, path: str, tail: bytes, base: FileStat | None, *, is_synced: bool) -> FileStat:
        flags = _WRITE | os.O_APPEND | (os.O_CREAT if base is None else 0)
        try:
            with self._place(path, make=base is None) as (directory, name):
                descriptor = _open_file(name, flags, directory)
                try:
                    # Doors of other processes that look at the file first wait for one another.
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    grown = self._grow(path, descriptor, tail, base)
                    # Nobody waits for the disk, or the bucket, of somebody else.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                    if is_synced:
                        os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            if base is None:
                raise
            raise self._moved(path) from None
        if is_synced:
            sync_name(self._layout.sessions, self._session, os.fsencode(path))
        return grown

    def _grow(self, path: str, descriptor: int, tail: bytes, base: FileStat | None) -> FileStat:
        before = os.fstat(descriptor)
        if base is not None and stat_of(path, before).revision != base.revision:
            raise self._moved(path)
        if not tail:
            return stat_of(path, before)
        written = os.write(descriptor, tail)
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        if written < len(tail):
            _take_back(descriptor, written, end)
            raise failure(errno.ENOSPC)
        if base is not None and end != base.size_bytes + len(tail):
            # A program that is no door came between.
            _take_back(descriptor, written, end)
            raise self._moved(path)
        return stat_of(path, os.fstat(descriptor))

    def _list(self, below: str) -> _Found:
        found: list[FileStat] = []
        with self._place(below) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                return [stat_of(below, status)] if stat.S_ISREG(status.st_mode) else []
            top = os.open(name, _LIST, dir_fd=directory)
            try:
                for where, _, names, here in os.fwalk(".", dir_fd=top, onerror=_tell_unless_gone):
                    inner = "" if where == "." else where.removeprefix("./")
                    above = "/".join(filter(None, (below, inner)))
                    for one in names:
                        if not above and is_temporary(os.fsencode(one)):
                            continue
                        of_one = _status(one, here)
                        if of_one is not None and stat.S_ISREG(of_one.st_mode):
                            found.append(stat_of(f"{above}/{one}" if above else one, of_one))
            finally:
                os.close(top)
        return in_order(found)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), self._place(path) as (directory, name):
            status = _status(name, directory)
            if status is not None and not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=directory)

    def _rename(self, path: str, new: str) -> None:
        try:
            self._stat(path)
        except NotADirectoryError:
            raise failure(errno.ENOENT) from None
        with self._place(path) as (directory, name), self._place(new, make=True) as (target, new_name):
            os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=target)

    def _sync(self, path: str) -> None:
        with self._place(path) as (directory, name):
            descriptor = _open_file(name, _READ, directory)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_name(self._layout.sessions, self._session, os.fsencode(path))

    def _sync_all(self) -> None:
        with self._place() as (directory, name):
            root = os.open(name, _LIST, dir_fd=directory)
            try:
                sync_disk(self._layout.sessions)
                os.fsync(root)
            finally:
                os.close(root)

    def make_root(self) -> None:
        """Make the session if it is not there. Blocks.

        Raises:
            OSError: What making it gives.
        """
        with self._place("x", make=True):
            return

    def sweep(self) -> None:
        """Remove what programs that were killed have left in the session's root. Blocks.

        Raises:
            OSError: The session is not there, or not ours.
        """
        oldest_ns = self._clock.wall_ns() - _LEFTOVER_NS
        with self._place() as (directory, name):
            root = os.open(name, _LIST, dir_fd=directory)
            try:
                for one in os.listdir(root):
                    status = _status(one, root) if is_temporary(os.fsencode(one)) else None
                    if status is not None and status.st_mtime_ns < oldest_ns:
                        os.unlink(one, dir_fd=root)
            finally:
                os.close(root)

    # --- how

    async def _look(self, path: str, call: Callable[[], Result]) -> Result:
        """Run a call that changes nothing: below a file there is nothing."""

        def look() -> Result:
            try:
                return call()
            except NotADirectoryError:
                raise failure(errno.ENOENT) from None

        self._ruling.require_open()
        try:
            return await trio.to_thread.run_sync(look)
        except OSError as problem:
            raise refusal(problem, self._session, path) from problem

    async def _change(self, path: str, call: Callable[[], Result]) -> Result:
        """Run a call that changes the session."""
        try:
            return await self._ruling.changed(self._session, partial(trio.to_thread.run_sync, call))
        except OSError as problem:
            raise refusal(problem, self._session, path) from problem

    def _moved(self, path: str) -> PreconditionFailedError:
        return PreconditionFailedError(f"{shown(self._session, path)} was changed by somebody else")


def _take_back(descriptor: int, written_bytes: int, end: int) -> None:
    """Cut off what was just appended, if it is still the file's end."""
    if os.fstat(descriptor).st_size == end:
        os.ftruncate(descriptor, end - written_bytes)


def _make_above(root: str, parts: list[bytes]) -> None:
    """Make the directories above the last component, the session first."""
    try:
        with parent_directory(root, os.fsdecode(parts[0]), b"/".join(parts[1:])):
            return
    except FileNotFoundError:
        pass
    for depth in range(1, len(parts)):
        with (
            parent_directory(root, os.fsdecode(parts[0]), b"/".join(parts[1:depth])) as (directory, name),
            suppress(FileExistsError),
        ):
            os.mkdir(name, DIRECTORY_MODE, dir_fd=directory)


def _open_file(name: bytes, flags: int, directory: int) -> int:
    """Open a regular file.

    Raises:
        OSError: ENOENT for anything else that is only read, ELOOP when it would be written.
    """
    reads = flags & os.O_ACCMODE == os.O_RDONLY
    try:
        descriptor = os.open(name, flags, FILE_MODE, dir_fd=directory)
    except OSError as problem:
        if reads and problem.errno in {errno.ELOOP, errno.ENXIO}:
            raise failure(errno.ENOENT) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise failure(errno.ENOENT if reads else errno.ELOOP)
    return descriptor


def _status(name: bytes | str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _tell_unless_gone(problem: OSError) -> None:
    if problem.errno not in {errno.ENOENT, errno.ENOTDIR}:
        raise problem
