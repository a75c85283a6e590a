"""Applies the intent log's operations to the journal: the only way the tree in it changes.

An operation is applied when its outcome is known. One that its process did not finish (`INTERRUPTED`) is decided by
what the disk shows; where the disk cannot show it (a file whose bytes are not here) it counts as done: it was asked
for, and nobody was told otherwise.

The disk may be ahead of the log: a file may already stand under a name that a later record gives it, and its bytes may
already be others. So a record with an outcome is believed whatever the disk shows at the names of its time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

from sessionfs.formats.intent_records import Intent, Operation, Outcome
from sessionfs.formats.link_messages import FIRST_REMOTE_NUMBER
from sessionfs.model import keys, names
from sessionfs.model.names import SessionId
from sessionfs.working_copy.exclusions import Exclusions, side_file_of
from sessionfs.working_copy.intent_log import INTERRUPTED
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.open_below import describe
from sessionfs.working_copy.upload_journal import UploadJournal

_CHANGING_BYTES = frozenset({Operation.TRUNCATE, Operation.WRITTEN})


class RecordApplication:
    """Applies operations.

    Args:
        journal: Where they go.
        layout: Where the working copy is.
        exclusions: Names that are never owed.
        on_delete: Told the session and key of every file whose object is to go.
    """

    def __init__(
        self,
        journal: UploadJournal,
        layout: StateLayout,
        *,
        exclusions: Exclusions,
        on_delete: Callable[[str, str], None],
    ) -> None:
        self._journal = journal
        self._layout = layout
        self._exclusions = exclusions
        self._on_delete = on_delete
        self._handlers: dict[int, Callable[[Intent, Outcome], None]] = {
            Operation.CREATE: self._created,
            Operation.MKDIR: self._created,
            Operation.SYMLINK: self._created,
            Operation.MKNOD: self._created,
            Operation.LINK: self._linked,
            Operation.UNLINK: self._unlinked,
            Operation.RMDIR: self._unlinked,
            Operation.RENAME: self._renamed,
            Operation.EXCHANGE: self._exchanged,
            Operation.SETATTR: self._set_attributes,
            Operation.TRUNCATE: self._changed,
            Operation.XATTR: self._changed,
            Operation.OPEN_WRITE: self._opened,
            Operation.RELEASE_WRITE: self._released,
            Operation.WRITTEN: self._changed,
            Operation.FETCHED: self._seen,
            Operation.EVICTED: self._evicted,
            Operation.MATERIALISED: self._seen,
            Operation.STARTED: self._started,
        }

    def apply(self, operations: Iterable[tuple[Intent, Outcome]], position: int) -> None:
        """Apply a batch and remember where the log was read to, in one transaction.

        Args:
            operations: In the order of their intents.
            position: The log's position behind them.
        """
        last = 0
        with self._journal.transaction():
            for intent, outcome in operations:
                last = max(last, intent.sequence)
                handler = self._handlers.get(intent.operation)
                if handler is not None and outcome.errno in {0, INTERRUPTED}:
                    handler(intent, outcome)
            self._journal.set_meta("log_position", str(position))
            if last:
                self._journal.set_meta("log_sequence", str(last))

    def note_unrecorded(self, numbers: Iterable[int], now_ns: int) -> bool:
        """Owe files that are open for writing and were written without a record: a write just after an upload may have none.

        Args:
            numbers: Files; others are left alone.
            now_ns: Wall clock.

        Returns:
            Whether there was one.
        """
        found = False
        intent = Intent(0, Operation.WRITTEN, wall_ns=now_ns)
        for number in numbers:
            node = self._journal.node(number)
            if node is None or not node.writers or node.clean_identity[0] < 0 or self._is_as_settled(node):
                continue
            with self._journal.transaction():
                self._mark_all(number, intent)
            found = True
        return found

    # --- names

    def _created(self, intent: Intent, outcome: Outcome) -> None:
        number = outcome.number
        if outcome.errno == INTERRUPTED or not number:
            status = self._stat(intent.parent, intent.name)
            if status is None:
                return
            number = status.st_ino
        mode = intent.mode if intent.mode >= 0 else stat.S_IFREG | 0o644
        if intent.operation == Operation.MKDIR:
            mode = stat.S_IFDIR | stat.S_IMODE(mode)
        elif intent.operation == Operation.SYMLINK:
            mode = stat.S_IFLNK | 0o777
        elif not stat.S_IFMT(mode):
            mode = stat.S_IFREG | mode
        self._leave_unseen(intent.parent, intent.name, 0)
        self._journal.forget_former(number)
        self._journal.put_node(number, mode=mode, present=True)
        self._journal.link(intent.parent, intent.name, number)
        if intent.parent == ROOT_NUMBER:
            self._journal.add_session(intent.name.decode(), number, known=True, written=True)
        self._touch(intent.parent, intent)
        self._mark(intent.parent, intent.name, intent, event="session.file.created")

    def _linked(self, intent: Intent, outcome: Outcome) -> None:
        if outcome.errno == INTERRUPTED and self._stat(intent.new_parent, intent.new_name) is None:
            node = self._journal.node(intent.number)
            if node is not None and node.present:
                return
        self._leave_unseen(intent.new_parent, intent.new_name, intent.number)
        self._journal.link(intent.new_parent, intent.new_name, intent.number)
        self._touch(intent.new_parent, intent)
        self._mark(intent.new_parent, intent.new_name, intent, event="session.file.created")

    def _unlinked(self, intent: Intent, outcome: Outcome) -> None:
        if outcome.errno == INTERRUPTED and self._stat(intent.parent, intent.name) is not None:
            return
        if self._journal.child(intent.parent, intent.name) is None:
            return
        self._mark(intent.parent, intent.name, intent, event="session.file.deleted", deleted=True)
        self._journal.unlink(intent.parent, intent.name)
        self._touch(intent.parent, intent)

    def _renamed(self, intent: Intent, outcome: Outcome) -> None:
        journal = self._journal
        number = journal.child(intent.parent, intent.name)
        if number is None or number == journal.child(intent.new_parent, intent.new_name):
            return
        if outcome.errno == INTERRUPTED and not self._moved(intent, number):
            self._look_again(intent)
            return
        if journal.child(intent.new_parent, intent.new_name) is not None:
            self._mark(intent.new_parent, intent.new_name, intent)
            self._leave_unseen(intent.new_parent, intent.new_name, intent.replaced)
            journal.unlink(intent.new_parent, intent.new_name)
        self._mark_below(intent.parent, intent.name, number, intent)
        journal.move(intent.parent, intent.name, intent.new_parent, intent.new_name, number)
        self._mark_below(intent.new_parent, intent.new_name, number, intent)
        self._touch(intent.parent, intent)
        self._touch(intent.new_parent, intent)
        self._announce("session.file.renamed", journal.path_in(intent.new_parent, intent.new_name))

    def _exchanged(self, intent: Intent, outcome: Outcome) -> None:
        journal = self._journal
        first = journal.child(intent.parent, intent.name)
        second = journal.child(intent.new_parent, intent.new_name)
        if first is None or second is None or first == second:
            return
        if outcome.errno == INTERRUPTED and not self._exchanged_on_disk(intent, first, second):
            self._look_again(intent)
            return
        sides = ((intent.parent, intent.name, first), (intent.new_parent, intent.new_name, second))
        for parent, name, number in sides:
            self._mark_below(parent, name, number, intent)
        journal.link(intent.parent, intent.name, second)
        journal.link(intent.new_parent, intent.new_name, first)
        for parent, name in ((intent.parent, intent.name), (intent.new_parent, intent.new_name)):
            moved = journal.child(parent, name)
            if moved is not None:
                self._mark_below(parent, name, moved, intent)
            self._touch(parent, intent)

    def _leave_unseen(self, parent: int, name: bytes, seen: int) -> None:
        """A name that a comparison gave to another's file was taken by a program that had not seen it: his is kept aside before ours goes there.

        Args:
            parent: Directory of the name.
            name: The name.
            seen: The file that the program took it from, 0 for none.
        """
        number = self._journal.child(parent, name)
        node = self._journal.node(number) if number is not None else None
        place = self._journal.path_in(parent, name)
        if node is None or place is None or number == seen or node.present or node.is_directory:
            return
        key = keys.live_key(*place, is_directory=False)
        if node.number >= FIRST_REMOTE_NUMBER and key is not None:
            self._journal.lose_object(key)

    # --- content and attributes

    def _set_attributes(self, intent: Intent, _outcome: Outcome) -> None:
        node = self._journal.node(intent.number)
        if node is None:
            return
        values: dict[str, str | int | bool | bytes] = {}
        if intent.mode >= 0:
            values["mode"] = stat.S_IFMT(node.mode) | stat.S_IMODE(intent.mode)
        if intent.uid >= 0:
            values["uid"] = intent.uid
        if intent.gid >= 0:
            values["gid"] = intent.gid
        if intent.mtime_ns is not None:
            values["mtime_ns"] = intent.mtime_ns
        if values:
            self._journal.update_node(intent.number, **values)
        self._mark_all(intent.number, intent)

    def _changed(self, intent: Intent, outcome: Outcome) -> None:
        self._see(intent.number, is_certain=outcome.errno == 0)
        node = self._journal.node(intent.number)
        if intent.operation in _CHANGING_BYTES and node is not None and self._is_as_settled(node):
            # It was looked at too late (or too early): other bytes may stand with this very identity.
            self._journal.update_node(intent.number, clean_size=-1)
        self._mark_all(intent.number, intent, event="session.file.updated")

    def _opened(self, intent: Intent, _outcome: Outcome) -> None:
        self._journal.add_writers(intent.number, 1)

    def _released(self, intent: Intent, outcome: Outcome) -> None:
        self._journal.add_writers(intent.number, -1)
        node = self._journal.node(intent.number)
        if node is None:
            return
        # What was imaged while it was open (SQLite's own image, say) may differ from the bytes at rest; and not every
        # write has its record: one that came just after an upload may have none.
        if outcome.errno == INTERRUPTED or (node.writers == 0 and not self._is_as_settled(node)):
            self._mark_all(intent.number, intent)

    def _started(self, intent: Intent, _outcome: Outcome) -> None:
        # The last daemon's descriptors are gone with it; what they wrote may have had no record yet.
        for number in self._journal.nodes_with_writers():
            self._mark_all(number, intent)
            self._journal.update_node(number, writers=0)

    def _seen(self, intent: Intent, outcome: Outcome) -> None:
        self._see(intent.number, is_certain=outcome.errno == 0)

    def _evicted(self, intent: Intent, outcome: Outcome) -> None:
        places = self._journal.names_of(intent.number)
        # What left may be one of several names: then the disk says whether others are left.
        is_certain = outcome.errno == 0 and len(places) == 1
        if is_certain or all(self._stat(parent, name) is None for parent, name in places):
            self._journal.update_node(intent.number, present=False, reserved=True, clean_size=-1)

    # --- what they share

    def _see(self, number: int, *, is_certain: bool) -> None:
        """Note that an inode's bytes are on this disk, and their identity if they are the ones the bucket has.

        Args:
            number: The inode.
            is_certain: Whether they came, even when none of its names is there (any more).
        """
        node = self._journal.node(number)
        if node is None or node.present:
            return
        if is_certain:
            self._journal.update_node(number, present=True)
        for parent, name in self._journal.names_of(number):
            status = self._stat(parent, name)
            if status is None:
                continue
            self._journal.update_node(number, present=True)
            if node.sha256 and (status.st_size, status.st_mtime_ns) == (node.size_bytes, node.mtime_ns):
                self._journal.update_node(
                    number,
                    clean_size=status.st_size,
                    clean_mtime_ns=status.st_mtime_ns,
                    clean_ctime_ns=status.st_ctime_ns,
                )
            return

    def _is_as_settled(self, node: Node) -> bool:
        """Whether a file stands on the disk as it did when the bucket had it."""
        if node.clean_identity[0] < 0:
            return False
        for parent, name in self._journal.names_of(node.number):
            status = self._stat(parent, name)
            if status is not None:
                return (status.st_size, status.st_mtime_ns, status.st_ctime_ns) == node.clean_identity
        return True

    def _touch(self, directory: int, intent: Intent) -> None:
        """A directory's modification time changed with its names."""
        if directory != ROOT_NUMBER:
            self._mark_all(directory, intent)

    def _mark_all(self, number: int, intent: Intent, *, event: str = "") -> None:
        for parent, name in self._journal.names_of(number):
            self._mark(parent, name, intent, event=event)

    def _mark(
        self, parent: int, name: bytes, intent: Intent, *, event: str = "", deleted: bool = False
    ) -> None:
        number = self._journal.child(parent, name)
        node = self._journal.node(number) if number is not None else None
        place = self._journal.path_in(parent, name)
        if node is None or place is None:
            return
        self._mark_key(place, is_directory=node.is_directory, intent=intent, deleted=deleted)
        # The -shm index is written by readers too, our own image among them.
        database = None if name.endswith(b"-shm") else side_file_of(name)
        if database is not None and self._journal.child(parent, database) is not None:
            beside = self._journal.path_in(parent, database)
            if beside is not None:
                self._mark_key(beside, is_directory=False, intent=intent)
        if event and not node.is_directory:
            self._announce(event, place)

    def _mark_key(
        self, place: tuple[SessionId, bytes], *, is_directory: bool, intent: Intent, deleted: bool = False
    ) -> None:
        session, path = place
        if path and self._exclusions.match(path):
            return
        key = keys.live_key(session, path, is_directory=is_directory)
        if key is None:
            self._journal.update_session(session, changed=True)
            return
        self._journal.mark(key, session, intent.wall_ns)
        self._journal.update_session(session, written=True)
        if deleted and self._journal.object(key) is not None:
            self._on_delete(session, key)

    def _mark_below(self, parent: int, name: bytes, number: int, intent: Intent) -> None:
        place = self._journal.path_in(parent, name)
        if place is None:
            return
        session, path = place
        for below, _, is_directory in list(self._journal.below(number, path)):
            if below and self._exclusions.match(below):
                continue
            key = keys.live_key(session, below, is_directory=is_directory)
            if key is not None:
                self._journal.mark(key, session, intent.wall_ns)
        self._journal.update_session(session, changed=True, written=True)

    def _announce(self, event: str, place: tuple[SessionId, bytes] | None) -> None:
        if place is not None:
            self._journal.add_event(event, {"session_id": place[0], "path": names.display(place[1])})

    def _moved(self, intent: Intent, number: int) -> bool:
        """Whether the disk shows that a rename in flight was done; one of bytes elsewhere counts as done."""
        node = self._journal.node(number)
        here = self._stat(intent.new_parent, intent.new_name)
        if node is None or not node.present:
            return here is None or not self._is_victim(intent, here)
        before = self._stat(intent.parent, intent.name)
        return here is not None and (before is None or here.st_ino == number)

    def _is_victim(self, intent: Intent, here: os.stat_result) -> bool:
        """Whether a file is the one that a rename was to replace: it goes from the disk with the rename, so nothing was done."""
        number = self._journal.child(intent.new_parent, intent.new_name)
        victim = self._journal.node(number) if number is not None else None
        if victim is None or not victim.present:
            return False
        identity = (here.st_size, here.st_mtime_ns, here.st_ctime_ns)
        return here.st_ino == victim.number or identity == victim.clean_identity

    def _exchanged_on_disk(self, intent: Intent, first: int, second: int) -> bool:
        """Whether the disk shows that an exchange in flight was done; one of bytes elsewhere counts as done."""
        before = self._stat(intent.parent, intent.name)
        here = self._stat(intent.new_parent, intent.new_name)
        if before is None and here is None:
            return True
        moved, other = (self._journal.node(number) for number in (first, second))
        if moved is None or other is None:
            return False
        if moved.present and other.present:
            return (here is not None and here.st_ino == first) or (
                before is not None and before.st_ino == second
            )
        return here is not None if moved.present else before is not None

    def _look_again(self, intent: Intent) -> None:
        """The disk may show less than was done: what is at both places is compared with the bucket."""
        self._mark(intent.parent, intent.name, intent)
        self._mark(intent.new_parent, intent.new_name, intent)

    def _stat(self, parent: int, name: bytes) -> os.stat_result | None:
        place = self._journal.path_in(parent, name)
        if place is None:
            return None
        session, path = place
        return describe(self._layout.sessions, session, path)
