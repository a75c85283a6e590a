"""The intent log: one record per operation before it is applied, and one with its outcome.

Written by the daemon only, with one ``write(2)`` per record, so that the page cache holds what happened when every process is killed.
The replication process reads it. Invariants:

* `IntentLog.begin` returns after the record is in the page cache; only then may the operation touch the disk.
* Between `begin` and `finish` of an operation the daemon never waits for the replication process.
* A reader takes operations in the order of their intents and stops at the first whose outcome is missing.
* Opening the log ends what the last process left in flight as `INTERRUPTED`.
* Positions are logical: cutting the file keeps them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sessionfs.formats import intent_records
from sessionfs.formats.intent_records import HEADER_BYTES, Intent, Operation, Outcome
from sessionfs.model.clock import Clock

INTERRUPTED = -1
"""Errno of an operation whose process died in the middle of it: the disk says what it did."""

_CUT_BYTES = 4 << 20
_READ_BYTES = 256 << 10


def _ignore() -> None:
    """Nobody listens."""


class IntentLog:
    """The daemon's side: appends records.

    Args:
        path: The log file; made when missing, its torn tail is cut off.
        boot_id: Of this boot, kept in the header.
        clock: Gives records their time.
        on_growth: Called after every record, inline: it must be cheap.
    """

    def __init__(
        self, path: str, *, boot_id: str, clock: Clock, on_growth: Callable[[], None] = _ignore
    ) -> None:
        self._path = path
        self._boot_id = boot_id
        self._clock = clock
        self.on_growth = on_growth
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        raw = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        header = intent_records.decode_header(raw, path)
        self._sequence = 0
        in_flight: dict[int, None] = {}
        if header is None:
            self._base = 0
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, intent_records.encode_header(0, boot_id), 0)
            end = HEADER_BYTES
        else:
            self._base = header[0]
            end = HEADER_BYTES
            for record, offset in intent_records.decode_records(raw[HEADER_BYTES:]):
                self._sequence = max(self._sequence, record.sequence)
                end = HEADER_BYTES + offset
                if isinstance(record, Intent):
                    in_flight[record.sequence] = None
                else:
                    in_flight.pop(record.sequence, None)
            os.ftruncate(self._descriptor, end)
        self._end = end
        os.lseek(self._descriptor, end, os.SEEK_SET)
        for sequence in in_flight:
            self.finish(sequence, errno=INTERRUPTED)
        self.note(Operation.STARTED, number=0)

    @property
    def position(self) -> int:
        """Logical position behind the last record."""
        return self._base + self._end - HEADER_BYTES

    def begin(
        self,
        operation: Operation,
        *,
        number: int = 0,
        parent: int = 0,
        name: bytes = b"",
        new_parent: int = 0,
        new_name: bytes = b"",
        replaced: int = 0,
        mode: int = -1,
        uid: int = -1,
        gid: int = -1,
        mtime_ns: int | None = None,
        unique: int = 0,
    ) -> int:
        """Record what is about to happen; see `Intent` for the fields.

        Returns:
            The sequence number that `finish` wants.

        Raises:
            OSError: The record could not be written (a full disk); nothing may be applied.
        """
        self._sequence += 1
        self._append(
            intent_records.encode_record(
                Intent(
                    self._sequence,
                    operation,
                    number,
                    parent,
                    name,
                    new_parent,
                    new_name,
                    replaced,
                    mode,
                    uid,
                    gid,
                    mtime_ns,
                    self._clock.wall_ns(),
                    unique,
                )
            )
        )
        return self._sequence

    def finish(self, sequence: int, *, number: int = 0, errno: int = 0) -> None:
        """Record how it ended.

        Args:
            sequence: From `begin`.
            number: Inode number of a new file.
            errno: Why nothing was changed, 0 when it was applied.
        """
        self._append(intent_records.encode_record(Outcome(sequence, errno, number)))

    def note(self, operation: Operation, *, number: int) -> None:
        """Record something that has already happened and cannot fail, with one write."""
        self._sequence += 1
        intent = Intent(self._sequence, operation, number, wall_ns=self._clock.wall_ns())
        outcome = Outcome(self._sequence, number=number)
        self._append(intent_records.encode_record(intent) + intent_records.encode_record(outcome))

    def sync(self) -> None:
        """Bring the log to the disk, for ``fsync`` of a directory."""
        os.fdatasync(self._descriptor)

    def cut(self, consumed: int) -> None:
        """Start the file anew when the journal holds everything and the file has grown.

        Args:
            consumed: Position before which the journal holds every record.
        """
        if consumed != self.position or self._end < _CUT_BYTES:
            return
        fresh = self._path + ".new"
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(descriptor, intent_records.encode_header(consumed, self._boot_id))
        # The last sequence must survive an empty file: sequences never repeat.
        marker = intent_records.encode_record(Outcome(self._sequence))
        os.write(descriptor, marker)
        os.replace(fresh, self._path)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._base = consumed
        self._end = HEADER_BYTES + len(marker)

    def close(self) -> None:
        """Close the file; the log stays."""
        os.close(self._descriptor)

    def _append(self, frame: bytes) -> None:
        written = os.write(self._descriptor, frame)
        if written != len(frame):
            os.ftruncate(self._descriptor, self._end)
            os.lseek(self._descriptor, self._end, os.SEEK_SET)
            raise OSError(28, "No space left on device", self._path)
        self._end += written
        self.on_growth()


@dataclass(frozen=True, slots=True)
class Batch:
    """Operations read from the log.

    Attributes:
        operations: Intents with their outcomes, in the order of the intents.
        position: Behind the last record of `operations`; what follows is in flight.
    """

    operations: list[tuple[Intent, Outcome]]
    position: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where to go on reading a log.

    Attributes:
        position: From here on nothing was read.
        is_continued: Whether the log goes on from what was read before. Else it is another one, or its end was lost in a
            power cut: what it told is only to be seen on the disk.
    """

    position: int
    is_continued: bool


class IntentLogReader:
    """The replication process's side: reads records.

    Args:
        path: The log file.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def boot_id(self) -> str:
        """Boot in which the log file was started; "" when there is no log."""
        try:
            with open(self._path, "rb") as file:
                header = intent_records.decode_header(file.read(HEADER_BYTES), self._path)
        except FileNotFoundError:
            return ""
        return header[1] if header else ""

    def locate(self, position: int, sequence: int) -> Place:
        """Find where to go on reading.

        Args:
            position: Where the journal says that reading ended; 0 for a new journal.
            sequence: The last intent before it, 0 when none was read or it is not known.
        """
        try:
            with open(self._path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            raw = b""
        header = intent_records.decode_header(raw[:HEADER_BYTES], self._path)
        if header is None:
            return Place(0, is_continued=position == 0)
        base = header[0]
        if position < base:
            return Place(base, is_continued=False)
        here = last_start = base
        is_boundary = position == base
        last_before, first_after = 0, 0
        for record, offset in intent_records.decode_records(raw[HEADER_BYTES:]):
            if isinstance(record, Intent) and record.operation == Operation.STARTED:
                last_start = here
            here = base + offset
            is_boundary = is_boundary or here == position
            if here <= position:
                last_before = max(last_before, record.sequence)
            else:
                first_after = first_after or record.sequence
        # A log that was cut begins with the sequence of the last record that was cut off.
        is_same = not sequence or (last_before or first_after) in {0, sequence}
        if is_boundary and is_same:
            return Place(position, is_continued=True)
        return Place(last_start, is_continued=False)

    def read(self, position: int, *, limit: int | None = None) -> Batch:
        """Read the next operations from a position on: some hundred KiB of them at most.

        Args:
            position: Where the last batch ended; 0 at first. A position before the file's base starts at its base.
            limit: Read nothing behind this position, at which no operation was under way; None for no limit.
        """
        try:
            with open(self._path, "rb") as file:
                header = intent_records.decode_header(file.read(HEADER_BYTES), self._path)
                start = max(position, header[0] if header else 0)
                file.seek(HEADER_BYTES + start - (header[0] if header else 0))
                raw = b""
                while True:
                    left = _READ_BYTES if limit is None else min(_READ_BYTES, limit - start - len(raw))
                    more = file.read(max(0, left))
                    raw += more
                    batch = _pair(raw, start)
                    # A chunk may end inside an operation that many others overtook: read on until it ends.
                    if batch.position > start or len(more) < _READ_BYTES:
                        return batch
        except FileNotFoundError:
            return Batch([], position)


def _pair(raw: bytes, start: int) -> Batch:
    """Pair intents with outcomes; end where no intent is open."""
    open_intents: dict[int, Intent] = {}
    outcomes: dict[int, Outcome] = {}
    ready: list[tuple[Intent, Outcome]] = []
    pending: list[Intent] = []
    position = start
    for record, offset in intent_records.decode_records(raw):
        if isinstance(record, Intent):
            open_intents[record.sequence] = record
            pending.append(record)
        elif record.sequence in open_intents:
            del open_intents[record.sequence]
            outcomes[record.sequence] = record
        if not open_intents:
            ready.extend((intent, outcomes.pop(intent.sequence)) for intent in pending)
            pending.clear()
            position = start + offset
    return Batch(ready, position)
