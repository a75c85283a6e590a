"""What a person asks of one session: commit, claim, release."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.errors import (
    ConflictError,
    NotFoundError,
    SessionAlreadyOwnedError,
    UnavailableError,
)

from .conftest import ME, Rig, answer


async def test_a_commit_names_its_trigger_and_needs_no_open_session(rig: Rig) -> None:
    rig.remote.add_session("s")
    committed = await rig.core.session_requests.commit("s", "command")
    assert (committed.session, committed.generation) == ("s", 1)
    assert rig.remote.commits == [("s", "command", False)]


@pytest.mark.parametrize("session", ["t", "s%g1", "..", "", "a/b"])
async def test_a_session_that_is_not_there_is_named(rig: Rig, session: str) -> None:
    rig.remote.add_session("s%g1")
    requests = rig.core.session_requests
    for attempt in (requests.commit(session, "command"), requests.claim(session, force=False)):
        with pytest.raises(NotFoundError, match="there is no session"):
            await attempt
    with pytest.raises(NotFoundError):
        await requests.release(session)
    assert rig.remote.commits == []


async def test_a_store_that_does_not_answer_is_no_missing_session(rig: Rig) -> None:
    rig.remote.error = UnavailableError("no route")
    with pytest.raises(UnavailableError):
        await rig.core.session_requests.commit("s", "command")


@pytest.mark.parametrize("force", [False, True])
async def test_a_claim_makes_the_session_writable_here(rig: Rig, force: bool) -> None:
    rig.remote.add_session("s")
    await rig.core.session_requests.claim("s", force=force)
    call = "claim by force" if force else "claim"
    assert rig.remote.take_calls()[-1] == (call, "s")
    await rig.file((await rig.look(b"s")).number, b"a", b"1")
    assert "claim" not in [name for name, _ in rig.remote.calls]


async def test_a_refused_claim_names_the_holder(rig: Rig) -> None:
    rig.remote.add_session("s")
    rig.remote.claim_error = SessionAlreadyOwnedError("s is owned by far", holder="far")
    with pytest.raises(SessionAlreadyOwnedError) as caught:
        await rig.core.session_requests.claim("s", force=False)
    assert caught.value.holder == "far"


async def test_a_released_session_is_claimed_again_by_the_next_change(rig: Rig) -> None:
    root = await rig.session()
    await rig.file(root, b"a", b"1")
    rig.remote.take_calls()
    await rig.core.session_requests.release("s")
    assert rig.remote.take_calls() == [("release", "s")]
    await rig.file(root, b"b", b"2")
    assert ("claim", "s") in rig.remote.calls


async def test_a_release_that_fails_leaves_a_session_that_is_claimed_again(rig: Rig) -> None:
    root = await rig.session()
    rig.remote.error = UnavailableError("no route")
    with pytest.raises(UnavailableError):
        await rig.core.session_requests.release("s")
    rig.remote.error = None
    rig.remote.take_calls()
    await rig.file(root, b"b", b"2")
    assert ("claim", "s") in rig.remote.calls


async def test_a_session_that_is_being_written_is_not_released(rig: Rig) -> None:
    root = await rig.session()
    directory = (await answer(rig.core.mkdir(root, b"d", 0o755, ME))).number
    opened, _ = await answer(rig.core.create(directory, b"a", 0o644, os.O_WRONLY, ME))
    with pytest.raises(ConflictError, match=r"s is being written: d/a \(close what is open"):
        await rig.core.session_requests.release("s")
    assert ("release", "s") not in rig.remote.calls
    assert await answer(rig.core.write(opened.handle, 0, b"x")) == 1
    rig.core.release(opened.handle)
    await rig.core.session_requests.release("s")


async def test_a_read_only_mount_changes_no_owner(rigs: Callable[..., Rig]) -> None:
    rig = rigs(read_only=True)
    rig.remote.add_session("s")
    with pytest.raises(ConflictError, match="read-only"):
        await rig.core.session_requests.claim("s", force=True)
    assert ("claim by force", "s") not in rig.remote.calls


async def test_a_notice_of_a_failed_commit_is_shown_until_the_next_notice(rig: Rig) -> None:
    await rig.session()
    rig.core.note_session_state(SessionState("s", owned=True, commit_problem="no route"))
    assert rig.core.session_requests.problems() == {"s": "no route"}
    rig.core.note_session_state(SessionState("s", owned=True))
    assert rig.core.session_requests.problems() == {}
