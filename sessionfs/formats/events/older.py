"""The older formats of a session's log, and the static chain that leads from each to the newest. Nothing here changes a file.

==== ====================== ================================================================================================================
0    ``event-log.json``     One JSON array of ``{"time": seconds, "kind", "turn"?: n, "step"?: n, "payload"?: object}``, no numbers of events
1    ``event-log.jsonl``    A line each: ``{"seq": n from 0, "ts": milliseconds, "kind", "turn"?: text, "step"?: text, "data"?: object}``, no header
2    ``events.jsonl[.zst]`` This version: `event`, with `header`
==== ====================== ================================================================================================================

The kinds of 0 and 1 are those of `_TYPE_OF_KIND`, and no others, whether they say that they may be ignored or not: what these formats did not have
cannot be carried over faithfully. The first event of kind ``start`` has in its data what is in the header today.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sessionfs.formats.events import event as events
from sessionfs.formats.events import header as headers
from sessionfs.formats.events.event import Event
from sessionfs.formats.events.header import Encoding, Header
from sessionfs.formats.logs import json_lines
from sessionfs.model.errors import CorruptDataError, InvalidRequestError, TooLargeError

OLDER_PATHS = {0: "event-log.json", 1: "event-log.jsonl"}
"""The raw file of each older format, below the session."""

_TYPE_OF_KIND = {
    "start": "session.started",
    "end": "session.ended",
    "turn_start": events.TURN_STARTED,
    "turn_end": events.TURN_ENDED,
    "step_start": events.STEP_STARTED,
    "step_end": events.STEP_ENDED,
    "tool_call": events.TOOL_CALLED,
    "tool_result": events.TOOL_RETURNED,
    "system": "message.system",
    "user": "message.user",
    "assistant": "message.assistant",
    "state": "state.changed",
}


@dataclass(frozen=True, slots=True)
class Migrated:
    """A log of an older format as the newest has it.

    Attributes:
        header: Its header.
        lines: Its events, each a line without its newline.
    """

    header: Header
    lines: tuple[bytes, ...]


class _Zero(msgspec.Struct, frozen=True):
    time: float
    kind: str
    turn: int | None = None
    step: int | None = None
    payload: dict[str, Any] = msgspec.field(default_factory=dict)


class _One(msgspec.Struct, frozen=True):
    seq: int
    ts: int
    kind: str
    turn: str = ""
    step: str = ""
    data: dict[str, Any] = msgspec.field(default_factory=dict)


def migrate(raw: bytes, found: int, session: str, encoding: Encoding) -> Migrated:
    """Lead a log of an older format to the newest, one format after the other.

    Args:
        raw: The bytes of its raw file. A torn last line of format 1 is left out.
        found: Its format, 0 or 1.
        session: Whose log it is.
        encoding: What the new header is to say.

    Raises:
        UnsupportedFormatError: An event of a kind that the format did not have; the error names the raw file.
        CorruptDataError: It is no such log, or its first event has more than a header may have.
    """
    name = f"{session}/{OLDER_PATHS[found]}"
    records: Sequence[Any] = _READERS[found](raw, name)
    for step in _CHAIN[found:]:
        records = step(records, name)
    lines = []
    for record in records:
        try:
            lines.append(events.encode(record))
        except (InvalidRequestError, TooLargeError) as problem:
            raise CorruptDataError(f"{name}: {problem.message}") from None
    header = _header(records, session, encoding)
    try:
        headers.check(header)
    except (InvalidRequestError, TooLargeError) as problem:
        raise CorruptDataError(f"{name}: {problem.message}") from None
    return Migrated(header, tuple(lines))


def _read_zero(raw: bytes, name: str) -> list[_Zero]:
    try:
        return msgspec.json.decode(raw, type=list[_Zero])
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise CorruptDataError(f"{name} cannot be read: {problem}") from None


def _read_one(raw: bytes, name: str) -> list[_One]:
    found: list[_One] = []
    whole, _ = json_lines.split_torn(raw)
    for number, line in enumerate(whole.split(json_lines.NEWLINE)[:-1]):
        try:
            record = msgspec.json.decode(line, type=_One)
        except (msgspec.DecodeError, ValueError, RecursionError) as problem:
            raise CorruptDataError(f"{name}: event {number} cannot be read: {problem}") from None
        if record.seq != number:
            raise CorruptDataError(f"{name} has event {record.seq} where {number} belongs")
        found.append(record)
    return found


def _zero_to_one(records: Sequence[_Zero], name: str) -> list[_One]:
    found: list[_One] = []
    for seq, record in enumerate(records):
        _require_kind(record.kind, seq, name, 0)
        if not 0 <= record.time < 1 << 40:
            raise CorruptDataError(f"{name}: event {seq} has no time")
        turn, step = ("" if n is None else str(n) for n in (record.turn, record.step))
        found.append(_One(seq, round(record.time * 1000), record.kind, turn, step, record.payload))
    return found


def _one_to_two(records: Sequence[_One], name: str) -> list[Event]:
    for record in records:
        _require_kind(record.kind, record.seq, name, 1)
    return [
        Event(record.seq, record.ts, _TYPE_OF_KIND[record.kind], record.turn, record.step, data=record.data)
        for record in records
    ]


_READERS: dict[int, Callable[[bytes, str], Sequence[Any]]] = {0: _read_zero, 1: _read_one}
_CHAIN: tuple[Callable[[Any, str], Sequence[Any]], ...] = (_zero_to_one, _one_to_two)
"""The step at n leads from format n to n + 1."""


def _require_kind(kind: str, seq: int, name: str, found: int) -> None:
    if kind not in _TYPE_OF_KIND:
        raise events.unknown_type(name, seq, kind, found)


def _header(records: Sequence[Event], session: str, encoding: Encoding) -> Header:
    started = next((one for one in records if one.type == "session.started"), None)
    data = started.data if started is not None else {}

    def text(field: str) -> str:
        value = data.get(field, "")
        return value if isinstance(value, str) else ""

    return Header(
        id=session,
        created_at=records[0].at if records else 0,
        cwd=text("cwd"),
        origin=text("origin"),
        agent_preset=text("agent_preset"),
        encoding=encoding,
    )
