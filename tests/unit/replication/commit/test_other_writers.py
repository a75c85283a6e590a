"""What others write while a session is committed, and what their requests, or late ones of our own, can still do to a generation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from sessionfs.model import keys
from sessionfs.model.errors import (
    AccessError,
    InvalidRequestError,
    ObjectNotFoundError,
    OwnershipLostError,
    UnavailableError,
)
from sessionfs.replication.commit.cutting import cold_until
from sessionfs.stores.base import IfMatch, ListPage, ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, Interfere
from tests.unit.replication.commit.commit_world import (
    CommitWorld,
    ContentTokenStore,
    LateRequests,
    Owner,
    live_objects,
    read_generation,
)
from tests.unit.replication.uploads.tree_world import SESSION, until

MANIFEST = keys.manifest_key(SESSION)
_HOUR_NS = 3_600_000_000_000


@pytest.fixture
def owner() -> Owner:
    return Owner(current=2)


@pytest.fixture
def world(tmp_path: Path, owner: Owner) -> CommitWorld:
    return CommitWorld(tmp_path, authority=owner)


def position(world: CommitWorld, method: str, key: str) -> int:
    return world.store.calls.index((method, key))


# --- requests of our own that come late or twice


async def test_old_bytes_that_a_late_request_of_ours_brought_back_are_put_right_without_a_conflict(
    world: CommitWorld,
) -> None:
    world.write(b"a", b"old")
    await world.settle()
    old = world.stat(b"a").metadata
    world.write(b"a", b"new")
    world.write(b"gone", b"x")
    await world.commit()
    gone = world.stat(b"gone").metadata
    world.unlink(b"gone")
    await world.settle()
    assert old is not None
    assert gone is not None
    world.memory.put(world.key(b"a"), b"old", condition=Unconditional(), metadata=old)
    world.memory.put(world.key(b"gone"), b"x", condition=Unconditional(), metadata=gone)
    world.write(b"c", b"so that there is something to commit")
    await world.commit()
    assert live_objects(world.memory) == {b"a": b"new", b"c": b"so that there is something to commit"}
    assert read_generation(world.memory) == world.tree()
    assert world.kept_aside() == []
    assert len(world.events("session.object.repaired")) == 2


async def test_a_put_of_a_process_before_that_arrives_late_is_no_conflict_either(
    world: CommitWorld, owner: Owner
) -> None:
    """It carries the epoch of that process; its attempt is in the journal."""
    world.write(b"a", b"old")
    await world.settle()
    old = world.stat(b"a")
    assert old.metadata is not None
    world.write(b"a", b"new")
    await world.commit()
    world.journal.begin_attempt(old.metadata.user["sessionfs-write"], world.key(b"a"))
    world.journal.settle_attempt(old.metadata.user["sessionfs-write"])
    owner.current += 1
    world.memory.put(world.key(b"a"), b"old", condition=Unconditional(), metadata=old.metadata)
    world.write(b"c", b"so that there is something to commit")
    await world.commit()
    assert live_objects(world.memory)[b"a"] == b"new"
    assert world.kept_aside() == []


async def test_the_same_bytes_under_another_token_are_described_anew_and_are_no_conflict(
    world: CommitWorld,
) -> None:
    """Another tool copies an object onto itself, and changes its attributes."""
    world.write(b"a", b"bytes")
    await world.commit()
    found = world.stat(b"a")
    assert found.metadata is not None
    user = {**found.metadata.user, "mode": "33279", "sessionfs-write": "another"}
    world.memory.put(
        world.key(b"a"),
        b"bytes",
        condition=Unconditional(),
        metadata=type(found.metadata)(user),
    )
    world.write(b"c", b"so that there is something to commit")
    await world.commit()
    entry = world.entries()[b"a"]
    assert entry.token == world.stat(b"a").token != found.token
    assert entry.mode == world.status(b"a").st_mode
    assert world.kept_aside() == []
    assert read_generation(world.memory) == world.tree()


# --- other writers


async def test_another_tools_bytes_are_kept_aside_before_ours_take_the_key_again(world: CommitWorld) -> None:
    world.write(b"a", b"ours")
    await world.commit()
    world.put_foreign(b"a", b"theirs")
    world.put_foreign(b"unknown", b"another tool's own file")
    world.write(b"c", b"so that there is something to commit")
    await world.commit()
    assert world.kept_aside() == [b"theirs"]
    assert live_objects(world.memory)[b"a"] == b"ours"
    assert live_objects(world.memory)[b"unknown"] == b"another tool's own file"
    # Their bytes do not begin with what a generation names of ours, although they are longer.
    assert world.kept_by_content() == {}
    before = world.tree()
    assert read_generation(world.memory) == before
    # What was put there again is named again.
    world.write(b"a", b"after the commit")
    await world.settle()
    assert read_generation(world.memory) == before


@pytest.mark.parametrize("epoch", [1, 2, 9])
async def test_what_a_tool_copied_from_another_session_is_kept_aside_whatever_its_epoch(
    world: CommitWorld, owner: Owner, epoch: int
) -> None:
    """A copy within the bucket keeps the metadata; most sessions have the same few epochs."""
    owner.current, owner.has_later_owner = 2, False
    world.write(b"a", b"ours")
    await world.commit()
    world.put_of_epoch(b"a", b"theirs", epoch)
    world.put_of_epoch(b"unknown", b"also theirs", epoch)
    world.write(b"c", b"so that there is something to commit")
    await world.commit()
    assert sorted(world.kept_aside()) == [b"also theirs", b"theirs"]
    assert live_objects(world.memory)[b"a"] == b"ours"


async def test_what_a_stale_owner_put_at_a_key_that_nobody_knew_goes_aside(
    world: CommitWorld, owner: Owner
) -> None:
    world.write(b"a", b"ours")
    await world.commit()
    world.put_of_epoch(b"stale", b"late bytes", owner.current - 1)
    world.write(b"c", b"so that there is something to commit")
    await world.commit()
    assert set(live_objects(world.memory)) == {b"a", b"c"}
    assert world.kept_aside() == [b"late bytes"]


@pytest.mark.parametrize("path", [b"a", b"unknown"])
async def test_an_object_of_a_later_owner_ends_the_ownership_and_nothing_is_published(
    world: CommitWorld, owner: Owner, path: bytes
) -> None:
    world.write(b"a", b"ours")
    await world.commit()
    newest = world.body(MANIFEST)
    world.put_of_epoch(path, b"theirs", owner.current + 1)
    world.write(b"c", b"so that there is something to commit")
    await world.settle()
    world.store.calls.clear()
    with pytest.raises(OwnershipLostError):
        await world.commit()
    assert (world.calls("put"), world.calls("delete"), world.calls("copy")) == ([], [], [])
    assert world.body(MANIFEST) == newest
    assert live_objects(world.memory)[path] == b"theirs"
    assert world.kept_aside() == []
    assert owner.lost
    assert all("later owner" in reason for reason in owner.lost)
    assert world.row().changed


class BusyStore(MemoryStore):
    """Somebody does something whenever a session is listed."""

    on_list: Callable[[], None] = staticmethod(lambda: None)

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        if prefix == keys.session_prefix(SESSION):
            self.on_list()
        return super().list_page(prefix, page=page, whole_segments=whole_segments, limit=limit)


async def test_somebody_who_keeps_changing_an_object_is_told_of(tmp_path: Path) -> None:
    store = BusyStore()
    world = CommitWorld(tmp_path, store=store)
    world.write(b"a", b"ours")
    await world.commit()
    world.write(b"c", b"so that there is something to commit")
    await world.settle()
    store.on_list = lambda: world.memory.put(  # type: ignore[assignment]
        world.key(b"a"), b"theirs", condition=Unconditional(), metadata=ObjectMetadata()
    )
    with pytest.raises(UnavailableError, match="keeps changing"):
        await world.commit()
    assert world.manifest().generation == 1
    assert world.kept_aside() == [b"theirs"] * 3
    store.on_list = lambda: None
    await world.commit()
    assert read_generation(world.memory) == world.tree()


async def test_what_cannot_be_put_right_is_in_no_generation(world: CommitWorld) -> None:
    world.write(b"a", b"ours")
    await world.settle()
    world.put_foreign(b"a", b"theirs")
    world.store.plan("put", FailBefore(InvalidRequestError("refused for good")))
    with pytest.raises(UnavailableError, match="somebody else"):
        await world.commit()
    with pytest.raises(ObjectNotFoundError):
        world.memory.head(MANIFEST)
    world.store.assert_all_used()
    # It counts as owed now, and is committed by its content.
    await world.commit()
    assert read_generation(world.memory) == {b"a": b"ours"}


async def test_what_was_overwritten_before_it_could_be_copied_aside_is_in_no_generation(
    world: CommitWorld,
) -> None:
    """Another tool destroys what the cut has, and a program goes on before the listing finds it."""
    world.write(b"a", b"ours")
    await world.settle()
    world.put_foreign(b"a", b"theirs")
    world.freezer.after_barrier = lambda: world.write(b"a", b"after the cut")
    with pytest.raises(UnavailableError, match="somebody else"):
        await world.commit()
    with pytest.raises(ObjectNotFoundError):
        world.memory.head(MANIFEST)
    world.freezer.after_barrier = lambda: None
    await world.commit()
    assert read_generation(world.memory) == {b"a": b"after the cut"}
    assert world.kept_aside() == [b"theirs"]


async def test_an_object_that_vanished_is_put_there_again(world: CommitWorld) -> None:
    world.make_directory(b"d")
    world.write(b"d/a", b"ours")
    await world.commit()
    for key in (world.key(b"d/a"), world.key(b"d", is_directory=True)):
        world.memory.delete(key, condition=Unconditional())
    world.write(b"c", b"so that there is something to commit")
    await world.commit()
    assert live_objects(world.memory)[b"d/a"] == b"ours"
    assert world.memory.head(world.key(b"d", is_directory=True))
    named = world.entries()
    assert named[b"d"].token == world.memory.head(world.key(b"d", is_directory=True)).token
    assert named[b"d/a"].token == world.stat(b"d/a").token


async def test_a_blob_in_the_listing_at_its_length_costs_no_request_and_at_another_is_sent_again(
    world: CommitWorld,
) -> None:
    path = b"blobs/ab/abcd.bin"
    world.make_directory(b"blobs")
    world.make_directory(b"blobs/ab")
    world.write(path, b"a blob")
    await world.commit()
    world.write(b"c", b"1")
    world.store.calls.clear()
    await world.commit()
    assert world.key(path) not in [key for _, key in world.store.calls]
    world.put_foreign(path, b"cut")
    world.write(b"c", b"2")
    await world.commit()
    assert live_objects(world.memory)[path] == b"a blob"
    assert read_generation(world.memory) == world.tree()


# --- adoption: what an earlier owner left uncommitted


async def test_what_an_earlier_owner_left_is_copied_aside_before_a_generation_first_names_it(
    world: CommitWorld, owner: Owner
) -> None:
    owner.current = 1
    for name in (b"left", b"also left"):
        world.write(name, b"bytes that were " + name)
    world.write(b"empty", b"")
    await world.settle()
    owner.current = 2
    world.write(b"mine", b"of this epoch")
    await world.settle()
    world.store.calls.clear()
    await world.commit()
    published = position(world, "put", keys.generation_key(SESSION, 1))
    copies = [number for number, (method, _) in enumerate(world.store.calls) if method == "copy"]
    assert len(copies) == 2
    assert max(copies) < published
    # His request that was on its way replaces the object, and knows nothing of what is named.
    condition = IfMatch(world.stat(b"left").token)
    found = world.stat(b"left").metadata
    assert found is not None
    world.memory.put(world.key(b"left"), b"late", condition=condition, metadata=found)
    world.memory.delete(world.key(b"also left"), condition=IfMatch(world.stat(b"also left").token))
    assert read_generation(world.memory) == world.tree()


async def test_what_the_generation_before_named_is_not_copied_again(world: CommitWorld, owner: Owner) -> None:
    owner.current = 1
    world.write(b"left", b"bytes")
    await world.commit()
    owner.current = 2
    world.write(b"mine", b"of this epoch")
    await world.commit()
    assert world.calls("copy") == []


async def test_a_commit_that_cannot_copy_it_aside_publishes_nothing(world: CommitWorld, owner: Owner) -> None:
    owner.current = 1
    world.write(b"left", b"bytes")
    await world.settle()
    owner.current = 2
    world.store.plan("copy", FailBefore(AccessError("no")))
    with pytest.raises(AccessError):
        await world.commit()
    with pytest.raises(ObjectNotFoundError):
        world.memory.head(MANIFEST)
    # The journal must not take it for named and safe: the next commit copies it.
    await world.commit()
    assert list(world.kept_by_content().values()) == [b"bytes"]


async def test_while_a_dead_owners_requests_may_arrive_everything_named_for_the_first_time_is_copied(
    world: CommitWorld,
) -> None:
    world.write(b"settled", b"1")
    await world.settle()
    world.write(b"owed", b"2")
    world.journal.set_meta(cold_until(SESSION), str(world.clock.wall_ns() + _HOUR_NS))
    await world.commit()
    assert sorted(world.kept_by_content().values()) == [b"1", b"2"]
    for name in (b"settled", b"owed"):
        world.memory.delete(world.key(name), condition=Unconditional())
    assert read_generation(world.memory) == {b"settled": b"1", b"owed": b"2"}


async def test_once_they_cannot_arrive_any_more_nothing_is_copied(world: CommitWorld) -> None:
    world.write(b"settled", b"1")
    await world.settle()
    world.write(b"owed", b"2")
    world.journal.set_meta(cold_until(SESSION), str(world.clock.wall_ns() - 1))
    await world.commit()
    assert world.kept_by_content() == {}


# --- bases: a request of ours that was given up, conditional on what is there again


def back(world: CommitWorld, path: bytes, body: bytes, times: tuple[int, int]) -> Callable[[], None]:
    """A program goes back to bytes and times that the file had before."""

    def act() -> None:
        world.write(path, body)
        os.utime(world.path(path), ns=times)

    return act


async def going_back(world: CommitWorld, act: Callable[[], None], method: str) -> None:
    """While the next request to ``p`` is on its way, something happens; nobody sees the request arrive."""
    seen = len(world.store.calls)
    world.store.plan(method, Interfere(lambda: trio.from_thread.run_sync(act)))
    await world.settle()
    assert (method, world.key(b"p")) in world.store.calls[seen:]


@pytest.mark.parametrize("is_same_time", [True, False])
async def test_an_overwriting_that_was_given_up_cannot_take_what_a_generation_names_when_it_arrives(
    tmp_path: Path, is_same_time: bool
) -> None:
    store = ContentTokenStore()
    world = CommitWorld(tmp_path, store=store)
    world.write(b"p", b"X")
    await world.settle()
    times = (0, world.status(b"p").st_mtime_ns if is_same_time else 1)
    held = LateRequests(store, world.key(b"p"))
    world.write(b"p", b"Y")
    await going_back(world, back(world, b"p", b"X", times), "put")
    assert live_objects(store)[b"p"] == b"X"
    await world.commit()
    held.arrive()
    assert live_objects(store)[b"p"] == b"Y"
    assert read_generation(store) == {b"p": b"X"}


async def test_a_deletion_that_was_given_up_cannot_either(tmp_path: Path) -> None:
    store = ContentTokenStore()
    world = CommitWorld(tmp_path, store=store)
    world.write(b"p", b"X")
    await world.settle()
    times = (0, world.status(b"p").st_mtime_ns)
    held = LateRequests(store, world.key(b"p"))
    world.unlink(b"p")
    await going_back(world, back(world, b"p", b"X", times), "delete")
    await world.commit()
    held.arrive()
    assert b"p" not in live_objects(store)
    assert read_generation(store) == {b"p": b"X"}


async def test_a_file_that_goes_back_while_it_is_committed_is_copied_aside_too(tmp_path: Path) -> None:
    """It was owed at the cut, so it is named only when its bytes are looked for."""
    store = ContentTokenStore()
    world = CommitWorld(tmp_path, store=store)
    world.write(b"p", b"X")
    await world.settle()
    held = LateRequests(store, world.key(b"p"))
    world.write(b"p", b"Y")
    async with world.running():
        await until(lambda: not held._left)
    world.write(b"p", b"X")
    await world.commit()
    held.arrive()
    assert live_objects(store)[b"p"] == b"Y"
    assert read_generation(store) == {b"p": b"X"}


async def test_bases_are_forgotten_when_their_requests_cannot_arrive_any_more(world: CommitWorld) -> None:
    world.write(b"p", b"X")
    await world.settle()
    key, token = world.key(b"p"), world.stat(b"p").token
    known = world.journal.object(key)
    assert known is not None
    world.journal.note_base(known, world.clock.wall_ns() - _HOUR_NS - 1)
    await world.commit()
    assert world.kept_by_content() == {}
    assert not world.journal.is_base(key, token)
