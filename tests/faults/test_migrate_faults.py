"""A migration that stops at any step, or whose answers are lost, is finished by the next run, and nothing half done looks whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sessionfs.migration.inventory import place_of
from sessionfs.model import keys
from sessionfs.model.errors import ObjectNotFoundError, OutcomeUnknownError, ThrottledError, UnavailableError
from sessionfs.model.names import session_id
from sessionfs.stores.base import ObjectStore, Unconditional
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, LostResponse, Pass, Truncate
from sessionfs.testing.stopping_store import ProcessDied, StoppingStore
from tests.unit.migration.world import World, contents, filled_source, put
from tests.unit.replication.maintenance.world import Author, HandClock

SMALL = session_id("s1")


def small_source() -> MemoryStore:
    """One session of two generations and an index: a run of few steps."""
    store = MemoryStore(HandClock())
    author = Author(store, HandClock(), SMALL)
    author.commit({b"a": b"1", b"log.jsonl": b"x\n"})
    author.commit({b"a": b"2", b"log.jsonl": b"x\ny\n"})
    put(store, "sessions.json", b"{}")
    return store


def change_source(store: ObjectStore) -> None:
    """What a mount would have changed between two migrations: replaced, added, removed, an older generation gone."""
    put(store, "sessions/s1/a", b"3")
    put(store, "sessions/s1/b", b"new")
    put(store, keys.manifest_key(SMALL), b"{}")
    store.delete(keys.generation_key(SMALL, 1), condition=Unconditional())
    store.delete("sessions/s1/log.jsonl", condition=Unconditional())


async def died(run: Callable[[], Awaitable[object]]) -> bool:
    """Run something; say whether its process died at the store."""
    try:
        await run()
    except ProcessDied:
        return True
    except BaseExceptionGroup as group:
        if group.split(ProcessDied)[0] is None:
            raise
        return True
    return False


def require_order(store: ObjectStore) -> None:
    """Require that whatever names other objects is there only when they are."""
    there = contents(store)
    bodies = {key for key in contents(small_source()) if key.startswith("sessions/s1/")}
    if keys.manifest_key(SMALL) in there:
        assert bodies <= set(there)
        assert keys.generation_key(SMALL, 2) in there
    if keys.commit_marker_key(SMALL) in there:
        assert keys.manifest_key(SMALL) in there
    if "sessions.json" in there:
        assert set(there) == set(contents(small_source()))


async def count_steps(prepared: Callable[[], World]) -> int:
    world = prepared()
    store = StoppingStore(world.destination)
    await World(world.source, store, world.clock).migrate()
    return store.steps


def fresh() -> World:
    return World(small_source(), MemoryStore(HandClock()))


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
async def test_a_first_run_stopped_at_any_step_is_finished_by_the_next(is_applied: bool) -> None:
    steps = await count_steps(fresh)
    whole = await fresh().migrate()
    assert steps > 20
    for step in range(steps):
        world = fresh()
        store = StoppingStore(world.destination)
        store.stop_at(step, is_applied=is_applied)
        assert await died(World(world.source, store, world.clock).migrate), step
        require_order(world.destination)
        result = await world.migrate()
        assert result.checksum == whole.checksum, step
        assert contents(world.destination) == contents(world.source)
        assert world.record().state == "complete"
        assert (await world.migrate()).copied == 0


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
async def test_a_later_run_over_an_older_copy_stopped_at_any_step_is_finished_by_the_next(
    is_applied: bool,
) -> None:
    async def prepared() -> World:
        world = fresh()
        await world.migrate()
        change_source(world.source)
        return world

    world = await prepared()
    counting = StoppingStore(world.destination)
    whole = await World(world.source, counting, world.clock).migrate()
    for step in range(counting.steps):
        world = await prepared()
        store = StoppingStore(world.destination)
        store.stop_at(step, is_applied=is_applied)
        assert await died(World(world.source, store, world.clock).migrate), step
        result = await world.migrate()
        assert result.checksum == whole.checksum, step
        assert contents(world.destination) == contents(world.source)


async def test_a_run_stopped_half_way_is_not_repeated_from_the_start() -> None:
    world = World(filled_source(), MemoryStore(HandClock()))
    counting = StoppingStore(world.destination, changes_only=True)
    whole = await World(world.source, counting, world.clock).migrate()
    world = World(filled_source(), MemoryStore(HandClock()))
    store = StoppingStore(world.destination, changes_only=True)
    store.stop_at(counting.steps // 2, is_applied=False)
    assert await died(World(world.source, store, world.clock).migrate)
    result = await world.migrate()
    assert result.copied < whole.copied * 0.7
    assert result.kept > whole.copied * 0.3
    assert result.checksum == whole.checksum


async def test_a_source_that_changed_between_the_stop_and_the_next_run_is_brought_as_it_is_now() -> None:
    for step in range(5, await count_steps(fresh), 3):
        world = fresh()
        store = StoppingStore(world.destination)
        store.stop_at(step, is_applied=True)
        assert await died(World(world.source, store, world.clock).migrate)
        change_source(world.source)
        await world.migrate()
        assert contents(world.destination) == contents(world.source)


async def test_a_run_stopped_at_a_directory_is_finished_by_the_next(tmp_path: Path) -> None:
    whole = await fresh().migrate()
    steps = await count_steps(fresh)
    for step in range(0, steps, 4):
        directory = tmp_path / str(step)
        directory.mkdir()
        world = World(small_source(), LocalDirectoryStore(str(directory)))
        store = StoppingStore(world.destination)
        store.stop_at(step, is_applied=True)
        await died(World(world.source, store, world.clock).migrate)
        assert (await world.migrate()).checksum == whole.checksum
        assert contents(world.destination) == contents(world.source)


async def test_answers_that_are_lost_are_found_out_and_nothing_is_sent_twice() -> None:
    world = World(filled_source(), MemoryStore(HandClock()))
    store = FaultyStore(world.destination)
    wanted = len(contents(world.source))
    store.plan("put", *[LostResponse()] * (wanted // 2))
    await World(world.source, store, world.clock).migrate()
    assert contents(world.destination) == contents(world.source)
    sent = [key for method, key in store.calls if method == "put" and place_of(key)]
    assert len(sent) == len(set(sent))


async def test_passing_errors_of_either_store_are_outlasted() -> None:
    inner = filled_source()
    source, destination = FaultyStore(inner), FaultyStore(MemoryStore(HandClock()))
    source.plan("list_page", FailBefore(UnavailableError("away")))
    source.plan(
        "get",
        Pass(),
        FailBefore(ThrottledError("slow")),
        Truncate(0),
        Pass(),
        FailBefore(UnavailableError("")),
    )
    destination.plan("put", FailBefore(UnavailableError("")), Pass(), FailBefore(OutcomeUnknownError("")))
    destination.plan("get", FailBefore(UnavailableError("")), Pass(), Truncate(0))
    world = World(source, destination)
    await world.migrate()
    assert contents(world.destination) == contents(inner)


async def test_a_store_that_stays_away_ends_the_run_and_the_next_goes_on() -> None:
    inner = filled_source()
    world = World(FaultyStore(inner), MemoryStore(HandClock()))
    assert isinstance(world.source, FaultyStore)
    world.source.plan("get", *[Pass()] * 20, *[FailBefore(UnavailableError("away"))] * 60)
    with pytest.raises(UnavailableError):
        await world.migrate()
    with pytest.raises(ObjectNotFoundError):
        world.destination.head("sessions.json")
    again = World(inner, world.destination)
    assert (await again.migrate()).kept > 0
    assert contents(world.destination) == contents(inner)
