"""One file's bytes, by its number: whole and verified, or an error.

* A file that follows the bucket (taken over live) is read from its objects; one that another host replaced meanwhile is followed. When none of them
  has the bytes that are known, they are looked for by their content: a reader of a file that only grew goes on with its first bytes.
* A file of exactly one generation never follows: its bytes are looked for by their content alone.
* The journal is written between awaits only; what was learnt from the store is checked against it again first.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import trio

from sessionfs.formats import extended_attributes
from sessionfs.formats.link_message import Entry
from sessionfs.formats.link_messages import Fetched
from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys, names, roots
from sessionfs.model.errors import (
    CorruptDataError,
    InternalError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.comparison import Comparison, is_busy
from sessionfs.replication.hydration.exact_comparison import ExactComparison
from sessionfs.replication.hydration.fetches.content_fetch import ContentFetcher, Named, Tried
from sessionfs.replication.hydration.fetches.fetching import ObjectFetcher
from sessionfs.replication.hydration.survey import RemoteEntry
from sessionfs.replication.hydration.tree_rows import TreeRows
from sessionfs.replication.remote_tree import RemoteTreeReader
from sessionfs.replication.uploads.conflicts import RaiseEvent
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal

MOVES = 3
"""How often a fetch follows an object that another host replaces meanwhile."""


class ReadOnlyFiles(Protocol):
    """Files of read-only trees; ``read_only_trees`` has the real ones."""

    async def fetch(self, tree: SessionId, path: bytes, node: Node) -> tuple[str, str]:
        """Bring one into staging; gives its name there, and its sha256."""

    async def wanted(self, tree: SessionId, path: bytes, node: Node) -> Wanted:
        """Say what one's bytes are and where they may be."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a file's bytes are by now.

    Attributes:
        named: Which, and where they may be by their content.
        objects: Objects that are known to have them, or to begin with them, the best first.
    """

    named: Named
    objects: list[KnownObject]


class _Flight:
    """A fetch under way, for everybody who asks for the same file."""

    __slots__ = ("error", "landed", "result")

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.result: Fetched | None = None
        self.error: SessionFSError = UnavailableError("the fetch was cancelled", remedy="try again")


class FileFetch:
    """Fetches files.

    Args:
        journal: What is known here.
        reader: Looks at objects that moved.
        fetcher: Downloads objects.
        content: Finds bytes by their content.
        comparison: Knows what changed of files whose old bytes were still here.
        exact: The same, of exact trees.
        read_only: Files of read-only trees.
        raise_event: Told of damage, once each.
    """

    def __init__(
        self,
        journal: UploadJournal,
        reader: RemoteTreeReader,
        *,
        fetcher: ObjectFetcher,
        content: ContentFetcher,
        comparison: Comparison,
        exact: ExactComparison,
        read_only: ReadOnlyFiles,
        raise_event: RaiseEvent,
    ) -> None:
        self._journal = journal
        self._reader = reader
        self._fetcher = fetcher
        self._content = content
        self._comparison = comparison
        self._exact = exact
        self._read_only = read_only
        self._raise_event = raise_event
        self._flights: dict[int, _Flight] = {}
        self._announced: set[tuple[str, str]] = set()
        self._problems: dict[int, str] = {}

    async def fetch(self, number: int) -> Fetched:
        """As ``Hydrator.fetch``."""
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

    def problem_of(self, number: int) -> str:
        """Why a file's bytes could not be had when they were last wanted, "" when they could, or nobody wanted them."""
        return self._problems.get(number, "")

    # --- for those who bring a part of a file

    async def wanted(self, number: int) -> Wanted:
        """Say what a file's bytes are and where they may be.

        Raises:
            ObjectNotFoundError: No such file (any more).
            UnavailableError, AccessError: Nothing is known.
        """
        session, path = self._place(number)
        node = self._file(number)
        if roots.is_tree_of_the_past(session):
            return await self._read_only.wanted(session, path, node)
        self._take_pending(node)
        node = self._file(number)
        objects = [] if self._exact.is_exact(session) else self._sources(node)
        return Wanted(self._named(session, path, node), objects)

    def described(self, number: int) -> Entry:
        """Give a file as the daemon wants it; it must have a name."""
        return described(self._journal, self._journal.names_of(number)[0][1], number)

    async def follow(self, number: int, known: KnownObject) -> None:
        """Take over what became of an object that is no longer the one known.

        Raises:
            UnavailableError, AccessError: Nothing is known.
        """
        await self._follow(number, known)

    def note_had(self, number: int) -> None:
        """Note that a file's bytes were had: whatever was wrong with them is over."""
        self._problems.pop(number, None)

    def note_lost(
        self, number: int, problem: CorruptDataError, place: tuple[SessionId, bytes] | None = None
    ) -> None:
        """Note, and announce once, that bytes of a file cannot be had.

        Args:
            number: The file.
            problem: Why.
            place: Its session and path, None to look them up.
        """
        self._problems[number] = problem.message
        place = self._journal.path_of(number) if place is None else place
        if place is not None:
            self._announce_lost(number, place, problem)

    # --- one fetch

    async def _fetch(self, number: int) -> Fetched:
        place = self._place(number)
        try:
            fetched = await self._fetch_at(number, *place)
        except CorruptDataError as problem:
            self.note_lost(number, problem, place)
            raise
        self._problems.pop(number, None)
        return fetched

    async def _fetch_at(self, number: int, session: SessionId, path: bytes) -> Fetched:
        node = self._file(number)
        if roots.is_tree_of_the_past(session):
            return self._fetched(number, None, *await self._read_only.fetch(session, path, node))
        self._take_pending(node)
        if not self._exact.is_exact(session):
            return await self._fetch_live(number, session, path)
        named = self._named(session, path, self._file(number))
        return self._fetched(number, None, *await self._content.fetch(named))

    async def _fetch_live(self, number: int, session: SessionId, path: bytes) -> Fetched:
        bad: set[str] = set()
        tried: Tried = {}
        known: KnownObject | None = None
        for _ in range(MOVES + 1):
            node = self._file(number)
            self._take_pending(node)
            known = next((k for k in self._sources(node) if k.key not in bad), None)
            if known is None:
                return await self._fetch_content(number, session, path, tried)
            try:
                blocks = self._journal.blocks(known.sha256) if known.sha256 else ()
                return self._fetched(number, known, *await self._fetcher.fetch(known, blocks=blocks))
            except (PreconditionFailedError, ObjectNotFoundError):
                if not await self._follow(number, known):
                    bad.add(known.key)
            except CorruptDataError as problem:
                self.note_corrupt(known, problem)
                tried[known.key, known.token] = problem.message.removeprefix(known.key).strip()
                bad.add(known.key)
        return await self._fetch_prefix(number, session, path, known)

    async def _fetch_prefix(
        self, number: int, session: SessionId, path: bytes, known: KnownObject | None
    ) -> Fetched:
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
            pass
        try:
            return await self._fetch_content(number, session, path, {})
        except CorruptDataError:
            raise busy from None

    async def _fetch_content(self, number: int, session: SessionId, path: bytes, tried: Tried) -> Fetched:
        """Find the bytes wherever they are: copied aside, or the first ones of a longer object."""
        node = self._file(number)
        if not node.sha256:
            raise CorruptDataError(f"no object holds the bytes of {self._shown(number)}")
        return self._fetched(
            number, None, *await self._content.fetch(self._named(session, path, node), tried)
        )

    def _named(self, session: SessionId, path: bytes, node: Node) -> Named:
        row = self._journal.session(session)
        own = (known for known in self._journal.objects_of(node.number) if keys.parse_live_key(known.key))
        token = next((known.token for known in own if known.sha256 == node.sha256), "")
        entry = ManifestEntry(
            path,
            node.mode,
            node.size_bytes,
            node.sha256,
            token,
            blocks=self._journal.blocks(node.sha256),
        )
        return Named(session, (row.tree_of or row.generation) if row is not None else 0, entry)

    def _sources(self, node: Node) -> list[KnownObject]:
        """Objects that hold a file's bytes, its own keys first."""
        own = [known for known in self._journal.objects_of(node.number) if known.token]
        live = [known for known in own if keys.parse_live_key(known.key) is not None]
        live.sort(key=lambda known: (known.sha256 != node.sha256, known.key))
        kept = [known for known in own if known not in live and known.sha256 == node.sha256]
        others = self._journal.objects_with(node.sha256) if node.sha256 else []
        return live + kept + [known for known in others if known.number != node.number and known.token]

    def _take_pending(self, node: Node) -> None:
        """Take over what a comparison found while the old bytes were still here."""
        if node.present:
            return
        self._exact.take_pending(node)
        for known in self._journal.objects_of(node.number):
            entry = self._comparison.pending(known.key)
            if entry is not None and len(self._journal.names_of(node.number)) == 1:
                live = keys.parse_live_key(known.key)
                if (
                    live is not None
                    and stat.S_ISREG(entry.mode)
                    and not is_busy(self._journal, known.key, entry.write_id)
                ):
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
        if (
            entry is None
            or not stat.S_ISREG(entry.mode)
            or not single
            or is_busy(self._journal, known.key, entry.write_id)
        ):
            return False
        self._replace(number, live.session, entry)
        return True

    def _replace(self, number: int, session: SessionId, entry: RemoteEntry) -> None:
        with self._journal.transaction():
            rows = TreeRows(self._journal, session)
            rows.set_attributes(number, entry)
            rows.set_content(number, entry, may_have_grown=True)

    def _fetched(self, number: int, known: KnownObject | None, staged: str, sha256: str) -> Fetched:
        if self._journal.node(number) is None:
            self._fetcher.discard(staged)
            raise ObjectNotFoundError(f"file {number} was removed while it was fetched")
        with self._journal.transaction():
            if known is not None and not known.sha256 and self._journal.object(known.key) == known:
                self._journal.put_object(replace(known, sha256=sha256))
            self._journal.update_node(number, sha256=sha256)
            if known is not None:
                self._journal.update_node(number, size=known.size_bytes)
        return Fetched(staged, self.described(number))

    # --- what is damaged

    def note_corrupt(self, known: KnownObject, problem: CorruptDataError) -> None:
        """Announce a bad object once; it stays in the bucket as evidence."""
        live = keys.parse_live_key(known.key)
        session, path = (live.session, live.path) if live else ("", b"")
        self._announce((known.key, known.token), session, path, problem)

    def _announce_lost(self, number: int, place: tuple[SessionId, bytes], problem: CorruptDataError) -> None:
        """Announce once that a file's bytes are nowhere, unless one of its objects was announced already."""
        if any((known.key, known.token) in self._announced for known in self._journal.objects_of(number)):
            return
        node = self._journal.node(number)
        shown = "/".join((place[0], names.display(place[1])))
        self._announce((shown, node.sha256 if node is not None else ""), *place, problem)

    def _announce(self, what: tuple[str, str], session: str, path: bytes, problem: CorruptDataError) -> None:
        if what in self._announced:
            return
        self._announced.add(what)
        fields = {
            "session_id": roots.split_tree(session)[0],
            "path": names.display(path),
            "key": what[0],
            "problem": problem.message,
        }
        self._raise_event("session.file.corrupt", fields)

    # --- what the journal says

    def _place(self, number: int) -> tuple[SessionId, bytes]:
        place = self._journal.path_of(number)
        if place is None:
            raise ObjectNotFoundError(f"no file has the number {number}")
        return place

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


def described(journal: UploadJournal, name: bytes, number: int) -> Entry:
    """Give an inode as the daemon wants it, with its extended attributes."""
    node, entry = journal.node(number), journal.entry(name, number)
    if node is None or entry is None:
        raise InternalError(f"inode {number} has a name and no row")
    return msgspec.structs.replace(entry, xattrs=extended_attributes.unpack(node.xattrs))
