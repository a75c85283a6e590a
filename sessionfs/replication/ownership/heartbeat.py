"""When to beat, and what the daemon is told of it through the lease page.

* A confirmed beat is followed by the next one after the interval; one that failed by another try, soon, with back-off. The deadline does not
  move before a beat is confirmed.
* The page is given a new deadline, and the end of an outage, only while everything that is owned is known to be ours (`is_settled`): after a
  lapse, a restart or an outage the records are read first. Until then the old deadline, and the outage, stand.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from sessionfs.model.clock import Clock
from sessionfs.model.errors import UnavailableError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.replication.ownership.beats import Beat, Beats
from sessionfs.replication.ownership.lease import Lease
from sessionfs.replication.trio_store import TrioStore
from sessionfs.working_copy.lease_page import LeasePage

_log = structlog.get_logger("sessionfs.ownership")


class Heartbeat:
    """Beats in time.

    Args:
        store: The bucket.
        settings: The lease, the interval, back-off.
        clock: Times, and names of attempts and of this process.
        page: Read by the daemon.
        host: Name of this machine, for people.
        is_settled: Whether everything that is owned is known to be ours.
        on_lapse: Called when a beat was confirmed only after the lease had run out.
        on_replaced: Called with a reason when another process has this one's name; then this one takes another.

    Attributes:
        beaten: Set by every confirmed beat; whoever waits for the next one replaces it.
    """

    def __init__(
        self,
        store: TrioStore,
        settings: ReplicationSettings,
        clock: Clock,
        *,
        page: LeasePage,
        host: str,
        is_settled: Callable[[], bool],
        on_lapse: Callable[[], None],
        on_replaced: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._page = page
        self._is_settled = is_settled
        self._on_replaced = on_replaced
        self._lease = Lease(settings.lease_seconds, settings.beat_interval_seconds)
        self._beats = Beats(
            store,
            self._lease,
            clock,
            lease_seconds=settings.lease_seconds,
            holder=clock.unique_id(),
            host=host,
            on_lapse=on_lapse,
        )
        self._failures = 0
        self._is_answered = True
        self._next_seconds = float("-inf")
        self.beaten = trio.Event()

    @property
    def holder(self) -> str:
        """Name of this process."""
        return self._beats.holder

    @property
    def is_valid(self) -> bool:
        """Whether the lease lasts."""
        return self._lease.is_valid(self._clock.elapsed_seconds())

    @property
    def allows_request(self) -> bool:
        """Whether enough of the lease is left for one more changing request."""
        return self._lease.allows_request(self._clock.elapsed_seconds())

    async def beat_when_due(self) -> float:
        """Beat if it is time to; give the seconds until it is time again."""
        if self._clock.elapsed_seconds() >= self._next_seconds:
            started_seconds = self._clock.elapsed_seconds()
            self._note(await self._beats.send(), started_seconds)
        return self._next_seconds - self._clock.elapsed_seconds()

    async def ensure(self) -> None:
        """Let a beat of ours be in the bucket, and the lease leave time for a claim.

        Raises:
            UnavailableError: It is not known to be there.
        """
        started_seconds = self._clock.elapsed_seconds()
        ended = await self._beats.ensure()
        if ended is None:
            return
        self._note(ended, started_seconds)
        if ended is not Beat.CONFIRMED:
            raise UnavailableError(
                f"this host's beat is not in the bucket: {self._beats.problem}", remedy="try again"
            )

    async def end(self) -> None:
        """Nothing is owned any more: remove the beat, and take the deadline back."""
        if not self._beats.is_stored:
            return
        await self._beats.end()
        self._page.set_deadline(self._lease.deadline_seconds)
        self._page.set_outage(is_outage=False)

    async def bury(self, holder: str) -> None:
        """Remove the beat of a process of this state directory that died and owns nothing any more."""
        await self._beats.bury(holder)

    def note_outage(self) -> None:
        """Another request of ownership was not answered."""
        self._is_answered = False
        self._page.set_outage(is_outage=True)

    def publish(self) -> None:
        """Give the daemon what is known, if everything is settled."""
        if self._lease.deadline_seconds and self._is_settled():
            self._page.set_deadline(self._lease.deadline_seconds)
            if self._is_answered:
                self._page.set_outage(is_outage=False)

    def _note(self, ended: Beat, started_seconds: float) -> None:
        if ended is Beat.CONFIRMED:
            self._failures = 0
            self._is_answered = True
            self._next_seconds = started_seconds + self._lease.interval_seconds
            self.publish()
            self.beaten.set()
            return
        _log.warning("beat failed", problem=self._beats.problem)
        self._failures += 1
        pause = retry_policy.backoff_seconds(self._failures, self._settings, self._clock)
        self._next_seconds = self._clock.elapsed_seconds() + min(pause, self._lease.interval_seconds)
        if ended is Beat.UNANSWERED:
            self.note_outage()
        if ended is Beat.REPLACED:
            self._on_replaced(self._beats.problem)
            self._beats.rename(self._clock.unique_id())
            self._page.set_deadline(0.0)
