"""The lease as a model with time (A9): one holder, one taker, beats that are late in both directions.

Time passes in ticks for all.

The holder sends a beat when it likes; the beat arrives after at most ``DELAY`` ticks and so does its answer. The holder
may use the session up to its deadline, the taker takes over when it saw no new beat for a full ttl. Nobody is paused:
then the two never use the session at once, if the deadline counts from the *sending* of the beat, and an answer that
comes after the deadline does not extend it (the taker may have counted to the end before that beat arrived).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .protocol_explorer import Model

TTL, MARGIN, DELAY, END = 4, 1, 3, 14


class Lease(NamedTuple):
    """A state.

    ``beat`` is under way: (tick of its arrival, of its sending); ``answer`` too. ``fresh`` says that a beat arrived
    that the taker did not see, ``observed_at`` when he saw the last one.
    """

    now: int = 0
    deadline: int = TTL - MARGIN
    beat: tuple[int, int] | None = None
    answer: tuple[int, int] | None = None
    fresh: bool = False
    observed_at: int = 0
    taken: bool = False


def lease_model(
    *, counts_from_sending: bool = True, ends_for_good: bool = True, margin: int = MARGIN
) -> Model[Lease]:
    """Give the model.

    Args:
        counts_from_sending: The deadline counts from the sending of a beat, else from its answer.
        ends_for_good: An answer after the deadline does not extend it.
        margin: Ticks by which the holder stops early; it covers clocks that differ.
    """

    def steps(state: Lease) -> Iterator[tuple[str, Lease]]:
        yield from _holder(state)
        yield from _network(state)
        yield from _taker(state)
        yield from _time(state, margin, counts_from_sending, ends_for_good)

    def wrong(state: Lease) -> str:
        if state.taken and state.now < state.deadline:
            return f"taken over at {state.now}, the holder goes on until {state.deadline}"
        return ""

    return Model(Lease(deadline=TTL - margin), steps, wrong)


def _holder(state: Lease) -> Iterator[tuple[str, Lease]]:
    if state.beat is None and state.answer is None and state.now < state.deadline:
        for delay in range(DELAY + 1):
            yield f"{state.now}: a beat is sent", state._replace(beat=(state.now + delay, state.now))


def _network(state: Lease) -> Iterator[tuple[str, Lease]]:
    if state.beat is not None and state.beat[0] == state.now:
        for delay in range(DELAY + 1):
            answer = (state.now + delay, state.beat[1])
            yield f"{state.now}: a beat arrives", state._replace(fresh=True, beat=None, answer=answer)


def _taker(state: Lease) -> Iterator[tuple[str, Lease]]:
    if state.fresh:
        yield f"{state.now}: a beat is observed", state._replace(fresh=False, observed_at=state.now)
    elif state.now - state.observed_at >= TTL and not state.taken:
        yield f"{state.now}: taken over", state._replace(taken=True)


def _time(state: Lease, margin: int, from_sending: bool, ends_for_good: bool) -> Iterator[tuple[str, Lease]]:
    if state.answer is not None and state.answer[0] == state.now:
        start = state.answer[1] if from_sending else state.now
        counts = state.now < state.deadline or not ends_for_good
        deadline = max(state.deadline, start + TTL - margin) if counts else state.deadline
        yield f"{state.now}: answered", state._replace(answer=None, deadline=deadline)
    elif state.now < END and not (state.beat is not None and state.beat[0] == state.now):
        yield f"{state.now}: a tick", state._replace(now=state.now + 1)
