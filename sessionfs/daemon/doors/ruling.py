"""Whether a place may go on: it is open, it takes changes, and a session that it claimed was not lost since.

A session is ours from a claim or from our first change on. One that a program claimed and that was lost takes no change until it is claimed again:
what another owner wrote meanwhile must be looked at first.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from sessionfs.daemon.doors.refusals import shown
from sessionfs.model.errors import (
    ConflictError,
    HandleClosedError,
    NotFoundError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId

Result = TypeVar("Result")

_TRIES = 4
_PAUSE_SECONDS = 0.1


async def steadily(call: Callable[[], Awaitable[object]]) -> None:
    """Give a session up, again when something passing stands in the way: a claim that was cancelled may still be under way.

    Raises:
        SessionFSError: What the last try raised.
    """
    for attempt in range(1, _TRIES + 1):
        try:
            await call()
        except UnavailableError:
            if attempt == _TRIES:
                raise
            await trio.sleep(_PAUSE_SECONDS * attempt)
        else:
            return


class Ruling:
    """What a place and its files share.

    Args:
        sweep: Called before the first change of each session: removes what a killed program left in it.
        claim: Claims a session, by no force.
        refuses: Why nothing may be changed, "" when it may.
    """

    def __init__(
        self,
        sweep: Callable[[SessionId], Awaitable[None]],
        claim: Callable[[SessionId], Awaitable[object]],
        *,
        refuses: str = "",
    ) -> None:
        self._sweep = sweep
        self._claim = claim
        self._refuses = refuses
        self._swept: set[SessionId] = set()
        self._sweeping = trio.Lock()
        self._ours: set[SessionId] = set()
        self._claimed: set[SessionId] = set()
        self._lost: set[SessionId] = set()
        self._removed: set[SessionId] = set()
        self._is_closed = False

    def close(self) -> None:
        """Refuse everything from now on."""
        self._is_closed = True

    def require_open(self) -> None:
        """Refuse a call after the end.

        Raises:
            HandleClosedError: The place was closed.
        """
        if self._is_closed:
            raise HandleClosedError("the mirrored place is closed", remedy="open it again")

    async def before_change(self, session: SessionId) -> None:
        """Let a change of a session begin.

        Raises:
            HandleClosedError: The place was closed.
            ConflictError: Nothing may be changed here.
            OwnershipLostError: The session was ours, and is not any more.
        """
        self.require_open()
        if self._refuses:
            raise ConflictError(f"{shown(session)}: {self._refuses}")
        if session in self._lost:
            raise OwnershipLostError(
                f"{shown(session)} was lost to another owner",
                remedy="claim it again, and look at what is there",
            )
        if session in self._swept:
            return
        async with self._sweeping:
            if session not in self._swept:
                await self._sweep(session)
                self._swept.add(session)

    def note_claimed(self, session: SessionId) -> None:
        """Note that a program claimed a session."""
        self._lost.discard(session)
        self._claimed.add(session)
        self._ours.add(session)

    def note_changed(self, session: SessionId) -> None:
        """Note that a change went through, which claims a session too."""
        if session not in self._lost:
            self._ours.add(session)

    def note_lost(self, session: SessionId) -> None:
        """Note that another owner has, or may have, taken a session; one that no program claimed is claimed again by its next change."""
        self._ours.discard(session)
        if session in self._claimed:
            self._claimed.discard(session)
            self._lost.add(session)

    async def changed(self, session: SessionId, call: Callable[[], Awaitable[Result]]) -> Result:
        """Run a change; again after a claim when the session takes none: it may have been given up between an open and its write.

        Raises:
            OwnershipLostError: A program claimed the session, and another host has it now.
            SessionFSError: As `before_change`, and what the change raises.
            OSError: What the change raises.
        """
        await self.before_change(session)
        tries = 0
        while True:
            try:
                result = await call()
                break
            except SessionAlreadyOwnedError as problem:
                raise self._lost_to(session, problem) from None
            except OSError as problem:
                tries += 1
                if problem.errno != errno.EROFS or tries >= _TRIES:
                    raise
            await self._regain(session)
        self.note_changed(session)
        return result

    async def _regain(self, session: SessionId) -> None:
        try:
            await self._claim(session)
        except NotFoundError:
            return
        except SessionAlreadyOwnedError as problem:
            raise self._lost_to(session, problem) from None

    def _lost_to(self, session: SessionId, problem: SessionAlreadyOwnedError) -> ConflictError:
        """Give the error for a session that another host owns: one that a program of ours claimed was lost."""
        if session not in self._claimed:
            return problem
        self.note_lost(session)
        return OwnershipLostError(problem.message, holder=problem.holder, remedy=problem.remedy)

    def note_released(self, session: SessionId) -> None:
        """Note that a session was given up."""
        for known in (self._ours, self._claimed, self._lost):
            known.discard(session)

    def note_removed(self, session: SessionId) -> None:
        """Note that a session was removed here; a listing of the bucket may be older."""
        self._removed.add(session)

    def was_removed(self, session: SessionId) -> bool:
        """Say whether a session was removed here once."""
        return session in self._removed

    def owns(self, session: SessionId) -> bool:
        """Whether a program claimed a session, and it was not lost since, as far as is known here."""
        return session in self._claimed

    def is_ours(self, session: SessionId) -> bool:
        """Whether this host owns a session by a claim or by a change, as far as is known here."""
        return session in self._ours
