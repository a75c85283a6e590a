"""Schedules: what happens on which host, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from sessionfs.testing.late_store import Fate

from .programs import PATHS

_SIZES = (3, 120, 700)
_PATIENCE = (0.0, 0.0, 0.01, 0.2, 2.0, 20.0)
_PAUSES = (0.05, 0.5, 3.0, 12.0, 50.0, 90.0, 200.0)
_FATES = (
    Fate.LOST, Fate.LATE, Fate.LATE, Fate.DROPPED, Fate.TWICE, Fate.REFUSED, Fate.HELD, Fate.HELD,
    Fate.KILLS_BEFORE, Fate.KILLS_AFTER,
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a schedule.

    Attributes:
        kind: Names a method of `Run`.
        host: Number of the host.
        arguments: For the method.
        patience_seconds: For so long nothing else begins.
    """

    kind: str
    host: int
    arguments: tuple[Any, ...] = ()
    patience_seconds: float = 0.0

    def __str__(self) -> str:
        shown = " ".join(str(one.decode() if isinstance(one, bytes) else one) for one in self.arguments)
        return f"{'ABC'[self.host]} {self.kind} {shown} (then {self.patience_seconds} s)"


@dataclass(frozen=True)
class Schedule:
    """What happens.

    Attributes:
        seed: Of everything that the steps do not say.
        hosts: How many.
        recovery: How the session recovers.
        steps: In order.
    """

    seed: int
    hosts: int
    recovery: str
    steps: tuple[Step, ...]


_KINDS = {
    "write": 10, "append": 10, "remove": 4, "move": 4, "hold": 2, "go_on": 4, "let_go": 3, "look": 3, "commit": 9,
    "claim": 3, "force": 5, "release": 3, "drain": 2, "kill": 2, "kill_replication": 2, "pause": 2, "sleep": 6, "fault": 12,
    "away": 2, "foreign": 2, "arrive": 6, "collect": 3,
}  # fmt: skip


def plan(seed: int) -> Schedule:
    """Plan a schedule."""
    chance = random.Random(seed)
    hosts = 3 if chance.random() < 0.15 else 2
    steps: list[Step] = []
    favourite = 0
    for _ in range(chance.randrange(8, 60)):
        if chance.random() < 0.12:
            favourite = chance.randrange(hosts)
        host = favourite if chance.random() < 0.7 else chance.randrange(hosts)
        kind = chance.choices(list(_KINDS), list(_KINDS.values()))[0]
        steps.append(Step(kind, host, _arguments(kind, chance), chance.choice(_PATIENCE)))
    return Schedule(seed, hosts, chance.choice(("live", "live", "committed")), tuple(steps))


def _arguments(kind: str, chance: random.Random) -> tuple[Any, ...]:
    match kind:
        case "write" | "append":
            return (chance.choice(PATHS), chance.choice(_SIZES))
        case "remove" | "hold" | "foreign":
            return (chance.choice(PATHS),)
        case "move":
            return (chance.choice(PATHS), chance.choice(PATHS))
        case "go_on":
            return (chance.choice(_SIZES),)
        case "sleep" | "pause" | "away" | "kill":
            return (chance.choice(_PAUSES),)
        case "fault":
            return (chance.choice(_FATES), chance.choice((0, 0, 1, 1, 2, 3, 5, 8, 13)))
        case "arrive":
            return (chance.random(),)
    return ()
