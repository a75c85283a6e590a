"""One event of a session, and the closed list of what events there are.

Invariants:

* A log holds its events in order, numbered from 0 without a gap: the event at offset n has the ``seq`` n.
* A type is one of `TYPES`, or an extension ``x.<name>``. Any other is unknown: it passes when the event itself says that it may be ignored.
* `END_OF_SEED` is written by a fork only, once, right behind what was inherited.
* An event is one line of JSON with no newline in it, at most `MAX_EVENT_BYTES` long; what is read from it equals what was given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from sessionfs.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    TooLargeError,
    UnsupportedFormatError,
)

FORMAT = 2
"""The newest format of a log, and the one that is written."""
MAX_EVENT_BYTES = 16 << 20

TURN_STARTED = "turn.started"
TURN_ENDED = "turn.ended"
STEP_STARTED = "step.started"
STEP_ENDED = "step.ended"
TOOL_CALLED = "tool.called"
TOOL_RETURNED = "tool.returned"
END_OF_SEED = "seed.ended"
EXTENSION_PREFIX = "x."
CALL = "call"
"""The name in ``data`` of the call that a tool event belongs to."""

_OF_TURNS = frozenset({TURN_STARTED, TURN_ENDED})
_OF_STEPS = frozenset({STEP_STARTED, STEP_ENDED})
_OF_CALLS = frozenset({TOOL_CALLED, TOOL_RETURNED})
TYPES = frozenset(
    {
        "session.started",
        "session.ended",
        *_OF_TURNS,
        *_OF_STEPS,
        *_OF_CALLS,
        "message.system",
        "message.user",
        "message.assistant",
        "state.changed",
        "state.removed",
        END_OF_SEED,
    }
)
"""Every type but the extensions."""

_EXTENSION = re.compile(r"x\.[A-Za-z0-9_.-]{1,100}")
_UNKNOWN = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened in a session.

    Attributes:
        seq: Its number in the log, from 0.
        at: When, milliseconds since the epoch.
        type: What (`TYPES`, or ``x.<name>``).
        turn: The turn it belongs to, "" for none.
        step: The step of the turn, "" for none.
        ignorable: A reader that does not know the type may pass over it.
        data: A JSON object; what is in it is the type's business. Text, whole and finite numbers, lists, ``dict`` with text as names, ``bool``, None.
    """

    seq: int
    at: int
    type: str
    turn: str = ""
    step: str = ""
    ignorable: bool = False
    data: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def call(self) -> str:
        """The tool call it belongs to, "" for none."""
        call = self.data.get(CALL, "")
        return call if isinstance(call, str) else ""


_decoder = msgspec.json.Decoder(Event)
_encoder = msgspec.json.Encoder()


def is_known(kind: str) -> bool:
    """Whether a type is one of ours or an extension."""
    return kind in TYPES or _EXTENSION.fullmatch(kind) is not None


def problem_of(event: Event) -> str:
    """Say what is wrong with the fields of an event, "" when nothing is. An unknown type is `is_known`'s business."""
    if event.seq < 0 or event.at < 0:
        return "has a negative seq or time"
    if _UNKNOWN.fullmatch(event.type) is None:
        return "has a type that is no short plain word"
    if event.type in _OF_TURNS | _OF_STEPS | _OF_CALLS and not event.turn:
        return "names no turn"
    if event.type in _OF_STEPS and not event.step:
        return "names no step"
    if event.type in _OF_CALLS and not event.call:
        return f"has no text {CALL!r} in its data"
    return ""


def encode_new(events: Sequence[Event], first_seq: int) -> list[bytes]:
    """Check events that are to be appended, and give a line for each, without its newline.

    Args:
        events: In order.
        first_seq: What the first of them must have.

    Raises:
        InvalidRequestError: A gap or a repetition, a bad field, an unknown type that is not ignorable, or data that JSON does not keep as it is.
        TooLargeError: One is too long.
    """
    lines: list[bytes] = []
    for number, event in enumerate(events, first_seq):
        what = f"event {event.seq!r} of type {event.type!r}"
        if event.seq != number:
            raise InvalidRequestError(f"{what} has no contiguous seq: {number} is next")
        if event.type == END_OF_SEED:
            raise InvalidRequestError(f"{what} is written by a fork only")
        lines.append(encode(event))
    return lines


def encode(event: Event) -> bytes:
    """Give the line of an event, without its newline.

    Raises:
        InvalidRequestError: It can be in no log.
        TooLargeError: It is too long.
    """
    what = f"event {event.seq!r} of type {event.type!r}"
    try:
        line = _encoder.encode(event)
        # Annotations bind nobody: what would not read back must not be written.
        again = _decoder.decode(line)
        is_same = again == event
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidRequestError(f"{what} cannot be written as JSON: {problem}") from None
    if len(line) > MAX_EVENT_BYTES:
        raise TooLargeError(f"{what} is longer than {MAX_EVENT_BYTES} bytes")
    problem_found = problem_of(again)
    if not problem_found and not (again.ignorable or is_known(again.type)):
        problem_found = "is unknown, and not marked ignorable"
    if problem_found:
        raise InvalidRequestError(f"{what} {problem_found}")
    if not is_same:
        # A NaN becomes null, bytes become text, a tuple becomes a list, the name 1 becomes "1".
        raise InvalidRequestError(f"{what} would be read back as another: its data holds what JSON does not")
    return line


def decode_stored(line: bytes, seq: int, name: str) -> Event:
    """Read a line of a log of the newest format.

    Args:
        line: Without its newline.
        seq: What it must have.
        name: The raw file, for errors.

    Raises:
        CorruptDataError: It is no event, or not the one that belongs there.
        UnsupportedFormatError: Its type is unknown, and it is not ignorable.
    """
    event = decode_line(line, seq, name)
    if event.seq != seq:
        raise CorruptDataError(f"{name} has event {event.seq} where {seq} belongs")
    problem = problem_of(event)
    if problem:
        raise CorruptDataError(f"{name}: event {seq} {problem}")
    if not (event.ignorable or is_known(event.type)):
        raise unknown_type(name, seq, event.type, FORMAT)
    return event


def decode_line(line: bytes, seq: int, name: str) -> Event:
    """Read a line as an event, whatever it says.

    Raises:
        CorruptDataError: It is none.
    """
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise CorruptDataError(f"{name}: event {seq} cannot be read: {problem}") from None


def unknown_type(name: str, seq: int, kind: str, found: int) -> UnsupportedFormatError:
    """Give the error for an event that only a newer program knows."""
    error = UnsupportedFormatError(name, found=found, supported=FORMAT)
    # The format's number is one that can be read: what is newer is the event.
    error.message = f"{name} has event {seq} of type {kind[:100]!r}, which this version does not know"
    return error
