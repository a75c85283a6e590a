"""Sessions as a whole: claimed, committed and given up by whoever asks, and by what nobody asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from sessionfs.model import keys
from sessionfs.model.errors import (
    AccessError,
    ConflictError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.cutting import cold_until
from sessionfs.replication.session_control import EPOCH_ATTRIBUTE
from sessionfs.testing.faulty_store import FailBefore
from tests.unit.replication.commit.commit_world import live_objects, read_generation
from tests.unit.replication.commit.control_world import (
    ControlWorld,
    claim_session,
    commit_session,
    other_host,
    overtaken,
    restart,
)
from tests.unit.replication.uploads.tree_world import SESSION, until

MANIFEST = keys.manifest_key(SESSION)
PREFIX = keys.session_prefix(SESSION)


# --- claims


async def test_a_commit_of_a_session_that_nobody_owns_claims_it(a: ControlWorld) -> None:
    assert not a.ownership.owns(SESSION)
    assert await commit_session(a) == 1
    assert (a.record().state, a.record().epoch, a.manifest().epoch) == ("held", 1, 1)
    assert a.control.is_open(SESSION)
    assert os.getxattr(a.path(b""), EPOCH_ATTRIBUTE) == b"1"
    assert a.row().written


async def test_a_commit_of_a_session_of_another_host_is_refused_and_sends_nothing(
    a: ControlWorld, tmp_path: Path
) -> None:
    await commit_session(a)
    b = await other_host(tmp_path / "b", a.memory)
    b.write(b"g", b"owed by b")
    before = b.bucket()
    with pytest.raises(SessionAlreadyOwnedError):
        await commit_session(b)
    assert b.bucket() == before
    assert not b.control.is_open(SESSION)
    assert "owned" in b.control.problem(SESSION)


async def test_a_session_that_is_not_here_is_neither_claimed_nor_committed(a: ControlWorld) -> None:
    unknown = SessionId("unknown")
    async with a.at_work() as control:
        with pytest.raises(ObjectNotFoundError):
            await control.commit(unknown, "test")
        with pytest.raises(ObjectNotFoundError):
            await control.claim(unknown)


async def test_what_is_owed_is_kept_aside_before_what_others_did_is_taken_over(
    a: ControlWorld, tmp_path: Path
) -> None:
    b = await overtaken(a, tmp_path)
    async with b.at_work() as control:
        await control.release(SESSION)
    a.write(b"f", b"owed by a")
    a.write(b"h", b"new on a")
    restart(a)
    a.store.calls.clear()
    async with a.at_work() as control:
        claimed = await control.claim(SESSION)
        kept = [
            n for n, (method, key) in enumerate(a.store.calls) if method == "put" and ".conflicts/" in key
        ]
        listed = a.store.calls.index(("list_page", PREFIX))
        assert len(kept) == 2
        assert max(kept) < listed
        assert claimed.changes is not None
        # Old bytes are on this disk: programs must not write yet, and no commit can say what they are.
        assert not control.is_open(SESSION)
        with pytest.raises(UnavailableError, match="program still has the old file open"):
            await control.commit(SESSION, "test")
        await a.drop(claimed.changes)
        epoch = a.record().epoch
        assert (await control.claim(SESSION)).changes is None
        assert a.record().epoch == epoch
        assert control.is_open(SESSION)
        await control.commit(SESSION, "test")
    assert sorted(a.kept_aside()) == [b"new on a", b"owed by a"]
    assert read_generation(a.memory) == {b"f": b"of b", b"g": b"new from b"}
    assert live_objects(a.memory) == {b"f": b"of b", b"g": b"new from b"}


async def test_a_claim_tells_what_an_answer_that_was_not_heard_took_over(
    a: ControlWorld, tmp_path: Path
) -> None:
    heard = a.hydrator.version(SESSION)
    b = await overtaken(a, tmp_path)
    async with b.at_work() as control:
        await control.release(SESSION)
    restart(a)
    async with a.at_work() as control:
        await a.drop((await control.claim(SESSION, known=heard)).changes)
        version = a.hydrator.version(SESSION)
        assert (await control.claim(SESSION, known=version)).changes is None
        changes = (await control.claim(SESSION, known=heard)).changes
        assert changes is not None
        assert changes.directories == [a.number(b"")]
        assert (changes.files, changes.version) == ([], version)


async def test_a_claim_that_waits_for_another_does_not_take_the_news_over_twice(
    a: ControlWorld, tmp_path: Path
) -> None:
    await commit_session(a)
    b = await other_host(tmp_path / "b", a.memory)
    await claim_session(b, force=True)
    b.write(b"g", b"new from b")
    async with b.at_work() as control:
        await control.release(SESSION)
    restart(a)
    a.store.calls.clear()
    async with a.at_work() as control:
        lock = control._locks.setdefault(SESSION, trio.Lock())
        await lock.acquire()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(control.claim, SESSION)
            await until(lambda: lock.statistics().tasks_waiting == 3)
            lock.release()
    assert [key for key in a.calls("list_page") if key == PREFIX] == [PREFIX]
    assert a.journal.resolve(SESSION, b"g") is not None


async def test_what_cannot_be_kept_aside_leaves_the_news_for_the_next_claim(
    a: ControlWorld, tmp_path: Path
) -> None:
    b = await overtaken(a, tmp_path)
    async with b.at_work() as control:
        await control.release(SESSION)
    a.write(b"f", b"owed by a")
    restart(a)
    async with a.at_work() as control:
        assert a.uploader.hold(a.key(b"f"))
        with pytest.raises(UnavailableError, match="could not be set aside"):
            await control.claim(SESSION)
        assert live_objects(a.memory)[b"f"] == b"of b"
        assert not a.ownership.may_change(SESSION)
        a.uploader.release(a.key(b"f"))
        await a.drop((await control.claim(SESSION)).changes)
        assert a.ownership.may_change(SESSION)
    assert a.kept_aside() == [b"owed by a"]


async def test_after_an_owner_who_did_not_end_his_requests_are_reckoned_with(
    a: ControlWorld, tmp_path: Path
) -> None:
    b = await overtaken(a, tmp_path)
    assert int(b.journal.meta(cold_until(SESSION), "0")) > b.clock.wall_ns()
    async with b.at_work() as control:
        await control.release(SESSION)
    restart(a)
    await claim_session(a)
    assert a.journal.meta(cold_until(SESSION)) == ""


async def test_without_an_answer_a_session_of_ours_is_only_presumed_and_nothing_is_sent(
    a: ControlWorld,
) -> None:
    await commit_session(a)
    a.write(b"f", b"later")
    restart(a)
    for method in ("put", "get", "head"):
        a.store.plan(method, *(FailBefore(UnavailableError("away")) for _ in range(200)))
    async with a.at_work(chores=True) as control:
        assert (await control.claim(SESSION)).changes is None
        assert control.is_open(SESSION)
        with pytest.raises(UnavailableError):
            await control.commit(SESSION, "test")
        a.store._planned.clear()
        await until(lambda: a.row().generation == 2)
    assert read_generation(a.memory)[b"f"] == b"later"


# --- releases


async def test_a_released_session_is_committed_and_may_be_taken_at_once(
    a: ControlWorld, tmp_path: Path
) -> None:
    async with a.at_work() as control:
        await control.claim(SESSION)
        a.write(b"f", b"newest")
        await control.release(SESSION)
        assert not control.is_open(SESSION)
        await control.release(SESSION)
    assert (a.record().state, a.manifest().trigger) == ("released", "release")
    assert (a.row().written, a.row().owner_state) == (False, "released")
    assert a.told().owned is False
    b = await other_host(tmp_path / "b", a.memory)
    await claim_session(b)
    assert b.record().epoch == 2
    assert read_generation(b.memory) == {b"f": b"newest"}


async def test_a_session_that_is_changed_while_it_is_released_stays_ours(a: ControlWorld) -> None:
    async with a.at_work() as control:
        await control.claim(SESSION)
        a.freezer.after_barrier = lambda: a.write(b"f", b"meanwhile")
        with pytest.raises(ConflictError, match="changed while it was released"):
            await control.release(SESSION)
        assert control.is_open(SESSION)
        assert a.record().state == "held"
        a.freezer.after_barrier = lambda: None
        await control.release(SESSION)
    assert a.record().state == "released"
    assert read_generation(a.memory) == {b"f": b"meanwhile"}


def at_release(a: ControlWorld, happen: Callable[[], None], *, is_lost: bool = False) -> None:
    """Let something happen while the released record is on its way; the answer may be lost."""
    store = a.ownership._claiming.acquisition._store
    put = store.put

    async def put_record(key: str, body: bytes, **named: Any) -> Any:
        is_release = b'"released"' in body
        if is_release:
            store.put = put  # type: ignore[method-assign]
            happen()
        outcome = await put(key, body, **named)
        if is_release and is_lost:
            raise OutcomeUnknownError("no answer")
        return outcome

    store.put = put_record  # type: ignore[method-assign]


async def test_what_is_written_while_a_session_is_given_up_is_uploaded_by_a_new_claim(
    a: ControlWorld,
) -> None:
    async with a.at_work(chores=True) as control:
        await control.resume()
        await control.claim(SESSION)
        await control.commit(SESSION, "test")
        a.uploader.hold(a.key(b"f"))
        at_release(a, lambda: a.write(b"f", b"meanwhile"))
        await control.release(SESSION)
        a.uploader.release(a.key(b"f"))
        with trio.fail_after(5.0):
            await until(lambda: a.bucket()[a.key(b"f")] == b"meanwhile")
    assert (a.record().state, a.record().epoch) == ("held", 2)
    assert a.row().written


async def test_a_change_of_which_nothing_is_owed_also_lets_a_session_be_claimed_again(
    a: ControlWorld,
) -> None:
    """Its upload went on while the session was given up, or no key can spell its path."""
    async with a.at_work(chores=True) as control:
        await control.resume()
        await control.claim(SESSION)
        await control.commit(SESSION, "test")
        at_release(a, lambda: a.journal.update_session(SESSION, changed=True))
        await control.release(SESSION)
        with trio.fail_after(5.0):
            await until(lambda: a.ownership.owns(SESSION))
        assert a.row().changed
        await control.release(SESSION)
    assert a.record().state == "released"
    assert not a.row().changed


async def test_a_session_that_is_removed_while_it_is_given_up_is_committed_as_removed(
    a: ControlWorld,
) -> None:
    async with a.at_work(chores=True) as control:
        await control.resume()
        await control.claim(SESSION)
        a.unlink(b"f")
        await control.commit(SESSION, "test")
        at_release(a, a.remove_session)
        await control.release(SESSION)
        with trio.fail_after(5.0):
            await until(lambda: a.journal.session(SESSION) is None)
    assert a.manifest().removed
    assert a.record().state == "released"


async def test_what_is_written_while_the_answer_to_a_release_is_lost_is_uploaded(a: ControlWorld) -> None:
    async with a.at_work(chores=True) as control:
        await control.resume()
        await control.claim(SESSION)
        await control.commit(SESSION, "test")
        a.uploader.hold(a.key(b"f"))
        at_release(a, lambda: a.write(b"f", b"meanwhile"), is_lost=True)
        with pytest.raises(UnavailableError):
            await control.release(SESSION)
        a.uploader.release(a.key(b"f"))
        with trio.fail_after(5.0):
            await until(lambda: a.bucket()[a.key(b"f")] == b"meanwhile")
    assert a.record().state == "held"


async def test_a_release_whose_commit_fails_keeps_the_session(a: ControlWorld) -> None:
    await commit_session(a)
    a.write(b"f", b"newer")
    a.store.plan("put", *[FailBefore(AccessError("no"))] * 20)
    a.store.plan("copy", *[FailBefore(AccessError("no"))] * 20)
    async with a.at_work() as control:
        with pytest.raises(UnavailableError):
            await control.release(SESSION)
        assert a.ownership.owns(SESSION)
    assert a.record().state == "held"


async def test_all_that_owe_nothing_are_released_and_the_others_stay(a: ControlWorld) -> None:
    clean, changed = a.make_session("clean"), a.make_session("changed")
    async with a.at_work() as control:
        for session in (SESSION, clean, changed):
            await control.claim(session)
        await control.commit_all("unmount")
        os.mkdir(os.path.join(a.layout.sessions, changed, "d"))
        a.journal.update_session(changed, changed=True)
        await control.release_all()
    assert (a.record().state, a.record(clean).state, a.record(changed).state) == (
        "released",
        "released",
        "held",
    )


async def test_the_others_are_released_although_one_cannot_be(a: ControlWorld) -> None:
    other = a.make_session("zzz")
    async with a.at_work() as control:
        for session in (SESSION, other):
            await control.claim(session)
        await control.commit_all("unmount")
        a.store.plan("put", FailBefore(AccessError("no")))
        with pytest.raises(AccessError):
            await control.release_all()
    assert (a.record().state, a.record(other).state) == ("held", "released")


async def test_a_commit_that_fails_for_an_old_file_that_is_open_takes_the_session_from_nobody(
    a: ControlWorld, tmp_path: Path
) -> None:
    await commit_session(a)
    a.put_of_epoch(b"f", b"of another owner", 1)
    async with a.at_work() as control:
        await control.claim(SESSION)
        a.journal.set_meta(f"behind:{SESSION}", "1")
        a.states.clear()
        with pytest.raises(UnavailableError, match="still has the old file open"):
            await control.commit(SESSION, "test")
    assert [(state.owned, state.commit_problem != "") for state in a.states] == [(True, True)]
