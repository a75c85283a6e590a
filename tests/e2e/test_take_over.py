"""A host that fell silent is succeeded by another; when it comes back it has lost the session, and nothing that it wrote is lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from sessionfs.testing.fault_proxy import FaultProxy, HoldRequest

from .conftest import MakeHost
from .rig import LEASE_SECONDS, Bucket, Host, differences, endpoint_of, errno_of, tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

LAG_SECONDS = 10
PATIENCE_SECONDS = 25
HOUR_SECONDS = 3600


def take_over(host: Host, path: str, text: str) -> float:
    """Write until the session's owner counts as gone; give how long that took."""
    started = time.monotonic()
    target = host.directory / "s" / path
    first = errno_of(lambda: target.write_text(text))
    assert first == errno.EROFS, "the owner's lease was not over"
    wait_until(lambda: errno_of(lambda: target.write_text(text)) == 0, PATIENCE_SECONDS, step=0.2)
    return time.monotonic() - started


def kept_texts(bucket: Bucket, host: Host) -> dict[str, set[str]]:
    """Texts that a host lists as conflicts, by path."""
    found: dict[str, set[str]] = {}
    for one in host.conflicts():
        found.setdefault(one["path"], set()).add(bucket.read(one["key"]).decode())
    return found


def epoch(bucket: Bucket) -> int:
    return int(json.loads(bucket.read("sessions/s.owner/owner.json"))["epoch"])


def assert_hydrates(bucket: Bucket, host: Host, files: dict[str, str]) -> None:
    """An empty host finds exactly these files, live and in the newest generation."""
    host.mount()
    there = host.directory / "s"
    found = {name: (there / name).read_text() for name in sorted(os.listdir(there))}
    assert found == files
    newest = bucket.numbers("s")[-1]
    assert set(bucket.files_of("s")) == set(files)
    assert {name: bucket.content("s", newest, name).decode() for name in files} == files
    host.umount()


def test_a_host_that_stood_still_beyond_its_lease_is_succeeded_and_finds_itself_refused(
    make_fast_host: MakeHost, bucket: Bucket, store_url: str
) -> None:
    with FaultProxy(endpoint_of(store_url)) as proxy:
        first = make_fast_host("a", proxy.url_for(store_url), SESSIONFS_FETCH_TIMEOUT_SECONDS="5")
        second, third = make_fast_host("b"), make_fast_host("c")
        first.mount()
        session, there = first.directory / "s", second.directory / "s"
        session.mkdir()
        for name in ("kept", "late", "owed"):
            (session / name).write_text(f"{name} one")
        assert first.snapshot("s")["generation"] == 1
        second.mount()
        assert (there / "kept").read_text() == "kept one"
        # One request of the first host is on its way, and one file still waits, when the machine is paused.
        request = HoldRequest()
        proxy.plan(request, method="PUT", text="/s/late")
        (session / "late").write_text("late, of the first host")
        assert request.held.wait(PATIENCE_SECONDS)
        (session / "owed").write_text("owed by the first host")
        first.stop()
        try:
            taken = take_over(second, "kept", "kept, of the second host")
            assert taken > LEASE_SECONDS / 2
            assert epoch(bucket) == 2
            assert second.snapshot("s")["generation"] > 1
            request.until.set()
            wait_until(lambda: bucket.read("sessions/s/late") == b"late, of the first host", LAG_SECONDS)
            assert bucket.metadata("sessions/s/late")["sessionfs-epoch"] == "1"
        finally:
            request.until.set()
            first.go_on()
        assert_lost(first, bucket)
        # The next commit of the second host finds what came late, keeps it aside and puts it right.
        (there / "more").write_text("more")
        second.snapshot("s")
        assert bucket.read("sessions/s/late") == b"late one"
        assert kept_texts(bucket, second)["late"] == {"late, of the first host"}
        assert bucket.manifest("s")["epoch"] == 2
        files = {
            "kept": "kept, of the second host",
            "late": "late one",
            "owed": "owed one",
            "more": "more",
        }
        assert_hydrates(bucket, third, files)
        wait_until(lambda: text_of(session, "more") == "more", 2 * LAG_SECONDS)
        wait_until(lambda: {name: text_of(session, name) for name in files} == files, 2 * LAG_SECONDS)
        assert sorted(os.listdir(session)) == sorted(files)


def assert_lost(first: Host, bucket: Bucket) -> None:
    """The first host is refused, says so once, and lists what it owed."""
    session = first.directory / "s"
    assert first.finished("snapshot", str(session)).returncode == 5
    assert errno_of(lambda: (session / "kept").write_text("again")) == errno.EROFS
    assert first.owner("s")
    wait_until(lambda: "owed" in kept_texts(bucket, first), LAG_SECONDS)
    assert kept_texts(bucket, first)["owed"] == {"owed by the first host"}
    assert all("/s.conflicts/" in one["key"] for one in first.conflicts())
    assert [event["fields"]["session_id"] for event in first.events("session.owner.lost")] == ["s"]


def text_of(session: Path, name: str) -> str:
    try:
        return (session / name).read_text()
    except OSError as problem:
        return f"errno {problem.errno}"


def partition(first: Host, second: Host, proxy: FaultProxy, bucket: Bucket, *, third: Host) -> None:
    """The first host cannot reach the store and writes on; the second takes over; the first comes back."""
    session, there = first.directory / "s", second.directory / "s"
    first.mount()
    session.mkdir()
    (session / "both").write_text("both one")
    (session / "untouched").write_text("untouched")
    assert first.snapshot("s")["generation"] == 1
    second.mount()
    assert (there / "both").read_text() == "both one"
    proxy.go_down()
    (session / "both").write_text("both, of the first host")
    taken = take_over(second, "both", "both, of the second host")
    assert taken < 4 * LEASE_SECONDS
    # Programs on the first host go on beyond the lease.
    (session / "only here").write_text("only on the first host")
    (session / "both").open("a").close()
    (there / "theirs").write_text("theirs")
    second.snapshot("s")
    assert epoch(bucket) == 2
    proxy.come_up()
    wait_until(lambda: text_of(session, "theirs") == "theirs", PATIENCE_SECONDS)
    wait_until(lambda: text_of(session, "both") == "both, of the second host", PATIENCE_SECONDS)
    wait_until(lambda: set(kept_texts(bucket, first)) == {"both", "only here"}, PATIENCE_SECONDS)
    assert kept_texts(bucket, first) == {
        "both": {"both, of the first host"},
        "only here": {"only on the first host"},
    }
    assert errno_of(lambda: (session / "both").write_text("again")) == errno.EROFS
    assert first.finished("snapshot", str(session)).returncode == 5
    wait_until(lambda: differences(tree(there), tree(session)) == [], PATIENCE_SECONDS)
    wait_until(lambda: len(first.events("session.storage.recovered")) == 1, PATIENCE_SECONDS)
    assert len(first.events("session.storage.degraded")) == 1
    second.snapshot("s")
    assert bucket.manifest("s")["epoch"] == 2
    files = {"both": "both, of the second host", "untouched": "untouched", "theirs": "theirs"}
    assert_hydrates(bucket, third, files)


def test_a_host_that_is_cut_off_writes_on_and_nothing_of_it_is_lost(
    make_fast_host: MakeHost, bucket: Bucket, store_url: str
) -> None:
    with FaultProxy(endpoint_of(store_url)) as proxy:
        first = make_fast_host("a", proxy.url_for(store_url), SESSIONFS_FETCH_TIMEOUT_SECONDS="4")
        partition(first, make_fast_host("b"), proxy, bucket, third=make_fast_host("c"))


CLOCK_AHEAD = f"""
import sys, time
if any("sessionfs" in word for word in sys.orig_argv):
    _real, _real_ns = time.time, time.time_ns
    time.time = lambda: _real() + {HOUR_SECONDS}
    time.time_ns = lambda: _real_ns() + {HOUR_SECONDS} * 10**9
"""
"""The wall clock of every sessionfs process of a host, an hour ahead; signatures keep the real time, or the store would refuse them."""


@pytest.mark.parametrize("ahead", ["first", "second"])
def test_clocks_an_hour_apart_change_nothing(
    make_fast_host: MakeHost, bucket: Bucket, store_url: str, tmp_path: Path, ahead: str
) -> None:
    launcher: tuple[str, ...] = ("unshare", "--time", "--boottime", str(HOUR_SECONDS))
    if subprocess.run([*launcher, "true"], capture_output=True, check=False).returncode:
        # Without a time namespace only the wall clocks differ.
        launcher = ()
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(CLOCK_AHEAD)
    with FaultProxy(endpoint_of(store_url)) as proxy:
        first = make_fast_host("a", proxy.url_for(store_url), SESSIONFS_FETCH_TIMEOUT_SECONDS="4")
        second = make_fast_host("b")
        wrong = first if ahead == "first" else second
        wrong.launcher = launcher
        wrong.environment["PYTHONPATH"] = str(tmp_path / "clock")
        partition(first, second, proxy, bucket, third=make_fast_host("c"))
        moments = [bucket.manifest("s", number)["created_at"] for number in bucket.numbers("s")]
        assert moments[0][:13] != moments[-1][:13], "one clock was an hour ahead"


def test_force_takes_over_at_once_and_the_owner_is_told(make_fast_host: MakeHost, bucket: Bucket) -> None:
    first, second = make_fast_host("a"), make_fast_host("b")
    first.mount()
    session, there = first.directory / "s", second.directory / "s"
    session.mkdir()
    (session / "f").write_text("one")
    first.snapshot("s")
    second.mount()
    assert second.finished("claim", str(there)).returncode == 5
    second.run("claim", "--force", str(there))
    (there / "f").write_text("of the second")
    assert second.snapshot("s")["generation"] > 1
    wait_until(lambda: errno_of(partial((session / "f").write_text, "mine")) == errno.EROFS, LAG_SECONDS)
    assert first.finished("snapshot", str(session)).returncode == 5
    wait_until(lambda: text_of(session, "f") == "of the second", LAG_SECONDS)
    assert bucket.manifest("s")["epoch"] == epoch(bucket) == 2
