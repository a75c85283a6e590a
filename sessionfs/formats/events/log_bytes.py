"""A log as bytes, in both encodings: what of it is whole, and what can still be had from a torn end.

Invariants:

* Bytes are only ever added: whole lines, or frames of whole lines. So a log cut anywhere is a whole log and a torn end behind it.
* The whole part is what verified: complete frames with their checksums, or lines with their newlines. A reader is shown nothing else.
* Bytes that a disk promised and did not write before a power cut read as NUL, at the end of a file: they are torn too.
* A record in the torn end is complete when it is an event from its first to its last byte, its newline written or not: no beginning of a JSON
  object is one itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sessionfs.formats.events import event as events
from sessionfs.formats.events.header import Encoding
from sessionfs.formats.logs import json_lines, zstd_log
from sessionfs.formats.logs.json_lines import NEWLINE
from sessionfs.model.errors import CorruptDataError

_UNWRITTEN = b"\0" * 8
"""No frame ends like this: its checksum has four bytes, and the last block before it says that it is one."""


@dataclass(frozen=True, slots=True)
class Split:
    """A log, or the rest of one from the end of a whole part on.

    Attributes:
        lines: Of the whole part, without their newlines.
        whole_bytes: Length of the whole part.
        recovered: Lines of the complete records in the torn end.
        is_torn: There is something behind the whole part.
    """

    lines: tuple[bytes, ...]
    whole_bytes: int
    recovered: tuple[bytes, ...]
    is_torn: bool


def encode(lines: Iterable[bytes], encoding: Encoding) -> bytes:
    """Give the bytes that add lines to a log: one frame for a batch of usual length, in which each line can be had by itself.

    Args:
        lines: Events, without their newlines.
        encoding: Of the log.
    """
    if encoding == "lines":
        return b"".join(line + NEWLINE for line in lines)
    frames: list[bytes] = []
    batch: list[bytes] = []
    batch_bytes = 0
    for line in lines:
        if batch and batch_bytes + len(line) > zstd_log.FRAME_BYTES:
            frames.append(zstd_log.seal_batch(batch))
            batch, batch_bytes = [], 0
        batch.append(line)
        batch_bytes += len(line)
    return b"".join([*frames, zstd_log.seal_batch(batch)] if batch else frames)


def split(raw: bytes, encoding: Encoding, first_seq: int, name: str) -> Split:
    """Part a log into its whole part and its torn end.

    Args:
        raw: From the log's beginning, or from the end of a whole part.
        encoding: Of the log.
        first_seq: What the first event in it must have.
        name: The raw file, for errors.

    Raises:
        CorruptDataError: A frame that is complete does not verify, or these bytes begin none.
    """
    written = raw.rstrip(b"\0") if raw.endswith(_UNWRITTEN) else raw
    lines: list[bytes] = []
    torn_lines: tuple[bytes, ...] = ()
    whole_bytes, fragment = 0, b""
    if encoding == "lines":
        whole, fragment = json_lines.split_torn(written)
        lines, whole_bytes = whole.split(NEWLINE)[:-1], len(whole)
    else:
        for frame in zstd_log.frames_of(written, name):
            if frame.is_whole:
                lines += frame.lines
                whole_bytes = frame.end
            else:
                torn_lines, fragment = frame.lines, frame.fragment
    recovered = _complete((*torn_lines, fragment), first_seq + len(lines), name)
    return Split(tuple(lines), whole_bytes, recovered, whole_bytes < len(raw))


def _complete(candidates: Iterable[bytes], seq: int, name: str) -> tuple[bytes, ...]:
    """Give the records up to the first that is not complete, or not the one that belongs there."""
    found: list[bytes] = []
    for line in candidates:
        try:
            if events.decode_line(line, seq, name).seq != seq:
                break
        except CorruptDataError:
            break
        found.append(line)
        seq += 1
    return tuple(found)
