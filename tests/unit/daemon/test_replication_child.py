"""The replication process's life: it starts, dies, is started again, and never takes the mount with it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.daemon.launch.command import module_environment
from sessionfs.daemon.mount_request import ReplicationRequest, Started, frame
from sessionfs.daemon.replication_child import (
    Child,
    ReplicationChild,
    wait_until_started,
)
from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.formats.link_messages import (
    AnyMessage,
    Done,
    Failure,
)
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import AccessError, InternalError, UnsupportedFormatError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.working_copy.intent_log import IntentLog

from .fake_mount import until

REQUEST = ReplicationRequest(
    store_url="file:///s",
    mount_point="/m",
    state_root="/t",
    settings=ReplicationSettings(),
    log_level="info",
    first=False,
)


def started_child(program: str, *, said: msgspec.Struct | None = None) -> Child:
    """Run a program with a socket; what it would have reported is written by us."""
    ours, theirs = socket.socketpair()
    if said is not None:
        theirs.sendall(frame(said))
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program, str(theirs.fileno())], pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    return Child(process, ours)


WAITS_FOR_EOF = "import socket,sys; s = socket.socket(fileno=int(sys.argv[1]))\nwhile s.recv(4096): pass"


def end(child: Child) -> None:
    child.connection.close()
    child.process.kill()
    child.process.wait()


def test_a_started_process_says_whether_the_store_answers() -> None:
    child = started_child(WAITS_FOR_EOF, said=Started("no route"))
    assert wait_until_started(child) == "no route"
    end(child)


@pytest.mark.parametrize("kind", [AccessError, UnsupportedFormatError])
def test_the_error_of_a_process_that_cannot_start_keeps_its_class(kind: type[Exception]) -> None:
    child = started_child("", said=Failure(kind.__name__, "no", "do"))
    with pytest.raises(kind, match=r"no \(do\)"):
        wait_until_started(child)
    end(child)


def test_a_process_that_dies_at_once_is_an_error_with_its_code() -> None:
    child = started_child("raise SystemExit(7)")
    with pytest.raises(InternalError, match="ended with 7"):
        wait_until_started(child)
    end(child)


def test_a_process_that_never_speaks_is_an_error_in_time() -> None:
    child = started_child(WAITS_FOR_EOF)
    with pytest.raises(InternalError, match="said nothing"):
        wait_until_started(child, seconds=0.05)
    end(child)


async def _done(_message: AnyMessage) -> AnyMessage:
    return Done()


async def test_a_process_that_dies_is_started_again_and_stop_ends_it(tmp_path: Path) -> None:
    clock = SystemClock()
    log = IntentLog(str(tmp_path / "intent.log"), boot_id="boot", clock=clock)
    client = ReplicationClient(log, timeout_seconds=5)
    started: list[Child] = []

    def start(request: ReplicationRequest) -> Child:
        assert request is REQUEST
        started.append(started_child(WAITS_FOR_EOF, said=Started()))
        return started[-1]

    told: list[int] = []
    keeper = ReplicationChild(
        REQUEST, client=client, handler=_done, clock=clock, start=start, on_process=told.append
    )
    first = started_child(WAITS_FOR_EOF)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run, first)
            await trio.sleep(0.1)
            assert keeper.pid == first.process.pid
            first.process.kill()
            await until(lambda: started and keeper.pid == started[0].process.pid)
            assert client.trouble == ""
            await keeper.stop()
    assert first.process.returncode == -9
    assert started[0].process.returncode == 0
    assert len(started) == 1
    assert told == [first.process.pid, 0, started[0].process.pid, 0]


async def test_a_process_that_cannot_start_again_is_tried_again_and_says_why(tmp_path: Path) -> None:
    clock = SystemClock()
    log = IntentLog(str(tmp_path / "intent.log"), boot_id="boot", clock=clock)
    client = ReplicationClient(log, timeout_seconds=5)
    tries: list[str] = []

    def start(_request: ReplicationRequest) -> Child:
        tries.append(client.trouble)
        said = Failure("AccessError", "wrong secret") if len(tries) == 1 else Started()
        return started_child(WAITS_FOR_EOF if len(tries) > 1 else "", said=said)

    keeper = ReplicationChild(REQUEST, client=client, handler=_done, clock=clock, start=start)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run, started_child(""))
            await until(lambda: len(tries) == 2 and keeper.pid)
            await keeper.stop()
    assert tries[0] == "the replication process has ended and is started again"
    assert tries[1] == "the replication process cannot start: wrong secret"


class JumpingClock(SystemClock):
    """Deaths at known times."""

    now = 0.0

    def elapsed_seconds(self) -> float:
        return self.now


async def test_five_deaths_in_a_minute_slow_the_restarts_and_a_quiet_hour_forgives(tmp_path: Path) -> None:
    clock = JumpingClock()
    log = IntentLog(str(tmp_path / "intent.log"), boot_id="boot", clock=clock)
    client = ReplicationClient(log, timeout_seconds=5)
    keeper = ReplicationChild(REQUEST, client=client, handler=_done, clock=clock)
    pauses = []
    for _ in range(6):
        clock.now += 1
        pauses.append(keeper._pause_seconds())
    assert pauses == [0.05] * 5 + [10.0]
    assert "died 5 times in a minute" in client.trouble
    clock.now += 3600
    assert keeper._pause_seconds() == 0.05


def test_a_fresh_interpreter_finds_the_package_wherever_it_is(tmp_path: Path) -> None:
    environment = module_environment({"PYTHONPATH": "/elsewhere", "SECRET": "x"})
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import sessionfs.model"], env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    assert environment["SECRET"] == "x"
    assert module_environment(environment) == environment
