"""A release, or the removal of a session, that dies at any of its steps: nothing is lost, and the next process ends it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from sessionfs.formats import ownership as records
from sessionfs.model import keys
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.stopping_store import StoppingStore
from tests.unit.replication.commit.commit_world import Tree, live_objects, read_generation
from tests.unit.replication.commit.control_world import ControlWorld, other_host
from tests.unit.replication.commit.mortality import Steps, died
from tests.unit.replication.uploads.tree_world import SESSION, FileFaults, until

End = Callable[["MortalHost"], Awaitable[None]]


class MortalHost(Steps, ControlWorld):
    """A host whose process can die."""

    def __init__(self, directory: Path) -> None:
        self.shared = MemoryStore()
        super().__init__(directory, self.shared)

    def start(self) -> None:
        self.mortal = StoppingStore(self.shared)
        self.store = FileFaults(self.mortal)
        super().start()


async def prepared(directory: Path) -> MortalHost:
    """A session with one generation, and changes since."""
    host = MortalHost(directory)
    host.make_directory(b"d")
    for name in (b"kept", b"grown", b"rewritten", b"d/inside"):
        host.write(name, b"first bytes of " + name)
    async with host.at_work() as control:
        await control.commit(SESSION, "test")
    host.append(b"grown", b" and more")
    host.write(b"rewritten", b"second bytes")
    return host


async def release(host: MortalHost) -> None:
    async with host.at_work() as control:
        await control.release(SESSION)


async def bury(host: MortalHost) -> None:
    async with host.at_work() as control:
        await control._do_chores()


async def steps_of(host: MortalHost, end: End) -> int:
    with host.steps():
        await end(host)
        return host.taken


async def die(host: MortalHost, end: End, step: int, *, is_applied: bool) -> bool:
    """Give whether it died: how many steps there are depends a little on how uploads meet."""
    host.mortal.stop_at(step, is_applied=is_applied)
    try:
        await steps_of(host, end)
    except BaseException as problem:
        if not died(problem):
            raise
    return host.mortal.is_dead


def manifest(store: MemoryStore) -> tuple[int, bool]:
    key = keys.manifest_key(SESSION)
    with store.get(key, byte_range=None, expected=None) as body:
        found = json.loads(body.read())
    return found["generation"], found["removed"]


def owner_state(store: MemoryStore) -> str:
    key = keys.owner_key(SESSION)
    with store.get(key, byte_range=None, expected=None) as body:
        return records.decode_owner(body.read(), key).state


def files(tree: Tree) -> dict[bytes, bytes]:
    return {path: body for path, body in tree.items() if body is not None}


async def test_a_release_that_dies_at_any_step_loses_nothing(tmp_path: Path) -> None:
    steps = await steps_of(await prepared(tmp_path / "count"), release)
    assert steps > 20
    outcomes: list[str] = []
    alive = 0
    for step in range(steps):
        for is_applied in (False, True):
            directory = tmp_path / f"{step}-{is_applied}"
            host = await prepared(directory / "a")
            first, now = read_generation(host.shared), host.tree()
            alive += not await die(host, release, step, is_applied=is_applied)
            state, (newest, _) = owner_state(host.shared), manifest(host.shared)
            assert read_generation(host.shared) == (first if newest == 1 else now), step
            # Who finds it released finds everything.
            assert newest == 2 or state == "held", step
            outcomes.append(state)
            if state == "released":
                other = await other_host(directory / "b", host.shared)
                async with other.at_work() as control:
                    await control.claim(SESSION)
                assert other.tree() == now
                continue
            host.start()
            async with host.at_work(chores=True) as control:
                await control.resume()
                # Also when the journal says "released" and the bucket does not yet: the record is still ours.
                await control.claim(SESSION)
                await control.release(SESSION)
            assert owner_state(host.shared) == "released"
            assert read_generation(host.shared) == now
            assert read_generation(host.shared, 1) == first
            assert live_objects(host.shared) == files(now)
            assert host.kept_aside() == []
    print(f"{len(outcomes)} deaths in {steps} steps: {outcomes.count('released')} found released")
    assert outcomes.count("held") > outcomes.count("released") > 0
    assert alive <= len(outcomes) // 10


async def removed(directory: Path) -> tuple[MortalHost, Tree]:
    host = await prepared(directory)
    first = read_generation(host.shared)
    for path in sorted(host.tree(), reverse=True):
        if host.tree()[path] is None:
            host.remove_directory(path)
        else:
            host.unlink(path)
    host.remove_session()
    return host, first


async def test_a_removal_that_dies_at_any_step_is_ended_by_the_next_process(tmp_path: Path) -> None:
    host, _ = await removed(tmp_path / "count")
    steps = await steps_of(host, bury)
    assert manifest(host.shared) == (2, True)
    assert steps > 20
    outcomes: list[bool] = []
    alive = 0
    for step in range(steps):
        for is_applied in (False, True):
            host, first = await removed(tmp_path / f"{step}-{is_applied}")
            alive += not await die(host, bury, step, is_applied=is_applied)
            newest, is_removed = manifest(host.shared)
            outcomes.append(is_removed)
            assert newest == (2 if is_removed else 1), step
            assert read_generation(host.shared, 1) == first, step
            host.start()
            async with host.at_work(chores=True) as control:
                await control.resume()
                await until(lambda: host.journal.session(SESSION) is None)  # noqa: B023 - awaited here
            assert manifest(host.shared)[1], step
            assert owner_state(host.shared) == "released", step
            assert live_objects(host.shared) == {}, step
            assert read_generation(host.shared, 1) == first, step
            assert host.journal.all_work() == []
            assert host.kept_aside() == []
    print(f"{len(outcomes)} deaths in {steps} steps: {outcomes.count(True)} after the commit point")
    assert outcomes.count(False) > outcomes.count(True) > 0
    assert alive <= len(outcomes) // 10
