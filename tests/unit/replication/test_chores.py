"""What wakes the chores of sessions, and what waits for its pause whatever programs write meanwhile."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from sessionfs.model.errors import UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.ownership.estrangement import Estrangement
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.upload_journal import UploadJournal
from tests.unit.replication.commit.control_world import (
    ControlWorld,
    claim_session,
    commit_session,
    other_host,
)
from tests.unit.replication.uploads.tree_world import FAST, SESSION, until

PATIENT = msgspec.structs.replace(FAST, retry_minimum_seconds=3600.0, retry_maximum_seconds=3600.0)
OTHER = SessionId("other")


class Rounds:
    """Plays the setting aside of lost sessions: the store is away while `is_away`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[str] = []
        self.is_away = True
        self.entered = trio.Event()
        self.go_on = trio.Event()
        self.go_on.set()
        rounds = self

        async def set_aside(estrangement: Estrangement, session: SessionId) -> int:
            rounds.tried.append(session)
            if not rounds.is_away:
                finish(estrangement._journal, session)
            rounds.entered.set()
            await rounds.go_on.wait()
            if rounds.is_away:
                raise UnavailableError("away")
            return 0

        monkeypatch.setattr(Estrangement, "set_aside", set_aside)


def finish(journal: UploadJournal, session: SessionId) -> None:
    """Nothing of a session is owed any more."""
    for row in journal.session_work(session):
        journal.finish_work(row.key, row.version)


@pytest.fixture
def host(tmp_path: Path) -> ControlWorld:
    """A host with a lost session."""
    made = ControlWorld(tmp_path / "host", MemoryStore(), settings=PATIENT)
    made.write(b"f", b"1")
    made.journal.update_session(SESSION, owner_state="lost")
    return made


async def applied(host: ControlWorld, path: bytes = b"f") -> None:
    """The log told that a program wrote something."""
    host.write(path, b"more")
    host.control.note_applied()
    await trio.testing.wait_all_tasks_blocked()


async def test_what_failed_waits_for_its_pause_although_programs_go_on_writing(
    host: ControlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(monkeypatch)
    async with host.at_work(chores=True):
        await rounds.entered.wait()
        await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            await applied(host, b"%d" % number)
        assert rounds.tried == [SESSION]
        # Another session has not been tried: it does not wait.
        host.make_session(OTHER)
        host.journal.update_session(OTHER, owner_state="lost")
        await applied(host)
        assert rounds.tried == [SESSION, OTHER, SESSION]


async def test_writes_during_a_round_that_fails_do_not_begin_another(
    host: ControlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(monkeypatch)
    rounds.go_on = trio.Event()
    async with host.at_work(chores=True):
        await rounds.entered.wait()
        await applied(host)
        rounds.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert rounds.tried == [SESSION]


async def test_what_is_written_while_or_after_it_was_set_aside_is_set_aside_too(
    host: ControlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(monkeypatch)
    rounds.is_away, rounds.go_on = False, trio.Event()
    async with host.at_work(chores=True):
        await rounds.entered.wait()
        await applied(host)
        rounds.go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert rounds.tried == [SESSION] * 2
        await applied(host)
        assert rounds.tried == [SESSION] * 3
        assert not host.journal.owes(SESSION)


async def test_what_was_settled_otherwise_and_is_owed_anew_does_not_wait(
    host: ControlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(monkeypatch)
    async with host.at_work(chores=True):
        await rounds.entered.wait()
        await trio.testing.wait_all_tasks_blocked()
        finish(host.journal, SESSION)
        host.control.note_applied()
        await applied(host)
        assert rounds.tried == [SESSION] * 2


async def test_the_cost_of_looking_is_that_of_sessions_not_of_what_they_owe(
    host: ControlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        host.write(b"f%d" % number, b"1")
    read: list[str] = []
    monkeypatch.setattr(UploadJournal, "session_work", lambda _journal, session: read.append(session))
    seen: list[str] = []
    host.journal._database.set_trace_callback(seen.append)
    host.control.note_applied()
    host.journal._database.set_trace_callback(None)
    assert len(seen) == 2
    assert read == []


async def test_a_commit_that_fails_for_what_is_not_taken_over_yet_waits_for_its_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim says each time that there is something to take over: that alone begins no other round."""
    host = ControlWorld(tmp_path / "host", MemoryStore(), settings=PATIENT)
    host.write(b"f", b"1")
    tries: list[str] = []

    async def fail(session: SessionId, _claim: object) -> None:
        tries.append(session)
        # A round that begins another at once would go on for ever.
        await trio.lowlevel.checkpoint()
        if len(tries) > 50:
            await trio.sleep_forever()
        raise UnavailableError("not now")

    monkeypatch.setattr(host.control, "_take_over", fail)
    monkeypatch.setattr(host.ownership, "is_caught_up", lambda _session: False)
    async with host.at_work(chores=True) as control:
        with pytest.raises(UnavailableError):
            await control.commit(SESSION, "test")
        await trio.sleep(0.2)
        await trio.testing.wait_all_tasks_blocked()
        assert len(tries) < 10


async def test_a_put_that_arrives_after_its_session_was_given_up_and_taken_is_owed_by_nobody_here(
    tmp_path: Path,
) -> None:
    """Who owns it now finds the object by its epoch."""
    store = MemoryStore()
    a = ControlWorld(tmp_path / "a", store)
    a.write(b"f", b"1")
    await commit_session(a)
    async with a.at_work() as control:
        await control.release(SESSION)
    b = await other_host(tmp_path / "b", store)
    await claim_session(b)
    key = a.key(b"late")
    a.put_of_epoch(b"late", b"sent long ago", 1)
    write_id = store.head(key).metadata.user["sessionfs-write"]  # type: ignore[union-attr]
    a.journal.begin_attempt(write_id, key)
    a.journal.settle_attempt(write_id)
    a.uploader._on_arrived = a.control.note_applied
    await a.control.resume()
    async with a.at_work(chores=True):
        await trio.testing.wait_all_tasks_blocked()
        a.uploader._attempts._late = [(0.0, key)]
        a.uploader.wake()
        await until(lambda: not a.journal.attempts(key) and not a.journal.owes(SESSION))
    assert not a.ownership.owns(SESSION)
