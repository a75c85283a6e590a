"""What closes an open turn: the events that a session would have had next, had its program ended it. Pure.

A turn, a step and a tool call are open from the event that begins them to the one that ends them; the end of a turn ends what is in it, and
the end of a step the calls in it. The end of a session, and the end of a seed, end nothing: both are followed by whatever comes.
"""

from __future__ import annotations

from collections.abc import Iterable

from sessionfs.formats.events import event as events
from sessionfs.formats.events.event import Event


class OpenTurns:
    """What is open after the events so far. Feed it every event, in order."""

    def __init__(self) -> None:
        self._turns: dict[str, None] = {}
        self._steps: dict[tuple[str, str], None] = {}
        self._calls: dict[tuple[str, str], str] = {}
        self._next_seq = 0
        self._last_at = 0

    def feed(self, event: Event) -> None:
        """Take the next event."""
        self._next_seq, self._last_at = event.seq + 1, max(self._last_at, event.at)
        turn, step = event.turn, event.step
        if event.type == events.TURN_STARTED:
            self._turns[turn] = None
        elif event.type == events.STEP_STARTED:
            self._steps[turn, step] = None
        elif event.type == events.TOOL_CALLED:
            self._calls[turn, event.call] = step
        elif event.type == events.TOOL_RETURNED:
            self._calls.pop((turn, event.call), None)
        elif event.type == events.STEP_ENDED:
            self._end_step(turn, step)
        elif event.type == events.TURN_ENDED:
            self._end_turn(turn)

    def closers(self) -> list[Event]:
        """Give the events that close everything, calls first, then steps, then turns, each in the order in which they were opened.

        They have the next numbers and the time of the latest event, and say ``{"interrupted": true}``.
        """
        wanted: list[tuple[str, str, str, str]] = [
            (events.TOOL_RETURNED, turn, step, call) for (turn, call), step in self._calls.items()
        ]
        wanted += [(events.STEP_ENDED, turn, step, "") for turn, step in self._steps]
        wanted += [(events.TURN_ENDED, turn, "", "") for turn in self._turns]
        return [
            Event(
                seq,
                self._last_at,
                kind,
                turn,
                step,
                data={"interrupted": True, **({events.CALL: call} if call else {})},
            )
            for seq, (kind, turn, step, call) in enumerate(wanted, self._next_seq)
        ]

    def _end_step(self, turn: str, step: str) -> None:
        self._steps.pop((turn, step), None)
        self._calls = {key: of for key, of in self._calls.items() if (key[0], of) != (turn, step)}

    def _end_turn(self, turn: str) -> None:
        self._turns.pop(turn, None)
        self._steps = {key: None for key in self._steps if key[0] != turn}
        self._calls = {key: of for key, of in self._calls.items() if key[0] != turn}


def interrupted_turn_closers(log: Iterable[Event]) -> list[Event]:
    """Give the events that close what a crash left open; none when nothing is open.

    Args:
        log: Every event of the session, or at least all since a moment at which nothing was open, in order.
    """
    open_turns = OpenTurns()
    for event in log:
        open_turns.feed(event)
    return open_turns.closers()
