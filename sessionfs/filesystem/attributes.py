"""Attributes, plain and extended: getattr, setattr, access, statfs, and the xattr calls."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable
from functools import partial

import msgspec

from sessionfs.filesystem.control.shared_roots import SharedRoots
from sessionfs.filesystem.data import Data, Handle
from sessionfs.filesystem.inodes import ControlNode, Directory, Node, failure
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.permissions import READ, WRITE, Caller
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import ACCESS_ACL, Attributes, Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import Entry

OWN_PREFIX = b"user.sessionfs."
CONTROL_NAME = b"user.sessionfs.control"
_CAPABILITY = b"security.capability"
_DEFAULT_ACL = b"system.posix_acl_default"
_SET_ID = stat.S_ISUID | stat.S_ISGID
_DESCRIBED = frozenset({"state", "etag", "sha256", "generation", "owner", "reason", "key"})
_NOW_NS = 2_000_000_000
"""Equal times this close to now are what ``touch`` asks for: the engine cannot tell them from explicit ones."""


class AttributeCalls:
    """Calls about attributes.

    Args:
        volume: The mount.
        loading: Brings in what is not here.
        sessions: Describes control files.
        shared: Describes the directories above the shared roots.
        data: Is told of truncations.
        control_socket: Path shown in ``user.sessionfs.control`` of the root.
    """

    def __init__(
        self, volume: Volume, loading: Loading, sessions: SessionsRoot, shared: SharedRoots, data: Data,
        control_socket: str,
    ) -> None:  # fmt: skip
        self._volume = volume
        self._loading = loading
        self._sessions = sessions
        self._shared = shared
        self._data = data
        self._table = volume.table
        self._control_socket = os.fsencode(control_socket)

    def getattr(self, number: int) -> Attributes:
        """Give a file's attributes.

        Raises:
            OSError: ESTALE.
        """
        node = self._table.node(number)
        if node.__class__ is ControlNode:
            return (self._shared if node.session is None else self._sessions.control).attributes(node)
        return self._volume.attributes(node)

    def access(self, number: int, wanted: int, caller: Caller) -> bool:
        """Say whether the caller has an access, as ``access(2)``.

        Raises:
            OSError: EROFS, ESTALE.
        """
        node = self._table.node(number)
        if wanted & WRITE and node.kind in {stat.S_IFREG, stat.S_IFDIR}:
            self._volume.require_changes(caller)
            if node.session is not None and node.session.read_only:
                raise failure(errno.EROFS)
        shown = self.getattr(number)
        acl = self._volume.acl(node) if caller.uid and node.__class__ is not ControlNode else b""
        return self._volume.permissions.allows(caller, shown, wanted, acl)

    def statfs(self) -> os.statvfs_result:
        """Describe the disk that holds the working copy."""
        return os.statvfs(self._table.sessions_descriptor)

    # --- setattr

    def setattr(
        self, number: int, caller: Caller, *, mode: int | None = None, uid: int | None = None, gid: int | None = None,
        size: int | None = None, atime_ns: int | None = None, mtime_ns: int | None = None, handle: int | None = None,
    ) -> Attributes | Awaitable[Attributes]:  # fmt: skip
        """Change attributes; None leaves one as it is.

        Raises:
            OSError: EPERM, EACCES, EROFS; what ``chmod(2)``, ``chown(2)``, ``truncate(2)``, ``utimensat(2)`` give.
        """
        node = self._table.node(number)
        opened = self._volume.handles.get(handle) if handle is not None else None
        by_handle = opened is not None and opened.writable
        if not (by_handle and size is not None):
            self._volume.require_changes(caller)
        if node.__class__ is ControlNode:
            return self._sessions.control.resize(
                node, is_only_size=uid is None and gid is None and mode is None
            )
        if node is self._table.root:
            raise failure(errno.EPERM)
        change = _Change(mode, uid, gid, size, atime_ns, mtime_ns)
        if self._volume.exempt_pid and node.handles and self._is_exempt(node.handles, caller):
            return self._apply_exempt(node, change, opened)
        self._require(node, caller, change, by_handle=by_handle)
        return self._change(node, caller, change, by_handle=by_handle and size is not None)

    def _is_exempt(self, handles: list[Handle], caller: Caller) -> bool:
        return any(handle.exempt for handle in handles) and self._volume.is_exempt(caller)

    def _apply_exempt(self, node: Node, change: _Change, opened: Handle | None) -> Attributes:
        """Change a file for the replication process, which counts as no change.

        SQLite cuts its shared index, and gives it and the write-ahead log to the owner of the database.
        """
        if change.size is not None and opened is not None and opened.exempt:
            os.ftruncate(opened.descriptor, change.size)
            node.size_bytes = change.size
        self._set_on_disk(node, change)
        return self._volume.attributes(node)

    def _change(
        self, node: Node, caller: Caller, change: _Change, *, by_handle: bool
    ) -> Attributes | Awaitable[Attributes]:
        """Apply a change when nothing must come first: ownership, the file's bytes, a copy for a commit."""
        volume, loading = self._volume, self._loading
        if by_handle:
            loading.gate.require_owned(node.session, volume.clock.elapsed_seconds())
        elif not loading.gate.admits(node.session, caller):
            return loading.then_owned(node.session, self._change_again, node.number, caller, change)
        if change.size and node.entry is not None:
            return loading.then_bring(node, self._change_again, node.number, caller, change)
        if change.size is not None and volume.frozen and loading.freezing.must_copy(node, change.size):
            again = partial(self._change, by_handle=by_handle)
            return loading.freezing.then(node, again, node, caller, change)
        return self._apply(node, caller, change)

    def _change_again(
        self, number: int, caller: Caller, change: _Change
    ) -> Attributes | Awaitable[Attributes]:
        """Begin again after a wait, in which the file may have become another's, or gone."""
        node = self._table.node(number)
        self._require(node, caller, change, by_handle=False)
        return self._change(node, caller, change, by_handle=False)

    def _require(self, node: Node, caller: Caller, change: _Change, *, by_handle: bool) -> None:
        volume = self._volume
        if change.size is not None and node.kind == stat.S_IFDIR:
            raise failure(errno.EISDIR)
        if caller.uid == 0 or not volume.permissions.enabled:
            return
        before = volume.attributes(node)
        if change.size is not None and not by_handle:
            volume.require(caller, node, WRITE)
        if change.mode is not None and not _drops_set_id(node, before, change, caller):
            volume.permissions.require_owner(caller, before)
            change.mode = volume.permissions.chmod_mode(caller, before, change.mode)
        volume.permissions.require_owner_change(caller, before, change.uid, change.gid)
        if change.sets_times and caller.uid != before.uid:
            now = volume.clock.wall_ns()
            if change.mtime_ns != change.atime_ns or abs(now - (change.mtime_ns or 0)) > _NOW_NS:
                if change.size is None:
                    raise failure(errno.EPERM)
            elif change.size is None:
                volume.require(caller, node, WRITE)

    def _apply(self, node: Node, caller: Caller, change: _Change) -> Attributes:
        if change.size is not None:
            self._truncate(node, change.size, caller)
        if change.changes_owner or change.mode is not None or change.sets_times:
            self._set(node, change)
        return self._volume.attributes(node)

    def _truncate(self, node: Node, size: int, caller: Caller) -> None:
        volume = self._volume
        sequence = volume.begin(Operation.TRUNCATE, number=node.number)
        try:
            if node.entry is not None:
                if not node.places:
                    raise failure(errno.ESTALE)
                self._loading.make_empty(node)
            writable = next((handle for handle in node.handles or () if handle.writable), None)
            if writable is not None:
                os.ftruncate(writable.descriptor, size)
            else:
                directory, name = self._table.location(node)
                flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
                descriptor = os.open(name, flags, dir_fd=directory)
                try:
                    os.ftruncate(descriptor, size)
                finally:
                    os.close(descriptor)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=node.number)
        self._data.cut(node, size)
        if caller.uid:
            self._data.clear_set_id(node)

    def _set(self, node: Node, change: _Change) -> None:
        volume = self._volume
        lasting = change.changes_owner or change.mode is not None or change.mtime_ns is not None
        sequence = 0
        if lasting:
            node.note_changed()
            sequence = volume.begin(
                Operation.SETATTR, number=node.number, mode=-1 if change.mode is None else change.mode,
                uid=-1 if change.uid is None else change.uid, gid=-1 if change.gid is None else change.gid,
                mtime_ns=change.mtime_ns,
            )  # fmt: skip
        try:
            if node.entry is not None:
                self._set_entry(node, node.entry, change)
            else:
                self._set_on_disk(node, change)
        except OSError as problem:
            if lasting:
                volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        if lasting:
            volume.finish(sequence, number=node.number)
        if node.__class__ is Directory and (change.mode is not None or change.changes_owner):
            volume.forget_names(node)

    def _set_on_disk(self, node: Node, change: _Change) -> None:
        directory, name = self._table.location(node)
        if change.changes_owner:
            uid = -1 if change.uid is None else change.uid
            gid = -1 if change.gid is None else change.gid
            os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)
        if change.mode is not None:
            if node.kind == stat.S_IFLNK:
                raise failure(errno.EOPNOTSUPP)
            os.chmod(name, stat.S_IMODE(change.mode), dir_fd=directory)
            node.set_id = bool(change.mode & (stat.S_ISUID | stat.S_ISGID))
            node.acl = None
        if change.sets_times:
            before = os.stat(name, dir_fd=directory, follow_symlinks=False)
            atime_ns = before.st_atime_ns if change.atime_ns is None else change.atime_ns
            mtime_ns = before.st_mtime_ns if change.mtime_ns is None else change.mtime_ns
            os.utime(name, ns=(atime_ns, mtime_ns), dir_fd=directory, follow_symlinks=False)

    def _set_entry(self, node: Node, entry: Entry, change: _Change) -> None:
        mode = entry.mode
        if change.changes_owner:
            mode &= ~(stat.S_ISUID | (stat.S_ISGID if mode & stat.S_IXGRP else 0))
        if change.mode is not None:
            mode = stat.S_IFMT(entry.mode) | stat.S_IMODE(change.mode)
        node.entry = msgspec.structs.replace(
            entry,
            mode=mode,
            uid=entry.uid if change.uid is None else change.uid,
            gid=entry.gid if change.gid is None else change.gid,
            mtime_ns=entry.mtime_ns if change.mtime_ns is None else change.mtime_ns,
        )
        for directory, name in node.places:
            directory.overrides[name] = msgspec.structs.replace(node.entry, name=name)

    # --- extended attributes

    def lacks_capability(self, number: int) -> bool:
        """Say whether a file is known to have no ``security.capability``: the kernel asks before every write."""
        node = self._table.by_number.get(number)
        return node is not None and node.capability is False

    def getxattr(self, number: int, name: bytes, caller: Caller) -> bytes | Awaitable[bytes]:
        """Give an extended attribute.

        Raises:
            OSError: ENODATA, EACCES; what ``getxattr(2)`` gives.
        """
        node = self._table.node(number)
        if name.startswith(OWN_PREFIX):
            return self._get_own(node, name)
        if node.__class__ is ControlNode or node is self._table.root:
            raise failure(errno.ENODATA)
        if caller.uid and name.startswith(b"user."):
            self._volume.require(caller, node, READ)
        if node.entry is not None:
            value = node.entry.xattrs.get(name)
            if value is None:
                raise failure(errno.ENODATA)
            return value
        try:
            value = os.getxattr(self._volume.xattr_path(node), name, follow_symlinks=False)
        except OSError:
            if name == _CAPABILITY:
                node.capability = False
            raise
        if name == _CAPABILITY:
            node.capability = True
        return value

    def _get_own(self, node: Node, name: bytes) -> bytes | Awaitable[bytes]:
        if node is self._table.root:
            if name == CONTROL_NAME:
                return self._control_socket
            raise failure(errno.ENODATA)
        field = name.removeprefix(OWN_PREFIX).decode("ascii", "replace")
        if node.__class__ is ControlNode or field not in _DESCRIBED:
            raise failure(errno.ENODATA)
        return self._describe(node, field)

    async def _describe(self, node: Node, field: str) -> bytes:
        description = await self._volume.remote.describe(node.number)
        return (str(getattr(description, field)) or _known_here(node, field)).encode()

    def listxattr(self, number: int) -> list[bytes]:
        """List the names of extended attributes; ours are not among them, so that copies do not carry them.

        Raises:
            OSError: ESTALE.
        """
        node = self._table.node(number)
        if node.__class__ is ControlNode or node is self._table.root:
            return []
        if node.entry is not None:
            return list(node.entry.xattrs)
        names = os.listxattr(self._volume.xattr_path(node), follow_symlinks=False)
        return [name for name in map(os.fsencode, names) if not name.startswith(OWN_PREFIX)]

    def setxattr(
        self, number: int, name: bytes, value: bytes, caller: Caller, flags: int = 0
    ) -> Awaitable[None] | None:
        """Set an extended attribute.

        Raises:
            OSError: EPERM for ours and in the root, EROFS, EACCES; what ``setxattr(2)`` gives.
        """
        return self._change_xattr(number, name, value, caller, flags)

    def removexattr(self, number: int, name: bytes, caller: Caller) -> Awaitable[None] | None:
        """Remove an extended attribute.

        Raises:
            OSError: As `setxattr`; ENODATA.
        """
        return self._change_xattr(number, name, None, caller, 0)

    def _change_xattr(
        self, number: int, name: bytes, value: bytes | None, caller: Caller, flags: int
    ) -> Awaitable[None] | None:
        volume = self._volume
        volume.require_changes(caller)
        node = self._table.node(number)
        if name.startswith(OWN_PREFIX) or node.__class__ is ControlNode or node is self._table.root:
            raise failure(errno.EPERM)
        if caller.uid:
            self._require_xattr(node, name, caller)
        if not self._loading.gate.admits(node.session, caller):
            return self._loading.then_owned(
                node.session, self._change_xattr, number, name, value, caller, flags
            )
        if node.entry is not None:
            return self._loading.then_bring(node, self._change_xattr, number, name, value, caller, flags)
        place = volume.xattr_path(node)
        node.note_changed()
        sequence = volume.begin(Operation.XATTR, number=number)
        try:
            if value is None:
                os.removexattr(place, name, follow_symlinks=False)
            else:
                os.setxattr(place, name, value, flags, follow_symlinks=False)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=number)
        self._forget_cached(node, name)
        return None

    def _require_xattr(self, node: Node, name: bytes, caller: Caller) -> None:
        volume = self._volume
        if name in {ACCESS_ACL.encode(), _DEFAULT_ACL}:
            volume.permissions.require_owner(caller, volume.attributes(node))
        elif name.startswith(b"user."):
            shown = volume.attributes(node)
            if stat.S_ISDIR(shown.mode) and shown.mode & stat.S_ISVTX:
                volume.permissions.require_owner(caller, shown)
            volume.require(caller, node, WRITE)

    def _forget_cached(self, node: Node, name: bytes) -> None:
        if name == _CAPABILITY:
            node.capability = None
        elif name == ACCESS_ACL.encode():
            node.acl = None
            if node.__class__ is Directory:
                self._volume.forget_names(node)


def _known_here(node: Node, field: str) -> str:
    """Give what the last claim or commit of a file's session told, for what the replication process does not say."""
    session = node.session
    if session is None or (session.owned and field == "owner"):
        return ""
    if field == "owner":
        return session.holder
    if field != "reason":
        return ""
    if session.holder and not session.owned:
        return f"the session is owned by {session.holder}"
    return session.commit_problem


def _drops_set_id(node: Node, before: Attributes, change: _Change, caller: Caller) -> bool:
    """Whether this is the kernel taking setuid and setgid away for a caller who writes or truncates a file of somebody else."""
    if change.mode is None or stat.S_IMODE(before.mode) & ~_SET_ID != stat.S_IMODE(change.mode) & ~_SET_ID:
        return False
    if change.mode & ~before.mode & _SET_ID or change.changes_owner:
        return False
    return change.size is not None or any(
        handle.writable and handle.uid == caller.uid for handle in node.handles or ()
    )


class _Change:
    """What a setattr changes."""

    __slots__ = ("atime_ns", "gid", "mode", "mtime_ns", "size", "uid")

    def __init__(
        self, mode: int | None, uid: int | None, gid: int | None, size: int | None, atime_ns: int | None,
        mtime_ns: int | None,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.size = size
        self.atime_ns = atime_ns
        self.mtime_ns = mtime_ns

    @property
    def changes_owner(self) -> bool:
        """Whether user or group change."""
        return self.uid is not None or self.gid is not None

    @property
    def sets_times(self) -> bool:
        """Whether a time changes."""
        return self.atime_ns is not None or self.mtime_ns is not None
