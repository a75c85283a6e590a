"""A breadth-first search of every state a model can reach, and the shortest way to one that must not be.

A model is a first state, a function that gives the steps out of a state, and a function that says what is wrong with a
state ("" when nothing is). States are immutable and hashable. The search is exhaustive: it ends when no new state is
left, or it fails because there are more than ``maximum_states``. A result of a search that was cut short is never
taken for "nothing found".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True)
class Model(Generic[State]):
    """What is searched.

    Attributes:
        first: The state everything starts from.
        steps: Gives (what happens, the state after it) for everything that can happen next.
        wrong: Says what a state violates, "" when nothing.
    """

    first: State
    steps: Callable[[State], Iterable[tuple[str, State]]]
    wrong: Callable[[State], str]


@dataclass(frozen=True)
class Finding:
    """The shortest way to a state that was looked for.

    Attributes:
        what: What the state violates, or the goal that it reaches.
        trace: The steps to it, in order.
    """

    what: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        """Give the trace, one numbered step a line."""
        steps = (f"  {number:2}. {step}" for number, step in enumerate(self.trace, 1))
        return "\n".join((self.what, *steps))


@dataclass(frozen=True)
class Search:
    """What a search saw.

    Attributes:
        states: How many different states it reached.
        finding: The first violation, None when there is none in the whole space.
    """

    states: int
    finding: Finding | None


class SearchTooLargeError(Exception):
    """The space has more states than the bound of the search."""


def explore(model: Model[State], maximum_states: int = 3_000_000) -> Search:
    """Look at every state that the model can reach.

    Args:
        model: The model.
        maximum_states: More states than this fail the search; it is never cut short in silence.

    Raises:
        SearchTooLargeError: The space is larger than ``maximum_states``.
    """
    return _search(model, model.wrong, maximum_states)


def reach(model: Model[State], goal: Callable[[State], bool], maximum_states: int = 3_000_000) -> Finding:
    """Find the shortest way to a state that should be reachable; a model that cannot reach it proves nothing.

    Raises:
        AssertionError: No state that the model reaches is the goal, or one before it is wrong.
        SearchTooLargeError: As for ``explore``.
    """
    found = _search(
        model, lambda state: model.wrong(state) or ("reached" if goal(state) else ""), maximum_states
    )
    assert found.finding is not None, f"unreachable in {found.states} states"
    assert found.finding.what == "reached", str(found.finding)
    return found.finding


def _search(model: Model[State], ends: Callable[[State], str], maximum_states: int) -> Search:
    came_from: dict[State, tuple[State, str] | None] = {model.first: None}
    waiting = deque([model.first])
    while waiting:
        state = waiting.popleft()
        if what := ends(state):
            return Search(len(came_from), Finding(what, tuple(_trace(came_from, state))))
        for label, after in model.steps(state):
            if after not in came_from:
                came_from[after] = (state, label)
                waiting.append(after)
        if len(came_from) > maximum_states:
            raise SearchTooLargeError(f"more than {maximum_states} states")
    return Search(len(came_from), None)


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> Iterator[str]:
    labels: list[str] = []
    while (step := came_from[state]) is not None:
        state, label = step
        labels.append(label)
    return reversed(labels)
