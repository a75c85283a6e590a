"""The sweep: compares files that were thought clean with the working copy, at a bounded rate, after activity only.

Nothing should ever be found: it is the net below the intent log (a store through a mapping whose descriptor is closed, a change made in the state
directory by hand). An idle mount is not swept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import trio

from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.settings import ReplicationSettings
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_SLICE_ENTRIES = 50
_SLICE_SECONDS = 0.05


class Sweeper:
    """Looks for changes that no record told of.

    Args:
        journal: What is thought clean.
        layout: Where the working copy is.
        settings: How often.
        clock: When a finding became owed.
        exclusions: Names that are never owed.
        wake: Called when something was found.
    """

    def __init__(
        self,
        journal: UploadJournal,
        layout: StateLayout,
        settings: ReplicationSettings,
        clock: Clock,
        exclusions: Exclusions,
        *,
        wake: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._exclusions = exclusions
        self._wake = wake
        self._activity = trio.Event()
        self.found = 0

    def note_activity(self) -> None:
        """Let the next sweep happen."""
        self._activity.set()

    async def run(self) -> None:
        """Sweep after activity, at most every ``sweep_interval_seconds``; once more after the last."""
        while True:
            await self._activity.wait()
            await trio.sleep(self._settings.sweep_interval_seconds)
            self._activity = trio.Event()
            await self.sweep()

    async def sweep(self) -> int:
        """Compare everything that is thought clean once.

        Returns:
            How many files were found changed.
        """
        before = self.found
        after = 0
        while True:
            rows = self._journal.clean_files(after, _SLICE_ENTRIES)
            if not rows:
                break
            for number, identity in rows:
                after = number
                self._compare(number, identity)
            await trio.sleep(_SLICE_SECONDS)
        if self.found != before:
            self._wake()
        return self.found - before

    def _compare(self, number: int, identity: tuple[int, int, int]) -> None:
        for session, path in self._journal.paths_of(number):
            base = os.path.join(os.fsencode(self._layout.sessions), session.encode())
            try:
                status = os.lstat(os.path.join(base, path))
            except OSError:
                return
            if not stat.S_ISREG(status.st_mode) or self._exclusions.match(path):
                return
            key = keys.live_key(session, path, is_directory=False)
            found = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if key is None or found == identity or self._journal.work(key) is not None:
                continue
            self.found += 1
            self._journal.mark(key, session, self._clock.wall_ns())
