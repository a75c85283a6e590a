"""The commit marker ``<id>.snapshot.json``: the last commit in a few lines, readable by hand.

It is written after ``manifest.json``, which alone is the commit; a marker that lags says less, never something wrong.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from sessionfs.formats import versioned_json
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys, roots
from sessionfs.model.errors import CorruptDataError

FORMAT = 1

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class CommitMarker(msgspec.Struct, frozen=True, kw_only=True):
    """One commit.

    Attributes:
        session: The session.
        generation: The generation that was committed.
        manifest_key: Key of its own manifest, ``<generation>.json``.
        manifest_sha256: Of that object's stored bytes.
        trigger: What asked for the commit.
        turn: The program's turn, 0 when it has none.
        completed_at: Time as text.
        objects: Files, directories and symlinks of the generation.
        bytes: Their length together.
        objects_uploaded: Objects sent for it since the commit before.
        objects_skipped: Objects that were there already.
        bytes_uploaded: Bytes sent for it since the commit before.
        format: Always `FORMAT`.
    """

    session: str
    generation: _Count
    manifest_key: str
    manifest_sha256: str
    trigger: str = ""
    turn: _Count = 0
    completed_at: str = ""
    objects: _Count = 0
    bytes: _Count = 0
    objects_uploaded: _Count = 0
    objects_skipped: _Count = 0
    bytes_uploaded: _Count = 0
    format: int = FORMAT


def of_generation(
    body: Manifest,
    sha256: str,
    *,
    completed_at: str,
    objects_uploaded: int,
    bytes_uploaded: int,
    turn: int = 0,
) -> CommitMarker:
    """Make the marker of a generation.

    Args:
        body: The generation.
        sha256: Of the stored bytes of its ``<n>.json``.
        completed_at: Time as text.
        objects_uploaded: Objects sent for it; may be more than it has.
        bytes_uploaded: Bytes sent for it.
        turn: The program's turn, 0 when it has none.
    """
    return CommitMarker(
        session=body.session,
        generation=body.generation,
        manifest_key=keys.generation_key(roots.unit_id(body.session), body.generation),
        manifest_sha256=sha256,
        trigger=body.trigger,
        turn=turn,
        completed_at=completed_at,
        objects=len(body.entries),
        bytes=sum(entry.size_bytes for entry in body.entries),
        objects_uploaded=objects_uploaded,
        objects_skipped=max(0, len(body.entries) - objects_uploaded),
        bytes_uploaded=bytes_uploaded,
    )


def encode(marker: CommitMarker) -> bytes:
    """Give a marker's canonical JSON."""
    return versioned_json.encode(msgspec.structs.replace(marker, session=roots.shown_id(marker.session)))


def decode(raw: bytes, key: str) -> CommitMarker:
    """Read a marker.

    Args:
        raw: The stored bytes.
        key: Where they are, for errors.

    Raises:
        UnsupportedFormatError: A format this version does not know.
        CorruptDataError: No marker.
    """
    if versioned_json.decode_format(raw, key, supported=FORMAT) is None:
        raise CorruptDataError(f"{key} has no format")
    marker = versioned_json.decode(raw, CommitMarker, key)
    return msgspec.structs.replace(marker, session=roots.internal_id(marker.session))
