"""Bytes: open, read, write, fsync, release."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

import trio

from sessionfs.filesystem.control.turn_rule import TurnRule
from sessionfs.filesystem.inodes import ControlNode, Directory, Node, failure
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.ownership.torn_tails import TornTails
from sessionfs.filesystem.permissions import READ, SEARCH, WRITE, Caller
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import FIRST_REMOTE_NUMBER

if TYPE_CHECKING:
    from sessionfs.filesystem.hydration.partial_file import PartialFile

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
        exempt: Whether it is the replication process's: what it writes counts as no change.
        partial: The blocks it reads while the file is not all here; None for every other file.
    """

    __slots__ = ("append", "content", "descriptor", "exempt", "node", "partial", "sync", "uid", "writable")

    def __init__(self, descriptor: int, node: Node, flags: int, uid: int) -> None:
        self.descriptor = descriptor
        self.node = node
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.append = bool(flags & os.O_APPEND)
        self.sync = bool(flags & _SYNC_FLAGS)
        self.uid = uid
        self.content = b""
        self.exempt = False
        self.partial: PartialFile | None = None


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
        turns: The end-of-turn rule.
    """

    def __init__(self, volume: Volume, loading: Loading, sessions: SessionsRoot, turns: TurnRule) -> None:
        self._volume = volume
        self._loading = loading
        self._sessions = sessions
        self._turns = turns
        self._table = volume.table
        self._handles = volume.handles
        self._freezing = loading.freezing
        self._gate = loading.gate
        self._torn = TornTails(volume)
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
            return self._open_control(node, flags, caller)
        if node.kind == stat.S_IFDIR:
            raise failure(errno.EISDIR)
        if node.places and not self._loading.is_ready(node.places[0][0]):
            return self._loading.then(node.places[0][0], self.open, number, flags, caller)
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC
        if writes:
            self._volume.require_changes(caller)
        if caller.uid or flags & _FOR_EXECUTION:
            self._volume.require(caller, node, _wanted(flags))
        if writes and not self._gate.admits(node.session, caller):
            return self._loading.then_owned(node.session, self.open, number, flags, caller)
        if node.entry is not None and not flags & os.O_TRUNC:
            return self._open_absent(node, flags, caller)
        if writes:
            waits = self._before_writing(node, flags, caller)
            if waits is not None:
                return waits
        descriptor = self._truncated(node, flags, caller) if flags & os.O_TRUNC else self._reopen(node, flags)
        return self.register(node, descriptor, flags, caller)

    def _open_absent(self, node: Node, flags: int, caller: Caller) -> Opened | Awaitable[Opened]:
        """Open a file whose bytes are not here: at once when it is large and only read, else when they came."""
        reads = flags & os.O_ACCMODE == os.O_RDONLY
        found = self._loading.partials.open(node) if reads else None
        if found is None:
            return self._loading.then_bring(node, self.open, node.number, flags, caller)
        partial, descriptor = found
        opened = self.register(node, descriptor, flags, caller)
        self._loading.partials.add(self._handles[opened.handle], partial)
        return opened

    def _before_writing(self, node: Node, flags: int, caller: Caller) -> Awaitable[Opened] | None:
        """Do what an open for writing needs first; gives the open's answer when that must wait.

        Raises:
            OSError: EIO under ``strict``; what the disk refuses when a torn line is moved away.
        """
        session = node.session
        self._gate.require_commits(session, caller)
        node.note_changed()
        if flags & os.O_TRUNC:
            if self._volume.frozen and self._freezing.must_copy(node, 0):
                return self._freezing.then(node, self.open, node.number, flags, caller)
        elif flags & os.O_APPEND and self._torn.concerns(node):
            whole_bytes = self._torn.whole_bytes(node)
            if self._volume.frozen and self._freezing.must_copy(node, whole_bytes):
                return self._freezing.then(node, self.open, node.number, flags, caller)
            if whole_bytes < self._table.status(node).st_size:
                self._torn.mend(node, whole_bytes)
                self.cut(node, whole_bytes)
        return None

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
        node.note_changed()
        if node.number in self._volume.images:
            self._volume.images[node.number] += 1

    async def _open_control(self, node: Node, flags: int, caller: Caller) -> Opened:
        content = await self._sessions.control.open(node, flags, caller)
        handle = Handle(-1, node, flags, caller.uid)
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
        if handle.writable and self._volume.exempt_pid and self._volume.is_exempt(caller):
            handle.exempt = True
        elif handle.writable:
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
            if node.number >= FIRST_REMOTE_NUMBER and node.session is not None:
                node.session.written_here.add(node.number)
            if self._turns.has_files:
                self._turns.watch(node)
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

    def read(self, number: int, offset: int, length: int) -> bytes | Awaitable[bytes]:
        """Read; waits for blocks that are not here.

        Raises:
            OSError: EBADF, or what ``pread(2)`` gives; ESTALE when the bytes are nowhere any more.
            SessionFSError: Why they cannot be had.
        """
        handle = self._handles.get(number)
        if handle is None:
            raise failure(errno.EBADF)
        if handle.descriptor < 0:
            return handle.content[offset : offset + length]
        if handle.partial is not None:
            return self._loading.partials.read(number, handle, offset, length)
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
        if handle.exempt or handle.descriptor < 0:
            return self._write_special(handle, offset, data)
        now = volume.clock.elapsed_seconds()
        if now >= node.session.writable_until_seconds:  # type: ignore[union-attr] # every file has a session
            self._gate.require_owned(node.session, now)
        size_bytes = node.size_bytes
        start = size_bytes if handle.append else offset
        if volume.frozen and self._freezing.must_copy(node, start):
            return self._freezing.then(node, self.write, number, offset, data)
        if now >= node.next_note_seconds:
            volume.note_first(Operation.WRITTEN, node.number)
            node.next_note_seconds = now + WRITTEN_INTERVAL_SECONDS
            node.note_changed()
        if volume.images and start < size_bytes and node.number in volume.images:
            volume.images[node.number] += 1
        written = os.pwrite(handle.descriptor, data, offset)
        if start + written > size_bytes:
            node.size_bytes = start + written
        if node.set_id and handle.uid:
            self.clear_set_id(node)
        if node.capability:
            node.capability = None  # the disk's own kernel took it away
        is_turn = node.turn is not None and self._turns.ends(node, start, data[:written])
        return self._confirmed(handle, written, is_turn=is_turn) if is_turn or handle.sync else written

    def _write_special(self, handle: Handle, offset: int, data: bytes) -> int | Awaitable[int]:
        if handle.descriptor < 0:
            return self._sessions.control.write(handle.node, data)
        written = os.pwrite(handle.descriptor, data, offset)
        handle.node.size_bytes = max(handle.node.size_bytes, offset + written)
        return written

    async def _confirmed(self, handle: Handle, written: int, *, is_turn: bool) -> int:
        if handle.sync:
            await trio.to_thread.run_sync(os.fdatasync, handle.descriptor)
        if is_turn:
            await self._turns.commit(handle.node)
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
        if handle.writable and not handle.exempt:
            node.writers -= 1
            self.open_writers -= 1
            self._volume.note(Operation.RELEASE_WRITE, node.number)
        os.close(handle.descriptor)
        if handle.partial is not None:
            self._loading.partials.closed(handle)
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
        if self._volume.settings.fsync != "bucket" or node is self._table.root:
            return
        session = node.session
        if session is None or not self._table.is_session_root(node):
            await self._volume.remote.flush(node.number)
        elif session.owned:
            await self._sessions.control.commits.commit(session, "fsync")
        elif session.holder:
            # Another host's: what was written here before is in no generation, and nobody may be told that it is.
            raise failure(errno.EROFS)


def _wanted(flags: int) -> int:
    """Give the access that an open needs."""
    if flags & _FOR_EXECUTION:
        return SEARCH
    access = flags & os.O_ACCMODE
    wanted = READ if access == os.O_RDONLY else WRITE if access == os.O_WRONLY else READ | WRITE
    return wanted | WRITE if flags & os.O_TRUNC else wanted
