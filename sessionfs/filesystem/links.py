"""Names that go or move: link, unlink, rmdir, rename."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from sessionfs.filesystem.control.shared_roots import SharedRoots
from sessionfs.filesystem.inodes import Directory, Found, Node, failure
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.permissions import SEARCH, WRITE, Caller
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Attributes, Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import Entry

NOREPLACE, EXCHANGE = 1, 2
"""Flags of renameat2(2)."""

_libc = ctypes.CDLL(None, use_errno=True)


def _exchange(directory: int, name: bytes, other_directory: int, other: bytes) -> None:
    """Swap two names at once. Source: renameat2(2), RENAME_EXCHANGE."""
    if _libc.renameat2(directory, name, other_directory, other, EXCHANGE) != 0:
        raise failure(ctypes.get_errno())


class Links:
    """Calls that take names away or move them.

    Args:
        volume: The mount.
        loading: Brings in what is not here.
        sessions: The root.
        shared: The directories above the shared roots.
    """

    def __init__(self, volume: Volume, loading: Loading, sessions: SessionsRoot, shared: SharedRoots) -> None:
        self._volume = volume
        self._shared = shared
        self._loading = loading
        self._sessions = sessions
        self._table = volume.table

    def link(
        self, number: int, new_parent: int, new_name: bytes, caller: Caller
    ) -> Attributes | Awaitable[Attributes]:
        """Give a file another name in the same session.

        Raises:
            OSError: EXDEV across sessions; EPERM for directories; what ``link(2)`` gives.
        """
        volume, table = self._volume, self._table
        parent = volume.changing(new_parent, new_name, caller)
        node = table.node(number)
        if node.kind == stat.S_IFDIR or node.session is None:
            raise failure(errno.EPERM)
        if node.session is not parent.session:
            raise failure(errno.EXDEV)
        if not self._loading.is_ready(parent):
            return self._loading.then(parent, self.link, number, new_parent, new_name, caller)
        volume.require(caller, parent, WRITE | SEARCH)
        if not node.places:
            raise failure(errno.ENOENT)
        if new_name in parent.overrides:
            raise failure(errno.EEXIST)
        if not self._loading.gate.admits(parent.session, caller):
            return self._loading.then_owned(parent.session, self.link, number, new_parent, new_name, caller)
        source, source_name = table.location(node)
        target = table.descriptor(parent)
        node.note_changed()
        sequence = volume.begin(Operation.LINK, number=number, new_parent=new_parent, new_name=new_name)
        try:
            if node.entry is not None:
                self._link_absent(node, parent, new_name, target)
            else:
                os.link(source_name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=number)
        place, place_name = node.places[0]
        if node.entry is None and place_name in place.overrides:
            parent.overrides[new_name] = number
        table.add_place(node, parent, new_name)
        node.lookups += 1
        shown = volume.attributes(node)
        shown.entry_timeout = volume.name_timeout(parent)
        return shown

    def _link_absent(self, node: Node, parent: Directory, new_name: bytes, target: int) -> None:
        try:
            os.stat(new_name, dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            self._change_entry(node, 1)
            if node.entry is not None:
                parent.overrides[new_name] = msgspec.structs.replace(node.entry, name=new_name)
            self._table.touch(parent)
        else:
            raise failure(errno.EEXIST)

    def _change_entry(self, node: Node, links: int) -> None:
        """Count a name of a file whose bytes are not here."""
        if node.entry is None:
            return
        node.entry = msgspec.structs.replace(node.entry, nlink=max(0, node.entry.nlink + links))
        for directory, name in node.places:
            if isinstance(directory.overrides.get(name), Entry):
                directory.overrides[name] = msgspec.structs.replace(node.entry, name=name)

    # --- removing

    def unlink(self, number: int, name: bytes, caller: Caller) -> Awaitable[None] | None:
        """Remove a name; the file goes with its last one, and stays usable while it is open.

        Raises:
            OSError: EISDIR; what ``unlink(2)`` gives.
        """
        volume, table = self._volume, self._table
        parent = volume.changing(number, name, caller)
        if not self._loading.is_ready(parent):
            return self._loading.then(parent, self.unlink, number, name, caller)
        volume.require(caller, parent, WRITE | SEARCH)
        found = table.find(parent, name)
        node = table.obtain(parent, name, found)
        if node.kind == stat.S_IFDIR:
            raise failure(errno.EISDIR)
        self._require_removal(caller, parent, node)
        if not self._loading.gate.admits(parent.session, caller):
            return self._loading.then_owned(parent.session, self.unlink, number, name, caller)
        if self._loading.partials.is_read(node):
            return self._loading.then_kept(node, self.unlink, number, name, caller)
        sequence = volume.begin(Operation.UNLINK, number=node.number, parent=number, name=name)
        try:
            self._take_away(parent, name, node, found)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=node.number)
        if not node.places:
            volume.recent.forget(node.number)
        table.settle(node)
        return None

    def _require_removal(self, caller: Caller, parent: Directory, node: Node) -> None:
        if caller.uid:
            volume = self._volume
            volume.permissions.require_removal(caller, volume.attributes(parent), volume.attributes(node))

    def _take_away(self, parent: Directory, name: bytes, node: Node, found: Found) -> None:
        """Remove one name, on disk or in the bucket's description, with what hangs on it."""
        table, status = self._table, found[1]
        if status is not None:
            if self._volume.frozen and status.st_nlink == 1:
                self._remove_frozen(node, parent, name)
            else:
                table.remove_from_disk(node, parent, name, copies=status.st_nlink)
            last = status.st_nlink == 1 and not node.absent_names
        else:
            table.touch(parent)
            if node.entry is None:
                node.absent_names = max(0, node.absent_names - 1)
            self._change_entry(node, -1)
            last = node.entry is not None and node.entry.nlink == 0
        parent.overrides.pop(name, None)
        if last:
            table.removed_last(node, status)
        table.remove_place(node, parent, name)
        if last and node.number in self._volume.images:
            self._volume.images[node.number] += 1

    def _remove_frozen(self, node: Node, parent: Directory, name: bytes) -> None:
        """Remove the last name of a file that a commit may still need."""
        table, freezing = self._table, self._loading.freezing
        freezing.hold(node.number, table.descriptor(parent), name)
        try:
            table.remove_from_disk(node, parent, name, copies=1)
        except OSError:
            freezing.unhold(node.number)
            raise

    def rmdir(self, number: int, name: bytes, caller: Caller) -> Awaitable[None] | None:
        """Remove an empty directory; in the root, an empty session.

        Raises:
            OSError: ENOTEMPTY, ENOTDIR; what ``rmdir(2)`` gives.
        """
        volume, table = self._volume, self._table
        if number == table.root.number:
            return self._sessions.remove(name, caller)
        above = table.by_number.get(number)
        if above is not None and self._shared.has(above):
            return self._shared.remove(above, name, caller)
        parent = volume.changing(number, name, caller)
        if not self._loading.is_ready(parent):
            return self._loading.then(parent, self.rmdir, number, name, caller)
        volume.require(caller, parent, WRITE | SEARCH)
        node = table.obtain(parent, name, table.find(parent, name))
        if not isinstance(node, Directory):
            raise failure(errno.ENOTDIR)
        if not self._loading.is_ready(node):
            return self._loading.then(node, self.rmdir, number, name, caller)
        self._require_removal(caller, parent, node)
        if node.overrides:
            raise failure(errno.ENOTEMPTY)
        if not self._loading.gate.admits(parent.session, caller):
            return self._loading.then_owned(parent.session, self.rmdir, number, name, caller)
        table.hold(node)
        sequence = volume.begin(Operation.RMDIR, number=node.number, parent=number, name=name)
        try:
            os.rmdir(name, dir_fd=table.descriptor(parent))
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=node.number)
        volume.recent.forget(node.number)
        parent.overrides.pop(name, None)
        table.remove_place(node, parent, name)
        table.settle(node)
        return None

    # --- rename

    def rename(
        self, number: int, name: bytes, new_number: int, new_name: bytes, flags: int, caller: Caller
    ) -> Awaitable[None] | None:
        """Rename, replacing what has the new name, all at once.

        Raises:
            OSError: EXDEV across sessions; EINVAL for unknown flags; what ``renameat2(2)`` gives.
        """
        volume, table = self._volume, self._table
        if flags & ~(NOREPLACE | EXCHANGE) or flags == NOREPLACE | EXCHANGE:
            raise failure(errno.EINVAL)
        parent, new_parent = (
            volume.changing(number, name, caller),
            volume.changing(new_number, new_name, caller),
        )
        if parent.session is not new_parent.session:
            raise failure(errno.EXDEV)
        for directory in (parent, new_parent):
            if not self._loading.is_ready(directory):
                return self._loading.then(
                    directory, self.rename, number, name, new_number, new_name, flags, caller
                )
        volume.require(caller, parent, WRITE | SEARCH)
        volume.require(caller, new_parent, WRITE | SEARCH)
        source = table.find(parent, name)
        node = table.obtain(parent, name, source)
        target = self._find_if_there(new_parent, new_name)
        victim = table.obtain(new_parent, new_name, target) if target is not None else None
        if isinstance(victim, Directory) and not flags and not self._loading.is_ready(victim):
            return self._loading.then(victim, self.rename, number, name, new_number, new_name, flags, caller)
        self._check(caller, (parent, node), (new_parent, victim), flags)
        if victim is node:
            return None
        first = self._comes_first(parent, victim if flags != EXCHANGE else None, caller)
        if first is not None:
            return first(self.rename, number, name, new_number, new_name, flags, caller)
        move = _Move(parent, name, new_parent, new_name, node, source, victim, target)
        operation = Operation.EXCHANGE if flags == EXCHANGE else Operation.RENAME
        sequence = volume.begin(
            operation, number=node.number, parent=number, name=name, new_parent=new_number, new_name=new_name,
            replaced=victim.number if victim is not None else 0,
        )  # fmt: skip
        try:
            self._exchange(move) if flags == EXCHANGE else self._move(move)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=node.number)
        self._note_move(node, victim)
        if victim is not None:
            table.settle(victim)
        table.settle(node)
        return None

    def _comes_first(
        self, parent: Directory, victim: Node | None, caller: Caller
    ) -> Callable[..., Awaitable[None]] | None:
        """Give what must come before a rename: ownership; the rest of a file that loses its name while it is read by blocks."""
        loading = self._loading
        if not loading.gate.admits(parent.session, caller):
            return partial(loading.then_owned, parent.session)
        if victim is not None and loading.partials.is_read(victim):
            return partial(loading.then_kept, victim)
        return None

    def _find_if_there(self, parent: Directory, name: bytes) -> Found | None:
        try:
            return self._table.find(parent, name)
        except FileNotFoundError:
            return None

    def _note_move(self, node: Node, victim: Node | None) -> None:
        """Both are changed here; and let the next barrier know what the log's last record changed besides the file it names."""
        node.note_changed()
        if victim is not None:
            victim.note_changed()
        recent, position = self._volume.recent, self._volume.log.position
        if victim is not None and victim.places:
            recent.note(victim.number, position)
        elif victim is not None:
            recent.forget(victim.number)
        if stat.S_IFDIR in (node.kind, victim.kind if victim is not None else 0):
            recent.directory_moved = position

    def _check(
        self,
        caller: Caller,
        source: tuple[Directory, Node],
        target: tuple[Directory, Node | None],
        flags: int,
    ) -> None:
        """Apply the rules of rename(2) that the disk cannot apply for what is not on it."""
        (parent, node), (new_parent, victim) = source, target
        self._require_removal(caller, parent, node)
        if node.kind == stat.S_IFDIR and parent is not new_parent:
            self._volume.require(caller, node, WRITE)
        if victim is None:
            if flags == EXCHANGE:
                raise failure(errno.ENOENT)
            return
        if flags == NOREPLACE:
            raise failure(errno.EEXIST)
        self._require_removal(caller, new_parent, victim)
        if flags != EXCHANGE:
            self._check_victim(node, victim)
        elif victim.kind == stat.S_IFDIR and parent is not new_parent:
            self._volume.require(caller, victim, WRITE)

    def _check_victim(self, node: Node, victim: Node) -> None:
        if isinstance(victim, Directory):
            if node.kind != stat.S_IFDIR:
                raise failure(errno.EISDIR)
            if victim.overrides and victim is not node:
                raise failure(errno.ENOTEMPTY)
        elif node.kind == stat.S_IFDIR:
            raise failure(errno.ENOTDIR)

    def _move(self, move: _Move) -> None:
        table, victim = self._table, move.victim
        source, target = table.descriptor(move.parent), table.descriptor(move.new_parent)
        source = table.descriptor(move.parent)
        kept = False
        if victim is not None and move.target is not None and move.target[1] is not None:
            if self._volume.frozen and victim.kind == stat.S_IFREG and move.target[1].st_nlink == 1:
                self._loading.freezing.hold(victim.number, target, move.new_name)
            kept = self._keep_victim(victim, move.target[1], target, move.new_name)
        if move.source[1] is not None:
            try:
                os.rename(move.name, move.new_name, src_dir_fd=source, dst_dir_fd=target)
            except OSError:
                if kept:
                    os.unlink(b"%d" % victim.number, dir_fd=table.trash_descriptor)  # type: ignore[union-attr]
                if victim is not None:
                    self._loading.freezing.unhold(victim.number)
                raise
        elif move.target is not None and move.target[1] is not None:
            os.unlink(move.new_name, dir_fd=target)
        if move.source[1] is None:
            table.touch(move.parent)
            table.touch(move.new_parent)
        if victim is not None and move.target is not None:
            self._lose_victim(move, victim, kept=kept)
        override = move.parent.overrides.pop(move.name, None)
        _put_override(move.new_parent, move.new_name, override)
        table.remove_place(move.node, move.parent, move.name)
        table.add_place(move.node, move.new_parent, move.new_name)

    def _keep_victim(self, victim: Node, status: os.stat_result, target: int, name: bytes) -> bool:
        """Keep a file that loses its last name but is still known, under a second name in the trash."""
        if isinstance(victim, Directory):
            self._table.hold(victim)
            return False
        if status.st_nlink > 1 or not (victim.lookups or victim.handles):
            return False
        os.link(
            name, b"%d" % victim.number, src_dir_fd=target, dst_dir_fd=self._table.trash_descriptor,
            follow_symlinks=False,
        )  # fmt: skip
        return True

    def _lose_victim(self, move: _Move, victim: Node, *, kept: bool) -> None:
        table = self._table
        victim.trashed = victim.trashed or kept
        move.new_parent.overrides.pop(move.new_name, None)
        status = move.target[1] if move.target is not None else None
        if status is None:
            if victim.entry is None:
                victim.absent_names = max(0, victim.absent_names - 1)
            self._change_entry(victim, -1)
        gone = (
            victim.entry.nlink == 0
            if victim.entry is not None
            else status is not None and status.st_nlink == 1
        )
        if gone and victim.kind != stat.S_IFDIR:
            table.removed_last(victim, status)
        table.remove_place(victim, move.new_parent, move.new_name)
        if victim.number in self._volume.images:
            self._volume.images[victim.number] += 1

    def _exchange(self, move: _Move) -> None:
        table, victim = self._table, move.victim
        if victim is None or move.target is None:
            raise failure(errno.ENOENT)
        source, target = table.descriptor(move.parent), table.descriptor(move.new_parent)
        source = table.descriptor(move.parent)
        if move.source[1] is not None and move.target[1] is not None:
            _exchange(source, move.name, target, move.new_name)
        elif move.source[1] is not None:
            os.rename(move.name, move.new_name, src_dir_fd=source, dst_dir_fd=target)
        elif move.target[1] is not None:
            os.rename(move.new_name, move.name, src_dir_fd=target, dst_dir_fd=source)
        if move.source[1] is None or move.target[1] is None:
            table.touch(move.parent)
            table.touch(move.new_parent)
        first = move.parent.overrides.pop(move.name, None)
        second = move.new_parent.overrides.pop(move.new_name, None)
        _put_override(move.new_parent, move.new_name, first)
        _put_override(move.parent, move.name, second)
        table.remove_place(move.node, move.parent, move.name)
        table.remove_place(victim, move.new_parent, move.new_name)
        table.add_place(move.node, move.new_parent, move.new_name)
        table.add_place(victim, move.parent, move.name)


class _Move:
    """One rename: both places, and what is there."""

    __slots__ = ("name", "new_name", "new_parent", "node", "parent", "source", "target", "victim")

    def __init__(
        self, parent: Directory, name: bytes, new_parent: Directory, new_name: bytes, node: Node, source: Found,
        victim: Node | None, target: Found | None,
    ) -> None:  # fmt: skip
        self.parent = parent
        self.name = name
        self.new_parent = new_parent
        self.new_name = new_name
        self.node = node
        self.source = source
        self.victim = victim
        self.target = target


def _put_override(directory: Directory, name: bytes, override: Entry | int | None) -> None:
    if override is not None:
        directory.overrides[name] = (
            override if isinstance(override, int) else msgspec.structs.replace(override, name=name)
        )
