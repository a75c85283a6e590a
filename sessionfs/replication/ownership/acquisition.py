"""The ownership record: who may take it, and how it changes hands.

A record is only ever replaced under the condition that it is the one read, with the next epoch: of several who try, one wins, and no two
acquisitions have one epoch. Who may:

* nobody has it: anybody (above the epoch of the manifest, when there is one);
* it is ours (the token and holder are what our journal wrote last, or its write id is one that our journal noted before sending it, or its holder
  is this very process): we, at once. This host holds the lock of the state directory, so no other process is that owner;
* it was released: anybody, at once;
* it is held: whoever saw the holder's beat stand still for a whole lease (``watching``), or is told to (`force`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import trio

from sessionfs.formats import ownership
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import (
    ConcurrentRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.ownership.fence import Base, Fence
from sessionfs.replication.ownership.notes import HELD, LOST, OwnershipNotes
from sessionfs.replication.ownership.watching import READ_TRIES, Watching
from sessionfs.replication.trio_store import Landed, Moved, NotLanded, TrioStore, write_id_of
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectMetadata, ObjectStat, Token
from sessionfs.working_copy.journal_tree import SessionRow

How = Literal["created", "released", "resumed", "taken", "forced"]

_ROUNDS = 5
_TRIES = 3
_SHOWN_DIGITS = 8


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it was read.

    Attributes:
        record: What it says.
        stat: Its token and metadata.
    """

    record: OwnerRecord
    stat: ObjectStat


@dataclass(frozen=True, slots=True)
class Acquired:
    """The record is ours.

    Attributes:
        epoch: Ours.
        how: What allowed it.
        token: Of the record.
        former: Who had it before, None for nobody.
        base: The manifest, when it had to be read; its fence reads it else.
    """

    epoch: int
    how: How
    token: str
    former: OwnerRecord | None = None
    base: Base | None = None


class Acquisition:
    """Changes records.

    Args:
        store: The bucket.
        clock: Times and names of attempts.
        notes: What the journal remembers.
        watching: Whether others live.
        fence: Reads manifests.
        host: Name of this machine, for people.
    """

    def __init__(
        self,
        store: TrioStore,
        clock: Clock,
        notes: OwnershipNotes,
        watching: Watching,
        fence: Fence,
        *,
        host: str,
    ) -> None:
        self._store = store
        self._clock = clock
        self._notes = notes
        self._watching = watching
        self._fence = fence
        self._host = host

    async def acquire(
        self, row: SessionRow, holder: str, *, force: bool = False, least_epoch: int = 1
    ) -> Acquired:
        """Make the record ours, and note it in the journal.

        Args:
            row: The session as the journal has it.
            holder: Who we are; our beat is in the bucket.
            force: Take it although its holder may live.
            least_epoch: The epoch is at least this.

        Raises:
            SessionAlreadyOwnedError: Another host has it.
            CorruptDataError, UnsupportedFormatError: The record cannot be read; nothing is written.
            UnavailableError: It changes again and again, or the answer was lost: it may be ours, and the next try finds out.
            SessionFSError: The store does not answer.
        """
        base: Base | None = None
        for _ in range(_ROUNDS):
            found = await self.read(row.id)
            how, is_continued = await self._permit(row, found, holder, force=force)
            if found is None and base is None:
                base = await self._fence.read(row.id)
            before = found.record.epoch if found is not None else base.epoch if base is not None else 0
            epoch = max(before + 1, least_epoch)
            record = self._record(row.id, holder, epoch, "held")
            write_id = self._clock.unique_id()
            self._notes.note_claim(row.id, write_id, epoch=epoch, is_continued=is_continued)
            outcome = await self._put(record, found.stat.token if found is not None else None, write_id)
            if isinstance(outcome, Landed):
                self._notes.note_acquired(row.id, epoch=epoch, token=outcome.token, holder=holder)
                return Acquired(epoch, how, outcome.token, found.record if found is not None else None, base)
        raise UnavailableError(f"who owns session {row.id} changes all the time", remedy="try again")

    async def release(self, session: SessionId, holder: str, *, epoch: int, token: str) -> None:
        """Give the record up. Once that was sent this host does not own the session, whatever the answer: it may arrive late.

        Raises:
            OwnershipLostError: Another host has it.
            UnavailableError: The answer was lost, or nothing was sent: then the journal says that the session is still held.
            SessionFSError: Nothing was sent; likewise.
        """
        record = self._record(session, holder, epoch, "released")
        self._notes.note_released(session, token)
        try:
            outcome = await self._put(record, Token(token), self._clock.unique_id())
        except OutcomeUnknownError as problem:
            raise UnavailableError(
                f"it is not known whether session {session} was released: {problem.message}"
            ) from problem
        except SessionFSError:
            self._notes.note_kept(session)
            raise
        if isinstance(outcome, Landed):
            self._notes.note_released(session, outcome.token)
            return
        if isinstance(outcome, Moved):
            raise OwnershipLostError(
                f"session {session} was taken over by another host before it was released"
            )
        raise UnavailableError(f"the release of session {session} was sent, and not seen to arrive")

    async def read(self, session: SessionId) -> StoredRecord | None:
        """Read the record.

        Raises:
            CorruptDataError, UnsupportedFormatError: It cannot be read.
            SessionFSError: The store does not answer.
        """
        key = keys.owner_key(session)
        try:
            stat, raw = await self._store.read_with_stat(key, tries=READ_TRIES, urgent=True)
        except ObjectNotFoundError:
            return None
        return StoredRecord(ownership.decode_owner(raw, key), stat)

    async def _permit(
        self, row: SessionRow, found: StoredRecord | None, holder: str, *, force: bool
    ) -> tuple[How, bool]:
        """Say what allows us to take the record, and whether nobody else owned the session since we did."""
        if found is None:
            return "created", row.written or row.owner_state == HELD
        if self._is_ours(row, found, holder):
            return "resumed" if found.record.state == "held" else "released", True
        if found.record.state == "released":
            return "released", False
        if force:
            return "forced", False
        remaining_seconds = await self._watching.remaining_seconds(found.record)
        if remaining_seconds <= 0:
            return "taken", False
        raise _refusal(found.record, remaining_seconds)

    def _is_ours(self, row: SessionRow, found: StoredRecord, holder: str) -> bool:
        if found.record.holder == holder or write_id_of(found.stat) in self._notes.claims(row.id):
            return True
        known = (row.owner_token, row.holder)
        return row.owner_state not in {"", LOST} and (found.stat.token, found.record.holder) == known

    async def _put(
        self, record: OwnerRecord, before: Token | None, write_id: str
    ) -> Landed | NotLanded | Moved:
        """Put a record over the one before; every try is the same request, so that one which arrives late counts as this one."""
        key = keys.owner_key(SessionId(record.session))
        condition: Condition = IfMatch(before) if before is not None else IfAbsent()
        metadata = ObjectMetadata({"sessionfs-write": write_id}, "application/json")
        raw = ownership.encode(record)
        is_sent = False
        for _ in range(_TRIES):
            try:
                outcome = await self._store.put(key, raw, condition=condition, metadata=metadata, urgent=True)
            except ConcurrentRequestError:
                await trio.sleep(self._clock.jitter())
                continue
            except SessionFSError as problem:
                if is_sent:
                    raise OutcomeUnknownError(f"{key!r} was sent, and not seen to arrive") from problem
                raise
            if not isinstance(outcome, NotLanded):
                return outcome
            is_sent = True
        return NotLanded()

    def _record(
        self, session: SessionId, holder: str, epoch: int, state: Literal["held", "released"]
    ) -> OwnerRecord:
        return OwnerRecord(
            session=session,
            holder=holder,
            epoch=epoch,
            state=state,
            beat=keys.beat_key(holder),
            host=self._host,
            acquired_at=utc_text(self._clock.wall_ns()),
        )


def shown_holder(record: OwnerRecord) -> str:
    """Name a holder for people: machine and process."""
    return f"{record.host or 'another host'} (holder {record.holder[:_SHOWN_DIGITS]})"


def _refusal(record: OwnerRecord, remaining_seconds: float) -> SessionAlreadyOwnedError:
    shown = shown_holder(record)
    since = f" since {record.acquired_at}" if record.acquired_at else ""
    return SessionAlreadyOwnedError(
        f"session {record.session} is owned by {shown}{since}; it may be taken over when that host has given no sign of life for"
        f" {remaining_seconds:.0f} s more",
        holder=shown,
        remedy="let that host release it, wait, or run `sessionfs claim --force`",
        remaining_seconds=remaining_seconds,
    )
