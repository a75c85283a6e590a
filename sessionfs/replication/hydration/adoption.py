"""A session that was made here before the bucket's was known: both become one, and nobody's bytes are lost.

What exists here stays under its name. A remote object of the same content becomes ours; one of other content is first copied
to ``.conflicts/``, then its token is the base of our put. What only the bucket has appears beside.
"""

from __future__ import annotations

import enum
import hashlib
import os
import stat
from dataclasses import dataclass

import trio

from sessionfs.model.clock import Clock
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.tree_rows import TreeRows, known_object
from sessionfs.replication.remote_tree import RemoteEntry, RemoteTree
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.replication.uploads.conflicts import Conflicts, RaiseEvent
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_CONCURRENT = 8
_CHUNK_BYTES = 1 << 20
Identity = tuple[int, int, int]


class _Verdict(enum.Enum):
    SAME = enum.auto()
    OTHER = enum.auto()
    """Kept aside; ours is put over it."""
    UNSETTLED = enum.auto()
    """Left to the uploader, whose put finds what is there."""


@dataclass(frozen=True, slots=True)
class _Finding:
    number: int
    verdict: _Verdict
    identity: Identity | None = None


class Adoption:
    """Merges the bucket's tree into one that exists here.

    Args:
        journal: The tree here.
        store: Keeps bytes aside.
        layout: Where the working copy is.
        clock: Stamps of what is kept aside.
        raise_event: Told of every conflict.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        clock: Clock,
        *,
        raise_event: RaiseEvent,
    ) -> None:
        self._journal = journal
        self._store = store
        self._layout = layout
        self._clock = clock
        self._conflicts = Conflicts(journal, store, clock, raise_event)

    async def merge(self, session: SessionId, tree: RemoteTree) -> None:
        """Merge a session, and remember that its tree was read.

        Raises:
            UnavailableError, AccessError: Nothing was changed here.
        """
        findings: dict[bytes, _Finding] = {}

        async def settle(entry: RemoteEntry) -> None:
            number = self._journal.resolve(session, entry.path)
            node = self._journal.node(number) if number is not None else None
            if node is not None and entry.key and self._journal.object(entry.key) is None:
                findings[entry.path] = await self._settle(session, entry, node)

        await for_each(tree.entries, settle, limit=_CONCURRENT)
        with self._journal.transaction():
            self._write(session, tree, findings)

    def _write(self, session: SessionId, tree: RemoteTree, findings: dict[bytes, _Finding]) -> None:
        rows = TreeRows(self._journal, session)
        rows.join_groups(tree.survey)
        for entry in tree.entries:
            number = self._journal.resolve(session, entry.path)
            finding = findings.get(entry.path)
            if number is None:
                rows.add(entry)
            elif finding is not None and number == finding.number and self._journal.object(entry.key) is None:
                self._apply(session, entry, finding)
        self._journal.update_session(session, known=True)
        rows.note_manifest(tree.survey)

    def _apply(self, session: SessionId, entry: RemoteEntry, finding: _Finding) -> None:
        if finding.verdict is _Verdict.UNSETTLED:
            return
        self._journal.put_object(known_object(entry, finding.number))
        if finding.verdict is _Verdict.SAME:
            if finding.identity is not None:
                size, mtime_ns, ctime_ns = finding.identity
                self._journal.update_node(
                    finding.number,
                    sha256=entry.sha256,
                    clean_size=size,
                    clean_mtime_ns=mtime_ns,
                    clean_ctime_ns=ctime_ns,
                )
            return
        self._journal.mark(entry.key, session, self._clock.wall_ns())

    async def _settle(self, session: SessionId, entry: RemoteEntry, node: Node) -> _Finding:
        if stat.S_IFMT(entry.mode) != stat.S_IFMT(node.mode):
            return _Finding(node.number, _Verdict.UNSETTLED)
        path = os.path.join(os.fsencode(self._layout.sessions), session.encode(), entry.path)
        if entry.is_directory:
            same = await trio.to_thread.run_sync(_same_directory, path, entry)
            return _Finding(node.number, _Verdict.SAME if same else _Verdict.OTHER)
        if not node.present:
            same = bool(entry.sha256) and entry.sha256 == node.sha256
            return _Finding(node.number, _Verdict.SAME) if same else await self._aside(entry, node)
        if stat.S_ISLNK(entry.mode):
            same = await trio.to_thread.run_sync(_same_link, path, entry.target)
            return _Finding(node.number, _Verdict.SAME) if same else await self._aside(entry, node)
        identity = await trio.to_thread.run_sync(_same_file, path, entry)
        if identity is not None:
            return _Finding(node.number, _Verdict.SAME, identity)
        return await self._aside(entry, node)

    async def _aside(self, entry: RemoteEntry, node: Node) -> _Finding:
        """Copy the bucket's bytes to ``.conflicts/``."""
        found = await self._store.head(entry.key, tries=READ_TRIES)
        if found is None or found.token != entry.token:
            return _Finding(node.number, _Verdict.UNSETTLED)
        kept = await self._conflicts.keep_aside(entry.key, found)
        return _Finding(node.number, _Verdict.OTHER if kept else _Verdict.UNSETTLED)


def _same_directory(path: bytes, entry: RemoteEntry) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return (status.st_mode, status.st_mtime_ns) == (entry.attributes.mode, entry.attributes.mtime_ns)


def _same_link(path: bytes, target: bytes) -> bool:
    try:
        return os.readlink(path) == target
    except OSError:
        return False


def _same_file(path: bytes, entry: RemoteEntry) -> Identity | None:
    """Identity of a file here that has the bucket's bytes; None when it differs, cannot be read or moves."""
    try:
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            if before.st_size != entry.size_bytes or not entry.sha256:
                return None
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            after = os.fstat(file.fileno())
    except OSError:
        return None
    identity = (after.st_size, after.st_mtime_ns, after.st_ctime_ns)
    still = identity == (before.st_size, before.st_mtime_ns, before.st_ctime_ns)
    return identity if still and digest.hexdigest() == entry.sha256 else None
