"""What the owner before uploaded after its last commit, in a session that is recovered at a generation: kept aside, and the generation put back.

For each live object that is not what the generation names, in this order:

1. The first bytes of a ``*.jsonl`` or ``*.log`` file that only grew are proven by reading them: such a file is taken over as it is now.
2. Any other file or link is copied to ``.conflicts/`` (the copy overwrites nothing, so it needs no ownership).
3. Its token becomes what the key is known to hold, so that nothing is overwritten unseen; an object that can be copied on the server as the
   generation's bytes is looked up, or made from bytes where there is none.
4. The key is owed: the uploader puts the generation's bytes back, or deletes what the generation does not have.

Stopped at any step it begins again: what is owed already is the uploader's, and what was kept aside once is not copied twice.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from sessionfs.formats.manifest import BLOCK_BYTES, Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    ObjectNotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.comparison import busy_test, require_epoch
from sessionfs.replication.hydration.exact_comparison import ExactComparison
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.survey import YOUNG_NS, RemoteEntry, Survey
from sessionfs.replication.hydration.takeover.generation_sources import GenerationSources
from sessionfs.replication.hydration.tree_rows import TreeRows, known_object
from sessionfs.replication.remote_tree import CONCURRENT_HEADS, RemoteTreeReader
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.replication.uploads.conflicts import Conflicts, RaiseEvent
from sessionfs.stores.base import ByteRange, ObjectStat, Token
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject, Prefix
from sessionfs.working_copy.upload_journal import UploadJournal

LOG_GLOBS = ("*.jsonl", "*.log")
PROOF_BYTES = 64 << 20
"""A longer file is only read to prove that it grew when the sums of its blocks are known: a wrong one ends it early."""
_CONCURRENT = 8
_LOGS = Exclusions(LOG_GLOBS)


@dataclass(slots=True)
class Settled:
    """What was found of a tail.

    Attributes:
        files: Objects that were kept aside, markers of directories not counted.
        size_bytes: Their length.
        adopted: Numbers of files that were taken over as they are now.
        waiting: Numbers of files whose old bytes the daemon must drop first.
    """

    files: int = 0
    size_bytes: int = 0
    adopted: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Found:
    """A live object that may not be what the generation names."""

    stat: ObjectStat
    theirs: RemoteEntry
    entry: ManifestEntry | None


@dataclass(frozen=True, slots=True)
class _Here:
    """What the journal has of a session, at one moment."""

    nodes: dict[bytes, Node]
    objects: dict[str, KnownObject]
    is_busy: Callable[[str], bool]

    def is_settled(self, survey: Survey, path: bytes, entry: ManifestEntry | None, waiting: set[int]) -> bool:
        """Whether an object needs no look: the uploader's, one that waits, or what it is known and named to be."""
        live, node = survey.live[path], self.nodes.get(path)
        if (node is not None and node.number in waiting) or self.is_busy(live.key):
            return True
        known = self.objects.get(live.key)
        if known is None or node is None or known.token != live.token or known.number != node.number:
            return False
        if stat.S_ISREG(node.mode) and known.sha256 != node.sha256:
            return False
        is_named = entry is not None and entry.token == live.token
        return not is_named or live.modified_ns + YOUNG_NS < survey.generation_ns


class Tail:
    """Settles tails.

    Args:
        journal: Written.
        store: The bucket.
        clock: Stamps of what is kept aside.
        reader: Describes objects.
        exact: Knows which files wait for the daemon.
        sources: Lets the uploader copy the generation's bytes.
        raise_event: Told of what was kept.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        clock: Clock,
        reader: RemoteTreeReader,
        *,
        exact: ExactComparison,
        sources: GenerationSources,
        raise_event: RaiseEvent,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._reader = reader
        self._exact = exact
        self._sources = sources
        self._conflicts = Conflicts(journal, store, clock, raise_event)
        self._raise_event = raise_event

    async def settle(
        self, survey: Survey, manifest: Manifest, *, most_epoch: int, waiting: Iterable[int] = ()
    ) -> Settled:
        """Settle what a listing shows beyond a generation; the tree here is that of the generation.

        Args:
            survey: The listing, made just now.
            manifest: The generation.
            most_epoch: Objects of later ones are another owner's.
            waiting: Files that still have old bytes here: their keys are left for the next time.

        Raises:
            OwnershipLostError: An object is a later owner's. Nothing was changed.
            UnavailableError, AccessError: What is done stays done; the rest is done the next time.
        """
        session = survey.session
        entries = {} if manifest.removed else {entry.path: entry for entry in manifest.entries}
        settled = Settled(waiting=set(waiting))
        found = await self._look(survey, entries, settled)
        require_epoch(session, (one.theirs for one in found), most_epoch)

        async def one(item: _Found) -> None:
            await self._settle_one(session, manifest, item, settled)

        await for_each(found, one, limit=_CONCURRENT)
        await self._put_back_missing(survey, manifest, entries, settled)
        if settled.files:
            self._raise_event(
                "session.tail.kept",
                {"session_id": session, "files": settled.files, "bytes": settled.size_bytes},
            )
        return settled

    # --- which

    async def _look(
        self, survey: Survey, entries: dict[bytes, ManifestEntry], settled: Settled
    ) -> list[_Found]:
        found: list[_Found] = []

        async def look(path: bytes) -> None:
            live, entry = survey.live[path], entries.get(path)
            stat_ = await self._store.head(live.key, tries=READ_TRIES)
            theirs = await self._reader.entry_of(stat_, path, entry) if stat_ is not None else None
            if stat_ is not None and theirs is not None:
                found.append(_Found(stat_, theirs, entry))

        here = self._here(survey.session)
        paths = [
            path
            for path, live in sorted(survey.live.items())
            if not here.is_settled(survey, path, entries.get(path), settled.waiting)
        ]
        await for_each(paths, look, limit=CONCURRENT_HEADS)
        found.sort(key=lambda one: one.theirs.path)
        return found

    def _here(self, session: SessionId) -> _Here:
        row = self._journal.session(session)
        return _Here(
            dict(self._journal.tree(row.root)) if row is not None else {},
            {known.key: known for known in self._journal.objects_below(keys.session_prefix(session))},
            busy_test(self._journal, session),
        )

    def _node(self, session: SessionId, path: bytes) -> Node | None:
        number = self._journal.resolve(session, path)
        return self._journal.node(number) if number is not None else None

    # --- one object

    async def _settle_one(
        self, session: SessionId, manifest: Manifest, found: _Found, settled: Settled
    ) -> None:
        theirs, entry = found.theirs, found.entry
        node = self._node(session, theirs.path)
        if entry is not None and node is not None and _same_kind(theirs, entry):
            if _has_content(theirs, entry):
                self._note_same(session, theirs, entry, node)
                return
            if await self._is_grown_log(theirs, entry):
                self._adopt(session, theirs, entry, node, settled)
                return
        if not theirs.is_directory:
            if not await self._keep_aside(found):
                raise UnavailableError(f"{theirs.key} moved while it was kept aside", remedy="try again")
            settled.files += 1
            settled.size_bytes += theirs.size_bytes
        if entry is not None and node is not None:
            may_begin = theirs.size_bytes >= entry.size_bytes
            await self._sources.provide(session, manifest.generation, entry, node, always=may_begin)
        with self._journal.transaction():
            self._journal.forget_named(theirs.key)
            self._journal.put_object(known_object(theirs, 0))
            self._journal.mark(theirs.key, session, self._clock.wall_ns())

    def _note_same(self, session: SessionId, theirs: RemoteEntry, entry: ManifestEntry, node: Node) -> None:
        """The bytes are the generation's; other attributes are put back."""
        wanted = FileAttributes(entry.mode, entry.uid, entry.gid, entry.mtime_ns)
        with self._journal.transaction():
            self._journal.put_object(known_object(theirs, node.number))
            if stat.S_ISREG(entry.mode):
                self._journal.name_object(theirs.key)
            if theirs.attributes != wanted:
                self._journal.mark(theirs.key, session, self._clock.wall_ns())

    async def _is_grown_log(self, theirs: RemoteEntry, entry: ManifestEntry) -> bool:
        """Whether a log of the generation only grew: proven by its first bytes."""
        if not stat.S_ISREG(entry.mode) or not _LOGS.match(entry.path):
            return False
        if not entry.sha256 or theirs.size_bytes <= entry.size_bytes:
            return False
        if entry.size_bytes > PROOF_BYTES and not entry.blocks:
            return False
        digest = hashlib.sha256()
        try:
            for index, start in enumerate(range(0, entry.size_bytes, BLOCK_BYTES)):
                end = min(start + BLOCK_BYTES, entry.size_bytes)
                raw = await self._store.read(
                    theirs.key,
                    byte_range=ByteRange(start, end),
                    expected=Token(theirs.token),
                    tries=READ_TRIES,
                )
                if entry.blocks and hashlib.sha256(raw).hexdigest() != entry.blocks[index]:
                    return False
                digest.update(raw)
        except (PreconditionFailedError, ObjectNotFoundError):
            return False
        return digest.hexdigest() == entry.sha256

    def _adopt(
        self,
        session: SessionId,
        theirs: RemoteEntry,
        entry: ManifestEntry,
        node: Node,
        settled: Settled,
    ) -> None:
        """Take over a log that grew; the generation's bytes are its first ones."""
        theirs = replace(theirs, xattrs=dict(entry.xattrs))
        settled.adopted.add(node.number)
        with self._journal.transaction():
            if node.present:
                self._exact.wait_for_drop(session, node.number, theirs)
                settled.waiting.add(node.number)
                return
            rows = TreeRows(self._journal, session)
            rows.set_attributes(node.number, theirs)
            rows.set_content(node.number, theirs)
            self._journal.name_prefix(theirs.key, Prefix(entry.sha256, entry.size_bytes))

    async def _keep_aside(self, found: _Found) -> bool:
        kept = self._journal.conflict_of(found.stat.key)
        if kept and found.theirs.sha256:
            # A process that stopped here may have kept it already.
            before = await self._store.head(kept, tries=READ_TRIES)
            if before is not None and _content_of(before) == (found.theirs.sha256, found.theirs.size_bytes):
                return True
        return await self._conflicts.keep_aside(found.stat.key, found.stat)

    # --- what the generation has

    async def _put_back_missing(
        self, survey: Survey, manifest: Manifest, entries: dict[bytes, ManifestEntry], settled: Settled
    ) -> None:
        """Owe what the generation names and the bucket does not have under its key (any more)."""
        missing: list[tuple[str, ManifestEntry, Node]] = []
        here = self._here(survey.session)
        for path, entry in entries.items():
            key = keys.live_key(survey.session, path, is_directory=stat.S_ISDIR(entry.mode))
            node = here.nodes.get(path)
            if node is None or node.number in settled.waiting or (key is not None and key in survey.listed):
                continue
            if key is None or not here.is_busy(key):
                missing.append((key or "", entry, node))

        async def one(item: tuple[str, ManifestEntry, Node]) -> None:
            key, entry, node = item
            await self._sources.provide(survey.session, manifest.generation, entry, node)
            if key:
                with self._journal.transaction():
                    self._journal.drop_object(key)
                    self._journal.mark(key, survey.session, self._clock.wall_ns())

        await for_each(missing, one, limit=_CONCURRENT)


def _same_kind(theirs: RemoteEntry, entry: ManifestEntry) -> bool:
    return stat.S_IFMT(theirs.attributes.mode) == stat.S_IFMT(entry.mode)


def _has_content(theirs: RemoteEntry, entry: ManifestEntry) -> bool:
    if stat.S_ISDIR(entry.mode):
        return True
    if stat.S_ISLNK(entry.mode):
        return theirs.target == entry.target
    if not theirs.sha256 or not entry.sha256:
        return theirs.token == entry.token
    return (theirs.sha256, theirs.size_bytes) == (entry.sha256, entry.size_bytes)


def _content_of(found: ObjectStat) -> tuple[str, int]:
    user = found.metadata.user if found.metadata else {}
    return user.get("sessionfs-sha256", ""), found.size_bytes
