"""What was named of an object that others replaced, while this host's programs go on before its bytes are there again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.replication.commit.commit_world import CommitWorld, Owner, Tree, read_generation
from tests.unit.replication.uploads.tree_world import SESSION

from .test_named_bytes import NAMED, append, change_mode, committed, delete


@pytest.fixture
def world(tmp_path: Path) -> CommitWorld:
    return CommitWorld(tmp_path, authority=Owner(current=2))


@pytest.mark.parametrize("body", [b"short", b"y" * 1999, b"y" * 2500])
async def test_a_program_that_appends_between_the_listing_and_the_repair_takes_no_name_away(
    world: CommitWorld, body: bytes
) -> None:
    """Ours begins with what is named; the sum of as many bytes as the found object has says nothing of that."""
    await committed(world)
    world.put_foreign(b"f", body)
    await world.committer._check.check(SESSION)
    append(world)
    await world.settle()
    world.write(b"f", b"other")
    await world.settle()
    assert read_generation(world.memory, 1) == {b"f": NAMED}


async def test_going_back_to_bytes_that_were_lost_proves_nothing_of_what_was_there_between(
    world: CommitWorld,
) -> None:
    trees: dict[int, Tree] = {}
    await committed(world)
    delete(world)
    await world.committer._check.check(SESSION)
    world.write(b"f", b"z" * 500)
    await world.commit()
    trees[2] = world.tree()
    world.append(b"f", b"z" * 2500)
    await world.commit()
    trees[3] = world.tree()
    world.write(b"f", NAMED)
    await world.settle()
    world.write(b"f", b"other")
    await world.settle()
    for generation, tree in trees.items():
        assert read_generation(world.memory, generation) == tree


async def test_what_was_lost_put_there_again_and_named_again_may_grow_while_it_is_committed(
    world: CommitWorld,
) -> None:
    await committed(world)
    delete(world)
    change_mode(world)
    await world.settle()
    world.write(b"another", b"1")
    await world.commit()
    cut = world.tree()
    world.write(b"another", b"2")
    world.freezer.after_barrier = lambda: append(world)
    await world.commit()
    assert read_generation(world.memory) == {**cut, b"another": b"2"}
