"""Taking over: only what stood still for a whole lease of the taker's own clock, or by force."""

from __future__ import annotations

import pytest

from sessionfs.formats.ownership import BeatRecord, OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import SessionAlreadyOwnedError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.stores.base import Unconditional
from sessionfs.testing.faulty_store import FailBefore, Interfere, Pass

from .machines import LEASE_SECONDS, SESSION, Machine


async def refused(machine: Machine) -> str:
    with pytest.raises(SessionAlreadyOwnedError) as refusal:
        await machine.owner.claim(SESSION)
    return str(refusal.value)


@pytest.fixture
async def dead(a: Machine) -> Machine:
    """The owner has died."""
    a.make()
    await a.own()
    assert a.commit()
    return a


async def test_a_beat_that_stood_still_for_a_whole_lease_is_taken_over(dead: Machine, b: Machine) -> None:
    b.hydrate()
    assert "60 s" in await refused(b)
    b.pass_time(LEASE_SECONDS - 1)
    assert "for 1 s" in await refused(b)
    b.pass_time(1)
    claim = await b.owner.claim(SESSION)
    assert (claim.epoch, claim.how, claim.is_unclean, claim.is_news) == (2, "taken", True, True)
    acquired = {"session_id": "s", "epoch": 2, "how": "taken", "holder": "host-a"}
    assert b.named("session.owner.acquired") == [acquired]


async def test_a_stale_owner_finds_its_chain_fenced(dead: Machine, b: Machine) -> None:
    b.hydrate()
    await refused(b)
    b.pass_time(LEASE_SECONDS)
    await b.own()
    assert not dead.commit()
    assert b.commit()


async def test_a_beat_that_moved_starts_the_wait_anew(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    b.hydrate()
    await refused(b)
    b.pass_time(LEASE_SECONDS - 1)
    a.pass_time(LEASE_SECONDS / 6)
    await a.owner.pulse()
    b.pass_time(1)
    assert "60 s" in await refused(b)
    b.pass_time(LEASE_SECONDS - 1)
    await refused(b)
    b.pass_time(1)
    assert (await b.owner.claim(SESSION)).how == "taken"


async def test_a_wait_counts_from_the_first_look_whatever_lies_between(dead: Machine, b: Machine) -> None:
    b.hydrate()
    await refused(b)
    b.pass_time(LEASE_SECONDS * 10)
    assert (await b.owner.claim(SESSION)).how == "taken"


async def test_time_before_the_first_look_counts_for_nothing(dead: Machine, b: Machine) -> None:
    b.hydrate()
    b.pass_time(LEASE_SECONDS * 10)
    assert "60 s" in await refused(b)


async def test_a_look_that_takes_long_does_not_shorten_the_wait(dead: Machine, b: Machine) -> None:
    """The first look ends late, the last begins early."""
    b.hydrate()
    b.store.plan("get", Pass(), Interfere(lambda: b.pass_time(20)))
    await refused(b)
    b.pass_time(LEASE_SECONDS - 10)
    b.store.plan("get", Pass(), Interfere(lambda: b.pass_time(20)))
    assert "for 10 s" in await refused(b)


async def test_a_taker_that_starts_again_begins_anew(dead: Machine, b: Machine) -> None:
    b.hydrate()
    await refused(b)
    b.pass_time(LEASE_SECONDS)
    b.start()
    assert "60 s" in await refused(b)


async def test_a_missing_beat_stands_still_too(dead: Machine, b: Machine) -> None:
    b.hydrate()
    dead.bucket.store.delete(keys.beat_key(dead.owner.holder), condition=Unconditional())
    await refused(b)
    b.pass_time(LEASE_SECONDS)
    assert (await b.owner.claim(SESSION)).how == "taken"


async def test_a_holder_with_a_longer_lease_is_given_it(b: Machine) -> None:
    holder = "f" * 32
    b.bucket.put_record(OwnerRecord(session=SESSION, holder=holder, epoch=3))
    b.bucket.put_beat(BeatRecord(holder=holder, counter=1, lease_seconds=600))
    b.hydrate()
    assert "600 s" in await refused(b)
    b.pass_time(599)
    await refused(b)
    b.pass_time(1)
    assert (await b.owner.claim(SESSION)).epoch == 4


async def test_a_holder_with_a_shorter_lease_is_given_ours(b: Machine) -> None:
    holder = "f" * 32
    b.bucket.put_record(OwnerRecord(session=SESSION, holder=holder, epoch=3))
    b.bucket.put_beat(BeatRecord(holder=holder, counter=1, lease_seconds=1))
    b.hydrate()
    await refused(b)
    b.pass_time(LEASE_SECONDS - 1)
    await refused(b)


async def test_one_wait_serves_all_sessions_of_a_holder(a: Machine, b: Machine) -> None:
    other = SessionId("t")
    for session in (SESSION, other):
        a.make(session)
        await a.own(session)
        b.hydrate(session)
    await refused(b)
    b.pass_time(LEASE_SECONDS)
    assert (await b.owner.claim(other)).how == "taken"
    assert (await b.owner.claim(SESSION)).how == "taken"


async def test_force_skips_the_wait_and_says_what_it_risks(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    b.hydrate()
    claim = await b.owner.claim(SESSION, force=True)
    assert (claim.epoch, claim.how, claim.is_unclean) == (2, "forced", True)
    (event,) = b.named("session.owner.acquired")
    assert event["holder"] == "host-a"
    assert "not in the bucket" in str(event["risk"])
    assert not a.commit()


async def test_a_look_without_an_answer_takes_nothing(dead: Machine, b: Machine) -> None:
    b.hydrate()
    await refused(b)
    b.pass_time(LEASE_SECONDS)
    b.store.plan("get", Pass(), *(FailBefore(UnavailableError("away")) for _ in range(3)))
    with pytest.raises(UnavailableError):
        await b.owner.claim(SESSION)
    record = b.bucket.record()
    assert record is not None
    assert record.holder == dead.owner.holder


async def test_an_owner_that_comes_back_in_time_keeps_its_session(a: Machine, b: Machine) -> None:
    """It was silent past its lease, and nobody wanted the session."""
    a.make()
    await a.own()
    a.pass_time(LEASE_SECONDS * 2)
    await a.owner.pulse()
    await a.owner.settle()
    assert a.owner.may_change(SESSION)
    assert a.commit()
