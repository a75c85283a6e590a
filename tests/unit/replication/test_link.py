"""The link between the daemon and the replication process."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from sessionfs.formats.link_messages import (
    AnyMessage,
    Describe,
    Description,
    Done,
    Evict,
    Evicted,
    Fetch,
    LogGrew,
    Retry,
)
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.errors import CorruptDataError, InternalError, UnavailableError
from sessionfs.replication.link import Handler, Link


async def _done(_message: AnyMessage) -> AnyMessage:
    return Done()


@asynccontextmanager
async def linked(left: Handler = _done, right: Handler = _done) -> AsyncIterator[tuple[Link, Link]]:
    ends = [trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()]
    links = Link(ends[0], left), Link(ends[1], right)
    async with trio.open_nursery() as nursery:
        for link in links:
            nursery.start_soon(link.serve)
        yield links
        nursery.cancel_scope.cancel()


async def test_a_call_returns_the_other_sides_reply() -> None:
    async def describe(message: AnyMessage) -> AnyMessage:
        assert isinstance(message, Describe)
        return Description(state="clean", reason=str(message.number))

    async with linked(right=describe) as (link, _other):
        assert await link.ask(Describe(7, 0), Description) == Description(state="clean", reason="7")


async def test_both_sides_call_at_the_same_time_and_replies_overtake() -> None:
    release = trio.Event()

    async def slow_fetches(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Fetch):
            await release.wait()
        return Done()

    async def evict(_message: AnyMessage) -> AnyMessage:
        return Evicted(done=True)

    async with linked(evict, slow_fetches) as (link, other), trio.open_nursery() as nursery:
        nursery.start_soon(link.call, Fetch(1, 0))
        assert await link.call(Retry()) == Done()
        assert await other.call(Evict(1, 2, 3, 4)) == Evicted(done=True)
        release.set()


async def test_a_large_reply_and_many_small_ones_keep_their_pairs() -> None:
    async def echo(message: AnyMessage) -> AnyMessage:
        assert isinstance(message, Describe)
        return Description(state="x" * message.log_position, reason=str(message.number))

    answers: list[str] = []

    async def one(link: Link, number: int, length: int) -> None:
        reply = await link.ask(Describe(number, length), Description)
        assert len(reply.state) == length
        answers.append(reply.reason)

    async with linked(right=echo) as (link, _other), trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(one, link, number, 3_000_000 if number == 50 else number)
    assert sorted(map(int, answers)) == list(range(100))


async def test_the_other_sides_error_is_raised_as_its_own_kind() -> None:
    async def corrupt(_message: AnyMessage) -> AnyMessage:
        raise CorruptDataError("a/b does not verify", remedy="sessionfs verify")

    async with linked(right=corrupt) as (link, _other):
        with pytest.raises(CorruptDataError, match=r"a/b does not verify \(sessionfs verify\)"):
            await link.call(Retry())


async def test_a_fault_in_a_handler_is_an_internal_error_and_the_link_goes_on() -> None:
    async def fault(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Retry):
            raise KeyError("x")
        return Done()

    async with linked(right=fault) as (link, _other):
        with pytest.raises(InternalError, match="Retry failed"):
            await link.call(Retry())
        assert await link.call(Fetch(1, 0)) == Done()


async def test_a_reply_of_another_kind_is_an_internal_error() -> None:
    async with linked() as (link, _other):
        with pytest.raises(InternalError, match="Describe was answered with Done"):
            await link.ask(Describe(1, 0), Description)


async def test_a_broken_link_fails_every_waiting_and_every_later_call() -> None:
    async def never(_message: AnyMessage) -> AnyMessage:
        await trio.Event().wait()
        return Done()

    failures: list[bool] = []

    async def one(link: Link) -> None:
        with pytest.raises(UnavailableError):
            await link.call(Retry())
        failures.append(link.closed)

    here, there = socket.socketpair()
    link = Link(trio.SocketStream(trio.socket.from_stdlib_socket(here)), never)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.serve)
        for _ in range(3):
            nursery.start_soon(one, link)
        await trio.testing.wait_all_tasks_blocked()
        there.close()
    await one(link)
    assert failures == [True] * 4


async def test_only_the_newest_notice_of_a_class_is_sent() -> None:
    seen: list[int] = []
    arrived = trio.Event()

    async def note(message: AnyMessage) -> AnyMessage:
        assert isinstance(message, LogGrew)
        seen.append(message.log_position)
        arrived.set()
        return Done()

    async with linked(right=note) as (link, _other):
        for position in range(1000):
            link.notify(LogGrew(position))
        await arrived.wait()
    assert seen == [999]


async def test_notices_about_two_sessions_do_not_replace_one_another() -> None:
    seen: list[SessionState] = []
    arrived = trio.Event()

    async def note(message: AnyMessage) -> AnyMessage:
        assert isinstance(message, SessionState)
        seen.append(message)
        if len(seen) == 2:
            arrived.set()
        return Done()

    async with linked(right=note) as (link, _other):
        for owned in (True, False):
            link.notify(SessionState("a", owned=owned))
            link.notify(SessionState("b", owned=not owned))
        with trio.fail_after(5):
            await arrived.wait()
    assert sorted(seen, key=lambda state: state.session) == [
        SessionState("a", owned=False),
        SessionState("b", owned=True),
    ]


async def test_a_cancelled_call_leaves_the_link_usable() -> None:
    release = trio.Event()

    async def slow(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Fetch):
            await release.wait()
        return Done()

    async with linked(right=slow) as (link, _other):
        with trio.move_on_after(0.01):
            await link.call(Fetch(1, 0))
        release.set()
        assert await link.call(Retry()) == Done()
