"""A session that is owned for the length of one piece of work.

Order: claim (which fences the chain: no older owner can commit any more), the work, release. Work that failed releases too: what it left is as
good as any owner's. Work that was killed does not; the next run claims again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from sessionfs.formats.manifest import Manifest
from sessionfs.model.errors import OwnershipLostError, SessionFSError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.ownership.holdings import Claim

_RELEASE_SECONDS = 10.0


class Exclusive(Protocol):
    """Ownership as this package needs it."""

    @property
    def holder(self) -> str:
        """Who we are."""

    async def claim(self, session: SessionId) -> Claim:
        """Own a session, or raise ``SessionAlreadyOwnedError``."""

    async def release(self, session: SessionId) -> None:
        """Let others own it at once."""

    def may_change(self, session: str) -> bool:
        """Whether a changing request may be sent now."""


@dataclass(frozen=True, slots=True)
class Held:
    """A session that is ours for now.

    Attributes:
        session: The session.
        holder: Who we are.
        epoch: Ours.
        newest: The newest generation; None or number 0 when nothing was ever committed.
        token: Of ``manifest.json``: our fence.
        exclusive: Says whether it still is ours.
    """

    session: SessionId
    holder: str
    epoch: int
    newest: Manifest | None
    token: str
    exclusive: Exclusive

    def check(self) -> None:
        """Require that a changing request may be sent now.

        Raises:
            OwnershipLostError: It may not.
        """
        if not self.exclusive.may_change(self.session):
            raise OwnershipLostError(
                f"session {self.session} is no longer owned here; nothing more was changed",
                remedy="run the command again",
            )


@asynccontextmanager
async def holding(exclusive: Exclusive, session: SessionId) -> AsyncIterator[Held]:
    """Own a session while the block lasts.

    Raises:
        SessionAlreadyOwnedError: Another host does.
        UnavailableError, AccessError: The store does not answer.
    """
    claim = await exclusive.claim(session)
    if claim.is_presumed:
        raise UnavailableError(f"the store does not say who owns session {session}", remedy="try again later")
    held = Held(session, exclusive.holder, claim.epoch, claim.manifest, claim.manifest_token, exclusive)
    try:
        yield held
    except (Exception, BaseExceptionGroup, trio.Cancelled, KeyboardInterrupt):
        with trio.move_on_after(_RELEASE_SECONDS, shield=True), suppress(SessionFSError):
            await exclusive.release(session)
        raise
    await exclusive.release(session)
