"""The store goes away and comes back; nothing is lost and nothing lies."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.testing.s3_servers import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SeaweedServer

from .conftest import MakeHost
from .rig import Bucket, Host, differences, tree

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]


@pytest.fixture(scope="module")
def stoppable_server() -> Iterator[SeaweedServer]:
    """A server for the tests of this module only."""
    with SeaweedServer() as server:
        yield server


@pytest.fixture(scope="module")
def stoppable_bucket(stoppable_server: SeaweedServer) -> str:
    """A bucket of it."""
    return stoppable_server.fresh_bucket()


@pytest.fixture
def own_server(stoppable_server: SeaweedServer) -> Iterator[SeaweedServer]:
    """A server that this test may stop."""
    stoppable_server.start()
    yield stoppable_server
    stoppable_server.start()


@pytest.fixture
def store_url(own_server: SeaweedServer, stoppable_bucket: str) -> str:
    """A store of this test's own on the server that it may stop."""
    head, _, query = stoppable_bucket.partition("?")
    return f"{head}/{uuid.uuid4().hex}?{query}"


def write_files(session: Path, count: int) -> None:
    for number in range(count):
        (session / f"file {number}").write_bytes(os.urandom(1000) + str(number).encode())


def test_umount_with_the_store_stopped_names_what_is_behind_and_the_next_mount_uploads_it(
    host: Host, own_server: SeaweedServer, bucket: Bucket
) -> None:
    session = host.directory / "s"
    session.mkdir()
    (session / "before").write_text("x")
    host.wait_until_clean()
    own_server.stop()
    write_files(session, 5)
    before = tree(session)
    started = time.monotonic()
    done = host.finished("umount", str(host.mount_point), "--timeout", "3")
    assert done.returncode == 4, done.stderr
    assert time.monotonic() - started < 30
    for number in range(5):
        assert f"s/file {number}" in done.stderr
    assert not os.path.ismount(host.mount_point)
    own_server.start()
    host.mount()
    assert differences(before, tree(session)) == []
    host.wait_until_clean()
    assert {f"sessions/s/file {number}" for number in range(5)} <= bucket.listed()
    host.umount()


def test_umount_waits_for_the_queue_and_returns_zero(host: Host, bucket: Bucket) -> None:
    session = host.directory / "s"
    session.mkdir()
    write_files(session, 200)
    host.umount()
    assert len(bucket.listed("sessions/s/")) == 201


@pytest.mark.timeout(400)
def test_a_store_stopped_in_the_middle_of_a_write_load_loses_nothing(
    host: Host, own_server: SeaweedServer, bucket: Bucket, make_host: MakeHost
) -> None:
    outage_seconds = float(os.environ.get("SESSIONFS_TEST_OUTAGE_SECONDS", "15"))
    session = host.directory / "s"
    session.mkdir()
    stop = threading.Event()
    written = 0

    def load() -> None:
        nonlocal written
        while not stop.is_set():
            (session / f"f{written % 300}").write_bytes(os.urandom(2000))
            written += 1
            time.sleep(0.01)

    worker = threading.Thread(target=load)
    worker.start()
    try:
        time.sleep(3)
        own_server.stop()
        time.sleep(outage_seconds)
        status = host.status()
        assert status["degraded"]
        own_server.start()
        time.sleep(3)
    finally:
        stop.set()
        worker.join()
    assert written > 100
    host.wait_until_clean(180)
    before = tree(session)
    events = [
        json.loads(line)
        for line in host.run("events", str(host.mount_point), "--limit", "100000").splitlines()
    ]
    names = [event["name"] for event in events]
    assert names.count("session.storage.degraded") == 1
    assert names.count("session.storage.recovered") == 1
    host.umount()
    for path, seen in before.items():
        if seen.sha256:
            assert bucket.metadata(f"sessions/s/{path.decode()}")["sessionfs-sha256"] == seen.sha256
    second = make_host("b")
    second.mount()
    assert differences(before, tree(second.directory / "s")) == []


def test_bytes_that_are_not_here_are_an_error_and_never_missing(
    host: Host, own_server: SeaweedServer, make_host: MakeHost
) -> None:
    (host.directory / "s").mkdir()
    (host.directory / "s" / "f").write_text("far away")
    host.umount()
    second = make_host("b", SESSIONFS_FETCH_TIMEOUT_SECONDS="2")
    second.mount()
    assert os.listdir(second.directory / "s") == ["f"]
    own_server.stop()
    with pytest.raises(OSError, match="Input/output error"):
        (second.directory / "s" / "f").read_text()
    with pytest.raises(OSError, match="Input/output error"):
        (second.directory / "another").stat()
    own_server.start()
    time.sleep(3)
    assert (second.directory / "s" / "f").read_text() == "far away"


def test_credentials_used_here_are_in_no_file_and_no_process_list(host: Host) -> None:
    (host.directory / "s").mkdir()
    host.wait_until_clean()
    for path in host.state.rglob("*"):
        if path.is_file():
            assert SECRET_ACCESS_KEY.encode() not in path.read_bytes(), path
    for pid in host.remember_pids():
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert SECRET_ACCESS_KEY.encode() not in arguments
        assert ACCESS_KEY_ID.encode() not in arguments
