"""``metadata/session.json``: what a session is and how far it came. Canonical JSON with a ``format``.

Invariants:

* Fields of this version are checked before anything is written; fields that this version does not know are kept when it is rewritten.
* A record of a later format is refused before anything is changed.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sessionfs.formats import versioned_json
from sessionfs.model.errors import CorruptDataError, InvalidRequestError

PATH = "metadata/session.json"
CONFIG_PATH = "metadata/config"
FORMAT = 1

ACTIVE = "active"
ENDED = "ended"
FAILED = "failed"
_NUMBERS = ("turn_count", "tokens_used", "prompt_tokens_used", "completion_tokens_used", "cost_usd")


class SessionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What ``metadata/session.json`` says.

    Attributes:
        id: The session.
        started_at: When it was created, as ``2026-01-31T23:59:59.123456Z``.
        ended_at: When it ended last; None while it is active.
        profile: What kind of agent it is of; free text.
        plugins: Their names.
        labels: Free text by name.
        turn_count: Turns so far.
        tokens_used: Tokens so far.
        prompt_tokens_used: Of them, those of prompts.
        completion_tokens_used: Of them, those of answers.
        cost_usd: US dollars so far.
        status: ``active``, ``ended``, ``failed``, or what a program says.
    """

    id: str
    started_at: str
    ended_at: str | None = None
    profile: str = ""
    plugins: tuple[str, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    turn_count: int = 0
    tokens_used: int = 0
    prompt_tokens_used: int = 0
    completion_tokens_used: int = 0
    cost_usd: float = 0.0
    status: str = ACTIVE


FIELDS = frozenset(SessionMetadata.__struct_fields__)
_canonical = msgspec.json.Encoder(order="sorted")


def checked(values: dict[str, Any]) -> SessionMetadata:
    """Make a record of its fields.

    Raises:
        InvalidRequestError: An unknown field, one of another type, or a number that is negative or not finite.
    """
    unknown = sorted(set(values) - FIELDS)
    if unknown:
        raise InvalidRequestError(f"session metadata has no field {unknown[0]!r}")
    try:
        made = msgspec.convert(values, SessionMetadata)
    except msgspec.ValidationError as problem:
        raise InvalidRequestError(f"session metadata is refused: {problem}") from None
    for name in _NUMBERS:
        number = getattr(made, name)
        if not math.isfinite(number) or number < 0:
            raise InvalidRequestError(f"session metadata is refused: {name} is {number}")
    return made


def changed(metadata: SessionMetadata, changes: dict[str, Any]) -> SessionMetadata:
    """Give a record with some fields changed.

    Raises:
        InvalidRequestError: As `checked`.
    """
    return checked({**msgspec.structs.asdict(metadata), **changes})


def decode(raw: bytes, name: str) -> tuple[SessionMetadata, dict[str, msgspec.Raw]]:
    """Read a record.

    Args:
        raw: Its JSON.
        name: The file, for errors.

    Returns:
        The record, and the fields that this version does not know.

    Raises:
        UnsupportedFormatError: It was written by a later version.
        CorruptDataError: It is no such record.
    """
    versioned_json.decode_format(raw, name, supported=FORMAT)
    record = versioned_json.decode(raw, SessionMetadata, name)
    fields: dict[str, msgspec.Raw] = versioned_json.decode(raw, dict[str, msgspec.Raw], name)
    try:
        checked(msgspec.structs.asdict(record))
    except InvalidRequestError as problem:
        raise CorruptDataError(f"{name} cannot be read: {problem.message}") from None
    kept = {field: value.copy() for field, value in fields.items() if field not in FIELDS | {"format"}}
    return record, kept


def encode(record: SessionMetadata, kept: dict[str, msgspec.Raw]) -> bytes:
    """Give the JSON of a record and of the fields that this version does not know."""
    return _canonical.encode({**kept, **msgspec.structs.asdict(record), "format": FORMAT}) + b"\n"
