"""Who may write a session, and the beat that says that its holder lives.

``sessions/<id>.owner/owner.json`` changes only when somebody acquires or releases the session. The beat is one small object for each daemon,
``hosts/<holder>.json``, whatever number of sessions it owns. Times in both are for people: no clock is ever compared with another's.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sessionfs.formats import versioned_json
from sessionfs.model import roots
from sessionfs.model.errors import CorruptDataError

FORMAT = 1

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class OwnerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns a session.

    Attributes:
        session: The session.
        holder: The daemon's own identity, 32 hexadecimal digits, new at every start.
        epoch: Counts the acquisitions of this session, from 1.
        state: ``held``, or ``released``: then anybody may take it at once.
        beat: Key of the holder's beat.
        host: Name of the holder's machine, for people.
        acquired_at: Time as text, for people.
        format: Always `FORMAT`.
    """

    session: str
    holder: str
    epoch: _Count
    state: Literal["held", "released"] = "held"
    beat: str = ""
    host: str = ""
    acquired_at: str = ""
    format: int = FORMAT


class BeatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """That a holder lives.

    Attributes:
        holder: Whose it is.
        counter: Grows with every beat.
        lease_seconds: How long the beat must stand still before others may take over what the holder owns.
        host: Name of the machine, for people.
        sent_at: Time as text, for people.
        format: Always `FORMAT`.
    """

    holder: str
    counter: _Count
    lease_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)]
    host: str = ""
    sent_at: str = ""
    format: int = FORMAT


def encode(record: OwnerRecord | BeatRecord) -> bytes:
    """Give a record's canonical JSON."""
    if isinstance(record, OwnerRecord):
        record = msgspec.structs.replace(record, session=roots.shown_id(record.session))
    return versioned_json.encode(record)


def decode_owner(raw: bytes, key: str) -> OwnerRecord:
    """Read an ownership record.

    Args:
        raw: The stored bytes.
        key: Where they are, for errors.

    Raises:
        UnsupportedFormatError: A format this version does not know.
        CorruptDataError: No such record.
    """
    if versioned_json.decode_format(raw, key, supported=FORMAT) is None:
        raise CorruptDataError(f"{key} has no format")
    record = versioned_json.decode(raw, OwnerRecord, key)
    return msgspec.structs.replace(record, session=roots.internal_id(record.session))


def decode_beat(raw: bytes, key: str) -> BeatRecord:
    """Read a beat; as `decode_owner`."""
    if versioned_json.decode_format(raw, key, supported=FORMAT) is None:
        raise CorruptDataError(f"{key} has no format")
    return versioned_json.decode(raw, BeatRecord, key)
