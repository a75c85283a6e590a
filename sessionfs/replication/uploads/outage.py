"""Whether the store can be used. One outage is one event, whatever number of requests found it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sessionfs.model.clock import Clock
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.replication.retry_policy import Kind

FAILURES_OF_AN_OUTAGE = 3
"""So many requests in a row without an answer are an outage."""

_LONGEST_PROBE_SECONDS = 10.0
_LONGEST_PROBE_HURRIED_SECONDS = 1.0


class Outage:
    """The state of the store as the uploader sees it.

    Args:
        settings: How often a store that refuses us is asked again.
        clock: When.
        raise_event: Told once when it begins and once when it ends.

    Attributes:
        reason: Why the store cannot be used, "" when it can.
        keys: Keys whose rows wait for nothing but the end of this, and what their requests found.
    """

    def __init__(
        self,
        settings: ReplicationSettings,
        clock: Clock,
        raise_event: Callable[[str, Mapping[str, str | int | float | bool]], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._raise_event = raise_event
        self._failures = 0
        self._since_seconds = 0.0
        self.reason = ""
        self.next_probe_seconds = 0.0
        self.keys: dict[str, Kind] = {}

    def failed(self, kind: Kind, message: str, *, hurried: bool) -> None:
        """A request found the store unusable.

        Args:
            kind: ``OUTAGE`` or ``ACCESS``.
            message: What it said.
            hurried: Somebody waits for the end of the uploads: ask more often.
        """
        now = self._clock.elapsed_seconds()
        self._failures += 1
        if not self.reason and (kind is Kind.ACCESS or self._failures >= FAILURES_OF_AN_OUTAGE):
            self._since_seconds = now
            self._raise_event("session.storage.degraded", {"reason": message})
            self.reason = message
        elif self.reason:
            self.reason = message
        if kind is Kind.ACCESS:
            pause = self._settings.access_retry_seconds
        else:
            longest = _LONGEST_PROBE_HURRIED_SECONDS if hurried else _LONGEST_PROBE_SECONDS
            pause = min(retry_policy.backoff_seconds(self._failures, self._settings, self._clock), longest)
        self.next_probe_seconds = now + pause

    def answered(self) -> list[str]:
        """A request was answered.

        Returns:
            Keys that waited for this. Those that were refused keep their own time: one key may be refused for ever, and must
            not begin the next outage at once.
        """
        self._failures = 0
        if self.reason:
            lasted = self._clock.elapsed_seconds() - self._since_seconds
            self._raise_event("session.storage.recovered", {"seconds": round(lasted, 3)})
        self.reason = ""
        waiting, self.keys = self.keys, {}
        return sorted(key for key, kind in waiting.items() if kind is Kind.OUTAGE)

    def ask_now(self) -> None:
        """Let the next probe happen at once."""
        self.next_probe_seconds = 0.0
