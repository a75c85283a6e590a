"""Bytes: open, read, write, fsync, release; stable images for uploads; eviction."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable
from typing import NamedTuple

import trio

from sessionfs.filesystem.hydration.placing import reached
from sessionfs.filesystem.inodes import ControlNode, Directory, Node, failure
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.permissions import READ, SEARCH, WRITE, Caller
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import (
    Evict,
    ImageGrant,
)
from sessionfs.model.errors import NotFoundError
from sessionfs.working_copy.writers import has_writer

WRITTEN_INTERVAL_SECONDS = 0.5

_FOR_EXECUTION = 0x20
"""The kernel's FMODE_EXEC in the flags of an open by execve(2)."""
_DISK_FLAGS = os.O_ACCMODE | os.O_APPEND
_SYNC_FLAGS = os.O_DSYNC | os.O_SYNC
_SET_ID = stat.S_ISUID | stat.S_ISGID


class Handle:
    """One open of a file.

    Attributes:
        descriptor: Of the file in the working copy, -1 for a control file.
        node: The file.
        writable: Whether it may write.
        append: Whether every write goes to the end.
        sync: Whether a write returns only when it is on the disk.
        uid: Who opened it.
        content: What a control file said at open.
    """

    __slots__ = ("append", "content", "descriptor", "node", "sync", "uid", "writable")

    def __init__(self, descriptor: int, node: Node, flags: int, uid: int) -> None:
        self.descriptor = descriptor
        self.node = node
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.append = bool(flags & os.O_APPEND)
        self.sync = bool(flags & _SYNC_FLAGS)
        self.uid = uid
        self.content = b""


class Opened(NamedTuple):
    """What the kernel is told of an open.

    Attributes:
        handle: Its number.
        keep_cache: Whether pages it has are still right.
        direct: Whether to bypass its pages.
    """

    handle: int
    keep_cache: bool = True
    direct: bool = False


class Data:
    """Calls about bytes.

    Args:
        volume: The mount.
        loading: Brings in what is not here.
        sessions: Gives control files their content.
    """

    def __init__(self, volume: Volume, loading: Loading, sessions: SessionsRoot) -> None:
        self._volume = volume
        self._loading = loading
        self._sessions = sessions
        self._table = volume.table
        self._handles = volume.handles
        self.open_writers = 0

    def disk_flags(self, flags: int) -> int:
        """Give the flags with which the working copy's file is opened."""
        return flags & _DISK_FLAGS | os.O_NOFOLLOW | os.O_CLOEXEC

    def open(self, number: int, flags: int, caller: Caller) -> Opened | Awaitable[Opened]:
        """Open a file; its bytes are brought in first, unless they are cut off anyway.

        Raises:
            OSError: What ``open(2)`` gives; EIO when the bytes cannot be had.
        """
        node = self._table.node(number)
        if node.__class__ is ControlNode:
            return self._open_control(node, flags)
        if node.kind == stat.S_IFDIR:
            raise failure(errno.EISDIR)
        if node.places and not self._loading.is_ready(node.places[0][0]):
            return self._loading.then(node.places[0][0], self.open, number, flags, caller)
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC
        if writes:
            self._volume.require_changes()
        if caller.uid or flags & _FOR_EXECUTION:
            self._volume.require(caller, node, _wanted(flags))
        if node.entry is not None and not flags & os.O_TRUNC:
            return self._loading.then_bring(node, self.open, number, flags, caller)
        descriptor = self._truncated(node, flags, caller) if flags & os.O_TRUNC else self._reopen(node, flags)
        opened = self.register(node, descriptor, flags, caller)
        if writes:
            self._volume.changed(node.session)
        return opened

    def _reopen(self, node: Node, flags: int) -> int:
        directory, name = self._table.location(node)
        try:
            return os.open(name, self.disk_flags(flags), dir_fd=directory)
        except FileNotFoundError:
            raise failure(errno.ESTALE) from None

    def _truncated(self, node: Node, flags: int, caller: Caller) -> int:
        volume = self._volume
        sequence = volume.begin(Operation.TRUNCATE, number=node.number)
        try:
            if node.entry is not None:
                if not node.places:
                    raise failure(errno.ESTALE)
                self._loading.make_empty(node)
            directory, name = self._table.location(node)
            descriptor = os.open(name, self.disk_flags(flags) | os.O_TRUNC, dir_fd=directory)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=node.number)
        self.cut(node, 0)
        if caller.uid:
            self.clear_set_id(node)
        return descriptor

    def cut(self, node: Node, size_bytes: int) -> None:
        """Note that a file was truncated."""
        node.size_bytes = size_bytes
        if node.number in self._volume.images:
            self._volume.images[node.number] += 1

    async def _open_control(self, node: Node, flags: int) -> Opened:
        if node.kind == stat.S_IFDIR:
            raise failure(errno.EISDIR)
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise failure(errno.EACCES)
        content = await self._sessions.control_content(node)
        handle = Handle(-1, node, flags, 0)
        handle.content = content
        number = self._volume.next_handle()
        self._handles[number] = handle
        return Opened(number, keep_cache=False, direct=True)

    def register(
        self, node: Node, descriptor: int, flags: int, caller: Caller, *, mode: int = -1, size_bytes: int = -1
    ) -> Opened:
        """Give an open file its handle; the descriptor is closed when that fails.

        Args:
            node: The file.
            descriptor: Of the working copy's file.
            flags: Of the open.
            caller: Who opens it.
            mode: Of a file just made.
            size_bytes: Of a file just made.

        Raises:
            OSError: The intent log cannot be written.
        """
        handle = Handle(descriptor, node, flags, caller.uid)
        if handle.writable:
            try:
                self._volume.note_first(Operation.OPEN_WRITE, node.number)
            except OSError:
                os.close(descriptor)
                raise
            if not node.writers:
                if size_bytes < 0:
                    status = os.fstat(descriptor)
                    mode, size_bytes = status.st_mode, status.st_size
                node.size_bytes = size_bytes
                node.set_id = bool(mode & _SET_ID)
            node.writers += 1
            self.open_writers += 1
            node.next_note_seconds = 0.0
        if node.handles is None:
            node.handles = [handle]
        else:
            node.handles.append(handle)
        number = self._volume.next_handle()
        self._handles[number] = handle
        keep = not node.drop_cache
        node.drop_cache = False
        return Opened(number, keep)

    # --- reading and writing

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Read.

        Raises:
            OSError: EBADF, or what ``pread(2)`` gives.
        """
        handle = self._handles.get(number)
        if handle is None:
            raise failure(errno.EBADF)
        if handle.descriptor < 0:
            return handle.content[offset : offset + length]
        return os.pread(handle.descriptor, length, offset)

    def write(self, number: int, offset: int, data: bytes) -> int | Awaitable[int]:
        """Write; the intent log knows of it before the bytes change.

        Raises:
            OSError: EBADF, ENOSPC, or what ``pwrite(2)`` gives.
        """
        handle = self._handles.get(number)
        if handle is None:
            raise failure(errno.EBADF)
        volume, node = self._volume, handle.node
        now = volume.clock.elapsed_seconds()
        if now >= node.next_note_seconds:
            volume.note_first(Operation.WRITTEN, node.number)
            node.next_note_seconds = now + WRITTEN_INTERVAL_SECONDS
        size_bytes = node.size_bytes
        start = size_bytes if handle.append else offset
        if volume.images and start < size_bytes and node.number in volume.images:
            volume.images[node.number] += 1
        written = os.pwrite(handle.descriptor, data, offset)
        if start + written > size_bytes:
            node.size_bytes = start + written
        if node.set_id and handle.uid:
            self.clear_set_id(node)
        if node.capability:
            node.capability = None  # the disk's own kernel took it away
        return self._synced(handle, written) if handle.sync else written

    async def _synced(self, handle: Handle, written: int) -> int:
        await trio.to_thread.run_sync(os.fdatasync, handle.descriptor)
        return written

    def clear_set_id(self, node: Node) -> None:
        """Take setuid and setgid away after a change by somebody who is not root."""
        mode = stat.S_IMODE(self._table.status(node).st_mode)
        node.set_id = False
        cleared = mode & ~stat.S_ISUID
        if mode & stat.S_IXGRP:
            cleared &= ~stat.S_ISGID
        if cleared == mode:
            return
        sequence = self._volume.begin(Operation.SETATTR, number=node.number, mode=cleared)
        directory, name = self._table.location(node)
        os.chmod(name, cleared, dir_fd=directory)
        self._volume.finish(sequence, number=node.number)

    def release(self, number: int) -> None:
        """Close a handle."""
        handle = self._handles.pop(number, None)
        if handle is None or handle.descriptor < 0:
            return
        node = handle.node
        if node.handles is not None:
            node.handles.remove(handle)
        if handle.writable:
            node.writers -= 1
            self.open_writers -= 1
            self._volume.note(Operation.RELEASE_WRITE, node.number)
        os.close(handle.descriptor)
        if not node.handles:
            node.handles = None
            if node.session is not None and node.session.stale:
                self._loading.drop(node)
            if not node.lookups:
                self._table.settle(node)

    async def fsync(self, number: int, *, data_only: bool) -> None:
        """Bring a file to the disk, and with ``fsync = bucket`` to the bucket.

        Raises:
            OSError: EBADF, or what ``fsync(2)`` gives.
            SessionFSError: The store did not take it.
        """
        handle = self._handles.get(number)
        if handle is None:
            raise failure(errno.EBADF)
        if handle.descriptor < 0:
            return
        await trio.to_thread.run_sync(os.fdatasync if data_only else os.fsync, handle.descriptor)
        if self._volume.settings.fsync == "bucket":
            await self._volume.remote.flush(handle.node.number)

    async def fsync_directory(self, node: Node) -> None:
        """Bring a directory's names to the disk, and with ``fsync = bucket`` to the bucket.

        Raises:
            OSError: What ``fsync(2)`` gives.
            SessionFSError: The store did not take them.
        """
        if not isinstance(node, Directory):
            return
        descriptor = self._table.open_listing(node)
        try:
            await trio.to_thread.run_sync(os.fsync, descriptor)
        finally:
            os.close(descriptor)
        await trio.to_thread.run_sync(self._volume.log.sync)
        if self._volume.settings.fsync == "bucket" and node is not self._table.root:
            await self._volume.remote.flush(node.number)

    # --- for the replication process

    def begin_image(self, number: int) -> ImageGrant:
        """Say how a file stands between two writes, and count changes below its end from now on.

        Raises:
            NotFoundError: The kernel does not know the file, so nobody has it open: its own stat tells.
        """
        grant = self._grant(number)
        self._volume.images.setdefault(number, 0)
        # Whatever is written from here on is not in the image: it must be told of again.
        node = self._table.by_number.get(number)
        if node is not None:
            node.next_note_seconds = 0.0
        return grant

    def end_image(self, number: int) -> ImageGrant:
        """Say how it stands now, and stop counting.

        Raises:
            NotFoundError: The kernel has forgotten the file since, and changes may have gone uncounted.
        """
        try:
            return self._grant(number)
        finally:
            self._volume.images.pop(number, None)

    def _grant(self, number: int) -> ImageGrant:
        node = self._table.by_number.get(number)
        if node is None or node.entry is not None:
            raise NotFoundError(f"file {number} is not open here")
        try:
            size_bytes = self._table.status(node).st_size
        except OSError:
            raise NotFoundError(f"file {number} is not here any more") from None
        return ImageGrant(size_bytes, self._volume.images.get(number, 0), node.writers)

    def evict(self, message: Evict, path: bytes = b"") -> bool:
        """Remove a clean file's bytes from the working copy.

        Args:
            message: The file, and how it was when the bucket had its bytes.
            path: Its path below the sessions, session first; needed when the kernel does not know the file.

        Returns:
            False when it is open, written, changed, or not found.
        """
        try:
            known = self._table.by_number.get(message.number)
            if known is not None:
                return self._evict(known, message)
            if b"/" not in path:
                return False
            session = self._sessions.sessions.get(path.partition(b"/")[0])
            with reached(self._table, session.number if session else 0, path) as (parent, name):
                if parent.number and parent.loaded and self._table.find(parent, name)[0] != message.number:
                    return False
                node = Node(message.number, stat.S_IFREG, parent.session)
                node.places.append((parent, name))
                return self._evict(node, message)
        except OSError:
            return False

    def _evict(self, node: Node, message: Evict) -> bool:
        if node.handles or node.entry is not None or not node.places or node.kind != stat.S_IFREG:
            return False
        status = self._table.status(node)
        same = (message.size_bytes, message.mtime_ns, message.ctime_ns) == (
            status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        )  # fmt: skip
        if not same or not stat.S_ISREG(status.st_mode):
            return False
        if status.st_nlink != len(node.places) or self._is_written(node):
            return False
        self._loading.evict(node, status)
        return True

    def _is_written(self, node: Node) -> bool:
        directory, name = self._table.location(node)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            return True
        try:
            return has_writer(descriptor)
        finally:
            os.close(descriptor)


def _wanted(flags: int) -> int:
    """Give the access that an open needs."""
    if flags & _FOR_EXECUTION:
        return SEARCH
    access = flags & os.O_ACCMODE
    wanted = READ if access == os.O_RDONLY else WRITE if access == os.O_WRONLY else READ | WRITE
    return wanted | WRITE if flags & os.O_TRUNC else wanted
