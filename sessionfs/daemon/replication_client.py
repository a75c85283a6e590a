"""The replication process as the Core and the control socket see it: calls over a link that may be renewed.

Rules:

* Every request names the log position at the moment of the call: its answer knows all that was done before.
* While the process is started again, calls wait for it, each at most `fetch_timeout_seconds`; a call that was
  under way when it died is sent again: every request may be repeated.
* A transfer that goes on is not ended by the clock: when its time is up, the process is asked whether bytes still
  come (for what is sent: whether the store still answers), and only when they do not, it fails. However many
  transfers ask, one such question is under way: thousands of them would be what keeps the process from its work.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import msgspec
import trio

from sessionfs.formats.commit_messages import (
    Commit,
    CommitAll,
    Committed,
    GenerationNumbers,
    ListGenerations,
)
from sessionfs.formats.link_message import Entry, Message, SessionRefreshed
from sessionfs.formats.link_messages import (
    AnyMessage,
    BlockFetched,
    BlocksFinished,
    Children,
    ConflictList,
    Describe,
    Description,
    Done,
    Drain,
    Drained,
    EventList,
    Fetch,
    FetchBlock,
    Fetched,
    FinishBlocks,
    Flush,
    GetStatus,
    ListChildren,
    ListConflicts,
    ListEvents,
    ListSessions,
    LogGrew,
    OpenSession,
    RefreshSession,
    ResolveConflict,
    Retry,
    SessionFound,
    SessionNames,
    Status,
    Stop,
)
from sessionfs.formats.ownership_messages import Claim, Claimed, Release, ReleaseAll
from sessionfs.model.errors import SessionFSError, UnavailableError
from sessionfs.replication.link import Link
from sessionfs.working_copy.intent_log import IntentLog

_NOTICE_SECONDS = 0.1
_STATUS_SECONDS = 2.0
_PATIENCE_SECONDS = 5.0
_FIRST_LOOK = 0.5
_NEXT_LOOK = 0.9

Reply = TypeVar("Reply", bound=Message)
GoesOn = Callable[[Status], bool]
"""Says of a status whether a transfer goes on."""


class _Look:
    """A status that is asked for, for every transfer that waits to be judged by it."""

    __slots__ = ("done", "outcome")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.outcome: Status | UnavailableError | None = None


class ReplicationClient:
    """Implements `RemoteSide`, and what the control socket needs besides.

    Args:
        log: The daemon's intent log; its `on_growth` is taken over.
        timeout_seconds: How long a call waits for an answer.
        staging: Directory of fetched files: those that nobody waits for any more are removed there; "" keeps them.
    """

    def __init__(self, log: IntentLog, *, timeout_seconds: float, staging: str = "") -> None:
        self._log = log
        self._timeout_seconds = timeout_seconds
        self._staging = staging
        self._fetching: Counter[int] = Counter()
        self._unwanted: dict[int, set[str]] = {}
        self._look: _Look | None = None
        self._link: Link | None = None
        self._attached = trio.Event()
        self._grown = trio.Event()
        self._told = -1
        self.trouble = ""
        log.on_growth = self._note_growth

    # --- the link's life

    def attach(self, link: Link) -> None:
        """Use this link from now on."""
        self._link = link
        self._told = -1
        self._attached.set()
        self._grown.set()
        self.trouble = ""

    def detach(self, trouble: str) -> None:
        """The link is gone; calls wait for the next.

        Args:
            trouble: Why, for status and errors.
        """
        self._link = None
        if self._attached.is_set():
            # Whoever waits already waits for this very event.
            self._attached = trio.Event()
        self.trouble = trouble

    def discard(self, reply: AnyMessage) -> None:
        """Take a reply that came when nobody waited for it any more."""
        if not isinstance(reply, Fetched) or not self._staging:
            return
        number = reply.entry.number
        if self._fetching[number]:
            # Requests for one file at the same time share one answer: whoever waits now may be given this very file.
            self._unwanted.setdefault(number, set()).add(reply.staged)
        else:
            self._remove_staged(reply.staged)

    def _remove_staged(self, staged: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._staging, staged))

    async def run(self) -> None:
        """Tell the process that the log has grown, at most ten times a second."""
        while True:
            await self._grown.wait()
            self._grown = trio.Event()
            if self._link is not None and self._told != self._log.position:
                self._tell(self._link)
            await trio.sleep(_NOTICE_SECONDS)

    def _note_growth(self) -> None:
        # Called for every record: an event that is already set costs next to nothing.
        if not self._grown.is_set():
            self._grown.set()

    def _tell(self, link: Link) -> None:
        self._told = self._log.position
        link.notify(LogGrew(self._told))

    # --- RemoteSide

    async def open_session(self, session: str) -> SessionFound:
        """Say what is known of a session; asks the store when the journal has not."""
        patience_seconds = min(_PATIENCE_SECONDS, self._timeout_seconds / 2)
        return await self.ask(OpenSession(session, self._log.position, patience_seconds), SessionFound)

    async def list_sessions(self) -> list[str]:
        """Name the sessions in the bucket."""
        return (await self.ask(ListSessions(), SessionNames)).names

    async def list_shared_roots(self) -> list[str]:
        """Name the shared roots in the bucket."""
        return (await self.ask(ListSessions(shared=True), SessionNames)).names

    async def list_children(self, directory: int) -> Children:
        """List the names in a directory that are not present or whose number is not the working copy's."""
        return await self.ask(ListChildren(directory, self._log.position), Children)

    async def refresh_session(self, session: str, *, known: int) -> SessionRefreshed:
        """Compare a foreign session with the bucket."""
        return await self.ask(RefreshSession(session, self._log.position, known), SessionRefreshed)

    async def fetch(self, number: int) -> Fetched:
        """Bring a remote file's verified bytes into staging."""
        self._fetching[number] += 1
        taken = ""
        try:
            found = await self.ask(Fetch(number, self._log.position), Fetched, transfer=_bytes_come())
            taken = found.staged
            return found
        finally:
            self._fetching[number] -= 1
            if not self._fetching[number]:
                del self._fetching[number]
                for staged in self._unwanted.pop(number, set()) - {taken}:
                    self._remove_staged(staged)

    async def fetch_block(self, number: int, block: int, partial: str, sha256: str) -> None:
        """Write one verified block of a content into a file in staging."""
        request = FetchBlock(number, block, partial, sha256, self._log.position)
        await self.ask(request, BlockFetched, transfer=_bytes_come())

    async def finish_blocks(self, number: int, partial: str, sha256: str) -> Entry:
        """Bring a file in staging that has all its blocks to the disk, and say how it must look in the working copy."""
        request = FinishBlocks(number, partial, sha256, self._log.position)
        return (await self.ask(request, BlocksFinished)).entry

    async def flush(self, number: int) -> None:
        """Return when the file's bytes (a directory: its own entries) are in the bucket."""
        await self.ask(Flush(number, self._log.position), Done, transfer=_store_answers)

    async def describe(self, number: int) -> Description:
        """Say how a file stands."""
        return await self.ask(Describe(number, self._log.position), Description)

    async def claim(self, session: str, *, known: int, force: bool = False) -> Claimed:
        """Become the owner of a session.

        Args:
            session: The session.
            known: The version that was heard last.
            force: Take over from a holder that may still live.

        Raises:
            SessionAlreadyOwnedError: Another host owns it.
        """
        request = Claim(session, self._log.position, force, known)
        return await self.ask(request, Claimed, transfer=_requests_are_answered())

    async def release(self, session: str) -> None:
        """Give a session up after a last commit; returns when the record says so."""
        await self.ask(Release(session, self._log.position), Done, transfer=_store_answers)

    async def commit(self, session: str, trigger: str, *, is_turn: bool = False) -> Committed:
        """Commit a session; returns when the generation is in the bucket."""
        request = Commit(session, trigger, self._log.position, is_turn)
        return await self.ask(request, Committed, transfer=_store_answers)

    async def list_generations(self, session: str) -> list[int]:
        """Number the generations of a session that can be shown, ascending."""
        return (await self.ask(ListGenerations(session), GenerationNumbers)).numbers

    async def session_status(self, session: str) -> bytes:
        """Give the JSON text of ``.sessionfs/status``."""
        status = await self.status()
        rows = [row for row in status.sessions if row.id == session]
        shown = msgspec.to_builtins(rows[0]) if rows else {"id": session}
        shown["degraded"] = status.degraded or self.trouble
        return msgspec.json.format(msgspec.json.encode(shown)) + b"\n"

    # --- for the control socket and the shutdown

    async def status(self) -> Status:
        """Say how everything stands.

        Raises:
            UnavailableError: No answer within two seconds.
        """
        return await self.ask(GetStatus(self._log.position), Status, seconds=_STATUS_SECONDS)

    async def drain(self, seconds: float) -> Drained:
        """Upload what is owed, waiting at most so long; 0 only looks."""
        request = Drain(self._log.position, seconds)
        return await self.ask(request, Drained, seconds=seconds + _STATUS_SECONDS)

    async def commit_all(self, trigger: str) -> None:
        """Write a manifest of every drained session that changed."""
        await self.ask(CommitAll(trigger, self._log.position), Done, transfer=_store_answers)

    async def release_all(self) -> None:
        """Give up every session that owes nothing and has no uncommitted change."""
        await self.ask(ReleaseAll(), Done, transfer=_store_answers)

    async def resolve_conflict(self, key: str) -> None:
        """Let the bytes under a key be no conflict any more."""
        await self.ask(ResolveConflict(key, self._log.position), Done)

    async def retry(self) -> None:
        """Try everything again now."""
        await self.ask(Retry(), Done)

    async def conflicts(self) -> ConflictList:
        """Give what is kept aside."""
        return await self.ask(ListConflicts(), ConflictList)

    async def events(self, after: int, limit: int) -> EventList:
        """Give events after a number."""
        return await self.ask(ListEvents(after, limit), EventList)

    async def stop(self) -> None:
        """End the process after its current transactions; a process that is not there is success."""
        link = self._link
        if link is None:
            return
        with trio.move_on_after(_STATUS_SECONDS):
            try:
                await link.call(Stop())
            except UnavailableError:
                return

    async def ask(
        self,
        message: AnyMessage,
        kind: type[Reply],
        *,
        seconds: float | None = None,
        transfer: GoesOn | None = None,
    ) -> Reply:
        """Send a request, to the next process when this one dies.

        Args:
            message: The request.
            kind: Of its reply.
            seconds: How long to wait, None for the timeout of the settings.
            transfer: Says of a status whether to wait on.

        Raises:
            UnavailableError: No answer in time.
            SessionFSError: The other side's error.
        """
        limit = self._timeout_seconds if seconds is None else seconds
        with trio.CancelScope() as scope:
            scope.deadline = trio.current_time() + limit
            if transfer is not None:
                return await self._transfer(message, kind, scope, limit, transfer)
            return await self._ask(message, kind)
        raise UnavailableError(
            self.trouble or f"no answer from the store within {limit:.0f} s", remedy="see: sessionfs status"
        )

    async def _transfer(
        self, message: AnyMessage, kind: type[Reply], scope: trio.CancelScope, limit: float, goes_on: GoesOn
    ) -> Reply:
        outcome: list[Reply | SessionFSError] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._extend, scope, limit, goes_on)
            try:
                outcome.append(await self._ask(message, kind))
            except SessionFSError as error:
                outcome.append(error)  # raised outside, where the nursery cannot wrap it
            nursery.cancel_scope.cancel()
        if isinstance(outcome[0], SessionFSError):
            raise outcome[0]
        return outcome[0]

    async def _ask(self, message: AnyMessage, kind: type[Reply]) -> Reply:
        while True:
            await self._attached.wait()
            link = self._link
            if link is None:
                continue
            if self._told != self._log.position:
                self._tell(link)
            try:
                return await link.ask(message, kind)
            except UnavailableError:
                if not link.closed:
                    raise
                if self._link is link:
                    self.detach("the replication process has ended")

    async def _extend(self, scope: trio.CancelScope, limit: float, goes_on: GoesOn) -> None:
        """Move the deadline while the transfer goes on."""
        # A status is not free: a transfer that is soon over asks for none.
        await trio.sleep(limit * _FIRST_LOOK)
        with contextlib.suppress(UnavailableError):
            await self._judged(scope, goes_on)
        try:
            while True:
                await trio.sleep_until(scope.deadline - limit * (1 - _NEXT_LOOK))
                if not await self._judged(scope, goes_on):
                    return
                scope.deadline = trio.current_time() + limit
        except UnavailableError:
            return

    async def _judged(self, scope: trio.CancelScope, goes_on: GoesOn) -> bool:
        """Ask whether a transfer goes on; a process that is busy with many answers late, and that time does not count."""
        end, asked = scope.deadline, trio.current_time()
        scope.deadline = end + _PATIENCE_SECONDS
        try:
            return goes_on(await self._progress())
        finally:
            scope.deadline = end + trio.current_time() - asked

    async def _progress(self) -> Status:
        """Give a status; whoever asks while one is under way shares its answer."""
        while self._look is not None:
            look = self._look
            await look.done.wait()
            if isinstance(look.outcome, Status):
                return look.outcome
            if look.outcome is not None:
                raise look.outcome
            # Whoever had asked was cancelled.
        look = self._look = _Look()
        try:
            message = GetStatus(self._log.position)
            look.outcome = await self.ask(message, Status, seconds=_PATIENCE_SECONDS)
        except UnavailableError as problem:
            look.outcome = problem
            raise
        finally:
            self._look = None
            look.done.set()
        return look.outcome


def _store_answers(status: Status) -> bool:
    return not status.degraded


def _bytes_come() -> GoesOn:
    """Give a judge of one download: bytes came since it was last asked."""
    before = -1

    def judge(status: Status) -> bool:
        nonlocal before
        is_moving = status.downloaded_bytes != before
        before = status.downloaded_bytes
        return is_moving

    return judge


def _requests_are_answered() -> GoesOn:
    """Give a judge of one claim: the next request was sent since it was last asked. A store that is silent is no reason to wait."""
    before = -1

    def judge(status: Status) -> bool:
        nonlocal before
        sent = sum(status.requests.values())
        is_moving, before = sent != before, sent
        return is_moving and not status.degraded

    return judge
