"""Until when this process surely owns its sessions: arithmetic on CLOCK_BOOTTIME, no request.

The lease runs from the moment the last confirmed beat was *sent*. With ``lease_seconds`` = 60::

    0 s    beat sent; it arrives, and others see it, at this moment or later
    35 s   the last changing request may be sent (`allows_request`: 10 s reserve)
    45 s   deadline (15 s margin): the daemon refuses changes
    60 s   the earliest moment at which another host, which saw the beat appear at 0 s, may take over

So a request has 25 s (reserve and margin) before anybody else may write. A server that is silent is given up by then: 5 s to connect and 20 s without
a byte (``stores/s3/connection.py``), no repetition by the SDK. A shorter limit would fail honest requests: a server-side copy of 512 MiB is one
request, and a Complete of thousands of parts takes long on a large store. While such a server sends signs of life, and when a request that this
host gave up is applied late, and while a machine is paused with a request under way, no clock helps: then the fence and the epochs do
(``fence``), and they are what is promised. A long upload asks again before its object appears (``TrioStore.guard``).

After the deadline has passed once, the next confirmed beat alone proves nothing: somebody may have taken over meanwhile. `confirm` says so, and the
records are read again before anything else is sent.
"""

from __future__ import annotations

_MARGIN = 1 / 4
_RESERVE = 1 / 6
_BEATS_A_LEASE = 4


class Lease:
    """How long the last confirmed beat counts.

    Args:
        lease_seconds: How long a beat must stand still before others may take over.
        beat_interval_seconds: How often to beat; at least four times in a lease, whatever it says.

    Attributes:
        deadline_seconds: On ``Clock.elapsed_seconds``; 0 for none.
        interval_seconds: Time between beats.
    """

    def __init__(self, lease_seconds: float, beat_interval_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self.interval_seconds = min(beat_interval_seconds, lease_seconds / _BEATS_A_LEASE)
        self.deadline_seconds = 0.0

    def confirm(self, sent_seconds: float, now_seconds: float) -> bool:
        """Note that a beat is in the bucket.

        Args:
            sent_seconds: When it was sent.
            now_seconds: When that was known.

        Returns:
            Whether the lease had run out before that was known.
        """
        has_lapsed = 0 < self.deadline_seconds < now_seconds
        deadline = sent_seconds + self._lease_seconds * (1 - _MARGIN)
        self.deadline_seconds = max(self.deadline_seconds, deadline)
        return has_lapsed

    def end(self) -> None:
        """Nothing is owned any more."""
        self.deadline_seconds = 0.0

    def is_valid(self, now_seconds: float) -> bool:
        """Whether it lasts."""
        return now_seconds < self.deadline_seconds

    def allows_request(self, now_seconds: float) -> bool:
        """Whether enough is left for one more changing request."""
        return now_seconds + self._lease_seconds * _RESERVE <= self.deadline_seconds
