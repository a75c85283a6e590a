"""What all calls share: the inodes, the intent log, the permissions, the timeouts, and the record of a file's attributes.

Order of steps of every change: validate what is cheap, `Volume.begin` (the intent is in the page cache), apply on disk, `Volume.finish`.
Nothing waits between `begin` and `finish`. Everything runs on one thread, so that a call that does not wait is atomic.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from sessionfs.filesystem.barrier.recent_records import RecentRecords
from sessionfs.filesystem.inodes import Directory, InodeTable, Node, Session, failure
from sessionfs.filesystem.permissions import Caller, Groups, Permissions
from sessionfs.filesystem.remote_side import RemoteSide
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import Entry
from sessionfs.model.clock import Clock
from sessionfs.model.settings import FilesystemSettings
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import StateLayout

if TYPE_CHECKING:
    from sessionfs.filesystem.barrier.freezing import Frozen
    from sessionfs.filesystem.data import Handle

ACCESS_ACL = "system.posix_acl_access"
_ANYBODY_SEARCHES = 0o111
_LEAST_LAG_SECONDS = 0.1
SHORT_TIMEOUT_SECONDS = 1.0
"""How long the kernel may keep what another host may change."""


class Attributes:
    """What ``stat`` shows, and how long the kernel may keep it. Number 0 says that there is no such name.

    Attributes:
        number: Inode number.
        mode: As in ``st_mode``.
        nlink: Names.
        uid: Owner.
        gid: Group.
        rdev: Device.
        size: Bytes.
        blocks: Units of 512 bytes.
        atime_ns: Access time.
        mtime_ns: Modification time.
        ctime_ns: Change time.
        attr_timeout: Seconds the kernel may keep the attributes.
        entry_timeout: Seconds the kernel may keep the name.
    """

    __slots__ = (
        "atime_ns", "attr_timeout", "blocks", "ctime_ns", "entry_timeout", "gid", "mode", "mtime_ns", "nlink",
        "number", "rdev", "size", "uid",
    )  # fmt: skip

    def __init__(
        self, number: int, mode: int, nlink: int, uid: int, gid: int, rdev: int, size: int, blocks: int,
        atime_ns: int, mtime_ns: int, ctime_ns: int, attr_timeout: float, entry_timeout: float,
    ) -> None:  # fmt: skip
        self.number = number
        self.mode = mode
        self.nlink = nlink
        self.uid = uid
        self.gid = gid
        self.rdev = rdev
        self.size = size
        self.blocks = blocks
        self.atime_ns = atime_ns
        self.mtime_ns = mtime_ns
        self.ctime_ns = ctime_ns
        self.attr_timeout = attr_timeout
        self.entry_timeout = entry_timeout


class Notifier(Protocol):
    """Tells the kernel to forget; never called from inside a handler's thread by the implementation."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Forget a name."""

    def invalidate_inode(self, number: int) -> None:
        """Forget attributes and pages."""


class NoNotifier:
    """For a Core without a kernel."""

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Nobody to tell."""

    def invalidate_inode(self, number: int) -> None:
        """Nobody to tell."""


class Lease(Protocol):
    """Until when this host may change the sessions that it owns; ``working_copy.lease_page`` is the real one."""

    @property
    def deadline_seconds(self) -> float:
        """On CLOCK_BOOTTIME."""

    @property
    def is_outage(self) -> bool:
        """Whether the store does not answer."""


class Endless:
    """A lease for a Core without a store."""

    deadline_seconds = math.inf
    is_outage = False


class Volume:
    """The shared parts of one mount.

    Args:
        layout: Where the working copy is.
        log: The intent log.
        remote: The replication process.
        settings: How the mount answers.
        clock: Time.
        groups: Gives the supplementary groups of a process.
        lease: Until when changes are allowed.

    Attributes:
        table: The inodes.
        handles: Open files by handle number.
        permissions: Decides who may do what.
        notifier: Tells the kernel; the engine sets it.
        as_root: Whether the daemon may give files away.
        images: Changes below the end since an upload began to read, by number.
        refusal: Why changes are refused, "" when they are not.
        frozen: Files whose bytes a commit needs as they stood at its barrier, by number.
        recent: What the log speaks of and the journal has not read yet.
        exempt_pid: The replication process: what it opens through the mount counts as no change; 0 for none.
    """

    def __init__(
        self, layout: StateLayout, log: IntentLog, remote: RemoteSide, settings: FilesystemSettings, clock: Clock,
        groups: Groups, lease: Lease | None = None,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.log = log
        self.remote = remote
        self.settings = settings
        self.clock = clock
        self.table = InodeTable(layout)
        self.permissions = Permissions(groups, enabled=not settings.default_permissions)
        self.handles: dict[int, Handle] = {}
        self.notifier: Notifier = NoNotifier()
        self.as_root = os.geteuid() == 0
        self._owner = (os.geteuid(), os.getegid())
        self.images: dict[int, int] = {}
        self.frozen: dict[int, Frozen] = {}
        self.recent = RecentRecords()
        self.lease: Lease = Endless() if lease is None else lease
        self.exempt_pid = 0
        self.refusal = "the mount is read-only" if settings.read_only else ""
        self._owed_records: deque[tuple[Operation | None, int, int, int]] = deque()
        self._last_handle = 0
        self._long = settings.cache_timeout_seconds
        self._short = min(SHORT_TIMEOUT_SECONDS, self._long)
        # With none at all a call would compare the session again for ever before it is answered.
        self._half_lag_seconds = max(_LEAST_LAG_SECONDS, settings.foreign_lag_seconds / 2)
        # Without default_permissions the kernel walks cached names unchecked: only names anybody may pass are cached then.
        self._guards_names = settings.allow_other and not settings.default_permissions

    def next_handle(self) -> int:
        """Give a fresh handle number."""
        self._last_handle += 1
        return self._last_handle

    # --- the log

    def begin(self, operation: Operation, **fields: Any) -> int:
        """Record an intent; see `IntentLog.begin`.

        Raises:
            OSError: Nothing may be applied.
        """
        if self._owed_records:
            self._write_owed_records()
        return self.log.begin(operation, **fields)

    def finish(self, sequence: int, *, number: int = 0, error: int = 0) -> None:
        """Record an outcome; one that cannot be written now is written before the next intent."""
        try:
            self.log.finish(sequence, number=number, errno=error)
        except OSError:
            self._owed_records.append((None, sequence, number, error))
        if number:
            self.recent.note(number, self.log.position)

    @contextmanager
    def evicting(self, number: int) -> Iterator[None]:
        """Record that something leaves the disk, before and after: if we die between, the disk decides.

        Raises:
            OSError: Nothing may leave; or what the removal raised.
        """
        sequence = self.begin(Operation.EVICTED, number=number)
        try:
            yield
        except OSError as problem:
            self.finish(sequence, error=problem.errno or errno.EIO)
            raise
        self.finish(sequence, number=number)
        self.recent.forget(number)  # what leaves is clean, or another host's

    def note(self, operation: Operation, number: int) -> None:
        """Record something that has happened and cannot be refused."""
        try:
            self.note_first(operation, number)
        except OSError:
            self._owed_records.append((operation, 0, number, 0))

    def note_first(self, operation: Operation, number: int) -> None:
        """Record something that may still be refused.

        Raises:
            OSError: The record could not be written.
        """
        if self._owed_records:
            self._write_owed_records()
        self.log.note(operation, number=number)
        if operation <= Operation.WRITTEN:
            self.recent.note(number, self.log.position)

    def settle_records(self) -> None:
        """Write what could not be written before, so that the log has a whole end.

        Raises:
            OSError: It still cannot be written.
        """
        if self._owed_records:
            self._write_owed_records()

    def _write_owed_records(self) -> None:
        owed = self._owed_records
        while owed:
            operation, sequence, number, error = owed[0]
            if operation is None:
                self.log.finish(sequence, number=number, errno=error)
            else:
                self.log.note(operation, number=number)
            owed.popleft()

    # --- guards

    def is_exempt(self, caller: Caller) -> bool:
        """Say whether a call comes from the replication process; the kernel names the thread. That process has the daemon's user.

        Source: proc(5), /proc/pid/task.
        """
        pid = self.exempt_pid
        if not pid or caller.uid != self._owner[0]:
            return False
        return caller.pid == pid or os.path.exists(f"/proc/{pid}/task/{caller.pid}")

    def require_changes(self, caller: Caller | None = None) -> None:
        """Refuse a change on a mount that takes none.

        Raises:
            OSError: EROFS.
        """
        if self.refusal and (caller is None or not self.is_exempt(caller)):
            raise failure(errno.EROFS)

    def changing(self, number: int, name: bytes, caller: Caller) -> Directory:
        """Give the directory in which a name is about to change.

        Raises:
            OSError: EROFS; EPERM at the root and for the control directory; ESTALE; ENOTDIR.
        """
        if self.refusal:
            self.require_changes(caller)
        directory = self.table.directory(number)
        if directory is self.table.root or self.table.hides(directory, name):
            raise failure(errno.EPERM)
        return directory

    def is_due(self, session: Session | None) -> bool:
        """Say whether a foreign session must be compared with the bucket before it is shown."""
        if session is None or not session.foreign:
            return False
        return self.clock.elapsed_seconds() - session.refreshed_seconds > self._half_lag_seconds

    def require(self, caller: Caller, node: Node, wanted: int) -> None:
        """Refuse a caller without an access to a node.

        Raises:
            OSError: EACCES.
        """
        if caller.uid != 0 and self.permissions.enabled:
            self.permissions.require(caller, self.attributes(node), wanted, self.acl(node))

    def acl(self, node: Node) -> bytes:
        """Give a node's access ACL, empty for none."""
        if node.acl is None:
            if node.entry is not None:
                return node.entry.xattrs.get(ACCESS_ACL.encode(), b"")
            try:
                node.acl = os.getxattr(self.xattr_path(node), ACCESS_ACL, follow_symlinks=False)
            except OSError:
                node.acl = b""
        return node.acl

    def xattr_path(self, node: Node) -> bytes:
        """Give a path for calls that take no directory descriptor. Source: proc(5), /proc/pid/fd."""
        descriptor, name = self.table.location(node)
        return b"/proc/self/fd/%d/%s" % (descriptor, name)

    # --- attributes

    def attributes(self, node: Node) -> Attributes:
        """Give a node's attributes as they are now."""
        if node.entry is not None:
            return self.described(node.number, node.entry, node.session, unlinked=not node.places)
        return self.shown_node(node, self.table.status(node))

    def shown_node(self, node: Node, status: os.stat_result) -> Attributes:
        """Give a node's attributes from what is on disk."""
        shown = self.shown(node.number, status, node.session)
        if node.trashed:
            shown.nlink = 0
        elif node.absent_names:
            shown.nlink += node.absent_names
        return shown

    def shown(self, number: int, status: os.stat_result, session: Session | None) -> Attributes:
        """Give the attributes of something on disk."""
        timeout = self._long if session is not None and not session.foreign else self._short
        return Attributes(
            number, status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_rdev, status.st_size,
            status.st_blocks, status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns, timeout, timeout,
        )  # fmt: skip

    def described(self, number: int, entry: Entry, session: Session | None, *, unlinked: bool) -> Attributes:
        """Give the attributes of something whose bytes are not here."""
        timeout = self._long if session is not None and not session.foreign else self._short
        links = 0 if unlinked else entry.nlink
        # A daemon that is not root cannot give files away: they are its user's once they are here, so they are before.
        uid, gid = (entry.uid, entry.gid) if self.as_root else self._owner
        size, changed = entry.size_bytes, entry.mtime_ns
        return Attributes(
            number, entry.mode, links, uid, gid, 0, size, (size + 511) // 512, changed, changed, changed,
            timeout, timeout,
        )  # fmt: skip

    def absent(self, parent: Directory) -> Attributes:
        """Give the answer for a name that does not exist."""
        timeout = self.name_timeout(parent)
        return Attributes(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, timeout, timeout)

    def name_timeout(self, parent: Directory) -> float:
        """Give how long the kernel may keep names in a directory."""
        if self._guards_names and self._is_restricted(parent):
            return 0.0
        session = parent.session
        return self._long if session is not None and not session.foreign else self._short

    def _is_restricted(self, directory: Directory) -> bool:
        if directory.restricted is None:
            mode = stat.S_IMODE(self.table.status(directory).st_mode)
            directory.restricted = mode & _ANYBODY_SEARCHES != _ANYBODY_SEARCHES or bool(self.acl(directory))
        return directory.restricted

    def forget_names(self, directory: Directory) -> None:
        """Let the kernel ask again for every name in a directory whose permissions changed."""
        directory.restricted = None
        if not self._guards_names:
            return
        for node in self.table.by_number.values():
            for parent, name in node.places:
                if parent is directory:
                    self.notifier.invalidate_entry(directory.number, name)
