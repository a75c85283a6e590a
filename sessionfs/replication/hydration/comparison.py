"""A known session against the bucket: what another host changed since this one looked.

Rules:

* Only what is clean here is compared: a key with work, or with a put whose outcome is open, belongs to the uploader.
* What changed and is not on this disk changes at once. What is on this disk is reported, and changes when the daemon
  has dropped it: until then its row keeps the old token, so that a crash in between is found again and a put of ours
  cannot overwrite what it never saw.
* An object with the same token may have other attributes (a copy onto itself): objects written since the last comparison are asked.
* What vanished from a session that is this host's, without another host's commit, stays on this disk.
* A bucket in which nothing is left, without a manifest that says "removed", changes nothing while this disk has files: they may be the
  last copies.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from sessionfs.formats import extended_attributes
from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import OwnershipLostError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.survey import YOUNG_NS, RemoteEntry, Survey
from sessionfs.replication.hydration.tree_rows import TreeRows, known_object
from sessionfs.replication.ownership.notes import HELD
from sessionfs.replication.remote_tree import RemoteTreeReader
from sessionfs.replication.uploads.conflicts import RaiseEvent
from sessionfs.working_copy.journal_tree import Node, SessionRow
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.upload_journal import UploadJournal

_State = tuple[str, int]
"""Token and time of an object in a listing."""


@dataclass(slots=True)
class Differences:
    """What a comparison found.

    Attributes:
        directories: Numbers of directories whose names or attributes changed.
        files: Numbers of what changed otherwise; what is on this disk of them is old.
        attributes: Numbers of directories that have other attributes.
    """

    directories: set[int] = field(default_factory=set)
    files: set[int] = field(default_factory=set)
    attributes: set[int] = field(default_factory=set)

    def present(self, journal: UploadJournal) -> frozenset[int]:
        """Numbers of `files` whose old bytes, or old names, are still on this disk."""
        nodes = ((number, journal.node(number)) for number in self.files)
        return frozenset(number for number, node in nodes if node is not None and node.present)


@dataclass(slots=True)
class _Pass:
    """One comparison under way."""

    session: SessionId
    before: dict[str, KnownObject]
    survey: Survey
    rows: TreeRows
    is_same_generation: bool
    keeps_files: bool
    found: Differences = field(default_factory=Differences)


class Comparison:
    """Compares sessions with the bucket.

    Args:
        journal: What is known here.
        reader: Reads the bucket.
        raise_event: Told of a bucket that was emptied.
    """

    def __init__(self, journal: UploadJournal, reader: RemoteTreeReader, *, raise_event: RaiseEvent) -> None:
        self._journal = journal
        self._reader = reader
        self._raise_event = raise_event
        # Objects as young as the youngest: a later change within the same second must be seen.
        self._seen: dict[str, dict[str, _State]] = {}
        self._pending: dict[str, tuple[_State, RemoteEntry]] = {}
        self._emptied: set[str] = set()

    def note_read(self, survey: Survey) -> None:
        """Remember that a session was read as a whole just now."""
        young = survey.newest_ns - YOUNG_NS
        self._seen[survey.session] = {
            key: (found.token, found.modified_ns)
            for key, found in survey.listed.items()
            if found.modified_ns >= young
        }
        self._journal.set_meta(_watermark(survey.session), str(survey.newest_ns))

    def forget_read(self, session: SessionId) -> None:
        """What was seen of a session in listings no longer says what is here."""
        self._seen.pop(session, None)
        self._journal.set_meta(_watermark(session), "")

    def pending(self, key: str) -> RemoteEntry | None:
        """What the bucket has at a key whose old bytes were still on this disk."""
        found = self._pending.get(key)
        return found[1] if found else None

    def before(self, session: SessionId) -> dict[str, KnownObject]:
        """What is known of a session's objects before the bucket is asked."""
        return {known.key: known for known in self._journal.objects_below(keys.session_prefix(session))}

    async def compare(
        self,
        survey: Survey,
        before: dict[str, KnownObject],
        *,
        everything: bool = False,
        most_epoch: int = -1,
    ) -> Differences:
        """Compare one session with a survey that was made just now, and write what changed.

        Args:
            survey: The session in the bucket, listed.
            before: From `before`, taken before the survey.
            everything: What was seen before proves nothing: a newest commit, or an owner, may have come since.
            most_epoch: Objects of later owners prove that the session was lost; -1 for no limit.

        Raises:
            OwnershipLostError: An object is a later owner's. Nothing was changed.
            UnavailableError, AccessError: Nothing was changed.
        """
        if self._is_emptied(survey, before):
            return Differences()
        moved = self._moved(survey, before, everything=everything)
        described = await self._describe(survey, moved)
        if most_epoch >= 0:
            require_epoch(survey.session, described.values(), most_epoch)
        with self._journal.transaction():
            return self._write(survey, before, described)

    # --- what to look at

    def _is_emptied(self, survey: Survey, before: dict[str, KnownObject]) -> bool:
        if (
            survey.listed
            or survey.is_removed
            or not any(self._is_here(known.number) for known in before.values())
        ):
            self._emptied.discard(survey.session)
            return False
        if survey.session not in self._emptied:
            self._emptied.add(survey.session)
            self._raise_event(
                "session.bucket.emptied", {"session_id": survey.session, "objects": len(before)}
            )
        return True

    def _is_here(self, number: int) -> bool:
        node = self._journal.node(number)
        return node is not None and node.present and stat.S_ISREG(node.mode)

    def _moved(self, survey: Survey, before: dict[str, KnownObject], *, everything: bool) -> list[bytes]:
        """Paths that are new or may have changed."""
        row = self._journal.session(survey.session)
        looked_ns = int(self._journal.meta(_watermark(survey.session)) or 0) or survey.newest_ns
        if row is not None and survey.manifest_token and row.manifest_token == survey.manifest_token:
            looked_ns = max(looked_ns, survey.manifest_ns)
        seen = self._seen.get(survey.session, {})
        moved: list[bytes] = []
        for path, live in survey.live.items():
            known = before.get(live.key)
            young = live.modified_ns + YOUNG_NS >= looked_ns
            state = (live.token, live.modified_ns)
            if (
                everything
                or known is None
                or known.token != live.token
                or (young and seen.get(live.key) != state)
            ):
                moved.append(path)
        unmarked = (*survey.implied, *survey.stored)
        return moved + [path for path in unmarked if self._lacks(survey, path)]

    def _lacks(self, survey: Survey, path: bytes) -> bool:
        """Whether the tree here has no such path, or other bytes than the ones that the manifest keeps by their content."""
        number = self._journal.resolve(survey.session, path)
        node = self._journal.node(number) if number is not None else None
        kept = survey.stored.get(path)
        if node is None or kept is None or not stat.S_ISREG(kept.mode):
            return node is None
        return not _is_of_this_disk(node) and node.sha256 != kept.sha256

    async def _describe(self, survey: Survey, moved: Iterable[bytes]) -> dict[bytes, RemoteEntry]:
        described: dict[bytes, RemoteEntry] = {}
        asked: list[bytes] = []
        for path in moved:
            live = survey.live.get(path)
            waiting = self._pending.get(live.key) if live is not None else None
            if live is not None and waiting is not None and waiting[0] == (live.token, live.modified_ns):
                described[path] = waiting[1]
            else:
                asked.append(path)
        described.update(await self._reader.describe(survey, asked))
        return described

    # --- what is written

    def _write(
        self, survey: Survey, before: dict[str, KnownObject], described: dict[bytes, RemoteEntry]
    ) -> Differences:
        row = self._journal.session(survey.session)
        if row is None:
            return Differences()
        rows = TreeRows(self._journal, survey.session)
        rows.join_groups(survey)
        keeps_files = is_ours(row) and row.manifest_token == survey.manifest_token
        work = _Pass(survey.session, before, survey, rows, _is_same_generation(row, survey), keeps_files)
        for key in sorted(before.keys() - survey.listed.keys(), reverse=True):
            if self._is_settled(work, key):
                self._vanish(work, before[key])
        for path in sorted(described, key=lambda path: path.split(b"/")):
            entry = described[path]
            if not entry.key or self._is_settled(work, entry.key, entry.write_id):
                self._change(work, entry)
        if not is_ours(row) and not survey.exists:
            self._vanish_session(work, row.root)
        elif not is_ours(row) and not survey.manifest_unchanged:
            if survey.manifest_token != row.manifest_token:
                self._take_xattrs(work, described)
            rows.note_manifest(survey)
        self.note_read(survey)
        return work.found

    def _is_settled(self, work: _Pass, key: str, write_id: str = "") -> bool:
        """Whether a key is clean, and what is known of it did not change during the comparison."""
        return self._journal.object(key) == work.before.get(key) and not is_busy(self._journal, key, write_id)

    def _change(self, work: _Pass, entry: RemoteEntry) -> None:
        number = self._journal.resolve(work.session, entry.path)
        node = self._journal.node(number) if number is not None else None
        known = work.before.get(entry.key)
        if node is None:
            parent = work.rows.add(entry)
            if parent is not None:
                work.found.directories.add(parent)
        elif node.is_directory != entry.is_directory or (known is None and _is_of_this_disk(node)):
            # The name is taken by something of this disk: it goes first, or our put finds the object.
            return
        elif known is not None and _is_same(known, entry):
            self._keep(known, entry, node)
        elif entry.is_directory:
            work.rows.set_attributes(node.number, entry)
            work.rows.set_content(node.number, entry)
            work.found.directories.add(node.number)
            work.found.attributes.add(node.number)
        else:
            self._change_file(work, entry, node)

    def _keep(self, known: KnownObject, entry: RemoteEntry, node: Node) -> None:
        """Note what is new of an object that is the one known."""
        fresh = known_object(entry, node.number)
        if not fresh.write_id:
            # A manifest tells less of it than it told itself.
            sha256 = fresh.sha256 or known.sha256
            fresh = replace(known, number=node.number, sha256=sha256)
        if fresh != known:
            self._journal.put_object(fresh)
        packed = extended_attributes.pack(entry.xattrs) if entry.xattrs is not None else node.xattrs
        if packed != node.xattrs and not node.present:
            self._journal.update_node(node.number, xattrs=packed)

    def _change_file(self, work: _Pass, entry: RemoteEntry, node: Node) -> None:
        work.found.files.add(node.number)
        same_kind = stat.S_IFMT(node.mode) == stat.S_IFMT(entry.mode)
        if node.present:
            if same_kind:
                work.rows.set_attributes(node.number, entry)
            live = work.survey.listed.get(entry.key)
            if live is not None:
                self._pending[entry.key] = ((live.token, live.modified_ns), entry)
            return
        self._pending.pop(entry.key, None)
        places = self._journal.names_of(node.number)
        if not same_kind or (len(places) > 1 and not work.rows.is_same_file(entry, node.number)):
            above, _, name = entry.path.rpartition(b"/")
            parent = self._journal.resolve(work.session, above)
            if parent is not None:
                self._journal.unlink(parent, name)
                work.rows.split(parent, name, entry)
                work.found.directories.add(parent)
            return
        work.rows.set_attributes(node.number, entry)
        # Without another commit nobody names anew what is forgotten here.
        work.rows.set_content(node.number, entry, may_have_grown=work.is_same_generation)

    def _vanish(self, work: _Pass, known: KnownObject) -> None:
        """Remove what the bucket no longer has."""
        live = keys.parse_live_key(known.key)
        number = self._journal.resolve(work.session, live.path) if live else None
        node = self._journal.node(number) if number is not None else None
        if (
            live is None
            or node is None
            or not live.path
            or node.is_directory != live.is_directory
            or (node.is_directory and work.survey.has_directory(live.path))
        ):
            self._journal.drop_object(known.key)
        elif node.is_directory and self._journal.children(node.number):
            if node.present and not work.keeps_files and self._is_going(work, node.number):
                work.found.files.add(node.number)
        elif not self._drop_name(work, live.path, node, is_unknown=known.token == ""):
            if node.number in work.found.files and known.token:
                # Found again whatever is noted of the session meanwhile: no object has this token.
                self._journal.put_object(replace(known, token="", sha256=""))
        else:
            self._journal.drop_object(known.key)
            self._pending.pop(known.key, None)
            self._drop_implied(work, live.path)

    def _is_going(self, work: _Pass, directory: int) -> bool:
        """Whether everything in a directory is dropped by the daemon after this comparison."""
        return all(number in work.found.files for _, number in self._journal.children(directory))

    def _drop_name(self, work: _Pass, path: bytes, node: Node, *, is_unknown: bool = False) -> bool:
        """Remove a name, unless it is on this disk: then the daemon is asked to drop that first."""
        if node.present:
            if is_unknown or not work.keeps_files:
                work.found.files.add(node.number)
            return False
        above, _, name = path.rpartition(b"/")
        parent = self._journal.resolve(work.session, above)
        if parent is None:
            return False
        self._journal.unlink(parent, name)
        work.found.directories.add(parent)
        return True

    def _drop_implied(self, work: _Pass, path: bytes) -> None:
        """Remove directories that only were there for what was in them."""
        above = path.rpartition(b"/")[0]
        while above and not work.survey.has_directory(above):
            number = self._journal.resolve(work.session, above)
            node = self._journal.node(number) if number is not None else None
            key = keys.live_key(work.session, above, is_directory=True)
            if node is None or node.number < FIRST_REMOTE_NUMBER or self._journal.children(node.number):
                return
            if key is not None and (self._journal.object(key) is not None or is_busy(self._journal, key)):
                return
            if not self._drop_name(work, above, node):
                return
            above = above.rpartition(b"/")[0]

    def _vanish_session(self, work: _Pass, root: int) -> None:
        node = self._journal.node(root)
        if node is None:
            return
        if self._journal.children(root):
            if node.present and self._is_going(work, root):
                work.found.files.add(root)
            return
        if node.present:
            work.found.files.add(root)
            return
        self._journal.unlink(ROOT_NUMBER, work.session.encode())
        self._journal.drop_object(keys.session_prefix(work.session))
        self._journal.remove_session(work.session)
        work.found.directories.add(ROOT_NUMBER)

    def _take_xattrs(self, work: _Pass, described: dict[bytes, RemoteEntry]) -> None:
        """A new manifest may tell attributes of what has not changed otherwise."""
        for path in work.survey.entries.keys() - described.keys():
            named = work.survey.named_by_manifest(path)
            number = self._journal.resolve(work.session, path) if named is not None else None
            node = self._journal.node(number) if number is not None else None
            if named is None or node is None or node.present:
                continue
            packed = extended_attributes.pack(named.xattrs)
            if packed != node.xattrs:
                self._journal.update_node(node.number, xattrs=packed)


def is_ours(row: SessionRow) -> bool:
    """Whether a session is this host's: what it has here is the truth, whatever a manifest says."""
    return row.owner_state == HELD or (row.written and row.owner_state == "")


def _is_same_generation(row: SessionRow, survey: Survey) -> bool:
    """Whether nobody committed since the journal was told what is named; a claim writes the newest generation again, under another token."""
    if survey.manifest is None:
        return survey.manifest_unchanged or row.manifest_token == survey.manifest_token
    return survey.manifest.generation == row.generation


def is_busy(journal: UploadJournal, key: str, write_id: str = "") -> bool:
    """Whether a key belongs to the uploader now.

    Args:
        journal: What is owed and under way.
        key: The key.
        write_id: Of the object that is there. One that an old put of ours wrote, which arrived late, is the uploader's too: it says nothing of
            what others did.
    """
    return (
        journal.work(key) is not None
        or any(not is_settled or write_id == sent for sent, is_settled in journal.attempts(key))
        or bool(journal.related_work(key))
    )


def busy_test(journal: UploadJournal, session: str) -> Callable[[str], bool]:
    """Give `is_busy` for many keys of a session at one moment: most sessions owe nothing when they are looked at."""
    prefix = keys.session_prefix(SessionId(session))
    sent = journal.attempted_keys(settled=False)
    if not journal.owes(session) and not any(key.startswith(prefix) for key, _ in sent):
        return lambda _key: False
    return lambda key: is_busy(journal, key)


def require_chain(session: SessionId, newest: Manifest, most_epoch: int) -> None:
    """Refuse a chain that a later owner than this host has fenced: nothing of ours may be built on it.

    Raises:
        OwnershipLostError: It is.
    """
    if newest.epoch > most_epoch:
        raise OwnershipLostError(
            f"session {session} was fenced by another host (epoch {newest.epoch}, ours is {most_epoch})",
            holder=newest.holder,
            remedy="claim the session again",
        )


def require_epoch(session: SessionId, entries: Iterable[RemoteEntry], most_epoch: int) -> None:
    """Refuse objects of a later owner than this host.

    Raises:
        OwnershipLostError: There is one.
    """
    later = next((entry for entry in entries if entry.epoch > most_epoch), None)
    if later is not None:
        raise OwnershipLostError(
            f"{later.key} was written by an owner of session {session} after this host (epoch {later.epoch},"
            f" ours is {most_epoch})",
            remedy="claim the session again",
            object_epoch=later.epoch,
        )


def _is_of_this_disk(node: Node) -> bool:
    """Whether a file was made here: one that came from the bucket has a number of its own."""
    return not node.is_directory and node.number < FIRST_REMOTE_NUMBER


def _is_same(known: KnownObject, entry: RemoteEntry) -> bool:
    attributes = entry.attributes
    return (
        known.token == entry.token
        and stat.S_IFMT(known.mode) == stat.S_IFMT(attributes.mode)
        and (known.mode, known.uid, known.gid, known.mtime_ns)
        == (attributes.mode, attributes.uid, attributes.gid, attributes.mtime_ns)
    )


def _watermark(session: str) -> str:
    return f"listed:{session}"
