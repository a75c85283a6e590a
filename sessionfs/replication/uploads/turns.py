"""Chooses whose turn it is, from a window of the journal's oldest rows.

The window is read again when keys were marked, but not more often than it can be worked off: a backlog of any length costs the same
per upload. A row that is blocked lets what blocks it come first, wherever that is in the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.uploads import schedule
from sessionfs.replication.uploads.schedule import Blockers
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.upload_journal import UploadJournal, Work

FAR_NS = 1 << 62

_NANOSECONDS = 1_000_000_000
_WINDOW_ROWS = 512
_WIDE_WINDOW_ROWS = 20_000
_SHARE_ROWS = 32
_REFRESH_SECONDS = 0.1
_WIDE_SECONDS = 1.0
_BACKLOG_SECONDS = 1.0

Start = Callable[[Work, bool], None]
"""Starts a row; the flag says that bytes must be brought to safety first. The key is in flight when it returns."""


class Turns:
    """Chooses rows.

    Args:
        journal: The rows.
        settings: Delays, and how many at once.
        clock: When a row is due.
        in_flight: Keys that are under way.
        sessions: How many of them by session.
        is_hurried: Whether a key does not wait for its file to be quiet.
        urgent: Keys that somebody waits for: they come first, wherever they are in the journal.
        may_change: Whether this host may change a session's objects now.
    """

    def __init__(
        self,
        journal: UploadJournal,
        settings: ReplicationSettings,
        clock: Clock,
        *,
        in_flight: Collection[str],
        sessions: Counter[str],
        is_hurried: Callable[[str], bool],
        urgent: Callable[[], Collection[str]] = tuple,
        may_change: Callable[[str], bool] = lambda _session: True,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._in_flight = in_flight
        self._sessions = sessions
        self._is_hurried = is_hurried
        self._urgent = urgent
        self._may_change = may_change
        self._immutable = Exclusions(settings.immutable_globs)
        self._rows: list[Work] = []
        self._is_stale = True
        self._was_full = False
        self._refreshed_seconds = float("-inf")
        self._widened_seconds = float("-inf")
        self._next_backoff_ns: int | None = None
        self._blocked: dict[str, Blockers] = {}
        self._seen: set[str] = set()
        self._pauses: list[float] = []

    def note_change(self) -> None:
        """Rows were marked, or may run earlier than they said."""
        self._is_stale = True

    def choose(self, start: Start) -> float | None:
        """Start what may run.

        Returns:
            Seconds until there may be more, None when only a change brings more.
        """
        self._blocked, self._seen, self._pauses = {}, set(), []
        self._refresh()
        for key in sorted(self._urgent()):
            urgent = self._runnable(key)
            if urgent is not None and self._has_place():
                self._consider(urgent, start)
        for row in schedule.fair_order(list(self._rows), self._sessions):
            if not self._has_place():
                break
            self._consider(row, start)
        self._untie(start)
        self._rows = [row for row in self._rows if row.key not in self._in_flight]
        return min(self._pauses, default=None)

    def row_for_probe(self, waiting: Collection[str]) -> Work | None:
        """Give a row that would send a request now: the least tried, then the oldest, so that no single key keeps the rest away.

        Args:
            waiting: Keys that wait for nothing but the store.
        """
        now_ns = self._clock.wall_ns()
        rows = [
            row
            for row in self._journal.oldest_work(FAR_NS, _WINDOW_ROWS)
            if row.not_before_ns <= now_ns or row.key in waiting
        ]
        for row in sorted(rows, key=lambda row: row.tries)[:_SHARE_ROWS]:
            if not self._may_change(row.session):
                continue
            if not schedule.blockers(self._journal, row.key, self._in_flight).all:
                return row
        return None

    def forget_backoff(self) -> None:
        """Let every row that backs off run now."""
        with self._journal.transaction():
            for row in self._journal.oldest_work(FAR_NS, _WIDE_WINDOW_ROWS):
                if row.not_before_ns:
                    self._journal.defer_work(row.key, not_before_ns=0, reason=row.reason, tries=row.tries)
        self._is_stale = True

    # --- the window

    def _refresh(self) -> None:
        now = self._clock.elapsed_seconds()
        now_ns = self._clock.wall_ns()
        is_backoff_over = self._next_backoff_ns is not None and self._next_backoff_ns <= now_ns
        if is_backoff_over or (self._was_full and not self._rows):
            self._is_stale = True
        age = now - self._refreshed_seconds
        if self._is_stale and self._rows and age < _REFRESH_SECONDS:
            self._pauses.append(_REFRESH_SECONDS - age)
        elif self._is_stale:
            self._read(now, now_ns)
        if self._next_backoff_ns is not None:
            self._pauses.append(max(0.0, (self._next_backoff_ns - now_ns) / _NANOSECONDS))

    def _read(self, now: float, now_ns: int) -> None:
        self._rows = self._journal.oldest_work(now_ns, _WINDOW_ROWS)
        self._refreshed_seconds = now
        self._is_stale = False
        self._was_full = len(self._rows) == _WINDOW_ROWS
        if self._was_full:
            self._widen(now, now_ns)
            self._next_backoff_ns = now_ns + int(_BACKLOG_SECONDS * _NANOSECONDS)
            return
        waiting = [row.not_before_ns for row in self._journal.oldest_work(FAR_NS, _WINDOW_ROWS)]
        self._next_backoff_ns = min((time_ns for time_ns in waiting if time_ns > now_ns), default=None)

    def _widen(self, now: float, now_ns: int) -> None:
        """One session fills the window: let the others have their oldest rows in it too."""
        if now - self._widened_seconds < _WIDE_SECONDS:
            return
        seen = Counter(row.session for row in self._rows)
        if all(session in seen for session in self._journal.work_counts()):
            return
        self._widened_seconds = now
        for row in self._journal.oldest_work(now_ns, _WIDE_WINDOW_ROWS)[_WINDOW_ROWS:]:
            if seen[row.session] < _SHARE_ROWS:
                seen[row.session] += 1
                self._rows.append(row)

    # --- one row

    def _has_place(self) -> bool:
        return len(self._in_flight) < self._settings.concurrent_uploads

    def _consider(self, row: Work, start: Start) -> None:
        """Start a row, or else whatever blocks it."""
        if not self._may_change(row.session):
            return
        hurried = self._is_hurried(row.key)
        waiting = [row.key]
        while waiting and self._has_place():
            key = waiting.pop()
            if key in self._seen or key in self._in_flight:
                continue
            self._seen.add(key)
            found = row if key == row.key else self._runnable(key)
            if found is None:
                continue
            pause = self._due_in_seconds(found, hurried=hurried or self._is_hurried(key))
            if pause > 0:
                self._pauses.append(pause)
                continue
            blockers = schedule.blockers(self._journal, key, self._in_flight)
            if not blockers.all:
                start(found, False)  # noqa: FBT003 - a callback's one flag
                continue
            self._blocked[key] = blockers
            self._explain(key, blockers)
            waiting.extend(sorted(blockers.all))

    def _explain(self, key: str, blockers: Blockers) -> None:
        """A row that waits for one that waits for a person says so."""
        for other in sorted(blockers.all):
            row = self._journal.work(other)
            if row is not None and (row.held or row.state != "owed"):
                self._journal.explain_work(
                    key, f"waits for {other!r}: {row.reason or 'many files were deleted'}"
                )
                return

    def _untie(self, start: Start) -> None:
        key = schedule.find_knot(self._blocked) if self._has_place() else None
        row = self._runnable(key) if key is not None else None
        if row is not None:
            start(row, True)  # noqa: FBT003 - a callback's one flag

    def _runnable(self, key: str) -> Work | None:
        row = self._journal.work(key)
        return row if row is not None and row.state == "owed" and not row.held else None

    def _is_closed_for_good(self, key: str) -> bool:
        """Whether a file is one that never changes once it is closed, and is closed: there is nothing to wait for."""
        live = keys.parse_live_key(key)
        if live is None or not live.path or not self._immutable.match(live.path):
            return False
        wanted = self._journal.wanted(key)
        return wanted is not None and wanted.node.writers == 0

    def _due_in_seconds(self, row: Work, *, hurried: bool) -> float:
        now_ns = self._clock.wall_ns()
        if hurried or self._is_closed_for_good(row.key):
            return (row.not_before_ns - now_ns) / _NANOSECONDS
        known = self._journal.object(row.key)
        due_ns = schedule.due_ns(row, known.size_bytes if known else 0, self._settings, now_ns)
        return (due_ns - now_ns) / _NANOSECONDS
