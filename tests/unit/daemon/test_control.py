"""The control socket: what goes over it, and what happens when somebody hangs up."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

import sessionfs
from sessionfs.daemon.control.client import ControlClient
from sessionfs.daemon.control.protocol import revived_error, usable_socket_path
from sessionfs.daemon.control.server import ControlServer, ShowProgress
from sessionfs.formats.link_messages import (
    Event,
)
from sessionfs.model.errors import (
    CorruptDataError,
    InternalError,
    InvalidRequestError,
    LocalDiskError,
    MountError,
    SessionAlreadyOwnedError,
    StateLockedError,
    UnavailableError,
    UnsupportedFormatError,
)

from .fake_mount import SNAPSHOT, STATUS, FakeMount, listening


def event(number: int) -> Event:
    return Event(number, "session.file.uploaded", "2026-01-31T00:00:00Z", {"path": f"f{number}"})


def raw_exchange(path: str, *lines: bytes, replies: int) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"".join(lines))
        with connection.makefile("rb") as file:
            lines_back = [json.loads(file.readline()) for _ in range(replies)]
    assert [line for line in lines_back if "protocol" in line] == lines_back[:1]
    return sorted(lines_back, key=lambda line: line["id"])


def test_only_its_owner_may_use_the_socket(tmp_path: Path) -> None:
    with listening(FakeMount(), tmp_path) as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert not os.path.exists(path)


def test_the_first_reply_of_a_connection_carries_the_versions(tmp_path: Path) -> None:
    with listening(FakeMount(), tmp_path) as path:
        first, second = raw_exchange(path, b'{"id":7,"op":"retry"}\n', b'{"id":8,"op":"retry"}\n', replies=2)
    assert {"protocol": 1, "version": sessionfs.__version__}.items() <= (first | second).items()
    assert first["result"] == second["result"] == {}


def test_an_unknown_operation_is_a_named_error_and_the_connection_goes_on(tmp_path: Path) -> None:
    with listening(FakeMount(), tmp_path) as path:
        first, second = raw_exchange(path, b'{"id":1,"op":"dance"}\n', b'{"id":2,"op":"retry"}\n', replies=2)
    assert first["error"]["kind"] == "InvalidRequestError"
    assert "dance" in first["error"]["message"]
    assert "status" in first["error"]["remedy"]
    assert second["result"] == {}


@pytest.mark.parametrize(
    "line", [b"no json\n", b'{"id":1}\n', b'{"id":1,"op":"drain","timeout":"soon"}\n', b"[]\n"]
)
def test_a_line_that_is_no_request_is_a_named_error(tmp_path: Path, line: bytes) -> None:
    with listening(FakeMount(), tmp_path) as path:
        (reply,) = raw_exchange(path, line, replies=1)
    assert reply["error"]["kind"] == "InvalidRequestError"


def test_unknown_arguments_are_ignored_for_newer_clients(tmp_path: Path) -> None:
    with listening(FakeMount(), tmp_path) as path:
        (reply,) = raw_exchange(path, b'{"id":1,"op":"status","colour":"red"}\n', replies=1)
    assert reply["result"] == STATUS


def test_an_error_arrives_as_its_own_class(tmp_path: Path) -> None:
    mount = FakeMount(error=StateLockedError("locked", pid=1, remedy="wait"))
    with (
        listening(mount, tmp_path) as path,
        ControlClient(path, mount_point="/mnt") as client,
        pytest.raises(StateLockedError, match=r"locked \(wait\)"),
    ):
        client.call("retry")


def test_a_fault_in_the_daemon_is_an_internal_error_and_it_lives_on(tmp_path: Path) -> None:
    mount = FakeMount(fault=KeyError("x"))
    with listening(mount, tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        with pytest.raises(InternalError, match="status failed"):
            client.call("status")
        mount.fault = None
        assert client.call("status") == STATUS


def test_a_drain_reports_progress_and_then_its_result(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    mount = FakeMount(left=["s/a"])
    with listening(mount, tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        result = client.call("drain", progress=seen.append, timeout=1.5)
    assert seen == [{"owed_files": 2, "owed_bytes": 20, "degraded": ""}]
    assert result == {"owed_files": 1, "owed_bytes": 10, "left": ["s/a"], "degraded": "no answer"}
    assert mount.asked == [("drain", {"timeout_seconds": 1.5})]


def test_an_error_about_ownership_names_the_holder(tmp_path: Path) -> None:
    mount = FakeMount(error=SessionAlreadyOwnedError("s is owned by far", holder="far"))
    with listening(mount, tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        with pytest.raises(SessionAlreadyOwnedError) as caught:
            client.call("claim", session="s")
        assert caught.value.holder == "far"


def test_a_session_is_committed_claimed_and_released(tmp_path: Path) -> None:
    mount = FakeMount()
    with listening(mount, tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        assert client.call("snapshot", session="s") == SNAPSHOT
        assert client.call("snapshot", session="s", trigger="door") == SNAPSHOT
        assert client.call("claim", session="s", force=True) == {}
        assert client.call("release", session="s") == {}
    assert mount.asked == [
        ("snapshot", {"session": "s", "trigger": "command"}),
        ("snapshot", {"session": "s", "trigger": "door"}),
        ("claim", {"session": "s", "force": True}),
        ("release", {"session": "s"}),
    ]


def test_a_conflict_is_ended_by_its_key_and_one_of_two_words(tmp_path: Path) -> None:
    mount = FakeMount()
    with listening(mount, tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        assert client.call("resolve", key="k", take="theirs") == {}
        for key, take in (("k", "both"), ("", "ours")):
            with pytest.raises(InvalidRequestError):
                client.call("resolve", key=key, take=take)
    assert mount.asked == [("resolve", {"key": "k"})]


def test_events_come_in_order_and_resume_after_a_number(tmp_path: Path) -> None:
    mount = FakeMount(events_kept=[event(number) for number in range(1, 6)])
    with listening(mount, tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        numbers = [json.loads(raw)["number"] for raw in client.events(after=2, limit=2)]
    assert numbers == [3, 4]


def test_followed_events_arrive_as_they_happen(tmp_path: Path) -> None:
    mount = FakeMount(events_kept=[event(1)])
    with listening(mount, tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        stream = client.events(after=0, limit=10, follow=True)
        assert json.loads(next(stream))["number"] == 1
        mount.events_kept.append(event(2))
        assert json.loads(next(stream))["number"] == 2


def test_a_daemon_that_goes_away_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        client = ControlClient(path, mount_point="/mnt")
        server.accept()[0].close()
    with client, pytest.raises(MountError, match="the daemon of /mnt has ended"):
        client.call("status")


def test_a_socket_nobody_listens_on_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(MountError, match=r"does not listen.*'sessionfs mount' again"):
        ControlClient(str(tmp_path / "none"), mount_point="/mnt")


async def test_what_a_client_asked_for_is_cancelled_when_it_hangs_up(tmp_path: Path) -> None:
    cancelled = trio.Event()
    started = trio.Event()

    class Slow(FakeMount):
        async def drain(self, *, timeout_seconds: float | None, progress: ShowProgress) -> Any:
            assert (timeout_seconds, callable(progress)) == (None, True)
            started.set()
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()

    path = str(tmp_path / "socket")
    server = ControlServer(path, Slow())
    await server.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve)
        stream = await trio.open_unix_socket(path)
        await stream.send_all(b'{"id":1,"op":"drain"}\n')
        await started.wait()
        await stream.aclose()
        with trio.fail_after(5):
            await cancelled.wait()
        nursery.cancel_scope.cancel()


def test_an_old_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / "control.sock"))
    with listening(FakeMount(), tmp_path) as path, ControlClient(path, mount_point="/mnt") as client:
        assert client.call("status") == STATUS


def test_a_path_too_long_for_a_socket_becomes_a_private_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    long = "/" + "x" * 120
    if len(str(tmp_path)) < 57:
        short = usable_socket_path(long)
        assert short.startswith(str(tmp_path))
        assert usable_socket_path(long) == short != usable_socket_path(long + "y")
        directory = os.path.dirname(short)
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        Path(directory).chmod(0o750)
        with pytest.raises(LocalDiskError, match="is not private"):
            usable_socket_path(long)
    assert usable_socket_path("/short") == "/short"


def test_an_error_keeps_its_class_even_when_its_fields_are_not_sent() -> None:
    assert type(revived_error("UnsupportedFormatError", "m", "r")) is UnsupportedFormatError
    assert str(revived_error("CorruptDataError", "m", "r")) == "m (r)"
    assert type(revived_error("CorruptDataError", "m", "")) is CorruptDataError
    assert type(revived_error("annotations", "m", "")) is InternalError
    assert issubclass(type(revived_error("ThrottledError", "m", "")), UnavailableError)
    assert issubclass(type(revived_error("SettingsError", "m", "")), InvalidRequestError)
