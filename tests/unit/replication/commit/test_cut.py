"""The cut: what is changing while it is taken and brought, and what cannot be brought at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.model import keys
from sessionfs.model.errors import InvalidRequestError, SessionFSError, UnavailableError
from sessionfs.stores.base import Condition, IfAbsent, ObjectMetadata, Token
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, Pass
from tests.unit.replication.commit.commit_world import (
    SLOW,
    CommitWorld,
    ContentTokenStore,
    live_objects,
    read_generation,
)
from tests.unit.replication.uploads.tree_world import SESSION


@pytest.fixture
def world(tmp_path: Path) -> CommitWorld:
    """Nothing is uploaded before a commit asks for it."""
    return CommitWorld(tmp_path, settings=SLOW)


# --- files that keep changing


async def test_a_file_that_never_stands_still_is_committed_as_it_was_kept(world: CommitWorld) -> None:
    world.write(b"busy", b"at the cut")
    world.write(b"other", b"other")
    cut = world.tree()
    world.freezer.after_barrier = lambda: world.write(b"busy", b"round 0")
    world.freezer.on_question = lambda question: world.write(b"busy", b"round %d" % question)
    report = await world.commit()
    assert world.freezer.asked > 1
    assert report.moving == []
    assert read_generation(world.memory) == cut
    assert world.entries()[b"busy"].token == ""


async def test_bytes_that_move_to_staging_while_they_are_read_are_read_again_there(
    world: CommitWorld,
) -> None:
    """They stood in the file itself until a program rewrote it: what was read in between does not count."""
    world.write(b"log", b"at the cut")
    world.freezer.in_place.add(b"log")
    # The upload has more than the bytes of the cut.
    world.freezer.after_barrier = lambda: world.append(b"log", b", and more")

    def rewrite(question: int) -> None:
        if question == 1:
            world.freezer.stage(b"log", b"at the cut")
            world.write(b"log", b"rewritten, and longer")

    world.freezer.on_question = rewrite
    report = await world.commit()
    assert report.moving == []
    assert world.freezer.asked > 2
    assert read_generation(world.memory) == {b"log": b"at the cut"}
    await world.settle()
    assert read_generation(world.memory) == {b"log": b"at the cut"}


async def test_a_file_whose_bytes_are_lost_is_told_and_the_others_are_exact(world: CommitWorld) -> None:
    for name in (b"lost", b"kept"):
        world.write(name, b"before")
    await world.commit()
    for name in (b"lost", b"kept"):
        world.write(name, b"at the cut")
    world.freezer.lost.add(b"lost")

    def change() -> None:
        for name in (b"lost", b"kept"):
            world.write(name, b"after the cut")

    world.freezer.after_barrier = change
    report = await world.commit()
    assert report.moving == ["lost"]
    found = read_generation(world.memory)
    assert found[b"kept"] == b"at the cut"
    assert found[b"lost"] in {b"before", b"at the cut", b"after the cut"}
    for name in (b"lost", b"kept"):
        world.unlink(name)
    await world.settle()
    assert read_generation(world.memory) == found


async def test_a_lost_file_that_is_in_no_bucket_fails_the_commit(world: CommitWorld) -> None:
    world.write(b"lost", b"never uploaded")
    world.freezer.lost.add(b"lost")
    world.freezer.after_barrier = lambda: world.journal.stick_work(world.key(b"lost"), "refused")
    with pytest.raises(UnavailableError, match="lost is not in the bucket yet: refused"):
        await world.commit()
    assert world.row().changed
    assert world.freezer.kept() == []


async def test_a_file_that_went_back_and_forth_names_the_bytes_of_the_cut(world: CommitWorld) -> None:
    """The live object is longer than the cut and was taken from the same file, but does not begin with it."""
    world.write(b"f", b"short")
    world.freezer.after_barrier = lambda: world.write(b"f", b"longer, and other bytes")
    await world.commit()
    assert live_objects(world.memory)[b"f"] == b"longer, and other bytes"
    assert read_generation(world.memory) == {b"f": b"short"}


async def test_attributes_changed_after_the_cut_keep_a_named_object_named(tmp_path: Path) -> None:
    """The store's tokens tell bytes only."""
    world = CommitWorld(tmp_path, store=ContentTokenStore())
    world.write(b"f", b"abc")
    await world.settle()
    mode = world.status(b"f").st_mode
    world.write(b"other", b"x")
    world.freezer.after_barrier = lambda: world.change_mode(b"f", 0o600)
    await world.commit()
    assert world.entries()[b"f"].mode == mode
    world.write(b"f", b"newer")
    await world.settle()
    assert read_generation(world.memory)[b"f"] == b"abc"


async def test_a_settled_file_that_is_changed_and_uploaded_before_the_listing_stays_in_the_generation(
    tmp_path: Path,
) -> None:
    world = CommitWorld(tmp_path)
    for name in (b"changed", b"removed", b"grown", b"moved"):
        world.write(name, b"X of " + name)
    await world.settle()
    world.write(b"owed", b"1")
    cut = world.tree()

    def change() -> None:
        world.write(b"changed", b"Y")
        world.unlink(b"removed")
        world.append(b"grown", b" and more")
        world.rename(b"moved", b"elsewhere")
        # Whoever waits for the last waits for all.
        world.write(b"owed", b"2")

    world.freezer.after_barrier = change
    await world.commit()
    await world.settle()
    assert read_generation(world.memory) == cut
    assert set(live_objects(world.memory)) == {b"changed", b"grown", b"elsewhere", b"owed"}


# --- files that are only in the bucket


@pytest.fixture
async def away(world: CommitWorld) -> CommitWorld:
    """The file is only in the bucket, under one name, and no generation names it."""
    world.write(b"f", b"at the cut")
    await world.settle()
    world.evict(b"f")
    return world


def append(world: CommitWorld, path: bytes) -> None:
    world.fetch(path)
    world.append(path, b", and more")


def rewrite(world: CommitWorld, path: bytes) -> None:
    world.write(path, b"rewritten, and longer")


def after_cut(world: CommitWorld, path: bytes, happen: Callable[[], None]) -> None:
    """Let something happen right after the cut, at which the path is owed for certain."""
    key = world.key(path)
    assert world.uploader.hold(key)

    def release() -> None:
        assert world.journal.work(key) is not None
        assert not world.is_here(path)
        world.uploader.release(key)
        happen()

    world.freezer.after_barrier = release


CHANGES = pytest.mark.parametrize("change", [append, rewrite])


@CHANGES
async def test_a_file_that_was_only_in_the_bucket_is_committed_as_it_was_before_somebody_fetched_it(
    away: CommitWorld, change: Callable[[CommitWorld, bytes], None]
) -> None:
    away.change_mode(b"f", 0o600)
    after_cut(away, b"f", lambda: change(away, b"f"))
    report = await away.commit()
    assert live_objects(away.memory)[b"f"] == away.tree()[b"f"] != b"at the cut"
    assert read_generation(away.memory) == {b"f": b"at the cut"}
    assert (report.moving, stat.S_IMODE(away.entries()[b"f"].mode)) == ([], 0o600)
    away.unlink(b"f")
    await away.settle()
    assert read_generation(away.memory) == {b"f": b"at the cut"}


@CHANGES
async def test_a_moved_file_that_was_only_in_the_bucket_is_committed_as_it_was(
    away: CommitWorld, change: Callable[[CommitWorld, bytes], None]
) -> None:
    away.rename(b"f", b"g")
    after_cut(away, b"g", lambda: change(away, b"g"))
    report = await away.commit()
    assert set(live_objects(away.memory)) == {b"g"}
    assert (report.moving, read_generation(away.memory)) == ([], {b"g": b"at the cut"})


@CHANGES
async def test_bytes_that_another_owner_kept_aside_are_named_there(
    away: CommitWorld, change: Callable[[CommitWorld, bytes], None]
) -> None:
    """His uncommitted tail has the key; it is put right, and a program fetches and changes the file meanwhile."""
    known = away.journal.object(away.key(b"f"))
    assert known is not None
    kept = keys.content_key(SESSION, known.sha256)
    found = away.memory.head(known.key)
    away.memory.put(kept, b"at the cut", condition=IfAbsent(), metadata=found.metadata or ObjectMetadata())
    away.put_of_epoch(b"f", b"the tail of another", 1)
    tail = away.memory.head(known.key)
    away.journal.put_object(replace(known, number=0, token=tail.token, sha256="0" * 64, size_bytes=19))
    away.journal.mark(known.key, SESSION, 0)

    def happen() -> None:
        away.journal.put_object(replace(known, key=kept))
        change(away, b"f")
        away.journal.drop_object(kept)

    after_cut(away, b"f", happen)
    report = await away.commit()
    assert live_objects(away.memory)[b"f"] == away.tree()[b"f"] != b"at the cut"
    assert (report.moving, read_generation(away.memory)) == ([], {b"f": b"at the cut"})


@CHANGES
async def test_another_tools_file_without_a_sum_is_told_or_exact(
    away: CommitWorld, change: Callable[[CommitWorld, bytes], None]
) -> None:
    known = away.journal.object(away.key(b"f"))
    assert known is not None
    number = away.number(b"f")

    def note_sum(sha256: str) -> None:
        away.journal.update_node(number, sha256=sha256)
        away.journal.put_object(replace(known, sha256=sha256))

    note_sum("")
    away.change_mode(b"f", 0o600)

    def happen() -> None:
        note_sum(known.sha256)
        change(away, b"f")

    after_cut(away, b"f", happen)
    report = await away.commit()
    named = read_generation(away.memory)
    assert named == {b"f": b"at the cut"} or report.moving == ["f"]


async def test_bytes_that_are_nowhere_are_told_and_do_not_keep_a_session_from_being_committed(
    away: CommitWorld,
) -> None:
    away.journal.update_node(away.number(b"f"), sha256="0" * 64)
    away.journal.mark(away.key(b"f"), SESSION, 0)
    after_cut(away, b"f", lambda: None)
    away.write(b"g", b"something else")
    report = await away.commit()
    assert report.moving == ["f"]
    assert read_generation(away.memory)[b"g"] == b"something else"


async def test_a_file_that_stays_in_the_bucket_only_costs_no_copy(away: CommitWorld) -> None:
    away.change_mode(b"f", 0o600)
    after_cut(away, b"f", lambda: None)
    report = await away.commit()
    assert (report.moving, read_generation(away.memory)) == ([], {b"f": b"at the cut"})
    assert away.entries()[b"f"].token == away.stat(b"f").token
    assert away.kept_by_content() == {}


# --- the log is behind


async def test_a_barrier_that_finds_the_log_behind_is_asked_again(world: CommitWorld) -> None:
    world.write(b"f", b"abc")
    world.freezer.behind = 2
    report = await world.commit()
    assert world.freezer.barriers == 3
    assert report.generation == 1
    assert read_generation(world.memory) == world.tree()


async def test_a_log_that_stays_behind_fails_the_commit_and_nothing_is_kept(world: CommitWorld) -> None:
    world.write(b"f", b"abc")
    world.freezer.behind = 3
    with pytest.raises(UnavailableError, match="faster than its log"):
        await world.commit()
    assert (world.freezer.barriers, world.freezer.kept()) == (3, [])
    assert world.row().changed
    assert (await world.commit()).generation == 1


async def test_a_write_without_a_record_is_in_the_generation_that_finds_it(world: CommitWorld) -> None:
    world.write(b"f", b"abc")
    world.write(b"g", b"abc")
    await world.commit()
    world.write(b"g", b"changed")

    def write() -> None:
        # Open for writing, and the record of this write is yet to come.
        with open(world.path(b"f"), "r+b") as file:
            file.write(b"ABC and more")

    number = world.number(b"f")
    world.tell(Operation.OPEN_WRITE, number=number)
    write()
    world.freezer.also = {number: b"f"}
    await world.commit()
    assert read_generation(world.memory) == {b"f": b"ABC and more", b"g": b"changed"}


# --- deletions that the brake held


async def test_a_commit_confirms_the_deletions_that_were_held(world: CommitWorld) -> None:
    for number in range(3):
        world.write(b"f%d" % number, b"x")
    await world.commit()
    before = world.tree()
    for number in range(3):
        world.unlink(b"f%d" % number)
    world.journal.hold_work([world.key(b"f%d" % number) for number in range(3)])
    assert world.journal.held_count() == 3
    await world.commit()
    assert live_objects(world.memory) == {}
    assert world.journal.session_work(SESSION) == []
    assert read_generation(world.memory) == {}
    assert read_generation(world.memory, 1) == before


@pytest.mark.parametrize("trigger", ["timer", "sigterm", "retry"])
async def test_a_commit_that_nobody_asked_for_leaves_deletions_held(world: CommitWorld, trigger: str) -> None:
    world.write(b"f", b"x")
    await world.commit()
    world.unlink(b"f")
    world.journal.hold_work([world.key(b"f")])
    await world.commit(trigger)
    assert live_objects(world.memory) == {b"f": b"x"}
    assert world.journal.held_count() == 1
    assert read_generation(world.memory) == {}


# --- what cannot be uploaded


async def test_a_file_that_the_store_refuses_for_good_is_committed_by_its_content(
    world: CommitWorld,
) -> None:
    world.write(b"refused", b"before")
    await world.commit()
    world.write(b"refused", b"bytes")
    world.store.plan("copy", Pass())
    world.store.plan("put", FailBefore(InvalidRequestError("this key is refused")))
    report = await world.commit()
    assert report.generation == 2
    entry = world.entries()[b"refused"]
    assert entry.token == ""
    assert read_generation(world.memory) == {b"refused": b"bytes"}
    assert read_generation(world.memory, 1) == {b"refused": b"before"}


async def test_an_object_that_is_older_than_the_cut_is_not_taken_for_the_file_grown_since(
    world: CommitWorld,
) -> None:
    world.write(b"f", b"abcdef")
    await world.commit()
    world.write(b"f", b"xyz")
    world.freezer.in_place.add(b"f")
    world.store.plan("put", FailBefore(InvalidRequestError("this key is refused")))
    await world.commit()
    world.store.assert_all_used()
    assert live_objects(world.memory) == {b"f": b"abcdef"}
    assert read_generation(world.memory) == {b"f": b"xyz"}


class RefusingStore(MemoryStore):
    """Refuses these bytes under every key."""

    refused = b""

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if self.refused and body == self.refused:
            raise InvalidRequestError("refused")
        return super().put(key, body, condition=condition, metadata=metadata)


async def test_a_file_whose_bytes_can_be_nowhere_fails_the_commit(tmp_path: Path) -> None:
    store = RefusingStore()
    world = CommitWorld(tmp_path, settings=SLOW, store=store)
    store.refused = b"bytes"
    world.write(b"f", b"bytes")
    with pytest.raises(SessionFSError):
        await world.commit()
    assert world.row().changed
    store.refused = b""
    assert (await world.commit()).generation == 1


async def test_a_blob_whose_bytes_can_be_nowhere_is_left_out_and_comes_with_a_later_generation(
    tmp_path: Path,
) -> None:
    store = RefusingStore()
    world = CommitWorld(tmp_path, settings=SLOW, store=store)
    for name in (b"blobs", b"blobs/ab"):
        world.make_directory(name)
    world.write(b"blobs/ab/refused", b"blob")
    world.write(b"blobs/ab/other", b"other")
    store.refused = b"blob"
    report = await world.commit()
    assert report.generation == 1
    assert set(world.entries()) == {b"", b"blobs", b"blobs/ab", b"blobs/ab/other"}
    assert world.row().changed
    store.refused = b""
    world.journal.release_work()
    assert (await world.commit()).generation == 2
    assert read_generation(world.memory) == world.tree()
    assert not world.row().changed


async def test_a_link_and_a_directory_that_were_owed_have_the_tokens_of_their_objects(
    world: CommitWorld,
) -> None:
    world.make_directory(b"d")
    world.make_symlink(b"d/l", b"nowhere")
    os.chmod(world.path(b"d"), 0o750)
    await world.commit()
    named = world.entries()
    assert named[b"d"].token == world.memory.head(world.key(b"d", is_directory=True)).token
    assert stat.S_IMODE(named[b"d"].mode) == 0o750
    assert named[b"d/l"].token == world.stat(b"d/l").token
