"""The gate that every change passes: the session is this host's, the lease is not over, and commits succeed where that is asked for.

* A session that is not owned is claimed first (`Gate.admits` says False, the call waits and begins again). Reads never claim.
* Past the lease's end another host may have taken the session over: EROFS. While the store does not answer, nobody can: programs go on
  under ``degrade``.
* What the replication process does through the mount (SQLite's connections) is let through and counts as no change.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from sessionfs.filesystem.inodes import Session, failure
from sessionfs.filesystem.permissions import Caller

if TYPE_CHECKING:
    from sessionfs.filesystem.volume import Volume


class Gate:
    """Decides about changes.

    Args:
        volume: The mount.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._clock = volume.clock

    def admits(self, session: Session | None, caller: Caller) -> bool:
        """Say whether a call may change a session now; when not, it must be claimed first.

        Raises:
            OSError: EROFS: a tree of the past, or the lease is over.
        """
        if session is None:
            return True
        now = self._clock.elapsed_seconds()
        if now < session.writable_until_seconds:
            return True
        if self._volume.is_exempt(caller):
            return True
        if session.read_only:
            raise failure(errno.EROFS)
        if not session.owned:
            return False
        self._require_lease(session, now)
        return True

    def require_owned(self, session: Session | None, now: float) -> None:
        """Let a change through an open handle pass; such a one never claims, for its file may not be the session's any more.

        Args:
            session: The session.
            now: Elapsed time.

        Raises:
            OSError: EROFS.
        """
        if session is None:
            return
        if not session.owned:
            raise failure(errno.EROFS)
        self._require_lease(session, now)

    def _require_lease(self, session: Session, now: float) -> None:
        lease = self._volume.lease
        # A later beat moves it on; it never moves back while the session is owned.
        session.writable_until_seconds = lease.deadline_seconds
        if now < session.writable_until_seconds:
            return
        if lease.is_outage and self._volume.settings.policy == "degrade":
            return
        raise failure(errno.EROFS)

    def require_commits(self, session: Session | None, caller: Caller) -> None:
        """Refuse an open for writing under ``strict`` until the session's commits succeed again.

        Raises:
            OSError: EIO.
        """
        if session is None or not session.commit_problem or self._volume.settings.policy != "strict":
            return
        if not self._volume.is_exempt(caller):
            raise failure(errno.EIO)
