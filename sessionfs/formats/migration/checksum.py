"""The checksum of a store: the same for the same keys, bytes and metadata, whatever store they are in, and in whatever order they came.

For each object, sorted by the bytes of its key, one line goes into the sum: canonical JSON ``[key, size, sha256 of the bytes, sha256 of the
metadata]`` and a newline. Tokens and times of a store are in none of it, and neither is what servers change on their own account: SeaweedFS 4.48
replaces the content type ``application/octet-stream`` by one that it guesses from the name, and drops user metadata without a value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from sessionfs.formats.migration.records import Entry

_canonical = msgspec.json.Encoder(order="sorted")


def metadata_sha256(user: Mapping[str, str], content_encoding: str) -> str:
    """Give the sum of what is stored beside an object's bytes.

    Args:
        user: User metadata; a name without a value is as good as none.
        content_encoding: ``zstd`` or "".
    """
    said = {name: value for name, value in user.items() if value}
    return hashlib.sha256(_canonical.encode([said, content_encoding])).hexdigest()


def manifest_checksum(entries: Iterable[Entry]) -> str:
    """Give the checksum of a store with these objects: 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for entry in sorted(entries, key=lambda one: one.key.encode("utf-8")):
        line = [entry.key, entry.size_bytes, entry.sha256, entry.metadata_sha256]
        digest.update(_canonical.encode(line) + b"\n")
    return digest.hexdigest()
