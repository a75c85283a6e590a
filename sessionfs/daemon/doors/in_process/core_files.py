"""The files of one session in a working copy whose Core runs in this process.

A file is written beside its place and renamed over it; an append is one write of the Core, which nothing of this process or of the replication
process comes between. What the Core says with an errno is raised as one of our errors, with the session and the path in it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import trio

from sessionfs.daemon.doors.disk_sync import sync_disk, sync_name
from sessionfs.daemon.doors.file_states import (
    FILE_MODE,
    WRITE_BYTES,
    file_stat,
    in_order,
    later_than,
    mode_of,
    temporary_name,
)
from sessionfs.daemon.doors.in_process.core_tree import CoreTree, answer
from sessionfs.daemon.doors.in_process.turns import Turns
from sessionfs.daemon.doors.refusals import refusal, shown
from sessionfs.daemon.doors.request_checks import checked_range, own_path
from sessionfs.daemon.doors.ruling import Ruling
from sessionfs.daemon.doors.unit_paths import unit_path
from sessionfs.filesystem.inodes import failure
from sessionfs.filesystem.links import NOREPLACE
from sessionfs.filesystem.volume import Attributes
from sessionfs.model.clock import Clock
from sessionfs.model.errors import NotFoundError, PreconditionFailedError, SessionFSError
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat, SessionFiles
from sessionfs.working_copy.layout import StateLayout

Result = TypeVar("Result")

_TRIES = 4
"""A name may mean something else a moment later (ESTALE): the kernel asks again too."""


class CoreFiles(SessionFiles):
    """One session's.

    Args:
        session: The session.
        tree: The Core.
        layout: Where the working copy is.
        clock: Names temporary files.
        ruling: Says whether this place may go on, and hears of changes.
    """

    def __init__(
        self, session: SessionId, tree: CoreTree, *, layout: StateLayout, clock: Clock, ruling: Ruling
    ) -> None:
        self._session = session
        self._tree = tree
        self._core = tree.core
        self._layout = layout
        self._clock = clock
        self._ruling = ruling
        self._turns = Turns()

    @property
    def session(self) -> SessionId:
        """Whose files."""
        return self._session

    async def stat(self, path: str) -> FileStat:
        """Describe a file."""
        parts = unit_path(self._session, own_path(path))

        async def describe() -> FileStat:
            parent = await self._tree.directory(parts[:-1])
            async with self._tree.found(parent, parts[-1]) as found:
                return _stat(path, _regular(found))

        return await self._look(path, describe)

    async def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a part of a file."""
        parts = unit_path(self._session, own_path(path))
        start, end = checked_range(path, start, end)

        async def read() -> bytes:
            parent = await self._tree.directory(parts[:-1])
            async with self._tree.found(parent, parts[-1]) as found:
                number = _regular(found).number
                opened = await answer(self._core.open(number, os.O_RDONLY, self._tree.caller))
            try:
                return await self._read(opened.handle, start, end)
            finally:
                self._core.release(opened.handle)

        return await self._look(path, read)

    async def _read(self, handle: int, start: int, end: int | None) -> bytes:
        pieces: list[bytes] = []
        while end is None or start < end:
            length = WRITE_BYTES if end is None else min(WRITE_BYTES, end - start)
            piece: bytes = await answer(self._core.read(handle, start, length))
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
            await trio.lowlevel.checkpoint()
        return b"".join(pieces)

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
        parts = unit_path(self._session, own_path(path))

        async def write() -> FileStat:
            parent = await self._tree.directory(parts[:-1], make=True)
            root = await self._tree.directory(unit_path(self._session))
            async with self._tree.found(parent, parts[-1]) as found:
                if is_new and found is not None:
                    raise failure(errno.EEXIST)
                if base is not None and (found is None or _stat(path, found).revision != base.revision):
                    raise self._moved(path)
                before = found
            mode = mode_of(before.mode if before is not None else None, is_private=is_private)
            if before is None and not is_private:
                mode &= ~self._tree.umask
            known = _stat(path, before) if before is not None else None
            return await self._write_beside(path, (root, parent, parts[-1]), body, mode, known, is_new=is_new)

        async with self._turns.of(path):
            return await self._change(path, write)

    async def _write_beside(
        self,
        path: str,
        place: tuple[int, int, bytes],
        body: bytes,
        mode: int,
        before: FileStat | None,
        *,
        is_new: bool,
    ) -> FileStat:
        """Make the bytes under a temporary name, then give them their path."""
        (root, parent, name), caller = place, self._tree.caller
        temporary = temporary_name(self._clock)
        flags = os.O_WRONLY | os.O_EXCL
        opened, made = await answer(self._core.create(root, temporary, mode, flags, caller))
        try:
            try:
                await self._fill(opened.handle, body)
                shown = self._core.getattr(made.number)
                later = later_than(shown.mtime_ns, shown.size, before)
                # The process's umask may be stricter than the mode that a file keeps.
                wanted = None if stat.S_IMODE(shown.mode) == mode else mode
                if wanted is not None or later != shown.mtime_ns:
                    await answer(
                        self._core.setattr(made.number, caller, mode=wanted, mtime_ns=later, atime_ns=later)
                    )
            finally:
                self._core.release(opened.handle)
            await answer(self._core.rename(root, temporary, parent, name, NOREPLACE if is_new else 0, caller))
            return _stat(path, self._core.getattr(made.number))
        except BaseException:
            with trio.CancelScope(shield=True), suppress(OSError, SessionFSError):
                await answer(self._core.unlink(root, temporary, caller))
            raise
        finally:
            self._core.forget(made.number, 1)

    async def _fill(self, handle: int, body: bytes) -> None:
        view, offset = memoryview(body), 0
        while offset < len(view):
            offset += await answer(
                self._core.write(handle, offset, bytes(view[offset : offset + WRITE_BYTES]))
            )
            await trio.lowlevel.checkpoint()

    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        """Add to a file in one write."""
        parts = unit_path(self._session, own_path(path))

        async def append() -> FileStat:
            parent = await self._above(path, parts, base)
            flags = os.O_WRONLY | os.O_APPEND
            async with self._tree.found(parent, parts[-1]) as found:
                if found is not None:
                    number = _appendable(found).number
                    opened = await answer(self._core.open(number, flags, self._tree.caller))
                    return await self._grow(path, number, opened.handle, tail, base, is_synced=is_synced)
            if base is not None:
                raise self._moved(path)
            mode = FILE_MODE & ~self._tree.umask
            opened, made = await answer(self._core.create(parent, parts[-1], mode, flags, self._tree.caller))
            try:
                return await self._grow(path, made.number, opened.handle, tail, base, is_synced=is_synced)
            finally:
                self._core.forget(made.number, 1)

        async with self._turns.of(path):
            return await self._change(path, append)

    async def _above(self, path: str, parts: Sequence[bytes], base: FileStat | None) -> int:
        """Give the directory of a file that is appended to; only a file that may be new has one made."""
        try:
            return await self._tree.directory(parts[:-1], make=base is None)
        except (FileNotFoundError, NotADirectoryError):
            if base is None:
                raise
            raise self._moved(path) from None

    async def _grow(
        self, path: str, number: int, handle: int, tail: bytes, base: FileStat | None, *, is_synced: bool
    ) -> FileStat:
        """Write behind the end; nothing waits between the look at the file and the write, unless a commit needs its bytes."""
        try:
            before = self._core.getattr(number)
            if base is not None and _stat(path, before).revision != base.revision:
                raise self._moved(path)
            written = await answer(self._core.write(handle, before.size, tail)) if tail else 0
            if written < len(tail):
                await answer(self._core.setattr(number, self._tree.caller, size=before.size, handle=handle))
                raise failure(errno.ENOSPC)
            grown = _stat(path, self._core.getattr(number))
            if is_synced:
                await self._core.fsync(handle, data_only=True)
                await self._sync_name(path)
            return grown
        finally:
            self._core.release(handle)

    async def _sync_name(self, path: str) -> None:
        await trio.to_thread.run_sync(sync_name, self._layout.sessions, self._session, os.fsencode(path))

    def _moved(self, path: str) -> PreconditionFailedError:
        return PreconditionFailedError(f"{shown(self._session, path)} was changed by somebody else")

    async def list(self, below: str = "") -> list[FileStat]:
        """List the files at and below a directory."""
        parts = unit_path(self._session, own_path(below) if below else "")

        async def walk() -> list[FileStat]:
            try:
                found = await self._tree.files(parts)
            except NotADirectoryError:
                parent = await self._tree.directory(parts[:-1])
                async with self._tree.found(parent, parts[-1]) as one:
                    return [_stat(below, one)] if one is not None and stat.S_ISREG(one.mode) else []
            prefix = f"{below}/" if below else ""
            return in_order([_stat(prefix + os.fsdecode(path), one) for path, one in found])

        try:
            return await self._look(below, walk)
        except NotFoundError:
            return []

    async def remove(self, path: str) -> None:
        """Remove a file."""
        parts = unit_path(self._session, own_path(path))

        async def remove() -> None:
            try:
                parent = await self._tree.directory(parts[:-1])
                async with self._tree.found(parent, parts[-1]) as found:
                    if found is None or stat.S_ISDIR(found.mode):
                        return
                await answer(self._core.unlink(parent, parts[-1], self._tree.caller))
            except (FileNotFoundError, NotADirectoryError):
                return

        await self._change(path, remove)

    async def rename(self, path: str, new: str) -> None:
        """Give a file another path."""
        parts, target = unit_path(self._session, own_path(path)), unit_path(self._session, own_path(new))

        async def rename() -> None:
            try:
                parent = await self._tree.directory(parts[:-1])
            except NotADirectoryError:
                raise failure(errno.ENOENT) from None
            async with self._tree.found(parent, parts[-1]) as found:
                _regular(found)
            new_parent = await self._tree.directory(target[:-1], make=True)
            await answer(self._core.rename(parent, parts[-1], new_parent, target[-1], 0, self._tree.caller))

        await self._change(path, rename)

    async def sync(self, path: str = "") -> None:
        """Return when a file, or everything, is on the disk, and with ``fsync = bucket`` in the bucket."""
        parts = unit_path(self._session, own_path(path) if path else "")

        async def sync_file() -> None:
            parent = await self._tree.directory(parts[:-1])
            async with self._tree.found(parent, parts[-1]) as found:
                number = _regular(found).number
                opened = await answer(self._core.open(number, os.O_RDONLY, self._tree.caller))
            try:
                await self._core.fsync(opened.handle, data_only=False)
            finally:
                self._core.release(opened.handle)
            await self._sync_name(path)

        async def sync_all() -> None:
            root = await self._tree.directory(parts)
            await trio.to_thread.run_sync(sync_disk, self._layout.sessions)
            handle = await answer(self._core.opendir(root, self._tree.caller))
            try:
                await self._core.fsyncdir(handle)
            finally:
                self._core.releasedir(handle)

        await self._look(path, sync_file if path else sync_all)

    # --- how

    async def _look(self, path: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Run a call that changes nothing: below a file there is nothing."""

        async def look() -> Result:
            try:
                return await call()
            except NotADirectoryError:
                raise failure(errno.ENOENT) from None

        self._ruling.require_open()
        try:
            return await _steady(look)
        except OSError as problem:
            raise refusal(problem, self._session, path) from problem

    async def _change(self, path: str, call: Callable[[], Awaitable[Result]]) -> Result:
        """Run a call that changes the session."""
        try:
            return await self._ruling.changed(self._session, lambda: _steady(call))
        except OSError as problem:
            raise refusal(problem, self._session, path) from problem


async def _steady(call: Callable[[], Awaitable[Result]]) -> Result:
    """Run a call, again when a name meant something else meanwhile."""
    await trio.lowlevel.checkpoint()
    tries = 0
    while True:
        try:
            return await call()
        except OSError as problem:
            tries += 1
            if problem.errno != errno.ESTALE or tries >= _TRIES:
                raise


def _stat(path: str, found: Attributes) -> FileStat:
    return file_stat(path, size_bytes=found.size, modified_ns=found.mtime_ns, number=found.number)


def _regular(found: Attributes | None) -> Attributes:
    if found is None or not stat.S_ISREG(found.mode):
        raise failure(errno.ENOENT)
    return found


def _appendable(found: Attributes) -> Attributes:
    if stat.S_ISDIR(found.mode):
        raise failure(errno.EISDIR)
    if not stat.S_ISREG(found.mode):
        raise failure(errno.ELOOP)
    return found
