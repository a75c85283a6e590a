"""The beat of this process: one small object, ``hosts/<holder>.json``, for all sessions that it owns.

Invariants:

* A beat is put only over the one before (first: only if absent). Every beat has other bytes, so a token never comes back.
* A beat counts from when it was sent, and only once it is known to be in the bucket. One whose answer was lost counts when it is found there.
* Bytes under our key that none of our attempts put there are those of another process with this holder's name: a clone of this machine. Then
  this process owns nothing (`Beat.REPLACED`).
* A beat that is gone is put again: that alone takes nothing from anybody.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import structlog
import trio

from sessionfs.formats import ownership
from sessionfs.formats.ownership import BeatRecord
from sessionfs.model import keys
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import SessionFSError
from sessionfs.replication.ownership.lease import Lease
from sessionfs.replication.ownership.presuming import is_unanswered
from sessionfs.replication.trio_store import Landed, Moved, TrioStore, write_id_of
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectMetadata, Token

_ROUNDS = 3
_REMEMBERED = 4096
_log = structlog.get_logger("sessionfs.ownership")


class Beat(enum.Enum):
    """How a beat ended."""

    CONFIRMED = "confirmed"
    UNANSWERED = "unanswered"
    """It is not known whether it is in the bucket."""
    FAILED = "failed"
    """The store answered, and it is not in the bucket."""
    REPLACED = "replaced"
    """Another process beats under this name."""


class Beats:
    """Beats.

    Args:
        store: The bucket.
        lease: Extended by every confirmed beat.
        clock: Times and names of attempts.
        lease_seconds: What the beats say.
        holder: Whose they are.
        host: Name of the machine, for people.
        on_lapse: Called when a beat was confirmed after the lease had run out, before the lease is extended for anybody.

    Attributes:
        holder: Whose beats they are.
        problem: Why the last one failed, "" when it did not.
    """

    def __init__(
        self,
        store: TrioStore,
        lease: Lease,
        clock: Clock,
        *,
        lease_seconds: float,
        holder: str,
        host: str,
        on_lapse: Callable[[], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._host = host
        self._on_lapse = on_lapse
        self._alone = trio.Lock()
        self._counter = 0
        self._token = ""
        self._sent_seconds: dict[str, float] = {}
        self.holder = holder
        self.problem = ""

    @property
    def is_stored(self) -> bool:
        """Whether a beat of ours is in the bucket, as far as known."""
        return self._token != ""

    async def send(self) -> Beat:
        """Beat once. Two at a time follow one another."""
        async with self._alone:
            return await self._send()

    async def ensure(self) -> Beat | None:
        """Beat, unless the last confirmed beat leaves time for the steps of a claim: None."""
        async with self._alone:
            if self.is_stored and self._lease.allows_request(self._clock.elapsed_seconds()):
                return None
            return await self._send()

    async def end(self) -> None:
        """Remove the beat: nothing is owned any more. Without an answer it stays, and nobody minds."""
        async with self._alone:
            self._lease.end()
            token, self._token = self._token, ""
            if token:
                await self._remove(self.holder, token)

    async def bury(self, holder: str) -> None:
        """Remove the beat of a process of this state directory that died, once it owns nothing any more."""
        try:
            found = await self._store.head(keys.beat_key(holder), urgent=True)
        except SessionFSError as problem:
            _log.info("beat not removed", holder=holder, problem=str(problem))
            return
        if found is not None:
            await self._remove(holder, found.token)

    def rename(self, holder: str) -> None:
        """Beat under another name from now on; the old one is somebody else's."""
        self.holder = holder
        self._token = ""
        self._sent_seconds.clear()
        self._lease.end()

    async def _send(self) -> Beat:
        self.problem = ""
        for _ in range(_ROUNDS):
            write_id = self._clock.unique_id()
            sent_seconds = self._note_sent(write_id)
            condition: Condition = IfMatch(Token(self._token)) if self._token else IfAbsent()
            try:
                outcome = await self._store.put(
                    keys.beat_key(self.holder),
                    self._body(),
                    condition=condition,
                    metadata=ObjectMetadata({"sessionfs-write": write_id}, "application/json"),
                    urgent=True,
                )
            except SessionFSError as problem:
                self.problem = str(problem)
                return Beat.UNANSWERED if is_unanswered(problem) else Beat.FAILED
            if isinstance(outcome, Landed):
                self._confirm(outcome.token, sent_seconds)
                return Beat.CONFIRMED
            if not isinstance(outcome, Moved):
                break
            if outcome.found is None:
                self._token = ""
                continue
            earlier_seconds = self._sent_seconds.get(write_id_of(outcome.found))
            if earlier_seconds is None:
                self.problem = f"another process beats as {self.holder}"
                return Beat.REPLACED
            self._confirm(outcome.found.token, earlier_seconds)
        self.problem = "the beat was sent, and not seen to arrive"
        return Beat.UNANSWERED

    def _note_sent(self, write_id: str) -> float:
        self._counter += 1
        now_seconds = self._clock.elapsed_seconds()
        self._sent_seconds[write_id] = now_seconds
        while len(self._sent_seconds) > _REMEMBERED:
            del self._sent_seconds[next(iter(self._sent_seconds))]
        return now_seconds

    def _body(self) -> bytes:
        return ownership.encode(
            BeatRecord(
                holder=self.holder,
                counter=self._counter,
                lease_seconds=self._lease_seconds,
                host=self._host,
                sent_at=utc_text(self._clock.wall_ns()),
            )
        )

    def _confirm(self, token: str, sent_seconds: float) -> None:
        self._token = token
        if self._lease.confirm(sent_seconds, self._clock.elapsed_seconds()):
            self._on_lapse()

    async def _remove(self, holder: str, token: str) -> None:
        try:
            await self._store.delete(keys.beat_key(holder), condition=IfMatch(Token(token)), urgent=True)
        except SessionFSError as problem:
            _log.info("beat not removed", holder=holder, problem=str(problem))
