"""Becoming the owner: what the last owner changed is taken over before the change that waited for it."""

from __future__ import annotations

import errno
import math
import os
from typing import Any

import msgspec
import pytest
import trio

from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.formats.ownership_messages import Claimed, SessionState
from sessionfs.model.errors import SessionAlreadyOwnedError, UnavailableError
from tests.unit.filesystem.conftest import ME, Rig, answer


def claims(rig: Rig) -> int:
    return sum(name == "claim" for name, _ in rig.remote.take_calls())


async def warm(rig: Rig) -> tuple[int, int]:
    """A session of the bucket with one file whose bytes are here; gives the numbers of root and file."""
    root = rig.remote.add_session("s")
    number = rig.remote.add_file(root, b"a", b"old")
    await rig.look(b"s", b"a")
    assert await rig.read(number) == b"old"
    rig.remote.take_calls()
    return root, number


def written_elsewhere(rig: Rig, root: int, number: int, body: bytes) -> None:
    """Another host wrote the file since; the next claim tells of it."""
    rig.remote.replace_file(root, b"a", body, mtime_ns=9)
    rig.remote.refreshed = SessionRefreshed([], [], foreign=True)
    news = SessionRefreshed([root], [number], foreign=True, paths={number: b"s/a"})
    rig.remote.claims = [Claimed(changes=news), Claimed()]


async def test_old_bytes_are_replaced_before_the_file_is_opened_for_writing(rig: Rig) -> None:
    root, number = await warm(rig)
    written_elsewhere(rig, root, number, b"newer bytes")
    opened = await answer(rig.core.open(number, os.O_RDWR | os.O_APPEND, ME))
    assert rig.core.write(opened.handle, 0, b"!") == 1
    assert rig.core.read(opened.handle, 0, 100) == b"newer bytes!"
    assert claims(rig) == 2
    assert rig.operations() == ["MATERIALISED", "FETCHED", "EVICTED", "FETCHED", "OPEN_WRITE", "WRITTEN"]


async def test_what_a_claim_names_as_old_leaves_although_the_session_counted_as_ours(rig: Rig) -> None:
    """It was given up, or lost before this daemon knew it: nobody told that it is foreign."""
    root, number = await warm(rig)
    session = rig.core._sessions.sessions[b"s"]
    session.disown()
    session.foreign = False
    written_elsewhere(rig, root, number, b"newer bytes")
    await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert claims(rig) == 2
    assert await rig.read(number) == b"newer bytes"
    assert session.stale == set()


async def test_the_change_begins_again_with_the_names_that_the_last_owner_left(rig: Rig) -> None:
    root, number = await warm(rig)
    rig.remote.remove_name(root, b"a")
    rig.remote.add_file(root, b"b", b"other")
    rig.remote.claims = [
        Claimed(changes=SessionRefreshed([root], [number], foreign=True, paths={number: b"s/a"}))
    ]
    rig.remote.refreshed = SessionRefreshed([], [], foreign=True)
    with pytest.raises(FileNotFoundError):
        await answer(rig.core.rename(root, b"a", root, b"c", 0, ME))
    await answer(rig.core.rename(root, b"b", root, b"c", 0, ME))
    assert await rig.names(root) == [b"c"]


async def test_a_file_that_is_read_meanwhile_leaves_when_it_is_closed(rig: Rig) -> None:
    root, number = await warm(rig)
    reading = await answer(rig.core.open(number, os.O_RDONLY, ME))
    written_elsewhere(rig, root, number, b"newer")
    await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert rig.core.read(reading.handle, 0, 100) == b"old"
    rig.core.release(reading.handle)
    assert await rig.read(number) == b"newer"
    session = rig.core._sessions.sessions[b"s"]
    assert session.foreign
    session.refreshed_seconds = -math.inf
    await rig.look(b"s", b"a")
    assert session.stale == set()
    assert rig.core._sessions.sessions[b"s"].foreign is False
    await answer(rig.core.open(number, os.O_WRONLY, ME))
    assert claims(rig) == 1


async def test_what_was_heard_last_is_named_by_the_next_question(rig: Rig) -> None:
    root, number = await warm(rig)
    session = rig.core._sessions.sessions[b"s"]
    rig.remote.refreshed = SessionRefreshed([root], [], foreign=True, version=7)
    session.refreshed_seconds = -math.inf
    await rig.look(b"s", b"a")
    rig.remote.claim_error = UnavailableError("the answer was not heard")
    with pytest.raises(UnavailableError):
        await answer(rig.core.open(number, os.O_WRONLY, ME))
    assert rig.remote.known["s"] == 7
    rig.remote.claim_error = None
    # What the claim that was not heard took over: the next answer names every directory.
    rig.remote.replace_file(root, b"a", b"changed", mtime_ns=9)
    rig.remote.add_file(root, b"new", b"new")
    news = SessionRefreshed([root], [number], foreign=True, paths={number: b"s/a"}, version=9)
    rig.remote.claims = [Claimed(changes=news), Claimed()]
    rig.remote.refreshed = SessionRefreshed([], [], foreign=True)
    with pytest.raises(FileExistsError):
        await answer(rig.core.create(root, b"new", 0o644, os.O_RDWR | os.O_EXCL, ME))
    assert rig.remote.known["s"] == 9
    assert await rig.names(root) == [b"a", b"new"]


async def test_many_changes_at_once_share_one_claim(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    root, number = await warm(rig)
    answered = rig.remote.claim

    async def slow(session: str, **named: Any) -> Claimed:
        await trio.sleep(0.05)
        return await answered(session, **named)

    monkeypatch.setattr(rig.remote, "claim", slow)
    async with trio.open_nursery() as nursery:
        for index in range(5):
            nursery.start_soon(answer, rig.core.mkdir(root, b"d%d" % index, 0o755, ME))
        nursery.start_soon(answer, rig.core.open(number, os.O_WRONLY, ME))
    assert claims(rig) == 1
    assert len(await rig.names(root)) == 6


async def test_the_holder_is_told_in_the_files_attributes(rig: Rig) -> None:
    _, number = await warm(rig)
    rig.remote.description = msgspec.structs.replace(rig.remote.description, owner="")
    rig.remote.claim_error = SessionAlreadyOwnedError("s is owned", holder="host b")
    with pytest.raises(SessionAlreadyOwnedError):
        await answer(rig.core.open(number, os.O_WRONLY, ME))
    assert await answer(rig.core.getxattr(number, b"user.sessionfs.owner", ME)) == b"host b"
    assert b"host b" in await answer(rig.core.getxattr(number, b"user.sessionfs.reason", ME))


async def test_a_store_that_is_away_refuses_the_change_and_the_next_one_asks_again(rig: Rig) -> None:
    root, _ = await warm(rig)
    rig.remote.claim_error = UnavailableError("away")
    with pytest.raises(UnavailableError):
        await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    rig.remote.claim_error = None
    await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert claims(rig) == 2


async def test_a_loss_told_while_the_claim_is_under_way_is_not_overlooked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = await warm(rig)
    answered = rig.remote.claim
    calls: list[str] = []

    async def lost_at_once(session: str, **named: Any) -> Claimed:
        claimed = await answered(session, **named)
        calls.append(session)
        if len(calls) > 1:
            raise SessionAlreadyOwnedError("s is owned", holder="host b")
        rig.core.note_session_state(SessionState("s", owned=False, holder="host b"))
        return claimed

    monkeypatch.setattr(rig.remote, "claim", lost_at_once)
    with pytest.raises(SessionAlreadyOwnedError):
        await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert len(calls) == 2


async def test_the_kernel_forgets_a_lost_session(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"x")
    told: list[tuple[int, bytes]] = []

    class Kernel:
        def invalidate_entry(self, parent: int, name: bytes) -> None:
            told.append((parent, name))

        def invalidate_inode(self, number: int) -> None:
            told.append((number, b""))

    rig.core.set_notifier(Kernel())
    rig.remote.take_calls()
    rig.core.note_session_state(SessionState("s", owned=False, holder="host b"))
    assert {(number, b""), (root, b""), (root, b"a")} <= set(told)
    assert (await rig.look(b"s", b"a")).entry_timeout <= 1.0
    assert ("refresh_session", "s") in rig.remote.calls


async def test_news_of_a_session_that_nobody_used_are_ignored(rig: Rig) -> None:
    rig.core.note_session_state(SessionState("never seen", owned=False))
    assert rig.core.status_counters()["sessions"] == 0


async def test_a_mount_that_is_being_ended_claims_nothing(rig: Rig) -> None:
    root, _ = await warm(rig)
    rig.core.block_writers("the mount is being ended")
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert claims(rig) == 0


async def test_a_commit_of_a_session_that_is_not_ours_takes_over_what_others_did_first(rig: Rig) -> None:
    root, number = await warm(rig)
    rig.core._sessions.sessions[b"s"].disown()
    written_elsewhere(rig, root, number, b"newer bytes")
    rig.remote.take_calls()
    await rig.core.session_requests.commit("s", "command")
    asked = [name for name, _ in rig.remote.take_calls()]
    assert asked.index("claim") < asked.index("commit")
    assert "EVICTED" in rig.operations()
    assert await rig.read(number) == b"newer bytes"


async def test_a_session_that_is_lost_before_anything_was_changed_here_is_compared_at_its_next_use(
    rig: Rig,
) -> None:
    await warm(rig)
    session = rig.core._sessions.sessions[b"s"]
    session.foreign = False
    rig.core.note_session_state(SessionState("s", owned=False, holder="b"))
    assert session.foreign
    assert session.refreshed_seconds == -math.inf


@pytest.mark.parametrize("act", ["write", "chmod", "rename", "link"])
async def test_an_old_file_that_a_program_changes_before_it_left_is_ours_from_then_on(
    rig: Rig, act: str
) -> None:
    """The upload keeps the other host's aside; nothing that was acknowledged leaves with the old bytes."""
    root, number = await warm(rig)
    opened = await answer(rig.core.open(number, os.O_RDWR, ME))
    rig.core.write(opened.handle, 0, b"OLD")
    rig.core._sessions.sessions[b"s"].disown()
    written_elsewhere(rig, root, number, b"newer")
    await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert rig.core._sessions.sessions[b"s"].stale == {number}
    if act == "write":
        assert rig.core.write(opened.handle, 0, b"NEW") == 3
    elif act == "chmod":
        await answer(rig.core.setattr(number, ME, mode=0o600))
    elif act == "rename":
        await answer(rig.core.rename(root, b"a", root, b"moved", 0, ME))
    else:
        await answer(rig.core.link(number, root, b"linked", ME))
    rig.core.release(opened.handle)
    assert "EVICTED" not in rig.operations()
    assert await rig.read(number) == (b"NEW" if act == "write" else b"OLD")


async def test_under_strict_a_claim_that_fails_before_a_commit_closes_nothing(rigs: Any) -> None:
    """The replication process knows of no failed commit, and would never tell that it is over."""
    rig = rigs(policy="strict")
    _root, number = await warm(rig)
    rig.remote.claims = [UnavailableError("no route")]
    with pytest.raises(UnavailableError):
        await rig.core.session_requests.commit("s", "command")
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    rig.core.release(opened.handle)
