"""Faults that the search over interleavings found (``tests/properties/test_interleavings.py``), each as the shortest sequence that showed it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from sessionfs.model import keys
from sessionfs.model.errors import OwnershipLostError, SessionFSError
from sessionfs.replication.commit.databases import DatabaseCut
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.lease_page import LeasePage
from tests.unit.replication.commit.commit_world import CommitWorld, read_generation
from tests.unit.replication.commit.control_world import ControlWorld
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
    assert not told
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
        a.control._behind.add(SESSION)
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
