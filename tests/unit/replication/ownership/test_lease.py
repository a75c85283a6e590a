"""The beat, the lease, and what a lapse, an outage, a restart or a clone means."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio

from sessionfs.formats.ownership import BeatRecord, OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import (
    AccessError,
    ConcurrentRequestError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.ownership.lease import Lease
from sessionfs.stores.base import Unconditional
from sessionfs.testing.faulty_store import FailBefore, Interfere, LostResponse, Pass

from .machines import LEASE_SECONDS, SESSION, Machine

OTHER = SessionId("t")


async def until(condition: Callable[[], bool]) -> None:
    """Return when something has become true."""
    while not condition():  # noqa: ASYNC110 - the bucket tells nobody
        await trio.sleep(0.01)


def away(machine: Machine, *methods: str) -> None:
    for method in methods:
        machine.store.plan(method, FailBefore(UnavailableError("away")))


@pytest.fixture
async def owner(a: Machine) -> Machine:
    a.make()
    await a.own()
    return a


def test_the_lease_runs_from_the_sending_of_the_beat() -> None:
    lease = Lease(60, 10)
    lease.confirm(sent_seconds=100, now_seconds=120)
    assert lease.deadline_seconds == 145
    assert lease.allows_request(135)
    assert not lease.allows_request(135.1)
    assert lease.is_valid(144.9)
    assert not lease.is_valid(145)


def test_a_late_answer_never_shortens_the_lease() -> None:
    lease = Lease(60, 10)
    lease.confirm(100, 100)
    assert not lease.confirm(90, 101)
    assert lease.deadline_seconds == 145


def test_a_beat_known_only_after_the_deadline_is_a_lapse() -> None:
    lease = Lease(60, 10)
    assert not lease.confirm(100, 100)
    assert not lease.confirm(110, 144)
    assert lease.confirm(120, 156)


def test_a_lease_has_room_for_four_beats_whatever_the_interval() -> None:
    assert Lease(60, 3600).interval_seconds == 15


async def test_nothing_is_asked_while_nothing_is_owned(a: Machine) -> None:
    with a.counting() as calls:
        assert await a.owner.pulse() == float("inf")
        await a.owner.settle()
        await a.owner.resume()
    assert calls == []


async def test_one_beat_every_interval_whatever_number_of_sessions_is_owned(owner: Machine) -> None:
    owner.make(OTHER)
    await owner.own(OTHER)
    with owner.counting() as calls:
        await owner.beat_for(65)
    assert calls == [f"put {keys.beat_key(owner.owner.holder)}"] * 6
    assert owner.owner.may_change(SESSION)


async def test_the_loop_beats_by_itself(owner: Machine) -> None:
    owner.settings = msgspec.structs.replace(owner.settings, beat_interval_seconds=0.01)
    owner.clock.elapsed_seconds = trio.current_time  # type: ignore[method-assign]
    ownership = owner.start()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ownership.run)
            await ownership.resume()
            await until(lambda: owner.bucket.beats()[ownership.holder].counter >= 5)
            await ownership.release(SESSION)
            await until(lambda: not owner.bucket.beats())
            nursery.cancel_scope.cancel()


async def test_the_daemon_reads_the_deadline_from_the_page(owner: Machine) -> None:
    assert owner.page.deadline_seconds == 1000 + LEASE_SECONDS * 3 / 4
    owner.pass_time(10)
    await owner.owner.pulse()
    assert owner.page.deadline_seconds == 1010 + LEASE_SECONDS * 3 / 4


async def test_a_slow_answer_counts_from_when_the_beat_was_sent(owner: Machine) -> None:
    owner.pass_time(10)
    owner.store.plan("put", Interfere(lambda: owner.pass_time(20)))
    await owner.owner.pulse()
    assert owner.page.deadline_seconds == 1010 + LEASE_SECONDS * 3 / 4


async def test_no_request_is_allowed_in_the_reserve(owner: Machine) -> None:
    owner.pass_time(LEASE_SECONDS * 3 / 4 - LEASE_SECONDS / 6)
    assert owner.owner.may_change(SESSION)
    owner.pass_time(0.1)
    assert not owner.owner.may_change(SESSION)
    assert owner.owner.owns(SESSION)


async def test_a_beat_without_an_answer_moves_no_deadline_and_is_tried_again_soon(owner: Machine) -> None:
    deadline = owner.page.deadline_seconds
    owner.pass_time(10)
    away(owner, "put")
    pause = await owner.owner.pulse()
    assert pause < 10
    assert owner.page.deadline_seconds == deadline
    assert owner.is_outage()
    owner.pass_time(pause)
    await owner.owner.pulse()
    assert not owner.is_outage()
    assert owner.page.deadline_seconds == deadline + 10 + pause


async def test_a_beat_whose_answer_was_lost_counts_once_it_is_found(owner: Machine) -> None:
    owner.pass_time(10)
    owner.store.plan("put", LostResponse())
    away(owner, "head")
    await owner.owner.pulse()
    assert owner.page.deadline_seconds == 1000 + LEASE_SECONDS * 3 / 4
    owner.pass_time(10)
    await owner.owner.pulse()
    assert owner.page.deadline_seconds == 1020 + LEASE_SECONDS * 3 / 4
    assert owner.bucket.beats()[owner.owner.holder].counter == 4
    assert owner.owner.owns(SESSION)


async def test_a_racing_request_on_the_beat_is_no_outage(owner: Machine) -> None:
    owner.pass_time(10)
    owner.store.plan("put", FailBefore(ConcurrentRequestError("409")))
    await owner.owner.pulse()
    assert not owner.is_outage()
    assert owner.owner.owns(SESSION)


async def test_expired_credentials_are_an_outage(owner: Machine) -> None:
    owner.pass_time(10)
    owner.store.plan("put", FailBefore(AccessError("expired")))
    await owner.owner.pulse()
    assert owner.is_outage()
    assert owner.owner.owns(SESSION)


async def test_a_beat_that_somebody_removed_is_put_again(owner: Machine) -> None:
    owner.bucket.store.delete(keys.beat_key(owner.owner.holder), condition=Unconditional())
    owner.pass_time(10)
    await owner.owner.pulse()
    assert list(owner.bucket.beats()) == [owner.owner.holder]
    assert owner.owner.may_change(SESSION)


# --- a lapse


async def test_after_a_lapse_nothing_is_allowed_before_the_records_were_read_again(owner: Machine) -> None:
    owner.make(OTHER)
    await owner.own(OTHER)
    deadline = owner.page.deadline_seconds
    owner.pass_time(LEASE_SECONDS)
    await owner.owner.pulse()
    assert not owner.owner.may_change(SESSION)
    assert owner.page.deadline_seconds == deadline
    with owner.counting() as calls:
        await owner.owner.settle()
    assert sorted(calls) == [f"get {keys.owner_key(session)}" for session in (SESSION, OTHER)]
    assert owner.owner.may_change(SESSION)
    assert owner.page.deadline_seconds == deadline + LEASE_SECONDS


async def test_an_answer_that_came_after_the_deadline_is_a_lapse(owner: Machine) -> None:
    owner.pass_time(30)
    owner.store.plan("put", Interfere(lambda: owner.pass_time(16)))
    await owner.owner.pulse()
    assert not owner.owner.may_change(SESSION)
    await owner.owner.settle()
    assert owner.owner.may_change(SESSION)


async def test_a_session_that_was_taken_over_during_a_lapse_is_lost(owner: Machine) -> None:
    owner.make(OTHER)
    await owner.own(OTHER)
    theirs = OwnerRecord(session=SESSION, holder="f" * 32, epoch=2, host="elsewhere")
    owner.bucket.put_record(theirs)
    owner.pass_time(LEASE_SECONDS)
    await owner.owner.pulse()
    await owner.owner.settle()
    assert not owner.owner.owns(SESSION)
    assert owner.owner.may_change(OTHER)
    assert owner.row().owner_state == "lost"
    (told,) = owner.told
    assert (told.session, told.owned) == ("s", False)
    assert "elsewhere" in told.holder
    (event,) = owner.named("session.owner.lost")
    assert event["epoch"] == 1
    assert owner.bucket.record() == theirs


async def test_a_record_that_cannot_be_asked_for_keeps_the_session_unconfirmed(owner: Machine) -> None:
    deadline = owner.page.deadline_seconds
    owner.pass_time(LEASE_SECONDS)
    await owner.owner.pulse()
    owner.store.plan("get", *(FailBefore(UnavailableError("away")) for _ in range(3)))
    await owner.owner.settle()
    assert owner.owner.owns(SESSION)
    assert not owner.owner.may_change(SESSION)
    assert owner.page.deadline_seconds == deadline
    await owner.owner.settle()
    assert owner.owner.may_change(SESSION)


async def test_a_claim_of_a_held_session_after_a_lapse_reads_its_record_and_keeps_the_epoch(
    owner: Machine,
) -> None:
    owner.pass_time(LEASE_SECONDS)
    with owner.counting() as calls:
        claim = await owner.owner.claim(SESSION)
    assert claim.epoch == 1
    assert calls == [f"put {keys.beat_key(owner.owner.holder)}", f"get {keys.owner_key(SESSION)}"]
    assert owner.owner.may_change(SESSION)


async def test_a_claim_of_a_held_session_that_was_taken_over_is_refused(owner: Machine) -> None:
    owner.bucket.put_record(OwnerRecord(session=SESSION, holder="f" * 32, epoch=2, host="elsewhere"))
    owner.pass_time(LEASE_SECONDS)
    with pytest.raises(SessionAlreadyOwnedError, match="elsewhere"):
        await owner.owner.claim(SESSION)
    assert owner.row().owner_state == "lost"
    assert len(owner.named("session.owner.lost")) == 1


# --- losing


async def test_whoever_finds_a_proof_loses_the_session_once(owner: Machine) -> None:
    owner.owner.lose(SESSION, holder="elsewhere", reason="the manifest is another's")
    owner.owner.lose(SESSION, holder="elsewhere", reason="again")
    assert len(owner.named("session.owner.lost")) == 1
    assert len(owner.told) == 1
    assert not owner.owner.may_change(SESSION)
    assert owner.owner.epoch(SESSION) == 0
    assert await owner.owner.pulse() == float("inf")
    assert owner.bucket.beats() == {}


async def test_a_session_that_was_lost_is_a_strangers_to_us(owner: Machine, b: Machine) -> None:
    b.hydrate()
    await b.own(force=True)
    owner.owner.lose(SESSION, holder="", reason="fenced")
    owner.start()
    with pytest.raises(SessionAlreadyOwnedError, match="host-b"):
        await owner.owner.claim(SESSION)


async def test_a_clone_of_a_running_machine_loses_everything_and_takes_another_name(owner: Machine) -> None:
    owner.make(OTHER)
    await owner.own(OTHER)
    name = owner.owner.holder
    owner.bucket.put_beat(BeatRecord(holder=name, counter=9, lease_seconds=60))
    owner.pass_time(10)
    await owner.owner.pulse()
    assert owner.owner.holder != name
    assert not owner.owner.owns(SESSION)
    assert not owner.owner.owns(OTHER)
    assert sorted(told.session for told in owner.told) == ["s", "t"]
    assert len(owner.named("session.owner.lost")) == 2
    assert owner.page.deadline_seconds == 0
    assert list(owner.bucket.beats()) == [name]
    with pytest.raises(SessionAlreadyOwnedError):
        await owner.owner.claim(SESSION)


# --- a restart


async def test_a_restart_owns_its_sessions_again_at_once_with_the_next_epoch(owner: Machine) -> None:
    assert owner.commit()
    former = owner.owner.holder
    owner.start()
    await owner.owner.resume()
    assert owner.owner.holder != former
    assert owner.owner.epoch(SESSION) == 2
    assert owner.owner.may_change(SESSION)
    assert [(told.session, told.owned) for told in owner.told] == [("s", True)]
    ((session, claim),) = owner.claimed
    assert (session, claim.epoch, claim.is_news) == (SESSION, 2, False)
    assert list(owner.bucket.beats()) == [owner.owner.holder]
    assert owner.commit()


async def test_a_restart_leaves_the_deadline_until_everything_is_owned_again(owner: Machine) -> None:
    deadline = owner.page.deadline_seconds
    owner.start()
    assert await owner.owner.pulse() == float("inf")
    assert owner.page.deadline_seconds == deadline
    owner.pass_time(5)
    await owner.owner.resume()
    assert owner.page.deadline_seconds == deadline + 5


async def test_a_restart_in_another_boot_has_no_lease(owner: Machine) -> None:
    again = type(owner.page).open(owner.layout.lease, "another boot")
    assert again.deadline_seconds == 0


async def test_a_session_that_another_host_took_meanwhile_is_lost_at_the_restart(
    owner: Machine, b: Machine
) -> None:
    owner.make(OTHER)
    await owner.own(OTHER)
    b.hydrate()
    await b.own(force=True)
    owner.start()
    await owner.owner.resume()
    assert not owner.owner.owns(SESSION)
    assert owner.owner.may_change(OTHER)
    assert owner.row().owner_state == "lost"
    assert [(told.session, told.owned) for told in owner.told if not told.owned] == [("s", False)]
    assert len(owner.named("session.owner.lost")) == 1
    assert set(owner.bucket.beats()) == {owner.owner.holder, b.owner.holder}


async def test_a_session_that_another_host_had_meanwhile_comes_back_with_news(
    owner: Machine, b: Machine
) -> None:
    b.hydrate()
    await b.own(force=True)
    assert b.commit()
    await b.owner.release(SESSION)
    owner.start()
    await owner.owner.resume()
    ((_, claim),) = owner.claimed
    assert (claim.epoch, claim.is_news) == (3, True)
    assert not owner.owner.may_change(SESSION)


async def test_of_a_state_directory_and_its_clone_one_owns_the_session(owner: Machine, b: Machine) -> None:
    """The clone has the same journal."""
    row = owner.row()
    b.journal.add_session(SESSION, 100, known=True, written=True)
    b.journal.update_session(
        SESSION,
        epoch=row.epoch,
        owner_state=row.owner_state,
        owner_token=row.owner_token,
        holder=row.holder,
        manifest_token=row.manifest_token,
    )
    owner.start()
    await b.owner.resume()
    await owner.owner.resume()
    assert b.owner.may_change(SESSION)
    assert not owner.owner.owns(SESSION)
    assert owner.row().owner_state == "lost"


# --- the store is away


async def test_a_session_of_ours_is_presumed_without_an_answer_and_settled_with_one(owner: Machine) -> None:
    assert owner.commit()
    owner.start()
    away(owner, "put")
    await owner.owner.resume()
    assert owner.owner.owns(SESSION)
    assert owner.owner.epoch(SESSION) == 0
    assert not owner.owner.may_change(SESSION)
    assert owner.is_outage()
    assert owner.told == []
    await owner.owner.settle()
    assert not owner.owner.may_change(SESSION)
    await owner.owner.pulse()
    assert owner.is_outage()
    await owner.owner.settle()
    assert owner.owner.may_change(SESSION)
    assert not owner.is_outage()
    assert [(told.session, told.owned) for told in owner.told] == [("s", True)]
    assert [claim.epoch for _, claim in owner.claimed] == [2]


async def test_a_session_made_here_is_presumed_without_an_answer(a: Machine) -> None:
    a.make()
    away(a, "put")
    claim = await a.owner.claim(SESSION)
    assert (claim.epoch, claim.is_presumed, claim.is_news) == (0, True, False)
    away(a, "put")
    assert (await a.owner.claim(SESSION)).is_presumed
    a.start()
    away(a, "put")
    await a.owner.resume()
    assert a.owner.owns(SESSION)
    await a.owner.pulse()
    await a.owner.settle()
    assert a.owner.epoch(SESSION) == 1
    assert a.owner.may_change(SESSION)


async def test_a_presumption_that_another_host_refutes_is_a_loss(a: Machine, b: Machine) -> None:
    b.make()
    await b.own()
    a.make()
    away(a, "put")
    await a.owner.claim(SESSION)
    await a.owner.pulse()
    await a.owner.settle()
    assert not a.owner.owns(SESSION)
    assert a.row().owner_state == "lost"
    (told,) = a.told
    assert not told.owned
    assert "host-b" in told.holder
    assert a.named("session.owner.lost") == []
    assert len(a.named("session.owner.conflict")) == 1


async def test_any_other_session_is_refused_without_an_answer(owner: Machine, b: Machine) -> None:
    await owner.owner.release(SESSION)
    b.hydrate()
    for machine in (owner, b):
        away(machine, "put")
        with pytest.raises(UnavailableError):
            await machine.owner.claim(SESSION)
        assert not machine.owner.owns(SESSION)


async def test_a_session_with_news_is_not_presumed(owner: Machine, b: Machine) -> None:
    await owner.owner.release(SESSION)
    b.hydrate()
    await b.owner.claim(SESSION)
    b.start()
    away(b, "put")
    await b.owner.resume()
    assert not b.owner.owns(SESSION)


async def test_a_session_of_a_rebuilt_journal_is_not_presumed(a: Machine) -> None:
    a.journal.add_session(SESSION, 100, known=False, written=True)
    away(a, "put")
    with pytest.raises(UnavailableError):
        await a.owner.claim(SESSION)


async def test_an_outage_past_the_lease_ends_with_the_records_and_not_with_the_beat(owner: Machine) -> None:
    owner.pass_time(LEASE_SECONDS)
    away(owner, "put")
    pause = await owner.owner.pulse()
    assert owner.is_outage()
    owner.pass_time(pause)
    await owner.owner.pulse()
    assert owner.is_outage()
    await owner.owner.settle()
    assert not owner.is_outage()
    assert owner.owner.may_change(SESSION)


async def test_a_claim_that_died_after_its_record_is_settled_as_ours(a: Machine) -> None:
    """The fence finds no store: programs go on, because the record is ours."""
    a.make()
    a.store.plan("put", Pass(), Pass(), FailBefore(UnavailableError("away")))
    assert (await a.owner.claim(SESSION)).is_presumed
    await a.owner.settle()
    assert a.owner.epoch(SESSION) == 2
    assert a.owner.may_change(SESSION)
