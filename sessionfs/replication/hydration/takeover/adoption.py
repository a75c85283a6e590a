"""A session that is here while the journal does not know the bucket's: both become one, and nobody's bytes are lost.

It was made here before the store answered, or the journal was lost. The epoch of this host's last claim is noted on the session's root; when the
bucket's is not above it, nobody else owned the session since:

* What exists here stays under its name. A remote object of the same content becomes ours; one of other content is first copied to ``.conflicts/``,
  then its token is the base of our put. What only the bucket has appears beside.
* The ownership record of that very epoch is this host's own.

When the bucket's epoch is above it, another host owned the session: theirs wins. What is equal here stays; what differs, or is only here, is set
aside and becomes what the bucket has.
"""

from __future__ import annotations

import enum
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio

from sessionfs.formats import ownership
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import ObjectNotFoundError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.survey import RemoteEntry, RemoteTree
from sessionfs.replication.hydration.tree_rows import TreeRows, known_object
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.replication.uploads.conflicts import Conflicts, RaiseEvent
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_CONCURRENT = 8
_CHUNK_BYTES = 1 << 20
_EPOCH_XATTR = "user.sessionfs.epoch"
Identity = tuple[int, int, int]
SetAside = Callable[[SessionId], Awaitable[int]]
"""Puts what a session owes aside; gives the number of files."""


class _Verdict(enum.Enum):
    SAME = enum.auto()
    """Of the same content; other attributes are the uploader's to bring."""
    EQUAL = enum.auto()
    """Nothing of it is owed."""
    OTHER = enum.auto()
    """Kept aside; ours is put over it."""
    UNSETTLED = enum.auto()
    """Left to the uploader, whose put finds what is there."""
    OLD = enum.auto()
    """Ours is old: it is set aside, and becomes theirs."""
    OLD_ATTRIBUTES = enum.auto()
    """Only its attributes are: it becomes theirs."""


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
        set_aside: Puts owed files aside, and lets their keys be the bucket's again; None leaves that to the claim.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        clock: Clock,
        *,
        raise_event: RaiseEvent,
        set_aside: SetAside | None = None,
    ) -> None:
        self._journal = journal
        self._set_aside = set_aside
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
        record = await self._record(session)
        theirs_epoch = tree.survey.manifest.epoch if tree.survey.manifest is not None else 0
        if record is not None:
            theirs_epoch = max(theirs_epoch, record[0].epoch)
        ours_epoch = await trio.to_thread.run_sync(_noted_epoch, self._disk(session, b""))
        is_old = theirs_epoch > ours_epoch

        async def settle(entry: RemoteEntry) -> None:
            number = self._journal.resolve(session, entry.path)
            node = self._journal.node(number) if number is not None else None
            if node is not None and entry.key and self._journal.object(entry.key) is None:
                findings[entry.path] = await self._settle(session, entry, node, is_old=is_old)

        await for_each(tree.entries, settle, limit=_CONCURRENT)
        with self._journal.transaction():
            self._write(session, tree, findings)
            self._journal.update_session(session, epoch=theirs_epoch)
            if is_old:
                self._yield_rest(session)
            elif record is not None and record[0].epoch == ours_epoch:
                self._journal.update_session(
                    session,
                    owner_state=record[0].state,
                    owner_token=record[1],
                    holder=record[0].holder,
                )
        if is_old and self._set_aside is not None:
            await self._set_aside(session)

    async def _record(self, session: SessionId) -> tuple[OwnerRecord, str] | None:
        key = keys.owner_key(session)
        try:
            found, raw = await self._store.read_with_stat(key, tries=READ_TRIES)
        except ObjectNotFoundError:
            return None
        return ownership.decode_owner(raw, key), found.token

    def _yield_rest(self, session: SessionId) -> None:
        """What is owed here and is nothing of the bucket's counts as gone there: the next comparison drops it from this disk."""
        for work in self._journal.session_work(session):
            live = keys.parse_live_key(work.key)
            number = self._journal.resolve(session, live.path) if live is not None else None
            if self._journal.object(work.key) is None and number is not None:
                gone = KnownObject(work.key, number, "", "", "", 0, 0, 0, 0, 0, "")
                self._journal.put_object(gone)
        self._journal.update_session(session, written=False, changed=False)

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
        if finding.verdict in {_Verdict.OLD, _Verdict.OLD_ATTRIBUTES}:
            # The next comparison finds another token, and lets the daemon drop what is here.
            self._journal.put_object(replace(known_object(entry, finding.number), token="", sha256=""))
        if finding.verdict in {_Verdict.EQUAL, _Verdict.OLD_ATTRIBUTES}:
            work = self._journal.work(entry.key)
            if work is not None:
                self._journal.finish_work(work.key, work.version)
        if finding.verdict in {_Verdict.OLD, _Verdict.OLD_ATTRIBUTES}:
            return
        self._journal.put_object(known_object(entry, finding.number))
        if finding.verdict in {_Verdict.SAME, _Verdict.EQUAL}:
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

    async def _settle(self, session: SessionId, entry: RemoteEntry, node: Node, *, is_old: bool) -> _Finding:
        if stat.S_IFMT(entry.mode) != stat.S_IFMT(node.mode):
            return _Finding(node.number, _Verdict.UNSETTLED)
        same = await self._compare(session, entry, node)
        if same is not None and is_old:
            path = self._disk(session, entry.path)
            is_equal = not node.present or await trio.to_thread.run_sync(_same_attributes, path, entry)
            return replace(same, verdict=_Verdict.EQUAL if is_equal else _Verdict.OLD_ATTRIBUTES)
        if same is not None:
            return same
        if is_old:
            return _Finding(node.number, _Verdict.OLD)
        if entry.is_directory:
            return _Finding(node.number, _Verdict.OTHER)
        return await self._aside(entry, node)

    async def _compare(self, session: SessionId, entry: RemoteEntry, node: Node) -> _Finding | None:
        """Find out whether what is here is what the bucket has; None when it is not."""
        path = self._disk(session, entry.path)
        identity: Identity | None = None
        if entry.is_directory:
            same = await trio.to_thread.run_sync(_same_directory, path, entry)
        elif not node.present:
            same = bool(entry.sha256) and entry.sha256 == node.sha256
        elif stat.S_ISLNK(entry.mode):
            same = await trio.to_thread.run_sync(_same_link, path, entry.target)
        else:
            identity = await trio.to_thread.run_sync(_same_file, path, entry)
            same = identity is not None
        return _Finding(node.number, _Verdict.SAME, identity) if same else None

    def _disk(self, session: SessionId, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self._layout.sessions), session.encode(), path)

    async def _aside(self, entry: RemoteEntry, node: Node) -> _Finding:
        """Copy the bucket's bytes to ``.conflicts/``."""
        found = await self._store.head(entry.key, tries=READ_TRIES)
        if found is None or found.token != entry.token:
            return _Finding(node.number, _Verdict.UNSETTLED)
        kept = await self._conflicts.keep_aside(entry.key, found)
        return _Finding(node.number, _Verdict.OTHER if kept else _Verdict.UNSETTLED)


def _noted_epoch(root: bytes) -> int:
    """Epoch of this host's last claim of a session, 0 when it never claimed it."""
    try:
        text = os.getxattr(root, _EPOCH_XATTR)
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def _same_attributes(path: bytes, entry: RemoteEntry) -> bool:
    """Whether permissions and time of what is here are those of the bucket; a link has none of its own."""
    return stat.S_ISLNK(entry.mode) or _same_directory(path, entry)


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
