"""Settings of event logs."""

from __future__ import annotations

from dataclasses import dataclass

from sessionfs.model.errors import SettingsError

_MAX_WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class EventLogSettings:
    """How events are gathered and written.

    Attributes:
        batch_window_seconds: Events wait so long for others before they are written together, 0 to 60. ``flush`` does not wait.
        max_pending_bytes: An append waits for the place when more than this has not been written yet, from 1.
        concurrent_requests: Sessions that ``list`` and ``flush`` look at at once, from 1.

    Raises:
        SettingsError: A value is out of range.
    """

    batch_window_seconds: float = 0.05
    max_pending_bytes: int = 8 << 20
    concurrent_requests: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.batch_window_seconds <= _MAX_WINDOW_SECONDS:
            raise SettingsError(f"batch_window_seconds is {self.batch_window_seconds}, 0 to 60 is allowed")
        if self.max_pending_bytes < 1 or self.concurrent_requests < 1:
            raise SettingsError("max_pending_bytes and concurrent_requests begin at 1")
