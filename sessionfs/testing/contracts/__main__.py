"""Runs a door's contract suite on every registered backend (see the package).

Each promise gets a backend of its own and `LIMIT_SECONDS`; one that is broken does not stop the others.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import trio

from sessionfs.testing.contracts.promise import BrokenPromiseError, Factory, Promise

DOORS = ("session_store", "event_log", "archive", "catalogue")
LIMIT_SECONDS = 120.0
"""How long one promise may take, its backend's making included."""


async def failures(promises: tuple[Promise[Any], ...], factory: Factory[Any]) -> dict[str, str]:
    """Run a suite on one backend; gives why, by the id of each promise that is broken."""
    broken: dict[str, str] = {}
    for promise in promises:
        try:
            with trio.fail_after(LIMIT_SECONDS):
                async with factory() as backend:
                    await promise.check(backend)
        except trio.TooSlowError:
            broken[promise.id] = f"not done after {LIMIT_SECONDS:g} seconds"
        except Exception as problem:  # noqa: BLE001 - whatever it raises, the promise does not hold
            broken[promise.id] = _said(problem)
    return broken


def main(arguments: list[str]) -> int:
    """Run the suite of the door that is named; gives 1 when a promise is broken, 2 when nothing could be run."""
    if len(arguments) != 1 or arguments[0] not in DOORS:
        print(f"usage: python -m sessionfs.testing.contracts {'|'.join(DOORS)}", file=sys.stderr)  # noqa: T201
        return 2
    door = arguments[0]
    promises: tuple[Promise[Any], ...] = importlib.import_module(
        f"sessionfs.testing.contracts.{door}"
    ).PROMISES
    group = f"sessionfs.contracts.{door}"
    found = sorted(entry_points(group=group), key=lambda entry: entry.name)
    if not found:
        print(f"no backend is registered under {group}", file=sys.stderr)  # noqa: T201
        return 2
    return max(_run(entry, promises) for entry in found)


def _run(entry: EntryPoint, promises: tuple[Promise[Any], ...]) -> int:
    """Run a suite on one registered backend, and print what holds; gives the exit code."""
    try:
        factory: Factory[Any] = entry.load()
    except Exception as problem:  # noqa: BLE001 - another's package may fail in any way
        print(f"{entry.name}  {entry.value} cannot be loaded: {_said(problem)}", file=sys.stderr)  # noqa: T201
        return 2
    broken = trio.run(failures, promises, factory)
    for promise in promises:
        shown = f"BROKEN  {promise.sentence} But {broken[promise.id]}." if promise.id in broken else "holds"
        print(f"{entry.name}  {promise.id:32} {shown}")  # noqa: T201
    return 1 if broken else 0


def _said(problem: BaseException) -> str:
    """What an error says; of a group of one, what that one says."""
    while isinstance(problem, BaseExceptionGroup) and len(problem.exceptions) == 1:
        problem = problem.exceptions[0]
    if isinstance(problem, BrokenPromiseError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
