"""The note ``.objects/<aa>/<sha256>.alias``: the bytes with this sum are the first ones of a larger object kept by its content.

Written when an object that had grown beyond what a generation names moves on: the object is copied once as a whole, and each named prefix of it
gets such a note.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from sessionfs.formats import versioned_json
from sessionfs.model.errors import CorruptDataError

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ContentAlias(msgspec.Struct, frozen=True):
    """One named prefix.

    Attributes:
        of: sha256 of the whole object, below ``.objects/``.
        size: How many of its first bytes.
    """

    of: str
    size: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


def encode(alias: ContentAlias) -> bytes:
    """Give a note's canonical JSON."""
    return versioned_json.encode(alias)


def decode(raw: bytes, key: str) -> ContentAlias:
    """Read a note.

    Raises:
        CorruptDataError: No such note.
    """
    found = versioned_json.decode(raw, ContentAlias, key)
    if not _SHA256.fullmatch(found.of):
        raise CorruptDataError(f"{key} names no sha256")
    return found
