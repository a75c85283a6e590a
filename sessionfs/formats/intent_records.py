"""Records of the intent log: what an operation is about to change, and how it ended.

Each operation writes an `Intent` before it is applied and an `Outcome` after. The outcome carries what was not known
before (the number of a new file) or the errno of an operation that failed. An intent without an outcome was in flight when
the process died: the disk decides (`working_copy/reconciliation/reconcile.py`).

Frame: length (u32), crc32 of the payload (u32), payload (MessagePack). A file starts with a header: magic, base position
(u64), boot id (36 bytes). Positions are logical bytes and go on over truncations of the file.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator

import msgspec

from sessionfs.model.errors import UnsupportedFormatError

MAGIC = b"SFSLOG\x00\x01"
_HEADER = struct.Struct("<8sQ36s")
HEADER_BYTES = _HEADER.size
_FRAME = struct.Struct("<II")
MAX_PAYLOAD_BYTES = 1 << 20


class Operation(enum.IntEnum):
    """What a record is about. Values are on disk: never renumber."""

    CREATE = 1
    MKDIR = 2
    SYMLINK = 3
    MKNOD = 4
    LINK = 5
    UNLINK = 6
    RMDIR = 7
    RENAME = 8
    EXCHANGE = 9
    SETATTR = 10
    """Mode, owner or times; see `Intent.attributes`."""
    TRUNCATE = 11
    XATTR = 12
    OPEN_WRITE = 13
    """A descriptor that may write was given out; the file may change until the matching RELEASE_WRITE."""
    RELEASE_WRITE = 14
    WRITTEN = 15
    """The bytes changed through this descriptor since its OPEN_WRITE or the last WRITTEN."""
    FETCHED = 16
    """The bytes of a remote file were installed in the working copy."""
    EVICTED = 17
    """The bytes of a clean file were removed from the working copy."""
    MATERIALISED = 18
    """A remote directory or symlink was made in the working copy, as the bucket describes it."""
    STARTED = 19
    """A daemon opened the log: every descriptor given out before is gone."""


class Intent(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One operation before it is applied.

    Attributes:
        sequence: Counts operations from 1, without gaps.
        operation: An `Operation`.
        number: Inode number it is about; 0 while a new file's is unknown.
        parent: Directory number, 0 when none.
        name: Name in `parent`.
        new_parent: Target directory of LINK, RENAME and EXCHANGE.
        new_name: Name in `new_parent`.
        replaced: Number of the file that RENAME replaces (or EXCHANGE swaps in), 0 when none.
        mode: ``st_mode`` of a new file, or the new mode of SETATTR; -1 when not changed.
        uid: As `mode`.
        gid: As `mode`.
        mtime_ns: New modification time of SETATTR; None when not changed.
        wall_ns: Wall clock when it was written.
        unique: The kernel's request number, 0 when none.
    """

    sequence: int
    operation: int
    number: int = 0
    parent: int = 0
    name: bytes = b""
    new_parent: int = 0
    new_name: bytes = b""
    replaced: int = 0
    mode: int = -1
    uid: int = -1
    gid: int = -1
    mtime_ns: int | None = None
    wall_ns: int = 0
    unique: int = 0


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """How an operation ended.

    Attributes:
        sequence: Of its intent.
        errno: 0 when applied, else why nothing was changed.
        number: Inode number of the new file, or the intent's.
    """

    sequence: int
    errno: int = 0
    number: int = 0


Record = Intent | Outcome

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Intent | Outcome)


def encode_header(base_position: int, boot_id: str) -> bytes:
    """Give a log file's first bytes."""
    return _HEADER.pack(MAGIC, base_position, boot_id.encode("ascii"))


def decode_header(raw: bytes, name: str) -> tuple[int, str] | None:
    """Read a log file's first bytes.

    Args:
        raw: At least the first `HEADER_BYTES`.
        name: The file, for errors.

    Returns:
        Base position and boot id, or None when the bytes are no log (an empty or torn file).

    Raises:
        UnsupportedFormatError: A newer log.
    """
    if len(raw) < HEADER_BYTES:
        return None
    magic, base, boot = _HEADER.unpack_from(raw)
    if magic[:7] != MAGIC[:7]:
        return None
    if magic[7] > MAGIC[7]:
        raise UnsupportedFormatError(name, found=magic[7], supported=MAGIC[7])
    return base, boot.decode("ascii", "replace")


def encode_record(record: Record) -> bytes:
    """Give a record's frame."""
    payload = _encoder.encode(record)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def decode_records(raw: bytes) -> Iterator[tuple[Record, int]]:
    """Read frames until the bytes end or do not verify (a torn tail).

    Yields:
        Each record with the offset just behind it.
    """
    offset = 0
    while offset + _FRAME.size <= len(raw):
        length, checksum = _FRAME.unpack_from(raw, offset)
        start, end = offset + _FRAME.size, offset + _FRAME.size + length
        if length > MAX_PAYLOAD_BYTES or end > len(raw):
            return
        payload = raw[start:end]
        if zlib.crc32(payload) != checksum:
            return
        try:
            record = _decoder.decode(payload)
        except msgspec.DecodeError:
            return
        offset = end
        yield record, offset
