"""A store that takes requests and never answers: no program waits longer than it was told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from sessionfs.testing.s3_servers import SeaweedServer

from .conftest import MakeHost
from .rig import Host

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

TIMEOUT_SECONDS = 2.0
SLACK_SECONDS = 4.0


@pytest.fixture(scope="module")
def own_server() -> Iterator[SeaweedServer]:
    """A server that these tests may pause."""
    with SeaweedServer() as server:
        yield server


@pytest.fixture
def paused(own_server: SeaweedServer, make_host: MakeHost) -> Iterator[Host]:
    """A host that read the names of a session, and one file, before its store fell silent."""
    store = own_server.fresh_bucket()
    writer = make_host("a", store)
    writer.mount()
    (writer.directory / "s" / "d").mkdir(parents=True)
    for path in ("far", "near", "d/inside"):
        (writer.directory / "s" / path).write_text(path)
    writer.umount()
    reader = make_host("b", store, SESSIONFS_FETCH_TIMEOUT_SECONDS=str(TIMEOUT_SECONDS))
    reader.mount()
    (reader.directory / "s" / "near").read_text()
    (reader.directory / "ours").mkdir()
    (reader.directory / "ours" / "old").write_text("old")
    reader.wait_until_clean()
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        # From here on the session must be compared with the bucket before it is shown.
        time.sleep(3)
        yield reader
    finally:
        os.kill(own_server.pid, signal.SIGCONT)


def refused_in_time(call: Callable[[], object]) -> None:
    started = time.monotonic()
    with pytest.raises(OSError, match="Input/output error"):
        call()
    assert time.monotonic() - started < TIMEOUT_SECONDS + SLACK_SECONDS


def answered_in_time(call: Callable[[], object]) -> object:
    started = time.monotonic()
    found = call()
    assert time.monotonic() - started < TIMEOUT_SECONDS + SLACK_SECONDS
    return found


def test_names_and_bytes_that_are_here_are_shown(paused: Host) -> None:
    session = paused.directory / "s"
    assert answered_in_time(lambda: sorted(os.listdir(session))) == ["d", "far", "near"]
    assert answered_in_time((session / "near").read_text) == "near"
    assert answered_in_time(lambda: os.listdir(session / "d")) == ["inside"]
    assert answered_in_time(lambda: os.getxattr(session / "far", "user.sessionfs.state")) == b"remote"
    assert '"id"' in str(answered_in_time((session / ".sessionfs" / "status").read_text))


def test_what_is_not_here_is_an_error_in_time(paused: Host) -> None:
    session = paused.directory / "s"
    refused_in_time(lambda: os.stat(paused.directory / "unknown"))
    os.listdir(session)
    refused_in_time((session / "far").read_text)
    os.listdir(session)
    refused_in_time(lambda: os.truncate(session / "far", 2))


def test_what_is_written_in_a_session_of_ours_needs_no_store(paused: Host) -> None:
    session = paused.directory / "ours"
    answered_in_time(lambda: (session / "new").write_text("new"))
    answered_in_time(lambda: (session / "old").write_text("replaced whole"))
    assert answered_in_time((session / "old").read_text) == "replaced whole"
    answered_in_time((session / "fresh").mkdir)


def test_another_session_is_not_written_before_the_store_says_whose_it_is(paused: Host) -> None:
    refused_in_time(lambda: (paused.directory / "s" / "new").write_text("new"))


def test_a_remount_shows_what_is_here(paused: Host) -> None:
    paused.run("umount", str(paused.mount_point), "--abandon")
    started = time.monotonic()
    paused.mount()
    assert time.monotonic() - started < 60
    assert answered_in_time((paused.directory / "s" / "near").read_text) == "near"
