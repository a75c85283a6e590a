"""A store that is away: under ``strict`` nobody begins to write what cannot be committed, under ``degrade`` programs go on."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.testing.fault_proxy import FaultProxy

from .conftest import MakeHost
from .rig import LEASE_SECONDS, Bucket, Host, errno_of, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

RECOVERY_SECONDS = 20


@pytest.fixture
def proxy(store_url: str) -> Iterator[FaultProxy]:
    """Stands between the hosts and the store."""
    with FaultProxy(store_url.partition("endpoint=")[2].partition("&")[0]) as made:
        yield made


def begin_to_write(path: Path) -> int:
    """Open for writing; give the error's number."""
    return errno_of(lambda: path.open("a").close())


def test_under_strict_a_failed_commit_closes_the_session_for_writers_until_one_succeeds(
    make_fast_host: MakeHost, bucket: Bucket, proxy: FaultProxy, store_url: str
) -> None:
    host = make_fast_host(
        "a", proxy.url_for(store_url), SESSIONFS_POLICY="strict", SESSIONFS_FETCH_TIMEOUT_SECONDS="3",
        SESSIONFS_LEASE_SECONDS="120", SESSIONFS_BEAT_INTERVAL_SECONDS="1",
    )  # fmt: skip
    host.mount()
    session = host.directory / "s"
    session.mkdir()
    (session / "f").write_text("committed")
    assert host.snapshot("s")["generation"] == 1
    with (session / "log").open("a", buffering=1) as held:
        held.write("one\n")
        proxy.go_down()
        started = time.monotonic()
        done = host.finished("snapshot", str(session))
        print(
            f"a commit without a store failed after {time.monotonic() - started:.1f} s: {done.stderr.strip()}"
        )
        assert done.returncode == 3
        assert begin_to_write(session / "f") == errno.EIO
        assert begin_to_write(session / "new") == errno.EIO
        assert (session / "f").read_text() == "committed"
        held.write("two\n")
        assert (session / "log").read_text() == "one\ntwo\n"
        assert host.session_status("s")["id"] == "s"
        assert bucket.numbers("s") == [1]
        proxy.come_up()
        # Nobody asks for anything: the commit is tried again in the background.
        wait_until(lambda: begin_to_write(session / "f") == 0, RECOVERY_SECONDS, step=0.2)
    newest = bucket.numbers("s")[-1]
    assert newest > 1
    assert bucket.content("s", newest, "log") == b"one\ntwo\n"
    (session / "f").write_text("again")
    assert host.snapshot("s")["generation"] > newest
    names = [
        event["name"] for event in map(json.loads, host.run("events", str(host.mount_point)).splitlines())
    ]
    assert names.count("session.storage.degraded") == names.count("session.storage.recovered") == 1


def test_under_degrade_programs_write_on_beyond_the_lease_and_the_host_stays_the_owner(
    make_fast_host: MakeHost, bucket: Bucket, proxy: FaultProxy, store_url: str
) -> None:
    host = make_fast_host("a", proxy.url_for(store_url))
    host.mount()
    session = host.directory / "s"
    session.mkdir()
    (session / "f").write_text("before")
    host.snapshot("s")
    before = json.loads(bucket.read("sessions/s.owner/owner.json"))
    stop, failed, written = threading.Event(), list[OSError](), list[str]()

    def write() -> None:
        while not stop.is_set():
            name = f"file {len(written)}"
            try:
                (session / name).write_text(name)
            except OSError as problem:
                failed.append(problem)
                return
            written.append(name)
            time.sleep(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.5)
        proxy.go_down()
        time.sleep(2 * LEASE_SECONDS)
        during = len(written)
        assert host.status()["degraded"]
        proxy.come_up()
        time.sleep(2)
    finally:
        stop.set()
        writer.join()
    assert failed == []
    assert during > 2 * LEASE_SECONDS
    host.wait_until_clean(60)
    host.snapshot("s")
    assert_nothing_happened(host, before["holder"], bucket)
    assert set(bucket.files_of("s")) == {"f", *written}
    for name in (written[0], written[during - 1], written[-1]):
        assert bucket.read(f"sessions/s/{name}").decode() == name


def assert_nothing_happened(host: Host, holder: str, bucket: Bucket) -> None:
    """The host is still the owner, and told of one outage."""
    assert host.conflicts() == []
    record = json.loads(bucket.read("sessions/s.owner/owner.json"))
    assert (record["holder"], record["state"]) == (holder, "held")
    assert len(host.events("session.storage.degraded")) == 1
    assert len(host.events("session.storage.recovered")) == 1
    assert host.events("session.owner.lost") == []


def test_under_strict_nobody_writes_beyond_the_lease_of_a_store_that_is_away(
    make_fast_host: MakeHost, bucket: Bucket, proxy: FaultProxy, store_url: str
) -> None:
    host = make_fast_host("a", proxy.url_for(store_url), SESSIONFS_POLICY="strict")
    host.mount()
    session = host.directory / "s"
    session.mkdir()
    (session / "f").write_text("before")
    host.snapshot("s")
    with (session / "open").open("a", buffering=1) as held:
        held.write("one\n")
        host.wait_until_clean()
        proxy.go_down()
        wait_until(lambda: begin_to_write(session / "f") != 0, 2 * LEASE_SECONDS)
        assert begin_to_write(session / "f") in {errno.EROFS, errno.EIO}
        assert errno_of(lambda: os.write(held.fileno(), b"two\n")) == errno.EROFS
        assert (session / "f").read_text() == "before"
        proxy.come_up()
        wait_until(lambda: begin_to_write(session / "f") == 0, RECOVERY_SECONDS, step=0.2)
        held.write("two\n")
    (session / "f").write_text("after")
    host.snapshot("s")
    assert bucket.read("sessions/s/f") == b"after"
    assert bucket.read("sessions/s/open") == b"one\ntwo\n"
