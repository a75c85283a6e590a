"""A process dies between meeting what others did to a named object and putting its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.stopping_store import StoppingStore
from tests.unit.replication.commit.commit_world import CommitWorld, Owner, live_objects, read_generation
from tests.unit.replication.commit.mortality import Steps, died
from tests.unit.replication.uploads.tree_world import SESSION, FileFaults

from .test_named_bytes import NAMED, Action, append, change_mode, committed, delete, grow, overwrite


class MortalWorld(Steps, CommitWorld):
    """A host whose process can die at any call of the store or transaction of the journal."""

    def __init__(self, directory: Path) -> None:
        self.shared = MemoryStore()
        super().__init__(directory, store=self.shared, authority=Owner(current=2))

    def start(self) -> None:
        self.mortal = StoppingStore(self.shared)
        self.store = FileFaults(self.mortal)
        super().start()


async def met(directory: Path, interfere: Action, act: Action) -> MortalWorld:
    """Our program changed a file whose object others have changed; nothing was sent yet."""
    world = MortalWorld(directory)
    await committed(world)
    interfere(world)
    act(world)
    return world


async def steps_of(directory: Path, interfere: Action, act: Action) -> int:
    world = await met(directory, interfere, act)
    with world.steps():
        await world.settle()
        return world.taken


async def die(world: MortalWorld, step: int, *, is_applied: bool) -> None:
    world.mortal.stop_at(step, is_applied=is_applied)
    try:
        with world.steps():
            await world.settle()
    except BaseException as problem:
        if not died(problem):
            raise
    assert world.mortal.is_dead


@pytest.mark.parametrize("act", [append, change_mode])
@pytest.mark.parametrize("interfere", [grow, overwrite, delete])
async def test_it_is_read_after_a_process_died_between_meeting_the_other_object_and_putting_its_own(
    tmp_path: Path, interfere: Action, act: Action
) -> None:
    steps = await steps_of(tmp_path / "count", interfere, act)
    has_met = 0
    for step in range(steps):
        for is_applied in (False, True):
            world = await met(tmp_path / f"{step}-{is_applied}", interfere, act)
            before = world.journal.object(world.key(b"f"))
            await die(world, step, is_applied=is_applied)
            has_met += (
                world.journal.object(world.key(b"f")) != before and world.journal.session_work(SESSION) != []
            )
            world.start()
            world.uploader.settle_unknown()
            await world.settle()
            assert live_objects(world.shared) == world.tree(), (step, is_applied)
            world.write(b"f", b"other")
            await world.settle()
            assert read_generation(world.shared, 1) == {b"f": NAMED}, (step, is_applied)
    assert has_met > 0
