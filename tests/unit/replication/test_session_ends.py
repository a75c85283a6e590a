"""Sessions as a whole, continued: what is given up, removed, and lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.model import keys
from sessionfs.model.errors import (
    AccessError,
    OwnershipLostError,
    UnavailableError,
)
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, Pass
from tests.unit.replication.commit.commit_world import live_objects, read_generation
from tests.unit.replication.commit.control_world import (
    ControlWorld,
    commit_session,
    other_host,
    overtaken,
    restart,
)
from tests.unit.replication.uploads.tree_world import FAST, SESSION, until

MANIFEST = keys.manifest_key(SESSION)
PREFIX = keys.session_prefix(SESSION)


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


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_commit_that_fails_in_time_says_whether_the_session_was_lost(
    a: ControlWorld, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    async with a.at_work() as control:
        await control.commit(SESSION, "first")

        async def waits_in_vain(*_arguments: object, **_named: object) -> None:
            if is_lost:
                a.ownership.lose(SESSION, holder="b", reason="seen")
            raise UnavailableError("'f' was not in the bucket in time")

        monkeypatch.setattr(control._committer, "commit", waits_in_vain)
        with pytest.raises(
            OwnershipLostError if is_lost else UnavailableError, match="not in the bucket in time"
        ):
            await control.commit(SESSION, "second")


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
    await commit_session(a)
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
    await commit_session(a)
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
    await commit_session(a)
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
    await commit_session(a)
    b = await other_host(tmp_path / "b", a.memory)
    b.write(b"g", b"owed by b")
    async with b.at_work(chores=True) as control:
        await control.resume()
        await until(lambda: not b.journal.session_work(SESSION))
    assert b.kept_aside() == [b"owed by b"]
    assert b.told().owned is False
    assert live_objects(a.memory) == {b"f": b"of a"}


async def test_after_a_restart_a_session_of_ours_is_ours_again_and_told(a: ControlWorld) -> None:
    await commit_session(a)
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
