"""Cuts: a session at one moment, taken while programs go on.

Order: the databases that somebody may write are pinned; the log is held; the daemon freezes what is changing and names the log's position; the log is
applied up to there; the tree is noted, and in the same transaction everything settled counts as named. What an earlier owner left, or what a
request under way may still replace, is remembered until it was copied aside: a commit that fails before that must not forget it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog
import trio

from sessionfs.formats.commit_messages import Barrier, BarrierHeld, FrozenAt, FrozenImage, Thaw
from sessionfs.model import keys, names
from sessionfs.model.clock import Clock
from sessionfs.model.errors import InternalError, LocalDiskError, SessionFSError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.databases import DatabaseCut, Databases
from sessionfs.replication.commit.noting import Noted, Noting
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.attempts import REMEMBERED_NS
from sessionfs.replication.uploads.authority import Authority
from sessionfs.replication.uploads.sqlite_image import database_path_of
from sessionfs.replication.uploads.subjects import Prepared
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import Mark, UploadJournal

_PINS = 3
_CONCURRENT_COPIES = 8
_log = structlog.get_logger("sessionfs.commit")


class Freezer(Protocol):
    """The daemon, which keeps the bytes of a cut."""

    async def barrier(self, request: Barrier) -> BarrierHeld:
        """Freeze what is changing, between two operations of programs."""

    async def frozen_image(self, request: FrozenImage) -> FrozenAt:
        """Say where frozen bytes are."""

    async def thaw(self, request: Thaw) -> None:
        """Let them go."""


class Cutting(Protocol):
    """The intent log, applied up to a cut."""

    @property
    def position(self) -> int:
        """Up to where it was applied."""

    def apply(self) -> bool:
        """Apply what there is."""

    def apply_up_to(self, limit: int) -> None:
        """Apply what is before a position."""

    def held(self) -> AbstractAsyncContextManager[None]:
        """Let the tree stand still inside the block."""


@dataclass(slots=True)
class Cut:
    """A session at one moment.

    Attributes:
        row: The session.
        epoch: This host's epoch at the cut.
        noted: Everything it has.
        databases: Images of its databases, by path.
        versions: Of the databases' rows at the cut.
        wanted: Keys that were owed.
        adopted: Keys whose objects are copied aside before they are named.
        pause_seconds: How long programs had to wait.
    """

    row: SessionRow
    epoch: int
    noted: list[Noted]
    databases: dict[bytes, DatabaseCut]
    versions: dict[bytes, int]
    wanted: list[str]
    adopted: list[str]
    pause_seconds: float


class Cuts:
    """Takes cuts.

    Args:
        journal: The tree, and what the bucket holds.
        clock: Times.
        log: Applied up to the cut.
        freezer: The daemon.
        uploader: Is given the images of databases.
        authority: This host's epoch.
        noting: Notes trees.
        databases: Pins and images databases.
    """

    def __init__(
        self,
        journal: UploadJournal,
        clock: Clock,
        *,
        log: Cutting,
        freezer: Freezer,
        uploader: Uploader,
        authority: Authority,
        noting: Noting,
        databases: Databases,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._log = log
        self._freezer = freezer
        self._uploader = uploader
        self._authority = authority
        self._noting = noting
        self._databases = databases

    async def has_moved_database(self, session: SessionId) -> bool:
        """Whether a database has changed that no record tells of."""
        return await self._databases.has_moved(session, self._noting.written_paths(session))

    def note_committed(self, database: DatabaseCut) -> None:
        """A generation has a database's image."""
        self._databases.note_committed(database)

    async def take(self, row: SessionRow, commit: str, *, confirms_deletions: bool) -> Cut:
        """Pin the databases and note the tree, both at one moment as far as that is possible."""
        databases: dict[bytes, DatabaseCut] = {}
        self._log.apply()
        try:
            for left in reversed(range(_PINS)):
                marks = self._noting.marks(row.id)
                owed = self._noting.owed_numbers(row.id)
                changing = [*owed.values(), *self._noting.written_paths(row.id)]
                fresh = [path for path in changing if path not in databases]
                databases |= await self._databases.pin(row.id, fresh, set(owed.values()))
                async with self._log.held():
                    held = await self._hold(row, commit, databases, marks, is_last=not left)
                    if held is not None:
                        return self._note(row, held, databases, confirms_deletions=confirms_deletions)
                # A first write between the pins and the barrier, or a log that was not read far enough: once more.
                await self._freezer.thaw(Thaw(commit))
                self._log.apply()
        except BaseException:
            for database in databases.values():
                database.close()
            with trio.CancelScope(shield=True):
                await self._thaw(commit)
            raise
        raise InternalError("the last try takes the cut, or says why not")

    async def _hold(
        self,
        row: SessionRow,
        commit: str,
        databases: dict[bytes, DatabaseCut],
        pinned: Mapping[str, Mark],
        *,
        is_last: bool,
    ) -> BarrierHeld | None:
        """Take the cut while the log is held; None when it must be taken again: `pinned` is what was owed at the pins."""
        # Of this very position: what became owed while the databases were pinned is not among the daemon's newer records.
        owed = self._noting.owed_numbers(row.id)
        imaged = [number for number, path in owed.items() if path in databases]
        held = await self._freezer.barrier(
            Barrier(row.id, commit, sorted(owed), self._log.position, paths=owed, unkept=imaged)
        )
        self._log.apply_up_to(held.log_position)
        if not is_last and (held.is_behind or await self._unpinned(row.id, databases, pinned, owed)):
            return None
        if held.is_behind:
            raise UnavailableError(
                f"session {row.id} changes faster than its log is read", remedy="commit again"
            )
        return held

    async def _unpinned(
        self,
        session: SessionId,
        databases: Mapping[bytes, DatabaseCut],
        pinned: Mapping[str, Mark],
        owed: Mapping[int, bytes],
    ) -> list[bytes]:
        """Databases that became so since the pins: everything else was looked at then, and nothing has happened to it."""
        fresh = self._noting.owed_numbers(session, since=pinned)
        beside = {database_path_of(path) for path in fresh.values()} & {*owed.values()}
        paths = {*fresh.values(), *self._noting.written_among(owed), *beside} - databases.keys()
        return await self._databases.find(session, sorted(path for path in paths if path))

    def _note(
        self,
        row: SessionRow,
        held: BarrierHeld,
        databases: dict[bytes, DatabaseCut],
        *,
        confirms_deletions: bool,
    ) -> Cut:
        row = self._journal.session(row.id) or row
        frozen = {file.number: file for file in held.frozen}
        versions: dict[bytes, int] = {}
        now_ns = self._clock.wall_ns()
        epoch = self._authority.epoch(row.id)
        with self._journal.transaction():
            self._noting.mark_unrecorded(row.id, held.frozen, now_ns)
            for path in databases:
                # Marked anew also when it is owed: an upload that is under way has an image of another moment.
                key = keys.live_key(row.id, path, is_directory=False)
                if key is not None and self._journal.wanted(key) is not None:
                    self._journal.mark(key, row.id, now_ns)
                    work = self._journal.work(key)
                    versions[path] = work.version if work is not None else 0
            noted = self._noting.note(row, frozen)
            self._journal.forget_bases(now_ns - REMEMBERED_NS)
            away = [one.away for one in noted if one.away is not None]
            adopted = self._endangered(row.id, epoch, away)
            self._journal.name_settled(keys.session_prefix(row.id))
            for known in away:
                # Nobody keeps these bytes on this disk: whoever fetches and changes them must not take the only ones there are.
                self._journal.name_object(known.key)
            self._journal.update_session(row.id, changed=False)
            self._journal.set_meta(pending(row.id), "1")
            if confirms_deletions:
                self._journal.release_held(row.id)
            wanted = list(self._journal.owed_keys(row.id))
        return Cut(row, epoch, noted, databases, versions, wanted, adopted, held.pause_seconds)

    async def image_databases(self, cut: Cut) -> None:
        """Let SQLite copy what the pinned transactions show, and give the copies to the uploader.

        Raises:
            UnavailableError, LocalDiskError: No image of one of them.
        """
        for path, database in cut.databases.items():
            try:
                await self._databases.image(database)
            except (sqlite3.Error, OSError) as problem:
                shown = f"{cut.row.id}/{names.display(path)}"
                if isinstance(problem, OSError):
                    raise LocalDiskError(
                        f"no image of {shown}: {problem.strerror}", errno_number=problem.errno or 0
                    ) from None
                raise UnavailableError(
                    f"no image of the database {shown}: {problem}", remedy="commit again"
                ) from None
            key = keys.live_key(cut.row.id, path, is_directory=False)
            if key is not None:
                self._uploader.subjects.prepared[key] = Prepared(cut.versions.get(path, 0), database.prepare)

    def is_cold(self, session: str) -> bool:
        """Whether requests of another owner, who did not end, may still arrive: equal bytes may have equal tokens on his side."""
        return self._clock.wall_ns() < int(self._journal.meta(cold_until(session), "0"))

    def _endangered(self, session: SessionId, epoch: int, away: list[KnownObject]) -> list[str]:
        """Objects to copy aside before they are named; those of a commit that ended before it had copied them count as named, and are remembered."""
        prefix = keys.session_prefix(session)
        is_cold = self.is_cold(session)
        found = self._journal.endangered(prefix, epoch, all_of_them=is_cold)
        for known in away:
            is_replaced = is_cold or known.epoch < epoch or self._journal.is_base(known.key, known.token)
            if known.size_bytes and is_replaced and not self._journal.is_named(known.key):
                found.append(known.key)
        left = self._journal.meta(_unkept(session))
        if left:
            found = sorted({*found, *msgspec.json.decode(left, type=list[str])})
        if found:
            self._journal.set_meta(_unkept(session), msgspec.json.encode(found).decode())
        return found

    async def keep_adopted(self, cut: Cut) -> None:
        """Copy aside what a request under way may still replace.

        Raises:
            SessionFSError: The store refused or did not answer.
        """

        async def one(key: str) -> None:
            known = self._journal.object(key)
            if known is not None and known.size_bytes and not key.endswith("/"):
                await self._uploader.keeping.keep(known, self._journal.prefixes(key))

        await for_each(cut.adopted, one, limit=_CONCURRENT_COPIES)
        if cut.adopted:
            self._journal.set_meta(_unkept(cut.row.id), "")

    async def end(self, cut: Cut, commit: str) -> None:
        """Let go what was kept for a commit."""
        for path, database in cut.databases.items():
            key = keys.live_key(cut.row.id, path, is_directory=False)
            if key is not None:
                self._uploader.subjects.prepared.pop(key, None)
            database.close()
        await self._thaw(commit)

    async def _thaw(self, commit: str) -> None:
        try:
            await self._freezer.thaw(Thaw(commit))
        except SessionFSError as problem:
            _log.warning("frozen bytes not released", problem=str(problem))


def cold_until(session: str) -> str:
    """Name of the journal's note until when requests of the owner before may arrive, nanoseconds of the wall clock."""
    return f"cold_until:{session}"


def pending(session: str) -> str:
    """Name of the journal's note that a commit of a session is under way."""
    return f"commit_pending:{session}"


def _unkept(session: str) -> str:
    return f"unkept:{session}"
