"""The older formats: one step after the other to the newest, or refused."""

from __future__ import annotations

import msgspec
import pytest

from sessionfs.formats.events import event as events
from sessionfs.formats.events import header as headers
from sessionfs.formats.events import older
from sessionfs.formats.events.event import Event
from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError

ONE = [
    {"seq": 0, "ts": 1500, "kind": "start", "data": {"cwd": "/w", "agent_preset": "p", "origin": 3}},
    {"seq": 1, "ts": 1501, "kind": "turn_start", "turn": "1"},
    {"seq": 2, "ts": 1502, "kind": "step_start", "turn": "1", "step": "2"},
    {"seq": 3, "ts": 1503, "kind": "tool_call", "turn": "1", "step": "2", "data": {"call": "c"}},
]
ZERO = [
    {"time": 1.5, "kind": "start", "payload": {"cwd": "/w", "agent_preset": "p", "origin": 3}},
    {"time": 1.501, "kind": "turn_start", "turn": 1},
    {"time": 1.502, "kind": "step_start", "turn": 1, "step": 2},
    {"time": 1.503, "kind": "tool_call", "turn": 1, "step": 2, "payload": {"call": "c"}},
]
EVENTS = [
    Event(0, 1500, "session.started", data={"cwd": "/w", "agent_preset": "p", "origin": 3}),
    Event(1, 1501, "turn.started", "1"),
    Event(2, 1502, "step.started", "1", "2"),
    Event(3, 1503, "tool.called", "1", "2", data={"call": "c"}),
]


def one(*records: object) -> bytes:
    return b"".join(msgspec.json.encode(record) + b"\n" for record in records)


def decoded(found: older.Migrated) -> list[Event]:
    return [events.decode_stored(line, seq, "log") for seq, line in enumerate(found.lines)]


def test_both_formats_lead_to_the_same_log() -> None:
    from_zero = older.migrate(msgspec.json.encode(ZERO), 0, "s1", "zstd")
    from_one = older.migrate(one(*ONE), 1, "s1", "zstd")
    assert decoded(from_zero) == decoded(from_one) == EVENTS
    assert from_zero.header == from_one.header
    header = from_one.header
    assert (header.id, header.created_at, header.cwd, header.agent_preset) == ("s1", 1500, "/w", "p")
    assert header.origin == "", "what was no text became one"


def test_a_torn_last_line_is_left_out() -> None:
    assert decoded(older.migrate(one(*ONE) + b'{"seq":4,"ts":1', 1, "s1", "zstd")) == EVENTS


def test_a_log_without_events_is_empty() -> None:
    assert older.migrate(b"[]", 0, "s1", "zstd").lines == ()
    assert older.migrate(b'{"seq"', 1, "s1", "zstd").lines == ()


@pytest.mark.parametrize("extra", [{}, {"ignorable": True}])
@pytest.mark.parametrize("kind", ["invented", "x.mine", "message.user"])
def test_a_kind_that_the_format_did_not_have_is_refused_ignorable_or_not(
    kind: str, extra: dict[str, object]
) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"s1/event-log\.jsonl has event 4 of type"):
        older.migrate(one(*ONE, {"seq": 4, "ts": 1, "kind": kind, **extra}), 1, "s1", "zstd")
    with pytest.raises(UnsupportedFormatError, match=r"s1/event-log\.json has event 4 of type"):
        older.migrate(msgspec.json.encode([*ZERO, {"time": 1, "kind": kind, **extra}]), 0, "s1", "zstd")


@pytest.mark.parametrize(
    ("found", "raw"),
    [
        (0, b""),
        (0, b"{}"),
        (0, b'[{"time":1}]'),
        (0, b'[{"time":-1,"kind":"user"}]'),
        (0, b'[{"time":1e300,"kind":"user"}]'),
        (0, b'[{"time":1,"kind":"turn_start"}]'),
        (0, msgspec.json.encode(ZERO)[:-1]),
        (1, b"no JSON\n"),
        (1, b'{"seq":1,"ts":1,"kind":"user"}\n'),
        (1, b'{"seq":0,"ts":-1,"kind":"user"}\n'),
        (1, b'{"seq":0,"ts":1,"kind":"tool_call","turn":"1"}\n'),
        (1, b"\n"),
    ],
)
def test_what_is_no_such_log_is_damage_that_names_the_file(found: int, raw: bytes) -> None:
    with pytest.raises(CorruptDataError, match=r"s1/event-log\.json"):
        older.migrate(raw, found, "s1", "zstd")


@pytest.mark.parametrize("field", ["cwd", "origin", "agent_preset"])
def test_a_first_event_that_no_header_holds_is_damage(field: str) -> None:
    long = "x" * headers.MAX_HEADER_BYTES
    started = {"seq": 0, "ts": 1, "kind": "start", "data": {field: long}}
    with pytest.raises(CorruptDataError, match=r"s1/event-log\.jsonl: the header of s1 is longer"):
        older.migrate(one(started), 1, "s1", "zstd")
