"""What a person asks of one session over the control socket: commit, claim, release."""

from __future__ import annotations

from typing import Protocol

from sessionfs.filesystem.control.commits import Commits
from sessionfs.filesystem.inodes import Session
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.commit_messages import Committed
from sessionfs.model.errors import ConflictError, UnavailableError
from sessionfs.model.names import display

_SHOWN_PATHS = 3


class Claimant(Protocol):
    """Becomes the owner of sessions."""

    async def claim(self, session: Session, *, force: bool = False) -> None:
        """Become a session's owner, and take over what changed in the bucket."""


class SessionRequests:
    """Answers them.

    Args:
        volume: The mount.
        sessions: Finds sessions.
        commits: Commits.
        claimant: Claims.
    """

    def __init__(self, volume: Volume, sessions: SessionsRoot, commits: Commits, claimant: Claimant) -> None:
        self._volume = volume
        self._sessions = sessions
        self._commits = commits
        self._claimant = claimant

    async def commit(self, session: str, trigger: str) -> Committed:
        """Commit a session now.

        Args:
            session: Its id.
            trigger: What asked for it.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: Nothing may be changed in this mount, or in this session.
            SessionFSError: It failed.
        """
        return await self._commits.commit(await self._changeable(session), trigger)

    async def claim(self, session: str, *, force: bool) -> None:
        """Become the owner of a session.

        Args:
            session: Its id.
            force: Take over from a holder that may still live.

        Raises:
            NotFoundError: There is no such session.
            SessionAlreadyOwnedError: Another host owns it.
            ConflictError: Nothing may be changed in this mount, or in this session.
        """
        found = await self._changeable(session)
        try:
            await self._claimant.claim(found, force=force)
        except OSError as problem:
            raise _unavailable(session, problem) from None

    async def release(self, session: str) -> None:
        """Commit a session and give it up; who changes it afterwards claims it again.

        From before the last commit on, and also when the release fails, a change begins with a claim, which waits for its end.

        Args:
            session: Its id.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: Something has a file of it open for writing.
            SessionFSError: The store did not take it.
        """
        found = await self._changeable(session)
        written = self._open_for_writing(found)
        if written:
            more = f" and {len(written) - _SHOWN_PATHS} more" if len(written) > _SHOWN_PATHS else ""
            raise ConflictError(
                f"{session} is being written: {', '.join(written[:_SHOWN_PATHS])}{more}",
                remedy="close what is open for writing, then release again",
            )
        found.disown()
        await self._volume.remote.release(found.id)

    def problems(self) -> dict[str, str]:
        """Say why the last commit of each session failed, of those where it did."""
        return {
            session.id: session.commit_problem
            for session in self._sessions.sessions.values()
            if session.commit_problem
        }

    def pending_turns(self) -> list[str]:
        """Name the sessions of ours in which a turn has ended that no commit has yet."""
        owned = {session.id for session in self._sessions.sessions.values() if session.owned}
        return [session for session in self._commits.pending_turns() if session in owned]

    async def _changeable(self, session: str) -> Session:
        try:
            found = await self._sessions.session(session)
        except OSError as problem:
            raise _unavailable(session, problem) from None
        if self._volume.refusal:
            raise ConflictError(f"{session}: {self._volume.refusal}")
        if found.read_only:
            raise ConflictError(f"{session} is shown as it was at a generation, read-only")
        return found

    def _open_for_writing(self, session: Session) -> list[str]:
        nodes = {
            handle.node.number: handle.node
            for handle in self._volume.handles.values()
            if handle.node.session is session
            and handle.writable
            and handle.descriptor >= 0
            and not handle.exempt
        }
        path_of = self._volume.table.path_in_session
        return sorted(display(path_of(node)) or "(a removed file)" for node in nodes.values())


def _unavailable(session: str, problem: OSError) -> UnavailableError:
    return UnavailableError(f"{session}: {problem.strerror}", remedy="see: sessionfs status")
