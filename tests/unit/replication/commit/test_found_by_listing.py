"""What the listing of a commit finds in the place of named bytes is put right, and what earlier generations name of it stays readable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sessionfs.model.errors import InvalidRequestError, UnavailableError
from sessionfs.stores.base import Unconditional
from sessionfs.testing.faulty_store import FailBefore
from tests.unit.replication.commit.commit_world import CommitWorld, Owner, Tree, live_objects, read_generation
from tests.unit.replication.uploads.tree_world import SESSION

FIRST = b"first" * 400
SECOND = FIRST + b"second" * 100


@pytest.fixture
def world(tmp_path: Path) -> CommitWorld:
    return CommitWorld(tmp_path, authority=Owner(current=2))


def delete(world: CommitWorld) -> None:
    """Another tool deletes."""
    world.memory.delete(world.key(b"log"), condition=Unconditional())


def overwrite(world: CommitWorld) -> None:
    """Another tool writes something short."""
    world.put_foreign(b"log", b"another tool's")


def overwrite_longer(world: CommitWorld) -> None:
    """Another tool writes more than what is named, and it does not begin with that."""
    world.put_foreign(b"log", b"z" * 5_000)


def bring_back(world: CommitWorld) -> None:
    """A former owner's late request writes what the first generation names."""
    world.put_of_epoch(b"log", FIRST, 1)


def grow(world: CommitWorld) -> None:
    """A former owner's late request appends."""
    world.put_of_epoch(b"log", SECOND + b"late", 1)


async def grown(world: CommitWorld) -> dict[int, Tree]:
    """Two generations that name a file, the second what it grew to; all of it is in the live object alone."""
    trees: dict[int, Tree] = {}
    world.write(b"log", FIRST)
    await world.commit()
    trees[1] = world.tree()
    world.append(b"log", SECOND.removeprefix(FIRST))
    await world.commit()
    trees[2] = world.tree()
    assert world.kept_by_content() == {}
    return trees


async def commit_another(world: CommitWorld, trees: dict[int, Tree]) -> None:
    """Commit something else: nothing but the listing finds what became of the file."""
    world.write(b"another", b"%d" % len(trees))
    report = await world.commit()
    trees[report.generation] = world.tree()


def assert_all_are_read(world: CommitWorld, trees: dict[int, Tree]) -> None:
    for generation, tree in trees.items():
        assert read_generation(world.memory, generation) == tree, generation


EVERYTHING = [delete, overwrite, overwrite_longer, bring_back, grow]


@pytest.mark.parametrize("interfere", EVERYTHING)
async def test_every_generation_is_read_after_a_commit_put_a_grown_file_again_and_it_was_rewritten(
    world: CommitWorld, interfere: Callable[[CommitWorld], None]
) -> None:
    trees = await grown(world)
    interfere(world)
    await commit_another(world, trees)
    assert len(world.events("session.object.repaired")) == 1
    assert live_objects(world.memory)[b"log"] == SECOND
    assert_all_are_read(world, trees)
    world.write(b"log", b"other")
    await world.settle()
    assert_all_are_read(world, trees)


@pytest.mark.parametrize("interfere", EVERYTHING)
async def test_the_same_when_a_program_deletes_it(
    world: CommitWorld, interfere: Callable[[CommitWorld], None]
) -> None:
    trees = await grown(world)
    interfere(world)
    await commit_another(world, trees)
    world.unlink(b"log")
    await world.settle()
    assert b"log" not in live_objects(world.memory)
    assert_all_are_read(world, trees)


@pytest.mark.parametrize("first", EVERYTHING)
@pytest.mark.parametrize("second", EVERYTHING)
async def test_the_same_when_it_happens_again_before_a_program_goes_on(
    world: CommitWorld,
    first: Callable[[CommitWorld], None],
    second: Callable[[CommitWorld], None],
) -> None:
    trees = await grown(world)
    for interfere in (first, second):
        interfere(world)
        await commit_another(world, trees)
    assert_all_are_read(world, trees)
    world.append(b"log", b"third")
    await world.commit()
    trees[world.row().generation] = world.tree()
    world.write(b"log", b"other")
    await world.commit()
    trees[world.row().generation] = world.tree()
    assert_all_are_read(world, trees)


async def test_nothing_is_noted_as_the_beginning_of_an_object_that_was_found(world: CommitWorld) -> None:
    """It is longer than all that is named, which was proven of the object before it."""
    trees = await grown(world)
    overwrite_longer(world)
    await commit_another(world, trees)
    assert world.kept_by_content() == {}
    assert len(world.kept_aside()) == 1


@pytest.mark.parametrize("interfere", [overwrite, delete])
async def test_a_process_that_ends_after_the_listing_and_before_the_repair_loses_no_name(
    world: CommitWorld, interfere: Callable[[CommitWorld], None]
) -> None:
    trees = await grown(world)
    interfere(world)
    compared = await world.committer._check.check(SESSION)
    assert compared.wrong == [world.key(b"log")]
    world.start()
    await world.settle()
    assert live_objects(world.memory)[b"log"] == SECOND
    world.write(b"log", b"other")
    await world.settle()
    assert_all_are_read(world, trees)


async def test_an_object_that_was_found_is_not_named_as_grown_out_of_what_it_replaced(
    world: CommitWorld,
) -> None:
    """It is longer than what an earlier generation names, and could not be put right."""
    trees = await grown(world)
    overwrite_longer(world)
    world.write(b"another", b"1")
    await world.settle()
    world.store.plan("put", FailBefore(InvalidRequestError("refused for good")))
    with pytest.raises(UnavailableError, match="somebody else"):
        await world.commit()
    world.store.assert_all_used()
    assert world.manifest().generation == 2
    await world.commit()
    trees[3] = world.tree()
    assert read_generation(world.memory) == trees[3]
    # A program goes on, and what others destroyed is put there again.
    world.change_mode(b"log", 0o600)
    await world.settle()
    assert_all_are_read(world, trees)
    world.write(b"log", b"other")
    await world.settle()
    assert_all_are_read(world, trees)
