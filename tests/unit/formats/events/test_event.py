"""Events: what may be appended, and what is read."""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats.events import event as events
from sessionfs.formats.events.event import END_OF_SEED, MAX_EVENT_BYTES, TYPES, Event
from sessionfs.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    TooLargeError,
    UnsupportedFormatError,
)

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


def full(seq: int, kind: str) -> Event:
    return Event(seq, 5, kind, "t1", "p1", data={"call": "c1"})


@pytest.mark.parametrize("kind", sorted(TYPES - {END_OF_SEED}))
def test_every_type_can_be_written_and_read(kind: str) -> None:
    (line,) = events.encode_new([full(3, kind)], 3)
    assert events.decode_stored(line, 3, "log") == full(3, kind)


@given(st.dictionaries(st.text(max_size=9), JSON, max_size=4))
def test_any_data_comes_back_on_one_line(data: dict[str, Any]) -> None:
    event = Event(0, 0, "x.any", data=data)
    line = events.encode(event)
    assert b"\n" not in line
    assert events.decode_stored(line, 0, "log") == event


@pytest.mark.parametrize(
    "bad",
    [
        Event(0, 1, "unknown.type"),
        Event(0, 1, "x."),
        Event(0, 1, "x.a b"),
        Event(0, 1, "a\nb", ignorable=True),
        Event(0, 1, "y" * 101, ignorable=True),
        Event(0, 1, "turn.ended"),
        Event(0, 1, "step.started", "t"),
        Event(0, 1, "step.started", "", "p"),
        Event(0, 1, "tool.called", "", data={"call": "c"}),
        Event(0, 1, "tool.returned", "t", data={"call": 3}),
        Event(0, 1, "message.user", data={"thing": object()}),
        Event(0, 1, "message.user", data={"text": "\ud800"}),
        Event(0, 1, "message.user", data=[1]),  # type: ignore[arg-type]
        Event(0, 1, "message.user", turn=7),  # type: ignore[arg-type]
        Event(0, 1.5, "message.user"),  # type: ignore[arg-type]
        Event(0, 1, "message.user", data={"v": float("nan")}),
        Event(0, 1, "message.user", data={"v": [float("inf")]}),
        Event(0, 1, "message.user", data={"v": b"bytes"}),
        Event(0, 1, "message.user", data={"v": (1, 2)}),
        Event(0, 1, "message.user", data={"v": {1: 2}}),
        Event(0, 1, "message.user", data={"v": {1}}),
        Event(0, 1, "message.user", data={"v": Decimal(1)}),
        Event(0, 1, "message.user", data={"v": datetime(2024, 1, 1, tzinfo=UTC)}),
    ],
)
def test_what_would_not_read_back_is_refused(bad: Event) -> None:
    with pytest.raises(InvalidRequestError, match="event 0 of type"):
        events.encode_new([bad], 0)


@pytest.mark.parametrize("value", [1.5, -0.0, 1 << 63, True, None, [1, [{}]], OrderedDict(a=1)])
def test_what_equals_what_was_given_is_taken(value: object) -> None:
    line = events.encode(Event(0, 1, "x.any", data={"v": value}))
    assert events.decode_stored(line, 0, "log").data == {"v": value}


def test_an_event_that_is_too_long_is_refused() -> None:
    with pytest.raises(TooLargeError):
        events.encode(Event(0, 1, "message.user", data={"text": "x" * MAX_EVENT_BYTES}))


def test_the_end_of_a_seed_is_no_event_of_users() -> None:
    with pytest.raises(InvalidRequestError, match="fork only"):
        events.encode_new([Event(0, 1, END_OF_SEED)], 0)


@pytest.mark.parametrize("seqs", [[1], [0, 0], [0, 2], [-1, 0]])
def test_a_gap_is_refused(seqs: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="contiguous"):
        events.encode_new([Event(seq, 1, "message.user") for seq in seqs], 0)


def test_an_unknown_type_is_read_only_when_it_may_be_ignored() -> None:
    line = b'{"seq":4,"at":1,"type":"future.thing"%s}'
    assert events.decode_stored(line % b',"ignorable":true', 4, "log").type == "future.thing"
    with pytest.raises(UnsupportedFormatError, match=r"s1/log has event 4 of type 'future.thing'"):
        events.decode_stored(line % b"", 4, "s1/log")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"seq":4}',
        b'{"seq":5,"at":1,"type":"message.user"}',
        b'{"seq":4,"at":-1,"type":"message.user"}',
        b'{"seq":4,"at":1,"type":"turn.started"}',
        b'{"seq":4,"at":1,"type":"message.user","data":[]}',
        b'{"seq":4,"at":1,"type":"\xff"}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_event_is_damage(line: bytes) -> None:
    with pytest.raises(CorruptDataError, match="log"):
        events.decode_stored(line, 4, "log")


def test_fields_of_a_newer_program_are_passed_over() -> None:
    line = b'{"seq":0,"at":1,"type":"message.user","new":[1]}'
    assert events.decode_stored(line, 0, "log") == Event(0, 1, "message.user")
