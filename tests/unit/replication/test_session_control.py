"""Sessions as a whole: claimed, committed and given up by whoever asks, and by what nobody asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from sessionfs.model import keys
from sessionfs.model.errors import (
    AccessError,
    ConflictError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.cutting import cold_until
from sessionfs.replication.session_control import EPOCH_ATTRIBUTE
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, Pass
from tests.unit.replication.commit.commit_world import live_objects, read_generation
from tests.unit.replication.commit.control_world import ControlWorld, other_host
from tests.unit.replication.uploads.tree_world import FAST, SESSION, until

MANIFEST = keys.manifest_key(SESSION)
PREFIX = keys.session_prefix(SESSION)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def a(tmp_path: Path, store: MemoryStore) -> ControlWorld:
    """The host that made the session."""
    made = ControlWorld(tmp_path / "a", store)
    made.write(b"f", b"of a")
    return made


async def commit(world: ControlWorld) -> int:
    problem: SessionFSError | None = None
    generation = 0
    async with world.at_work() as control:
        try:
            generation = (await control.commit(SESSION, "test")).generation
        except SessionFSError as error:
            problem = error
    if problem is not None:
        raise problem
    return generation


async def claim(world: ControlWorld, *, force: bool = False) -> None:
    """Claim, and drop what is old, as the daemon does."""
    async with world.at_work() as control:
        claimed = await control.claim(SESSION, force=force)
        await world.drop(claimed.changes)
        await control.claim(SESSION)


async def overtaken(a: ControlWorld, directory: Path) -> ControlWorld:
    """A committed, and went away; another host took the session over, wrote and committed."""
    await commit(a)
    b = await other_host(directory / "b", a.memory)
    await claim(b, force=True)
    b.write(b"f", b"of b")
    b.write(b"g", b"new from b")
    await commit(b)
    return b


def restart(world: ControlWorld) -> None:
    world.states.clear()
    world.start()


# --- claims


async def test_a_commit_of_a_session_that_nobody_owns_claims_it(a: ControlWorld) -> None:
    assert not a.ownership.owns(SESSION)
    assert await commit(a) == 1
    assert (a.record().state, a.record().epoch, a.manifest().epoch) == ("held", 1, 1)
    assert a.control.is_open(SESSION)
    assert os.getxattr(a.path(b""), EPOCH_ATTRIBUTE) == b"1"
    assert a.row().written


async def test_a_commit_of_a_session_of_another_host_is_refused_and_sends_nothing(
    a: ControlWorld, tmp_path: Path
) -> None:
    await commit(a)
    b = await other_host(tmp_path / "b", a.memory)
    b.write(b"g", b"owed by b")
    before = b.bucket()
    with pytest.raises(SessionAlreadyOwnedError):
        await commit(b)
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
        again = await control.claim(SESSION)
        assert (again.epoch, again.changes) == (claimed.epoch, None)
        assert control.is_open(SESSION)
        await control.commit(SESSION, "test")
    assert sorted(a.kept_aside()) == [b"new on a", b"owed by a"]
    assert read_generation(a.memory) == {b"f": b"of b", b"g": b"new from b"}
    assert live_objects(a.memory) == {b"f": b"of b", b"g": b"new from b"}


async def test_a_claim_that_waits_for_another_does_not_take_the_news_over_twice(
    a: ControlWorld, tmp_path: Path
) -> None:
    await commit(a)
    b = await other_host(tmp_path / "b", a.memory)
    await claim(b, force=True)
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
    await claim(a)
    assert a.journal.meta(cold_until(SESSION)) == ""


async def test_without_an_answer_a_session_of_ours_is_only_presumed_and_nothing_is_sent(
    a: ControlWorld,
) -> None:
    await commit(a)
    a.write(b"f", b"later")
    restart(a)
    for method in ("put", "get", "head"):
        a.store.plan(method, *(FailBefore(UnavailableError("away")) for _ in range(200)))
    async with a.at_work(chores=True) as control:
        claimed = await control.claim(SESSION)
        assert (claimed.epoch, claimed.changes) == (0, None)
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
    await claim(b)
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
    await commit(a)
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


# --- several sessions


async def test_sessions_whose_turns_count_are_committed_first_and_one_failure_keeps_no_other(
    a: ControlWorld,
) -> None:
    turns = a.make_session("turns")
    async with a.at_work() as control:
        await control.claim(SESSION)
        await control.claim(turns)
        await control.commit(turns, "turn", is_turn=True)
        a.journal.update_session(turns, changed=True)
        a.store.calls.clear()
        await control.commit_all("unmount")
        order = [key for key in a.calls("put") if key.endswith("manifest.json")]
        assert order == [keys.manifest_key(turns), MANIFEST]
        a.journal.update_session(turns, changed=True)
        a.journal.update_session(SESSION, changed=True)
        a.store.plan("put", FailBefore(AccessError("no")))
        with pytest.raises(AccessError):
            await control.commit_all("unmount")
    assert a.row().generation == 2
    assert a.journal.session(turns) is not None
    assert "no" in a.control.problem(turns)
    assert a.control.problem(SESSION) == ""


# --- what nobody asks for


async def test_a_failed_commit_is_tried_again_and_told_until_it_succeeds(a: ControlWorld) -> None:
    async with a.at_work(chores=True) as control:
        await control.claim(SESSION)
        await a.uploader.flush([work.key for work in a.journal.session_work(SESSION)])
        a.states.clear()
        a.store.plan("put", *[FailBefore(AccessError("no"))] * 3)
        with pytest.raises(AccessError):
            await control.commit(SESSION, "file")
        assert "no" in a.told().commit_problem
        assert "no" in control.problem(SESSION)
        await until(lambda: a.row().generation == 1)
        await until(lambda: a.told().commit_problem == "")
        assert control.problem(SESSION) == ""
    assert a.manifest().trigger == "retry"
    assert all(state.owned for state in a.states)
    a.store.assert_all_used()


async def test_a_commit_that_another_owner_forbids_is_not_tried_again(
    a: ControlWorld, tmp_path: Path
) -> None:
    b = await overtaken(a, tmp_path)
    a.write(b"f", b"owed by a")
    async with a.at_work(chores=True) as control:
        with pytest.raises(OwnershipLostError):
            await control.commit(SESSION, "file")
        await until(lambda: not a.journal.session_work(SESSION))
        await until(lambda: control.problem(SESSION) == "")
    assert a.told().owned is False
    assert a.kept_aside() == [b"owed by a"]
    assert [key for key in a.calls("put") if key == MANIFEST].count(MANIFEST) <= 3
    assert b.manifest().epoch == 2
    assert live_objects(a.memory)[b"f"] == b"of b"


async def test_a_lost_session_is_kept_aside_as_soon_as_the_store_answers(
    a: ControlWorld, tmp_path: Path
) -> None:
    await overtaken(a, tmp_path)
    a.write(b"f", b"owed by a")
    a.store.plan("put", *[FailBefore(UnavailableError("away"))] * 3)
    a.ownership.lose(SESSION, holder="b", reason="seen")
    assert (a.told().owned, a.told().holder) == (False, "b")
    async with a.at_work(chores=True):
        await until(lambda: not a.journal.session_work(SESSION))
    assert a.kept_aside() == [b"owed by a"]
    assert not a.control.is_open(SESSION)
    row = a.row()
    assert (row.written, row.changed, row.owner_state) == (False, False, "lost")
    a.store.assert_all_used()


async def test_what_a_program_writes_after_the_loss_is_kept_aside_too(
    a: ControlWorld, tmp_path: Path
) -> None:
    await overtaken(a, tmp_path)
    a.write(b"f", b"owed by a")
    a.ownership.lose(SESSION, holder="b", reason="seen")
    async with a.at_work(chores=True) as control:
        await until(lambda: not a.journal.session_work(SESSION))
        a.write(b"f", b"written before the daemon knew")
        control.note_applied()
        await until(lambda: not a.journal.session_work(SESSION))
    assert sorted(a.kept_aside()) == [b"owed by a", b"written before the daemon knew"]
    assert (a.row().written, a.row().changed) == (False, False)


async def test_a_session_lost_by_a_process_that_died_is_kept_aside_by_the_next(
    a: ControlWorld, tmp_path: Path
) -> None:
    await overtaken(a, tmp_path)
    a.write(b"f", b"owed by a")
    a.ownership.lose(SESSION, holder="b", reason="seen")
    restart(a)
    async with a.at_work(chores=True):
        await until(lambda: not a.journal.session_work(SESSION))
    assert a.kept_aside() == [b"owed by a"]


async def test_the_timer_commits_what_changed_and_nothing_else(tmp_path: Path, store: MemoryStore) -> None:
    settings = msgspec.structs.replace(FAST, snapshot_interval_seconds=0.01)
    a = ControlWorld(tmp_path / "a", store, settings=settings)
    looks: list[int] = []
    sessions = a.journal.sessions

    def counted() -> object:
        looks.append(1)
        return sessions()

    a.write(b"f", b"1")
    async with a.at_work() as control:
        await control.claim(SESSION)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(control._run_timer)
            await until(lambda: a.row().generation == 1)
            a.journal.sessions = counted  # type: ignore[method-assign, assignment]
            await until(lambda: len(looks) > 3)
            assert a.row().generation == 1
            a.write(b"f", b"2")
            await until(lambda: a.row().generation == 2 and not a.row().changed)
            nursery.cancel_scope.cancel()
    assert a.manifest().trigger == "timer"
    assert read_generation(a.memory) == {b"f": b"2"}


async def test_the_timer_leaves_sessions_that_are_not_ours_alone(tmp_path: Path, store: MemoryStore) -> None:
    settings = msgspec.structs.replace(FAST, snapshot_interval_seconds=0.01)
    a = ControlWorld(tmp_path / "a", store, settings=settings)
    a.write(b"f", b"1")
    looks: list[int] = []
    owns = a.ownership.owns

    def counted(session: str) -> bool:
        looks.append(1)
        return owns(session)

    a.ownership.owns = counted  # type: ignore[method-assign]
    async with a.at_work() as control, trio.open_nursery() as nursery:
        nursery.start_soon(control._run_timer)
        await until(lambda: len(looks) > 3)
        nursery.cancel_scope.cancel()
    assert a.calls("put") == []


async def test_a_removal_is_committed_and_the_session_given_up(a: ControlWorld) -> None:
    await commit(a)
    before = a.tree()
    a.unlink(b"f")
    a.remove_session()
    async with a.at_work(chores=True) as control:
        control.note_applied()
        await until(lambda: a.journal.session(SESSION) is None)
    assert a.manifest().removed
    assert a.record().state == "released"
    assert live_objects(a.memory) == {}
    assert read_generation(a.memory, 1) == before


async def test_a_session_that_was_never_sent_and_is_removed_leaves_nothing_to_take(
    a: ControlWorld, tmp_path: Path
) -> None:
    a.unlink(b"f")
    a.remove_session()
    async with a.at_work(chores=True) as control:
        await control.resume()
        await until(lambda: a.journal.session(SESSION) is None)
    assert live_objects(a.memory) == {}
    assert a.journal.all_work() == []


async def test_a_removal_that_fails_is_tried_again(a: ControlWorld) -> None:
    await commit(a)
    a.unlink(b"f")
    a.remove_session()
    a.store.plan("delete", FailBefore(UnavailableError("away")))
    a.store.plan("put", *[FailBefore(AccessError("no"))] * 2, Pass())
    async with a.at_work(chores=True):
        await until(lambda: a.journal.session(SESSION) is None)
    assert a.manifest().removed
    a.store.assert_all_used()


async def test_a_session_of_another_host_that_is_removed_here_is_only_forgotten(
    a: ControlWorld, tmp_path: Path
) -> None:
    """Its files cannot be removed through a mount that does not own it; the daemon may drop it as a whole."""
    await commit(a)
    b = await other_host(tmp_path / "b", a.memory)
    root = b.number(b"")
    b.journal.unlink(1, SESSION.encode())
    b.control.note_applied()
    async with b.at_work(chores=True):
        await until(lambda: b.journal.session(SESSION) is None)
    assert root
    assert live_objects(a.memory) == {b"f": b"of a"}
    assert not a.manifest().removed


async def test_a_session_that_owes_something_and_has_no_owner_is_claimed_in_the_background(
    a: ControlWorld,
) -> None:
    async with a.at_work(chores=True) as control:
        control.note_applied()
        await trio.testing.wait_all_tasks_blocked()
        assert not a.ownership.owns(SESSION)
        await control.resume()
        await until(lambda: control.is_open(SESSION))
        await until(lambda: not a.journal.session_work(SESSION))
        assert a.told().owned
    assert live_objects(a.memory) == {b"f": b"of a"}


async def test_what_is_owed_of_another_hosts_session_is_kept_aside_in_the_background(
    a: ControlWorld, tmp_path: Path
) -> None:
    await commit(a)
    b = await other_host(tmp_path / "b", a.memory)
    b.write(b"g", b"owed by b")
    async with b.at_work(chores=True) as control:
        await control.resume()
        await until(lambda: not b.journal.session_work(SESSION))
    assert b.kept_aside() == [b"owed by b"]
    assert b.told().owned is False
    assert live_objects(a.memory) == {b"f": b"of a"}


async def test_after_a_restart_a_session_of_ours_is_ours_again_and_told(a: ControlWorld) -> None:
    await commit(a)
    a.write(b"f", b"owed")
    restart(a)
    async with a.at_work(chores=True) as control:
        await control.resume()
        await until(lambda: bool(a.states) and a.told().owned)
        await until(lambda: not a.journal.session_work(SESSION))
        assert (await control.commit(SESSION, "test")).generation == 2
    assert (a.record().epoch, a.record().state) == (2, "held")
    assert a.kept_aside() == []
    assert read_generation(a.memory) == {b"f": b"owed"}


async def test_after_a_restart_what_others_did_is_taken_over_in_the_background(
    a: ControlWorld, tmp_path: Path
) -> None:
    b = await overtaken(a, tmp_path)
    async with b.at_work() as control:
        await control.release(SESSION)
    restart(a)
    async with a.at_work(chores=True) as control:
        await control.resume()
        await until(lambda: bool(a.states))
        # Nothing old may be written to: the daemon drops it first.
        await until(lambda: a.ownership.may_change(SESSION))
        assert not control.is_open(SESSION)
        assert not any(state.owned for state in a.states if state.session == SESSION)
        claimed = await control.claim(SESSION)
        await a.drop(claimed.changes)
        await control.claim(SESSION)
        assert control.is_open(SESSION)
    assert a.kept_aside() == []
