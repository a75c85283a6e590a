"""Sessions coming back from the bucket: their trees, their bytes, and what other hosts changed.

Invariants:

* A session is asked for once, then the journal answers; one that is nowhere, or was removed, is not remembered.
* What a host takes over is said by the setting ``at`` and the manifest (``hydration/exact_trees.py``); of a session that is this host's, what it has
  here is the truth.
* Bytes given out verified against their sha256 (an object of another tool, which has none, is hashed and remembered), whole, or not at all.
* The journal is written between awaits only; what was learnt from the store is checked against it again first.
* Nothing is ever deleted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable

import trio

from sessionfs.formats.link_message import Entry, SessionRefreshed
from sessionfs.formats.link_messages import Fetched, SessionFound
from sessionfs.model import names, roots
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AccessError,
    CorruptDataError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.bucket_listing import BucketListing
from sessionfs.replication.hydration.comparison import Comparison, Differences, is_ours
from sessionfs.replication.hydration.exact_comparison import ExactComparison
from sessionfs.replication.hydration.exact_trees import generation_of
from sessionfs.replication.hydration.fetches.block_fetch import BlockFetch
from sessionfs.replication.hydration.fetches.content_fetch import ContentFetcher
from sessionfs.replication.hydration.fetches.damage import Damage
from sessionfs.replication.hydration.fetches.fetching import ObjectFetcher
from sessionfs.replication.hydration.fetches.file_fetch import FileFetch, described
from sessionfs.replication.hydration.news import News
from sessionfs.replication.hydration.one_generation import OneGeneration
from sessionfs.replication.hydration.read_only_trees import ReadOnlyTrees, is_read_only_tree
from sessionfs.replication.hydration.survey import Survey
from sessionfs.replication.hydration.takeover.adoption import Adoption, SetAside
from sessionfs.replication.hydration.takeover.catch_up import Base, CatchUp, CaughtUp
from sessionfs.replication.hydration.takeover.generation_sources import GenerationSources
from sessionfs.replication.hydration.takeover.tail import Tail
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.notes import HELD
from sessionfs.replication.remote_tree import RemoteTreeReader
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploads.conflicts import RaiseEvent
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal


class Hydrator:
    """Hydrates sessions.

    Args:
        journal: What is known here.
        store: The bucket.
        layout: The state directory.
        settings: Which files are private, and what is taken over.
        clock: Ages, and names of staged files.
        exclusions: Names that are not hydrated.
        raise_event: Told of conflicts, corrupt objects and keys that cannot be shown.
        listing_seconds: How old a list of sessions may be.
        set_aside: Puts what a session owes aside when its journal was lost and another host owned it since.

    Attributes:
        blocks: Brings large files block by block.
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
        set_aside: SetAside | None = None,
    ) -> None:
        self._journal = journal
        self._raise_event = raise_event
        owner = (os.geteuid(), os.getegid())
        self._reader = RemoteTreeReader(
            store, exclusions, private_globs=settings.private_globs, owner=owner, at=settings.at
        )
        self._adoption = Adoption(journal, store, layout, clock, raise_event=raise_event, set_aside=set_aside)
        comparison = Comparison(journal, self._reader, raise_event=raise_event)
        exact = ExactComparison(journal)
        self._news = News(journal, self._reader, comparison=comparison, exact=exact, at=settings.at)
        self._one_generation = OneGeneration(
            journal, self._reader, comparison=comparison, exact=exact, news=self._news,
            generation=generation_of(settings.at),
        )  # fmt: skip
        self._damage = Damage(self._reader.chain)
        self._fetcher = ObjectFetcher(store, layout, clock)
        content = ContentFetcher(store, self._reader.chain, self._fetcher)
        self._trees = ReadOnlyTrees(
            journal, store, self._reader, fetcher=self._fetcher, content=content, owner=owner
        )
        self._files = FileFetch(
            journal, self._reader, fetcher=self._fetcher, content=content, comparison=comparison, exact=exact,
            read_only=self._trees, raise_event=raise_event,
        )  # fmt: skip
        self.blocks = BlockFetch(journal, store, layout, files=self._files, content=content)
        sources = GenerationSources(journal, store, layout, clock, content)
        tail = Tail(
            journal, store, clock, self._reader, exact=exact, sources=sources, raise_event=raise_event
        )
        self._catch_up = CatchUp(
            journal, self._reader, comparison=comparison, exact=exact, tail=tail, sources=sources
        )
        self._locks: dict[str, trio.Lock] = {}
        self._first_version = clock.wall_ns()
        self._takings: Counter[str] = Counter()
        self._redescribed: dict[str, dict[int, int]] = {}
        self._listing = BucketListing(journal, store, clock, listing_seconds=listing_seconds)

    # --- sessions

    async def open_session(self, session: str) -> SessionFound:
        """Say what is known of a session, or of a read-only tree; at first use, read it from the bucket.

        Raises:
            InvalidSessionIdError: The text is no session id.
            InvalidRequestError: A generation of the past is asked for, and changes of the session are not in the bucket yet.
            UnavailableError, AccessError: It is not known here, and the store does not answer.
            CorruptDataError, UnsupportedFormatError: Its manifest cannot be read.
        """
        if is_read_only_tree(session):
            async with self._locks.setdefault(session, trio.Lock()):
                root = await self._trees.open(session)
                return self._read_only(session, root)
        identifier = roots.unit_id(session)
        async with self._locks.setdefault(session, trio.Lock()):
            if self._one_generation.is_wanted:
                return self._read_only(session, await self._one_generation.open(identifier))
            row = self._journal.session(session)
            if row is not None and row.tree_of:
                await self._one_generation.leave(identifier)
            here = self._root(identifier) is not None
            # Removed here, and its deletes are owed: the bucket's remains are not the session.
            if row is not None and (row.known if here else row.written):
                return self._found(identifier)
            return await self._open(identifier)

    async def _open(self, session: SessionId) -> SessionFound:
        here = self._root(session) is not None
        try:
            survey = await self._reader.survey(session, is_ours=here)
            tree = await self._reader.tree(survey) if survey.exists else None
        except (UnavailableError, AccessError):
            if self._root(session) is None:
                raise
            return self._found(session)
        except CorruptDataError as problem:
            raise await self._damage.of_manifest(session, problem) from None
        if tree is None:
            if self._root(session) is not None:
                self._journal.update_session(session, known=True)
            elif survey.is_removed:
                self._listing.note_removed(session, survey.manifest_token)
            return self._found(session)
        if self._root(session) is not None:
            await self._adoption.merge(session, tree)
            self._news.note_merged(tree.survey)
        else:
            self._news.add(tree)
        self._announce_skipped(tree.survey)
        return self._found(session)

    async def list_sessions(self) -> list[str]:
        """Name the sessions in the bucket and here; at most ``listing_seconds`` old.

        Raises:
            UnavailableError, AccessError: The store does not answer, and never did.
        """
        return await self._listing.sessions()

    async def list_shared_roots(self) -> list[str]:
        """Name the shared roots in the bucket and here; as `list_sessions`."""
        return await self._listing.shared_roots()

    async def list_generations(self, session: str) -> list[int]:
        """Name the generations of a session that can be shown, ascending.

        Raises:
            InvalidSessionIdError: The text is no session id.
            UnavailableError, AccessError: The store does not answer.
            CorruptDataError, UnsupportedFormatError: The newest manifest cannot be read.
        """
        return await self._trees.generations(roots.unit_id(session))

    # --- what other hosts change

    def version(self, session: str) -> int:
        """Count what was taken over in a session; no two processes count from the same number."""
        return self._first_version + self._takings[session]

    async def refresh_session(self, session: str, known: int | None = None) -> SessionRefreshed:
        """Compare a known session with the bucket and take over what changed there and is clean here.

        ``files`` may name anything that is on this disk and old (or gone) in the bucket, links and directories too: the
        daemon drops it from the working copy and logs EVICTED; the next comparison finishes it.

        Args:
            session: The session.
            known: The version that whoever asks has heard; None when everything was.

        Raises:
            UnavailableError, AccessError, CorruptDataError, UnsupportedFormatError: Nothing was changed.
        """
        if is_read_only_tree(session):
            return SessionRefreshed([], [], foreign=False)
        identifier = roots.unit_id(session)
        async with self._locks.setdefault(session, trio.Lock()):
            row = self._journal.session(session)
            if row is None:
                return SessionRefreshed([], [], foreign=True)
            if self._catch_up.is_behind(session) and is_ours(row):
                base = await self._catch_up.base_of(identifier)
                found = (await self._run_catch_up(identifier, base)).found
            elif self._one_generation.is_wanted and not is_ours(row):
                found = await self._counted(session, self._one_generation.compare(row))
            else:
                found = await self._counted(session, self._news.take(row))
            news = self._refreshed(session, found)
            return self.completed(session, news, known) or news

    def completed(
        self, session: str, news: SessionRefreshed | None, known: int | None
    ) -> SessionRefreshed | None:
        """Add to an answer what whoever asks did not hear: then every directory may have changed.

        Args:
            session: The session.
            news: What was taken over for this answer, None for nothing.
            known: As for `refresh_session`.
        """
        told = 0 if news is None or _is_nothing(news) else 1
        root = self._root(roots.unit_id(session))
        if known is None or root is None or known + told == self.version(session):
            return news
        every = Differences(
            directories=self._journal.directories_below(root),
            files=set(news.files) if news is not None else set(),
        )
        # Of directories that changed here since, the journal knows less than the disk.
        changed = self._redescribed.get(session, {})
        every.attributes = {number for number, version in changed.items() if version > known}
        return self._refreshed(session, every)

    async def _counted(self, session: str, taking: Awaitable[Differences]) -> Differences:
        """Take changes over; what is begun counts, also when it is not finished or nobody hears of it."""
        found = None
        try:
            found = await taking
        finally:
            if found is None or found.directories or found.files or found.attributes:
                self._takings[session] += 1
                redescribed = found.attributes if found is not None else ()
                self._redescribed.setdefault(session, {}).update(
                    dict.fromkeys(redescribed, self.version(session))
                )
        return found

    async def _run_catch_up(self, session: SessionId, base: Base) -> CaughtUp:
        caught_up: list[CaughtUp] = []

        async def run() -> Differences:
            caught_up.append(await self._catch_up.run(session, base))
            return caught_up[0].found

        await self._counted(session, run())
        return caught_up[0]

    def _refreshed(self, session: str, found: Differences) -> SessionRefreshed:
        row = self._journal.session(session)
        attributes: list[Entry] = []
        for number in sorted(found.attributes):
            node, named = self._journal.node(number), self._journal.names_of(number)
            if node is not None and node.present and named:
                attributes.append(described(self._journal, named[0][1], number))
        paths: dict[int, bytes] = {}
        for number in (*found.files, *(entry.number for entry in attributes)):
            place = self._journal.path_of(number)
            if place is not None:
                paths[number] = place[0].encode() + (b"/" + place[1] if place[1] else b"")
        return SessionRefreshed(
            sorted(found.directories),
            sorted(found.files),
            foreign=row is None or not is_ours(row),
            attributes=attributes,
            paths=paths,
            version=self.version(session),
        )

    # --- a session becomes this host's

    async def catch_up(self, session: str, claim: Claim) -> SessionRefreshed | None:
        """Take over what others did, after a claim that brought news and before anything of the session is sent.

        Owed files of a time before the other owner were set aside already. Files of the answer that are on this disk are old: the daemon drops
        them, then `refresh_session` finishes them.

        Returns:
            What changed here, None for nothing.

        Raises:
            OwnershipLostError: A later owner has written there.
            UnavailableError, AccessError: Not done, or not all of it: the same call goes on.
        """
        if claim.is_presumed:
            return None
        identifier = roots.unit_id(session)
        async with self._locks.setdefault(session, trio.Lock()):
            base = Base(claim.epoch, claim.manifest, claim.manifest_token)
            if claim.manifest is None:
                base = await self._catch_up.base_of(identifier)
            found = (await self._run_catch_up(identifier, base)).found
            self._news.note_taken(session)
        news = self._refreshed(session, found)
        return None if _is_nothing(news) else news

    def is_behind(self, session: str) -> bool:
        """Whether taking over what others did was not finished: old bytes may be on this disk. A restart changes nothing of that."""
        return self._catch_up.is_behind(session)

    async def finish_catch_up(self, session: str) -> list[str]:
        """Go on with what `catch_up` left, before a commit.

        Returns:
            Files, as a person reads them, whose bytes on this disk are still old: a program has them open. No commit can say what they are.

        Raises:
            As `catch_up`.
        """
        if not self._catch_up.is_behind(session):
            return []
        identifier = roots.unit_id(session)
        async with self._locks.setdefault(session, trio.Lock()):
            if not self._catch_up.is_behind(session):
                # Somebody else finished it meanwhile. A commit may be under way since, and make another generation the base.
                return []
            caught_up = await self._run_catch_up(identifier, await self._catch_up.base_of(identifier))
        places = (self._journal.path_of(number) for number in sorted(caught_up.waiting))
        return [names.display(place[1]) for place in places if place is not None]

    # --- files

    async def fetch(self, number: int) -> Fetched:
        """Bring a remote file's verified bytes into staging; requests for the same file at the same time share one answer.

        Raises:
            ObjectNotFoundError: No such file (any more).
            CorruptDataError: Its bytes do not verify, or no object holds them; it names the file, its generation, and what was tried.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: The store does not give it; or another host replaces it again and again.
        """
        return await self._files.fetch(number)

    def problem_of(self, number: int) -> str:
        """Why a file's bytes could not be had when they were last wanted, "" when nothing is known against it."""
        return self._files.problem_of(number)

    # --- what the journal says

    def _root(self, session: SessionId) -> int | None:
        return self._journal.child(ROOT_NUMBER, session.encode())

    def _found(self, session: SessionId) -> SessionFound:
        root = self._root(session)
        row = self._journal.session(session)
        if root is None or row is None:
            return SessionFound(exists=False)
        entry = described(self._journal, session.encode(), root)
        return SessionFound(
            exists=True, root=entry, foreign=not is_ours(row), owned=row.owner_state == HELD,
            version=self.version(session),
        )  # fmt: skip

    def _read_only(self, tree: str, root: int | None) -> SessionFound:
        if root is None:
            return SessionFound(exists=False)
        entry = described(self._journal, tree.encode(), root)
        return SessionFound(exists=True, root=entry, foreign=False, read_only=True)

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


def _is_nothing(news: SessionRefreshed) -> bool:
    return not (news.directories or news.files or news.attributes)
