"""What a generation has, noted at the cut: one path after the other, with what is known of its content.

Synchronous: the journal stands at the cut while it is read. A path is *settled* when nothing is owed at its key: then the bucket's object is its
content, and its own attributes go with it. Everything else is noted as it stood on this disk at the cut, and brought to the bucket afterwards.
"""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sessionfs.formats.commit_messages import FrozenFile
from sessionfs.model import keys
from sessionfs.model.names import SessionId
from sessionfs.replication.uploads.sqlite_image import database_path_of
from sessionfs.replication.uploads.working_files import WorkingFiles
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import Node, SessionRow
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import Mark, UploadJournal

_KINDS = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})


@dataclass(frozen=True, slots=True)
class Noted:
    """One path at the cut.

    Attributes:
        path: Inside the session; empty for its root.
        node: The inode.
        key: Its live key; None when it can have none.
        known: The settled object; None when something was owed.
        frozen: How it stood on this disk, when something was owed and it is here.
        is_linked: Whether the file has several names here.
        kept: The object under the key of its content, of a file that has no live object; None for any other.
        away: The object that had its bytes, of a file of which something was owed and that was not on this disk; None when none is known.
    """

    path: bytes
    node: Node
    key: str | None
    known: KnownObject | None
    frozen: FrozenFile | None
    is_linked: bool
    kept: KnownObject | None = None
    away: KnownObject | None = None

    @property
    def is_away(self) -> bool:
        """Whether it is a file of which something was owed, and whose bytes were only in the bucket: nobody keeps them on this disk."""
        is_kept = self.known is not None or self.kept is not None or self.frozen is not None
        return self.is_regular and self.key is not None and not is_kept and not self.node.present

    @property
    def is_regular(self) -> bool:
        """Whether it is a file with bytes."""
        return stat.S_ISREG(self.node.mode)


class Noting:
    """Notes sessions.

    Args:
        journal: The tree, and what the bucket holds.
        files: Tells SQLite's side files.
        exclusions: Names that no generation has.
    """

    def __init__(self, journal: UploadJournal, files: WorkingFiles, exclusions: Exclusions) -> None:
        self._journal = journal
        self._files = files
        self._exclusions = exclusions

    def marks(self, session: str) -> Mapping[str, Mark]:
        """What is owed, by key, with its last mark."""
        return self._journal.owed_keys(session)

    def owed_numbers(self, session: str, *, since: Mapping[str, Mark] | None = None) -> dict[int, bytes]:
        """Inodes on this disk at whose keys something is owed, with one path inside the session each.

        Args:
            session: The session.
            since: `marks` of an earlier moment: what was not marked again since is left out.
        """
        owed, before = self._journal.owed_keys(session), since or {}
        return dict(self._journal.present_at(key for key, mark in owed.items() if before.get(key) != mark))

    def written_among(self, owed: Mapping[int, bytes]) -> list[bytes]:
        """Paths of the inodes that a descriptor may write."""
        return [owed[number] for number in self._journal.nodes_with_writers() if number in owed]

    def written_paths(self, session: str) -> list[bytes]:
        """Files that a descriptor may write; of a database's side file, the database."""
        found: dict[bytes, None] = {}
        for number in self._journal.nodes_with_writers():
            for there, path in self._journal.paths_of(number):
                if there == session:
                    found[database_path_of(path) or path] = None
        return list(found)

    def mark_unrecorded(self, session: SessionId, frozen: Iterable[FrozenFile], now_ns: int) -> None:
        """Owe files that stand otherwise than the bucket has them and of which no record told yet; databases are told by SQLite."""
        for file in frozen:
            node = self._journal.node(file.number)
            if not stat.S_ISREG(file.mode):
                continue
            if node is None or (file.size_bytes, file.mtime_ns, file.ctime_ns) == node.clean_identity:
                continue
            for there, path in self._journal.paths_of(file.number):
                key = keys.live_key(there, path, is_directory=False)
                if there != session or key is None or self._exclusions.match(path):
                    continue
                if self._journal.work(key) is None and not self._files.is_database(session, path):
                    self._journal.mark(key, session, now_ns)

    def note(self, row: SessionRow, frozen: dict[int, FrozenFile]) -> list[Noted]:
        """Note everything that a session has now.

        Args:
            row: The session.
            frozen: By inode number, how changing files stand.
        """
        tree = [
            (path, node)
            for path, node in self._journal.tree(row.root)
            if stat.S_IFMT(node.mode) in _KINDS and not (path and self._exclusions.match(path))
        ]
        tree.sort(key=lambda pair: pair[0])
        names = Counter(node.number for _, node in tree)
        objects = {known.key: known for known in self._journal.objects_below(keys.session_prefix(row.id))}
        owed = self._journal.owed_keys(row.id)
        noted: list[Noted] = []
        for path, node in tree:
            key = keys.live_key(row.id, path, is_directory=node.is_directory)
            known = objects.get(key) if key is not None and key not in owed else None
            kept = None
            if known is None and key not in owed and not node.is_directory:
                kept = self._kept(row.id, node)
                if self._files.is_side_file(row.id, path) or (kept is None and key is not None):
                    # It has a key, and neither an object nor work: it never leaves this host.
                    continue
            if key in owed and not node.is_directory and self._files.is_side_file(row.id, path):
                continue
            is_linked = names[node.number] > 1 and not node.is_directory
            state = None if known is not None else frozen.get(node.number)
            one = Noted(path, node, key, known, state, is_linked, kept)
            noted.append(replace(one, away=self._away(row.id, one)) if one.is_away else one)
        return noted

    def _away(self, session: SessionId, one: Noted) -> KnownObject | None:
        """The object of a session that holds the bytes of a file that is not on this disk: its own key's first."""
        node = one.node
        holders = self._journal.objects_of(node.number)
        if node.sha256:
            holders += self._journal.objects_with(node.sha256)
        found = [
            known
            for known in holders
            if (known.sha256, known.size_bytes) == (node.sha256, node.size_bytes)
            and known.key.startswith(keys.session_prefix(session))
        ]
        return min(found, key=lambda known: known.key != one.key, default=None)

    def _kept(self, session: SessionId, node: Node) -> KnownObject | None:
        """The object under a key of its content that holds a file's bytes."""
        own = (known for known in self._journal.objects_of(node.number) if not _is_live(known))
        found = next((known for known in own if known.sha256 in {"", node.sha256}), None)
        if found is None and node.sha256:
            return self._journal.object(keys.content_key(session, node.sha256))
        return found


def _is_live(known: KnownObject) -> bool:
    return keys.parse_live_key(known.key) is not None
