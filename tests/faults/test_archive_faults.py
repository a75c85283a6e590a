"""A publication that dies, fails or is raced at every request: the newest checkpoint is whole, and the next publication succeeds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from sessionfs.model.errors import ConflictError, OutcomeUnknownError, UnavailableError
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import open_store
from sessionfs.testing.faulty_store import (
    Delay,
    FailBefore,
    FaultyStore,
    Interfere,
    LostResponse,
    Pass,
)
from sessionfs.testing.s3_servers import SeaweedServer
from sessionfs.testing.stopping_store import ProcessDied, StoppingStore
from tests.unit.sessions.archive.archive_world import Host, blocks

Contents = dict[str, bytes]


def _before(host: Host) -> Contents:
    host.write("log", blocks(1) + b"tail")
    host.write("quiet", b"quiet")
    host.write("rewritten", blocks(1) + b"old")
    return host.contents()


def _after(host: Host) -> Contents:
    host.append("log", blocks(2) + b"more")
    host.write("new", blocks(1) + b"new")
    host.write("rewritten", blocks(1) + b"other")
    return host.contents()


async def _died(call: Callable[[], Awaitable[object]]) -> bool:
    """Whether a process died in a call, alone or with tasks beside it."""
    try:
        await call()
    except ProcessDied:
        return True
    except BaseExceptionGroup as group:
        _, rest = group.split(ProcessDied)
        if rest is not None:
            raise rest from None
        return True
    return False


async def _requests(directory: Path, *, changes_only: bool = False) -> int:
    """Count the requests of the publication that the tests below end."""
    store = MemoryStore()
    host = Host(directory, store)
    _before(host)
    await host.publish()
    _after(host)
    counting = StoppingStore(store, changes_only=changes_only)
    await Host(directory, counting).publish()
    return counting.steps


async def _assert_whole(directory: Path, store: ObjectStore, old: Contents, new: Contents) -> None:
    """Require that the newest checkpoint is the old or the new one, for this host and for any other."""
    assert await Host(directory, store, is_forgetful=True).restore() in (old, new)
    again = Host(directory, store)
    await again.publish()
    assert await again.restore() == new


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
async def test_a_publication_that_dies_at_any_request_leaves_a_whole_checkpoint(
    tmp_path: Path, *, is_applied: bool
) -> None:
    requests = await _requests(tmp_path / "counted")
    assert requests >= 10
    for step in range(requests):
        store = MemoryStore()
        directory = tmp_path / f"{step}"
        host = Host(directory, store)
        old = _before(host)
        await host.publish()
        new = _after(host)
        dying = StoppingStore(store)
        dying.stop_at(step, is_applied=is_applied)
        assert await _died(Host(directory, dying).publish), step
        await _assert_whole(directory, store, old, new)


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
async def test_a_first_publication_that_dies_is_no_checkpoint_or_a_whole_one(
    tmp_path: Path, *, is_applied: bool
) -> None:
    was_first = False
    for step in range(6):
        store = MemoryStore()
        directory = tmp_path / f"{step}"
        dying = StoppingStore(store, changes_only=True)
        dying.stop_at(step, is_applied=is_applied)
        host = Host(directory, dying)
        host.write("log", blocks(2) + b"tail")
        died = await _died(host.publish)
        alive = Host(directory, store)
        newest = await alive.archive.latest("s1")
        assert died == (step < 5)
        if newest is not None:
            was_first = True
            assert await alive.restore() == host.contents()
        await alive.publish()
        assert await alive.restore() == host.contents()
    assert was_first


async def test_a_host_that_loses_its_notes_with_its_process_loses_nothing_else(tmp_path: Path) -> None:
    requests = await _requests(tmp_path / "counted", changes_only=True)
    for step in range(requests):
        store = MemoryStore()
        directory = tmp_path / f"{step}"
        host = Host(directory, store)
        old = _before(host)
        await host.publish()
        new = _after(host)
        dying = StoppingStore(store, changes_only=True)
        dying.stop_at(step, is_applied=True)
        assert await _died(Host(directory, dying).publish)
        host.notes.unlink()
        await _assert_whole(directory, store, old, new)


async def test_a_store_that_stays_away_from_any_put_on_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    puts = await _requests(tmp_path / "counted", changes_only=True)
    for step in range(puts):
        store = FaultyStore(MemoryStore())
        directory = tmp_path / f"{step}"
        host = Host(directory, store)
        old = _before(host)
        await host.publish()
        new = _after(host)
        store.plan("put", *[Pass()] * step, *[FailBefore(UnavailableError("down"))] * 100)
        with pytest.raises(UnavailableError):
            await host.publish()
        store._planned.clear()
        await _assert_whole(directory, store, old, new)


@pytest.mark.parametrize("kind", ["arrived", "not arrived"])
async def test_one_lost_answer_to_any_put_is_no_failure(tmp_path: Path, kind: str) -> None:
    puts = await _requests(tmp_path / "counted", changes_only=True)
    for step in range(puts):
        store = FaultyStore(MemoryStore())
        host = Host(tmp_path / f"{step}", store)
        _before(host)
        await host.publish()
        new = _after(host)
        store.plan("put", *[Pass()] * step, LostResponse() if kind == "arrived" else Interfere(_lose))
        await host.publish()
        store.assert_all_used()
        assert await host.restore() == new


async def test_a_pointer_whose_answer_is_lost_for_good_names_a_whole_checkpoint(tmp_path: Path) -> None:
    puts = await _requests(tmp_path / "counted", changes_only=True)
    store = FaultyStore(MemoryStore())
    host = Host(tmp_path / "host", store)
    old = _before(host)
    await host.publish()
    new = _after(host)
    # The pointer lands, its answer is lost, and nobody can look for a while.
    store.plan("put", *[Pass()] * (puts - 1), LostResponse(), *[FailBefore(UnavailableError("down"))] * 20)
    store.plan("head", *[FailBefore(UnavailableError("down"))] * 100)
    with pytest.raises((OutcomeUnknownError, UnavailableError)):
        await host.publish()
    store._planned.clear()
    await _assert_whole(tmp_path / "host", store, old, new)


async def test_another_publisher_at_any_put_is_never_lost(tmp_path: Path) -> None:
    puts = await _requests(tmp_path / "counted", changes_only=True)
    for step in range(puts):
        store = FaultyStore(MemoryStore())
        host = Host(tmp_path / f"{step}", store)
        _before(host)
        await host.publish()
        new = _after(host)
        other = Host(tmp_path / f"{step}-other", store)
        other.write("log", (host.files / "log").read_bytes()[: 1 << 16] + b"another line" * 9000)

        def publish(other: Host = other) -> None:
            trio.run(other.publish)

        store.plan("put", *[Pass()] * step, Interfere(publish))
        with pytest.raises(ConflictError):
            await host.publish()
        store.assert_all_used()
        assert await host.restore() == other.contents()
        await host.publish()
        assert await host.restore() == new


async def test_blocks_that_arrive_in_any_order_make_the_same_checkpoint(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    host = Host(tmp_path, store)
    host.write("log", blocks(12))
    store.plan("put", *[Delay((7 - number % 8) / 500) for number in range(12)])
    await host.publish()
    assert await host.restore() == host.contents()


@asynccontextmanager
async def _opened(kind: str, directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[ObjectStore]:
    if kind == "file":
        store = open_store(str(directory / "store"))
    else:
        server: SeaweedServer = request.getfixturevalue("seaweed")
        store = open_store(server.fresh_bucket())
    yield store
    store.close()


@pytest.mark.parametrize("kind", ["file", pytest.param("seaweedfs", marks=pytest.mark.s3)])
async def test_on_a_real_store_a_death_at_any_change_leaves_a_whole_checkpoint(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    async with _opened(kind, tmp_path, request) as store:
        host = Host(tmp_path / "host", store)
        old = _before(host)
        await host.publish()
        new = _after(host)
        for step in range(await _requests(tmp_path / "counted", changes_only=True)):
            dying = StoppingStore(store, changes_only=True)
            dying.stop_at(step, is_applied=bool(step % 2))
            if not await _died(Host(tmp_path / "host", dying).publish):
                break
            assert await Host(tmp_path / "host", store, is_forgetful=True).restore() in (old, new)
        await host.publish()
        assert await host.restore() == new


def _lose() -> None:
    raise OutcomeUnknownError("lost before it arrived, as planned")
