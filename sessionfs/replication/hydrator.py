"""Sessions coming back from the bucket: their trees, their bytes, and what other hosts changed.

Invariants:

* A session is asked for once, then the journal answers; one that is nowhere is not remembered.
* Bytes given out verified against their sha256 (an object of another tool, which has none, is hashed and remembered), whole, or not at all.
* The journal is written between awaits only; what was learnt from the store is checked against it again first.
"""

from __future__ import annotations

import stat
from dataclasses import replace

import msgspec
import trio

from sessionfs.formats import extended_attributes
from sessionfs.formats.link_message import Entry, SessionRefreshed
from sessionfs.formats.link_messages import (
    Fetched,
    SessionFound,
)
from sessionfs.model import keys, names
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AccessError,
    CorruptDataError,
    InternalError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.adoption import Adoption
from sessionfs.replication.hydration.comparison import Comparison, Differences
from sessionfs.replication.hydration.fetching import ObjectFetcher
from sessionfs.replication.hydration.tree_rows import TreeRows
from sessionfs.replication.remote_tree import RemoteEntry, RemoteTreeReader, Survey
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.replication.uploads.conflicts import RaiseEvent
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

MOVES = 3
"""How often a fetch follows an object that another host replaces meanwhile."""


class _Flight:
    """A fetch under way, for everybody who asks for the same file."""

    __slots__ = ("error", "landed", "result")

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.result: Fetched | None = None
        self.error: SessionFSError = UnavailableError("the fetch was cancelled", remedy="try again")


class Hydrator:
    """Hydrates sessions.

    Args:
        journal: What is known here.
        store: The bucket.
        layout: The state directory.
        settings: Which files are private.
        clock: Ages, and names of staged files.
        exclusions: Names that are not hydrated.
        raise_event: Told of conflicts, corrupt objects and keys that cannot be shown.
        listing_seconds: How old a list of sessions may be.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        settings: ReplicationSettings,
        clock: Clock,
        exclusions: Exclusions,
        *,
        raise_event: RaiseEvent,
        listing_seconds: float = 5.0,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._raise_event = raise_event
        self._listing_seconds = listing_seconds
        self._reader = RemoteTreeReader(store, exclusions, private_globs=settings.private_globs)
        self._adoption = Adoption(journal, store, layout, clock, raise_event=raise_event)
        self._comparison = Comparison(journal, self._reader, raise_event=raise_event)
        self._fetcher = ObjectFetcher(store, layout, clock)
        self._locks: dict[str, trio.Lock] = {}
        self._flights: dict[int, _Flight] = {}
        self._listed: list[SessionId] = []
        self._listed_at = float("-inf")
        self._corrupt: set[tuple[str, str]] = set()

    # --- sessions

    async def open_session(self, session: str) -> SessionFound:
        """Say what is known of a session; at first use, read its tree from the bucket.

        Raises:
            InvalidSessionIdError: The text is no session id.
            UnavailableError, AccessError: It is not known here, and the store does not answer.
            CorruptDataError, UnsupportedFormatError: Its manifest cannot be read.
        """
        identifier = names.session_id(session)
        async with self._locks.setdefault(session, trio.Lock()):
            row = self._journal.session(session)
            here = self._root(identifier) is not None
            # Removed here, and its deletes are owed: the bucket's remains are not the session.
            if row is not None and (row.known if here else row.written):
                return self._found(identifier)
            try:
                tree = await self._reader.load(identifier)
            except (UnavailableError, AccessError):
                if self._root(identifier) is None:
                    raise
                return self._found(identifier)
            if tree is None:
                if self._root(identifier) is not None:
                    self._journal.update_session(session, known=True)
                return self._found(identifier)
            if self._root(identifier) is not None:
                await self._adoption.merge(identifier, tree)
            else:
                with self._journal.transaction():
                    TreeRows(self._journal, identifier).add_session(tree)
            self._comparison.note_read(tree.survey)
            self._announce_skipped(tree.survey)
            return self._found(identifier)

    async def list_sessions(self) -> list[str]:
        """Name the sessions in the bucket and here; at most ``listing_seconds`` old.

        Raises:
            UnavailableError, AccessError: The store does not answer, and never did.
        """
        now_seconds = self._clock.elapsed_seconds()
        if now_seconds - self._listed_at >= self._listing_seconds:
            try:
                _, prefixes = await self._store.list_all(
                    keys.SESSIONS_PREFIX, whole_segments=True, tries=READ_TRIES
                )
            except (UnavailableError, AccessError):
                if self._listed_at == float("-inf"):
                    raise
            else:
                found = (keys.session_of_prefix(prefix) for prefix in prefixes)
                self._listed = [session for session in found if session is not None]
                self._listed_at = now_seconds
        rows = self._journal.sessions()
        here = {row.id for row in rows if self._root(row.id) is not None}
        removed = {row.id for row in rows if row.written} - here
        return sorted(({*self._listed} | here) - removed)

    async def refresh_session(self, session: str) -> SessionRefreshed:
        """Compare a known session with the bucket and take over what changed there and is clean here.

        ``files`` may name anything that is on this disk and old (or gone) in the bucket, links and directories too: the
        daemon drops it from the working copy and logs EVICTED; the next comparison finishes it.

        Raises:
            UnavailableError, AccessError, CorruptDataError, UnsupportedFormatError: Nothing was changed.
        """
        identifier = names.session_id(session)
        async with self._locks.setdefault(session, trio.Lock()):
            if self._journal.session(session) is None:
                return SessionRefreshed([], [], foreign=True)
            return self._refreshed(session, await self._comparison.compare(identifier))

    def _refreshed(self, session: str, found: Differences) -> SessionRefreshed:
        row = self._journal.session(session)
        attributes: list[Entry] = []
        for number in sorted(found.attributes):
            node, named = self._journal.node(number), self._journal.names_of(number)
            if node is not None and node.present and named:
                attributes.append(self._entry(named[0][1], number))
        paths: dict[int, bytes] = {}
        for number in (*found.files, *(entry.number for entry in attributes)):
            place = self._journal.path_of(number)
            if place is not None:
                paths[number] = place[0].encode() + (b"/" + place[1] if place[1] else b"")
        return SessionRefreshed(
            sorted(found.directories),
            sorted(found.files),
            foreign=row is None or not row.written,
            attributes=attributes,
            paths=paths,
        )

    # --- files

    async def fetch(self, number: int) -> Fetched:
        """Bring a remote file's verified bytes into staging; requests for the same file at the same time share one answer.

        Raises:
            ObjectNotFoundError: No such file (any more).
            CorruptDataError: Its bytes do not verify, or no object holds them.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: The store does not give it; or another host replaces it again and again.
        """
        flight = self._flights.get(number)
        if flight is None:
            flight = self._flights[number] = _Flight()
            try:
                flight.result = await self._fetch(number)
            except SessionFSError as error:
                flight.error = error
                raise
            finally:
                del self._flights[number]
                flight.landed.set()
            return flight.result
        await flight.landed.wait()
        if flight.result is None:
            raise flight.error
        return flight.result

    # --- one fetch

    async def _fetch(self, number: int) -> Fetched:
        gone: set[str] = set()
        known: KnownObject | None = None
        for _ in range(MOVES + 1):
            node = self._file(number)
            self._take_pending(node)
            known = next((k for k in self._sources(node) if k.key not in gone), None)
            if known is None:
                raise CorruptDataError(f"no object holds the bytes of {self._shown(number)}")
            try:
                return self._fetched(number, known, *await self._fetcher.fetch(known))
            except (PreconditionFailedError, ObjectNotFoundError):
                if not await self._follow(number, known):
                    gone.add(known.key)
            except CorruptDataError as problem:
                self._report_corrupt(known, problem)
                raise
        return await self._fetch_prefix(number, known)

    async def _fetch_prefix(self, number: int, known: KnownObject | None) -> Fetched:
        """Take the first bytes of an object that grows faster than it can be read: their sha256 says whether they are the ones known."""
        busy = UnavailableError(
            f"{self._shown(number)} changes faster than it can be read", remedy="try again"
        )
        if known is None or not known.sha256:
            raise busy
        current = self._journal.object(known.key) or known
        try:
            return self._fetched(number, current, *await self._fetcher.fetch(replace(current, token="")))
        except (CorruptDataError, ObjectNotFoundError):
            raise busy from None

    def _sources(self, node: Node) -> list[KnownObject]:
        """Objects that hold a file's bytes, its own keys first."""
        own = self._journal.objects_of(node.number)
        live = [known for known in own if keys.parse_live_key(known.key) is not None]
        live.sort(key=lambda known: (known.sha256 != node.sha256, known.key))
        kept = [known for known in own if known not in live and known.sha256 == node.sha256]
        others = self._journal.objects_with(node.sha256) if node.sha256 else []
        return live + kept + [known for known in others if known.number != node.number]

    def _take_pending(self, node: Node) -> None:
        """Take over what a comparison found while the old bytes were still here."""
        if node.present:
            return
        for known in self._journal.objects_of(node.number):
            entry = self._comparison.pending(known.key)
            if entry is not None and len(self._journal.names_of(node.number)) == 1:
                live = keys.parse_live_key(known.key)
                if live is not None and stat.S_ISREG(entry.mode) and not self._comparison.is_busy(known.key):
                    self._replace(node.number, live.session, entry)

    async def _follow(self, number: int, known: KnownObject) -> bool:
        """Look what became of an object that is no longer the one known.

        Returns:
            Whether its key is worth another try.
        """
        live = keys.parse_live_key(known.key)
        if self._journal.object(known.key) != known:
            return True
        if live is None:
            return False
        entry = await self._reader.head_entry(known.key, live.path, None)
        if self._journal.object(known.key) != known:
            return True
        single = known.number == number and len(self._journal.names_of(number)) == 1
        if entry is None or not stat.S_ISREG(entry.mode) or not single or self._comparison.is_busy(known.key):
            return False
        self._replace(number, live.session, entry)
        return True

    def _replace(self, number: int, session: SessionId, entry: RemoteEntry) -> None:
        with self._journal.transaction():
            rows = TreeRows(self._journal, session)
            rows.set_attributes(number, entry)
            rows.set_content(number, entry)

    def _fetched(self, number: int, known: KnownObject, staged: str, sha256: str) -> Fetched:
        if self._journal.node(number) is None:
            self._fetcher.discard(staged)
            raise ObjectNotFoundError(f"file {number} was removed while it was fetched")
        with self._journal.transaction():
            if not known.sha256 and self._journal.object(known.key) == known:
                self._journal.put_object(replace(known, sha256=sha256))
            self._journal.update_node(number, sha256=sha256, size=known.size_bytes)
        name = self._journal.names_of(number)[0][1]
        return Fetched(staged, self._entry(name, number))

    def _report_corrupt(self, known: KnownObject, problem: CorruptDataError) -> None:
        """Announce a bad object once; it stays in the bucket as evidence."""
        if (known.key, known.token) in self._corrupt:
            return
        self._corrupt.add((known.key, known.token))
        live = keys.parse_live_key(known.key)
        fields = {
            "session_id": live.session if live else "",
            "path": names.display(live.path) if live else "",
            "key": known.key,
            "problem": problem.message,
        }
        self._raise_event("session.file.corrupt", fields)

    # --- what the journal says

    def _root(self, session: SessionId) -> int | None:
        return self._journal.child(ROOT_NUMBER, session.encode())

    def _found(self, session: SessionId) -> SessionFound:
        root = self._root(session)
        row = self._journal.session(session)
        if root is None or row is None:
            return SessionFound(exists=False)
        return SessionFound(exists=True, root=self._entry(session.encode(), root), foreign=not row.written)

    def _entry(self, name: bytes, number: int) -> Entry:
        node, entry = self._journal.node(number), self._journal.entry(name, number)
        if node is None or entry is None:
            raise InternalError(f"inode {number} has a name and no row")
        return msgspec.structs.replace(entry, xattrs=extended_attributes.unpack(node.xattrs))

    def _file(self, number: int) -> Node:
        node = self._journal.node(number)
        if node is None or not self._journal.names_of(number):
            raise ObjectNotFoundError(f"no file has the number {number}")
        if not stat.S_ISREG(node.mode):
            raise InternalError(f"{self._shown(number)} is no file: it has no bytes to fetch")
        return node

    def _shown(self, number: int) -> str:
        place = self._journal.path_of(number)
        return f"{place[0]}/{names.display(place[1])}" if place else f"file {number}"

    def _announce_skipped(self, survey: Survey) -> None:
        if survey.skipped:
            first = survey.skipped[0]
            fields: dict[str, str | int | float | bool] = {
                "session_id": survey.session,
                "keys": len(survey.skipped),
                "key": first.key,
                "reason": first.reason,
            }
            self._raise_event("session.keys.skipped", fields)
