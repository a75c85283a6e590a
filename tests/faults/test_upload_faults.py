"""Scripted faults between the uploader and the store: lost responses, refusals, other writers, and processes that die."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from sessionfs.formats import object_metadata
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model.errors import (
    AccessError,
    ConcurrentRequestError,
    InvalidRequestError,
    OutcomeUnknownError,
    PreconditionFailedError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata, Unconditional
from sessionfs.testing.faulty_store import Delay, FailBefore, Interfere, LostResponse
from tests.unit.replication.uploads.tree_world import FAST, SESSION, World, until

BIG = b"0123456789" * 500


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.settle()
    return world


def lost(world: World, before: Callable[[], object] = lambda: None) -> FailBefore | Interfere:
    """The request is lost before it reaches the store, and nobody knows."""

    def act() -> None:
        before()
        raise OutcomeUnknownError("lost, as planned")

    return Interfere(act)


def in_loop(action: Callable[[], object]) -> Interfere:
    """A program does something while the request is on its way."""
    return Interfere(lambda: trio.from_thread.run_sync(action))


async def test_a_lost_response_of_a_put_that_landed_is_settled_by_its_write_id(world: World) -> None:
    world.store.plan("put", LostResponse())
    world.write(b"a", b"x")
    await world.settle()
    world.assert_equal({b"a": b"x"})
    assert len([key for key in world.calls("put") if key == world.key(b"a")]) == 1
    assert world.journal.attempts(world.key(b"a")) == []
    world.store.assert_all_used()


async def test_a_put_that_never_arrived_is_sent_again(world: World) -> None:
    world.store.plan("put", lost(world))
    world.write(b"a", b"x")
    await world.settle()
    world.assert_equal({b"a": b"x"})
    assert [settled for _, settled in world.journal.attempts(world.key(b"a"))] == [True]
    assert world.kept_aside() == []
    world.store.assert_all_used()


async def test_a_lost_mode_change_is_told_from_the_bytes_that_did_not_change(world: World) -> None:
    world.write(b"a", BIG)
    await world.settle()
    world.store.plan("copy", lost(world), LostResponse())
    world.change_mode(b"a", 0o600)
    await world.settle()
    world.assert_equal({b"a": BIG})
    world.store.assert_all_used()


async def test_lost_responses_of_append_delete_and_parts_are_settled(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(b"log", BIG)
    world.write(b"gone", b"x")
    await world.settle()
    world.store.plan("append", LostResponse())
    world.store.plan("delete", LostResponse())
    world.store.plan("put_parts", LostResponse())
    world.append(b"log", b"tail")
    world.unlink(b"gone")
    world.write(b"large", b"L" * (FAST.part_bytes + 1))
    await world.settle()
    world.assert_equal({b"log": BIG + b"tail", b"large": b"L" * (FAST.part_bytes + 1)})
    world.store.assert_all_used()


async def test_a_delete_that_never_arrived_is_sent_again(world: World) -> None:
    world.write(b"a", b"x")
    await world.settle()
    world.store.plan("delete", lost(world))
    world.unlink(b"a")
    await world.settle()
    world.assert_equal({})


@pytest.mark.parametrize(
    "error", [ConcurrentRequestError("409"), ThrottledError("503"), UnavailableError("no answer")]
)
async def test_passing_errors_are_tried_again(world: World, error: Exception) -> None:
    world.store.plan("put", FailBefore(error), FailBefore(error))  # type: ignore[arg-type]
    world.write(b"a", b"x")
    await world.settle()
    world.assert_equal({b"a": b"x"})
    world.store.assert_all_used()


async def test_a_412_after_a_repeated_request_counts_as_landed(world: World) -> None:
    def applied_by_a_proxy() -> None:
        (write_id,) = [write_id for write_id, _ in world.journal.attempts(key)]
        status = world.status(b"a")
        attributes = FileAttributes(status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
        user = object_metadata.encode(attributes, Provenance(_sha(b"x"), write_id, 1, "l"))
        world.memory.put(key, b"x", condition=IfAbsent(), metadata=ObjectMetadata(user))

    key = world.key(b"a")
    world.write(b"a", b"x")
    world.store.plan("put", Interfere(applied_by_a_proxy))
    await world.settle()
    world.assert_equal({b"a": b"x"})
    assert world.kept_aside() == []


async def test_another_writers_object_is_kept_aside_before_ours_takes_the_key(world: World) -> None:
    world.put_foreign(b"a", b"theirs")
    world.write(b"a", b"ours")
    await world.settle()
    world.assert_equal({b"a": b"ours"})
    assert world.kept_aside() == [b"theirs"]
    (conflict,) = world.journal.conflicts()
    assert (conflict.path, conflict.holder) == ("a", "unknown")
    assert world.events("session.conflict.kept")[0]["key"] == conflict.key


async def test_another_writer_between_two_of_our_puts_is_kept_aside(world: World) -> None:
    world.write(b"a", b"one")
    await world.settle()
    world.put_foreign(b"a", b"theirs")
    world.write(b"a", b"two")
    await world.settle()
    world.assert_equal({b"a": b"two"})
    assert world.kept_aside() == [b"theirs"]


async def test_a_lost_response_of_keeping_aside_loses_nothing(world: World) -> None:
    world.put_foreign(b"a", b"theirs")
    world.store.plan("copy", lost(world), LostResponse())
    world.write(b"a", b"ours")
    await world.settle()
    world.assert_equal({b"a": b"ours"})
    assert world.kept_aside() == [b"theirs"]
    assert len(world.journal.conflicts()) == 1


async def test_an_object_with_the_same_bytes_is_no_conflict(world: World) -> None:
    user = object_metadata.encode(FileAttributes(0o100644, 0, 0, 5), Provenance(_sha(b"x"), "w" * 32, 1, "l"))
    world.memory.put(world.key(b"a"), b"x", condition=IfAbsent(), metadata=ObjectMetadata(user))
    world.write(b"a", b"x")
    await world.settle()
    world.assert_equal({b"a": b"x"})
    assert world.journal.conflicts() == []


async def test_an_object_that_somebody_removed_is_put_again(world: World) -> None:
    world.write(b"a", b"one")
    await world.settle()
    world.memory.delete(world.key(b"a"), condition=Unconditional())
    world.write(b"a", b"two")
    await world.settle()
    world.assert_equal({b"a": b"two"})


async def test_an_object_that_somebody_rewrote_is_not_deleted(world: World) -> None:
    world.write(b"a", b"ours")
    await world.settle()
    world.put_foreign(b"a", b"theirs")
    world.unlink(b"a")
    await world.settle()
    assert world.body(world.key(b"a")) == b"theirs"
    assert world.events("session.conflict.kept")[0]["key"] == world.key(b"a")


async def test_a_file_deleted_while_its_first_put_is_in_flight_stays_deleted(world: World) -> None:
    world.store.plan("put", Delay(0.2))
    world.write(b"a", b"x")
    async with world.running():
        await until(lambda: world.key(b"a") in world.calls("put"))
        world.unlink(b"a")
        assert await world.uploader.drain(5) == 0
    world.assert_equal({})
    assert world.key(b"a") in world.calls("put")


async def test_a_put_that_arrives_late_after_the_file_was_deleted_is_removed(world: World) -> None:
    key = world.key(b"a")
    sent: list[ObjectMetadata] = []
    inner_put = world.memory.put

    def remember() -> None:
        status = world.status(b"a")
        (write_id,) = [write_id for write_id, _ in world.journal.attempts(key)]
        attributes = FileAttributes(status.st_mode, 0, 0, status.st_mtime_ns)
        sent.append(
            ObjectMetadata(object_metadata.encode(attributes, Provenance(_sha(b"x"), write_id, 1, "l")))
        )

    world.store.plan("put", lost(world, remember))
    world.store.plan("head", in_loop(lambda: world.unlink(b"a")))
    world.write(b"a", b"x")
    await world.settle()
    assert key not in world.bucket()
    inner_put(key, b"x", condition=IfAbsent(), metadata=sent[0])
    world.uploader._attempts._late = [(0.0, key)]
    async with world.running():
        await until(lambda: key not in world.bucket())
        assert await world.uploader.drain(5) == 0
    world.assert_equal({})


async def test_a_late_put_under_a_file_that_lives_is_put_right_without_a_conflict(world: World) -> None:
    key = world.key(b"a")
    late: list[ObjectMetadata] = []

    def remember() -> None:
        (write_id,) = [write_id for write_id, _ in world.journal.attempts(key)]
        late.append(ObjectMetadata({"sessionfs-write": write_id, "sessionfs-sha256": _sha(b"old")}))

    world.store.plan("put", lost(world, remember))
    world.store.plan("head", in_loop(lambda: world.write(b"a", b"new")))
    world.store.plan(
        "put", Interfere(lambda: world.memory.put(key, b"old", condition=IfAbsent(), metadata=late[0]))
    )
    world.write(b"a", b"old")
    await world.settle()
    world.assert_equal({b"a": b"new"})
    assert world.kept_aside() == []


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_process_that_died_between_put_and_confirm_is_taken_up(world: World, arrived: bool) -> None:
    """The put was sent; nothing after it was written down."""
    key, write_id = world.key(b"a"), "f" * 32
    world.write(b"a", b"x")
    world.journal.begin_attempt(write_id, key)
    if arrived:
        status = world.status(b"a")
        attributes = FileAttributes(status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
        user = object_metadata.encode(attributes, Provenance(_sha(b"x"), write_id, 1, "l"))
        world.memory.put(key, b"x", condition=IfAbsent(), metadata=ObjectMetadata(user))
    world.start()
    await world.settle()
    world.assert_equal({b"a": b"x"})
    assert world.stat(b"a").metadata.user["sessionfs-write"] == write_id or not arrived  # type: ignore[union-attr]
    assert world.kept_aside() == []


async def test_a_dead_processs_put_of_a_file_that_is_gone_is_removed(world: World) -> None:
    key, write_id = world.key(b"a"), "f" * 32
    world.journal.begin_attempt(write_id, key)
    world.memory.put(key, b"x", condition=IfAbsent(), metadata=ObjectMetadata({"sessionfs-write": write_id}))
    world.start()
    await world.settle()
    world.assert_equal({})


async def test_an_outage_is_one_event_and_needs_no_hand(world: World) -> None:
    world.store.plan("put", *[FailBefore(UnavailableError("no answer"))] * 12)
    for number in range(10):
        world.write(b"f%d" % number, b"x")
    async with world.running():
        await trio.sleep(0.1)
        assert await world.uploader.drain(20) == 0
    world.assert_equal({b"f%d" % number: b"x" for number in range(10)})
    assert len(world.events("session.storage.degraded")) == 1
    assert len(world.events("session.storage.recovered")) == 1
    assert world.uploader.degraded == ""


async def test_a_store_that_is_away_is_asked_by_one_request_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.settle()
    world.store.plan("put", *[FailBefore(UnavailableError("no answer"))] * 8)
    for number in range(50):
        world.write(b"f%d" % number, b"x")
    async with world.running():
        await until(lambda: world.uploader.degraded != "" and not world.uploader.in_flight)
        seen: list[int] = []

        def is_back() -> bool:
            if world.uploader.degraded:
                seen.append(len(world.uploader.in_flight))
            return not world.uploader.degraded

        await until(is_back)
        assert max(seen) <= 1
        assert await world.uploader.drain(20) == 0


async def test_refused_access_is_degraded_until_it_is_granted(world: World) -> None:
    world.store.plan("put", FailBefore(AccessError("403")), FailBefore(AccessError("403")))
    world.write(b"a", b"x")
    await world.settle()
    world.assert_equal({b"a": b"x"})
    (degraded,) = world.events("session.storage.degraded")
    assert degraded["reason"] == "403"


async def test_a_flush_during_an_outage_says_so(world: World) -> None:
    world.store.plan("put", *[FailBefore(AccessError("the secret access key does not fit"))])
    world.write(b"a", b"x")
    async with world.running():
        with pytest.raises(UnavailableError, match="secret access key"):
            await world.uploader.flush([world.key(b"a")])


async def test_a_request_that_can_never_succeed_is_stuck_with_its_reason(world: World) -> None:
    world.store.plan("put", FailBefore(InvalidRequestError("too much metadata")))
    world.write(b"a", b"x")
    async with world.running():
        assert await world.uploader.drain(5) == 1
    row = world.journal.work(world.key(b"a"))
    assert row is not None
    assert (row.state, row.reason) == ("stuck", "too much metadata")
    world.journal.release_work()
    await world.settle()
    world.assert_equal({b"a": b"x"})


async def test_a_copy_whose_source_moved_sends_the_body(world: World) -> None:
    world.write(b"a", BIG)
    await world.settle()
    world.put_foreign(b"a", b"theirs")
    world.link(b"a", b"b")
    await world.settle()
    assert world.body(world.key(b"b")) == BIG


async def test_bytes_that_are_nowhere_are_reported_and_their_rows_stay(world: World) -> None:
    world.write(b"a", BIG)
    await world.settle()
    world.evict(b"a")
    world.memory.delete(world.key(b"a"), condition=Unconditional())
    world.rename(b"a", b"b")
    async with world.running():
        await world.uploader.drain(1)
    row = world.journal.work(world.key(b"b"))
    assert row is not None
    assert row.state == "stuck"
    assert "neither on this disk nor in the bucket" in row.reason


async def test_the_condition_of_a_put_never_misses(world: World) -> None:
    """The store is asked for exactly what the journal knows."""
    world.write(b"a", b"one")
    await world.settle()
    seen: list[object] = []
    put = world.memory.put

    def record(key: str, body: bytes, *, condition: object, metadata: ObjectMetadata) -> object:
        seen.append(condition)
        return put(key, body, condition=condition, metadata=metadata)  # type: ignore[arg-type]

    world.memory.put = record  # type: ignore[method-assign, assignment]
    token = world.stat(b"a").token
    world.write(b"a", b"two")
    world.write(b"new", b"x")
    await world.settle()
    assert IfMatch(token) in seen
    assert IfAbsent() in seen
    assert Unconditional() not in seen


async def test_a_precondition_that_fails_without_a_change_is_tried_again(world: World) -> None:
    world.store.plan("put", FailBefore(PreconditionFailedError("412")))
    world.write(b"a", b"x")
    await world.settle()
    world.assert_equal({b"a": b"x"})
    assert world.journal.work(world.key(b"a")) is None
    assert SESSION in {row.id for row in world.journal.sessions()}


def _sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
