"""Follows the intent log: applies its records to the journal, as they come, or up to a commit's cut and no further.

Invariants:

* Records are applied on the loop, between awaits, in the order of the log.
* While the log is held (`held`), nobody applies anything but the holder: the tree stands still.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog
import trio

from sessionfs.working_copy.intent_log import IntentLogReader
from sessionfs.working_copy.record_application import RecordApplication
from sessionfs.working_copy.upload_journal import UploadJournal

LOG_LOST = "log_lost"
_IN_FLIGHT_POLL_SECONDS = 0.005
_log = structlog.get_logger("sessionfs.replication")


class LogFollower:
    """Applies the log.

    Args:
        reader: Of the log.
        journal: Remembers how far it was read.
        application: Applies records.
        on_applied: Called after records were applied.
        on_consumed: Told the position up to which the journal has everything.
    """

    def __init__(
        self,
        reader: IntentLogReader,
        journal: UploadJournal,
        application: RecordApplication,
        *,
        on_applied: Callable[[], None],
        on_consumed: Callable[[int], None],
    ) -> None:
        self._reader = reader
        self._journal = journal
        self._application = application
        self._on_applied = on_applied
        self._on_consumed = on_consumed
        self._position = int(journal.meta("log_position", "0"))
        self._grew = trio.Event()
        self._holding = trio.Lock()

    @property
    def position(self) -> int:
        """Up to where the log was applied."""
        return self._position

    def find_place(self) -> None:
        """Find where the log goes on; one that was lost, or lost its end, tells nothing of what was done before."""
        place = self._reader.locate(self.position, int(self._journal.meta("log_sequence", "0")))
        if place.is_continued:
            return
        _log.warning("the intent log does not go on where it was read last", position=self.position)
        self._position = place.position
        with self._journal.transaction():
            self._journal.set_meta("log_position", str(place.position))
            self._journal.set_meta("log_sequence", "0")
            self._journal.set_meta(LOG_LOST, "1")

    def apply(self) -> bool:
        """Apply what there is, unless the log is held; gives whether there was anything."""
        return False if self._holding.locked() else self._apply(None)

    async def catch_up(self, position: int) -> None:
        """Return when every operation before a position is applied."""
        self.apply()
        while self.position < position:
            await trio.sleep(_IN_FLIGHT_POLL_SECONDS)
            self.apply()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Let the tree stand still: only `apply_up_to` changes it inside the block."""
        async with self._holding:
            yield
        self._grew.set()

    def apply_up_to(self, limit: int) -> None:
        """Apply what is before a position, at which no operation was under way; the log is held by the caller."""
        self._apply(limit)

    def note_growth(self) -> None:
        """The log has grown."""
        self._grew.set()

    async def run(self) -> None:
        """Apply records whenever the log has grown."""
        while True:
            await self._grew.wait()
            self._grew = trio.Event()
            if self.apply():
                self._on_consumed(self.position)

    def _apply(self, limit: int | None) -> bool:
        before = self.position
        while limit is None or self.position < limit:
            batch = self._reader.read(self.position, limit=limit)
            if batch.position == self.position:
                break
            self._application.apply(batch.operations, batch.position)
            self._position = batch.position
        if self.position != before:
            self._on_applied()
        return self.position != before
