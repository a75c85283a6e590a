"""What closes an open turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.sessions.event_log import Event, interrupted_turn_closers
from sessionfs.sessions.event_log.turn_repair import OpenTurns

TURN = Event(0, 10, "turn.started", "t")
STEP = Event(1, 11, "step.started", "t", "p")
CALL = Event(2, 12, "tool.called", "t", "p", data={"call": "c"})


def shapes(events: list[Event]) -> list[tuple[int, str, str, str, str]]:
    return [(one.seq, one.type, one.turn, one.step, one.call) for one in events]


def test_a_call_a_step_and_a_turn_are_closed_from_the_inside() -> None:
    closers = interrupted_turn_closers([TURN, STEP, CALL])
    assert shapes(closers) == [
        (3, "tool.returned", "t", "p", "c"),
        (4, "step.ended", "t", "p", ""),
        (5, "turn.ended", "t", "", ""),
    ]
    assert {one.at for one in closers} == {12}
    assert all(one.data["interrupted"] is True for one in closers)


@pytest.mark.parametrize(
    ("behind", "closers"),
    [
        ([], ["tool.returned", "step.ended", "turn.ended"]),
        ([Event(3, 13, "tool.returned", "t", "p", data={"call": "c"})], ["step.ended", "turn.ended"]),
        ([Event(3, 13, "tool.returned", "t", data={"call": "c"})], ["step.ended", "turn.ended"]),
        (
            [Event(3, 13, "tool.returned", "t", data={"call": "other"})],
            ["tool.returned", "step.ended", "turn.ended"],
        ),
        ([Event(3, 13, "step.ended", "t", "p")], ["turn.ended"]),
        ([Event(3, 13, "turn.ended", "t")], []),
        ([Event(3, 13, "turn.ended", "other")], ["tool.returned", "step.ended", "turn.ended"]),
        (
            [Event(3, 13, "session.ended"), Event(4, 14, "x.y")],
            ["tool.returned", "step.ended", "turn.ended"],
        ),
    ],
)
def test_what_was_ended_is_not_closed_again(behind: list[Event], closers: list[str]) -> None:
    assert [one.type for one in interrupted_turn_closers([TURN, STEP, CALL, *behind])] == closers


def test_calls_of_the_same_name_in_two_turns_are_two() -> None:
    events = [
        TURN,
        Event(1, 1, "tool.called", "t", data={"call": "c"}),
        Event(2, 1, "turn.started", "u"),
        Event(3, 1, "tool.called", "u", data={"call": "c"}),
        Event(4, 1, "tool.returned", "t", data={"call": "c"}),
    ]
    assert shapes(interrupted_turn_closers(events)) == [
        (5, "tool.returned", "u", "", "c"),
        (6, "turn.ended", "t", "", ""),
        (7, "turn.ended", "u", "", ""),
    ]


def test_nothing_closes_nothing() -> None:
    assert interrupted_turn_closers([]) == []


EVENTS = st.lists(
    st.builds(
        Event,
        seq=st.just(0),
        at=st.integers(0, 99),
        type=st.sampled_from(
            [
                "turn.started",
                "turn.ended",
                "step.started",
                "step.ended",
                "tool.called",
                "tool.returned",
                "message.user",
            ]
        ),
        turn=st.sampled_from(["a", "b"]),
        step=st.sampled_from(["p", "q"]),
        data=st.sampled_from([{"call": "c"}, {"call": "d"}]),
    ),
    max_size=12,
)


@given(EVENTS)
def test_a_log_with_its_closers_has_nothing_open(some: list[Event]) -> None:
    log = [Event(seq, one.at, one.type, one.turn, one.step, data=one.data) for seq, one in enumerate(some)]
    closers = interrupted_turn_closers(log)
    assert [one.seq for one in closers] == list(range(len(log), len(log) + len(closers)))
    assert interrupted_turn_closers([*log, *closers]) == []


@given(EVENTS, st.integers(0, 12))
def test_what_is_open_is_told_event_by_event_as_from_the_whole(some: list[Event], at: int) -> None:
    told = OpenTurns()
    for one in some[:at]:
        told.feed(one)
    for one in some[at:]:
        told.feed(one)
    assert told.closers() == interrupted_turn_closers(some)
