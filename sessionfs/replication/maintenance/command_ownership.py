"""Ownership for the length of a command: a journal and a lease page of its own, beats while it works, nothing left on this host.

To everybody else a command is one more host: a session that a mount owns is refused until the mount releases it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import trio

from sessionfs.model.clock import Clock, boot_id
from sessionfs.model.errors import OwnershipLostError, SessionAlreadyOwnedError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.trio_store import TrioStore
from sessionfs.working_copy.lease_page import LeasePage
from sessionfs.working_copy.upload_journal import UploadJournal

OnWait = Callable[[str], None]
_FIRST_ROOT = 10
_BEATS = 1.5
"""So many intervals without a beat, and a holder may be dead."""


class CommandOwnership:
    """`Exclusive` over the real thing.

    Args:
        ownership: The real thing.
        journal: Its journal.
        look_again_seconds: A holder that lives gives a sign within this time.
        on_wait: Told why the command waits for a holder that may be dead (a command that was killed, say); None does not wait.
    """

    def __init__(
        self,
        ownership: Ownership,
        journal: UploadJournal,
        *,
        look_again_seconds: float,
        on_wait: OnWait | None,
    ) -> None:
        self._ownership = ownership
        self._journal = journal
        self._look_again_seconds = look_again_seconds
        self._on_wait = on_wait

    @property
    def holder(self) -> str:
        """Who we are."""
        return self._ownership.holder

    async def claim(self, session: SessionId, *, force: bool = False) -> Claim:
        """Own a session; there is no working copy that could be behind.

        Args:
            session: The session.
            force: Take it over although its holder may live.
        """
        if self._journal.session(session) is None:
            self._journal.add_session(
                session, _FIRST_ROOT + len(self._journal.sessions()), known=False, written=False
            )
        claim = await self._claim(session, force=force)
        if not claim.is_presumed:
            self._ownership.note_caught_up(session)
        return claim

    async def _claim(self, session: SessionId, *, force: bool) -> Claim:
        """Claim; a holder that gives no sign of life is waited for, one that lives is not."""
        last_seconds = float("inf")
        while True:
            try:
                return await self._ownership.claim(session, force=force)
            except SessionAlreadyOwnedError as refusal:
                left_seconds = refusal.remaining_seconds
                has_moved = left_seconds >= last_seconds
                if self._on_wait is None or left_seconds <= 0 or has_moved:
                    raise
                self._on_wait(refusal.message)
                last_seconds = left_seconds
            await trio.sleep(min(left_seconds, self._look_again_seconds))

    async def release(self, session: SessionId) -> None:
        """Let others own it."""
        if not self._ownership.owns(session):
            raise OwnershipLostError(f"session {session} was taken by another owner")
        await self._ownership.release(session)

    def owns(self, session: str) -> bool:
        """Whether a session is held, may it be changed at this moment or not."""
        return self._ownership.owns(session)

    def may_change(self, session: str) -> bool:
        """Whether a changing request may be sent now."""
        return self._ownership.may_change(session)


@asynccontextmanager
async def command_ownership(
    store: TrioStore,
    settings: ReplicationSettings,
    clock: Clock,
    *,
    host: str,
    on_wait: OnWait | None = None,
) -> AsyncIterator[CommandOwnership]:
    """Be somebody who can own sessions while the block lasts.

    Args:
        store: The bucket; its changing requests are guarded from then on.
        settings: The lease.
        clock: Times and names.
        host: Name of this machine, for people.
        on_wait: As for `CommandOwnership`.
    """
    with tempfile.TemporaryDirectory(prefix="sessionfs-") as directory:
        journal = UploadJournal(os.path.join(directory, "journal.db"), clock=clock)
        page = LeasePage.open(os.path.join(directory, "lease"), boot_id())
        ownership = Ownership(
            journal, store, settings, clock, page=page, raise_event=_unheard, tell=_untold, host=host
        )
        store.guard = ownership.guard
        problem: Exception | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ownership.run)
                try:
                    yield CommandOwnership(
                        ownership,
                        journal,
                        look_again_seconds=_BEATS * settings.beat_interval_seconds,
                        on_wait=on_wait,
                    )
                except Exception as error:  # noqa: BLE001 - whatever the block raises comes out as it is
                    # Not through the nursery, which would wrap it.
                    problem = error
                nursery.cancel_scope.cancel()
        finally:
            page.close()
            journal.close()
        if problem is not None:
            raise problem


def _unheard(_name: str, _fields: Mapping[str, str | int | float | bool]) -> None:
    """A command's events are its output."""


def _untold(_state: object) -> None:
    """There is no daemon to tell."""
