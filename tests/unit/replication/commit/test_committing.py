"""Generations: exactly the cut, whatever programs do while it is committed, and whatever happens to the live objects afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from sessionfs.formats.commit_marker import decode as decode_marker
from sessionfs.formats.intent_records import Operation
from sessionfs.model import keys
from sessionfs.model.errors import OwnershipLostError
from sessionfs.replication.commit import bringing
from sessionfs.replication.commit.noting import Noted
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata
from sessionfs.working_copy.layout import ROOT_NUMBER
from tests.unit.replication.commit.commit_world import (
    CommitWorld,
    MissingBytesError,
    live_objects,
    read_generation,
)
from tests.unit.replication.uploads.tree_world import SESSION


@pytest.fixture
def world(tmp_path: Path) -> CommitWorld:
    return CommitWorld(tmp_path)


def kept_by_content(world: CommitWorld) -> list[str]:
    pages = world.memory.list_all(keys.objects_prefix(SESSION))
    return [found.key for page in pages for found in page.objects]


async def test_a_generation_has_everything_of_its_cut(world: CommitWorld) -> None:
    world.make_directory(b"d")
    world.make_directory(b"empty")
    world.write(b"d/a", b"one")
    world.write(b"none", b"")
    world.make_symlink(b"link", b"d/a")
    world.link(b"d/a", b"second name")
    report = await world.commit("command")
    assert report.generation == 1
    assert (report.trigger, report.objects, report.bytes) == ("command", 7, 3 + 3 + 3)
    assert read_generation(world.memory) == world.tree()
    marker = decode_marker(world.body(keys.commit_marker_key(SESSION)), "marker")
    assert (marker.generation, marker.objects, marker.trigger) == (1, 7, "command")
    manifest = json.loads(world.body(keys.manifest_key(SESSION)))
    groups = {entry["path"]: entry["link_group"] for entry in manifest["entries"]}
    assert groups["d/a"] == groups["second name"] != 0


async def test_nothing_changed_is_no_new_generation(world: CommitWorld) -> None:
    world.write(b"a", b"one")
    first = await world.commit()
    again = await world.commit()
    assert again.is_unchanged
    assert again.generation == first.generation == 1


async def test_a_file_that_is_rewritten_after_the_cut_is_committed_as_it_was(world: CommitWorld) -> None:
    world.write(b"a", b"before")
    world.write(b"b", b"other")
    before = world.tree()
    world.freezer.after_barrier = lambda: world.write(b"a", b"after the cut")
    await world.commit()
    assert read_generation(world.memory) == before
    await world.settle()
    assert live_objects(world.memory)[b"a"] == b"after the cut"
    assert read_generation(world.memory) == before


async def test_files_that_go_move_or_appear_after_the_cut_do_not_touch_it(world: CommitWorld) -> None:
    for name in (b"gone", b"moved", b"kept"):
        world.write(name, b"bytes of " + name)
    before = world.tree()

    def change() -> None:
        world.unlink(b"gone")
        world.rename(b"moved", b"elsewhere")
        world.write(b"fresh", b"later")

    world.freezer.after_barrier = change
    await world.commit()
    assert read_generation(world.memory) == before
    await world.settle()
    assert set(live_objects(world.memory)) == {b"elsewhere", b"kept", b"fresh"}
    assert read_generation(world.memory) == before


async def test_what_was_settled_is_copied_aside_when_it_is_overwritten_during_the_commit(
    world: CommitWorld,
) -> None:
    """A1: the commit has noted X; the uploader puts Y before the manifest is there."""
    world.write(b"p", b"X")
    await world.settle()
    world.write(b"big", b"something owed")
    world.freezer.after_barrier = lambda: world.write(b"p", b"Y")
    before = {b"p": b"X", b"big": b"something owed"}
    await world.commit()
    await world.settle()
    assert live_objects(world.memory)[b"p"] == b"Y"
    assert read_generation(world.memory) == before


async def test_every_generation_stays_readable(world: CommitWorld) -> None:
    trees = []
    for turn in range(6):
        world.write(b"rewritten", b"turn %d" % turn)
        world.write(b"only in %d" % turn, b"%d" % turn)
        if turn:
            world.unlink(b"only in %d" % (turn - 1))
        trees.append(world.tree())
        assert (await world.commit()).generation == turn + 1
    world.unlink(b"rewritten")
    await world.settle()
    for number, tree in enumerate(trees, 1):
        assert read_generation(world.memory, number) == tree


async def test_a_growing_log_costs_no_copies_until_it_is_rotated(world: CommitWorld) -> None:
    """A2: each generation names a prefix; when the log goes, one copy and a note for each prefix are enough."""
    trees = []
    world.write(b"log", b"")
    for turn in range(5):
        world.append(b"log", b'{"turn": %d}\n' % turn)
        trees.append(world.tree())
        await world.commit()
    assert kept_by_content(world) == []
    world.rename(b"log", b"log.1")
    world.write(b"log", b"new\n")
    await world.settle()
    for number, tree in enumerate(trees, 1):
        assert read_generation(world.memory, number) == tree
    kept = kept_by_content(world)
    assert len([key for key in kept if not key.endswith(".alias")]) == 1
    assert len([key for key in kept if key.endswith(".alias")]) == 4


async def test_a_log_that_grows_during_the_commit_is_named_by_its_prefix(world: CommitWorld) -> None:
    world.write(b"log", b"one\n")
    before = world.tree()
    world.freezer.in_place.add(b"log")
    world.freezer.after_barrier = lambda: world.append(b"log", b"two\n")
    await world.commit()
    assert live_objects(world.memory)[b"log"] == b"one\ntwo\n"
    assert read_generation(world.memory) == before
    assert kept_by_content(world) == []
    world.write(b"log", b"rotated")
    await world.settle()
    assert read_generation(world.memory) == before


async def test_a_copy_aside_is_written_although_its_key_exists(world: CommitWorld) -> None:
    """A17: garbage collection may be about to remove the one that is there."""
    world.write(b"a", b"same")
    await world.commit()
    world.write(b"a", b"x")
    await world.settle()
    world.write(b"a", b"same")
    await world.commit()
    puts = len(world.calls("copy"))
    world.write(b"a", b"y")
    await world.settle()
    assert len(world.calls("copy")) == puts + 1
    assert read_generation(world.memory, 1)[b"a"] == b"same"
    assert read_generation(world.memory, 2)[b"a"] == b"same"


async def test_a_changed_mode_costs_no_copy_aside(world: CommitWorld) -> None:
    world.write(b"a", b"body")
    await world.commit()
    world.change_mode(b"a", 0o600)
    await world.commit()
    assert kept_by_content(world) == []


async def test_a_manifest_of_somebody_else_ends_the_ownership(world: CommitWorld) -> None:
    world.write(b"a", b"1")
    await world.commit()
    found = world.memory.head(keys.manifest_key(SESSION))
    theirs = world.body(keys.manifest_key(SESSION))
    world.memory.put(
        keys.manifest_key(SESSION), theirs, condition=IfMatch(found.token), metadata=ObjectMetadata()
    )
    world.write(b"a", b"2")
    with pytest.raises(OwnershipLostError):
        await world.commit()
    assert world.body(keys.manifest_key(SESSION)) == theirs
    row = world.journal.session(SESSION)
    assert row is not None
    assert row.changed
    assert row.generation == 1


async def test_a_taken_number_is_skipped(world: CommitWorld) -> None:
    world.write(b"a", b"1")
    await world.commit()
    key = keys.generation_key(SESSION, 2)
    world.memory.put(key, b"left by a commit that died", condition=IfAbsent(), metadata=ObjectMetadata())
    world.write(b"a", b"2")
    assert (await world.commit()).generation == 3
    assert json.loads(world.body(keys.manifest_key(SESSION)))["previous"] == 1


async def test_a_removed_session_can_be_restored(world: CommitWorld) -> None:
    """A18."""
    world.write(b"a", b"precious")
    await world.commit()
    world.unlink(b"a")
    root = world.number(b"")
    os.rmdir(world.path(b""))
    world.tell(Operation.RMDIR, number=root, parent=ROOT_NUMBER, name=SESSION.encode())
    report = await world.commit("removed")
    assert report.generation == 2
    manifest = json.loads(world.body(keys.manifest_key(SESSION)))
    assert (manifest["removed"], manifest["entries"]) == (True, [])
    assert read_generation(world.memory, 1) == {b"a": b"precious"}
    assert live_objects(world.memory) == {}


async def test_a_stale_owners_late_change_is_kept_aside_and_put_right(world: CommitWorld) -> None:
    """A8a: an object that another host's last request changed is found at the commit."""
    world.write(b"a", b"ours")
    world.write(b"b", b"also ours")
    await world.commit()
    world.put_foreign(b"a", b"late bytes")
    key = world.key(b"b")
    world.memory.delete(key, condition=IfMatch(world.memory.head(key).token))
    world.write(b"c", b"so that there is something to commit")
    report = await world.commit()
    assert read_generation(world.memory) == world.tree()
    assert live_objects(world.memory)[b"a"] == b"ours"
    assert live_objects(world.memory)[b"b"] == b"also ours"
    assert world.kept_aside() == [b"late bytes"]
    assert report.generation == 2
    assert len(world.events("session.object.repaired")) == 2


async def test_missing_bytes_are_told_from_present_ones(world: CommitWorld) -> None:
    """The reader of these tests can fail."""
    world.write(b"a", b"1")
    await world.commit()
    world.put_foreign(b"a", b"2")
    with pytest.raises(MissingBytesError):
        read_generation(world.memory)


async def test_a_large_session_lets_others_go_on_while_what_was_noted_is_renewed(
    world: CommitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing, "_ROWS_AT_ONCE", 10)
    node = world.journal.node(world.number(b""))
    assert node is not None
    noted = [Noted(b"%d" % number, node, None, None, None, is_linked=False) for number in range(100)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        renewed = await world.committer._bringing.renew(SESSION, noted, (), is_cold=False)
        nursery.cancel_scope.cancel()
    assert renewed == noted
    assert turns >= 5


async def test_whether_there_is_anything_to_commit_is_asked_without_reading_what_is_owed(
    world: CommitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(b"a", b"one")
    await world.commit()
    await world.settle()
    read: list[str] = []
    for name in ("session_work", "owed_keys"):
        monkeypatch.setattr(world.journal, name, read.append)
    assert (await world.commit()).is_unchanged
    assert read == []
