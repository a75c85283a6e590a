"""The blocking form does what the asynchronous one does, for programs without an event loop."""

from __future__ import annotations

import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sessionfs.model.errors import HandleClosedError, InvalidSessionIdError, NotFoundError, StoreUrlError
from sessionfs.sessions.blocking_session_store import BlockingSessionStore, open_blocking_session_store
from sessionfs.sessions.store import SessionStore, open_session_store


def test_every_operation_has_its_blocking_form() -> None:
    operations = {
        name: function
        for name, function in vars(SessionStore).items()
        if inspect.iscoroutinefunction(function) and not name.startswith("_")
    }
    assert len(operations) == 16
    for name, function in operations.items():
        blocking = getattr(BlockingSessionStore, name)
        assert not inspect.iscoroutinefunction(blocking)
        assert inspect.signature(blocking) == inspect.signature(function)
    parameters = set(inspect.signature(open_session_store).parameters)
    assert set(inspect.signature(open_blocking_session_store).parameters) == parameters - {"clock"}


def test_every_blocking_operation_does_its_work(tmp_path: Path) -> None:
    with open_blocking_session_store(str(tmp_path)) as store:
        assert store.read_index() == {}
        store.write_index({"a": 1})
        assert store.read_index() == {"a": 1}
        assert (store.quarantine_index() or "").startswith("sessions.json.corrupt-")
        store.write_file("s", "f", b"one\n")
        store.append("s", "f", {"seq": 1})
        store.append("s", "f", {"seq": 1})
        assert store.read_file("s", "f") == b'one\n{"seq":1}\n{"seq":1}\n'
        assert store.replay("s", "f") == [b"one", b'{"seq":1}']
        assert store.read_tail("s", "f", 10).lines == (b'{"seq":1}',)
        assert store.read_before("s", "f", 4, 10).lines == (b"one",)
        assert store.stat("s", "f").size_bytes == 24
        store.write_private("s", "p", b"secret")
        assert (tmp_path / "sessions/s/p").stat().st_mode & 0o777 == 0o600
        store.rename_file("s", "p", "q")
        assert store.list_files("s") == ["f", "q"]
        store.remove_file("s", "q")
        assert store.list_files("s") == ["f"]
        assert store.list_sessions() == ["s"]
        store.remove_session("s")
        assert store.list_sessions() == []


def test_errors_come_out_as_they_are(tmp_path: Path) -> None:
    with open_blocking_session_store(str(tmp_path)) as store:
        with pytest.raises(NotFoundError):
            store.read_file("s", "missing")
        with pytest.raises(InvalidSessionIdError):
            store.append("../s", "f", "x")
    with pytest.raises(StoreUrlError), open_blocking_session_store("s4://bucket"):
        pass
    with pytest.raises(ValueError, match="mine"), open_blocking_session_store(str(tmp_path)):
        raise ValueError("mine")


def test_after_the_end_every_call_says_that_the_door_is_closed(tmp_path: Path) -> None:
    with open_blocking_session_store(str(tmp_path)) as store:
        store.write_file("s", "f", b"x")
    with pytest.raises(HandleClosedError):
        store.write_file("s", "f", b"y")
    assert (tmp_path / "sessions/s/f").read_bytes() == b"x"


def test_threads_share_one_store(tmp_path: Path) -> None:
    with open_blocking_session_store(str(tmp_path)) as store, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: store.append("s", "f", f"{number:02d}"), range(40)))
        assert sorted(store.replay("s", "f")) == [b"%02d" % number for number in range(40)]


PROGRAM = """
import sys
from sessionfs.sessions.blocking_session_store import open_blocking_session_store
with open_blocking_session_store(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(50):
        store.append("s", "log", f"{sys.argv[2]} {number:02d}")
"""


def test_two_processes_append_to_one_directory_and_lose_nothing(tmp_path: Path) -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    try:
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
        for program in programs:
            assert program.stdin is not None
            program.stdin.write("go\n")
            program.stdin.flush()
        for program in programs:
            program.communicate(timeout=60)
    finally:
        for program in programs:
            program.kill()
            program.wait(60)
    assert [program.returncode for program in programs] == [0, 0]
    wanted = [b"%s %02d" % (name, number) for name in (b"first", b"second") for number in range(50)]
    assert sorted((tmp_path / "sessions/s/log").read_bytes().splitlines()) == wanted
