"""Readers: they never go back, several tasks may use one, and no listing reads a log."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.formats.events import header as headers
from sessionfs.formats.events.header import Encoding
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import CorruptDataError, NotFoundError, PreconditionFailedError
from sessionfs.sessions.event_log import Event, EventLog, Header, open_event_log
from sessionfs.sessions.object_place import open_object_place
from sessionfs.stores.open_store import open_store

from .memory_place import MemoryPlace
from .records import LOG, header, said, stored

SESSIONS = 10_000
LIMIT_SECONDS = 20.0


async def begun(log: EventLog, count: int = 3) -> None:
    handle = await log.create(header())
    await handle.append(said(0, count))
    await handle.close()


async def test_tasks_that_share_a_handle_each_see_every_event_once(place: MemoryPlace, log: EventLog) -> None:
    await begun(log)
    reader = await log.open("s1", "read")
    writer = await log.open_to_write("s1")
    results: list[list[int]] = []

    async def look() -> None:
        results.append([event.seq for event in await reader.read()])

    for first in range(3, 30, 3):
        await writer.append(said(first, 3))
        await writer.flush()
        results.clear()
        place.calls.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(look)
        assert results == [list(range(first + 3))] * 5
        assert place.calls["read", LOG] == 1, "each task read it for itself"


async def test_only_what_is_new_is_read(place: MemoryPlace, log: EventLog) -> None:
    await begun(log)
    reader = await log.open("s1", "read")
    before = place.calls["read", LOG]
    await reader.read()
    await reader.read(1)
    assert place.calls["read", LOG] == before, "nothing changed, and the log was read again"


async def test_another_log_in_its_place_is_an_error_and_no_older_view(
    place: MemoryPlace, log: EventLog
) -> None:
    await begun(log)
    reader = await log.open("s1", "read")
    other = [event.__class__(event.seq, 7, "x.other") for event in said(0, 20)]
    place.shared.set("s1", LOG, stored(other))
    with pytest.raises((PreconditionFailedError, CorruptDataError)):
        await reader.read()
    place.shared.bodies.clear()
    with pytest.raises(NotFoundError):
        await reader.read()


def others(count: int) -> list[Event]:
    """Events of another log, as long as those of `said`."""
    return [
        Event(one.seq, one.at, one.type, data={"text": one.data["text"].replace("l", "L")})
        for one in said(0, count)
    ]


@pytest.mark.parametrize("encoding", ["zstd", "lines"])
@pytest.mark.parametrize("count", [1, 3, 5])
async def test_events_of_two_logs_are_never_mixed(
    place: MemoryPlace, log: EventLog, encoding: Encoding, count: int
) -> None:
    head = msgspec.structs.replace(header(), encoding=encoding)

    def put(some: Sequence[Event]) -> None:
        place.shared.set("s1", head.log_path, b"".join(stored([one], encoding) for one in some))

    place.shared.set("s1", headers.HEADER_PATH, headers.encode(head))
    put(said(0, 3))
    reader = await log.open("s1", "read")
    assert await reader.read() == said(0, 3)
    put(others(count))
    for _ in range(2):
        with pytest.raises(PreconditionFailedError, match="replaced by another"):
            await reader.read()
    put(said(0, 5))
    place.calls.clear()
    assert await reader.read() == said(0, 5)
    assert place.calls["read", head.log_path] == 1, "comparing takes a request of its own"


async def test_a_log_that_was_rewritten_in_one_frame_is_the_same_log(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await log.create(header())
    for seq in range(3):
        await handle.append(said(seq))
        await handle.flush()
    await handle.close()
    reader = await log.open("s1", "read")
    await reader.read()
    place.shared.set("s1", LOG, stored(said(0, 30)))
    assert await reader.read() == said(0, 30)


async def test_damage_behind_what_was_read_is_an_error_and_takes_nothing_back(
    place: MemoryPlace, log: EventLog
) -> None:
    await begun(log)
    reader = await log.open("s1", "read")
    good = place.shared.bodies["s1", LOG][0]
    place.shared.set("s1", LOG, good + b"damage")
    with pytest.raises(CorruptDataError, match=f"s1/{LOG}"):
        await reader.read()
    place.shared.set("s1", LOG, good + stored(said(3)))
    assert await reader.read() == said(0, 4)


async def test_no_listing_reads_a_log(place: MemoryPlace, log: EventLog) -> None:
    for number in range(5):
        handle = await log.create(header(f"s{number}"))
        await handle.append(said(0))
        await handle.close()
    place.shared.set("no log", "other file", b"x")
    place.shared.set("bad", headers.HEADER_PATH, b"no JSON")
    place.calls.clear()
    listed = await log.list()
    assert [one.id for one in listed] == ["bad", "s0", "s1", "s2", "s3", "s4"]
    assert [bool(one.problem) for one in listed] == [True] + [False] * 5
    assert listed[1:] == [await log.stat(f"s{number}") for number in range(5)]
    assert {path for name, path in place.calls if name == "read"} == {headers.HEADER_PATH}


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in memory where the machine has one: removing so many files from a disk takes longer than the test."""
    in_memory = "/dev/shm"
    try:
        with tempfile.NamedTemporaryFile(dir=in_memory) as file:
            os.setxattr(file.name, "user.sessionfs.test", b"1")
    except OSError:
        in_memory = ""
    with tempfile.TemporaryDirectory(prefix="sessionfs-", dir=in_memory or None) as found:
        yield Path(found)


async def test_ten_thousand_sessions_of_a_directory_are_listed_by_their_headers_alone(
    directory: Path,
) -> None:
    body = stored(said(0))
    for number in range(SESSIONS):
        session = directory / "sessions" / f"s{number:05}"
        session.mkdir(parents=True)
        head = Header(id=session.name, created_at=number)
        (session / headers.HEADER_PATH).write_bytes(headers.encode(head))
        (session / LOG).write_bytes(body)
    async with (
        open_object_place(open_store(str(directory)), SystemClock()) as place,
        open_event_log(place) as log,
    ):
        start = os.times()
        listed = await log.list()
        end = os.times()
        assert len(listed) == SESSIONS
        assert listed[7] == await log.stat("s00007")
    # A guard against what grows with the square; the figure itself is in docs/BENCHMARKS.md.
    print(f"{SESSIONS} sessions listed in {end.elapsed - start.elapsed:.2f} s")
    assert end.user + end.system - start.user - start.system < LIMIT_SECONDS
