"""Rounds in turn, and what is made of their times."""

from __future__ import annotations

import pytest

from sessionfs.bench.contest import Contest, Count, measure


class Machine:
    """A clock that two programs move, with an order of who ran."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.ran: list[str] = []

    def now(self) -> float:
        return self.seconds

    def contest(self, ours: list[float], bare: list[float], *, target: float = 0.5) -> Contest:
        async def run_ours() -> None:
            self.ran.append("ours")
            self.seconds += ours[min(self.ran.count("ours"), len(ours)) - 1]

        async def run_bare() -> None:
            self.ran.append("bare")
            self.seconds += bare[min(self.ran.count("bare"), len(bare)) - 1]

        return Contest("c", "what", 10, target, run_ours, run_bare)


async def test_the_first_round_is_not_counted_and_the_turns_alternate() -> None:
    machine = Machine()
    figure = await measure(machine.contest([99.0, 2.0], [77.0, 1.0]), 3, now_seconds=machine.now)
    assert machine.ran == ["bare", "ours", "bare", "ours", "ours", "bare", "bare", "ours"]
    assert (figure.ours_seconds, figure.bare_seconds, figure.ratio) == (0.2, 0.1, 0.5)
    assert figure.is_reached


async def test_a_disturbed_round_does_not_decide() -> None:
    machine = Machine()
    figure = await measure(
        machine.contest([1, 2.0, 50.0, 2.0], [1, 1.0, 1.0, 1.0]), 3, now_seconds=machine.now
    )
    assert figure.ratio == 0.5


@pytest.mark.parametrize(("target", "is_reached"), [(0.5, True), (0.51, False)])
async def test_a_target_is_reached_or_not(target: float, *, is_reached: bool) -> None:
    machine = Machine()
    figure = await measure(machine.contest([2.0], [1.0], target=target), 1, now_seconds=machine.now)
    assert figure.is_reached is is_reached


def test_a_count_is_what_it_is_to_be_or_not() -> None:
    assert Count("c", "what", {"objects": 3}, {"objects": 3}).is_reached
    assert not Count("c", "what", {"objects": 4}, {"objects": 3}).is_reached
