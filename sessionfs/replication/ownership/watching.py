"""Whether a holder still lives, seen from outside: its beat stands still, or it does not. No clock is compared with another's.

A holder may be replaced when its beat was the same at two looks that are a whole lease apart on this host's CLOCK_BOOTTIME. The time counts from the
end of the first look to the beginning of the last. Every beat has another token, so what was the same at both looks did not move in between. A beat
that is missing stands still too. Nothing is asked between the looks; a process that starts again begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from sessionfs.formats import ownership
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from sessionfs.replication.trio_store import TrioStore

READ_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Sight:
    """A beat as it was seen first.

    Attributes:
        token: Of the beat; "" while there is none.
        since_seconds: When the first look had ended.
    """

    token: str
    since_seconds: float


class Watching:
    """Looks at beats of others.

    Args:
        store: The bucket.
        clock: This host's.
        lease_seconds: The least time for which a beat must stand still.
    """

    def __init__(self, store: TrioStore, clock: Clock, lease_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._seen: dict[str, _Sight] = {}

    async def remaining_seconds(self, record: OwnerRecord) -> float:
        """Look at a holder's beat, and say how much longer it must stand still.

        Args:
            record: Names the holder.

        Returns:
            0 when the holder may be replaced now; the whole lease at the first look, and whenever the beat has moved.

        Raises:
            SessionFSError: The store does not answer.
        """
        asked_seconds = self._clock.elapsed_seconds()
        token, wanted_seconds = await self._look(record)
        known = self._seen.get(record.holder)
        if known is None or known.token != token:
            self._seen[record.holder] = _Sight(token, self._clock.elapsed_seconds())
            return wanted_seconds
        return max(0.0, wanted_seconds - (asked_seconds - known.since_seconds))

    async def _look(self, record: OwnerRecord) -> tuple[str, float]:
        """Give the beat's token, and for how long it must stand still."""
        key = keys.beat_key(record.holder)
        try:
            found, raw = await self._store.read_with_stat(key, tries=READ_TRIES, urgent=True)
        except ObjectNotFoundError:
            return "", self._lease_seconds
        try:
            beat = ownership.decode_beat(raw, key)
        except (CorruptDataError, UnsupportedFormatError):
            return found.token, self._lease_seconds
        return found.token, max(self._lease_seconds, beat.lease_seconds)
