"""The door: event logs of the sessions of a place. Opened by `open_event_log`.

Invariants:

* A write handle owns its session, across processes and hosts, from before its log is read until it is closed; in one service there is one of them.
* A session whose log never got an event never existed: nothing of it is in the place.
* Whoever opens a log for writing makes it whole first: an older format becomes the newest, the complete records of a torn end are kept and the rest
  of it is dropped, and what a crash left open is closed; all that in one write.
* ``stat`` and ``list`` read headers, and no log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Literal

import msgspec
import trio

from sessionfs.formats.events import event as events
from sessionfs.formats.events import header as headers
from sessionfs.formats.events.event import FORMAT, Event
from sessionfs.formats.events.header import Header
from sessionfs.model import names
from sessionfs.model.errors import (
    AlreadyExistsError,
    HandleClosedError,
    InvalidRequestError,
    NotFoundError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.sessions.event_log import finding, local_survey
from sessionfs.sessions.event_log.finding import Found, LogStat
from sessionfs.sessions.event_log.flush_error import FlushFailedError
from sessionfs.sessions.event_log.handles import LogHandle, WriteHandle
from sessionfs.sessions.event_log.log_writer import LogWriter
from sessionfs.sessions.event_log.making_whole import make_whole, store_all
from sessionfs.sessions.event_log.settings import EventLogSettings
from sessionfs.sessions.event_log.stored_log import StoredLog, open_stored
from sessionfs.sessions.event_log.turn_repair import interrupted_turn_closers
from sessionfs.sessions.port import FileStat, SessionPlace

Mode = Literal["read", "write"]


class EventLog:
    """Event logs of a place. Safe to use from several tasks.

    Args:
        place: Where the sessions are.
        settings: Window and limits.
        nursery: Where batches wait; it must outlive the handles.
    """

    def __init__(self, place: SessionPlace, settings: EventLogSettings, nursery: trio.Nursery) -> None:
        self._place = place
        self._settings = settings
        self._nursery = nursery
        self._writing: set[SessionId] = set()
        self._writers: dict[SessionId, WriteHandle] = {}

    async def create(self, header: Header) -> WriteHandle:
        """Begin the log of a session. It is not there for others before its first event is written.

        Args:
            header: What is kept of it for ever.

        Raises:
            AlreadyExistsError: The session has a log.
            SessionAlreadyOwnedError: Somebody else writes it, or is about to.
            InvalidRequestError: The header is no good, or is that of a fork.
        """
        if header.is_seeded:
            raise InvalidRequestError(f"session {header.id} is to be seeded", remedy="fork its parent")
        return await self._create(header)

    async def fork(self, parent: str, header: Header, count: int | None = None) -> WriteHandle:
        """Begin the log of a session with the events of another; an open turn is closed, and `END_OF_SEED` follows. It is there at once.

        Args:
            parent: The other session; nothing of it is changed, and it may be somebody else's.
            header: Of the new session; what it says about its parent and its seed is filled in.
            count: So many events of the parent, from 1; None for all.

        Raises:
            NotFoundError: The parent has no log.
            InvalidRequestError: It has not so many events, or none.
            And as `create`.
        """
        log = await open_stored(self._place.files(names.session_id(parent)))
        wanted = len(log.lines) if count is None else count
        if not 1 <= wanted <= len(log.lines):
            raise InvalidRequestError(
                f"session {parent} has {len(log.lines)} events, not {wanted} to inherit"
            )
        lines = log.lines[:wanted]
        inherited = [events.decode_stored(line, seq, log.name) for seq, line in enumerate(lines)]
        closers = interrupted_turn_closers(inherited)
        size = len(lines) + len(closers)
        seeded = msgspec.structs.replace(
            header, parent_session=parent, is_seeded=True, inherited_event_count=size
        )
        ended = Event(size, header.created_at, events.END_OF_SEED, data={"parent": parent, "inherited": size})
        seed = [*lines, *(events.encode(one) for one in (*closers, ended))]
        return await self._create(seeded, seed)

    async def open(self, session: str, mode: Mode) -> LogHandle:
        """Open a log.

        Args:
            session: Whose.
            mode: ``read``, or ``write`` for the one handle that may append (`open_to_write`).

        Raises:
            NotFoundError: The session has none.
            SessionAlreadyOwnedError: ``write``, and somebody else writes it.
            UnsupportedFormatError: It, or an event in it, is of a newer format; the error names the raw file.
            CorruptDataError: It cannot be read; nothing was changed.
            InvalidRequestError: Another mode.
        """
        if mode == "write":
            return await self.open_to_write(session)
        if mode != "read":
            raise InvalidRequestError(f"a log is opened for 'read' or 'write', not {mode!r}")
        checked = names.session_id(session)
        return LogHandle(checked, await open_stored(self._place.files(checked)))

    async def open_to_write(self, session: str) -> WriteHandle:
        """Open a log for writing, made whole: see the module.

        Raises:
            As `open`.
        """
        checked = names.session_id(session)
        async with self._claimed(checked) as is_ours:
            files = self._place.files(checked)
            log = await open_stored(files)
            is_newest = log.version == FORMAT
            writer = LogWriter(
                files, log.header, count=len(log.lines) if is_newest else 0, end=log.whole_bytes,
                base=log.stat if is_newest else None, has_header=is_newest, stored=lambda: log.lines,
            )  # fmt: skip
            await make_whole(log, writer)
            return self._handle(checked, log, writer, is_ours=is_ours)

    async def stat(self, session: str) -> LogStat:
        """Describe a log without reading it.

        Raises:
            NotFoundError: The session has none.
            UnsupportedFormatError: It has a newer format; the error names the raw file.
            CorruptDataError: Its header cannot be read.
        """
        return await finding.describe(self._place.files(names.session_id(session)))

    async def list(self) -> list[LogStat]:
        """Describe every log of the place without reading one, sorted by session. One whose header is no good says so in its `problem`."""
        sessions = await self._place.list_sessions()
        directory = await trio.to_thread.run_sync(local_survey.directory_of, self._place)
        if directory is not None:
            return await local_survey.survey(directory, sessions)
        found: dict[SessionId, LogStat] = {}

        async def look(session: SessionId) -> None:
            described = await finding.describe_any(self._place.files(session))
            if described is not None:
                found[session] = described

        await for_each(sessions, look, limit=self._settings.concurrent_requests)
        return [found[session] for session in sorted(found)]

    async def flush(self) -> None:
        """Flush every write handle.

        Raises:
            FlushFailedError: Some could not be flushed; all of them were tried.
        """
        failed: dict[SessionId, SessionFSError | OSError] = {}

        async def flush(handle: WriteHandle) -> None:
            try:
                await handle.flush()
            except HandleClosedError as closed:
                # Another task closes it: what that could not store is not stored.
                await handle.wait_closed()
                if handle.pending_count or handle.problem is not None:
                    failed[handle.session] = handle.problem or closed
            except (SessionFSError, OSError) as problem:
                failed[handle.session] = problem

        open_handles = [handle for handle in self._writers.values() if not handle.is_closed]
        await for_each(open_handles, flush, limit=self._settings.concurrent_requests)
        if failed:
            raise FlushFailedError(failed)

    async def close(self) -> None:
        """Close every write handle, cancelled or not.

        Raises:
            FlushFailedError: Some could not be flushed, or released; all of them are closed.
        """
        failed: dict[SessionId, SessionFSError | OSError] = {}

        async def close(handle: WriteHandle) -> None:
            try:
                await handle.close()
            except (SessionFSError, OSError) as problem:
                failed[handle.session] = problem

        with trio.CancelScope(shield=True):
            await for_each(list(self._writers.values()), close, limit=self._settings.concurrent_requests)
        if failed:
            raise FlushFailedError(failed)

    async def _create(self, header: Header, seed: Sequence[bytes] = ()) -> WriteHandle:
        headers.check(header)
        session = names.session_id(header.id)
        async with self._claimed(session) as is_ours:
            files = self._place.files(session)
            with suppress(NotFoundError):
                await finding.find(files)
                raise AlreadyExistsError(f"session {session} has an event log already")
            log = StoredLog(files, Found(FORMAT, header, FileStat(header.log_path, 0, 0, "")))
            writer = LogWriter(
                files, header, count=0, end=0, base=None, has_header=False, stored=lambda: log.lines
            )
            if seed:
                await store_all(writer, seed)
                await writer.sync()
                log.add(seed)
            return self._handle(session, log, writer, is_ours=is_ours)

    @asynccontextmanager
    async def _claimed(self, session: SessionId) -> AsyncIterator[bool]:
        """Own a session; when the block fails, it is given back. Gives whether it is to be given back at the end."""
        if session in self._writing:
            raise SessionAlreadyOwnedError(
                f"session {session} is open for writing already", holder="this process", remedy="close that handle"
            )  # fmt: skip
        is_ours = not self._place.owns(session)
        self._writing.add(session)
        try:
            await self._place.claim(session)
            yield is_ours
        except BaseException:
            with trio.CancelScope(shield=True), suppress(SessionFSError):
                await self._let_go(session, is_ours=is_ours)
            raise

    def _handle(self, session: SessionId, log: StoredLog, writer: LogWriter, *, is_ours: bool) -> WriteHandle:
        async def let_go() -> None:
            await self._let_go(session, is_ours=is_ours)

        handle = WriteHandle(
            session, log, writer, self._settings,
            owns=lambda: self._place.owns(session), spawn=self._nursery.start_soon, on_close=let_go,
        )  # fmt: skip
        self._writers[session] = handle
        return handle

    async def _let_go(self, session: SessionId, *, is_ours: bool) -> None:
        try:
            if is_ours:
                await self._place.release(session)
        except OwnershipLostError:
            # Somebody else has it: that is what giving it back is for.
            pass
        finally:
            self._writers.pop(session, None)
            self._writing.discard(session)


@asynccontextmanager
async def open_event_log(
    place: SessionPlace, settings: EventLogSettings | None = None
) -> AsyncIterator[EventLog]:
    """Open the event logs of a place; at the end every write handle is flushed and closed.

    Args:
        place: Where the sessions are. Two services on one place object do not keep each other from writing; two places do.
        settings: None for the defaults.

    Raises:
        FlushFailedError: At the end, events could not be stored.
    """
    problem: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            log = EventLog(place, settings or EventLogSettings(), nursery)
            try:
                yield log
            except Exception as error:  # noqa: BLE001 - raised below: not through the nursery, which would wrap it
                problem = error
            finally:
                problem = await _closed(log, problem)
                nursery.cancel_scope.cancel()
    finally:
        # Also when the block was cancelled: what could not be stored must be heard of.
        if problem is not None:
            raise problem


async def _closed(log: EventLog, problem: Exception | None) -> Exception | None:
    """Close everything, and give what is to be raised then."""
    try:
        await log.close()
    except FlushFailedError as failed:
        if problem is None:
            return failed
        problem.add_note(str(failed))
    return problem
