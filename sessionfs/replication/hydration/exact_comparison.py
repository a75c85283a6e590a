"""A known session against one generation: what it names otherwise than the tree here. Synchronous: one comparison is one transaction.

Rules, as for live comparisons (``comparison.py``):

* A key with work, or with a put whose outcome is open, belongs to the uploader.
* What differs and is not on this disk changes at once. What is on this disk is reported, and changes when the daemon has dropped it; until then the
  tree counts as not yet taken over, so that a crash in between is found again.

Whether a session's tree was made of a manifest alone is remembered beside it: its bytes are found by their content, and before this host changes
anything in it the bucket must be listed once (``takeover/``).
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sessionfs.formats import extended_attributes
from sessionfs.formats.link_messages import FIRST_REMOTE_NUMBER
from sessionfs.model import keys
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.comparison import Differences, busy_test
from sessionfs.replication.hydration.exact_trees import live_key
from sessionfs.replication.hydration.survey import RemoteEntry, RemoteTree
from sessionfs.replication.hydration.tree_rows import TreeRows, known_object, shown_size
from sessionfs.stores.base import ObjectStat
from sessionfs.working_copy.journal_tree import Node, SessionRow
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal


@dataclass(slots=True)
class _Pass:
    """One comparison under way."""

    session: SessionId
    here: dict[bytes, Node]
    objects: dict[str, KnownObject]
    rows: TreeRows
    listed: Mapping[str, ObjectStat]
    is_busy: Callable[[str], bool]
    found: Differences = field(default_factory=Differences)


class ExactComparison:
    """Compares trees with generations.

    Args:
        journal: What is known here.
    """

    def __init__(self, journal: UploadJournal) -> None:
        self._journal = journal
        self._pending: dict[int, tuple[SessionId, RemoteEntry]] = {}

    # --- what is remembered of a session

    def is_exact(self, session: str) -> bool:
        """Whether a session's tree was made of a manifest alone."""
        return self._journal.meta(_exact(session)) != ""

    def note_exact(self, session: str, *, exact: bool) -> None:
        """Remember what a session's tree was made of."""
        if self.is_exact(session) != exact:
            self._journal.set_meta(_exact(session), "1" if exact else "")

    def take_pending(self, node: Node) -> None:
        """Let an inode whose old bytes the daemon has dropped mean what the generation has."""
        waiting = self._pending.pop(node.number, None)
        if waiting is None:
            return
        session, entry = waiting
        if stat.S_IFMT(node.mode) == stat.S_IFMT(entry.mode):
            with self._journal.transaction():
                rows = TreeRows(self._journal, session)
                rows.set_attributes(node.number, entry)
                rows.set_content(node.number, entry)

    def wait_for_drop(self, session: SessionId, number: int, entry: RemoteEntry) -> None:
        """Let an inode whose old bytes are still here mean an entry once they are dropped."""
        self._pending[number] = (session, entry)

    # --- one comparison

    def compare(
        self, row: SessionRow, tree: RemoteTree, *, listed: Mapping[str, ObjectStat] | None = None
    ) -> Differences:
        """Make a session's tree that of a generation.

        Args:
            row: The session.
            tree: The generation's.
            listed: The live objects by key, once they count: a file stays as it is when its object is known to go on from the bytes that the
                generation names.
        """
        rows = TreeRows(self._journal, row.id)
        rows.join_groups(tree.survey)
        work = _Pass(
            row.id,
            dict(self._journal.tree(row.root)),
            {known.key: known for known in self._journal.objects_below(keys.session_prefix(row.id))},
            rows,
            listed or {},
            busy_test(self._journal, row.id),
        )
        wanted = {entry.path: entry for entry in tree.entries}
        with self._journal.transaction():
            for path in sorted(work.here.keys() - wanted.keys(), key=lambda path: -path.count(b"/")):
                if self._may_go(work, path, work.here[path]):
                    self._vanish(work, path, work.here[path])
            for entry in tree.entries:
                self._meet(work, entry)
        return work.found

    def _may_go(self, work: _Pass, path: bytes, node: Node) -> bool:
        """Whether a name came from the bucket, and is clean: what never left this host stays here."""
        key = live_key(work.session, path, is_directory=node.is_directory)
        came = key in work.objects or node.number >= FIRST_REMOTE_NUMBER
        return path != b"" and came and not self._is_busy(work, path, node)

    def _is_busy(self, work: _Pass, path: bytes, node: Node) -> bool:
        key = keys.live_key(work.session, path, is_directory=node.is_directory)
        return key is not None and work.is_busy(key)

    def _vanish(self, work: _Pass, path: bytes, node: Node) -> None:
        """Remove a name that the generation does not have."""
        if node.is_directory and not self._is_left(work, node):
            return
        if node.present:
            work.found.files.add(node.number)
            return
        above, _, name = path.rpartition(b"/")
        parent = self._journal.resolve(work.session, above)
        if parent is None:
            return
        self._journal.unlink(parent, name)
        work.found.directories.add(parent)
        key = keys.live_key(work.session, path, is_directory=node.is_directory)
        if key is not None:
            self._journal.drop_object(key)

    def _is_left(self, work: _Pass, directory: Node) -> bool:
        """Whether everything in a directory is gone, or goes with the daemon's next drops."""
        inside = [number for _, number in self._journal.children(directory.number)]
        return all(number in work.found.files for number in inside) and (directory.present or not inside)

    def _meet(self, work: _Pass, entry: RemoteEntry) -> None:
        node = work.here.get(entry.path)
        if node is not None and entry.path and stat.S_IFMT(node.mode) != stat.S_IFMT(entry.mode):
            if self._is_busy(work, entry.path, node):
                return
            self._vanish(work, entry.path, node)
            if self._journal.resolve(work.session, entry.path) is not None:
                return
            node = None
        if node is None:
            parent = work.rows.add(entry)
            if parent is not None:
                work.found.directories.add(parent)
        elif not self._is_busy(work, entry.path, node):
            self._change(work, entry, node)

    def _change(self, work: _Pass, entry: RemoteEntry, node: Node) -> None:
        known = work.objects.get(entry.key)
        if self._is_grown(work, entry, node):
            self._pending.pop(node.number, None)
        elif self._is_same(entry, node, known):
            self._pending.pop(node.number, None)
            if entry.key and (known is None or known.token != entry.token):
                self._journal.put_object(known_object(entry, node.number))
        elif node.is_directory:
            work.rows.set_attributes(node.number, entry)
            work.rows.set_content(node.number, entry)
            work.found.directories.add(node.number)
            work.found.attributes.add(node.number)
        elif node.present:
            work.found.files.add(node.number)
            self.wait_for_drop(work.session, node.number, entry)
        else:
            self._pending.pop(node.number, None)
            self._replace(work, entry, node)

    def _replace(self, work: _Pass, entry: RemoteEntry, node: Node) -> None:
        work.found.files.add(node.number)
        if len(self._journal.names_of(node.number)) > 1 and not work.rows.is_same_file(entry, node.number):
            above, _, name = entry.path.rpartition(b"/")
            parent = self._journal.resolve(work.session, above)
            if parent is not None:
                self._journal.unlink(parent, name)
                work.rows.split(parent, name, entry)
                work.found.directories.add(parent)
            return
        work.rows.set_attributes(node.number, entry)
        work.rows.set_content(node.number, entry)

    def _is_same(self, entry: RemoteEntry, node: Node, known: KnownObject | None) -> bool:
        """Whether an inode is what the generation names."""
        there = entry.attributes
        wanted = (there.mode, there.uid, there.gid, there.mtime_ns)
        if node.present and known is not None:
            # What is on this disk is what its object was: the inode's own row tells less of it.
            has = (known.mode, known.uid, known.gid, known.mtime_ns)
            return has == wanted and (known.token == entry.token or _is_content(known, entry))
        if (node.mode, node.uid, node.gid, node.mtime_ns) != (entry.mode, *wanted[1:]):
            return False
        if not node.present and node.xattrs != extended_attributes.pack(entry.xattrs or {}):
            return False
        if stat.S_ISLNK(entry.mode):
            return node.target == entry.target
        return entry.is_directory or (node.sha256, node.size_bytes) == (entry.sha256, shown_size(entry))

    def _is_grown(self, work: _Pass, entry: RemoteEntry, node: Node) -> bool:
        known = work.objects.get(live_key(work.session, entry.path, is_directory=False))
        there = work.listed.get(known.key) if known is not None else None
        if known is None or there is None or known.token != there.token or not stat.S_ISREG(entry.mode):
            return False
        if (known.number, known.sha256) != (node.number, node.sha256):
            return False
        return any(
            prefix.is_proven and (prefix.sha256, prefix.size_bytes) == (entry.sha256, entry.size_bytes)
            for prefix in self._journal.prefixes(known.key)
        )


def _is_content(known: KnownObject, entry: RemoteEntry) -> bool:
    if stat.S_ISLNK(entry.mode):
        return known.sha256 == hashlib.sha256(entry.target).hexdigest()
    return entry.is_directory or (known.sha256, known.size_bytes) == (entry.sha256, entry.size_bytes)


def _exact(session: str) -> str:
    return f"exact:{session}"
