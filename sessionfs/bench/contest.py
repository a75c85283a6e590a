"""A workload beside a bare one: rounds in turn, so that what else the machine does hits both, and the median of their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

Round = Callable[[], Awaitable[None]]
"""Does all operations of one round."""


@dataclass(frozen=True, slots=True)
class Contest:
    """What is measured.

    Attributes:
        name: Short, kept for ever.
        sentence: What ours does, and what the bare one does.
        operations: Operations in a round of either, from 1.
        target: The ratio to reach: how much of the bare speed ours has.
        ours: One round of ours.
        bare: One round of the bare one.
    """

    name: str
    sentence: str
    operations: int
    target: float
    ours: Round = field(repr=False)
    bare: Round = field(repr=False)


class Figure(msgspec.Struct, frozen=True):
    """What came out.

    Attributes:
        name: The contest.
        sentence: As in the contest.
        ours_seconds: Median time of one operation of ours.
        bare_seconds: The same of the bare one.
        ratio: Median over the rounds of bare time by our time: 1 is as fast, 2 twice as fast.
        target: What was to be reached.
        rounds: How many of each.
    """

    name: str
    sentence: str
    ours_seconds: float
    bare_seconds: float
    ratio: float
    target: float
    rounds: int

    @property
    def is_reached(self) -> bool:
        """Whether the target is reached."""
        return self.ratio >= self.target


class Count(msgspec.Struct, frozen=True):
    """Something that is counted, not timed.

    Attributes:
        name: Short, kept for ever.
        sentence: What was counted.
        counts: How many, by kind.
        expected: How many there are to be.
    """

    name: str
    sentence: str
    counts: dict[str, int]
    expected: dict[str, int]

    @property
    def is_reached(self) -> bool:
        """Whether it is what it is to be."""
        return self.counts == self.expected


async def measure(
    contest: Contest, rounds: int, *, now_seconds: Callable[[], float] = time.perf_counter
) -> Figure:
    """Run a contest.

    Args:
        contest: What is measured; one round of each is run first, and not counted.
        rounds: How many of each, from 1.
        now_seconds: The clock.
    """
    await contest.bare()
    await contest.ours()
    ours: list[float] = []
    bare: list[float] = []
    for number in range(rounds):
        # Who goes first takes turns too.
        for is_ours in (True, False) if number % 2 else (False, True):
            started = now_seconds()
            await (contest.ours() if is_ours else contest.bare())
            (ours if is_ours else bare).append(now_seconds() - started)
    return Figure(
        contest.name,
        contest.sentence,
        statistics.median(ours) / contest.operations,
        statistics.median(bare) / contest.operations,
        statistics.median(one / other for one, other in zip(bare, ours, strict=True)),
        contest.target,
        rounds,
    )
