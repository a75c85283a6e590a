"""The service: what it owns and gives back, what it leaves, and what it raises at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
import trio
import trio.testing

from sessionfs.formats.events import header as headers
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    HandleClosedError,
    InvalidRequestError,
    InvalidSessionIdError,
    NotFoundError,
    OwnershipLostError,
    PreconditionFailedError,
    SessionAlreadyOwnedError,
    SettingsError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.event_log import Event, EventLog, EventLogSettings, FlushFailedError, open_event_log
from sessionfs.sessions.port import FileStat

from . import memory_place
from .memory_place import MemoryPlace
from .records import LOG, header, said

S1 = SessionId("s1")


async def test_a_flush_of_all_tries_every_session_and_says_what_each_raised(
    place: MemoryPlace, log: EventLog
) -> None:
    handles = {session: await log.create(header(session)) for session in ("s1", "s2", "s3", "s4")}
    for handle in handles.values():
        await handle.append(said(0))
    place.shared.faults = {"s1": [memory_place.refuse], "s3": [memory_place.lose_answer]}
    place.shared.owners["s4"] = "there"
    with pytest.raises(FlushFailedError) as caught:
        await log.flush()
    kinds = {session: type(error).__name__ for session, error in caught.value.by_session.items()}
    assert kinds == {"s1": "UnavailableError", "s3": "OutcomeUnknownError", "s4": "OwnershipLostError"}
    assert len(caught.value.exceptions) == 3
    assert "s1: the place refuses" in str(caught.value)
    assert ("s2", LOG) in place.shared.bodies
    with pytest.raises(FlushFailedError) as again:
        await log.flush()
    assert set(again.value.by_session) == {"s4"}


async def test_the_end_of_the_service_stores_everything_and_gives_everything_back(place: MemoryPlace) -> None:
    async with open_event_log(place) as log:
        for session in ("s1", "s2"):
            await (await log.create(header(session))).append(said(0))
    assert place.shared.owners == {}
    async with open_event_log(place) as log:
        assert [len(await (await log.open(one.id, "read")).read()) for one in await log.list()] == [1, 1]


async def test_the_end_of_the_service_says_what_was_not_stored(place: MemoryPlace) -> None:
    with pytest.raises(FlushFailedError) as caught:  # noqa: PT012 - it is raised by the block's end
        async with open_event_log(place) as log:
            await (await log.create(header("s1"))).append(said(0))
            await (await log.create(header("s2"))).append(said(0))
            place.shared.faults["s1"] = [memory_place.refuse]
    assert set(caught.value.by_session) == {"s1"}
    assert place.shared.owners == {}
    assert ("s2", LOG) in place.shared.bodies


async def test_an_error_of_the_block_is_raised_as_it_is_with_what_was_not_stored(place: MemoryPlace) -> None:
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012 - as above
        async with open_event_log(place) as log:
            await (await log.create(header())).append(said(0))
            place.shared.faults["s1"] = [memory_place.refuse]
            raise ZeroDivisionError
    assert "s1: the place refuses" in caught.value.__notes__[0]


async def test_a_cancelled_service_still_stores_what_was_appended(place: MemoryPlace) -> None:
    with trio.CancelScope() as scope:
        async with open_event_log(place) as log:
            await (await log.create(header())).append(said(0))
            scope.cancel()
            await trio.sleep_forever()
    assert ("s1", LOG) in place.shared.bodies
    assert place.shared.owners == {}


async def test_a_cancelled_service_says_what_was_not_stored(place: MemoryPlace) -> None:
    with pytest.raises(FlushFailedError) as caught, trio.CancelScope() as scope:  # noqa: PT012 - as above
        async with open_event_log(place) as log:
            await (await log.create(header())).append(said(0))
            place.shared.faults["s1"] = [memory_place.refuse]
            scope.cancel()
            await trio.sleep_forever()
    assert set(caught.value.by_session) == {"s1"}


def test_a_part_of_the_error_still_says_which_sessions() -> None:
    refused, lost = UnavailableError("refused"), OwnershipLostError("lost")
    whole = FlushFailedError({S1: refused, SessionId("s2"): lost})
    part, rest = whole.split(OwnershipLostError)
    assert isinstance(part, FlushFailedError)
    assert isinstance(rest, FlushFailedError)
    assert (dict(part.by_session), dict(rest.by_session)) == ({"s2": lost}, {"s1": refused})


async def test_a_failed_close_closes_and_gives_back_and_counts_what_is_lost(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await log.create(header())
    await handle.append(said(0, 3))
    place.shared.faults["s1"] = [memory_place.refuse]
    with pytest.raises(UnavailableError):
        await handle.close()
    await handle.close()
    assert (handle.is_closed, handle.pending_count) == (True, 3)
    assert place.shared.owners == {}
    await (await log.create(header())).close()


async def test_a_second_close_waits_for_the_first(place: MemoryPlace, log: EventLog) -> None:
    handle = await log.create(header())
    await handle.append(said(0))
    release = trio.Event()

    async def slowly(apply: memory_place.Apply) -> FileStat:
        await release.wait()
        return apply(1.0)

    place.shared.faults["s1"] = [slowly]
    ended: list[bool] = []

    async def close() -> None:
        await handle.close()
        ended.append(("s1", LOG) in place.shared.bodies)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(close)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        release.set()
    assert ended == [True] * 3


async def test_what_the_place_owned_before_stays_owned(place: MemoryPlace, log: EventLog) -> None:
    await place.claim(S1)
    handle = await log.create(header())
    await handle.append(said(0))
    await handle.close()
    await (await log.open_to_write("s1")).close()
    assert place.owns(S1)


async def test_an_open_that_fails_gives_the_session_back(place: MemoryPlace, log: EventLog) -> None:
    with pytest.raises(NotFoundError):
        await log.open("s1", "write")
    place.shared.set("s1", headers.HEADER_PATH, headers.encode(header()))
    place.shared.set("s1", LOG, b"no frame")
    with pytest.raises(CorruptDataError):
        await log.open("s1", "write")
    with pytest.raises(AlreadyExistsError):
        await log.create(header())
    assert place.shared.owners == {}
    assert place.shared.bodies["s1", LOG][0] == b"no frame"


async def test_a_service_gives_one_write_handle_a_session(place: MemoryPlace, log: EventLog) -> None:
    handle = await log.create(header())
    with pytest.raises(SessionAlreadyOwnedError):
        await log.open("s1", "write")
    with pytest.raises(SessionAlreadyOwnedError):
        await log.create(header())
    assert place.owns(S1)
    await handle.append(said(0))
    await handle.flush()


async def test_the_rest_of_a_session_that_never_materialised_is_no_session(
    place: MemoryPlace, log: EventLog
) -> None:
    old = headers.encode(header())
    for body in (None, b""):
        place.shared.set("s1", headers.HEADER_PATH, old)
        if body is not None:
            place.shared.set("s1", LOG, body)
        assert await log.list() == []
        with pytest.raises(NotFoundError):
            await log.open("s1", "read")
        handle = await log.create(header_of_cwd("/new"))
        await handle.append(said(0, 2))
        await handle.close()
        reader = await log.open("s1", "read")
        assert (reader.header.cwd, await reader.read()) == ("/new", said(0, 2))
        place.shared.bodies.clear()


def header_of_cwd(cwd: str) -> headers.Header:
    return headers.Header(id="s1", created_at=2, cwd=cwd)


async def test_bad_requests_change_nothing(place: MemoryPlace, log: EventLog) -> None:
    seeded = headers.Header(
        id="s1", created_at=1, parent_session="s0", is_seeded=True, inherited_event_count=1
    )
    with pytest.raises(InvalidRequestError, match="fork"):
        await log.create(seeded)
    for bad in ("", "..", "a/b", "x.owner"):
        with pytest.raises(InvalidSessionIdError):
            await log.open(bad, "read")
        with pytest.raises(InvalidSessionIdError):
            await log.stat(bad)
        with pytest.raises(InvalidSessionIdError):
            await log.create(header(bad))
    assert (place.shared.bodies, place.shared.owners) == ({}, {})


async def test_a_fork_that_cannot_be_stored_leaves_no_session(place: MemoryPlace, log: EventLog) -> None:
    handle = await log.create(header())
    await handle.append(said(0, 2))
    await handle.close()
    place.shared.faults["s2"] = [memory_place.refuse]
    with pytest.raises(UnavailableError):
        await log.fork("s1", header("s2"))
    assert "s2" not in place.shared.owners
    assert [one.id for one in await log.list()] == ["s1"]
    place.calls.clear()
    child = await log.fork("s1", header("s2"))
    assert place.calls["sync", LOG] == place.calls["sync", headers.HEADER_PATH] == 1
    assert [event.type for event in await child.read()] == ["message.user"] * 2 + ["seed.ended"]
    grandchild = await log.fork("s2", header("s3"))
    assert [event.type for event in await grandchild.read()] == ["message.user"] * 2 + ["seed.ended"] * 2
    assert grandchild.header.inherited_event_count == 3


async def test_a_release_that_fails_is_raised_and_the_handle_is_closed(
    place: MemoryPlace, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_session: SessionId) -> None:
        await trio.lowlevel.checkpoint()
        raise UnavailableError("no answer")

    async def lose(_session: SessionId) -> None:
        await trio.lowlevel.checkpoint()
        raise OwnershipLostError("another has it")

    handle = await log.create(header())
    await handle.append(said(0))
    monkeypatch.setattr(place, "release", fail)
    with pytest.raises(UnavailableError):
        await handle.close()
    assert handle.is_closed
    assert ("s1", LOG) in place.shared.bodies
    place.shared.owners.clear()
    handle = await log.open_to_write("s1")
    monkeypatch.setattr(place, "release", lose)
    await handle.close()
    assert handle.is_closed


@pytest.mark.parametrize(
    "bad",
    [
        {"batch_window_seconds": -1.0},
        {"batch_window_seconds": 61.0},
        {"max_pending_bytes": 0},
        {"concurrent_requests": 0},
    ],
)
def test_settings_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        EventLogSettings(**bad)  # type: ignore[arg-type]


async def test_events_appended_while_a_batch_is_written_are_the_next_batch(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await log.create(header())
    await handle.append(said(0))

    async def meanwhile(apply: memory_place.Apply) -> FileStat:
        await handle.append([Event(1, 1, "x.late")])
        return apply(1.0)

    place.shared.faults["s1"] = [meanwhile]
    await handle.flush()
    assert handle.pending_count == 1
    assert [event.seq for event in await handle.read()] == [0, 1]
    await handle.flush()
    assert [event.seq for event in await (await log.open("s1", "read")).read()] == [0, 1]


@pytest.mark.parametrize("cwd", ["", "/other"])
async def test_a_log_that_appeared_meanwhile_is_left_alone_with_its_header(
    place: MemoryPlace, log: EventLog, cwd: str
) -> None:
    handle = await log.create(header())
    await handle.append(said(0))
    place.shared.set("s1", headers.HEADER_PATH, headers.encode(msgspec.structs.replace(header(), cwd=cwd)))
    place.shared.set("s1", LOG, b"of somebody else")
    before = dict(place.shared.bodies)
    for _ in range(2):
        with pytest.raises(OwnershipLostError):
            await handle.flush()
    assert place.shared.bodies == before
    handle._pending.clear()


async def test_a_place_that_never_lets_a_batch_through_is_lost_at_last(
    place: MemoryPlace, log: EventLog
) -> None:
    async def be_late(_apply: memory_place.Apply) -> FileStat:
        await trio.lowlevel.checkpoint()
        raise PreconditionFailedError("another was faster")

    handle = await log.create(header())
    await handle.append(said(0))
    await handle.flush()
    await handle.append(said(1))
    place.shared.faults["s1"] = [be_late] * 3
    with pytest.raises(OwnershipLostError):
        await handle.flush()
    await handle.flush()
    assert await (await log.open("s1", "read")).read() == said(0, 2)


async def test_a_handle_is_closed_at_the_end_of_its_block(place: MemoryPlace, log: EventLog) -> None:
    async with await log.create(header()) as writer:
        await writer.append(said(0))
    assert writer.is_closed
    async with await log.open("s1", "read") as reader:
        assert await reader.read() == said(0)
    assert reader.is_closed
    assert place.shared.owners == {}


async def test_a_header_that_is_too_long_is_damage(place: MemoryPlace, log: EventLog) -> None:
    place.shared.set("s1", headers.HEADER_PATH, b" " * (headers.MAX_HEADER_BYTES + 1))
    with pytest.raises(CorruptDataError, match="longer"):
        await log.stat("s1")


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_flush_of_all_beside_closes_that_go_well_raises_nothing(
    place: MemoryPlace, log: EventLog, is_first: bool
) -> None:
    for _ in range(10):
        handles = [await log.create(header(f"s{number}")) for number in range(3)]
        for handle in handles:
            await handle.append(said(0))
        async with trio.open_nursery() as nursery:
            if is_first:
                nursery.start_soon(log.flush)
            for handle in handles:
                nursery.start_soon(handle.close)
            if not is_first:
                nursery.start_soon(log.flush)
        place.shared.bodies.clear()


async def test_a_flush_that_waits_while_its_handle_is_closed_says_what_the_close_could_not_store(
    place: MemoryPlace, log: EventLog
) -> None:
    handle = await log.create(header())
    await handle.append(said(0))
    began, release = trio.Event(), trio.Event()

    async def refuse_late(_apply: memory_place.Apply) -> FileStat:
        began.set()
        await release.wait()
        raise UnavailableError("the place refuses")

    async def fail(call: Callable[[], Awaitable[None]], kind: type[Exception]) -> None:
        with pytest.raises(kind):
            await call()

    place.shared.faults["s1"] = [refuse_late]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail, handle.close, UnavailableError)
        await began.wait()
        log._writers[S1] = handle
        handle._is_closed = False
        nursery.start_soon(fail, log.flush, FlushFailedError)
        await trio.testing.wait_all_tasks_blocked()
        handle._is_closed = True
        nursery.start_soon(fail, handle.flush, HandleClosedError)
        await trio.testing.wait_all_tasks_blocked()
        release.set()
    assert ("s1", LOG) not in place.shared.bodies, "a handle that is closed wrote"
