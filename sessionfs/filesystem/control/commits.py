"""Commits that something in the mount asks for, and how each session's last one ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from sessionfs.filesystem.inodes import Session
from sessionfs.filesystem.remote_side import RemoteSide
from sessionfs.formats.commit_messages import Committed
from sessionfs.model import roots
from sessionfs.model.errors import (
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
)

_log = structlog.get_logger(__name__)


class _Refusal(msgspec.Struct, frozen=True):
    """What ``.sessionfs/snapshot`` says of a commit that failed."""

    session: str
    trigger: str
    problem: str


class Commits:
    """Asks the replication process for commits.

    Args:
        remote: The replication process.
        claim: Becomes a session's owner; what others changed leaves this disk.
    """

    def __init__(self, remote: RemoteSide, claim: Callable[[Session], Awaitable[None]]) -> None:
        self._remote = remote
        self._claim = claim
        self._last: dict[str, bytes] = {}
        self._turns: dict[str, None] = {}

    async def commit(self, session: Session, trigger: str, *, is_turn: bool = False) -> Committed:
        """Commit a session and remember how it ended.

        Args:
            session: The session.
            trigger: What asked for it.
            is_turn: Whether it ends a turn.

        Raises:
            SessionFSError: It failed; nothing of the generation is visible. Under ``strict`` the session's files cannot be opened
                for writing now.
        """
        if is_turn:
            self._turns[session.id] = None
        is_asked = False
        try:
            if not session.owned:
                await self._own(session)
            is_asked = True
            committed = await self._remote.commit(session.id, trigger, is_turn=is_turn)
        except SessionFSError as problem:
            _log.warning("commit.failed", session_id=session.id, trigger=trigger, reason=problem.message)
            self._last[session.id] = _text(_Refusal(session.id, trigger, str(problem)))
            # Only what the replication process knows of is tried again, and told when it succeeds.
            if is_asked and not isinstance(problem, SessionAlreadyOwnedError | OwnershipLostError):
                session.commit_problem = problem.message
            raise
        self._last[session.id] = _text(committed)
        self._turns.pop(session.id, None)
        session.commit_problem = ""
        return committed

    async def _own(self, session: Session) -> None:
        try:
            await self._claim(session)
        except OSError as problem:
            raise UnavailableError(
                f"session {session.id} could not be claimed: {problem.strerror}", remedy="try again"
            ) from None

    def pending_turns(self) -> list[str]:
        """Name the sessions in which a turn has ended that no commit has yet, oldest first."""
        return list(self._turns)

    def last(self, session: Session) -> bytes:
        """Give the JSON text about a session's last commit, ``{}`` when none was asked for in this mount."""
        return self._last.get(session.id, b"{}\n")


def _text(body: msgspec.Struct) -> bytes:
    raw: dict[str, object] = msgspec.to_builtins(body)
    raw.pop("type", None)  # the tag of messages
    raw.update({name: roots.readable(str(raw[name])) for name in ("session", "problem") if name in raw})
    return msgspec.json.format(msgspec.json.encode(raw)) + b"\n"
