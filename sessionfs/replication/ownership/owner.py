"""Ownership of sessions, as the rest of the replication process sees it.

Order of a claim: our beat is in the bucket; the record is ours; the chain is fenced, and only then read. Nothing of a session is sent before
that, nor before what others did meanwhile was taken over (`Claim.is_news`).

Two loops. `pulse` beats; without anything owned it makes no request. `settle` does what a confirmed beat allows: after a lapse every record is read
again before anything else of its session is sent, and only then the daemon is given the new deadline; then what was only presumed is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog
import trio

from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    OutcomeUnknownError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.ownership.claiming import Claiming
from sessionfs.replication.ownership.confirming import Confirming
from sessionfs.replication.ownership.heartbeat import Heartbeat
from sessionfs.replication.ownership.holdings import Claim, Holding
from sessionfs.replication.ownership.notes import HELD, OwnershipNotes, latest_epoch, note_copied
from sessionfs.replication.ownership.presuming import is_thought_ours, is_unanswered, may_be_presumed
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploads.conflicts import RaiseEvent
from sessionfs.working_copy.lease_page import LeasePage
from sessionfs.working_copy.upload_journal import UploadJournal

OnClaimed = Callable[[SessionId, Claim], None]

_CONCURRENT = 8
_SHORTEST_PAUSE_SECONDS = 0.05
_log = structlog.get_logger("sessionfs.ownership")


class Ownership:
    """Who owns what; one for each replication process.

    Args:
        journal: What this state directory owns, across restarts.
        store: The bucket.
        settings: The lease.
        clock: Times on CLOCK_BOOTTIME, and names.
        page: Tells the daemon until when it may let programs write.
        raise_event: Told of acquisitions, conflicts and losses.
        tell: Told when a session became ours, or ceased to be, without the daemon having asked.
        host: Name of this machine, for people.
        on_claimed: Told of every claim that no program waits for (after a restart, after an outage): whoever is told takes over its news, in
            a task of its own.
        on_permitted: Called when requests may be sent that were perhaps refused before: the lease was near its end, and nobody took anything.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        settings: ReplicationSettings,
        clock: Clock,
        *,
        page: LeasePage,
        raise_event: RaiseEvent,
        tell: Callable[[SessionState], None],
        host: str,
        on_claimed: OnClaimed = lambda _session, _claim: None,
        on_permitted: Callable[[], None] = lambda: None,
    ) -> None:
        self._journal = journal
        self._raise_event = raise_event
        self._tell = tell
        self._host = host
        self._on_claimed = on_claimed
        self._on_permitted = on_permitted
        self._notes = OwnershipNotes(journal)
        self._claiming = Claiming(
            journal, store, settings, clock, self._notes, raise_event=raise_event, host=host
        )
        self._holdings: dict[str, Holding] = {}
        self._confirming = Confirming(self._holdings, self._claiming.acquisition, self.lose)
        self._heartbeat = Heartbeat(
            store,
            settings,
            clock,
            page=page,
            host=host,
            is_settled=self._is_settled,
            on_lapse=self._confirming.note_lapse,
            on_replaced=self._lose_all,
        )
        self._locks: dict[str, trio.Lock] = {}
        self._claims_under_way = 0
        self._refused: set[tuple[str, str]] = set()
        self._unresumed: set[str] = set()
        self._woken = trio.Event()

    # --- what others see

    @property
    def holder(self) -> str:
        """Name of this process; new at every start, and when another process is found to have it too."""
        return self._heartbeat.holder

    def owns(self, session: str) -> bool:
        """Whether programs may write a session: it is ours, or presumed to be."""
        return session in self._holdings

    def is_caught_up(self, session: str) -> bool:
        """Whether a session is ours, or presumed to be, and what others did before was taken over."""
        holding = self._holdings.get(session)
        return holding is not None and not holding.claim.is_news

    def epoch(self, session: str) -> int:
        """Epoch of our ownership; 0 when the session is not ours, or only presumed to be."""
        holding = self._holdings.get(session)
        return holding.claim.epoch if holding is not None else 0

    def may_change(self, session: str) -> bool:
        """Whether one more request that changes a session may be sent now. Callable from any thread."""
        holding = self._holdings.get(session)
        return holding is not None and holding.may_send and self._heartbeat.allows_request

    def guard(self, key: str) -> None:
        """Refuse a request that changes a live object of a session that may not be changed; for ``TrioStore.guard``.

        Raises:
            OwnershipLostError: It may not be sent.
        """
        session = keys.session_of_key(key)
        if session is not None and not self.may_change(session):
            raise OwnershipLostError(f"{key!r} was not sent: session {session} may not be changed now")

    # --- claim and release

    async def claim(self, session: SessionId, *, force: bool = False) -> Claim:
        """Become the owner of a session. Calls for one session follow one another; the later ones are given the same.

        Args:
            session: The session; the journal must know it.
            force: Take it over although its holder may live.

        Raises:
            SessionAlreadyOwnedError: Another host owns it; the message says for how long at least.
            UnavailableError, AccessError: The store does not answer, and the session was not ours before.
            CorruptDataError, UnsupportedFormatError: The record or the manifest cannot be read.
            ObjectNotFoundError: No such session here.
        """
        async with self._locks.setdefault(session, trio.Lock()):
            holding = self._holdings.get(session)
            if holding is not None and not holding.claim.is_presumed:
                # Who asks to take it over has reason to doubt that it is ours: the record says.
                holding.is_confirmed = holding.is_confirmed and not force
                await self._renew(session, holding)
                if self._holdings.get(session) is holding:
                    return holding.claim
            return await self._claim(session, force=force)

    def note_caught_up(self, session: SessionId) -> None:
        """Note that what others did was taken over (`Claim.is_news`): now the session may be changed. Joins the caller's transaction."""
        holding = self._holdings.get(session)
        if holding is None or not holding.claim.is_news:
            return
        claim = holding.claim
        with self._journal.transaction():
            if claim.manifest is not None:
                self._notes.note_base(session, claim.manifest, claim.manifest_token)
            self._notes.note_caught_up(session)
        holding.claim = claim.without_news()

    async def release(self, session: SessionId) -> None:
        """Give a session up that was committed and owes nothing: others may take it at once. Tells nobody.

        Raises:
            OwnershipLostError: Another host had taken it over.
            UnavailableError: It is not known whether it is released, but it is not ours any more; or nothing was sent and it still is
                (`owns` says which).
        """
        async with self._locks.setdefault(session, trio.Lock()):
            holding = self._holdings.get(session)
            if holding is None:
                return
            if holding.claim.is_presumed:
                raise UnavailableError(f"the store does not say who owns session {session}")
            try:
                await self._claiming.acquisition.release(
                    session, self.holder, epoch=holding.claim.epoch, token=holding.claim.record_token
                )
            except OwnershipLostError as problem:
                self.lose(session, holder="", reason=problem.message)
                raise
            finally:
                now = self._journal.session(session)
                if now is None or now.owner_state != HELD:
                    self._holdings.pop(session, None)
        if not self._is_needed():
            await self._heartbeat.end()

    async def release_all(self, sessions: Iterable[SessionId]) -> None:
        """Give several sessions up.

        Raises:
            SessionFSError: The first problem; the others were tried all the same.
        """
        problems: list[SessionFSError] = []

        async def one(session: SessionId) -> None:
            try:
                await self.release(session)
            except SessionFSError as problem:
                problems.append(problem)

        await for_each(list(sessions), one, limit=_CONCURRENT)
        if problems:
            raise problems[0]

    def lose(self, session: str, *, holder: str, reason: str) -> None:
        """Take note of a proof that a session is another's: nothing of it is sent any more.

        Args:
            session: The session.
            holder: Who owns it, for people; "" when unknown.
            reason: The proof, for people.
        """
        identifier = SessionId(session)
        row = self._journal.session(session)
        holding = self._holdings.pop(session, None)
        if holding is None and (row is None or not is_thought_ours(row)):
            return
        _log.warning("session lost", session=session, holder=holder, reason=reason)
        epoch = holding.claim.epoch if holding is not None else 0
        epoch = epoch or (row.epoch if row is not None else 0)
        with self._journal.transaction():
            self._notes.note_lost(identifier, holder)
            if epoch:
                self._raise_event(
                    "session.owner.lost",
                    {"session_id": session, "epoch": epoch, "holder": holder, "reason": reason},
                )
        self._tell(SessionState(session, owned=False, holder=holder))
        self._heartbeat.publish()
        self._woken.set()

    def latest_epoch(self, session: str) -> int:
        """The highest epoch of an object that proves no other owner."""
        return latest_epoch(self._journal, session, self.epoch(session))

    async def is_ours_still(self, session: str, object_epoch: int, reason: str) -> bool:
        """An object shows a later epoch than ours: a later owner's, unless the record says that there is none.

        What a tool copied from another session has that session's epoch.

        Args:
            session: The session.
            object_epoch: The object's.
            reason: The proof, for people.

        Returns:
            Whether the session is still ours; if not, it counts as lost.

        Raises:
            SessionFSError: The store does not answer.
        """
        holding = self._holdings.get(session)
        if holding is not None and not holding.claim.is_presumed:
            found = await self._claiming.acquisition.read(SessionId(session))
            is_current = self._holdings.get(session) is holding
            if is_current and found is not None and found.stat.token == holding.claim.record_token:
                note_copied(self._journal, session, object_epoch)
                return True
        self.lose(session, holder="", reason=reason)
        return False

    # --- across restarts

    async def resume(self) -> None:
        """Claim again what this state directory held when its last process ended; `run` beats meanwhile.

        What cannot be claimed for want of an answer is presumed, and claimed when the store is back; what is another's by now is lost.
        """
        rows = [row for row in self._journal.sessions() if is_thought_ours(row) and not row.tree_of]
        former = {row.holder for row in rows}
        self._unresumed.update(row.id for row in rows)

        async def one(session: SessionId) -> None:
            try:
                self._announce(session, await self.claim(session))
            except SessionFSError as problem:
                _log.warning("session not claimed again", session=session, problem=str(problem))
            finally:
                self._unresumed.discard(session)
                self._heartbeat.publish()

        await for_each([row.id for row in rows], one, limit=_CONCURRENT)
        held = {row.holder for row in self._journal.sessions() if row.owner_state == HELD}
        for holder in sorted(former - held - {"", self.holder}):
            await self._heartbeat.bury(holder)

    async def run(self) -> None:
        """Beat and settle until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._settle_after_beats)
            while True:
                pause = await self.pulse()
                with trio.move_on_after(pause):
                    await self._woken.wait()

    async def pulse(self) -> float:
        """Beat if it is time to.

        Returns:
            Seconds until it is time again; infinite while nothing is owned.
        """
        self._woken = trio.Event()
        if not self._is_needed():
            await self._heartbeat.end()
            return float("inf")
        return max(_SHORTEST_PAUSE_SECONDS, await self._heartbeat.beat_when_due())

    async def settle(self) -> None:
        """Read records again after a lapse, and claim what is only presumed; nothing while the last beat does not count any more."""
        if not self._heartbeat.is_valid:
            return
        await self._confirming.confirm_all()
        self._heartbeat.publish()
        self._tell_permitted()
        for session in [name for name, holding in self._holdings.items() if holding.claim.is_presumed]:
            if not await self._settle_presumed(SessionId(session)):
                return

    async def _settle_after_beats(self) -> None:
        while True:
            await self._heartbeat.beaten.wait()
            self._heartbeat.beaten = trio.Event()
            await self.settle()

    # --- claiming

    async def _claim(self, session: SessionId, *, force: bool = False) -> Claim:
        self._claims_under_way += 1
        try:
            await self._heartbeat.ensure()
            claim = await self._claiming.claim(session, self.holder, force=force)
        except SessionAlreadyOwnedError as refusal:
            self._note_refusal(session, refusal)
            raise
        except OwnershipLostError as problem:
            self.lose(session, holder="", reason=problem.message)
            raise SessionAlreadyOwnedError(problem.message, holder="", remedy="try again") from problem
        except SessionFSError as problem:
            return self._presume(session, problem)
        finally:
            self._claims_under_way -= 1
            self._woken.set()
        self._holdings[session] = Holding(claim if claim.is_news else claim.without_news())
        self._refused = {refused for refused in self._refused if refused[0] != session}
        self._heartbeat.publish()
        return claim

    def _presume(self, session: SessionId, problem: SessionFSError) -> Claim:
        """Without an answer: a session that this host had, or made, may be written; any other may not."""
        if not is_unanswered(problem) or not self._may_presume(session):
            if isinstance(problem, OutcomeUnknownError):
                raise UnavailableError(problem.message, remedy="try again") from problem
            raise problem
        self._heartbeat.note_outage()
        holding = Holding(Claim(epoch=0, is_presumed=True))
        self._holdings[session] = holding
        return holding.claim

    def _may_presume(self, session: SessionId) -> bool:
        row = self._journal.session(session)
        return row is not None and may_be_presumed(row, has_news=self._notes.has_news(session))

    def _note_refusal(self, session: SessionId, refusal: SessionAlreadyOwnedError) -> None:
        if (session, refusal.holder) not in self._refused:
            self._refused.add((session, refusal.holder))
            self._raise_event(
                "session.owner.conflict",
                {"session_id": session, "holder": refusal.holder, "problem": refusal.message},
            )
        self.lose(session, holder=refusal.holder, reason=refusal.message)

    async def _settle_presumed(self, session: SessionId) -> bool:
        """Claim what is only presumed; False when the store does not answer."""
        async with self._locks.setdefault(session, trio.Lock()):
            holding = self._holdings.get(session)
            if holding is None or not holding.claim.is_presumed:
                return True
            try:
                claim = await self._claim(session)
            except SessionFSError as problem:
                _log.warning("session not settled", session=session, problem=str(problem))
                return True
        self._announce(session, claim)
        return not claim.is_presumed

    def _announce(self, session: SessionId, claim: Claim) -> None:
        """Tell of a claim that no program waits for."""
        if not claim.is_presumed:
            self._tell(SessionState(session, owned=True, holder=self._host))
            self._on_claimed(session, claim)

    # --- the lease

    def _is_settled(self) -> bool:
        """Whether every record that is ours is known to be."""
        return not self._unresumed and all(holding.is_settled for holding in self._holdings.values())

    def _is_needed(self) -> bool:
        return bool(self._holdings) or self._claims_under_way > 0

    def _lose_all(self, reason: str) -> None:
        """Another process has this one's name: a clone. It may go on, and this one owns nothing."""
        for session in list(self._holdings):
            self.lose(session, holder="a clone of this machine", reason=reason)

    async def _renew(self, session: SessionId, holding: Holding) -> None:
        """Before a held session is claimed again: let the lease count, and the record be known as ours; as far as the store answers."""
        with suppress(UnavailableError):
            await self._heartbeat.ensure()
        if not holding.is_confirmed:
            await self._confirming.confirm(session)
            self._heartbeat.publish()
            self._tell_permitted()

    def _tell_permitted(self) -> None:
        """Who was refused, for want of a beat or while a record was read again, may go on. Told after each: nobody counts refusals."""
        if self._heartbeat.allows_request:
            self._on_permitted()
