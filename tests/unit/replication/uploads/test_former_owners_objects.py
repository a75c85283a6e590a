"""A former owner's last request replaced a named object before this host took the session over, and a program makes his object ours.

Whether his object begins with what is named nobody has proven: the notes below ``.objects/`` must be true all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionfs.model import keys
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.known_content import Prefix
from tests.unit.replication.commit.commit_world import MissingBytesError, read_generation
from tests.unit.replication.commit.control_world import (
    ControlWorld,
    claim_session,
    commit_session,
    other_host,
)
from tests.unit.replication.hydration.named_bytes import sha
from tests.unit.replication.uploads.tree_world import SESSION

NAMED = bytes(range(250)) * 8
GROWN = NAMED + b"late" * 250
REWRITTEN = b"late" * 750

Action = Callable[[ControlWorld], None]


def change_mode(world: ControlWorld) -> None:
    """Attributes only: the object is copied onto itself."""
    world.change_mode(b"f", 0o600)


def append(world: ControlWorld) -> None:
    """The object gets a tail."""
    world.append(b"f", b"and more")


async def taken_over(directory: Path, body: bytes) -> ControlWorld:
    """A committed and went away, a late request of a replaced what was named, and b owns the session now."""
    store = MemoryStore()
    a = ControlWorld(directory / "a", store)
    a.write(b"f", NAMED)
    await commit_session(a)
    a.put_of_epoch(b"f", body, 1)
    b = await other_host(directory / "b", store)
    await claim_session(b, force=True)
    assert b.is_here(b"f")
    assert b.ownership.epoch(SESSION) == 2
    assert b.journal.prefixes(b.key(b"f")) == [Prefix(sha(NAMED), len(NAMED))]
    return b


def notes(world: ControlWorld) -> dict[str, str]:
    """Which content begins with which, as the notes say, by sums."""
    found: dict[str, str] = {}
    for key, body in world.kept_by_content().items():
        parsed = keys.parse_content_key(SESSION, key)
        if parsed is not None and parsed[1]:
            found[parsed[0]] = json.loads(body)["of"]
    return found


async def made_ours_and_rewritten(world: ControlWorld, act: Action) -> bytes:
    """Let a program make the object ours and then rewrite the file; gives the bytes in between."""
    act(world)
    await world.settle()
    known = world.journal.object(world.key(b"f"))
    assert known is not None
    assert known.epoch == 2
    between = world.tree()[b"f"]
    assert between is not None
    world.write(b"f", b"other")
    await world.settle()
    return between


@pytest.mark.parametrize("act", [change_mode, append])
async def test_no_wrong_note_is_put_of_an_object_that_does_not_begin_with_what_is_named(
    tmp_path: Path, act: Action
) -> None:
    world = await taken_over(tmp_path, REWRITTEN)
    await made_ours_and_rewritten(world, act)
    assert notes(world) == {}
    # His request destroyed the bytes; whoever asks must be told so, and not get others.
    with pytest.raises(MissingBytesError):
        read_generation(world.memory, 1)


@pytest.mark.parametrize("act", [change_mode, append])
async def test_a_right_note_is_put_of_an_object_that_does(tmp_path: Path, act: Action) -> None:
    world = await taken_over(tmp_path, GROWN)
    between = await made_ours_and_rewritten(world, act)
    assert notes(world) == {sha(NAMED): sha(between)}
    assert world.kept_by_content()[keys.content_key(SESSION, sha(between))] == between
    assert read_generation(world.memory, 1) == {b"f": NAMED}


@pytest.mark.parametrize(("body", "is_noted"), [(GROWN, True), (REWRITTEN, False)])
async def test_generations_of_the_new_owner_do_not_prove_what_the_old_one_named(
    tmp_path: Path, body: bytes, is_noted: bool
) -> None:
    """Those name the object as it is now and as it grows, which is no word about older bytes."""
    world = await taken_over(tmp_path, body)
    trees = {}
    for _ in range(2):
        world.append(b"f", b"and more")
        generation = await commit_session(world)
        trees[generation] = world.tree()
    world.write(b"f", b"other")
    await world.settle()
    for generation, tree in trees.items():
        assert read_generation(world.memory, generation) == tree
    assert (sha(NAMED) in notes(world)) == is_noted


async def test_a_file_that_is_committed_again_as_it_was_is_named_anew(tmp_path: Path) -> None:
    """A program writes the bytes that were named: what is proven of them is not what is unproven of his."""
    world = await taken_over(tmp_path, REWRITTEN)
    world.write(b"f", NAMED)
    await commit_session(world)
    world.append(b"f", b"and more")
    await world.settle()
    world.write(b"f", b"other")
    await world.settle()
    assert notes(world) == {sha(NAMED): sha(NAMED + b"and more")}
    assert read_generation(world.memory, 1) == read_generation(world.memory, 2) == {b"f": NAMED}
