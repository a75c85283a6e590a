"""Growing logs, mappings, deletions in flight, SQLite under load, memory, idleness: each at the size its promise names."""

from __future__ import annotations

import mmap
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import pytest

from sessionfs.testing.fault_proxy import FaultProxy
from sessionfs.testing.s3_servers import SeaweedServer

from .conftest import MakeHost
from .rig import Bucket, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

MIB = 1 << 20
LAG_SECONDS = 12.0
"""10 s of promised lag, and the time of one look and one upload on a loaded machine."""


@pytest.fixture
def proxied(seaweed: SeaweedServer, store_url: str, make_host: MakeHost) -> object:
    """A mounted host that reaches the server through a counting proxy."""
    with FaultProxy(seaweed.endpoint) as proxy:
        host = make_host("p", proxy.url_for(store_url))
        host.mount()
        yield host, proxy
        host.clean_up()


class LogWatch:
    """Looks at a log in the bucket while it grows.

    Attributes:
        torn: Sizes that do not end where a write ended.
        ages_seconds: How long the oldest write that was not in the bucket had been acknowledged, at each look.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._acknowledged: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.torn: list[int] = []
        self.ages_seconds: list[float] = [0.0]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def acknowledge(self, total_bytes: int) -> None:
        """A write returned."""
        self._acknowledged.append((time.monotonic(), total_bytes))

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            asked = time.monotonic()
            size = self._bucket.size_or_zero(self._key)
            if size % 1024:
                self.torn.append(size)
            owed = [moment for moment, total in list(self._acknowledged) if total > size]
            if owed:
                self.ages_seconds.append(asked - owed[0])


@pytest.mark.timeout(900)
def test_a_growing_log_sends_little_more_than_itself_and_is_never_old_or_torn(
    proxied: tuple[Host, FaultProxy], bucket: Bucket
) -> None:
    host, proxy = proxied
    total = int(os.environ.get("SESSIONFS_TEST_LOG_MIB", "40")) * MIB
    (host.directory / "s").mkdir()
    host.wait_until_clean()
    proxy.reset_counters()
    path = host.directory / "s" / "log"
    with LogWatch(bucket, "sessions/s/log") as watch, path.open("ab", buffering=0) as log:
        for number in range(total // 1024):
            log.write(b"x" * 1016 + b"%07d\n" % number)
            if number % 64 == 0:
                watch.acknowledge((number + 1) * 1024)
            if number % 1024 == 0:
                time.sleep(0.25)
        host.wait_until_clean(120)
    received = proxy.body_bytes_received
    oldest = max(watch.ages_seconds)
    print(f"log {total} bytes, received {received}, ratio {received / total:.3f}, oldest {oldest:.1f} s")
    assert watch.torn == []
    # Below 5 MiB no store can append: those uploads are whole.
    assert received <= 1.2 * total + 5 * MIB * small_uploads(proxy)
    assert oldest <= LAG_SECONDS
    assert bucket.size("sessions/s/log") == total
    assert bucket.read("sessions/s/log") == path.read_bytes()


def small_uploads(proxy: FaultProxy) -> int:
    """Uploads of the log from before it could be appended to: single puts."""
    return sum(
        1
        for method, path in proxy.requests
        if method == "PUT" and path.split("?")[0].endswith("/log") and "uploadId" not in path
    )


def test_stores_through_a_mapping_reach_the_bucket_after_close_and_after_an_upload(
    host: Host, bucket: Bucket
) -> None:
    (host.directory / "s").mkdir()
    maps: list[mmap.mmap] = []
    for number in range(100):
        with (host.directory / "s" / f"m{number}").open("w+b") as file:
            file.write(b"." * 8192)
            file.flush()
            maps.append(mmap.mmap(file.fileno(), 8192))
    host.wait_until_clean()
    for number, mapping in enumerate(maps):
        mapping[number] = ord("A")
        mapping[5000] = ord("B")
        mapping.flush() if number % 2 else None
        mapping.close()
    host.wait_until_clean()
    wait_until(lambda: bucket.read("sessions/s/m99")[5000:5001] == b"B", 20)
    host.wait_until_clean()
    right = 0
    for number in range(100):
        body = bucket.read(f"sessions/s/m{number}")
        right += body[number : number + 1] == b"A" and body[5000:5001] == b"B"
    assert right == 100


def test_a_file_deleted_while_its_first_put_is_in_flight_stays_deleted(
    proxied: tuple[Host, FaultProxy], bucket: Bucket
) -> None:
    from sessionfs.testing.fault_proxy import DelayResponse

    host, proxy = proxied
    (host.directory / "s").mkdir()
    host.wait_until_clean()
    proxy.plan(DelayResponse(2.0), method="PUT", text="sessions/s/brief")
    (host.directory / "s" / "brief").write_text("soon gone")
    wait_until(lambda: any("brief" in path for _, path in proxy.requests), 10)
    os.unlink(host.directory / "s" / "brief")
    host.wait_until_clean()
    time.sleep(1)
    proxy.assert_all_used()
    assert bucket.listed("sessions/s/") == {"sessions/s/"}


DATABASE_WRITER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], timeout=30)
database.execute("PRAGMA journal_mode = " + sys.argv[2])
database.execute("CREATE TABLE t (a, b)")
for number in range(400):
    with database:
        database.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 500))
        database.execute("INSERT INTO t VALUES (?, ?)", (number, "y" * 500))
    time.sleep(0.01)
print(number)
database.close()
"""


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_in_use_is_whole_in_the_bucket(
    make_host: MakeHost, bucket: Bucket, tmp_path: Path, mode: str
) -> None:
    host = make_host("d", SESSIONFS_MAX_UPLOAD_DELAY_SECONDS="1")
    host.mount()
    (host.directory / "s").mkdir()
    path = host.directory / "s" / "live.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", DATABASE_WRITER, str(path), mode], stdout=subprocess.PIPE
    )
    images = 0
    seen: set[bytes] = set()
    while writer.poll() is None:
        time.sleep(0.3)
        if not bucket.size_or_zero("sessions/s/live.db"):
            continue
        body = bucket.read("sessions/s/live.db")
        if body in seen:
            continue
        seen.add(body)
        images += 1
        rows = check_image(body, tmp_path)
        assert rows % 2 == 0
    assert writer.stdout is not None
    assert writer.stdout.read().strip() == b"399"
    writer.stdout.close()
    assert images >= 1
    host.umount()
    assert check_image(bucket.read("sessions/s/live.db"), tmp_path) == 800
    assert {key for key in bucket.listed("sessions/s/") if "live.db-" in key} == set()


def check_image(body: bytes, directory: Path) -> int:
    """Rows of a database that stands alone."""
    image = directory / "image.db"
    image.write_bytes(body)
    database = sqlite3.connect(image)
    try:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        try:
            return int(database.execute("SELECT count(*) FROM t").fetchone()[0])
        except sqlite3.OperationalError:
            return 0
    finally:
        database.close()


def test_an_idle_mount_makes_no_request_but_its_beat(proxied: tuple[Host, FaultProxy]) -> None:
    host, proxy = proxied
    idle_seconds = float(os.environ.get("SESSIONFS_TEST_IDLE_SECONDS", "20"))
    (host.directory / "s").mkdir()
    (host.directory / "s" / "f").write_text("x")
    host.wait_until_clean()
    time.sleep(2)
    proxy.reset_counters()
    time.sleep(idle_seconds)
    others = [request for request in proxy.requests if "/hosts/" not in request[1]]
    assert others == []
    # One beat in ten seconds, whatever number of sessions is owned.
    assert 1 <= len(proxy.requests) <= idle_seconds / 10 + 1
    host.run("release", str(host.directory / "s"))
    time.sleep(1)
    proxy.reset_counters()
    time.sleep(12)
    assert proxy.requests == []


@pytest.mark.timeout(600)
def test_twenty_thousand_known_files_fit_in_120_mib(host: Host, make_host: MakeHost) -> None:
    files = int(os.environ.get("SESSIONFS_TEST_KNOWN_FILES", "20000"))
    session = host.directory / "s"
    session.mkdir()
    for directory in range(files // 1000):
        (session / f"d{directory}").mkdir()
        for number in range(1000):
            (session / f"d{directory}" / f"file {number}").touch()
    subprocess.run(["ls", "-lR", str(session)], stdout=subprocess.DEVNULL, check=True)
    total = sum(resident_bytes(pid) for pid in host.remember_pids())
    print(f"{files} files known: {total / MIB:.1f} MiB")
    assert total < 120 * MIB
    host.run("umount", str(host.mount_point), "--abandon", code=4)


def resident_bytes(pid: int) -> int:
    """Proportional resident memory of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")
