"""The numbered events of a workspace, a bounded number of them, and what was last seen of each file; kept across restarts where a file is given.

Invariants:

* A number is never given twice, also when the process dies: numbers are reserved on the disk (``<file>.reserved``, one number) before they are used,
  and what was reserved is left out after a crash.
* What is kept of the files is never newer than the kept events: after a crash changes are found again and announced again, none is left out.
* A file that cannot be read begins a new history; it is said to whoever asks for older events (`Changes.is_complete`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice

import msgspec
import structlog
import trio

from sessionfs.formats import versioned_json
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError
from sessionfs.sessions.workspace.local_state import local_disk
from sessionfs.sessions.workspace.observation.events import Subscriber, WorkspaceEvent
from sessionfs.sessions.workspace.observation.fingerprint import Piece

FORMAT = 1
_RESERVED = 10_000
_NEARLY_USED = 1_000
_log = structlog.get_logger("sessionfs.workspace")


class KeptFile(msgspec.Struct, frozen=True):
    """What was last seen of a file.

    Attributes:
        modified_ns: As the place said.
        revision: As the place said.
        pieces: Sums of its bytes.
    """

    modified_ns: int
    revision: str
    pieces: tuple[Piece, ...]


class _Kept(msgspec.Struct, frozen=True):
    next: int
    events: list[WorkspaceEvent]
    files: dict[str, KeptFile]
    session_id: str
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Changes:
    """Events behind a number.

    Attributes:
        events: In order.
        last: Number to ask with next time.
        is_complete: Whether nothing that came behind the number was dropped: if not, look at everything.
    """

    events: tuple[WorkspaceEvent, ...]
    last: int
    is_complete: bool


class EventHistory:
    """Events of one workspace.

    Args:
        session_id: As people write it.
        clock: When.
        limit: So many events are kept, from 1.
        subscriber: Told each; None for nobody.
        file: Where they are kept across restarts; "" keeps them in memory only.
    """

    def __init__(
        self, session_id: str, clock: Clock, *, limit: int, subscriber: Subscriber | None, file: str = ""
    ) -> None:
        self._session_id = session_id
        self._clock = clock
        self._subscriber = subscriber
        self._file = file
        self._events: deque[WorkspaceEvent] = deque(maxlen=limit)
        self._next = 1
        self._reserved = 1
        self._reserving = trio.Lock()
        self._complete_from = 0

    @property
    def last(self) -> int:
        """Number of the last event, 0 before the first."""
        return self._events[-1].number if self._events else self._complete_from

    def add(
        self,
        name: str,
        *,
        path: str = "",
        old_path: str = "",
        size: int = 0,
        offset: int = 0,
        bytes_added: int = 0,
        is_foreign: bool = False,
        details: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        """Keep an event and tell it; as `WorkspaceEvent`. A subscriber that raises is told nothing more."""
        event = WorkspaceEvent(
            self._next, name, self._session_id, utc_text(self._clock.wall_ns()), path, old_path, size, offset,
            bytes_added, is_foreign, dict(details or {}),
        )  # fmt: skip
        self._next += 1
        if len(self._events) == self._events.maxlen:
            self._complete_from = self._events[0].number
        self._events.append(event)
        if self._subscriber is None:
            return
        try:
            self._subscriber(event)
        except Exception:  # noqa: BLE001 - the change is done: its maker must not be told that it failed
            _log.exception("a subscriber failed and is told nothing more", session=self._session_id)
            self._subscriber = None

    def since(self, number: int) -> Changes:
        """Give the events behind a number, 0 for all."""
        behind = sum(1 for event in self._events if event.number <= number)
        found = tuple(islice(self._events, behind, None))
        is_ours = self._complete_from <= number < self._next
        return Changes(found, max(number, self.last) if is_ours else self.last, is_ours)

    # --- across restarts

    async def load(self) -> dict[str, KeptFile] | None:
        """Go on where an earlier workspace ended; gives what it saw of the files, None when that is not known.

        Raises:
            LocalDiskError: The file cannot be read.
        """
        if not self._file:
            return None
        raw = await trio.to_thread.run_sync(_read, self._file)
        reserved = await trio.to_thread.run_sync(_read, self._reserved_file)
        number = int(reserved) if reserved is not None and reserved.isdigit() else 0
        if raw is None:
            self._begin_at(max(1, number))
            return None
        try:
            versioned_json.decode_format(raw, self._file, supported=FORMAT)
            kept = versioned_json.decode(raw, _Kept, self._file)
        except (CorruptDataError, UnsupportedFormatError) as problem:
            _log.warning("the kept events cannot be read, a new history begins", problem=str(problem))
            # So high that no number of the lost history is met again.
            self._begin_at(max(number, self._clock.wall_ns() // 1000))
            return None
        self._events.extend(kept.events)
        self._begin_at(max(kept.next, number))
        if self._events:
            self._complete_from = self._events[0].number - 1
        return kept.files

    def _begin_at(self, number: int) -> None:
        self._next = self._reserved = number
        self._complete_from = number - 1

    async def reserve(self, pending: int = 0) -> None:
        """Reserve more numbers when few are left.

        Args:
            pending: So many events may come at once, besides a few.

        Raises:
            LocalDiskError: The disk refused.
        """
        if not self._file or self._next + pending + _NEARLY_USED <= self._reserved:
            return
        async with self._reserving:
            reserved = self._next + pending + _RESERVED
            if reserved > self._reserved:
                await trio.to_thread.run_sync(_replace, self._reserved_file, b"%d" % reserved)
                self._reserved = reserved

    async def save(self, files: Callable[[], dict[str, KeptFile]]) -> None:
        """Keep everything across a restart.

        Args:
            files: Gives what was seen of the files.

        Raises:
            LocalDiskError: The disk refused.
        """
        if not self._file:
            return
        kept = _Kept(self._next, list(self._events), files(), self._session_id)
        await trio.to_thread.run_sync(lambda: _replace(self._file, versioned_json.encode(kept)))

    @property
    def _reserved_file(self) -> str:
        return f"{self._file}.reserved"


def _read(file: str) -> bytes | None:
    with local_disk(file):
        try:
            with open(file, "rb") as source:
                return source.read()
        except FileNotFoundError:
            return None


def _replace(file: str, body: bytes) -> None:
    temporary = f"{file}.tmp"
    with local_disk(file), open(temporary, "wb") as target:
        target.write(body)
        target.flush()
        os.fsync(target.fileno())
        os.replace(temporary, file)
