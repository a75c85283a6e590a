"""Claims, commits and releases sessions, whoever asks: a program's first write, a command, a turn, the timer, the end of the mount.

Rules:

* A claim with news is over only when what others did was taken over: what this host still owed is kept aside first, then the bucket is compared.
  Nothing of the session is sent before that.
* A commit of a session that is not owned claims it first.
* A commit that failed is tried again by the timer, and under ``strict`` without waiting for it: programs cannot write until it succeeds.
* A session that was lost is set aside in the background, as soon as the store answers.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import structlog
import trio

from sessionfs.formats.commit_messages import Committed
from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.formats.ownership_messages import Claimed, SessionState
from sessionfs.model import roots
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    ConflictError,
    ObjectNotFoundError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.replication.commit.committer import Committer
from sessionfs.replication.commit.cutting import cold_until
from sessionfs.replication.hydrator import Hydrator
from sessionfs.replication.ownership.estrangement import Estrangement
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.notes import HELD, LOST, RELEASED
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.attempts import REMEMBERED_NS
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

EPOCH_ATTRIBUTE = "user.sessionfs.epoch"
"""On the root of a session's working copy: which owner it is of, should the journal be lost."""

_log = structlog.get_logger("sessionfs.sessions")


class SessionControl:
    """Sessions as a whole.

    Args:
        journal: What is here.
        ownership: Who owns what.
        estrangement: Keeps aside what a lost session owed.
        committer: Commits.
        hydrator: Takes over what others did.
        uploader: Woken when a session may be sent.
        layout: Where working copies are.
        settings: The timer.
        clock: Back-off.
        tell: Tells the daemon how a session stands.
    """

    def __init__(
        self,
        journal: UploadJournal,
        *,
        ownership: Ownership,
        estrangement: Estrangement,
        committer: Committer,
        hydrator: Hydrator,
        uploader: Uploader,
        layout: StateLayout,
        settings: ReplicationSettings,
        clock: Clock,
        tell: Callable[[SessionState], None],
    ) -> None:
        self._journal = journal
        self._ownership = ownership
        self._estrangement = estrangement
        self._committer = committer
        self._hydrator = hydrator
        self._uploader = uploader
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._tell_daemon = tell
        self._problems: dict[str, str] = {}
        self._tries = 0
        self._tried: frozenset[SessionId] = frozenset()
        self._is_told = False
        self._lost: set[SessionId] = set()
        self._unsettled: dict[SessionId, Claim] = {}
        self._is_resumed = False
        self._committing: dict[str, trio.Lock] = {}
        self._locks: dict[str, trio.Lock] = {}
        self._woken = trio.Event()

    # --- ownership

    async def claim(self, session: SessionId, *, force: bool = False, known: int | None = None) -> Claimed:
        """Become the owner, and take over what others did.

        Args:
            session: The session.
            force: Take over from a holder that may still live.
            known: As for `Hydrator.refresh_session`.

        Raises:
            SessionAlreadyOwnedError: Another host owns it.
            UnavailableError, AccessError: The store does not answer, and it may not be presumed ours.
            SessionFSError: What others did could not be taken over: it is tried again by the next claim.
        """
        claim = await self._ownership.claim(session, force=force)
        try:
            changes = await self.settle(session, claim)
        except SessionFSError:
            # It is ours, and nothing of it may be sent before that: it is tried again although nobody asks.
            self.note_claimed(session, claim)
            raise
        return Claimed(self._hydrator.completed(session, changes, known), is_unclean=claim.is_unclean)

    async def settle(self, session: SessionId, claim: Claim) -> SessionRefreshed | None:
        """Take over what others did before this claim; everything of the session may be sent then."""
        if claim.is_presumed:
            return None
        try:
            async with self._locks.setdefault(session, trio.Lock()), self._losing(session):
                return await self._take_over(session, claim)
        finally:
            # What is to be put right may be owed of a session that was lost meanwhile.
            self.note_applied()

    @asynccontextmanager
    async def _losing(self, session: SessionId) -> AsyncIterator[None]:
        """What is found in the bucket may be the proof that a session is another's: then the next claim begins anew."""
        try:
            yield
        except OwnershipLostError as problem:
            if await self.judge_loss(session, problem):
                raise
            raise UnavailableError(
                f"session {session} has an object that a tool copied from another session: {problem.message}",
                remedy="it is tried again, and taken for another tool's",
            ) from None

    async def judge_loss(self, session: str, problem: OwnershipLostError) -> bool:
        """Take note of the proof of a later owner; one that only an object gives is compared with the record first.

        Returns:
            Whether the session is lost.

        Raises:
            SessionFSError: The store does not answer.
        """
        if problem.object_epoch:
            return not await self._ownership.is_ours_still(session, problem.object_epoch, problem.message)
        self._ownership.lose(session, holder=problem.holder, reason=problem.message)
        return True

    async def _take_over(self, session: SessionId, claim: Claim) -> SessionRefreshed | None:
        if claim.is_news:
            # Another claim may have taken the news over while this one waited.
            claim = await self._ownership.claim(session)
        changes = None
        if claim.is_unclean and claim.is_news:
            self._journal.set_meta(cold_until(session), str(self._clock.wall_ns() + REMEMBERED_NS))
        is_remade = claim.manifest is not None and claim.manifest.removed
        if claim.is_news or is_remade or self._hydrator.is_behind(session):
            if claim.is_news and await self._estrangement.set_aside(session):
                raise UnavailableError(
                    f"session {session} still has files of another owner's time that could not be set aside",
                    remedy="it is tried again",
                )
            # What is on the disk goes first, then the bucket's is taken over: the daemon asks again.
            changes = await self._hydrator.catch_up(session, claim)
            self._ownership.note_caught_up(session)
        await trio.to_thread.run_sync(self._note_epoch, session, claim.epoch)
        self._journal.update_session(session, written=True)
        self._uploader.wake()
        return changes

    async def release(self, session: SessionId) -> None:
        """Commit a last time, and give the session up.

        Raises:
            SessionFSError: Something of it could not be brought away: it stays ours.
        """
        if not self._ownership.owns(session):
            return
        await self.commit(session, "release")
        await self._give_up(session)
        self._tell(SessionState(session, owned=self._ownership.owns(session)))

    async def release_all(self) -> None:
        """Give up every session that owes nothing and has no uncommitted change.

        Raises:
            SessionFSError: The first problem, once all were tried.
        """
        first: SessionFSError | None = None
        for row in self._journal.sessions():
            if not self._ownership.owns(row.id) or self._has_changed(row):
                continue
            try:
                await self._give_up(row.id)
            except SessionFSError as problem:
                first = first or problem
        if first is not None:
            raise first

    async def _give_up(self, session: SessionId) -> None:
        row = self._journal.session(session)
        if row is None or self._has_changed(row):
            raise ConflictError(
                f"session {session} was changed while it was released",
                remedy="close what writes it, and try again",
            )
        try:
            await self._ownership.release(session)
        finally:
            if not self._ownership.owns(session):
                # What programs wrote while the answer was waited for was written as ours: it is claimed again for that.
                self._woken.set()
        row = self._journal.session(session)
        if row is None or self._has_changed(row):
            return
        if self._is_here(session):
            self._journal.update_session(session, written=False)
        else:
            self._journal.remove_session(session)

    def note_lost(self, state: SessionState) -> None:
        """Take note of a session's new state, and pass it on."""
        if not state.owned:
            self._uploader.give_up(state.session)
            self._lost.add(roots.unit_id(state.session))
            self._woken.set()
        self._tell(state)

    def note_claimed(self, session: SessionId, claim: Claim) -> None:
        """A session became ours without a program's asking: what others did is taken over in the background."""
        if self._unsettled.get(session) != claim:
            # Else it is waited for already, with a pause: the chores' own claims do not end it.
            self._woken.set()
        self._unsettled[session] = claim

    # --- commits

    async def commit(self, session: SessionId, trigger: str, *, is_turn: bool = False) -> Committed:
        """Commit a session.

        Raises:
            SessionAlreadyOwnedError, OwnershipLostError: Another host owns it.
            SessionFSError: Not committed, as far as is known.
        """
        try:
            # One that waits for another looks again at what it commits on: the session may have been lost and claimed meanwhile.
            async with self._committing.setdefault(session, trio.Lock()):
                if not self._ownership.is_caught_up(session):
                    if self._journal.session(session) is None:
                        raise ObjectNotFoundError(f"there is no session {session} here")
                    # Also when it is ours, and what others did before is not taken over yet: that is nothing to commit on.
                    await self.claim(session)
                await self._require_caught_up(session)
                report = await self._commit_owned(session, trigger, is_turn=is_turn)
        except SessionFSError as problem:
            self._note_problem(session, str(problem))
            raise
        self._note_problem(session, "")
        return report

    async def _commit_owned(self, session: SessionId, trigger: str, *, is_turn: bool) -> Committed:
        """Commit; what could not be brought away because the session was lost meanwhile says so."""
        try:
            return await self._committer.commit(session, trigger, is_turn=is_turn)
        except UnavailableError as problem:
            if self._ownership.owns(session):
                raise
            raise OwnershipLostError(
                f"session {session} was taken over while it was committed: {problem.message}"
            ) from problem

    async def _require_caught_up(self, session: SessionId) -> None:
        async with self._losing(session):
            old = await self._hydrator.finish_catch_up(session)
        self._uploader.wake()
        if old:
            raise UnavailableError(
                f"session {session} cannot be committed: {old[0]} was changed by another host, and a program still has the old file open",
                remedy="close it",
            )

    async def commit_all(self, trigger: str) -> None:
        """Commit every session that changed and is ours; those whose turns count come first.

        Raises:
            SessionFSError: The first problem, once all were tried.
        """
        first: SessionFSError | None = None
        rows = [
            row for row in self._journal.sessions() if self._ownership.owns(row.id) and self._has_changed(row)
        ]
        for row in sorted(rows, key=lambda row: row.recovery != "committed"):
            try:
                await self.commit(row.id, trigger)
            except SessionFSError as problem:
                _log.error("commit failed", session=row.id, problem=str(problem))
                first = first or problem
        if first is not None:
            raise first

    def is_open(self, session: str) -> bool:
        """Whether programs may write a session without a claim: it is ours, and nothing old of it is left on this disk."""
        return self._ownership.is_caught_up(session) and not self._hydrator.is_behind(session)

    def problem(self, session: str) -> str:
        """Why a session's last commit failed, "" when it did not."""
        return self._problems.get(session, "")

    def note_applied(self) -> None:
        """The log told of changes: a session that was removed is committed soon, and one that owes something without an owner is claimed.

        A program may have written after a session was lost and before the daemon knew: that is set aside too.
        """
        waiting = self._waiting()
        self._is_told = self._is_told or bool(waiting)
        self._tried &= waiting
        if waiting - self._tried:
            self._woken.set()

    def _waiting(self) -> frozenset[SessionId]:
        """Sessions that were removed, or owe something and are not ours."""
        owing = (session for session, _ in self._unowned())
        return frozenset({*self._journal.unnamed_sessions(), *owing})

    def _unowned(self) -> list[tuple[SessionId, bool]]:
        """Sessions that owe something and are not ours, and whether they were lost: others could not be claimed by whoever made them."""
        return [
            (session, state == LOST)
            for session, state in self._journal.owing_sessions()
            if not self._ownership.owns(session)
        ]

    async def set_aside(self, session: SessionId) -> int:
        """Keep aside what a session owes of another owner's time; gives how many keys are left."""
        return await self._estrangement.set_aside(session)

    # --- what nobody asks for

    async def resume(self) -> None:
        """At the start: sessions that were ours are acquired again."""
        await self._ownership.resume()
        self._is_resumed = True
        self._woken.set()

    async def run(self) -> None:
        """Commit by the timer, retry what failed, commit removals, set lost sessions aside; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_timer)
            nursery.start_soon(self._run_chores)

    async def _run_timer(self) -> None:
        interval = self._settings.snapshot_interval_seconds
        if not interval:
            return
        while True:
            await trio.sleep(interval)
            for row in self._journal.sessions():
                if self._ownership.owns(row.id) and self._is_here(row.id) and row.changed:
                    await self._commit_quietly(row.id, "timer")

    async def _run_chores(self) -> None:
        while True:
            self._woken, self._is_told = trio.Event(), False
            self._tried = self._waiting()
            pause = await self._do_chores()
            self._tried = self._waiting()
            if not self._tries and self._is_told:
                # What was done may be there again; what failed waits for its pause, whatever programs write meanwhile.
                continue
            with trio.move_on_after(pause):
                await self._woken.wait()

    async def _do_chores(self) -> float:
        """Do what is to be done; give the seconds until there may be more."""
        failed = False
        self._unsettled = {
            name: claim for name, claim in self._unsettled.items() if self._ownership.owns(name)
        }
        for session, claim in list(self._unsettled.items()):
            failed = not await self._settle_quietly(session, claim) or failed
        held = [row.id for row in self._journal.sessions() if self._is_held(row)]
        owing = (session for session, is_lost in self._unowned() if not is_lost)
        unclaimed = {*owing, *(session for session in held if not self._ownership.owns(session))}
        for session in sorted(unclaimed) if self._is_resumed else ():
            failed = not await self._claim_quietly(session) or failed
        for session in sorted(self._lost.union(session for session, is_lost in self._unowned() if is_lost)):
            failed = not await self._set_aside_quietly(session) or failed
        for row in self._journal.sessions():
            if row.tree_of or self._is_here(row.id):
                continue
            if self._ownership.owns(row.id):
                failed = not await self._bury(row) or failed
            elif not self._is_held(row) and not (self._has_changed(row) and row.written):
                # One that was ours when the last process ended is claimed again first: its record must be released.
                self._journal.remove_session(row.id)
        for troubled in [session for session, problem in self._problems.items() if problem]:
            failed = not await self._commit_quietly(SessionId(troubled), "retry") or failed
        if not failed:
            self._tries = 0
            return float("inf")
        self._tries += 1
        return max(0.05, retry_policy.backoff_seconds(self._tries, self._settings, self._clock))

    def _is_held(self, row: SessionRow) -> bool:
        """Whether the session must be claimed again: the record may name this host, or something was changed here while it was given up.

        The record may name it when the session was ours as the last process ended, or that died while it gave up a removed session.
        """
        is_unfinished = not self._is_here(row.id) or self._has_changed(row)
        is_interrupted = row.owner_state == RELEASED and row.written and is_unfinished
        return row.owner_state == HELD or is_interrupted

    async def _bury(self, row: SessionRow) -> bool:
        """Commit that a session was removed, and give it up."""
        if not await self._commit_quietly(row.id, "removed"):
            return False
        try:
            await self._give_up(row.id)
        except SessionFSError as problem:
            _log.warning("removed session not released", session=row.id, problem=str(problem))
            return False
        return True

    async def _settle_quietly(self, session: SessionId, claim: Claim) -> bool:
        try:
            await self.settle(session, claim)
        except SessionFSError as problem:
            _log.warning("session not settled yet", session=session, problem=str(problem))
            return False
        if self._unsettled.get(session) is claim:
            del self._unsettled[session]
        self._tell(SessionState(session, owned=self._ownership.owns(session)))
        return True

    async def _set_aside_quietly(self, session: SessionId) -> bool:
        if self._ownership.owns(session):
            # Claimed again meanwhile: the claim takes care of what was owed.
            self._lost.discard(session)
            return True
        try:
            left = await self._estrangement.set_aside(session)
        except SessionFSError as problem:
            _log.warning("owed files not set aside yet", session=session, problem=str(problem))
            return False
        if left:
            return False
        self._lost.discard(session)
        self._tell(SessionState(session, owned=self._ownership.owns(session)))
        return True

    async def _commit_quietly(self, session: SessionId, trigger: str) -> bool:
        try:
            await self.commit(session, trigger)
        except ConflictError as problem:
            _log.warning("session not committed", session=session, trigger=trigger, problem=str(problem))
            self._note_problem(session, "")
            return True
        except SessionFSError as problem:
            _log.warning("session not committed", session=session, trigger=trigger, problem=str(problem))
            return False
        return True

    async def _claim_quietly(self, session: SessionId) -> bool:
        try:
            await self.claim(session)
        except SessionAlreadyOwnedError as problem:
            self._ownership.lose(session, holder=problem.holder, reason=problem.message)
            self.note_lost(SessionState(session, owned=False, holder=problem.holder))
            return True
        except SessionFSError as problem:
            _log.warning("session not claimed", session=session, problem=str(problem))
            return False
        self._tell(SessionState(session, owned=True))
        return True

    # --- what they share

    def _note_problem(self, session: str, problem: str) -> None:
        before = self._problems.get(session, "")
        if problem:
            self._problems[session] = problem
        else:
            self._problems.pop(session, None)
        if problem != before:
            # It says nothing new of the owner: something old that a program has open is no loss.
            owned = self._ownership.is_caught_up(session)
            self._tell_daemon(SessionState(session, owned=owned, commit_problem=problem))
            if problem:
                self._woken.set()

    def _tell(self, state: SessionState) -> None:
        """Tell the daemon; every notice says also how the last commit ended, and a session is ours for programs once nothing old is left."""
        self._tell_daemon(
            msgspec.structs.replace(
                state,
                owned=state.owned and self.is_open(state.session),
                commit_problem=state.commit_problem or self._problems.get(state.session, ""),
            )
        )

    def _is_here(self, session: str) -> bool:
        return self._journal.child(ROOT_NUMBER, session.encode()) is not None

    def _has_changed(self, row: SessionRow) -> bool:
        return row.changed or self._journal.owes(row.id)

    def _note_epoch(self, session: str, epoch: int) -> None:
        """Note the epoch on the working copy, so that it is known although the journal was lost."""
        path = os.path.join(self._layout.sessions, session)
        try:
            os.setxattr(path, EPOCH_ATTRIBUTE, str(epoch).encode())
        except OSError as problem:
            # A disk without extended attributes: then a lost journal makes every differing file a conflict.
            _log.warning("epoch not noted", session=session, problem=problem.strerror)
