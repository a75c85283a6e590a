"""Becoming a session's owner before the first change, and what the replication process says about owners.

Order of a claim: the replication process answers when the record and the fence are written; what the session's last owner changed is taken over
here as in any foreign session, and the claim is repeated until nothing old is left; then the session counts as owned, and the call that wanted to
change something begins again.
"""

from __future__ import annotations

import os

import structlog

from sessionfs.filesystem.barrier.freezing import Freezing
from sessionfs.filesystem.hydration.foreign_changes import ForeignChanges
from sessionfs.filesystem.inodes import Session
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.errors import SessionAlreadyOwnedError

_log = structlog.get_logger(__name__)

_ROUNDS = 4


class Claims:
    """Claims sessions.

    Args:
        volume: The mount.
        changes: Takes over what another host changed.
        freezing: Kept bytes of commits.
    """

    def __init__(self, volume: Volume, changes: ForeignChanges, freezing: Freezing) -> None:
        self._volume = volume
        self._changes = changes
        self._freezing = freezing
        self._losses = 0

    async def claim(self, session: Session, *, force: bool = False) -> None:
        """Become the owner.

        Args:
            session: The session.
            force: Take over from a holder that may still live.

        Raises:
            SessionAlreadyOwnedError: Another host owns it; its name is remembered.
            SessionFSError: The store did not answer, or refused.
            OSError: The log cannot be written.
        """
        held: list[int] = []
        is_unclean = False
        try:
            for _ in range(_ROUNDS):
                losses = self._losses
                claimed = await self._volume.remote.claim(session.id, known=session.version, force=force)
                is_unclean = is_unclean or claimed.is_unclean
                dropped = claimed.changes is not None and self._changes.take_over(
                    session, claimed.changes, held
                )
                # A notice that overtook the answer may be about this very ownership: ask again.
                if not dropped and losses == self._losses:
                    break
        except SessionAlreadyOwnedError as problem:
            session.holder = problem.holder
            _log.info("session.claim_refused", session_id=session.id, holder=problem.holder)
            raise
        finally:
            for descriptor in held:
                os.close(descriptor)
        session.holder = ""
        session.own(is_unclean=is_unclean)

    def note_state(self, session: Session, state: SessionState) -> None:
        """Take a notice. A session that was lost is compared at its next use, and claimed at its next change.

        That it is owned is told by the answer to a claim alone, with what changed meanwhile.
        """
        session.commit_problem = state.commit_problem
        if state.owned:
            session.holder = ""
            return
        # A notice that names nobody is about something else than the owner.
        session.holder = state.holder or session.holder
        self._losses += 1
        if not session.owned:
            # It counted as ours when it was opened, perhaps: whoever looks at it next asks the bucket.
            session.disown()
            return
        _log.warning("session.lost", session_id=session.id, holder=state.holder)
        session.disown()
        self._freezing.thaw_session(session.id)
        notifier = self._volume.notifier
        for node in list(self._volume.table.by_number.values()):
            if node.session is session:
                notifier.invalidate_inode(node.number)
                for parent, name in node.places:
                    notifier.invalidate_entry(parent.number, name)
