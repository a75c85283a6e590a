"""What is owed of a session that is another's: bytes kept aside and listed, the paths as the bucket has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionfs.formats import object_metadata
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.model import keys
from sessionfs.model.errors import UnavailableError
from sessionfs.replication.hydrator import Hydrator
from sessionfs.replication.ownership.estrangement import REASON, Estrangement
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata
from sessionfs.testing.faulty_store import FailBefore, Interfere, LostResponse
from sessionfs.working_copy.exclusions import Exclusions
from tests.unit.replication.uploads.tree_world import SESSION, World

HOLDER = "0123456789abcdef"


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """A session whose owner is another by now; everything that was owed before is in the bucket."""
    made = World(tmp_path)
    made.write(b"same", b"same")
    made.write(b"other", b"first")
    made.write(b"gone", b"gone")
    made.make_directory(b"d")
    made.write(b"d/f", b"deep")
    await made.settle()
    made.journal.update_session(SESSION, owner_state="lost", known=True)
    return made


def estrangement(world: World) -> Estrangement:
    return Estrangement(
        world.journal,
        world.trio_store,
        world.clock,
        Exclusions(world.settings.exclude_globs),
        uploader=world.uploader,
        holder=lambda: HOLDER,
        raise_event=world.journal.add_event,
    )


def drop(world: World, number: int) -> None:
    """Remove what is on this disk, as the daemon does."""
    path = world.journal.paths_of(number)[0][1]
    if os.path.isdir(world.path(path)):
        os.rmdir(world.path(path))
        world.tell(Operation.EVICTED, number=number)
    else:
        world.evict(path)


def is_on_disk(world: World, path: bytes) -> bool:
    return os.path.lexists(world.path(path))


async def refresh(world: World) -> SessionRefreshed:
    """Compare with the bucket until nothing old is on this disk, as service and daemon do."""
    hydrator = Hydrator(
        world.journal,
        world.trio_store,
        world.layout,
        world.settings,
        world.clock,
        Exclusions(world.settings.exclude_globs),
        raise_event=world.journal.add_event,
    )
    for _ in range(4):
        found = await hydrator.refresh_session(SESSION)
        here = [number for number in found.files if (node := world.journal.node(number)) and node.present]
        for number in sorted(here, key=lambda number: -len(world.journal.paths_of(number)[0][1])):
            drop(world, number)
        if not here:
            return found
    raise AssertionError("something old stays on this disk")


def tree(world: World) -> set[bytes]:
    root = world.journal.resolve(SESSION, b"")
    assert root is not None
    return {path for path, _, _ in world.journal.below(root, b"")}


async def test_owed_bytes_are_kept_aside_listed_and_announced(world: World) -> None:
    before = world.bucket()
    world.write(b"other", b"second")
    world.write(b"new", b"only here")
    assert await estrangement(world).set_aside(SESSION) == 0
    assert world.bucket() == before
    assert sorted(world.kept_aside()) == [b"only here", b"second"]
    listed = world.journal.conflicts()
    assert {(conflict.path, conflict.holder, conflict.reason) for conflict in listed} == {
        ("other", HOLDER[:8], REASON),
        ("new", HOLDER[:8], REASON),
    }
    assert {event["path"] for event in world.events("session.conflict.kept")} == {"other", "new"}
    assert world.journal.session_work(SESSION) == []


async def test_what_is_kept_says_what_it_is(world: World) -> None:
    world.write(b"other", b"second")
    await estrangement(world).set_aside(SESSION)
    (conflict,) = world.journal.conflicts()
    stat = world.memory.head(conflict.key)
    assert stat.metadata is not None
    attributes = object_metadata.decode_attributes(stat.metadata.user, modified_ns=0, is_directory=False)
    assert attributes.mode == world.status(b"other").st_mode
    assert attributes.mtime_ns == world.status(b"other").st_mtime_ns


async def test_a_path_that_was_owed_becomes_what_the_bucket_has(world: World) -> None:
    """Also when the other owner did not touch it."""
    world.write(b"other", b"second")
    world.write(b"new", b"only here")
    world.make_directory(b"e")
    world.write(b"e/f", b"x")
    await estrangement(world).set_aside(SESSION)
    await refresh(world)
    assert tree(world) == {b"", b"same", b"other", b"gone", b"d", b"d/f"}
    node = world.journal.node(world.number(b"other"))
    assert node is not None
    assert (node.present, node.size_bytes) == (False, len(b"first"))
    assert world.is_here(b"same")
    assert world.is_here(b"d/f")
    assert not is_on_disk(world, b"new")


async def test_a_path_that_both_changed_becomes_the_other_owners(world: World) -> None:
    world.write(b"other", b"second")
    world.put_foreign(b"other", b"theirs!!")
    await estrangement(world).set_aside(SESSION)
    await refresh(world)
    assert world.kept_aside() == [b"second"]
    assert world.body(world.key(b"other")) == b"theirs!!"
    node = world.journal.node(world.number(b"other"))
    assert node is not None
    assert (node.present, node.size_bytes) == (False, 8)


async def test_owed_deletions_are_dropped(world: World) -> None:
    world.unlink(b"gone")
    world.unlink(b"d/f")
    world.remove_directory(b"d")
    await estrangement(world).set_aside(SESSION)
    assert world.kept_aside() == []
    await refresh(world)
    assert tree(world) == {b"", b"same", b"other", b"gone", b"d", b"d/f"}
    assert world.key(b"gone") in world.bucket()


async def test_a_renamed_file_is_kept_and_comes_back_under_its_old_name(world: World) -> None:
    world.rename(b"other", b"moved")
    await estrangement(world).set_aside(SESSION)
    assert world.kept_aside() == [b"first"]
    await refresh(world)
    assert tree(world) == {b"", b"same", b"other", b"gone", b"d", b"d/f"}


async def test_a_renamed_file_that_is_only_in_the_bucket_comes_back_under_its_old_name(world: World) -> None:
    world.evict(b"other")
    world.rename(b"other", b"moved")
    await estrangement(world).set_aside(SESSION)
    assert world.kept_aside() == []
    await refresh(world)
    assert tree(world) == {b"", b"same", b"other", b"gone", b"d", b"d/f"}


async def test_attributes_alone_are_not_kept(world: World) -> None:
    world.change_mode(b"other", 0o600)
    await estrangement(world).set_aside(SESSION)
    assert world.kept_aside() == []
    assert world.journal.session_work(SESSION) == []


async def test_a_link_is_kept_as_its_target(world: World) -> None:
    world.make_symlink(b"l", b"over/there")
    await estrangement(world).set_aside(SESSION)
    assert world.kept_aside() == [b"over/there"]


async def test_excluded_files_never_leave_this_host(world: World) -> None:
    world.write(b"session.lock", b"secret")
    world.journal.mark(world.key(b"session.lock"), SESSION, 0)
    assert await estrangement(world).set_aside(SESSION) == 0
    assert world.kept_aside() == []


async def test_a_lost_session_is_foreign_once_nothing_is_owed(world: World) -> None:
    world.write(b"other", b"second")
    row = world.journal.session(SESSION)
    assert row is not None
    assert row.written
    await estrangement(world).set_aside(SESSION)
    row = world.journal.session(SESSION)
    assert row is not None
    assert (row.written, row.changed) == (False, False)


async def test_puts_without_an_answer_are_forgotten(world: World) -> None:
    world.journal.begin_attempt("w1", world.key(b"other"))
    world.journal.begin_attempt("w2", world.key(b"same"))
    world.write(b"other", b"second")
    await estrangement(world).set_aside(SESSION)
    assert world.journal.attempts(world.key(b"other")) == []
    assert world.journal.attempts(world.key(b"same")) == []


async def test_a_key_that_is_under_way_is_left_for_the_next_time(world: World) -> None:
    world.write(b"other", b"second")
    assert world.uploader.hold(world.key(b"other"))
    assert await estrangement(world).set_aside(SESSION) == 1
    assert world.kept_aside() == []
    world.uploader.release(world.key(b"other"))
    assert await estrangement(world).set_aside(SESSION) == 0
    assert world.kept_aside() == [b"second"]
    assert world.uploader.in_flight == set()


async def test_without_an_answer_everything_is_still_owed(world: World) -> None:
    world.write(b"other", b"second")
    world.store.plan("put", FailBefore(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        await estrangement(world).set_aside(SESSION)
    assert [row.key for row in world.journal.session_work(SESSION)] == [world.key(b"other")]
    assert world.journal.conflicts() == []
    assert world.uploader.in_flight == set()
    assert await estrangement(world).set_aside(SESSION) == 0
    assert world.kept_aside() == [b"second"]


async def test_a_lost_answer_is_looked_up(world: World) -> None:
    world.write(b"other", b"second")
    world.store.plan("put", LostResponse())
    assert await estrangement(world).set_aside(SESSION) == 0
    assert world.kept_aside() == [b"second"]


async def test_a_file_that_changes_while_it_is_kept_aside_is_kept_again(world: World) -> None:
    world.write(b"other", b"second")
    world.store.plan("put", Interfere(lambda: Path(os.fsdecode(world.path(b"other"))).write_bytes(b"third")))
    assert await estrangement(world).set_aside(SESSION) == 1
    assert await estrangement(world).set_aside(SESSION) == 0
    assert world.kept_aside() == [b"second", b"third"]


async def test_a_process_that_dies_after_a_copy_leaves_one_too_many_and_loses_nothing(world: World) -> None:
    """The copy is in the bucket, and the journal does not know."""
    world.write(b"other", b"second")
    key = keys.conflict_key(world.key(b"other"), stamp="20260101T000000.000000Z", holder=HOLDER[:8])
    world.memory.put(key, b"second", condition=IfAbsent(), metadata=ObjectMetadata())
    await estrangement(world).set_aside(SESSION)
    assert world.kept_aside() == [b"second", b"second"]
    assert len(world.journal.conflicts()) == 1
    assert await estrangement(world).set_aside(SESSION) == 0
    assert len(world.kept_aside()) == 2


async def test_nothing_owed_costs_nothing(world: World) -> None:
    before = len(world.store.calls)
    assert await estrangement(world).set_aside(SESSION) == 0
    assert len(world.store.calls) == before


async def test_another_hosts_deletion_of_a_file_that_is_owed_here_wins(world: World) -> None:
    world.write(b"other", b"second")
    world.memory.delete(world.key(b"other"), condition=IfMatch(world.stat(b"other").token))
    await estrangement(world).set_aside(SESSION)
    await refresh(world)
    assert world.kept_aside() == [b"second"]
    assert tree(world) == {b"", b"same", b"gone", b"d", b"d/f"}
