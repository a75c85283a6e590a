"""Runs a door's contract suite on every registered backend (see the package)."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from typing import Any

import trio

from sessionfs.testing.contracts.promise import Factory, Promise

DOORS = ("session_store", "event_log", "archive", "catalogue")


async def failures(promises: tuple[Promise[Any], ...], factory: Factory[Any]) -> dict[str, str]:
    """Run a suite on one backend; gives why, by the id of each promise that is broken."""
    broken: dict[str, str] = {}
    for promise in promises:
        try:
            async with factory() as backend:
                await promise.check(backend)
        except Exception as problem:  # noqa: BLE001 - whatever it raises, the promise does not hold
            broken[promise.id] = f"{type(problem).__name__}: {problem}"
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
    is_broken = False
    for entry in found:
        broken = trio.run(failures, promises, entry.load())
        is_broken = is_broken or bool(broken)
        for promise in promises:
            shown = f"BROKEN  {broken[promise.id]}" if promise.id in broken else "holds"
            print(f"{entry.name}  {promise.id:32} {shown}")  # noqa: T201
    return 1 if is_broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
