"""Runs schedules, shrinks the one that broke a promise, and shows it.

``python -m tests.properties.interleavings.search FIRST COUNT`` runs schedules and says which broke a promise; with ``--first`` until one does.
``... SEED 1 --show [--shrink]`` shows one. A schedule is repeated exactly only under the same ``PYTHONHASHSEED`` (0 is set there).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

import structlog
import trio
import trio.testing

from .bucket import BrokenPromise
from .hosts import one_loop
from .run import Run
from .schedule import Schedule, plan


def run_schedule(schedule: Schedule, say: Callable[[str], None] = lambda _line: None) -> str:
    """Run one; gives the promise that was broken, "" for none."""
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    directory = tempfile.mkdtemp(prefix="interleaved-", dir=shared)
    configured = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50), cache_logger_on_first_use=False
    )
    try:
        with one_loop(schedule.seed):
            run = Run(schedule, directory, say)
            trio.run(run.run, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        return _told(problem)
    finally:
        structlog.configure(**configured)
        shutil.rmtree(directory, ignore_errors=True)
    return ""


def _told(problem: BaseException) -> str:
    found = [problem]
    while isinstance(found[0], BaseExceptionGroup):
        found = [*found[0].exceptions, *found[1:]]
    broken = next((one for one in found if isinstance(one, BrokenPromise)), None)
    if broken is not None:
        return str(broken)
    return "".join(traceback.format_exception(found[0]))


def shrink(schedule: Schedule, seconds: float = 45.0) -> Schedule:
    """Drop steps as long as some promise is broken."""
    end = time.monotonic() + seconds
    kind = _kind_of(run_schedule(schedule))
    size = max(1, len(schedule.steps) // 2)
    while size and time.monotonic() < end:
        start = 0
        while start < len(schedule.steps) and time.monotonic() < end:
            steps = (*schedule.steps[:start], *schedule.steps[start + size :])
            smaller = Schedule(schedule.seed, schedule.hosts, schedule.recovery, steps)
            if _kind_of(run_schedule(smaller)) == kind:
                schedule = smaller
            else:
                start += size
        size //= 2
    return schedule


def _kind_of(problem: str) -> str:
    """What was broken, without names and numbers."""
    if problem.startswith("it hangs"):
        return " ".join(word for word in ("hangs", "stuck", "not own", "may not") if word in problem)
    return re.sub(r"'[^']*'|\S*\d\S*|\(.*\)|\[.*\]", "", problem.strip().split("\n")[-1])[:24]


def report(schedule: Schedule) -> str:
    """Show a schedule as it went, with what it broke."""
    lines = [f"seed {schedule.seed}, {schedule.hosts} hosts, recovery {schedule.recovery}"]
    lines.append(run_schedule(schedule, lines.append))
    return "\n".join(lines)


def main() -> int:
    """Run schedules from the command line."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    if "--show" in sys.argv:
        schedule = plan(first)
        print(report(shrink(schedule) if "--shrink" in sys.argv else schedule))
        return 0
    broken, started = 0, time.monotonic()
    for seed in range(first, first + count):
        problem = run_schedule(plan(seed))
        if problem:
            broken += 1
            print(f"seed {seed}: {problem}", flush=True)
            if "--first" in sys.argv:
                break
    print(f"{count} schedules from {first}: {broken} broken, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(  # noqa: S606 - itself again
            sys.executable,
            [sys.executable, "-m", "tests.properties.interleavings.search", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    raise SystemExit(main())
