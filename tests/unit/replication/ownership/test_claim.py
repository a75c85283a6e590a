"""Claiming: who may have a session, and what the chain and the journal say afterwards."""

from __future__ import annotations

import stat
from dataclasses import replace

import pytest
import trio

from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import (
    ConcurrentRequestError,
    CorruptDataError,
    ObjectNotFoundError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.testing.faulty_store import FailBefore, Interfere, LostResponse, Pass

from .machines import SESSION, Bucket, Machine

ENTRY = ManifestEntry(b"f", stat.S_IFREG | 0o644, 1, sha256="a" * 64, token="t")


async def test_a_new_session_is_owned_with_epoch_1_and_fenced_with_generation_0(a: Machine) -> None:
    a.make()
    claim = await a.owner.claim(SESSION)
    assert (claim.epoch, claim.is_news, claim.is_presumed, claim.how) == (1, False, False, "created")
    record, manifest = a.bucket.record(), a.bucket.manifest()
    assert record is not None
    assert (record.holder, record.epoch, record.state, record.host) == (a.owner.holder, 1, "held", "host-a")
    assert manifest == claim.manifest
    assert manifest is not None
    assert (manifest.generation, manifest.epoch, manifest.holder) == (0, 1, a.owner.holder)
    assert claim.manifest_token == a.bucket.manifest_token()
    assert a.owner.holder in a.bucket.beats()
    assert a.owner.owns(SESSION)
    assert a.owner.epoch(SESSION) == 1
    assert a.owner.may_change(SESSION)
    row = a.row()
    assert (row.epoch, row.owner_state, row.holder) == (1, "held", a.owner.holder)
    assert (row.manifest_token, row.generation) == (claim.manifest_token, 0)
    assert a.named("session.owner.acquired") == [{"session_id": "s", "epoch": 1, "how": "created"}]


async def test_the_beat_is_in_the_bucket_before_the_record_and_the_record_before_the_fence(
    a: Machine,
) -> None:
    a.make()
    with a.counting() as calls:
        await a.owner.claim(SESSION)
    puts = [call for call in calls if call.startswith("put ")]
    beat = keys.beat_key(a.owner.holder)
    assert puts == [f"put {key}" for key in (beat, keys.owner_key(SESSION), keys.manifest_key(SESSION))]
    assert len(calls) == 5


async def test_claiming_again_asks_nothing(a: Machine) -> None:
    a.make()
    first = await a.owner.claim(SESSION)
    with a.counting() as calls:
        again = await a.owner.claim(SESSION)
    assert calls == []
    assert (again.epoch, again.manifest_token, again.is_news) == (1, first.manifest_token, False)


async def test_concurrent_claims_of_a_session_share_one_flight(a: Machine) -> None:
    a.make()
    epochs: list[int] = []

    async def claim() -> None:
        epochs.append((await a.owner.claim(SESSION)).epoch)

    with a.counting() as calls:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(claim)
    assert epochs == [1] * 5
    assert len(calls) == 5


async def test_the_epoch_of_a_session_without_a_record_is_above_its_manifests(a: Machine) -> None:
    a.bucket.put_manifest(Manifest(SESSION, 7, (ENTRY,), epoch=4, holder="x", previous=6, trigger="turn"))
    a.hydrate()
    claim = await a.owner.claim(SESSION)
    assert claim.epoch == 5
    assert claim.is_news


async def test_the_fence_changes_epoch_and_holder_only(a: Machine) -> None:
    before = Manifest(
        SESSION, 7, (ENTRY,), 5, "2026-01-01T00:00:00Z", "turn", epoch=4, holder="x", recovery="committed"
    )
    a.bucket.put_manifest(before)
    a.hydrate()
    claim = await a.owner.claim(SESSION)
    assert a.bucket.manifest() == claim.manifest == replace(before, epoch=5, holder=a.owner.holder)


async def test_a_removed_session_stays_removed_and_one_made_on_top_has_no_news(a: Machine) -> None:
    a.bucket.put_manifest(Manifest(SESSION, 7, epoch=4, holder="x", removed=True))
    a.make()
    claim = await a.owner.claim(SESSION)
    assert not claim.is_news
    assert claim.manifest is not None
    assert claim.manifest.removed
    assert a.row().generation == 7


async def test_an_older_manifest_is_fenced_with_its_paths_unknown(a: Machine) -> None:
    raw = b'{"generation": 3, "paths": ["d/f", "g"]}'
    a.bucket.store.put(keys.manifest_key(SESSION), raw, condition=Unconditional(), metadata=ObjectMetadata())
    a.hydrate()
    claim = await a.owner.claim(SESSION)
    assert claim.manifest is not None
    assert (claim.manifest.generation, claim.manifest.format) == (3, 1)
    entries = [(entry.path, entry.sha256, entry.token) for entry in claim.manifest.entries]
    assert entries == [(b"d/f", "", ""), (b"g", "", "")]
    assert a.bucket.manifest() == claim.manifest


async def test_the_manifest_of_a_claim_is_read_after_its_fence(a: Machine) -> None:
    """The last commit of the owner before lands between our record and our fence."""
    a.bucket.put_manifest(Manifest(SESSION, 7, (ENTRY,), epoch=4, holder="x"))
    a.hydrate()
    last = Manifest(SESSION, 8, (ENTRY,), epoch=4, holder="x", previous=7)
    a.store.plan("put", Pass(), Pass(), Interfere(lambda: a.bucket.put_manifest(last)))
    claim = await a.owner.claim(SESSION)
    assert claim.manifest == replace(last, epoch=5, holder=a.owner.holder)
    assert a.bucket.manifest() == claim.manifest
    assert claim.is_news


async def test_a_released_session_is_taken_at_once_with_the_next_epoch(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    assert a.commit()
    await a.owner.release(SESSION)
    assert not a.owner.owns(SESSION)
    assert a.row().owner_state == "released"
    b.hydrate()
    claim = await b.owner.claim(SESSION)
    assert (claim.epoch, claim.how, claim.is_news) == (2, "released", True)
    assert claim.manifest is not None
    assert claim.manifest.generation == 1


async def test_the_last_release_removes_the_beat(a: Machine) -> None:
    other = SessionId("t")
    a.make()
    a.make(other)
    await a.own()
    await a.own(other)
    await a.owner.release(SESSION)
    assert list(a.bucket.beats()) == [a.owner.holder]
    await a.owner.release(other)
    assert a.bucket.beats() == {}
    assert a.page.deadline_seconds == 0
    await a.own()
    assert list(a.bucket.beats()) == [a.owner.holder]
    assert a.owner.may_change(SESSION)


async def test_whoever_released_last_comes_back_without_news(a: Machine) -> None:
    a.make()
    await a.own()
    assert a.commit()
    await a.owner.release(SESSION)
    a.start()
    claim = await a.owner.claim(SESSION)
    assert (claim.epoch, claim.how, claim.is_news) == (2, "released", False)
    assert a.commit()


async def test_a_held_session_is_refused_naming_its_holder_and_the_remedy(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    b.hydrate()
    with pytest.raises(SessionAlreadyOwnedError) as refusal:
        await b.owner.claim(SESSION)
    assert "host-a" in refusal.value.holder
    for part in ("session s", "host-a", a.owner.holder[:8], "since 2027-", "60 s", "claim --force"):
        assert part in str(refusal.value)
    assert not b.owner.owns(SESSION)
    assert not b.owner.may_change(SESSION)
    record = a.bucket.record()
    assert record is not None
    assert record.holder == a.owner.holder


async def test_a_refusal_is_one_event_for_each_holder_and_session(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    b.hydrate()
    for _ in range(3):
        with pytest.raises(SessionAlreadyOwnedError):
            await b.owner.claim(SESSION)
    assert len(b.named("session.owner.conflict")) == 1
    assert b.named("session.owner.lost") == []
    assert b.told == []


async def test_of_two_who_claim_at_once_one_wins(a: Machine, b: Machine) -> None:
    a.make()
    b.make()
    await a.owner.claim(SessionId("s"))
    await a.owner.release(SESSION)
    won: list[str] = []

    async def claim(machine: Machine) -> None:
        try:
            await machine.owner.claim(SESSION)
            won.append(machine.name)
        except SessionAlreadyOwnedError:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim, a)
        nursery.start_soon(claim, b)
    record = a.bucket.record()
    assert record is not None
    assert (len(won), record.epoch) == (1, 2)


async def test_a_claim_that_loses_its_race_is_refused(a: Machine, b: Machine) -> None:
    a.make()
    theirs = OwnerRecord(session=SESSION, holder="f" * 32, epoch=1, host="elsewhere")
    a.store.plan("put", Pass(), Interfere(lambda: a.bucket.put_record(theirs)))
    with pytest.raises(SessionAlreadyOwnedError):
        await a.owner.claim(SESSION)
    assert a.bucket.record() == theirs
    assert a.bucket.manifest() is None


async def test_a_session_that_is_not_known_here_is_not_claimed(a: Machine) -> None:
    with pytest.raises(ObjectNotFoundError):
        await a.owner.claim(SESSION)
    assert a.bucket.record() is None


async def test_a_record_that_cannot_be_read_is_left_alone(a: Machine) -> None:
    a.make()
    key = keys.owner_key(SESSION)
    a.bucket.store.put(key, b"{}", condition=Unconditional(), metadata=ObjectMetadata())
    with pytest.raises(CorruptDataError, match=key):
        await a.owner.claim(SESSION)
    assert a.bucket.read(key) == b"{}"
    assert not a.owner.owns(SESSION)


async def test_a_manifest_that_cannot_be_read_is_left_alone(a: Machine) -> None:
    a.make()
    key = keys.manifest_key(SESSION)
    a.bucket.store.put(key, b"{}", condition=Unconditional(), metadata=ObjectMetadata())
    with pytest.raises(CorruptDataError, match=key):
        await a.owner.claim(SESSION)
    assert a.bucket.read(key) == b"{}"
    assert not a.owner.may_change(SESSION)


async def test_a_fence_of_a_later_owner_is_not_overwritten(a: Machine, b: Machine) -> None:
    """Another host took the record after ours landed, and fenced before us."""
    a.make()

    def taken_over() -> None:
        a.bucket.put_record(OwnerRecord(session=SESSION, holder="f" * 32, epoch=2, host="elsewhere"))
        a.bucket.put_manifest(Manifest(SESSION, 0, epoch=2, holder="f" * 32))

    a.store.plan("put", Pass(), Pass(), Interfere(taken_over))
    with pytest.raises(SessionAlreadyOwnedError):
        await a.owner.claim(SESSION)
    manifest = a.bucket.manifest()
    assert manifest is not None
    assert manifest.epoch == 2
    assert a.row().owner_state == "lost"
    assert not a.owner.owns(SESSION)


async def test_a_record_that_began_anew_is_raised_above_the_chains_epoch(a: Machine) -> None:
    """Somebody deleted or restored the record: its epoch is below the manifest's."""
    a.bucket.put_record(OwnerRecord(session=SESSION, holder="f" * 32, epoch=2, state="released"))
    a.bucket.put_manifest(Manifest(SESSION, 7, (ENTRY,), epoch=9, holder="x"))
    a.hydrate()
    claim = await a.owner.claim(SESSION)
    record, manifest = a.bucket.record(), a.bucket.manifest()
    assert record is not None
    assert manifest is not None
    assert claim.epoch == record.epoch == manifest.epoch == 10


async def test_answers_that_were_lost_are_looked_up(a: Machine) -> None:
    a.make()
    a.store.plan("put", LostResponse(), LostResponse(), LostResponse())
    claim = await a.owner.claim(SESSION)
    assert claim.epoch == 1
    assert a.owner.may_change(SESSION)
    assert a.row().owner_token == a.bucket.store.head(keys.owner_key(SESSION)).token


async def test_a_racing_request_on_the_record_is_repeated(a: Machine) -> None:
    a.make()
    a.store.plan(
        "put",
        Pass(),
        FailBefore(ConcurrentRequestError("409")),
        Pass(),
        FailBefore(ConcurrentRequestError("409")),
    )
    claim = await a.owner.claim(SESSION)
    assert claim.epoch == 1


async def test_nothing_is_sent_before_the_news_was_taken_over(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    await a.owner.release(SESSION)
    b.hydrate()
    claim = await b.owner.claim(SESSION)
    assert claim.is_news
    assert not b.owner.may_change(SESSION)
    assert b.row().manifest_token != claim.manifest_token
    again = await b.owner.claim(SESSION)
    assert again == claim
    b.owner.note_caught_up(SESSION)
    assert b.owner.may_change(SESSION)
    assert b.row().manifest_token == claim.manifest_token
    assert not (await b.owner.claim(SESSION)).is_news


async def test_news_that_was_not_taken_over_is_news_after_a_restart(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    await a.owner.release(SESSION)
    b.hydrate()
    await b.owner.claim(SESSION)
    b.start()
    claim = await b.owner.claim(SESSION)
    assert (claim.epoch, claim.is_news) == (3, True)


async def test_a_warm_host_has_news_after_another_owned_the_session(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    await a.owner.release(SESSION)
    b.hydrate()
    await b.own()
    assert b.commit()
    await b.owner.release(SESSION)
    claim = await a.owner.claim(SESSION)
    assert (claim.epoch, claim.is_news) == (3, True)
    assert claim.manifest is not None
    assert claim.manifest.generation == 1


async def test_the_guard_refuses_live_objects_only(a: Machine) -> None:
    a.make()
    for key in (
        keys.owner_key(SESSION),
        keys.manifest_key(SESSION),
        "hosts/x.json",
        "probe/x",
        "sessions.json",
        "eval/run7.owner/owner.json",
        "agents/a/plugins/p.manifest/manifest.json",
    ):
        a.owner.guard(key)
    with pytest.raises(Exception, match="may not be changed now"):
        a.owner.guard("sessions/s/f")
    await a.own()
    a.owner.guard("sessions/s/f")
    a.owner.guard("sessions/s/")
    with pytest.raises(Exception, match="may not be changed now"):
        a.owner.guard("sessions/t/f")
    for key in ("eval/run7/f", "plugins/x/", "agents/a/plugins/p/d/f"):
        with pytest.raises(Exception, match="may not be changed now"):
            a.owner.guard(key)


async def test_a_release_that_another_host_forestalled_is_a_loss(a: Machine, b: Machine) -> None:
    a.make()
    await a.own()
    b.hydrate()
    await b.own(force=True)
    with pytest.raises(Exception, match="taken over"):
        await a.owner.release(SESSION)
    assert a.row().owner_state == "lost"
    assert len(a.named("session.owner.lost")) == 1
    record = a.bucket.record()
    assert record is not None
    assert record.holder == b.owner.holder


async def test_after_a_release_without_an_answer_the_session_is_not_ours_any_more(a: Machine) -> None:
    a.make()
    await a.own()
    a.store.plan("put", LostResponse())
    a.store.plan("head", FailBefore(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        await a.owner.release(SESSION)
    assert not a.owner.owns(SESSION)
    assert not a.owner.may_change(SESSION)
    claim = await a.owner.claim(SESSION)
    assert (claim.epoch, claim.is_news) == (2, False)


async def test_a_release_that_was_not_sent_changes_nothing(a: Machine) -> None:
    a.make()
    await a.own()
    a.store.plan("put", FailBefore(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        await a.owner.release(SESSION)
    assert a.owner.owns(SESSION)
    assert a.owner.may_change(SESSION)
    assert a.row().owner_state == "held"


async def test_releasing_several_tries_all_of_them(a: Machine) -> None:
    a.make()
    a.make(SessionId("t"))
    await a.own()
    await a.own(SessionId("t"))
    a.store.plan("put", FailBefore(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        await a.owner.release_all([SESSION, SessionId("t")])
    assert a.owner.owns(SESSION) != a.owner.owns(SessionId("t"))


async def test_two_hosts_hand_a_session_back_and_forth(a: Machine, b: Machine, bucket: Bucket) -> None:
    a.make()
    b.make()
    epochs: list[int] = []
    for machine in (a, b, a, b):
        epochs.append((await machine.own()).epoch)
        assert machine.commit()
        await machine.owner.release(SESSION)
    assert epochs == [1, 2, 3, 4]
    manifest = bucket.manifest()
    assert manifest is not None
    assert manifest.generation == 4
