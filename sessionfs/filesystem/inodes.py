"""Inodes, names and directory descriptors of the working copy, as the kernel knows them.

Invariants:

* A node is in the table while the kernel knows it (`lookups`), a handle is open, or a known node has its name in it (`pins`).
* A number is never given to another file while the table has it: the last name of a known file is moved to ``trash/`` and the inode is
  freed when the node leaves; a removed directory is held by a descriptor.
* Everything on disk is reached through a descriptor of its directory and one name, never through a path and never through a symlink.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
from collections import deque
from typing import TYPE_CHECKING

from sessionfs.formats.link_message import NOTHING_TOLD, Entry
from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.model.names import CONTROL_DIRECTORY
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout

if TYPE_CHECKING:
    from sessionfs.filesystem.control.turn_rule import TurnWatch
    from sessionfs.filesystem.data import Handle

MAX_DIRECTORY_DESCRIPTORS = 512
FIRST_VIRTUAL_NUMBER = 1 << 61
"""Numbers of what exists only in the mount: control files, sessions that were listed but never opened."""

_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Session:
    """One session that was used since the mount.

    Attributes:
        id: Its id.
        name: Its directory's name.
        number: Inode number of its root directory.
        foreign: Whether another host may change it.
        refreshed_seconds: When it was last compared with the bucket, on the clock's elapsed time.
        stale: Numbers of files whose bytes here are old.
        version: Counts what the replication process took over and told here.
        owned: Whether this host may change it.
        holder: Who owns it, for people, "" when unknown.
        commit_problem: Why its last commit failed, "" when it did not.
        read_only: Whether it is a tree of the past: nobody may change it.
        writable_until_seconds: Until when changes need no look at the lease, on the clock's elapsed time.
        is_unclean: Whether it was taken over from a host that did not end: a log may end in the middle of a line.
        written_here: Numbers of files of the bucket that were opened for writing here.
    """

    __slots__ = (
        "commit_problem", "foreign", "holder", "id", "is_unclean", "name", "number", "owned", "read_only",
        "refreshed_seconds", "stale", "version", "writable_until_seconds", "written_here",
    )  # fmt: skip

    def __init__(
        self, identifier: str, number: int, *, foreign: bool, refreshed_seconds: float, owned: bool = False,
        read_only: bool = False, version: int = NOTHING_TOLD,
    ) -> None:  # fmt: skip
        self.id = identifier
        self.name = identifier.encode()
        self.number = number
        self.foreign = foreign
        self.refreshed_seconds = refreshed_seconds
        self.stale: set[int] = set()
        self.version = version
        self.owned = owned
        self.holder = ""
        self.commit_problem = ""
        self.read_only = read_only
        self.writable_until_seconds = 0.0
        self.is_unclean = False
        self.written_here: set[int] = set()

    def own(self, *, is_unclean: bool = False) -> None:
        """Note that this host may change it; files that are old and cannot leave yet keep it foreign.

        Args:
            is_unclean: Whether the holder before did not end.
        """
        self.foreign = bool(self.stale)
        self.is_unclean = is_unclean or (self.owned and self.is_unclean)
        self.owned = True
        self.writable_until_seconds = 0.0

    def disown(self) -> None:
        """Note that another host may change it from now on, and perhaps did."""
        self.owned = False
        self.foreign = True
        self.refreshed_seconds = -math.inf
        self.writable_until_seconds = 0.0


class Node:
    """A file, symlink, fifo, socket or device.

    Attributes:
        number: Inode number.
        kind: ``S_IFMT`` of its mode.
        lookups: How often the kernel was told of it.
        places: Its names that are known here, as (directory, name).
        session: The session it belongs to, None for the root.
        entry: How the bucket describes it while its bytes are not here.
        handles: Open handles.
        writers: How many of them may write.
        size_bytes: Length, kept only while there are writers.
        next_note_seconds: From when on a write notes WRITTEN again.
        set_id: Whether a write must look for setuid, setgid.
        absent_names: Names in the bucket that are not on disk although its bytes are.
        trashed: Whether its last name was moved to ``trash/``.
        reserved: Whether an empty file in ``evicted/`` keeps its number, to be removed with it.
        drop_cache: Whether the kernel's pages are of other bytes.
        capability: Whether it has ``security.capability``; None when not known.
        acl: Its access ACL, empty for none; None when not known.
        turn: Its unfinished line, for a file that the end-of-turn rule is for.
    """

    __slots__ = (
        "absent_names", "acl", "capability", "drop_cache", "entry", "handles", "kind", "lookups",
        "next_note_seconds", "number", "places", "reserved", "session", "set_id", "size_bytes", "trashed", "turn", "writers",
    )  # fmt: skip

    def __init__(self, number: int, kind: int, session: Session | None) -> None:
        self.number = number
        self.kind = kind
        self.lookups = 0
        self.places: list[tuple[Directory, bytes]] = []
        self.session = session
        self.entry: Entry | None = None
        self.handles: list[Handle] | None = None
        self.writers = 0
        self.size_bytes = 0
        self.next_note_seconds = 0.0
        self.set_id = False
        self.absent_names = 0
        self.trashed = False
        self.reserved = False
        self.drop_cache = False
        self.capability: bool | None = None
        self.acl: bytes | None = None
        self.turn: TurnWatch | None = None

    def note_changed(self) -> None:
        """Note that a program changes it here: if it is old, it is ours from now on. The upload keeps the other host's aside."""
        if self.session is not None and self.session.stale:
            self.session.stale.discard(self.number)


class Directory(Node):
    """A directory of the working copy.

    Attributes:
        overrides: Children whose number is not the working copy's, or whose bytes are not here.
        loaded: Whether `overrides` is complete.
        looks: How often a new look was asked for.
        descriptor: An O_PATH descriptor of it, -1 when closed.
        recent: Whether the descriptor was used since the last look.
        pins: Known nodes that have a name in it, and open listings.
        restricted: Whether somebody may not search it; None when not known.
    """

    __slots__ = ("descriptor", "loaded", "looks", "overrides", "pins", "recent", "restricted")

    def __init__(self, number: int, session: Session | None) -> None:
        super().__init__(number, stat.S_IFDIR, session)
        self.overrides: dict[bytes, Entry | int] = {}
        self.loaded = False
        self.looks = 0
        self.descriptor = -1
        self.recent = False
        self.pins = 0
        self.restricted: bool | None = None


class ControlNode(Node):
    """Something below ``.sessionfs``; it has no file behind it. Without a session it is a directory above shared roots.

    Attributes:
        path: Its path below ``.sessionfs``, empty for that directory.
        pending: What was written since the last newline.
    """

    __slots__ = ("path", "pending")

    def __init__(self, number: int, kind: int, session: Session | None, path: bytes) -> None:
        super().__init__(number, kind, session)
        self.path = path
        self.pending = b""


Found = tuple[int, os.stat_result | None, Entry | None]
"""Number of a name, and what describes it: its stat when it is on disk, its entry when it is not."""


def failure(number: int) -> OSError:
    """Give the error of an errno."""
    return OSError(number, os.strerror(number))


class InodeTable:
    """All known inodes.

    Args:
        layout: Where the working copy is.
    """

    def __init__(self, layout: StateLayout) -> None:
        self.layout = layout
        self.sessions_descriptor = os.open(layout.sessions, _DIRECTORY_FLAGS)
        self.trash_descriptor = os.open(layout.trash, _DIRECTORY_FLAGS)
        os.makedirs(layout.evicted, mode=0o700, exist_ok=True)
        self.evicted_descriptor = os.open(layout.evicted, _DIRECTORY_FLAGS)
        self.root = Directory(ROOT_NUMBER, None)
        self.root.descriptor = self.sessions_descriptor
        self.root.loaded = True
        self.root.lookups = 1
        self.by_number: dict[int, Node] = {ROOT_NUMBER: self.root}
        self.open_descriptors: deque[Directory] = deque()
        self._next_virtual = FIRST_VIRTUAL_NUMBER
        for name in os.listdir(layout.trash):
            os.unlink(name, dir_fd=self.trash_descriptor)

    def close(self) -> None:
        """Close every descriptor."""
        for node in list(self.by_number.values()):
            if isinstance(node, Directory) and node is not self.root and node.descriptor >= 0:
                os.close(node.descriptor)
                node.descriptor = -1
        for descriptor in (self.sessions_descriptor, self.trash_descriptor, self.evicted_descriptor):
            os.close(descriptor)

    # --- finding

    def node(self, number: int) -> Node:
        """Give a known inode.

        Raises:
            OSError: ESTALE.
        """
        node = self.by_number.get(number)
        if node is None:
            raise failure(errno.ESTALE)
        return node

    def directory(self, number: int) -> Directory:
        """Give a known directory of the working copy.

        Raises:
            OSError: ESTALE, ENOTDIR, or EPERM for a control directory.
        """
        node = self.by_number.get(number)
        if node.__class__ is Directory:
            return node
        if node is None:
            raise failure(errno.ESTALE)
        raise failure(errno.EPERM if node.kind == stat.S_IFDIR else errno.ENOTDIR)

    def virtual_number(self) -> int:
        """Give a number for something without a file."""
        self._next_virtual += 1
        return self._next_virtual

    def find(self, parent: Directory, name: bytes) -> Found:
        """Look a name up in a loaded directory; the disk says whether its bytes are here.

        Raises:
            OSError: ENOENT; ENAMETOOLONG; ESTALE for a directory that is not here any more.
        """
        override = parent.overrides.get(name) if parent.overrides else None
        try:
            status = os.stat(name, dir_fd=self.descriptor(parent), follow_symlinks=False)
        except FileNotFoundError:
            if override is None:
                raise
            return self._find_absent(parent, name, override)
        if override is None:
            return status.st_ino, status, None
        return override if isinstance(override, int) else override.number, status, None

    def _find_absent(self, parent: Directory, name: bytes, override: Entry | int) -> Found:
        number = override if isinstance(override, int) else override.number
        node = self.by_number.get(number)
        if node is not None and node.entry is None and node.kind == stat.S_IFREG:
            for directory, other in node.places:
                # Another name of the same file has its bytes already.
                try:
                    os.link(
                        other, name, src_dir_fd=self.descriptor(directory), dst_dir_fd=self.descriptor(parent),
                        follow_symlinks=False,
                    )  # fmt: skip
                except OSError:
                    continue
                node.absent_names = max(0, node.absent_names - 1)
                status = os.stat(name, dir_fd=self.descriptor(parent), follow_symlinks=False)
                return number, status, None
        if isinstance(override, int):
            # The journal says it is here and the disk says it is not: ask the journal again.
            self.unload(parent)
            raise failure(errno.ESTALE)
        return number, None, node.entry if node is not None and node.entry is not None else override

    def unload(self, directory: Directory) -> None:
        """Let the journal be asked for a directory's names before they are answered again."""
        directory.loaded = False
        directory.looks += 1

    def obtain(self, parent: Directory, name: bytes, found: Found) -> Node:
        """Give the inode of a found name, making it known."""
        number, status, entry = found
        node = self.by_number.get(number)
        if node is not None:
            if (parent, name) not in node.places:
                self._add_place(node, parent, name)
            return node
        mode = status.st_mode if status is not None else entry.mode if entry is not None else 0
        if stat.S_ISDIR(mode):
            node = Directory(number, parent.session)
        else:
            node = Node(number, stat.S_IFMT(mode), parent.session)
            if status is None:
                node.entry = entry
            else:
                node.absent_names = self._absent_names(parent, name, status)
        self.by_number[number] = node
        node.places.append((parent, name))
        parent.pins += 1
        return node

    def _absent_names(self, parent: Directory, name: bytes, status: os.stat_result) -> int:
        override = parent.overrides.get(name) if parent.overrides else None
        return max(0, override.nlink - status.st_nlink) if isinstance(override, Entry) else 0

    def _add_place(self, node: Node, parent: Directory, name: bytes) -> None:
        if node.kind == stat.S_IFDIR:
            for directory, _ in node.places:
                directory.pins -= 1
            node.places.clear()
        node.places.append((parent, name))
        parent.pins += 1

    def add_place(self, node: Node, parent: Directory, name: bytes) -> None:
        """Note a new name."""
        if (parent, name) not in node.places:
            self._add_place(node, parent, name)

    def remove_place(self, node: Node, parent: Directory, name: bytes) -> None:
        """Note that a name is gone."""
        if (parent, name) in node.places:
            node.places.remove((parent, name))
            parent.pins -= 1

    def path_in_session(self, node: Node) -> bytes:
        """Give a path below the session's root, empty for that root and for what has no name."""
        names: list[bytes] = []
        here = node
        while here.places and not self.is_session_root(here):
            here, name = here.places[0]
            names.append(name)
        return b"/".join(reversed(names))

    def is_session_root(self, node: Node) -> bool:
        """Say whether a directory is the root of a session."""
        return node.session is not None and node.number == node.session.number

    def hides(self, parent: Directory, name: bytes) -> bool:
        """Say whether a name is the control directory's."""
        return name == CONTROL_DIRECTORY and self.is_session_root(parent)

    # --- descriptors

    def descriptor(self, directory: Directory) -> int:
        """Give an O_PATH descriptor of a directory; valid until the next call for another one of more than 500.

        Raises:
            OSError: ESTALE when it is not here any more.
        """
        descriptor = directory.descriptor
        if descriptor >= 0:
            directory.recent = True
            return descriptor
        chain: list[Directory] = []
        here = directory
        while here.descriptor < 0:
            if not here.places:
                raise failure(errno.ESTALE)
            chain.append(here)
            here = here.places[0][0]
        descriptor = here.descriptor
        for below in reversed(chain):
            try:
                descriptor = os.open(below.places[0][1], _DIRECTORY_FLAGS, dir_fd=descriptor)
            except (FileNotFoundError, NotADirectoryError):
                raise failure(errno.ESTALE) from None
            self._keep(below, descriptor)
        return descriptor

    def _keep(self, directory: Directory, descriptor: int) -> None:
        directory.descriptor = descriptor
        directory.recent = True
        waiting = self.open_descriptors
        waiting.append(directory)
        while len(waiting) > MAX_DIRECTORY_DESCRIPTORS:
            oldest = waiting.popleft()
            if oldest.descriptor < 0:
                continue
            if oldest.recent or not oldest.places:
                # A removed directory's descriptor holds its number; it goes when the node goes.
                oldest.recent = False
                if oldest.places:
                    waiting.append(oldest)
                continue
            os.close(oldest.descriptor)
            oldest.descriptor = -1

    def hold(self, directory: Directory) -> None:
        """Open a directory that is about to lose its name, so that its inode number stays taken."""
        self.descriptor(directory)

    def open_listing(self, directory: Directory) -> int:
        """Open a directory for reading its names; the caller closes it."""
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor(directory))

    def names_on_disk(self, directory: Directory) -> list[bytes]:
        """List a directory of the working copy."""
        descriptor = self.open_listing(directory)
        try:
            return [os.fsencode(name) for name in os.listdir(descriptor)]
        finally:
            os.close(descriptor)

    def location(self, node: Node) -> tuple[int, bytes]:
        """Give the descriptor and the name by which a node is reached on disk.

        Raises:
            OSError: ESTALE when it has no name left and is not in the trash.
        """
        if node.places:
            directory, name = node.places[0]
            return self.descriptor(directory), name
        if node.trashed:
            return self.trash_descriptor, b"%d" % node.number
        if node is self.root or (node.__class__ is Directory and node.descriptor >= 0):
            return node.descriptor, b"."
        raise failure(errno.ESTALE)

    def status(self, node: Node) -> os.stat_result:
        """Stat what is on disk."""
        for handle in node.handles or ():
            if handle.partial is None:
                return os.fstat(handle.descriptor)
        descriptor, name = self.location(node)
        try:
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            raise failure(errno.ESTALE) from None

    # --- forgetting

    def forget(self, number: int, lookups: int) -> None:
        """Take back what the kernel was told."""
        node = self.by_number.get(number)
        if node is None or node is self.root:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            node.lookups = 0
            self.settle(node)

    def settle(self, node: Node) -> None:
        """Let a node go that nobody knows any more, and then the directories that only it kept."""
        while node.lookups == 0 and not node.handles and node is not self.root:
            if node.__class__ is Directory and (node.pins or self.is_session_root(node)):
                return
            if self.by_number.pop(node.number, None) is None:
                return
            if node.trashed:
                _remove(b"%d" % node.number, self.trash_descriptor)
            if node.reserved:
                _remove(b"%d" % node.number, self.evicted_descriptor)
            if node.__class__ is Directory and node.descriptor >= 0:
                os.close(node.descriptor)
                node.descriptor = -1
            above = [directory for directory, _ in node.places]
            node.places.clear()
            for directory in above:
                directory.pins -= 1
            if not above:
                return
            for directory in above[1:]:
                self.settle(directory)
            node = above[0]

    # --- removing

    def remove_from_disk(self, node: Node, parent: Directory, name: bytes, *, copies: int) -> None:
        """Remove one name of a file on disk; the last one of a known file goes to the trash.

        Args:
            node: The file.
            parent: Its directory.
            name: Its name.
            copies: Its names on disk, this one included.
        """
        directory = self.descriptor(parent)
        if copies > 1 or not (node.lookups or node.handles):
            os.unlink(name, dir_fd=directory)
        else:
            os.rename(name, b"%d" % node.number, src_dir_fd=directory, dst_dir_fd=self.trash_descriptor)
            node.trashed = True

    def removed_last(self, node: Node, status: os.stat_result | None) -> None:
        """Note that a file's last name is gone; the number of one that was evicted once is given back with the node."""
        if node.number < FIRST_REMOTE_NUMBER and (status is None or status.st_ino != node.number):
            node.reserved = True

    def evict_from_disk(self, parent: Directory, name: bytes, number: int, inode: int) -> None:
        """Remove a file's bytes while its name stays in the bucket.

        Its number stays taken: an inode of the working copy whose number is the file's is kept, empty.
        """
        directory = self.descriptor(parent)
        if number != inode:
            os.unlink(name, dir_fd=directory)
            return
        kept = b"%d" % number
        os.rename(name, kept, src_dir_fd=directory, dst_dir_fd=self.evicted_descriptor)
        if stat.S_ISLNK(os.stat(kept, dir_fd=self.evicted_descriptor, follow_symlinks=False).st_mode):
            return
        descriptor = os.open(kept, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.evicted_descriptor)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def touch(self, directory: Directory) -> None:
        """Let a directory's modification time be now, for a change of names that are not on disk."""
        os.utime(b".", dir_fd=self.descriptor(directory))


def _remove(name: bytes, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
