"""What a generation names of a file outlives whatever others do to its key before this host's programs go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.model import keys
from sessionfs.stores.base import Unconditional
from sessionfs.working_copy.known_content import Prefix
from tests.unit.replication.commit.commit_world import CommitWorld, Owner, live_objects, read_generation
from tests.unit.replication.hydration.hosts import Host, body_of
from tests.unit.replication.hydration.named_bytes import sha
from tests.unit.replication.uploads.tree_world import SESSION

NAMED = bytes(range(250)) * 8
"""So long that an upload with the same bytes is a copy of the object onto itself."""
GROWN = NAMED + b"late" * 250

Action = Callable[[CommitWorld], None]


def grow(world: CommitWorld) -> None:
    """A request of a former owner arrives late: he appended."""
    world.put_of_epoch(b"f", GROWN, 1)


def rewrite(world: CommitWorld) -> None:
    """The same, but he rewrote."""
    world.put_of_epoch(b"f", b"late" * 750, 1)


def overwrite(world: CommitWorld) -> None:
    """Another tool writes other bytes."""
    world.put_foreign(b"f", b"another tool's")


def overwrite_longer(world: CommitWorld) -> None:
    """Another tool writes more bytes, and they do not begin with ours."""
    world.put_foreign(b"f", b"z" * 3000)


def delete(world: CommitWorld) -> None:
    """Another tool deletes the object."""
    world.memory.delete(world.key(b"f"), condition=Unconditional())


def append(world: CommitWorld) -> None:
    """A program of this host appends."""
    world.append(b"f", b"and more")


def change_mode(world: CommitWorld) -> None:
    """A program of this host changes attributes only."""
    world.change_mode(b"f", 0o600)


async def committed(world: CommitWorld) -> None:
    """One generation, of which nothing is kept by its content."""
    world.write(b"f", NAMED)
    await world.commit()
    assert world.kept_by_content() == {}


async def assert_named_bytes_are_read(world: CommitWorld, directory: Path) -> None:
    """A host that knows nothing reads generation 1."""
    assert read_generation(world.memory, 1) == {b"f": NAMED}
    tree = f"{SESSION}%g1"
    reader = Host(directory, world.memory)
    await reader.hydrator.open_session(tree)
    assert body_of(reader, await reader.hydrator.fetch(reader.number(b"f", tree))) == NAMED
    reader.journal.close()


def aliases(world: CommitWorld) -> set[str]:
    """Sums of which a note says that another content begins with them."""
    parsed = (keys.parse_content_key(SESSION, key) for key in world.kept_by_content())
    return {sha256 for sha256, is_alias in filter(None, parsed) if is_alias}


@pytest.mark.parametrize("act", [append, change_mode])
@pytest.mark.parametrize("interfere", [grow, rewrite, overwrite, overwrite_longer, delete])
async def test_a_generation_is_read_after_others_changed_its_key_and_programs_went_on(
    tmp_path: Path, interfere: Action, act: Action
) -> None:
    world = CommitWorld(tmp_path / "a", authority=Owner(current=2))
    await committed(world)
    interfere(world)
    act(world)
    await world.settle()
    ours = world.tree()
    assert live_objects(world.memory) == ours
    world.write(b"f", b"other")
    await world.settle()
    assert live_objects(world.memory) == {b"f": b"other"}
    await assert_named_bytes_are_read(world, tmp_path / "reader")


@pytest.mark.parametrize("act", [append, change_mode])
@pytest.mark.parametrize("interfere", [grow, rewrite, overwrite, delete])
async def test_it_is_read_after_others_changed_its_key_twice(
    tmp_path: Path, interfere: Action, act: Action
) -> None:
    world = CommitWorld(tmp_path / "a", authority=Owner(current=2))
    await committed(world)
    for again in (interfere, delete):
        again(world)
        act(world)
        await world.settle()
        world.change_mode(b"f", 0o644)
        await world.settle()
    world.unlink(b"f")
    await world.settle()
    assert live_objects(world.memory) == {}
    await assert_named_bytes_are_read(world, tmp_path / "reader")


async def test_it_is_read_when_the_file_had_grown_before_others_changed_its_key(tmp_path: Path) -> None:
    for number, (interfere, act) in enumerate(
        (interfere, act)
        for interfere in (overwrite, overwrite_longer, delete)
        for act in (append, change_mode)
    ):
        world = CommitWorld(tmp_path / f"{number}", authority=Owner(current=2))
        await committed(world)
        append(world)
        await world.settle()
        interfere(world)
        act(world)
        await world.settle()
        world.write(b"f", b"other")
        await world.settle()
        await assert_named_bytes_are_read(world, tmp_path / f"reader {number}")


async def test_it_is_read_when_nothing_but_its_name_is_known_of_the_object(tmp_path: Path) -> None:
    """A session was lost and came back: what is owed was set aside, and the object is looked at only when ours meets it."""
    world = CommitWorld(tmp_path / "a", authority=Owner(current=2))
    await committed(world)
    known = world.journal.object(world.key(b"f"))
    assert known is not None
    world.journal.drop_object(known.key)
    world.journal.put_object(replace(known, token="", sha256="", lineage="", epoch=0))
    world.journal.name_prefix(known.key, Prefix(sha(NAMED), len(NAMED), is_proven=False))
    world.write(b"f", b"other")
    await world.settle()
    await assert_named_bytes_are_read(world, tmp_path / "reader")


# --- what is noted below .objects/


async def test_what_a_former_owner_appended_to_is_noted_as_the_beginning_of_his_object(
    tmp_path: Path,
) -> None:
    world = CommitWorld(tmp_path, authority=Owner(current=2))
    await committed(world)
    grow(world)
    change_mode(world)
    await world.settle()
    kept = world.kept_by_content()
    assert kept[keys.content_key(SESSION, sha(GROWN))] == GROWN
    assert aliases(world) == {sha(NAMED)}


@pytest.mark.parametrize("act", [append, change_mode])
@pytest.mark.parametrize("interfere", [rewrite, overwrite_longer])
async def test_no_note_says_that_bytes_begin_with_what_they_do_not(
    tmp_path: Path, interfere: Action, act: Action
) -> None:
    """His object is longer than what is named; only ours begins with it."""
    world = CommitWorld(tmp_path, authority=Owner(current=2))
    await committed(world)
    interfere(world)
    act(world)
    await world.settle()
    # Of his object nothing is named, and it is in `.conflicts/` already.
    assert world.kept_by_content() == {}
    assert len(world.kept_aside()) == 1
    ours = world.tree()[b"f"]
    assert ours is not None
    world.write(b"f", b"other")
    await world.settle()
    assert world.kept_by_content().keys() >= {keys.content_key(SESSION, sha(ours))}
    assert aliases(world) == ({sha(NAMED)} if ours != NAMED else set())
    assert read_generation(world.memory, 1) == {b"f": NAMED}


async def test_programs_that_only_append_cost_no_copy_of_what_is_still_a_beginning(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path, authority=Owner(current=2))
    await committed(world)
    delete(world)
    append(world)
    await world.settle()
    world.store.calls.clear()
    append(world)
    await world.settle()
    assert world.kept_by_content() == {}
    assert world.calls("get") == []
    assert read_generation(world.memory, 1) == {b"f": NAMED}


async def test_what_this_host_made_itself_is_proven_without_a_read(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path, authority=Owner(current=2))
    await committed(world)
    append(world)
    await world.settle()
    world.store.calls.clear()
    world.write(b"f", b"other")
    await world.settle()
    assert world.calls("get") == []
    assert aliases(world) == {sha(NAMED)}
    assert read_generation(world.memory, 1) == {b"f": NAMED}


# --- deletions


@pytest.mark.parametrize("interfere", [grow, delete])
async def test_it_is_read_after_a_program_deletes_what_others_changed_first(
    tmp_path: Path, interfere: Action
) -> None:
    world = CommitWorld(tmp_path / "a", authority=Owner(current=2))
    await committed(world)
    interfere(world)
    change_mode(world)
    await world.settle()
    world.unlink(b"f")
    await world.settle()
    assert live_objects(world.memory) == {}
    assert world.journal.prefixes(world.key(b"f")) == []
    await assert_named_bytes_are_read(world, tmp_path / "reader")
