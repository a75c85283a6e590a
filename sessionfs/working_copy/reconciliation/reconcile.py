"""The full walk: compares the working copy with the journal, after a boot or a lost journal.

Rules:

* What the disk has and the journal has not, or has otherwise, is owed.
* A missing file without a delete record is fetched again or reported; it is **never** deleted in the bucket. A name that has
  become something of another kind is a record: what it was, and what was in it, is gone.
* A name whose inode is another one than the tree says was replaced: it is a file of its own.
* A directory that cannot be read is left as it is, with what is in it.
* A session whose directory is gone as a whole was removed by hand with its state: it is forgotten here and stays in the bucket.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.model import keys, names, roots
from sessionfs.model.errors import InvalidSessionIdError
from sessionfs.model.names import SessionId
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.open_below import list_directory
from sessionfs.working_copy.reconciliation.missing_files import MissingFiles
from sessionfs.working_copy.upload_journal import UploadJournal


@dataclass(slots=True)
class Findings:
    """What a walk found.

    Attributes:
        entries: Names looked at.
        owed: Names that are new or changed.
        missing: Paths that the journal has and the disk has not, as shown to a person.
        unreadable: Directories that the disk does not show, in the same way.
    """

    entries: int = 0
    owed: int = 0
    missing: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


class Reconciliation:
    """One walk.

    Args:
        journal: Compared and corrected.
        layout: Where the working copy is.
        now_ns: Wall clock: when what is found became owed.
    """

    def __init__(self, journal: UploadJournal, layout: StateLayout, *, now_ns: int) -> None:
        self._journal = journal
        self._layout = layout
        self._now_ns = now_ns
        self.findings = Findings()

    def run(self) -> Findings:
        """Walk every session."""
        for entry in os.scandir(self._layout.sessions):
            try:
                session = roots.unit_id(entry.name)
            except InvalidSessionIdError:
                continue
            if entry.is_dir(follow_symlinks=False):
                with self._journal.transaction():
                    self._walk_session(session, entry.stat(follow_symlinks=False))
        self.forget_removed()
        return self.findings

    def forget_removed(self) -> None:
        """Forget the sessions whose directory somebody removed by hand; one directory look-up each."""
        for row in self._journal.sessions():
            root = self._journal.node(row.root)
            is_named = self._journal.child(ROOT_NUMBER, row.id.encode()) is not None
            if root is None or not root.present or not is_named:
                continue
            if not os.path.isdir(os.path.join(self._layout.sessions, row.id)):
                with self._journal.transaction():
                    self._forget(row.id, row.root)

    def _walk_session(self, session: SessionId, status: os.stat_result) -> None:
        root = self._journal.child(ROOT_NUMBER, session.encode())
        node = self._journal.node(root) if root is not None else None
        if root is not None and node is not None and not _has_number_of(node, status):
            root = self._journal.renumber(root)
        if root is None:
            root = status.st_ino
            if self._journal.node(root) is not None:
                self._journal.renumber(root)
            self._journal.put_node(root, mode=status.st_mode, present=True)
            self._journal.link(ROOT_NUMBER, session.encode(), root)
            self._journal.add_session(session, root, known=False, written=True)
        stack = [(root, b"")]
        self._owe(session, b"", is_directory=True)
        while stack:
            number, path = stack.pop()
            stack.extend(self._walk_directory(session, number, path))

    def _walk_directory(self, session: SessionId, number: int, path: bytes) -> Iterator[tuple[int, bytes]]:
        known = dict(self._journal.children(number))
        seen: set[bytes] = set()
        try:
            listed = list_directory(self._layout.sessions, session, path)
        except OSError as problem:
            self.findings.unreadable.append(f"{session}/{names.display(path)}: {problem.strerror}")
            return
        for name, status in listed:
            self.findings.entries += 1
            seen.add(name)
            inner = path + b"/" + name if path else name
            child = self._compare(session, number, name, inner, status, known.get(name))
            if stat.S_ISDIR(status.st_mode):
                yield child, inner
        for name in known.keys() - seen:
            self._missing(session, number, name, known[name], path + b"/" + name if path else name)

    def _compare(
        self, session: SessionId, parent: int, name: bytes, path: bytes, status: os.stat_result, known: int | None
    ) -> int:  # fmt: skip
        is_directory = stat.S_ISDIR(status.st_mode)
        node = self._journal.node(known) if known is not None else None
        if (
            node is not None
            and not _has_number_of(node, status)
            and len(self._journal.names_of(node.number)) == 1
        ):
            # The daemon would speak of it by the disk's number, of which the tree knows nothing.
            node = self._journal.node(self._journal.renumber(node.number))
        if node is None or not _is_of(node, status):
            if node is not None:
                self._replaced(session, path, node)
            return self._add(session, parent, name, path, status)
        if not node.present:
            self._journal.update_node(node.number, present=True)
        if self._differs(session, path, node, status):
            self._owe(session, path, is_directory=is_directory)
        return node.number

    def _add(self, session: SessionId, parent: int, name: bytes, path: bytes, status: os.stat_result) -> int:
        number, is_directory = status.st_ino, stat.S_ISDIR(status.st_mode)
        there = self._journal.node(number)
        is_other_name = (
            there is not None and status.st_nlink > 1 and _is_of(there, status) and not is_directory
        )
        if not is_other_name:
            if there is not None:
                # Known under a name that has not been looked at yet, or has gone.
                self._journal.renumber(number)
            self._journal.put_node(number, mode=status.st_mode, present=True)
        self._journal.link(parent, name, number)
        self._owe(session, path, is_directory=is_directory)
        return number

    def _replaced(self, session: SessionId, path: bytes, node: Node) -> None:
        """A name means something else now: what it was has no name here any more."""
        for below, _, is_directory in reversed(list(self._journal.below(node.number, path))):
            self._owe(session, below, is_directory=is_directory)
            number = self._journal.resolve(session, below.rpartition(b"/")[0])
            if number is not None:
                self._journal.unlink(number, below.rpartition(b"/")[2])

    def _differs(self, session: SessionId, path: bytes, node: Node, status: os.stat_result) -> bool:
        if stat.S_ISREG(status.st_mode):
            identity = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            return node.clean_identity != identity
        key = keys.live_key(session, path, is_directory=node.is_directory)
        known = self._journal.object(key) if key is not None else None
        return known is None or (known.mode, known.mtime_ns) != (status.st_mode, status.st_mtime_ns)

    def _owe(self, session: SessionId, path: bytes, *, is_directory: bool) -> None:
        key = keys.live_key(session, path, is_directory=is_directory)
        if key is not None:
            self.findings.owed += 1
            self._journal.mark(key, session, self._now_ns)

    def _missing(self, session: SessionId, parent: int, name: bytes, number: int, path: bytes) -> None:
        node = self._journal.node(number)
        if node is None or not node.present:
            return
        self.findings.missing.append(f"{session}/{names.display(path)}")
        MissingFiles(self._journal, session).lose(parent, name, path)

    def _forget(self, session: SessionId, root: int) -> None:
        """Drop all knowledge of a session without touching the bucket."""
        forgotten = list(self._journal.below(root, b""))
        for known in self._journal.objects_below(keys.session_prefix(session)):
            self._journal.drop_object(known.key)
        for row in self._journal.all_work():
            if row.session == session:
                self._journal.finish_work(row.key, row.version)
        for _, number, _ in reversed(forgotten):
            for parent, name in self._journal.names_of(number):
                self._journal.unlink(parent, name)
        self._journal.remove_session(session)
        self._journal.add_event("session.forgotten", {"session_id": session, "files": len(forgotten)})


def _is_of(node: Node, status: os.stat_result) -> bool:
    """Whether an inode of the tree can be what the disk shows."""
    return stat.S_IFMT(node.mode) == stat.S_IFMT(status.st_mode) and _has_number_of(node, status)


def _has_number_of(node: Node, status: os.stat_result) -> bool:
    """Whether an inode has the disk's number, or one that says nothing of the disk."""
    is_of_disk = node.number < FIRST_REMOTE_NUMBER and not node.reserved and node.present
    return not is_of_disk or node.number == status.st_ino
