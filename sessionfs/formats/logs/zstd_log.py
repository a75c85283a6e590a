"""Sealed segments of a log: zstd frames one after the other, each of whole lines, each with its length and a checksum. Never reopened once sealed.

A frame is given only when it verified, or, when the file ends in the middle of it, as far as its lines are whole. Unpacking takes a bounded amount of
memory, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import zstandard

from sessionfs.formats.logs.json_lines import NEWLINE, split_torn
from sessionfs.model.errors import CorruptDataError, InvalidRequestError

FRAME_BYTES = 1 << 20
"""Lines are gathered to frames of about this length before compression."""
MAX_FRAME_BYTES = 64 << 20
"""A frame that unpacks to more is refused, and no line may be longer."""

_MAGIC = b"\x28\xb5\x2f\xfd"
# A block of four bytes can unpack to 128 KiB: so few at a time unpack to 16 MiB at most.
_STEP_BYTES = 512
_LEVEL = 9
_BATCH_LEVEL = 3


def seal(lines: Iterable[bytes], *, frame_bytes: int = FRAME_BYTES) -> Iterator[bytes]:
    """Give the frames of a sealed segment.

    Args:
        lines: Without their newlines.
        frame_bytes: A frame is closed when its lines have this length, from 1.

    Raises:
        InvalidRequestError: A line with a newline in it, or longer than `MAX_FRAME_BYTES`.
    """
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    pending = bytearray()
    for line in lines:
        if NEWLINE in line or len(line) >= MAX_FRAME_BYTES - frame_bytes:
            raise InvalidRequestError("a line of a log holds a newline, or is too long to be sealed")
        pending += line + NEWLINE
        if len(pending) >= frame_bytes:
            yield compressor.compress(bytes(pending))
            pending.clear()
    if pending:
        yield compressor.compress(bytes(pending))


def seal_batch(lines: Sequence[bytes]) -> bytes:
    """Give one frame in which every line ends a block: cut anywhere, it still gives each line that is complete.

    Args:
        lines: At least one, without their newlines; `MAX_FRAME_BYTES` together at most.

    Raises:
        InvalidRequestError: A line with a newline in it, or too much.
    """
    size_bytes = sum(map(len, lines)) + len(lines)
    if size_bytes > MAX_FRAME_BYTES or any(NEWLINE in line for line in lines):
        raise InvalidRequestError("a line of a log holds a newline, or a frame is too long to be sealed")
    compressor = zstandard.ZstdCompressor(level=_BATCH_LEVEL, write_checksum=True, write_content_size=True)
    pack = compressor.compressobj(size=size_bytes)
    pieces: list[bytes] = []
    for line in lines:
        pieces += (pack.compress(line + NEWLINE), pack.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    pieces.append(pack.flush())
    return b"".join(pieces)


def lines_of(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Give the whole lines of a sealed segment, without their newlines.

    Args:
        chunks: The stored bytes in order, in pieces of any length.
        name: The file or key, for errors.

    Raises:
        CorruptDataError: A frame does not verify, is none, or is too long; the lines of the frames before it were given.
    """
    frame = _Frame(name)
    for piece in _pieces(chunks):
        rest = piece
        while rest:
            rest = frame.feed(rest)
            if frame.is_complete:
                yield from frame.lines()
                frame = _Frame(name)
    if frame.has_begun:
        yield from frame.lines()


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame as it lies in a file.

    Attributes:
        lines: Its whole lines, without their newlines.
        fragment: What follows the last newline; always empty in a frame that verified.
        end: Offset behind it in what was read, bytes.
        is_whole: It is complete, and verified.
    """

    lines: tuple[bytes, ...]
    fragment: bytes
    end: int
    is_whole: bool


def frames_of(raw: bytes, name: str) -> Iterator[Frame]:
    """Give the frames of bytes that begin with one; the last may be torn: as far as it unpacks, and not verified.

    Args:
        raw: The stored bytes.
        name: The file or key, for errors.

    Raises:
        CorruptDataError: As `lines_of`, and when a frame ends in the middle of a line; the frames before it were given.
    """
    frame, at = _Frame(name), 0
    while at < len(raw):
        piece = raw[at : at + _STEP_BYTES]
        at += len(piece) - len(frame.feed(piece))
        if frame.is_complete:
            lines, fragment = frame.split()
            if fragment:
                raise CorruptDataError(f"{name} has a frame that ends in the middle of a line")
            yield Frame(lines, b"", at, is_whole=True)
            frame = _Frame(name)
    if frame.has_begun:
        yield Frame(*frame.split(), at, is_whole=False)


def is_sealed(raw: bytes) -> bool:
    """Whether bytes begin like a sealed segment."""
    return raw.startswith(_MAGIC)


class _Frame:
    """One frame that is being unpacked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unpack = zstandard.ZstdDecompressor(max_window_size=MAX_FRAME_BYTES).decompressobj()
        self._lines = bytearray()
        self.has_begun = False

    @property
    def is_complete(self) -> bool:
        return self._unpack.eof

    def feed(self, piece: bytes) -> bytes:
        """Take bytes; give back those behind the frame's end."""
        self.has_begun = True
        try:
            self._lines += self._unpack.decompress(piece)
        except zstandard.ZstdError as problem:
            raise CorruptDataError(f"{self._name} has a frame that does not verify: {problem}") from None
        if len(self._lines) > MAX_FRAME_BYTES:
            raise CorruptDataError(f"{self._name} has a frame of more than {MAX_FRAME_BYTES} bytes")
        return self._unpack.unused_data if self._unpack.eof else b""

    def lines(self) -> list[bytes]:
        """The whole lines so far."""
        return list(self.split()[0])

    def split(self) -> tuple[tuple[bytes, ...], bytes]:
        """The whole lines so far, and what follows the last newline."""
        whole, fragment = split_torn(bytes(self._lines))
        return tuple(whole.split(NEWLINE)[:-1]), fragment


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), _STEP_BYTES):
            yield chunk[start : start + _STEP_BYTES]
