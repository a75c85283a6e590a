"""Calls to a replication process that answers, dies, is started again, or stays silent."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.formats.commit_messages import Commit, Committed, GenerationNumbers, ListGenerations
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import Entry
from sessionfs.formats.link_messages import (
    AnyMessage,
    Describe,
    Description,
    Done,
    Drain,
    Drained,
    Fetch,
    Fetched,
    Flush,
    GetStatus,
    LogGrew,
    ResolveConflict,
    SessionStatus,
    Status,
)
from sessionfs.formats.ownership_messages import Claim, Claimed, Release, ReleaseAll
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import CorruptDataError, SessionAlreadyOwnedError, UnavailableError
from sessionfs.replication.link import Handler, Link
from sessionfs.working_copy.intent_log import IntentLog

from .fake_mount import until

ENTRY = Entry(b"a", 7, True, 0o100644, 0, 0, 3, 0)  # noqa: FBT003 - positional record


def status(degraded: str = "", *, downloaded_bytes: int = 0) -> Status:
    session = SessionStatus("s", "", True, "owed", 1, 2, 0.5, 3, "", 0)  # noqa: FBT003 - positional record
    return Status([session], degraded, 1, 2, 0, 0, {}, downloaded_bytes=downloaded_bytes)


@pytest.fixture
def log(tmp_path: Path) -> IntentLog:
    return IntentLog(str(tmp_path / "intent.log"), boot_id="boot", clock=SystemClock())


@asynccontextmanager
async def process(client: ReplicationClient, handler: Handler) -> AsyncIterator[Link]:
    """A replication process of this handler, attached; it dies at the end."""
    here, there = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())

    async def no_requests(_message: AnyMessage) -> AnyMessage:
        return Done()

    ours = Link(here, no_requests, unclaimed=client.discard)
    theirs = Link(there, handler)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.serve)
        nursery.start_soon(theirs.serve)
        client.attach(ours)
        try:
            yield theirs
        finally:
            client.detach("died")
            nursery.cancel_scope.cancel()


async def test_a_request_names_the_log_position_of_its_moment(log: IntentLog) -> None:
    positions: list[int] = []

    async def answer(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Describe):
            positions.append(message.log_position)
            return Description(state="clean")
        return Done()

    client = ReplicationClient(log, timeout_seconds=5)
    async with process(client, answer):
        await client.describe(7)
        log.note(Operation.MKDIR, number=7)
        await client.describe(7)
    assert positions == sorted(positions)
    assert positions[1] == log.position > positions[0]


async def test_growth_is_told_without_a_call_and_not_for_every_record(log: IntentLog) -> None:
    told: list[int] = []

    async def answer(message: AnyMessage) -> AnyMessage:
        assert isinstance(message, LogGrew)
        told.append(message.log_position)
        return Done()

    client = ReplicationClient(log, timeout_seconds=5)
    async with process(client, answer), trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        for _ in range(500):
            log.note(Operation.MKDIR, number=7)
        await until(lambda: told and told[-1] == log.position)
        nursery.cancel_scope.cancel()
    assert len(told) <= 3


async def test_a_call_during_a_restart_goes_to_the_next_process(log: IntentLog) -> None:
    died = trio.Event()
    answers: list[str] = []

    async def dies(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Describe):
            died.set()
            await trio.sleep_forever()
        return Done()

    async def lives(message: AnyMessage) -> AnyMessage:
        return Description(state="clean") if isinstance(message, Describe) else Done()

    client = ReplicationClient(log, timeout_seconds=5)

    async def ask() -> None:
        answers.append((await client.describe(7)).state)

    async with trio.open_nursery() as nursery:
        async with process(client, dies):
            nursery.start_soon(ask)
            await died.wait()
        assert client.trouble == "died"
        async with process(client, lives):
            await until(lambda: answers)
    assert answers == ["clean"]


async def test_whoever_waits_hears_of_the_next_process_however_often_the_last_was_said_to_be_gone(
    log: IntentLog,
) -> None:
    client = ReplicationClient(log, timeout_seconds=5.0)

    async def answer(_message: AnyMessage) -> AnyMessage:
        return Description("clean")

    async with trio.open_nursery() as nursery:
        heard = trio.Event()

        async def ask() -> None:
            assert (await client.describe(3)).state == "clean"
            heard.set()

        # Who made a call and who started the process both notice its end; a start that failed tells it once more.
        client.detach("a call found no process")
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        client.detach("its end was seen")
        client.detach("it cannot start")
        with trio.fail_after(2.0):
            async with process(client, answer):
                await heard.wait()


async def test_a_call_to_no_process_ends_in_time_with_the_reason(log: IntentLog) -> None:
    client = ReplicationClient(log, timeout_seconds=0.05)
    client.detach("it died five times")
    with pytest.raises(UnavailableError, match="it died five times"):
        await client.describe(7)


async def test_a_process_that_stays_silent_is_unavailable_in_time(log: IntentLog) -> None:
    async def silent(_message: AnyMessage) -> AnyMessage:
        await trio.sleep(60)
        return Done()

    client = ReplicationClient(log, timeout_seconds=0.1)
    async with process(client, silent):
        with pytest.raises(UnavailableError, match="no answer from the store within"):
            await client.describe(7)


async def test_a_long_download_goes_on_while_bytes_come(log: IntentLog) -> None:
    downloaded_bytes = 0

    async def slow(message: AnyMessage) -> AnyMessage:
        nonlocal downloaded_bytes
        if isinstance(message, Fetch):
            await trio.sleep(3)
            return Fetched("x", ENTRY)
        downloaded_bytes += 1
        return status(downloaded_bytes=downloaded_bytes) if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=1.0)
    async with process(client, slow):
        assert (await client.fetch(7)).staged == "x"


async def test_a_download_to_which_no_bytes_come_ends_in_time(log: IntentLog) -> None:
    async def stuck(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Fetch):
            await trio.sleep(60)
        return status(downloaded_bytes=7) if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=0.2)
    async with process(client, stuck):
        with trio.fail_after(0.4), pytest.raises(UnavailableError):
            await client.fetch(7)


async def test_hundreds_of_downloads_ask_together_whether_bytes_come(log: IntentLog) -> None:
    asked = downloaded_bytes = 0

    async def slow(message: AnyMessage) -> AnyMessage:
        nonlocal asked, downloaded_bytes
        if isinstance(message, Fetch):
            await trio.sleep(6)
            return Fetched("x", ENTRY)
        if not isinstance(message, GetStatus):
            return Done()
        asked += 1
        downloaded_bytes += 1
        # As long as a status of a busy process takes; hundreds of them, one after the other, would take ten seconds.
        time.sleep(0.03)  # noqa: ASYNC251 - the processor is what is scarce
        return status(downloaded_bytes=downloaded_bytes)

    client = ReplicationClient(log, timeout_seconds=4.0)
    async with process(client, slow), trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(client.fetch, number)
    assert asked < 50


async def test_a_download_is_judged_also_when_whoever_had_asked_first_is_gone(log: IntentLog) -> None:
    downloaded_bytes = 0

    async def slow(message: AnyMessage) -> AnyMessage:
        nonlocal downloaded_bytes
        if isinstance(message, Fetch):
            await trio.sleep(3)
            return Fetched("x", ENTRY)
        if isinstance(message, GetStatus):
            await trio.sleep(0.05)
        downloaded_bytes += 1
        return status(downloaded_bytes=downloaded_bytes) if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=1.0)
    got: list[str] = []

    async def patient() -> None:
        got.append((await client.fetch(7)).staged)

    async with process(client, slow), trio.open_nursery() as nursery:
        with trio.move_on_after(0.53):  # ends while its question is under way
            nursery.start_soon(patient)
            await client.fetch(8)
    assert got == ["x"]


async def test_a_process_that_is_busy_for_a_moment_ends_no_download(log: IntentLog) -> None:
    downloaded_bytes = 0

    async def slow(message: AnyMessage) -> AnyMessage:
        nonlocal downloaded_bytes
        if isinstance(message, Fetch):
            await trio.sleep(6)
            return Fetched("x", ENTRY)
        if isinstance(message, GetStatus):
            downloaded_bytes += 1
            if downloaded_bytes <= 2:
                await trio.sleep(2.3)
        return status(downloaded_bytes=downloaded_bytes) if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=3.0)
    async with process(client, slow):
        assert (await client.fetch(7)).staged == "x"


async def test_a_flush_goes_on_while_the_store_answers(log: IntentLog) -> None:
    async def slow(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Flush):
            await trio.sleep(3)
        return status() if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=1.0)
    async with process(client, slow):
        await client.flush(7)


async def test_a_flush_to_a_store_that_does_not_answer_ends_in_time(log: IntentLog) -> None:
    async def slow(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Flush):
            await trio.sleep(60)
        return status("no route") if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=0.2)
    async with process(client, slow):
        with trio.fail_after(5), pytest.raises(UnavailableError):
            await client.flush(7)


async def test_bytes_that_come_too_late_leave_nothing_in_staging(log: IntentLog, tmp_path: Path) -> None:
    (tmp_path / "late").write_bytes(b"x")

    async def late(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Fetch):
            await trio.sleep(0.5)
            return Fetched("late", ENTRY)
        return status() if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=0.2, staging=str(tmp_path))
    async with process(client, late):
        with pytest.raises(UnavailableError):
            await client.fetch(7)
        await until(lambda: not (tmp_path / "late").exists())


async def test_an_error_of_the_store_is_raised_as_it_is(log: IntentLog) -> None:
    async def corrupt(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Fetch):
            raise CorruptDataError("s/a does not verify")
        return Done()

    client = ReplicationClient(log, timeout_seconds=5)
    async with process(client, corrupt):
        with pytest.raises(CorruptDataError, match="s/a does not verify"):
            await client.fetch(7)


async def test_the_status_of_one_session_is_json_for_its_file(log: IntentLog) -> None:
    async def answer(message: AnyMessage) -> AnyMessage:
        return status("slow") if isinstance(message, GetStatus) else Done()

    client = ReplicationClient(log, timeout_seconds=5)
    async with process(client, answer):
        shown = json.loads(await client.session_status("s"))
        unknown = json.loads(await client.session_status("t"))
    assert (shown["id"], shown["owed_files"], shown["degraded"]) == ("s", 1, "slow")
    assert unknown == {"id": "t", "degraded": "slow"}


async def test_ownership_and_commits_are_asked_for_with_the_log_position(log: IntentLog) -> None:
    asked: list[AnyMessage] = []

    async def answer(message: AnyMessage) -> AnyMessage:
        if not isinstance(message, LogGrew):
            asked.append(message)
        match message:
            case Claim():
                return Claimed(is_unclean=True)
            case Commit(session=session, trigger=trigger):
                return Committed(session, 7, trigger=trigger)
            case ListGenerations():
                return GenerationNumbers([1, 4])
        return Done()

    client = ReplicationClient(log, timeout_seconds=5)
    async with process(client, answer):
        assert (await client.claim("s", known=7, force=True)).is_unclean
        assert (await client.commit("s", "turn", is_turn=True)).generation == 7
        assert await client.list_generations("s") == [1, 4]
        await client.release("s")
        await client.release_all()
        await client.resolve_conflict("k")
    position = log.position
    assert asked == [
        Claim("s", position, force=True, known=7),
        Commit("s", "turn", position, is_turn=True),
        ListGenerations("s"),
        Release("s", position),
        ReleaseAll(),
        ResolveConflict("k", position),
    ]


async def test_long_commits_go_on_while_the_store_answers(log: IntentLog) -> None:
    looks = 0
    enough = trio.Event()

    async def slow(message: AnyMessage) -> AnyMessage:
        nonlocal looks
        if isinstance(message, GetStatus):
            looks += 1
            if (
                looks == 9
            ):  # each of the three calls looked three times: the last look is behind its first limit
                enough.set()
            return status()
        if isinstance(message, Commit | Release | ReleaseAll):
            await enough.wait()
        return Committed("s", 1) if isinstance(message, Commit) else Done()

    client = ReplicationClient(log, timeout_seconds=1)
    async with process(client, slow), trio.open_nursery() as nursery:
        nursery.start_soon(client.commit, "s", "turn")
        nursery.start_soon(client.release, "s")
        nursery.start_soon(client.release_all)
    assert enough.is_set()


async def test_a_refused_claim_names_the_holder(log: IntentLog) -> None:
    async def refuse(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Claim):
            raise SessionAlreadyOwnedError("s is owned by far", holder="far")
        return Done()

    client = ReplicationClient(log, timeout_seconds=5)
    async with process(client, refuse):
        with pytest.raises(SessionAlreadyOwnedError) as caught:
            await client.claim("s", known=7)
    assert caught.value.holder == "far"


async def test_a_drain_may_only_look(log: IntentLog) -> None:
    async def answer(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Drain):
            return Drained(1, 2, ["s/a"], "") if message.seconds == 0 else Drained(0, 0, [], "")
        return Done()

    client = ReplicationClient(log, timeout_seconds=5)
    async with process(client, answer):
        assert (await client.drain(0)).owed_files == 1
        assert (await client.drain(1)).owed_files == 0


async def test_stopping_a_process_that_is_gone_is_no_error(log: IntentLog) -> None:
    await ReplicationClient(log, timeout_seconds=5).stop()


async def test_a_late_answer_leaves_the_file_to_whoever_waits_for_it_now(
    log: IntentLog, tmp_path: Path
) -> None:
    """Requests for one file at the same time share one answer, and so one staged file."""
    asked: list[int] = []
    answers = trio.Event()
    staged = tmp_path / "staged"
    staged.write_bytes(b"abc")

    async def answer(message: AnyMessage) -> AnyMessage:
        if isinstance(message, Fetch):
            asked.append(message.number)
            await answers.wait()
            return Fetched("staged", ENTRY)
        return Done()

    client = ReplicationClient(log, timeout_seconds=30, staging=str(tmp_path))
    found: list[Fetched] = []

    async def impatient(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await client.fetch(7)

    async def patient() -> None:
        found.append(await client.fetch(7))
        assert staged.read_bytes() == b"abc"

    async with process(client, answer), trio.open_nursery() as nursery:
        scope = await nursery.start(impatient)
        await until(lambda: len(asked) == 1)
        nursery.start_soon(patient)
        await until(lambda: len(asked) == 2)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked(0.01)
        answers.set()
        await until(lambda: found)
    assert staged.exists()


async def test_a_late_answer_that_nobody_waits_for_leaves_nothing(log: IntentLog, tmp_path: Path) -> None:
    client = ReplicationClient(log, timeout_seconds=30, staging=str(tmp_path))
    (tmp_path / "staged").write_bytes(b"abc")
    client.discard(Fetched("staged", ENTRY))
    assert "staged" not in os.listdir(tmp_path)


async def test_a_claim_goes_on_while_requests_are_sent_and_ends_when_the_store_is_silent(
    log: IntentLog,
) -> None:
    sent, is_silent = 0, False

    async def answer(message: AnyMessage) -> AnyMessage:
        nonlocal sent
        if isinstance(message, Claim):
            await trio.sleep(60 if is_silent else 3)
            return Claimed(is_unclean=True)
        sent += not is_silent
        return msgspec.structs.replace(status(), requests={"put": sent})

    client = ReplicationClient(log, timeout_seconds=1.0)
    async with process(client, answer):
        assert (await client.claim("s", known=7)).is_unclean
        is_silent = True
        with trio.fail_after(10), pytest.raises(UnavailableError):
            await client.claim("s", known=7)
