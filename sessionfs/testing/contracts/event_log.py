"""What every place of event logs does, as data: ids, sentences and checks.

A factory gives two places on the same bytes, as two hosts have them; both are fresh and empty.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import msgspec
import trio

from sessionfs.formats.events import header as headers
from sessionfs.formats.events import log_bytes
from sessionfs.formats.events.event import END_OF_SEED, FORMAT, Event
from sessionfs.formats.events.header import Header
from sessionfs.formats.events.older import OLDER_PATHS
from sessionfs.model import names
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    HandleClosedError,
    InvalidRequestError,
    NotFoundError,
    ReadOnlyHandleError,
    SessionAlreadyOwnedError,
    UnsupportedFormatError,
)
from sessionfs.sessions.event_log import EventLog, EventLogSettings, LogHandle, WriteHandle, open_event_log
from sessionfs.sessions.event_log.service import Mode
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.port import SessionFiles, SessionPlace
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import open_store
from sessionfs.testing.contracts.promise import Promise, require, require_error

_LONG_SECONDS = 30.0
_NOT_KEPT: tuple[object, ...] = (float("nan"), float("inf"), b"bytes", (1, 2), {1: 2})
_MODES: tuple[Mode, ...] = ("read", "write")


@dataclass(frozen=True, slots=True)
class TwoPlaces:
    """Two hosts.

    Attributes:
        here: One.
        there: The other, on the same bytes.
    """

    here: SessionPlace
    there: SessionPlace


@asynccontextmanager
async def two_places(store: ObjectStore) -> AsyncIterator[TwoPlaces]:
    """Give two hosts on a bucket, for factories."""
    clock = SystemClock()
    async with open_object_place(store, clock) as here, open_object_place(store, clock) as there:
        yield TwoPlaces(here, there)


@asynccontextmanager
async def memory_backend() -> AsyncIterator[TwoPlaces]:
    """A bucket in memory."""
    async with two_places(MemoryStore()) as places:
        yield places


@asynccontextmanager
async def file_backend() -> AsyncIterator[TwoPlaces]:
    """A directory of this host."""
    with tempfile.TemporaryDirectory(prefix="sessionfs-") as directory:
        async with two_places(open_store(directory)) as places:
            yield places


@dataclass(frozen=True, slots=True)
class _Logs:
    here: EventLog
    there: EventLog
    files: SessionFiles


@asynccontextmanager
async def _logs(places: TwoPlaces, *, window_seconds: float = _LONG_SECONDS) -> AsyncIterator[_Logs]:
    settings = EventLogSettings(batch_window_seconds=window_seconds)
    async with open_event_log(places.here, settings) as here, open_event_log(places.there, settings) as there:
        yield _Logs(here, there, places.here.files(names.session_id("s1")))


def _header(session: str = "s1") -> Header:
    return Header(id=session, created_at=1_700_000_000_000, cwd="/src", origin="contract")


def _said(first: int, count: int) -> list[Event]:
    return [
        Event(n, 1000 + n, "message.user", data={"text": f"line {n}"}) for n in range(first, first + count)
    ]


def _open_turn(first: int) -> list[Event]:
    return [
        Event(first, 1, "turn.started", "t1"),
        Event(first + 1, 2, "step.started", "t1", "p1"),
        Event(first + 2, 3, "tool.called", "t1", "p1", data={"call": "c1"}),
    ]


@asynccontextmanager
async def _owned(place: SessionPlace, session: names.SessionId) -> AsyncIterator[None]:
    """Who let a session go writes into it again when it has claimed it again."""
    await place.claim(session)
    try:
        yield
    finally:
        await place.release(session)


async def _written(log: EventLog, events: list[Event]) -> None:
    handle = await log.create(_header())
    await handle.append(events)
    await handle.close()


async def _seqs(handle: LogHandle) -> list[int]:
    return [event.seq for event in await handle.read()]


async def _check_lazy(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        require(await logs.there.list() == [], "a session without an event is listed")
        await require_error(
            NotFoundError, lambda: logs.there.stat("s1"), "stat of a session without an event"
        )
        await handle.close()
        require(await logs.files.list() == [], "a session without an event left files")
        again = await logs.there.create(_header())
        await again.append(_said(0, 1))
        await again.close()
        require([one.id for one in await logs.here.list()] == ["s1"], "a session with an event is not listed")


async def _check_exclusive(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        await _written(logs.here, _said(0, 2))
        for log in (logs.here, logs.there):
            await require_error(AlreadyExistsError, partial(log.create, _header()), "a second create")
        read = await logs.there.open("s1", "read")
        require(await _seqs(read) == [0, 1], "a refused create changed the log")


async def _check_one_writer(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        await _written(logs.here, _said(0, 1))
        winners: list[WriteHandle] = []
        losers: list[SessionAlreadyOwnedError] = []

        async def race(log: EventLog) -> None:
            try:
                winners.append(await log.open_to_write("s1"))
            except SessionAlreadyOwnedError as error:
                losers.append(error)

        async with trio.open_nursery() as nursery:
            for log in (logs.here, logs.there, logs.here, logs.there):
                nursery.start_soon(race, log)
        require((len(winners), len(losers)) == (1, 3), f"{len(winners)} write handles at once")
        await winners[0].close()
        await (await logs.there.open_to_write("s1")).close()
        await (await logs.here.open_to_write("s1")).close()


async def _check_contiguous(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        await handle.append(_said(0, 2))
        for bad in (_said(3, 1), _said(1, 1), [*_said(2, 1), *_said(2, 1)], [*_said(2, 1), *_said(4, 1)]):
            await require_error(InvalidRequestError, partial(handle.append, bad), "a gap")
        require(handle.next_seq == 2, "a refused append left something")  # noqa: PLR2004 - as above
        await handle.append(_said(2, 1))
        await handle.close()
        require(await _seqs(await logs.there.open("s1", "read")) == [0, 1, 2], "the log has a gap")


async def _check_vocabulary(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        bad = [
            Event(0, 1, "nobody.knows"),
            Event(0, 1, "turn.started"),
            Event(0, 1, "step.ended", "t"),
            Event(0, 1, "tool.called", "t"),
            Event(0, -1, "message.user"),
            Event(0, 1, ""),
            Event(0, 1, END_OF_SEED),
            Event(0, 1, "message.user", data={"no JSON": object()}),
            *(Event(0, 1, "message.user", data={"not as it is": value}) for value in _NOT_KEPT),
        ]
        for one in bad:
            await require_error(InvalidRequestError, partial(handle.append, [one]), f"{one}")
        good = [Event(0, 1, "nobody.knows", ignorable=True), Event(1, 1, "x.mine", data={"deep": [{}]})]
        await handle.append(good)
        await handle.close()
        require(await (await logs.there.open("s1", "read")).read() == good, "an event came back as another")


async def _check_window(places: TwoPlaces) -> None:
    async with _logs(places, window_seconds=0.01) as logs:
        handle = await logs.here.create(_header())
        await handle.append(_said(0, 1))
        await handle.flush()
        await handle.append(_said(1, 2))
        reader = await logs.there.open("s1", "read")
        seen: list[int] = []
        with trio.move_on_after(_LONG_SECONDS):
            while len(seen) < 3:  # noqa: PLR2004 - all of them
                seen = await _seqs(reader)
        require(seen == [0, 1, 2], f"of what a window gathered, {seen} is in the log")


async def _check_flush(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        await handle.append(_said(0, 2))
        require(await _seqs(handle) == [0, 1], "a writer does not see what it appended")
        await handle.flush()
        reader = await logs.there.open("s1", "read")
        require(await reader.read() == _said(0, 2), "what was flushed is not read")
        await handle.append(_said(2, 2))
        require(await _seqs(reader) == [0, 1], "what was not written is read")
        await logs.here.flush()
        require(await _seqs(reader) == [0, 1, 2, 3], "what the service flushed is not read on an open handle")
        part = [event.seq for event in await reader.read(1, 2)]
        require(part == [1, 2], f"read(1, 2) gives {part}")
        require(await reader.read(4, 9) == [], "there is something behind the end")
        await require_error(InvalidRequestError, lambda: reader.read(-1), "a negative offset")


async def _check_never_back(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        path = handle.header.log_path
        await handle.append(_said(0, 1))
        await handle.flush()
        first = await logs.files.read(path)
        await handle.append(_said(1, 2))
        await handle.close()
        reader = await logs.there.open("s1", "read")
        require(await _seqs(reader) == [0, 1, 2], "the log is not read whole")
        async with _owned(places.here, logs.files.session):
            await logs.files.write(path, first)
        require(await _seqs(reader) == [0, 1, 2], "a read went back")


async def _check_torn(places: TwoPlaces) -> None:
    for encoding in headers.LOG_PATHS:
        session = names.session_id(f"s-{encoding}")
        async with _logs(places) as logs:
            files = places.here.files(session)
            header = msgspec.structs.replace(_header(session), encoding=encoding)
            handle = await logs.here.create(header)
            await handle.append(_said(0, 2))
            await handle.close()
            lines = [msgspec.json.encode(event) for event in _said(2, 2)]
            tail = log_bytes.encode(lines, encoding)
            async with _owned(places.here, session):
                await files.append(header.log_path, tail[:-1])
            reader = await logs.there.open(session, "read")
            shown = await _seqs(reader)
            require(shown in ([0, 1], [0, 1, 2]), f"a torn end is shown: {shown}")
            writer = await logs.there.open_to_write(session)
            require(await _seqs(writer) == [0, 1, 2, 3], "a complete record of a torn end is not recovered")
            require(await _seqs(reader) == [0, 1, 2, 3], "what was recovered is not read")
            await writer.append(_said(4, 1))
            await writer.close()
            require(await reader.read() == _said(0, 5), "what follows a torn end is not read")


async def _check_turns(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        await _written(logs.here, _open_turn(0))
        reader = await logs.there.open("s1", "read")
        closers = (await reader.replay())[3:]
        kinds = [event.type for event in closers]
        require(kinds == ["tool.returned", "step.ended", "turn.ended"], f"an open turn is closed by {kinds}")
        require(await _seqs(reader) == [0, 1, 2], "closers that nobody wrote are read")
        writer = await logs.there.open_to_write("s1")
        require((await writer.read())[3:] == closers, "a writer closes another way than a reader")
        await writer.close()
        require((await reader.read())[3:] == closers, "what the writer closed is not in the log")
        await (await logs.here.open_to_write("s1")).close()
        require(len(await reader.read()) == 3 + len(closers), "what is closed was closed again")


async def _check_fork(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        await _written(logs.here, [*_said(0, 2), *_open_turn(2)])
        before = await (await logs.there.open("s1", "read")).read()
        child = await logs.there.fork("s1", _header("s2"), 3)
        await child.append(_said(5, 1))
        await child.close()
        read = await logs.here.open("s2", "read")
        events = await read.read()
        wanted = [*(event.type for event in before[:3]), "turn.ended", END_OF_SEED, "message.user"]
        require([event.type for event in events] == wanted, f"a fork has {[event.type for event in events]}")
        require(events[:3] == before[:3], "a fork's beginning is not its parent's")
        header = read.header
        require((header.parent_session, header.is_seeded) == ("s1", True), "a fork does not name its parent")
        require(
            events[header.inherited_event_count].type == END_OF_SEED,
            "the count does not lead to the seed's end",
        )
        require(await (await logs.there.open("s1", "read")).read() == before, "a fork changed its parent")
        for count in (0, 99):
            await require_error(
                InvalidRequestError, partial(logs.here.fork, "s1", _header("s3"), count), "a bad count"
            )  # fmt: skip
        await require_error(NotFoundError, lambda: logs.here.fork("s9", _header("s3")), "a fork of nothing")


async def _check_future(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        await logs.files.write(headers.HEADER_PATH, b'{"version":3,"encoding":"zstd","new":[1]}')
        await logs.files.write("events.jsonl.zst", b"of another world")
        for request in (
            lambda: logs.here.open("s1", "read"),
            lambda: logs.here.open("s1", "write"),
            lambda: logs.here.stat("s1"),
        ):
            error = await require_error(UnsupportedFormatError, request, "a log of format 3")
            require("s1/events.jsonl.zst" in str(error), "the error does not name the raw file")
        listed = await logs.there.list()
        require([(one.version, bool(one.problem)) for one in listed] == [(3, True)], "a list hides it")
        require(await logs.files.read("events.jsonl.zst") == b"of another world", "it was changed")
        await require_error(UnsupportedFormatError, lambda: logs.here.create(_header()), "a create over it")


async def _check_corrupt(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        for first in (0, 1, 2):
            await handle.append(_said(first, 1))
            await handle.flush()
        await handle.close()
        raw = await logs.files.read("events.jsonl.zst")
        damaged = bytearray(raw)
        damaged[len(raw) // 2] ^= 0xFF
        async with _owned(places.here, logs.files.session):
            await logs.files.write("events.jsonl.zst", bytes(damaged))
        for mode in _MODES:
            await require_error(CorruptDataError, partial(logs.there.open, "s1", mode), "a damaged log")
        require(await logs.files.read("events.jsonl.zst") == bytes(damaged), "a damaged log was changed")


async def _check_revision(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        await _written(logs.here, _said(0, 1))
        first = await logs.there.stat("s1")
        require(first.header == _header() and first.size_bytes > 0, "stat does not give the header")
        require(await logs.here.list() == [first], "list and stat differ")
        handle = await logs.there.open_to_write("s1")
        await handle.close()
        require(await logs.here.stat("s1") == first, "ownership moved the revision")
        handle = await logs.here.open_to_write("s1")
        await handle.append(_said(1, 1))
        await handle.close()
        require(
            (await logs.there.stat("s1")).revision != first.revision, "an event did not move the revision"
        )


async def _check_closed(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        await handle.append(_said(0, 1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await handle.close()
        await handle.close()
        reader = await logs.there.open("s1", "read")
        require(await _seqs(reader) == [0], "a cancelled close lost what was appended")
        await require_error(
            ReadOnlyHandleError, lambda: reader.append(_said(1, 1)), "append on a read handle"
        )
        await require_error(ReadOnlyHandleError, reader.flush, "flush on a read handle")
        await reader.close()
        await reader.close()
        for request in (reader.read, handle.read, handle.flush, lambda: handle.append(_said(1, 1))):
            await require_error(HandleClosedError, request, "a closed handle")
        await require_error(InvalidRequestError, lambda: logs.here.open("s1", "both"), "another mode")  # type: ignore[arg-type]
        await (await logs.there.open_to_write("s1")).close()


async def _check_cancelled(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        handle = await logs.here.create(_header())
        await handle.append(_said(0, 1))
        with trio.CancelScope() as scope:
            scope.cancel()
            await handle.append(_said(1, 1))
        require(scope.cancelled_caught and handle.next_seq == 1, "a cancelled append changed something")
        with trio.CancelScope() as scope:
            scope.cancel()
            await handle.flush()
        await handle.append(_said(1, 1))
        await handle.flush()
        with trio.CancelScope() as scope:
            scope.cancel()
            await logs.there.open("s1", "read")
        require(scope.cancelled_caught, "open cannot be cancelled")
        await handle.close()
        with trio.CancelScope() as scope:
            scope.cancel()
            await logs.here.open_to_write("s1")
        writer = await logs.there.open_to_write("s1")
        require(await _seqs(writer) == [0, 1], "a cancelled flush lost or repeated an event")


_ONE = b"""{"seq":0,"ts":5,"kind":"start","data":{"cwd":"/old"}}
{"seq":1,"ts":6,"kind":"turn_start","turn":"1"}
{"seq":2,"ts":7,"kind":"user","turn":"1","data":{"text":"hello"}}
"""
_ZERO = b"""[{"time":0.005,"kind":"start","payload":{"cwd":"/old"}},
{"time":0.006,"kind":"turn_start","turn":1},
{"time":0.007,"kind":"user","turn":1,"payload":{"text":"hello"}}]
"""


async def _check_migration(places: TwoPlaces) -> None:
    wanted = ["session.started", "turn.started", "message.user"]
    for version, raw in ((0, _ZERO), (1, _ONE)):
        session = names.session_id(f"s{version}")
        async with _logs(places) as logs:
            files = places.here.files(session)
            await files.write(OLDER_PATHS[version], raw)
            require((await logs.there.stat(session)).version == version, "an older format is not seen")
            reader = await logs.there.open(session, "read")
            before = await reader.read()
            require([event.type for event in before] == wanted, "an older format is not read")
            require(reader.header.cwd == "/old", "what was in the first event is not in the header")
            require(len(await files.list()) == 1, "a reader changed the session")
            writer = await logs.here.open_to_write(session)
            require(
                [event.type for event in await writer.read()] == [*wanted, "turn.ended"], "not migrated whole"
            )
            await writer.close()
            require(await files.read(OLDER_PATHS[version]) == raw, "the older log was changed")
            require(
                (await logs.there.stat(session)).version == FORMAT,
                "the newest format is not published",
            )
            after = await reader.read()
            require(
                after[: len(before)] == before and len(after) == len(before) + 1,
                "an open reader lost the log",
            )


async def _check_migration_refuses(places: TwoPlaces) -> None:
    async with _logs(places) as logs:
        raw = _ONE + b'{"seq":3,"ts":8,"kind":"newer","ignorable":true}\n'
        await logs.files.write(OLDER_PATHS[1], raw)
        for mode in _MODES:
            error = await require_error(UnsupportedFormatError, partial(logs.here.open, "s1", mode), "it")
            require(f"s1/{OLDER_PATHS[1]}" in str(error), "the error does not name the raw file")
        require([one.path for one in await logs.files.list()] == [OLDER_PATHS[1]], "something was written")
        await (await logs.there.create(_header("s2"))).close()


PROMISES: tuple[Promise[TwoPlaces], ...] = (
    Promise("create-lazy", "A session without an event was never there, and leaves nothing", _check_lazy),
    Promise("create-exclusive", "A session that has a log is not created again, on any host", _check_exclusive),
    Promise("one-writer", "Of all who open a log for writing, on all hosts, one gets it", _check_one_writer),
    Promise("contiguous", "An append with a gap or a repetition is refused whole", _check_contiguous),
    Promise("vocabulary", "An event that is bad or unknown is refused; an ignorable one passes", _check_vocabulary),
    Promise("window", "Events are written after the window without a flush", _check_window),
    Promise("flush", "What was flushed is read by everybody, in order, from any offset", _check_flush),
    Promise("never-back", "Reads on a handle never show less than before", _check_never_back),
    Promise("torn-end", "A torn end is never read; the next writer keeps its complete records", _check_torn),
    Promise("turns", "An open turn is closed in memory by a reader, in the log by the next writer", _check_turns),
    Promise("fork", "A fork has its parent's events and a tagged end behind them", _check_fork),
    Promise("future-format", "A newer format is refused by its header, naming the raw file", _check_future),
    Promise("corrupt", "A damaged log is refused and left as it is", _check_corrupt),
    Promise("revision", "Stat and list agree; events move the revision, owners do not", _check_revision),
    Promise("close", "Close flushes, cannot be cancelled, may be repeated, and lets others write", _check_closed),
    Promise("cancel", "What is cancelled has changed nothing, and nothing is lost or repeated", _check_cancelled),
    Promise("migration", "An older log is read as it is, and published by a writer; its file stays", _check_migration),
    Promise("migration-refuses", "An older log with an unknown event is refused", _check_migration_refuses),
)  # fmt: skip
"""Every promise of event logs."""
