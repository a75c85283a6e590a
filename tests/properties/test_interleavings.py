"""A search over random interleavings of the real code: whole hosts over one bucket, with every fault that a store, a line or a machine can have.

Quick: as many schedules as fit in 40 s, at least 150. ``SESSIONFS_TEST_SCHEDULES`` says how many instead, ``SESSIONFS_TEST_SEED`` the first.
A failure prints the schedule, shrunk; ``python -m tests.properties.interleavings.search SEED 1 --show`` shows it whole.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.properties.interleavings.schedule import plan
from tests.properties.interleavings.search import report, run_schedule, shrink

LEAST_SCHEDULES = 150
QUICK_SECONDS = 40.0


def test_no_interleaving_breaks_a_promise() -> None:
    first = int(os.environ.get("SESSIONFS_TEST_SEED", "1"))
    wanted = int(os.environ.get("SESSIONFS_TEST_SCHEDULES", "0"))
    end = time.monotonic() + QUICK_SECONDS
    done = 0
    while done < (wanted or LEAST_SCHEDULES) or (not wanted and time.monotonic() < end):
        schedule = plan(first + done)
        if run_schedule(schedule):
            pytest.fail(f"after {done} schedules, PYTHONHASHSEED may matter:\n{report(shrink(schedule))}")
        done += 1
    print(f"{done} schedules from seed {first}")


@pytest.mark.parametrize("seed", [1, 7])
def test_a_seed_says_everything(seed: int) -> None:
    first, second = (_shown(seed) for _ in range(2))
    assert "everything is repaired" in first
    assert first == second


def _shown(seed: int) -> str:
    """How a schedule goes in a process of its own."""
    command = [sys.executable, "-m", "tests.properties.interleavings.search", str(seed), "1", "--show"]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    lines = found.stdout.splitlines()
    # Times of the day are the machine's.
    return "\n".join(line for line in lines if " since 2" not in line)
