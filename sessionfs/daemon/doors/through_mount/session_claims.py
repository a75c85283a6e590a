"""Which program on this host may write a session through a mount: the mount owns it for all of them.

A claim is a ``flock`` on a file of the state directory, so it ends with its process at the latest. The file is never removed.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from sessionfs.daemon.doors.refusals import shown
from sessionfs.model.errors import LocalDiskError, SessionAlreadyOwnedError
from sessionfs.model.names import SessionId

_DIRECTORY = "claims"


class SessionClaims:
    """The claims of one door.

    Args:
        state_root: The state directory.
    """

    def __init__(self, state_root: str) -> None:
        self._directory = os.path.join(state_root, _DIRECTORY)
        self._held: dict[SessionId, int] = {}

    def take(self, session: SessionId) -> bool:
        """Claim a session.

        Returns:
            False when this door has it already.

        Raises:
            SessionAlreadyOwnedError: Another door has it.
            LocalDiskError: The disk refused.
        """
        if session in self._held:
            return False
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            path = os.path.join(self._directory, session)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise LocalDiskError(
                f"{shown(session)} cannot be claimed: {problem.strerror}", errno_number=problem.errno or 0
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise SessionAlreadyOwnedError(
                f"{shown(session)} is written by process {holder} of this host", holder=f"process {holder}"
            ) from None
        with suppress(OSError):
            # Only for people: a full disk keeps nobody from claiming.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        self._held[session] = descriptor
        return True

    def give_up(self, session: SessionId) -> bool:
        """Let others claim a session.

        Returns:
            False when this door does not have it.
        """
        descriptor = self._held.pop(session, None)
        if descriptor is None:
            return False
        # A process that was forked off meanwhile has the descriptor too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
        return True

    def holds(self, session: SessionId) -> bool:
        """Say whether this door has a session."""
        return session in self._held

    def close(self) -> None:
        """Give everything up."""
        for session in list(self._held):
            self.give_up(session)
