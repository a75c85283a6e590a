"""Batches: the window, what is refused, lost answers, cancellation, and lost ownership."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from sessionfs.formats.events import header as headers
from sessionfs.formats.logs import zstd_log
from sessionfs.model.errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    OwnershipLostError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.sessions.event_log import EventLog, EventLogSettings, WriteHandle, open_event_log

from . import memory_place
from .memory_place import Fault, MemoryPlace
from .records import LOG, header, said, stored


def frames(place: MemoryPlace, session: str = "s1") -> list[list[int]]:
    """The numbers of the events in each frame that is stored."""
    raw = place.shared.bodies.get((session, LOG), (b"", 0))[0]
    return [
        [int(line.split(b",")[0].removeprefix(b'{"seq":')) for line in frame.lines]
        for frame in zstd_log.frames_of(raw, "log")
    ]


async def flushed(log: EventLog, count: int = 1) -> WriteHandle:
    handle = await log.create(header())
    await handle.append(said(0, count))
    await handle.flush()
    return handle


async def test_events_of_one_window_are_one_frame(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock
) -> None:
    handle = await log.create(header())
    for seq in range(3):
        await handle.append(said(seq))
        await trio.sleep(0.015)
    assert frames(place) == [], "the window is fixed from its first event"
    await trio.sleep(0.006)
    assert frames(place) == [[0, 1, 2]]
    await handle.append(said(3))
    await trio.sleep(0.04)
    assert len(frames(place)) == 1
    await trio.sleep(0.02)
    assert frames(place) == [[0, 1, 2], [3]]


async def test_a_flush_does_not_wait_for_the_window_and_syncs(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock
) -> None:
    start = trio.current_time()
    handle = await flushed(log, 2)
    assert trio.current_time() == start
    assert place.calls["sync", LOG] == 1
    assert place.calls["sync", "events.header.json"] == 1
    await handle.flush()
    assert place.calls["sync", LOG] == 1, "nothing was new"


async def test_what_the_window_wrote_is_synced_by_the_next_flush(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock
) -> None:
    handle = await log.create(header())
    await handle.append(said(0))
    await trio.sleep(1)
    assert (frames(place), place.calls["sync", LOG]) == ([[0]], 0)
    await handle.flush()
    assert place.calls["sync", LOG] == 1


async def test_a_refused_batch_stays_in_order_and_pauses_until_a_flush_succeeds(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock
) -> None:
    handle = await log.create(header())
    place.shared.faults["s1"] = [memory_place.refuse, memory_place.refuse]
    await handle.append(said(0, 2))
    await trio.sleep(1)
    assert isinstance(handle.problem, UnavailableError)
    await handle.append(said(2))
    await trio.sleep(1)
    assert place.calls["write", LOG] == 1, "the automatic path is not paused"
    with pytest.raises(UnavailableError):
        await handle.flush()
    assert [event.seq for event in await handle.read()] == [0, 1, 2]
    await handle.flush()
    assert (frames(place), handle.pending_count) == ([[0, 1, 2]], 0)
    await handle.append(said(3))
    await trio.sleep(1)
    assert frames(place) == [[0, 1, 2], [3]], "the automatic path does not go on"


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (memory_place.lose_answer, OutcomeUnknownError),
        (memory_place.tear, UnavailableError),
        (memory_place.refuse, UnavailableError),
    ],
)
async def test_a_batch_is_stored_once_whatever_became_of_its_first_try(
    place: MemoryPlace, log: EventLog, fault: Fault, error: type[SessionFSError], is_first: bool
) -> None:
    handle = await (log.create(header()) if is_first else flushed(log))
    first = handle.next_seq
    place.shared.faults["s1"] = [fault]
    await handle.append(said(first, 5))
    with pytest.raises(error):
        await handle.flush()
    await handle.append(said(first + 5))
    await handle.flush()
    reader = await log.open("s1", "read")
    assert await reader.read() == said(0, first + 6)
    assert sum(frames(place), []) == list(range(first + 6))  # noqa: RUF017 - a few numbers


async def test_a_torn_batch_that_could_not_be_made_whole_is_not_written_behind(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await flushed(log)
    place.shared.faults["s1"] = [memory_place.tear, memory_place.refuse]
    await handle.append(said(1, 5))
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await handle.flush()
    await handle.flush()
    assert await (await log.open("s1", "read")).read() == said(0, 6)


async def test_a_flush_that_fails_pauses_the_window_that_has_begun(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock
) -> None:
    handle = await log.create(header())
    place.shared.faults["s1"] = [memory_place.refuse]
    await handle.append(said(0))
    with pytest.raises(UnavailableError):
        await handle.flush()
    await trio.sleep(1)
    assert frames(place) == []
    await handle.flush()
    assert frames(place) == [[0]]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("fault", [memory_place.hang_before, memory_place.hang_after])
async def test_a_cancelled_flush_is_finished_by_the_next_one(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock, fault: Fault, is_first: bool
) -> None:
    handle = await (log.create(header()) if is_first else flushed(log))
    first = handle.next_seq
    place.shared.faults["s1"] = [fault]
    await handle.append(said(first, 2))
    with trio.move_on_after(1) as scope:
        await handle.flush()
    assert scope.cancelled_caught
    await handle.append(said(first + 2))
    await handle.flush()
    assert await (await log.open("s1", "read")).read() == said(0, first + 3)


async def test_appends_of_several_tasks_are_in_the_order_of_their_numbers(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await log.create(header())

    async def add_some() -> None:
        for _ in range(20):
            while True:
                try:
                    await handle.append(said(handle.next_seq))
                    break
                except InvalidRequestError:
                    continue
            await handle.flush()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(add_some)
    assert await (await log.open("s1", "read")).read() == said(0, 80)


async def test_an_append_waits_when_too_much_is_pending_and_takes_nothing_when_it_cannot_be_stored(
    place: MemoryPlace,
) -> None:
    settings = EventLogSettings(batch_window_seconds=60, max_pending_bytes=100)
    async with open_event_log(place, settings) as log:
        handle = await log.create(header())
        place.shared.faults["s1"] = [memory_place.refuse]
        await handle.append(said(0, 5))
        with pytest.raises(UnavailableError):
            await handle.append(said(5))
        with pytest.raises(UnavailableError):
            await handle.append(said(5))
        assert (handle.next_seq, place.calls["write", LOG]) == (5, 1)
        await handle.flush()
        await handle.append(said(5, 5))
        await handle.append(said(10))
        assert frames(place) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        assert handle.pending_count == 1


async def test_a_lost_session_refuses_append_and_flush_and_nothing_is_written(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock
) -> None:
    handle = await flushed(log)
    await handle.append(said(1))
    before = place.shared.bodies["s1", LOG]
    place.shared.owners["s1"] = "there"
    await trio.sleep(1)
    assert isinstance(handle.problem, OwnershipLostError)
    with pytest.raises(OwnershipLostError):
        await handle.append(said(2))
    with pytest.raises(OwnershipLostError):
        await handle.flush()
    with pytest.raises(OwnershipLostError):
        await handle.close()
    assert place.shared.bodies["s1", LOG] == before
    assert (handle.is_closed, handle.pending_count) == (True, 1)
    assert place.shared.owners["s1"] == "there", "another's ownership was given away"


async def test_a_log_that_somebody_else_wrote_is_not_written_over(place: MemoryPlace, log: EventLog) -> None:
    handle = await flushed(log)
    foreign = place.shared.bodies["s1", LOG][0] + stored(said(1, 3))
    place.shared.set("s1", LOG, foreign)
    await handle.append([*said(1, 2), *said(3)])
    await handle.flush()
    assert place.shared.bodies["s1", LOG][0] == foreign, "the same events are the same batch"
    place.shared.set("s1", LOG, foreign + stored(said(4, 1)))
    await handle.append([event.__class__(4, 99, "x.other") for event in said(4)])
    with pytest.raises(OwnershipLostError, match="changed by somebody else"):
        await handle.flush()
    assert place.shared.bodies["s1", LOG][0] == foreign + stored(said(4, 1))
    handle._pending.clear()


@pytest.mark.parametrize("damage", ["shorter", "gone", "garbage"])
async def test_a_log_that_was_replaced_is_left_as_it_is(
    place: MemoryPlace, log: EventLog, damage: str
) -> None:
    handle = await flushed(log, 3)
    if damage == "gone":
        del place.shared.bodies["s1", LOG]
        place.shared.faults["s1"] = [memory_place.refuse]
    else:
        body = place.shared.bodies["s1", LOG][0]
        place.shared.set("s1", LOG, body[:-1] if damage == "shorter" else body + b"garbage")
    before = dict(place.shared.bodies)
    await handle.append(said(3))
    with pytest.raises(SessionFSError):
        await handle.flush()
    with pytest.raises(SessionFSError):
        await handle.flush()
    assert place.shared.bodies == before
    handle._pending.clear()


async def test_a_file_that_was_touched_and_not_changed_is_gone_on_with(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await flushed(log)
    place.shared.set("s1", LOG, place.shared.bodies["s1", LOG][0])
    await handle.append(said(1))
    await handle.flush()
    assert frames(place) == [[0], [1]]


BROKEN = OutcomeUnknownError("the disk broke")


@pytest.mark.parametrize("error", [BROKEN, OSError(5, "I/O")])
async def test_after_a_failed_sync_the_whole_log_is_written_again(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock, error: Exception
) -> None:
    handle = await flushed(log, 2)
    await handle.append(said(2))
    await trio.sleep(1)
    place.shared.sync_faults[LOG] = [error, error]
    place.calls.clear()
    with pytest.raises(type(error)):
        await handle.flush()
    assert place.calls["write", LOG] == 0
    with pytest.raises(type(error)):
        await handle.flush()
    await handle.append(said(3))
    await handle.flush()
    assert (place.calls["write", LOG], place.calls["write", headers.HEADER_PATH]) == (2, 0)
    assert frames(place) == [[0, 1, 2], [3]]
    assert (handle.pending_count, handle.problem) == (0, None)
    await handle.append(said(4))
    await handle.flush()
    assert place.calls["write", LOG] == 2, "a log that is sound is written again"
    assert await (await log.open("s1", "read")).read() == said(0, 5)


@pytest.mark.parametrize("fault", [memory_place.lose_answer, memory_place.tear, memory_place.refuse])
async def test_after_a_synced_append_that_failed_the_whole_log_is_written_again(
    place: MemoryPlace, log: EventLog, fault: Fault
) -> None:
    handle = await flushed(log, 2)
    reader = await log.open("s1", "read")
    place.shared.faults["s1"] = [fault]
    await handle.append(said(2, 3))
    with pytest.raises(SessionFSError):
        await handle.flush()
    place.calls.clear()
    await handle.flush()
    assert place.calls["write", LOG] >= 1
    assert await reader.read() == said(0, 5)


async def test_after_a_failed_sync_of_the_header_it_is_written_again_too(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await log.create(header())
    await handle.append(said(0))
    place.shared.sync_faults[headers.HEADER_PATH] = [BROKEN]
    with pytest.raises(OutcomeUnknownError):
        await handle.flush()
    assert place.calls["write", headers.HEADER_PATH] == 1
    await handle.flush()
    assert place.calls["write", headers.HEADER_PATH] == 2
    assert place.calls["sync", headers.HEADER_PATH] == 2
    assert await (await log.open("s1", "read")).read() == said(0)


@pytest.mark.parametrize("fault", [memory_place.refuse, memory_place.lose_answer])
async def test_writing_the_log_again_may_fail_too_and_nothing_is_added_before(
    place: MemoryPlace, log: EventLog, fault: Fault
) -> None:
    handle = await log.create(header())
    for seq in range(3):
        await handle.append(said(seq))
        await handle._write_out()
    place.shared.sync_faults[LOG] = [BROKEN]
    with pytest.raises(OutcomeUnknownError):
        await handle.flush()
    place.shared.faults["s1"] = [fault]
    await handle.append(said(3))
    with pytest.raises(SessionFSError):
        await handle.flush()
    assert sum(frames(place), []) == [0, 1, 2]  # noqa: RUF017 - a few numbers
    await handle.flush()
    assert frames(place) == [[0, 1, 2], [3]]


@pytest.mark.parametrize(
    "other",
    [stored(said(0)), stored(said(0, 3)), b"no log", b""],
    ids=["shorter", "longer", "damage", "empty"],
)
async def test_writing_the_log_again_replaces_nothing_that_is_another_s(
    place: MemoryPlace, log: EventLog, other: bytes
) -> None:
    handle = await log.create(header())
    await handle.append(said(0, 2))
    place.shared.sync_faults[LOG] = [BROKEN]
    with pytest.raises(OutcomeUnknownError):
        await handle.flush()
    place.shared.set("s1", LOG, other)
    with pytest.raises(OwnershipLostError):
        await handle.flush()
    assert place.shared.bodies["s1", LOG][0] == other


async def test_an_event_that_is_flushed_at_once_costs_no_task_and_no_turn_but_the_place_s(
    place: MemoryPlace, log: EventLog
) -> None:
    class Counting(trio.abc.Instrument):
        steps = 0
        tasks = 0

        def before_task_step(self, _task: trio.lowlevel.Task) -> None:
            self.steps += 1

        def task_spawned(self, _task: trio.lowlevel.Task) -> None:
            self.tasks += 1

    handle = await flushed(log)
    counting = Counting()
    trio.lowlevel.add_instrument(counting)
    for seq in range(1, 51):
        await handle.append(said(seq))
        await handle.flush()
    trio.lowlevel.remove_instrument(counting)
    assert counting.tasks <= 2
    assert counting.steps <= 50 + 10, "more than the one in which the place appends"


async def test_a_batch_after_a_flush_has_a_window_of_its_own(
    place: MemoryPlace, log: EventLog, autojump_clock: MockClock
) -> None:
    handle = await flushed(log)
    await trio.sleep(0.03)
    await handle.append(said(1))
    await trio.sleep(0.03)
    assert frames(place) == [[0]], "it was written at the end of the window of the one before"
    await handle.append(said(2))
    await trio.sleep(0.021)
    assert frames(place) == [[0], [1, 2]]


async def test_appends_alone_let_other_tasks_run(place: MemoryPlace, log: EventLog) -> None:
    handle = await log.create(header())
    turns: list[int] = []

    async def other() -> None:
        for _ in range(5):
            turns.append(handle.next_seq)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for seq in range(6):
            await handle.append(said(seq))
    assert len(set(turns)) > 1
