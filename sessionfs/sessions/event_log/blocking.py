"""The blocking form of the door: the same service for programs without an event loop. Each method hands its call to a thread and waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Self

from sessionfs.formats.events.event import Event
from sessionfs.formats.events.header import Header
from sessionfs.model.names import SessionId
from sessionfs.sessions.event_log.finding import LogStat
from sessionfs.sessions.event_log.flush_error import FlushFailedError
from sessionfs.sessions.event_log.handles import LogHandle, WriteHandle
from sessionfs.sessions.event_log.service import EventLog, Mode, open_event_log
from sessionfs.sessions.event_log.settings import EventLogSettings
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.portal import Portal

PlaceManager = AbstractAsyncContextManager[SessionPlace]


class BlockingLogHandle:
    """`LogHandle`, blocking. Use as a context manager, or `close` it.

    Args:
        portal: Runs the calls.
        handle: The handle.
    """

    def __init__(self, portal: Portal, handle: LogHandle) -> None:
        self._portal = portal
        self._handle = handle

    @property
    def session(self) -> SessionId:
        """As `LogHandle.session`."""
        return self._handle.session

    @property
    def header(self) -> Header:
        """As `LogHandle.header`."""
        return self._handle.header

    def read(self, offset: int = 0, length: int | None = None) -> list[Event]:
        """As `LogHandle.read`."""
        return self._portal.run(self._handle.read, offset, length)

    def replay(self) -> list[Event]:
        """As `LogHandle.replay`."""
        return self._portal.run(self._handle.replay)

    def append(self, new: Sequence[Event]) -> None:
        """As `LogHandle.append` and `WriteHandle.append`."""
        self._portal.run(self._handle.append, new)

    def flush(self) -> None:
        """As `LogHandle.flush` and `WriteHandle.flush`."""
        self._portal.run(self._handle.flush)

    def close(self) -> None:
        """As `LogHandle.close` and `WriteHandle.close`."""
        self._portal.run(self._handle.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class BlockingWriteHandle(BlockingLogHandle):
    """`WriteHandle`, blocking.

    Args:
        portal: Runs the calls.
        handle: The handle.
    """

    def __init__(self, portal: Portal, handle: WriteHandle) -> None:
        super().__init__(portal, handle)
        self._writer = handle

    @property
    def next_seq(self) -> int:
        """As `WriteHandle.next_seq`."""
        return self._writer.next_seq


class BlockingEventLog:
    """`EventLog`, blocking. Use as a context manager, or `close` it.

    Args:
        open_place: Gives the place as an asynchronous context manager, as a call of ``open_object_place`` does.
        settings: None for the defaults.

    Raises:
        SessionFSError: The place could not be opened.
    """

    def __init__(
        self, open_place: Callable[[], PlaceManager], settings: EventLogSettings | None = None
    ) -> None:
        self._portal = Portal()
        try:
            self._log, self._leave = self._portal.enter(_opened(open_place, settings))
        except BaseException:
            self._portal.close()
            raise
        self._is_closed = False

    def create(self, header: Header) -> BlockingWriteHandle:
        """As `EventLog.create`."""
        return BlockingWriteHandle(self._portal, self._portal.run(self._log.create, header))

    def fork(self, parent: str, header: Header, count: int | None = None) -> BlockingWriteHandle:
        """As `EventLog.fork`."""
        return BlockingWriteHandle(self._portal, self._portal.run(self._log.fork, parent, header, count))

    def open(self, session: str, mode: Mode) -> BlockingLogHandle:
        """As `EventLog.open`."""
        return BlockingLogHandle(self._portal, self._portal.run(self._log.open, session, mode))

    def open_to_write(self, session: str) -> BlockingWriteHandle:
        """As `EventLog.open_to_write`."""
        return BlockingWriteHandle(self._portal, self._portal.run(self._log.open_to_write, session))

    def stat(self, session: str) -> LogStat:
        """As `EventLog.stat`."""
        return self._portal.run(self._log.stat, session)

    def list(self) -> list[LogStat]:
        """As `EventLog.list`."""
        return self._portal.run(self._log.list)

    def flush(self) -> None:
        """As `EventLog.flush`."""
        self._portal.run(self._log.flush)

    def close(self) -> None:
        """Close every handle and the place; repeating it changes nothing.

        Raises:
            FlushFailedError: Events could not be stored.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._leave()
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@asynccontextmanager
async def _opened(
    open_place: Callable[[], PlaceManager], settings: EventLogSettings | None
) -> AsyncIterator[EventLog]:
    problem: FlushFailedError | None = None
    async with open_place() as place:
        try:
            async with open_event_log(place, settings) as log:
                yield log
        except FlushFailedError as failed:
            # Not through the place, whose tasks would wrap it.
            problem = failed
    if problem is not None:
        raise problem
