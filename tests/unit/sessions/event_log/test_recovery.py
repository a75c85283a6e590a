"""A log whose last batch was cut, at every byte: what a reader sees, and what the next writer keeps."""

from __future__ import annotations

import msgspec
import pytest

from sessionfs.formats.events import event as events
from sessionfs.formats.events import header as headers
from sessionfs.formats.events.header import Encoding
from sessionfs.formats.events.older import OLDER_PATHS
from sessionfs.model.errors import CorruptDataError, OwnershipLostError, UnavailableError
from sessionfs.sessions.event_log import Event, EventLog, LogHandle, interrupted_turn_closers

from . import memory_place
from .memory_place import MemoryPlace
from .records import LOG, header, said, stored

ENCODINGS: tuple[Encoding, ...] = ("zstd", "lines")
BEFORE = said(0, 2)
LAST = [
    Event(2, 20, "turn.started", "t"),
    Event(3, 21, "step.started", "t", "p"),
    Event(4, 22, "tool.called", "t", "p", data={"call": "c", "text": "größer"}),
    Event(5, 23, "tool.returned", "t", "p", data={"call": "c"}),
]


def place_torn(place: MemoryPlace, encoding: Encoding, cut: int) -> str:
    head = msgspec.structs.replace(header(), encoding=encoding)
    place.shared.set("s1", headers.HEADER_PATH, headers.encode(head))
    place.shared.set("s1", head.log_path, stored(BEFORE, encoding) + stored(LAST, encoding)[:cut])
    return head.log_path


async def shown(handle: LogHandle) -> list[Event]:
    return await handle.read()


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_a_batch_cut_at_any_byte_is_read_and_recovered_without_loss(
    place: MemoryPlace, log: EventLog, encoding: Encoding
) -> None:
    length = len(stored(LAST, encoding))
    kept_before = 0
    for cut in range(length + 1):
        path = place_torn(place, encoding, cut)
        reader = await log.open("s1", "read")
        first = await shown(reader)
        assert first == [*BEFORE, *LAST][: len(first)]
        assert len(first) == len(BEFORE) or encoding == "lines" or cut == length
        assert await reader.replay() == first + interrupted_turn_closers(first)

        writer = await log.open_to_write("s1")
        recovered = await shown(writer)
        closers = [one for one in recovered if one.data.get("interrupted")]
        kept = recovered[: len(recovered) - len(closers)]
        assert kept == [*BEFORE, *LAST][: len(kept)]
        assert len(first) <= len(kept), "the writer dropped what a reader was shown"
        assert kept_before <= len(kept), "more bytes gave fewer records"
        assert closers == interrupted_turn_closers(kept)
        kept_before = len(kept)

        seen = await shown(reader)
        assert seen == recovered, "the reader does not go on with what was recovered"
        await writer.append([Event(writer.next_seq, 99, "x.next")])
        await writer.close()
        assert await shown(reader) == [*recovered, Event(len(recovered), 99, "x.next")]
        assert await shown(await log.open("s1", "read")) == await shown(reader)
        assert place.shared.bodies["s1", path][0].startswith(stored(BEFORE, encoding))
        place.shared.bodies.clear()
    assert kept_before == len(BEFORE) + len(LAST)


async def test_a_record_is_kept_as_soon_as_it_is_complete(place: MemoryPlace, log: EventLog) -> None:
    counts = set()
    for cut in range(len(stored(LAST)) + 1):
        place_torn(place, "zstd", cut)
        writer = await log.open_to_write("s1")
        counts.add(sum(1 for one in await shown(writer) if not one.data.get("interrupted")))
        await writer.close()
        place.shared.bodies.clear()
    assert counts == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("fault", [memory_place.refuse, memory_place.lose_answer])
async def test_a_recovery_that_is_interrupted_loses_nothing(
    place: MemoryPlace, log: EventLog, fault: memory_place.Fault
) -> None:
    path = place_torn(place, "zstd", len(stored(LAST)) - 1)
    place.shared.faults["s1"] = [fault]
    with pytest.raises(Exception, match=r"refuses|no answer"):
        await log.open_to_write("s1")
    writer = await log.open_to_write("s1")
    assert [one.seq for one in await shown(writer)] == list(range(8))
    await writer.close()
    assert not place.shared.faults["s1"], path


async def test_a_first_batch_that_is_torn_to_nothing_makes_no_session(
    place: MemoryPlace, log: EventLog
) -> None:
    place.shared.set("s1", headers.HEADER_PATH, headers.encode(header()))
    place.shared.set("s1", LOG, stored(said(0))[:5])
    assert await shown(await log.open("s1", "read")) == []
    writer = await log.open_to_write("s1")
    assert writer.next_seq == 0
    await writer.append(said(0, 3))
    await writer.close()
    assert await shown(await log.open("s1", "read")) == said(0, 3)


async def test_a_whole_log_with_nothing_open_is_left_alone_by_a_writer(
    place: MemoryPlace, log: EventLog
) -> None:
    place_torn(place, "zstd", 0)
    before = dict(place.shared.bodies)
    await (await log.open_to_write("s1")).close()
    assert place.shared.bodies == before


@pytest.mark.parametrize("fault", [memory_place.refuse, memory_place.lose_answer])
async def test_a_migration_that_is_interrupted_is_done_by_the_next_writer(
    place: MemoryPlace, log: EventLog, fault: memory_place.Fault
) -> None:
    raw = b'{"seq":0,"ts":1,"kind":"start"}\n{"seq":1,"ts":2,"kind":"turn_start","turn":"1"}\n{"seq":2'
    place.shared.set("s1", OLDER_PATHS[1], raw)
    place.shared.faults["s1"] = [fault]
    with pytest.raises(Exception, match=r"refuses|no answer"):
        await log.open_to_write("s1")
    if fault is memory_place.refuse:
        assert (await log.stat("s1")).version == 1, "a header alone is no log"
        assert [one.type for one in await shown(await log.open("s1", "read"))] == [
            "session.started", "turn.started",
        ]  # fmt: skip
    writer = await log.open_to_write("s1")
    assert [one.type for one in await shown(writer)] == ["session.started", "turn.started", "turn.ended"]
    await writer.close()
    assert (await log.stat("s1")).version == 2
    assert place.shared.bodies["s1", OLDER_PATHS[1]][0] == raw


async def test_an_older_log_without_an_event_becomes_the_newest_with_the_first(
    place: MemoryPlace, log: EventLog
) -> None:
    place.shared.set("s1", OLDER_PATHS[0], b"[]")
    writer = await log.open_to_write("s1")
    assert list(place.shared.bodies) == [("s1", OLDER_PATHS[0])]
    await writer.append(said(0))
    await writer.close()
    assert (await log.stat("s1")).version == 2
    assert await shown(await log.open("s1", "read")) == said(0)


async def test_an_open_reader_of_an_older_log_sees_what_an_older_program_adds(
    place: MemoryPlace, log: EventLog
) -> None:
    first, second = b'{"seq":0,"ts":1,"kind":"user"}\n', b'{"seq":1,"ts":1,"kind":"user"}\n'
    place.shared.set("s1", OLDER_PATHS[1], first)
    reader = await log.open("s1", "read")
    assert len(await shown(reader)) == 1
    place.shared.set("s1", OLDER_PATHS[1], first + second)
    assert len(await shown(reader)) == 2
    place.shared.set("s1", OLDER_PATHS[1], first)
    assert len(await shown(reader)) == 2, "a read went back"


async def test_a_write_that_was_refused_while_opening_leaves_the_open_turn_as_it_was(
    place: MemoryPlace, log: EventLog
) -> None:
    path = place_torn(place, "zstd", len(stored(LAST)))
    before = place.shared.bodies["s1", path]
    place.shared.faults["s1"] = [memory_place.refuse]
    with pytest.raises(UnavailableError):
        await log.open_to_write("s1")
    assert place.shared.bodies["s1", path] == before
    assert events.decode_line(events.encode(LAST[0]), 2, "log") == LAST[0]


async def test_an_older_log_that_no_header_holds_is_refused_before_anything_is_written(
    place: MemoryPlace, log: EventLog
) -> None:
    started = {"seq": 0, "ts": 1, "kind": "start", "data": {"origin": "x" * headers.MAX_HEADER_BYTES}}
    raw = msgspec.json.encode(started) + b"\n"
    place.shared.set("s1", OLDER_PATHS[1], raw)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=OLDER_PATHS[1]):
            await log.open_to_write("s1")
    assert list(place.shared.bodies) == [("s1", OLDER_PATHS[1])]


async def test_what_another_wrote_while_a_torn_end_was_looked_at_is_not_replaced(
    place: MemoryPlace, log: EventLog
) -> None:
    path = place_torn(place, "zstd", len(stored(LAST)) - 1)
    other = stored(BEFORE) + stored(LAST)
    place.shared.meanwhile.append(lambda: place.shared.set("s1", path, other))
    with pytest.raises(OwnershipLostError):
        await log.open_to_write("s1")
    assert place.shared.bodies["s1", path][0] == other
