"""The portal runs the asynchronous doors for threads without an event loop, and leaves nothing running."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest
import trio

from sessionfs.model.errors import HandleClosedError, NotFoundError
from sessionfs.sessions.portal import Portal


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> object:
    before = set(threading.enumerate())
    yield
    assert [
        thread
        for thread in threading.enumerate()
        if thread.name == "sessionfs-doors" and thread not in before
    ] == []


class _Door:
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @asynccontextmanager
    async def opened(self, *, fails_at: str = "") -> AsyncIterator[str]:
        if fails_at == "start":
            raise NotFoundError("no door")
        self.events.append("open")
        try:
            yield "door"
        finally:
            self.events.append("closed")
        if fails_at == "end":
            raise NotFoundError("not closed well")


async def _double(number: int) -> int:
    await trio.lowlevel.checkpoint()
    return 2 * number


async def _fail() -> None:
    raise NotFoundError("asked for")


def test_a_call_gives_what_it_gives_and_raises_what_it_raises() -> None:
    with Portal() as portal:
        assert portal.run(_double, 21) == 42
        with pytest.raises(NotFoundError, match="asked for"):
            portal.run(_fail)
        assert portal.run(_double, 1) == 2


def test_calls_of_several_threads_run_at_once() -> None:
    with Portal() as portal, ThreadPoolExecutor(2) as threads:
        met = threading.Barrier(2, timeout=30)

        async def meet() -> int:
            return await trio.to_thread.run_sync(met.wait)

        assert sorted(threads.map(lambda _: portal.run(meet), range(2))) == [0, 1]


def test_what_is_entered_stays_open_until_it_is_left() -> None:
    door = _Door()
    with Portal() as portal:
        entered, leave = portal.enter(door.opened())
        assert (entered, door.events) == ("door", ["open"])
        assert portal.run(_double, 2) == 4
        leave()
        assert door.events == ["open", "closed"]


def test_what_cannot_be_entered_or_left_raises_and_the_portal_goes_on() -> None:
    door = _Door()
    with Portal() as portal:
        with pytest.raises(NotFoundError, match="no door"):
            portal.enter(door.opened(fails_at="start"))
        _, leave = portal.enter(door.opened(fails_at="end"))
        with pytest.raises(NotFoundError, match="not closed well"):
            leave()
        assert portal.run(_double, 3) == 6


def test_closing_leaves_what_is_still_entered_and_refuses_more() -> None:
    door = _Door()
    portal = Portal()
    portal.enter(door.opened())
    portal.close()
    assert door.events == ["open", "closed"]
    portal.close()
    with pytest.raises(HandleClosedError):
        portal.run(_double, 1)
    with pytest.raises(HandleClosedError):
        portal.enter(door.opened())
    assert door.events == ["open", "closed"]


def test_an_interrupt_of_the_waiting_thread_cancels_the_call() -> None:
    ended = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    async def never_ends() -> None:
        try:
            signal.pthread_kill(main, signal.SIGINT)
            await trio.sleep_forever()
        finally:
            ended.set()

    with Portal() as portal:
        with pytest.raises(KeyboardInterrupt):
            portal.run(never_ends)
        assert ended.wait(10), "the call goes on"
        assert portal.run(_double, 4) == 8


def test_a_call_under_way_when_the_portal_closes_says_so() -> None:
    started = threading.Event()

    async def never_ends() -> None:
        started.set()
        await trio.sleep_forever()

    portal = Portal()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(portal.run, never_ends)
        assert started.wait(10)
        portal.close()
        with pytest.raises(HandleClosedError):
            call.result(10)
