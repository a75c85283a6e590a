"""The writes of a commit: their order, what they say, and what becomes of a commit whose writes fail or arrive late."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from sessionfs.formats import commit_marker
from sessionfs.formats import manifest as manifests
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import (
    AccessError,
    ConcurrentRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    OwnershipLostError,
    PreconditionFailedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.stores.base import IfAbsent, ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, Interfere, LostResponse, Pass
from sessionfs.working_copy.layout import ROOT_NUMBER
from tests.unit.replication.commit.commit_world import (
    SLOW,
    CommitWorld,
    LateRequests,
    Owner,
    Tree,
    live_objects,
    read_generation,
)
from tests.unit.replication.uploads.tree_world import SESSION, until

MANIFEST = keys.manifest_key(SESSION)
MARKER = keys.commit_marker_key(SESSION)
PREFIX = keys.session_prefix(SESSION)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def world(tmp_path: Path, owner: Owner) -> CommitWorld:
    """A file that is in the bucket, and no generation."""
    made = CommitWorld(tmp_path, authority=owner)
    made.write(b"f", b"abc")
    await made.settle()
    return made


def results(world: CommitWorld) -> list[bool]:
    return [bool(fields["ok"]) for fields in world.events("session.snapshot.result")]


def lost_on_the_way() -> Interfere:
    """The request does not reach the store, and nobody knows."""

    def act() -> None:
        raise OutcomeUnknownError("lost, as planned")

    return Interfere(act)


def put_manifest(world: CommitWorld, manifest: Manifest) -> None:
    raw, _ = manifests.encode(manifest)
    world.memory.put(MANIFEST, raw, condition=Unconditional(), metadata=ObjectMetadata())


# --- order and contents


async def test_the_writes_come_in_their_order_and_nothing_else_is_asked(world: CommitWorld) -> None:
    world.store.calls.clear()
    report = await world.commit("unmount")
    assert world.store.calls == [
        ("list_page", PREFIX),
        ("put", keys.generation_key(SESSION, 1)),
        ("put", MANIFEST),
        ("put", MARKER),
    ]
    assert report.requests == 4


async def test_all_writes_tell_of_the_same_generation(world: CommitWorld) -> None:
    await world.commit("unmount")
    raw = world.body(MANIFEST)
    assert world.body(keys.generation_key(SESSION, 1)) == raw
    marker = commit_marker.decode(world.body(MARKER), MARKER)
    assert marker.manifest_sha256 == hashlib.sha256(raw).hexdigest()
    assert marker.manifest_key == keys.generation_key(SESSION, 1)
    assert (marker.generation, marker.objects, marker.bytes, marker.trigger) == (1, 2, 3, "unmount")
    row = world.row()
    assert (row.generation, row.manifest_token, row.changed) == (1, world.memory.head(MANIFEST).token, False)
    assert row.committed_at == world.manifest().created_at
    assert results(world) == [True]


async def test_the_manifest_says_who_committed_and_what_came_before(world: CommitWorld, owner: Owner) -> None:
    world.journal.update_session(SESSION, holder="someone")
    await world.commit()
    owner.current = 4
    world.write(b"g", b"12345")
    await world.commit("timer")
    made = world.manifest()
    assert (made.generation, made.previous, made.epoch, made.holder) == (2, 1, 4, "someone")
    assert (made.trigger, made.recovery, made.removed) == ("timer", "live", False)


async def test_the_report_counts_what_was_sent_and_what_was_there(world: CommitWorld) -> None:
    first = await world.commit()
    assert (first.objects, first.objects_uploaded, first.objects_skipped, first.bytes_uploaded) == (
        2,
        2,
        0,
        3,
    )
    world.write(b"g", b"12345")
    world.append(b"f", b"defg")
    second = await world.commit()
    # Both files, and the directory that has a name more.
    assert (second.objects, second.objects_uploaded, second.objects_skipped) == (3, 3, 0)
    assert (second.bytes, second.bytes_uploaded) == (12, 12)
    world.write(b"g", b"54321")
    third = await world.commit()
    assert (third.objects_uploaded, third.objects_skipped, third.bytes_uploaded) == (1, 2, 5)
    marker = commit_marker.decode(world.body(MARKER), MARKER)
    assert (marker.objects_uploaded, marker.objects_skipped, marker.bytes_uploaded) == (1, 2, 5)


async def test_bytes_that_go_to_their_content_are_counted_too(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path, settings=SLOW)
    world.write(b"f", b"abc")
    await world.commit()
    world.write(b"f", b"before")
    world.freezer.after_barrier = lambda: world.write(b"f", b"after the cut")
    report = await world.commit()
    assert report.objects_uploaded == 2
    assert report.bytes_uploaded == len(b"before") + len(b"after the cut")


async def test_a_turn_is_committed_although_nothing_changed_and_decides_the_recovery(
    world: CommitWorld,
) -> None:
    await world.commit()
    turns = [await world.commit("turn", is_turn=True) for _ in range(2)]
    assert [(report.generation, report.turn) for report in turns] == [(2, 1), (3, 2)]
    assert world.manifest().recovery == "committed"
    world.write(b"f", b"between two turns")
    report = await world.commit("timer")
    assert (report.generation, report.turn) == (4, 2)
    assert world.manifest().recovery == "committed"


async def test_a_session_that_is_not_here_is_not_committed(world: CommitWorld) -> None:
    for session in ("unknown", "s1%g1"):
        if "%" in session:
            world.journal.add_session(session, 77, known=True, written=False)
            world.journal.update_session(session, tree_of=1)
        with pytest.raises(ObjectNotFoundError):
            await world.committer.commit(session, "command", is_turn=True)  # type: ignore[arg-type]
    assert world.calls("put") == [key for key in world.calls("put") if key.startswith(PREFIX)]


# --- numbers


async def test_taken_numbers_are_skipped(world: CommitWorld) -> None:
    for number in (1, 2):
        key = keys.generation_key(SESSION, number)
        world.memory.put(key, b"{}", condition=IfAbsent(), metadata=ObjectMetadata())
    assert (await world.commit()).generation == 3
    assert (world.manifest().generation, world.manifest().previous) == (3, 0)
    assert world.body(keys.generation_key(SESSION, 1)) == b"{}"
    assert read_generation(world.memory, 3) == world.tree()


async def test_a_number_whose_answer_was_lost_is_not_taken_twice(world: CommitWorld) -> None:
    world.store.plan("put", LostResponse(), LostResponse(), LostResponse())
    assert (await world.commit()).generation == 1
    assert world.row().manifest_token == world.memory.head(MANIFEST).token
    marker = commit_marker.decode(world.body(MARKER), MARKER)
    assert marker.generation == 1
    world.store.assert_all_used()


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_write_that_is_lost_on_the_way_is_sent_again(world: CommitWorld, step: int) -> None:
    world.store.plan("put", *([Pass()] * step), lost_on_the_way())
    assert (await world.commit()).generation == 1
    assert world.body(MANIFEST) == world.body(keys.generation_key(SESSION, 1))
    assert commit_marker.decode(world.body(MARKER), MARKER).generation == 1
    world.store.assert_all_used()


async def test_a_busy_store_is_asked_again(world: CommitWorld) -> None:
    busy = FailBefore(ConcurrentRequestError("busy"))
    world.store.plan("put", busy, Pass(), busy, Pass(), busy)
    assert (await world.commit()).generation == 1
    world.store.assert_all_used()


# --- failures


@pytest.mark.parametrize("step", [0, 1])
async def test_a_commit_that_stops_before_its_point_leaves_the_generation_before(
    world: CommitWorld, step: int
) -> None:
    await world.commit()
    before = world.tree()
    world.write(b"f", b"newer")
    await world.settle()
    world.store.plan("put", *([Pass()] * step), FailBefore(AccessError("no")))
    with pytest.raises(AccessError):
        await world.commit()
    assert world.manifest().generation == 1
    assert read_generation(world.memory) == before
    row = world.row()
    assert (row.generation, row.changed) == (1, True)
    assert results(world) == [True, False]
    assert (await world.commit()).generation == 2 + step
    assert read_generation(world.memory) == world.tree()


async def test_what_a_failed_commit_noted_is_still_copied_aside(world: CommitWorld) -> None:
    """It may arrive after all: what it names must outlive the next overwriting."""
    world.store.plan("put", FailBefore(AccessError("no")))
    with pytest.raises(AccessError):
        await world.commit()
    assert world.journal.is_named(world.key(b"f"))
    world.write(b"f", b"newer")
    await world.settle()
    assert list(world.kept_by_content().values()) == [b"abc"]


async def test_a_store_that_goes_away_while_it_is_uploaded_leaves_the_session_changed(
    world: CommitWorld,
) -> None:
    await world.commit()
    before = world.tree()
    world.write(b"f", b"newer")
    world.write(b"g", b"new")
    for method in ("put", "copy"):
        world.store.plan(method, *(FailBefore(UnavailableError("away")) for _ in range(100)))
    with pytest.raises(UnavailableError):
        await world.commit()
    assert world.row().changed
    assert world.manifest().generation == 1
    assert world.freezer.kept() == []
    assert world.journal.is_named(world.key(b"f"))
    assert world.journal.meta(f"commit_pending:{SESSION}") == ""
    world.store._planned.clear()
    assert (await world.commit()).generation == 2
    assert read_generation(world.memory) == world.tree()
    assert read_generation(world.memory, 1) == before


async def test_without_permission_nothing_is_published(world: CommitWorld, owner: Owner) -> None:
    def lapse() -> None:
        owner.is_permitted = False

    world.freezer.after_barrier = lapse
    with pytest.raises(UnavailableError, match="not confirmed"):
        await world.commit()
    assert world.calls("put") == [key for key in world.calls("put") if key.startswith(PREFIX)]
    assert world.row().changed
    assert owner.lost == []
    owner.is_permitted = True
    world.freezer.after_barrier = lambda: None
    assert (await world.commit()).generation == 1


async def test_a_marker_that_cannot_be_written_lags_until_the_next_commit(world: CommitWorld) -> None:
    world.store.plan("put", Pass(), Pass(), lost_on_the_way())
    world.store.plan("head", *(FailBefore(UnavailableError("away")) for _ in range(5)))
    assert (await world.commit()).generation == 1
    assert len(world.events("session.marker.lagging")) == 1
    assert not world.row().changed
    world.write(b"f", b"newer")
    await world.commit()
    assert commit_marker.decode(world.body(MARKER), MARKER).generation == 2


async def test_a_change_during_the_commit_leaves_the_session_changed(world: CommitWorld) -> None:
    world.freezer.after_barrier = lambda: world.write(b"f", b"later")
    assert (await world.commit()).generation == 1
    assert world.row().changed
    world.freezer.after_barrier = lambda: None
    assert (await world.commit()).generation == 2
    assert read_generation(world.memory) == world.tree()
    assert not world.row().changed


async def test_a_commit_that_died_leaves_the_session_changed(world: CommitWorld) -> None:
    seen: list[tuple[str, bool]] = []

    def look() -> None:
        seen.append((world.journal.meta(f"commit_pending:{SESSION}"), world.row().changed))

    world.store.plan("put", Interfere(lambda: trio.from_thread.run_sync(look)))
    await world.commit()
    # A process that died here would leave this behind.
    assert seen == [("1", False)]
    world.journal.set_meta(f"commit_pending:{SESSION}", "1")
    world.start()
    assert world.row().changed
    assert (await world.commit()).generation == 2
    world.start()
    assert not world.row().changed


# --- somebody else's manifest


@pytest.mark.parametrize("theirs", [b'{"format":9}', b"nonsense"])
async def test_a_manifest_that_this_host_did_not_leave_is_never_replaced(
    world: CommitWorld, owner: Owner, theirs: bytes
) -> None:
    await world.commit()
    marker = world.body(MARKER)
    world.memory.put(MANIFEST, theirs, condition=Unconditional(), metadata=ObjectMetadata())
    world.write(b"f", b"newer")
    for _ in range(2):
        with pytest.raises(OwnershipLostError):
            await world.commit()
    assert (world.body(MANIFEST), world.body(MARKER)) == (theirs, marker)
    assert world.row().changed
    assert len(owner.lost) == 2
    assert results(world) == [True, False, False]


async def test_a_manifest_where_there_should_be_none_is_never_replaced(
    world: CommitWorld, owner: Owner
) -> None:
    put_manifest(world, Manifest(SESSION, 7, trigger="theirs"))
    with pytest.raises(OwnershipLostError):
        await world.commit()
    assert world.manifest().trigger == "theirs"
    assert len(owner.lost) == 1
    with pytest.raises(SessionFSError):
        world.body(MARKER)


async def test_a_commit_that_loses_the_race_is_not_done_again_above_the_winner(
    world: CommitWorld, owner: Owner
) -> None:
    world.store.plan("put", Pass(), Interfere(lambda: put_manifest(world, Manifest(SESSION, 4))))
    with pytest.raises(OwnershipLostError):
        await world.commit()
    assert world.manifest().generation == 4
    assert [key for key in world.calls("put") if key == MANIFEST] == [MANIFEST]
    assert len(owner.lost) == 1


async def test_a_manifest_that_is_gone_ends_the_ownership(world: CommitWorld, owner: Owner) -> None:
    await world.commit()
    world.memory.delete(MANIFEST, condition=Unconditional())
    world.write(b"f", b"newer")
    with pytest.raises(OwnershipLostError):
        await world.commit()
    assert len(owner.lost) == 1


# --- a commit that was given up, and arrives late


@pytest.fixture
async def late(tmp_path: Path) -> tuple[CommitWorld, LateRequests, Tree]:
    """A commit whose manifest was not seen to arrive, however often it was sent."""
    store = MemoryStore()
    held = LateRequests(store, MANIFEST, 4)
    world = CommitWorld(tmp_path, store=store)
    world.write(b"f", b"X")
    world.write(b"log", b"one\n")
    cut = world.tree()
    with pytest.raises(OutcomeUnknownError):
        await world.commit()
    assert world.row().changed
    world.write(b"f", b"Y")
    world.append(b"log", b"two\n")
    await world.settle()
    assert live_objects(store)[b"f"] == b"Y"
    return world, held, cut


async def test_the_next_commit_goes_on_top_of_one_that_arrived_late(
    late: tuple[CommitWorld, LateRequests, Tree],
) -> None:
    world, held, cut = late
    held.arrive()
    assert read_generation(world.memory) == cut
    report = await world.commit()
    assert world.manifest().previous == 1
    assert report.generation > 1
    assert read_generation(world.memory) == world.tree()
    assert read_generation(world.memory, 1) == cut
    world.write(b"f", b"Z")
    await world.settle()
    assert read_generation(world.memory)[b"f"] == b"Y"
    assert not results(world)[0]
    assert results(world)[-1]


async def test_a_late_commit_that_arrives_behind_the_next_one_changes_nothing(
    late: tuple[CommitWorld, LateRequests, Tree],
) -> None:
    world, held, _ = late
    await world.commit()
    newest = world.body(MANIFEST)
    with pytest.raises(PreconditionFailedError):
        held.arrive()
    assert world.body(MANIFEST) == newest
    assert read_generation(world.memory) == world.tree()
    world.write(b"f", b"Z")
    assert (await world.commit()).generation > 1


async def test_a_second_commit_that_arrives_late_is_told_and_the_third_goes_on(
    late: tuple[CommitWorld, LateRequests, Tree],
) -> None:
    world, held, _ = late
    held._left = 4
    with pytest.raises(OutcomeUnknownError):
        await world.commit()
    second = world.manifest(2)
    held.arrive()
    write_ids = sorted(world.committer._chain._sent[SESSION])
    assert len(write_ids) == 2
    found = world.memory.head(MANIFEST).metadata
    assert found is not None
    (other,) = {*write_ids} - {found.user["sessionfs-write"]}

    def arrive() -> None:
        # Between the first try, which met the first, and the second.
        raw, _ = manifests.encode(second)
        metadata = ObjectMetadata({"sessionfs-write": other})
        world.memory.put(MANIFEST, raw, condition=Unconditional(), metadata=metadata)

    world.store.plan("put", Pass(), Pass(), Pass(), Pass(), Interfere(arrive))
    with pytest.raises(UnavailableError, match="arrived late"):
        await world.commit()
    assert (world.row().generation, world.row().changed) == (2, True)
    report = await world.commit()
    assert world.manifest().previous == 2
    assert read_generation(world.memory, report.generation) == world.tree()


# --- what it costs


@pytest.fixture
async def large(tmp_path: Path) -> CommitWorld:
    """A session of 1,007 objects, committed."""
    made = CommitWorld(tmp_path)
    made.make_directory(b"d")
    for number in range(1005):
        made.write(b"d/%d" % number, b"%d" % number)
    await made.settle(60)
    assert (await made.commit()).objects == 1007
    made.store.calls.clear()
    return made


async def test_a_turn_in_a_thousand_objects_costs_few_requests(large: CommitWorld) -> None:
    for number in range(10):
        large.append(b"d/%d" % number, b" and more")
    report = await large.commit()
    # Ten files, two pages, three writes: a write in place touches no directory.
    assert len(large.store.calls) == report.requests == 10 + 2 + 3
    assert (report.objects, report.objects_uploaded) == (1007, 10)
    assert read_generation(large.memory) == large.tree()
    # What a generation names is copied aside when it is rewritten.
    large.store.calls.clear()
    for number in range(10):
        large.write(b"d/%d" % (100 + number), b"rewritten")
    report = await large.commit()
    assert len(large.store.calls) == report.requests == 10 + 10 + 2 + 3
    # New files touch their directory.
    large.store.calls.clear()
    for number in range(10):
        large.write(b"d/new-%d" % number, b"new")
    report = await large.commit()
    assert len(large.store.calls) == report.requests == 10 + 1 + 2 + 3
    assert [key for key in large.calls("put") if key.endswith("/")] == [large.key(b"d", is_directory=True)]


# --- the ownership changes while it is committed


async def test_a_session_that_is_lost_after_the_cut_is_not_published(
    world: CommitWorld, owner: Owner
) -> None:
    def lose() -> None:
        owner.current = 0

    world.freezer.after_barrier = lose
    with pytest.raises(OwnershipLostError, match="while it was committed"):
        await world.commit()
    assert world.calls("put") == [key for key in world.calls("put") if key.startswith(PREFIX)]
    assert world.row().changed


async def test_a_session_that_is_claimed_anew_after_the_cut_is_cut_anew(
    world: CommitWorld, owner: Owner
) -> None:
    """Whoever owned it in between may have committed: the cut knows nothing of that."""

    def claim() -> None:
        owner.current += 2

    world.freezer.after_barrier = claim
    with pytest.raises(UnavailableError, match="claimed anew"):
        await world.commit()
    assert owner.lost == []
    with pytest.raises(ObjectNotFoundError):
        world.memory.head(MANIFEST)
    world.freezer.after_barrier = lambda: None
    assert (await world.commit()).generation == 1
    assert world.manifest().epoch == owner.current


async def test_nothing_is_cut_while_ownership_is_only_presumed(world: CommitWorld, owner: Owner) -> None:
    owner.current = 0
    with pytest.raises(UnavailableError, match="does not say who owns"):
        await world.commit()
    assert world.freezer.barriers == 0
    assert world.row().changed
    assert owner.lost == []


async def test_a_removal_is_not_published_when_the_session_is_lost_meanwhile(
    world: CommitWorld, owner: Owner
) -> None:
    await world.commit()
    root = world.number(b"")
    world.unlink(b"f")
    os.rmdir(world.path(b""))
    world.tell(Operation.RMDIR, number=root, parent=ROOT_NUMBER, name=SESSION.encode())

    def lose() -> None:
        owner.current = 0

    world.store.plan("delete", Interfere(lose))
    with pytest.raises(OwnershipLostError):
        await world.commit()
    assert not world.manifest().removed
    assert world.row().changed


async def test_whoever_waits_for_a_session_that_is_lost_is_told_at_once(
    world: CommitWorld, owner: Owner
) -> None:
    world.write(b"f", b"newer")
    owner.is_permitted = False

    def lose() -> None:
        owner.current = 0
        world.uploader.give_up(SESSION)

    async with world.running(), trio.open_nursery() as nursery:
        nursery.start_soon(_lose_later, world, lose)
        with trio.fail_after(30), pytest.raises(OwnershipLostError):
            await world.committer.commit(SESSION, "test")


async def _lose_later(world: CommitWorld, lose: Callable[[], None]) -> None:
    await until(lambda: world.uploader._flushes)
    lose()
