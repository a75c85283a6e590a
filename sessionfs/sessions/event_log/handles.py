"""An open log: what a reader may do, and what its one writer may do.

Invariants:

* What a handle has shown it goes on to show, at the same offsets: reads never go back.
* A writer's events are in the log in the order in which they were appended, each once. They wait for the batch window, or for ``flush``; a batch that
  the place refuses stays where it is, and nothing is written by itself until a ``flush`` succeeds.
* A window ends a fixed time after the first event in it. The task that waits for it goes on to the next one, so that none is begun for each event.
* Every operation can be cancelled and then has changed nothing that is not still there to be flushed, but for ``close``, which always ends.
* Between two awaits the list of what is pending, and what is stored, are changed together: no reader of the handle sees a hole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

import trio

from sessionfs.formats.events import event as events
from sessionfs.formats.events.event import Event
from sessionfs.formats.events.header import Header
from sessionfs.model.errors import (
    HandleClosedError,
    InvalidRequestError,
    OwnershipLostError,
    ReadOnlyHandleError,
    SessionFSError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.event_log.log_writer import LogWriter
from sessionfs.sessions.event_log.settings import EventLogSettings
from sessionfs.sessions.event_log.stored_log import StoredLog
from sessionfs.sessions.event_log.turn_repair import OpenTurns


class LogHandle:
    """What every handle does; one that is opened for reading does no more. Use as an async context manager, or `close` it.

    Args:
        session: Whose log.
        log: What was read of it.
    """

    def __init__(self, session: SessionId, log: StoredLog) -> None:
        self._session = session
        self._log = log
        self._is_closed = False
        self._reading = trio.Lock()

    @property
    def session(self) -> SessionId:
        """Whose log it is."""
        return self._session

    @property
    def header(self) -> Header:
        """The log's header; for an older format, the one that it gets."""
        return self._log.header

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    async def read(self, offset: int = 0, length: int | None = None) -> list[Event]:
        """Read events; those that are in the log by now are seen, a torn end never.

        Args:
            offset: The first event, from 0; its ``seq``.
            length: At most so many; None for all.

        Raises:
            InvalidRequestError: A negative number.
            HandleClosedError: It was closed.
            NotFoundError: The log was removed.
            CorruptDataError: What is new cannot be read.
        """
        if offset < 0 or (length is not None and length < 0):
            raise InvalidRequestError(f"events {offset}, {length} of them: a negative number")
        lines = await self._fresh_lines()
        end = len(lines) if length is None else offset + length
        return [
            events.decode_stored(line, seq, self._log.name)
            for seq, line in enumerate(lines[offset:end], offset)
        ]

    async def replay(self) -> list[Event]:
        """Read every event, and close in memory what is open: what a program that resumes the session begins with.

        The closers are stored by the next writer when this one has died. They are no part of what `read` gives, because the writer may live,
        and `read` never goes back.

        Raises:
            As `read`.
        """
        found = await self.read()
        open_turns = OpenTurns()
        for event in found:
            open_turns.feed(event)
        return found + open_turns.closers()

    async def append(self, new: Sequence[Event]) -> None:
        """Refuse.

        Raises:
            ReadOnlyHandleError: Always.
        """
        del new
        raise self._read_only()

    async def flush(self) -> None:
        """Refuse.

        Raises:
            ReadOnlyHandleError: Always.
        """
        raise self._read_only()

    async def close(self) -> None:
        """Close it; repeating it changes nothing."""
        self._is_closed = True
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _fresh_lines(self) -> Sequence[bytes]:
        async with self._reading:
            self._require_open()
            await self._log.refresh()
            return self._log.lines

    def _require_open(self) -> None:
        if self._is_closed:
            raise HandleClosedError(f"the log of session {self._session} was closed", remedy="open it again")

    def _read_only(self) -> ReadOnlyHandleError:
        return ReadOnlyHandleError(
            f"the log of session {self._session} was opened for reading", remedy='open it for "write"'
        )


class WriteHandle(LogHandle):
    """The one handle that may append; it owns the session.

    Args:
        session: Whose log.
        log: What was read of it, nothing for a new one.
        writer: Adds to it.
        settings: Window and limits.
        owns: Whether the session is still owned.
        spawn: Starts a task that lives as long as the service.
        on_close: Called once, shielded from cancellation, after the last flush.
    """

    def __init__(
        self,
        session: SessionId,
        log: StoredLog,
        writer: LogWriter,
        settings: EventLogSettings,
        *,
        owns: Callable[[], bool],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(session, log)
        self._writer = writer
        self._settings = settings
        self._owns = owns
        self._spawn = spawn
        self._on_close = on_close
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._writing = trio.Lock()
        self._due = 0.0
        self._is_waiting = False
        self._is_finished = False
        self._problem: SessionFSError | OSError | None = None
        self._is_ended = trio.Event()

    @property
    def next_seq(self) -> int:
        """The ``seq`` of the event that is appended next."""
        return len(self._log.lines) + len(self._pending)

    @property
    def pending_count(self) -> int:
        """Events that were appended and are not in the log yet; after a failed `close`, those that were lost."""
        return len(self._pending)

    @property
    def problem(self) -> SessionFSError | OSError | None:
        """Why nothing is written by itself, None while all is well."""
        return self._problem

    async def append(self, new: Sequence[Event]) -> None:
        """Take events: all of them or, with an error, none. They are written after the batch window, or by `flush`.

        Args:
            new: In order; the first has `next_seq`, each of the others one more.

        Raises:
            InvalidRequestError: A gap, a repetition, an unknown type, or what is no JSON.
            OwnershipLostError: The session is another's by now.
            HandleClosedError: It was closed.
            SessionFSError: Too much is pending, and the place refuses it.
        """
        if self._pending:
            await trio.lowlevel.checkpoint()
        else:
            # A flush follows at once, or another append, which lets others run.
            await trio.lowlevel.checkpoint_if_cancelled()
        self._require_usable()
        while self._pending_bytes > self._settings.max_pending_bytes:
            if self._problem is not None:
                raise self._problem
            await self._write_out()
            self._require_usable()
        lines = events.encode_new(new, self.next_seq)
        if not self._pending:
            self._due = trio.current_time() + self._settings.batch_window_seconds
        self._pending += lines
        self._pending_bytes += sum(map(len, lines))
        self._await_window()

    async def flush(self) -> None:
        """Return when everything that was appended before is durable in the place; a batch that was refused is tried again.

        Raises:
            OwnershipLostError: The session is another's by now; nothing was written.
            HandleClosedError: It was closed.
            SessionFSError: The place refused; what was appended is still pending, in order.
        """
        if self._pending:
            # It is written, which lets others run.
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        self._require_usable()
        await self._write_out(is_durable=True)

    async def close(self) -> None:
        """Flush, and let others own the session. It is closed afterwards in any case, cancelled or not; repeating it changes nothing.

        Raises:
            SessionFSError: As `flush`: `pending_count` events were not stored; or the place did not take the session back.
        """
        if self._is_closed:
            with trio.CancelScope(shield=True):
                await self.wait_closed()
            return
        self._is_closed = True
        with trio.CancelScope(shield=True):
            try:
                if self._pending and not self._owns():
                    self._problem = self._lost()
                    raise self._problem
                await self._write_out(is_durable=True)
            finally:
                self._is_finished = True
                try:
                    await self._on_close()
                finally:
                    self._is_ended.set()

    async def wait_closed(self) -> None:
        """Return when a `close` that has begun has ended, well or not."""
        await self._is_ended.wait()

    async def _fresh_lines(self) -> Sequence[bytes]:
        """Nobody else writes: what is known is fresh, and what is pending is ours to see."""
        await trio.lowlevel.checkpoint()
        self._require_open()
        return [*self._log.lines, *self._pending]

    def _await_window(self) -> None:
        if self._pending and not self._is_waiting and not self._is_closed and self._problem is None:
            self._is_waiting = True
            self._spawn(self._write_after_windows)

    async def _write_after_windows(self) -> None:
        """Write what is pending when its window ends; end at the end of a window in which nothing is."""
        try:
            await trio.sleep_until(self._due)
            while self._pending and not self._is_closed and self._problem is None:
                if trio.current_time() < self._due:
                    # What it waited for was flushed, and this is a later batch.
                    await trio.sleep_until(self._due)
                    continue
                self._require_usable()
                await self._write_out()
        except (SessionFSError, OSError):
            # Kept as `problem`: the next flush tries again, and raises what it meets.
            return
        finally:
            self._is_waiting = False

    async def _write_out(self, *, is_durable: bool = False) -> None:
        # Taking a free lock without `acquire` spares a turn of the event loop.
        if self._writing.locked():
            await self._writing.acquire()
        else:
            self._writing.acquire_nowait()
        try:
            if self._is_finished:
                self._require_stored()
            # What is appended from now on is another batch.
            left = len(self._pending)
            while left > 0:
                left -= await self._write_batch(is_synced=is_durable)
            if is_durable:
                await self._writer.sync()
                self._problem = None
        except (SessionFSError, OSError) as problem:
            self._problem = problem
            raise
        finally:
            self._writing.release()
        if self._pending:
            self._due = trio.current_time() + self._settings.batch_window_seconds
            self._await_window()

    def _require_stored(self) -> None:
        """What waited for its turn while the handle was closed has nothing left to do, or nothing more it may do."""
        if self._problem is not None:
            raise self._problem

    async def _write_batch(self, *, is_synced: bool) -> int:
        if not self._owns():
            raise self._lost()
        batch = tuple(self._pending)
        stored = await self._writer.store(batch, is_synced=is_synced)
        del self._pending[:stored]
        self._pending_bytes -= sum(map(len, batch[:stored]))
        self._log.add(batch[:stored])
        return stored

    def _require_usable(self) -> None:
        self._require_open()
        if not self._owns():
            self._problem = self._lost()
            raise self._problem

    def _lost(self) -> OwnershipLostError:
        return OwnershipLostError(
            f"session {self._session} was taken by another owner; nothing was written", remedy="open it again"
        )
