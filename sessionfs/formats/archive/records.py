"""Records of the archive: the manifest of a checkpoint, the pointer to the newest, and what a host remembers: pure.

Invariants:

* A manifest names every byte of its checkpoint. The length of a file says how many complete blocks it has and how long its tail is, so that
  neither is written twice and both always agree.
* A whole file has a sha256, which alone says that it is right. A block has a CRC-32, which says early which object is wrong: eight bytes of
  base64 for six of them, where sha256 of each would make a manifest ten times as long, and it is sent with every checkpoint.
* A pointer names the sha256 of its manifest: a copy of a manifest that has this sum is that manifest, wherever the copy came from.
* Whatever the bytes are, only `UnsupportedFormatError` and `CorruptDataError` leave the readers.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from sessionfs.formats import versioned_json
from sessionfs.model.errors import CorruptDataError

FORMAT = 1
BLOCK_BYTES = 64 << 10
"""A block is sent once it is this long."""
MAX_FILES = 128
"""Files of one checkpoint."""

_CRC_BYTES = 4

_Generation = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_CheckpointId = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{10,19}-[0-9a-f]{32}\Z")]
_NoOrCheckpointId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9]{10,19}-[0-9a-f]{32})?\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint.

    Attributes:
        path: Relative to the session.
        size: Length in bytes.
        generation: 32 hexadecimal digits, kept as long as the file only grows: names its blocks and tails.
        sha256: Of the whole file.
        block_crcs: CRC-32 of each complete block in order, four bytes each, the highest first.
        tail_checkpoint: The checkpoint with which the bytes behind the last complete block were sent; "" when there are none.
        is_private: Nobody but the owner may read it on a disk (0600).
    """

    path: str
    size: _Count
    generation: _Generation
    sha256: _Sha256
    block_crcs: bytes = b""
    tail_checkpoint: _NoOrCheckpointId = ""
    is_private: bool = False

    @property
    def blocks(self) -> int:
        """How many complete blocks."""
        return self.size // BLOCK_BYTES

    @property
    def tail_bytes(self) -> int:
        """How many bytes are behind the last complete block."""
        return self.size % BLOCK_BYTES

    def is_block(self, index: int, body: bytes) -> bool:
        """Say whether bytes have the length and sum of a block."""
        sum_bytes = self.block_crcs[index * _CRC_BYTES : (index + 1) * _CRC_BYTES]
        return len(body) == BLOCK_BYTES and crc(body) == sum_bytes


class ManifestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint.

    Attributes:
        session: The session.
        checkpoint: Its id.
        number: Counts the checkpoints of the session, from 1.
        previous: The checkpoint before, "" for none.
        files: Sorted by path, at most `MAX_FILES`.
        created_at: Time as text, for people.
        format: Always `FORMAT`.
    """

    session: str
    checkpoint: _CheckpointId
    number: Annotated[int, msgspec.Meta(ge=1, le=(1 << 62))]
    previous: _NoOrCheckpointId = ""
    files: Annotated[tuple[ArchivedFile, ...], msgspec.Meta(max_length=MAX_FILES)] = ()
    created_at: str = ""
    format: int = FORMAT


class PointerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoint is the newest.

    Attributes:
        session: The session.
        checkpoint: Its id.
        number: Its number.
        manifest_sha256: Of its manifest's bytes.
        format: Always `FORMAT`.
    """

    session: str
    checkpoint: _CheckpointId
    number: Annotated[int, msgspec.Meta(ge=1, le=(1 << 62))]
    manifest_sha256: _Sha256
    format: int = FORMAT


class BegunFile(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of which some may have been sent, for a checkpoint that may not have been finished.

    Attributes:
        path: Relative to the session.
        generation: The blocks' generation.
        blocks: Blocks below this index may be there; each must be looked at.
    """

    path: str
    generation: _Generation
    blocks: _Count


class UploadedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a host remembers of a session's archive. Saves requests; nothing is believed that the archive does not confirm.

    Attributes:
        session: The session.
        manifest: The newest manifest that is known; None for none.
        begun: What was begun since.
        format: Always `FORMAT`.
    """

    session: str
    manifest: ManifestRecord | None = None
    begun: Annotated[tuple[BegunFile, ...], msgspec.Meta(max_length=MAX_FILES)] = ()
    format: int = FORMAT


def encode(record: ManifestRecord | PointerRecord | UploadedRecord) -> bytes:
    """Give a record's canonical JSON."""
    return versioned_json.encode(record)


def decode_manifest(raw: bytes, key: str) -> ManifestRecord:
    """Read a manifest.

    Args:
        raw: The stored bytes.
        key: Where they are, for errors.

    Raises:
        UnsupportedFormatError: A format this version does not know.
        CorruptDataError: No such record, or one that contradicts itself.
    """
    _require_format(raw, key)
    record = versioned_json.decode(raw, ManifestRecord, key)
    problem = _problem_of(record.files)
    if problem:
        raise CorruptDataError(f"{key} {problem}")
    return record


def decode_pointer(raw: bytes, key: str) -> PointerRecord:
    """Read a pointer; as `decode_manifest`."""
    _require_format(raw, key)
    return versioned_json.decode(raw, PointerRecord, key)


def decode_uploaded(raw: bytes, name: str) -> UploadedRecord:
    """Read what a host remembers; as `decode_manifest`."""
    _require_format(raw, name)
    record = versioned_json.decode(raw, UploadedRecord, name)
    problem = _problem_of(record.manifest.files) if record.manifest else ""
    if problem:
        raise CorruptDataError(f"{name} {problem}")
    return record


def crc(body: bytes) -> bytes:
    """Give the four bytes that `ArchivedFile.block_crcs` has for a block."""
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "big")


def sha256_of(raw: bytes) -> str:
    """Give the sum by which a pointer names a manifest."""
    return hashlib.sha256(raw).hexdigest()


def _require_format(raw: bytes, name: str) -> None:
    if versioned_json.decode_format(raw, name, supported=FORMAT) is None:
        raise CorruptDataError(f"{name} has no format")


def _problem_of(files: Sequence[ArchivedFile]) -> str:
    """Say what contradicts itself, "" for nothing."""
    components = [file.path.split("/") for file in files]
    for file, parts in zip(files, components, strict=True):
        if not _is_relative(file.path, parts):
            return f"has {file.path!r}, which is no relative path"
        if len(file.block_crcs) != file.blocks * _CRC_BYTES:
            return f"has not one sum for each block of {file.path!r}"
        if bool(file.tail_bytes) != bool(file.tail_checkpoint):
            return f"does not say where the tail of {file.path!r} is, or says it for none"
    for before, after in pairwise(components):
        # In this order everything below a path comes right behind it.
        if before >= after or after[: len(before)] == before:
            return f"has {'/'.join(after)!r} twice, out of order or below a file"
    if len({file.generation for file in files}) < len(files):
        return "has two files of one generation"
    return ""


def _is_relative(path: str, components: Sequence[str]) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in path and "\\" not in path and not {"", ".", ".."} & set(components)
