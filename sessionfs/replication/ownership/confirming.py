"""After a lapse: every record is read again before anything else of its session is sent.

The lease ran out before a beat was confirmed, so whoever waited for that may own our sessions by now. A record that is still the one we wrote is
ours, and the beat that was confirmed since protects it again. Any other, one that is gone and one that cannot be read, is a loss.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from sessionfs.model.errors import CorruptDataError, SessionFSError, UnsupportedFormatError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.ownership.acquisition import Acquisition, shown_holder
from sessionfs.replication.ownership.holdings import Holding

_CONCURRENT = 8
_log = structlog.get_logger("sessionfs.ownership")


class Lose(Protocol):
    """Takes note of a loss."""

    def __call__(self, session: str, *, holder: str, reason: str) -> None:
        """As ``Ownership.lose``."""


class Confirming:
    """Reads records again.

    Args:
        holdings: What is ours, by session.
        acquisition: Reads a record.
        lose: Told of every session whose record is not the one we wrote.
    """

    def __init__(self, holdings: dict[str, Holding], acquisition: Acquisition, lose: Lose) -> None:
        self._holdings = holdings
        self._acquisition = acquisition
        self._lose = lose

    def note_lapse(self) -> None:
        """The lease ran out before the last beat was confirmed."""
        for holding in self._holdings.values():
            holding.is_confirmed = False

    async def confirm_all(self) -> None:
        """Read every record that was not read since the lapse."""
        lapsed = [SessionId(name) for name, holding in self._holdings.items() if not holding.is_confirmed]
        await for_each(lapsed, self.confirm, limit=_CONCURRENT)

    async def confirm(self, session: SessionId) -> None:
        """Read one record; without an answer the session stays unconfirmed."""
        holding = self._holdings.get(session)
        if holding is None or holding.claim.is_presumed:
            return
        try:
            found = await self._acquisition.read(session)
        except (CorruptDataError, UnsupportedFormatError) as problem:
            self._lose(session, holder="", reason=str(problem))
            return
        except SessionFSError as problem:
            _log.warning("record not read", session=session, problem=str(problem))
            return
        if self._holdings.get(session) is not holding:
            return
        if found is not None and found.stat.token == holding.claim.record_token:
            holding.is_confirmed = True
            return
        holder = shown_holder(found.record) if found is not None else ""
        self._lose(session, holder=holder, reason="the record was replaced while the lease had run out")
