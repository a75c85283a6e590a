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
WAITING = int(os.environ.get("SESSIONFS_TEST_WAITING", "2000"))
FILES = 200
PROGRAMS = 64


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def errno_of_reading(path: Path) -> int:
    try:
        path.read_bytes()
    except OSError as problem:
        return problem.errno or -1
    return 0


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
                found = errno_of_reading(session / f"f{number % FILES}")
                with lock:
                    seen[found] += 1
                if time.monotonic() > until:
                    return

        with ThreadPoolExecutor(PROGRAMS) as programs:
            waiting = [programs.submit(wait, number) for number in range(PROGRAMS)]
            for number in range(FILES):
                (reader.directory / "own" / f"g{number}").write_text("written meanwhile")
            most_threads = max(threads_of(pid) for pid in reader.remember_pids())
            for future in waiting:
                future.result()
        assert set(seen) <= {errno.EIO}, seen
        assert most_threads < 80
        proxy.forget_plans()
        with ThreadPoolExecutor(PROGRAMS) as programs:
            deadline = time.monotonic() + 60
            left = list(range(WAITING))
            while left and time.monotonic() < deadline:
                found = list(programs.map(lambda n: errno_of_reading(session / f"f{n % FILES}"), left))
                assert set(found) <= {0, errno.EIO}
                left = [number for number, problem in zip(left, found, strict=True) if problem]
        assert left == []
        assert (session / "f7").read_text() == "body 7"
        reader.wait_until_clean()
        print(f"{THROTTLED_SECONDS:.0f} s throttled: {dict(seen)}, {most_threads} threads at most")
