"""Faults that the search over interleavings found (``tests/properties/test_interleavings.py``), each as the shortest sequence that showed it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from sessionfs.formats import content_alias, object_metadata
from sessionfs.formats.content_alias import ContentAlias
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.model.errors import OwnershipLostError, SessionFSError
from sessionfs.replication.commit.databases import DatabaseCut
from sessionfs.replication.hydrator import Hydrator
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.trio_store import write_id_of
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.lease_page import LeasePage
from tests.unit.replication.commit.commit_world import CommitWorld, read_generation
from tests.unit.replication.commit.control_world import (
    ControlWorld,
    claim_session,
    commit_session,
    other_host,
)
from tests.unit.replication.ownership.machines import BOOT_ID, Machine
from tests.unit.replication.ownership.machines import SESSION as OWNED
from tests.unit.replication.uploads.tree_world import SESSION, until


async def test_a_file_that_becomes_owed_while_databases_are_pinned_is_frozen_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CommitWorld(tmp_path)
    world.write(b"early", b"1")
    databases = world.committer._cuts._databases
    pin = databases.pin

    async def slow_pin(session: str, paths: Iterable[bytes], owed: set[bytes]) -> dict[bytes, DatabaseCut]:
        if not world.freezer.barriers:
            world.write(b"late", b"at the cut")
        return await pin(session, paths, owed)  # type: ignore[arg-type]

    monkeypatch.setattr(databases, "pin", slow_pin)
    world.freezer.after_barrier = lambda: world.append(b"late", b", and after it")
    await world.commit()
    assert read_generation(world.memory) == {b"early": b"1", b"late": b"at the cut"}


async def test_a_generation_outlives_a_late_append_of_the_owner_before(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path)
    world.write(b"a", b"named" * 100)
    await world.commit()
    before = world.tree()
    # His journal knew that the object begins with what is named: he copied nothing.
    world.put_foreign(b"a", b"named" * 100 + b"appended by a stale owner")
    world.write(b"a", b"written anew by the owner")
    await world.settle()
    assert world.body(world.key(b"a")) == b"written anew by the owner"
    assert read_generation(world.memory, 1) == before


async def test_the_listing_of_a_commit_keeps_what_a_late_append_hides(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path)
    world.write(b"a", b"named" * 100)
    await world.commit()
    named = hashlib.sha256(b"named" * 100).hexdigest()
    world.put_foreign(b"a", b"named" * 100 + b"appended by a stale owner")
    world.write(b"b", b"something else")
    await world.commit()
    world.memory.head(keys.alias_key(SESSION, named))


async def test_bytes_that_are_only_the_beginning_of_a_late_append_are_put_back(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path)
    world.write(b"a", b"named" * 100)
    await world.commit()
    before = world.tree()
    world.evict(b"a")
    world.put_foreign(b"a", b"named" * 100 + b"appended by a stale owner")
    world.write(b"b", b"something else")
    await world.commit()
    assert world.body(world.key(b"a")) == b"named" * 100
    assert read_generation(world.memory) == {**before, b"b": b"something else"}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_a_claim_by_force_does_not_believe_what_this_host_thinks_it_owns(
    tmp_path: Path, store: MemoryStore
) -> None:
    a, b = Machine(tmp_path / "a", "a", store), Machine(tmp_path / "b", "b", store, hours_ahead=1)
    a.make()
    await a.own()
    b.hydrate()
    await b.own(force=True)
    claim = await a.owner.claim(OWNED, force=True)
    assert (claim.epoch, claim.how, claim.is_news) == (3, "forced", True)
    a.close()
    b.close()


async def test_who_was_refused_at_the_end_of_the_lease_is_told_when_it_is_over(
    tmp_path: Path, store: MemoryStore
) -> None:
    a = Machine(tmp_path / "a", "a", store)
    told: list[str] = []
    a.owner = Ownership(
        a.journal, a.owner._claiming.acquisition._store, a.settings, a.clock, page=LeasePage.open(a.layout.lease, BOOT_ID),
        raise_event=lambda _name, _fields: None, tell=a.told.append, host="a", on_permitted=lambda: told.append("again"),
    )  # fmt: skip
    a.make()
    await a.own()
    await a.owner.pulse()
    await a.owner.settle()
    for seconds in (40.0, 70.0):
        # In the reserve, and after the deadline.
        told.clear()
        a.pass_time(seconds)
        assert not a.owner.may_change(OWNED)
        await a.owner.pulse()
        await a.owner.settle()
        assert a.owner.may_change(OWNED)
        assert told == ["again"]
    a.close()


async def test_an_object_of_a_later_owner_found_while_catching_up_ends_the_claim(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = ControlWorld(tmp_path / "a", store)
    a.write(b"f", b"of a")

    async def find(_session: str, _claim: Claim) -> None:
        raise OwnershipLostError("an object of epoch 7")

    async with a.at_work() as control:
        await control.claim(SESSION)
        claim = await a.ownership.claim(SESSION)
        monkeypatch.setattr(a.hydrator, "catch_up", find)
        a.journal.set_meta(f"behind:{SESSION}", "1")
        with pytest.raises(OwnershipLostError):
            await control.settle(SESSION, claim)
    assert not a.ownership.owns(SESSION)


async def test_a_claim_whose_news_could_not_be_taken_over_is_settled_although_nobody_asks_again(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = ControlWorld(tmp_path / "a", store)
    a.write(b"f", b"of a")
    tries: list[int] = []
    take_over = a.control._take_over

    async def fail_once(session: str, claim: Claim) -> object:
        tries.append(claim.epoch)
        if len(tries) == 1:
            raise SessionFSError("not now")
        return await take_over(SESSION, claim)

    monkeypatch.setattr(a.control, "_take_over", fail_once)
    async with a.at_work(chores=True) as control:
        with pytest.raises(SessionFSError):
            await control.claim(SESSION)
        with trio.fail_after(5.0):
            await until(lambda: a.key(b"f") in a.bucket())
    assert len(tries) > 1


async def test_who_was_refused_while_a_claim_by_force_read_the_record_again_is_told_when_it_is_ours(
    tmp_path: Path, store: MemoryStore
) -> None:
    a = Machine(tmp_path / "a", "a", store)
    told: list[str] = []
    a.owner = Ownership(
        a.journal, a.owner._claiming.acquisition._store, a.settings, a.clock, page=LeasePage.open(a.layout.lease, BOOT_ID),
        raise_event=lambda _name, _fields: None, tell=a.told.append, host="a",
        on_permitted=lambda: told.append("again" if a.owner.may_change(OWNED) else "too early"),
    )  # fmt: skip
    a.make()
    await a.own()
    told.clear()
    await a.owner.claim(OWNED, force=True)
    assert told == ["again"]
    a.close()


async def compare(world: CommitWorld) -> None:
    """Look at the bucket, as at the first use of a session."""
    hydrator = Hydrator(
        world.journal, world.trio_store, world.layout, world.settings, world.clock, Exclusions(()),
        raise_event=world.journal.add_event,
    )  # fmt: skip
    await hydrator.refresh_session(SESSION)


async def test_an_old_put_of_ours_that_may_still_arrive_does_not_hide_what_others_wrote(
    tmp_path: Path, store: MemoryStore
) -> None:
    a = CommitWorld(tmp_path, store=store)
    a.write(b"f", b"of a")
    await a.commit()
    a.evict(b"f")
    key = a.key(b"f")
    a.journal.begin_attempt("late", key)
    a.journal.settle_attempt("late")
    a.put_of_epoch(b"f", b"of another owner", 1)
    await compare(a)
    known = a.journal.object(key)
    assert known is not None
    assert known.token == store.head(key).token


async def test_an_old_put_of_ours_that_arrived_late_is_no_news(tmp_path: Path, store: MemoryStore) -> None:
    a = CommitWorld(tmp_path, store=store)
    a.write(b"f", b"of a")
    await a.commit()
    a.evict(b"f")
    key = a.key(b"f")
    before = a.journal.object(key)
    a.put_of_epoch(b"f", b"older", 1)
    write_id = write_id_of(store.head(key))
    a.journal.begin_attempt(write_id, key)
    a.journal.settle_attempt(write_id)
    await compare(a)
    assert a.journal.object(key) == before


async def test_bytes_kept_as_the_beginning_of_more_are_put_back(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path)
    world.write(b"a", b"named" * 100)
    await world.commit()
    before = world.tree()
    world.evict(b"a")
    # The owner before appended, then moved the file away: what was named he kept as the beginning of what he had.
    whole = b"named" * 100 + b"appended by a stale owner"
    of, named = (hashlib.sha256(body).hexdigest() for body in (whole, b"named" * 100))
    provenance = object_metadata.encode(FileAttributes(0o100644, 0, 0, 0), Provenance(of, "theirs", 1, "l"))
    world.memory.put(
        keys.content_key(SESSION, of), whole, condition=Unconditional(), metadata=ObjectMetadata(provenance)
    )
    world.memory.put(
        keys.alias_key(SESSION, named), content_alias.encode(ContentAlias(of, 500)), condition=Unconditional(),
        metadata=ObjectMetadata(),
    )  # fmt: skip
    world.memory.delete(world.key(b"a"), condition=Unconditional())
    world.write(b"b", b"something else")
    await world.commit()
    assert read_generation(world.memory) == {**before, b"b": b"something else"}


async def test_bytes_that_are_only_in_a_conflicts_copy_are_put_back(tmp_path: Path) -> None:
    world = CommitWorld(tmp_path)
    world.write(b"a", b"known by its sum")
    await world.settle()
    world.evict(b"a")
    # The owner before moved it, after this host had taken over: under its new name it is nothing of ours.
    world.memory.delete(world.key(b"a"), condition=Unconditional())
    world.put_of_epoch(b"m", b"known by its sum", 0)
    await world.commit()
    assert world.kept_aside() == [b"known by its sum"]
    with suppress(SessionFSError):
        await world.commit()
    assert read_generation(world.memory) == {b"a": b"known by its sum"}


async def test_a_chain_that_a_later_owner_fenced_is_no_base(tmp_path: Path, store: MemoryStore) -> None:
    a = ControlWorld(tmp_path / "a", store)
    a.write(b"f", b"of a")
    await commit_session(a)
    before = a.row()
    b = await other_host(tmp_path / "b", store)
    await claim_session(b, force=True)
    async with a.at_work():
        claim = replace(await a.ownership.claim(SESSION), manifest=None)
        with pytest.raises(OwnershipLostError, match="fenced by another host"):
            await a.hydrator.catch_up(SESSION, claim)
    assert a.row().manifest_token == before.manifest_token


async def test_a_restart_does_not_forget_that_old_bytes_are_still_on_this_disk(
    tmp_path: Path, store: MemoryStore
) -> None:
    a = ControlWorld(tmp_path / "a", store)
    a.write(b"f", b"of a")
    await commit_session(a)
    async with a.at_work() as control:
        await control.release(SESSION)
    b = await other_host(tmp_path / "b", store)
    await claim_session(b)
    b.write(b"f", b"of b")
    await commit_session(b)
    async with b.at_work() as control:
        await control.release(SESSION)
    async with a.at_work() as control:
        changes = await control.claim(SESSION)
        assert changes.changes is not None
        assert changes.changes.files == [a.number(b"f")]
        assert not control.is_open(SESSION)
    a.start()
    async with a.at_work() as control:
        claimed = await control.claim(SESSION)
        assert claimed.changes is not None
        assert claimed.changes.files == [a.number(b"f")]
        assert not control.is_open(SESSION)
        await a.drop(claimed.changes)
        assert control.is_open(SESSION)


async def test_a_commit_that_waited_for_another_looks_again_at_what_it_commits_on(
    tmp_path: Path, store: MemoryStore
) -> None:
    a = ControlWorld(tmp_path / "a", store)
    a.write(b"f", b"of a")
    await commit_session(a)
    a.write(b"g", b"more")
    async with a.at_work() as control:
        lock = control._committing.setdefault(SESSION, trio.Lock())
        await lock.acquire()
        problems: list[str] = []

        async def commit() -> None:
            try:
                await control.commit(SESSION, "test")
            except SessionFSError as problem:
                problems.append(problem.message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await until(lambda: lock.statistics().tasks_waiting == 1)
            # Lost and claimed again meanwhile: something old is on this disk.
            a.put_of_epoch(b"f", b"of another owner", 1)
            a.journal.set_meta(f"behind:{SESSION}", "1")
            lock.release()
    assert problems == [
        f"session {SESSION} cannot be committed: f was changed by another host, and a program still has the old file open"
    ]
    assert a.row().generation == 1
