"""A store that asks everybody to slow down, for a long time, while many programs wait: errors are EIO, never "no such file", and then it goes on."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sessionfs.testing.fault_proxy import FaultProxy, Reply

from .conftest import MakeHost
from .rig import endpoint_of

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

THROTTLED_SECONDS = float(os.environ.get("SESSIONFS_TEST_THROTTLED_SECONDS", "12"))
FILES = 2000
"""Each has a program of its own that waits for it: so many requests want to be sent at once."""
MOST_THREADS = 80
MOST_MEMORY_MIB = 250


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def memory_mib_of(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def errno_of_reading(path: Path) -> int:
    try:
        path.read_bytes()
    except OSError as problem:
        return problem.errno or -1
    return 0


def unreadable(session: Path, programs: ThreadPoolExecutor) -> list[int]:
    """Read every file until it can be; gives those that cannot within two minutes."""
    deadline = time.monotonic() + 120
    left = list(range(FILES))
    while left and time.monotonic() < deadline:
        found = list(programs.map(lambda number: errno_of_reading(session / f"f{number}"), left))
        assert set(found) <= {0, errno.EIO}
        left = [number for number, problem in zip(left, found, strict=True) if problem]
    return left


@pytest.mark.timeout(1800)
def test_a_throttled_store_is_never_taken_for_missing_files(make_host: MakeHost, store_url: str) -> None:
    writer = make_host("a", store_url)
    writer.mount()
    (writer.directory / "s").mkdir()
    for number in range(FILES):
        (writer.directory / "s" / f"f{number}").write_text(f"body {number}")
    writer.umount()
    with FaultProxy(endpoint_of(store_url)) as proxy:
        reader = make_host("b", proxy.url_for(store_url), SESSIONFS_FETCH_TIMEOUT_SECONDS="3")
        reader.mount()
        session = reader.directory / "s"
        assert len(os.listdir(session)) == FILES
        (reader.directory / "own").mkdir()
        proxy.plan(Reply(503, "SlowDown"), times=1_000_000)
        until = time.monotonic() + THROTTLED_SECONDS
        seen: Counter[int] = Counter()
        lock = threading.Lock()

        def wait(number: int) -> None:
            while True:
                found = errno_of_reading(session / f"f{number}")
                with lock:
                    seen[found] += 1
                if time.monotonic() > until:
                    return

        with ThreadPoolExecutor(FILES) as programs:
            waiting = [programs.submit(wait, number) for number in range(FILES)]
            for number in range(FILES // 10):
                (reader.directory / "own" / f"g{number}").write_text("written meanwhile")
            most_threads = max(threads_of(pid) for pid in reader.remember_pids())
            memory_mib = max(memory_mib_of(pid) for pid in reader.remember_pids())
            for future in waiting:
                future.result()
            assert set(seen) <= {errno.EIO}, seen
            assert most_threads < MOST_THREADS
            assert memory_mib < MOST_MEMORY_MIB
            proxy.forget_plans()
            assert unreadable(session, programs) == []
        assert (session / "f7").read_text() == "body 7"
        reader.wait_until_clean()
        print(
            f"{THROTTLED_SECONDS:.0f} s throttled, {FILES} programs: {dict(seen)},"
            f" {most_threads} threads and {memory_mib:.0f} MiB in a process at most"
        )
