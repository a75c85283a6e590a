"""Event logs that released versions wrote open for ever. A golden file is added, never changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.formats.events import event as events
from sessionfs.formats.events import header as headers
from sessionfs.formats.events import log_bytes, older
from sessionfs.formats.events.event import Event
from sessionfs.formats.events.header import Encoding, Header
from sessionfs.model.errors import UnsupportedFormatError

GOLDEN = Path(__file__).parent / "golden"

HEADER = Header(
    id="s-2026", created_at=1_769_903_999_123, cwd="/srv/work ünïcode", parent_session="s-2025", is_seeded=True,
    inherited_event_count=2, origin="command line", delegation_depth=1, agent_preset="coder", encoding="zstd",
)  # fmt: skip
EVENTS = [
    Event(0, 1_769_903_999_123, "session.started", data={"cwd": "/srv"}),
    Event(1, 1_769_903_999_200, "message.user", data={"text": "größer\n"}),
    Event(2, 1_769_903_999_123, "seed.ended", data={"inherited": 2, "parent": "s-2025"}),
    Event(3, 1_769_904_000_000, "turn.started", "t1"),
    Event(4, 1_769_904_000_001, "step.started", "t1", "p1"),
    Event(5, 1_769_904_000_002, "tool.called", "t1", "p1", data={"call": "c1", "name": "grep"}),
    Event(6, 1_769_904_000_003, "tool.returned", "t1", "p1", data={"call": "c1", "lines": [1, 2.5, None, True]}),
    Event(7, 1_769_904_000_004, "step.ended", "t1", "p1"),
    Event(8, 1_769_904_000_005, "x.plugin.noted", "t1"),
    Event(9, 1_769_904_000_006, "some.future-thing", "t1", ignorable=True),
    Event(10, 1_769_904_000_007, "turn.ended", "t1"),
]  # fmt: skip
OLDER_EVENTS = [
    Event(0, 1_700_000_000_000, "session.started", data={"cwd": "/old", "agent_preset": "coder"}),
    Event(1, 1_700_000_000_001, "message.system", data={"text": "s"}),
    Event(2, 1_700_000_000_002, "turn.started", "1"),
    Event(3, 1_700_000_000_003, "message.user", "1", data={"text": "größer"}),
    Event(4, 1_700_000_000_004, "step.started", "1", "1"),
    Event(5, 1_700_000_000_005, "tool.called", "1", "1", data={"call": "c"}),
    Event(6, 1_700_000_000_006, "tool.returned", "1", "1", data={"call": "c"}),
    Event(7, 1_700_000_000_007, "message.assistant", "1", "1", data={"text": "a"}),
    Event(8, 1_700_000_000_008, "step.ended", "1", "1"),
    Event(9, 1_700_000_000_009, "turn.ended", "1"),
    Event(10, 1_700_000_000_010, "state.changed", data={"k": 1}),
    Event(11, 1_700_000_000_011, "session.ended"),
]


def decoded(lines: tuple[bytes, ...]) -> list[Event]:
    return [events.decode_stored(line, seq, "golden") for seq, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("name", "encoding"), [("event-log-2.jsonl.zst", "zstd"), ("event-log-2.jsonl", "lines")]
)
def test_a_log_of_format_2_opens(name: str, encoding: Encoding) -> None:
    split = log_bytes.split((GOLDEN / name).read_bytes(), encoding, 0, name)
    assert decoded(split.lines) == EVENTS
    assert not split.is_torn


def test_a_line_of_a_log_is_written_as_ever() -> None:
    lines = [events.encode(event) for event in EVENTS]
    assert log_bytes.encode(lines, "lines") == (GOLDEN / "event-log-2.jsonl").read_bytes()


def test_a_header_of_format_2_opens_and_is_written_as_ever() -> None:
    raw = (GOLDEN / "event-log-2.header.json").read_bytes()
    assert headers.decode(raw, "s-2026") == HEADER
    assert headers.encode(HEADER) == raw


@pytest.mark.parametrize(("version", "name"), [(0, "event-log-0.json"), (1, "event-log-1.jsonl")])
def test_a_log_of_an_older_format_leads_to_the_newest(version: int, name: str) -> None:
    migrated = older.migrate((GOLDEN / name).read_bytes(), version, "s-old", "zstd")
    assert decoded(migrated.lines) == OLDER_EVENTS
    assert migrated.header == Header(
        id="s-old", created_at=1_700_000_000_000, cwd="/old", agent_preset="coder"
    )


def test_a_header_of_a_newer_format_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"s-2026/events\.jsonl\.zst has format 3"):
        headers.decode((GOLDEN / "event-log-3.header.json").read_bytes(), "s-2026")
