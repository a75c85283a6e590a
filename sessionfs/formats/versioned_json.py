"""JSON records with a ``format`` number: one reading rule for all of them.

Unknown fields are accepted, an unknown format is refused, and whatever else is wrong is `CorruptDataError`: nothing
but these two errors leaves this module, whatever the bytes are.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError

Record = TypeVar("Record")

_canonical = msgspec.json.Encoder(order="sorted")


class _Head(msgspec.Struct, frozen=True):
    """The one field that every record has."""

    format: int | msgspec.UnsetType = msgspec.UNSET


def encode(record: msgspec.Struct) -> bytes:
    """Give a record's canonical JSON: sorted keys, no spaces."""
    return _canonical.encode(record)


def decode_format(raw: bytes, name: str, *, supported: int) -> int | None:
    """Read a record's format.

    Args:
        raw: JSON text.
        name: The key, for errors.
        supported: The newest format that can be read.

    Returns:
        A format from 1 to `supported`, or None when the record has none (an older layout).

    Raises:
        UnsupportedFormatError: Another format.
        CorruptDataError: No JSON object.
    """
    found = decode(raw, _Head, name).format
    if found is msgspec.UNSET:
        return None
    if not 1 <= found <= supported:
        raise UnsupportedFormatError(name, found=found, supported=supported)
    return found


def decode(raw: bytes, kind: type[Record], name: str) -> Record:
    """Read JSON as a record.

    Raises:
        CorruptDataError: It is no such record; the message names the key and the first problem.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        raise CorruptDataError(f"{name} cannot be read: {problem}") from None
