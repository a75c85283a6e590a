"""Sealed segments: frames of whole lines."""

from __future__ import annotations

import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats.logs import zstd_log
from sessionfs.formats.logs.zstd_log import lines_of, seal
from sessionfs.model.errors import CorruptDataError, InvalidRequestError

LINES = [b'{"seq":%d,"text":"%s"}' % (number, b"x" * (number % 90)) for number in range(400)]


def test_every_line_comes_back_from_several_frames() -> None:
    frames = list(seal(LINES, frame_bytes=1000))
    assert len(frames) > 10
    assert list(lines_of(frames, "log")) == LINES
    assert zstd_log.is_sealed(frames[0])


def test_each_frame_stands_alone_with_length_and_checksum() -> None:
    for frame in seal(LINES, frame_bytes=1000):
        parameters = zstandard.get_frame_parameters(frame)
        assert parameters.has_checksum
        assert parameters.content_size > 0
        assert zstandard.ZstdDecompressor().decompress(frame).endswith(b"\n")


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=700))
def test_a_segment_cut_anywhere_gives_whole_lines_from_the_start(cut: int, chunk_bytes: int) -> None:
    raw = b"".join(seal(LINES, frame_bytes=1000))
    raw = raw[: cut % (len(raw) + 1)]
    chunks = [raw[start : start + chunk_bytes] for start in range(0, len(raw), chunk_bytes)]
    found = list(lines_of(chunks, "log"))
    assert found == LINES[: len(found)]


def test_lines_of_a_torn_frame_that_are_whole_are_given() -> None:
    noise = random.Random(1)
    lines = [noise.randbytes(40_000).replace(b"\n", b"") for _ in range(20)]  # several blocks a frame
    raw = b"".join(seal(lines))
    found = list(lines_of([raw[:-200_000]], "log"))
    assert found == lines[: len(found)]
    assert len(found) > 5


def test_a_frame_that_does_not_verify_gives_none_of_its_lines() -> None:
    first, second, third = list(seal(LINES, frame_bytes=12_000))[:3]
    broken = bytearray(second)
    broken[-2] ^= 0xFF  # of the checksum
    read = lines_of([first, bytes(broken), third], "log")
    whole = list(lines_of([first], "log"))
    assert [next(read) for _ in whole] == whole
    with pytest.raises(CorruptDataError, match="log has a frame"):
        next(read)


def test_bytes_that_are_no_frame_are_refused() -> None:
    with pytest.raises(CorruptDataError, match="log has a frame"):
        list(lines_of([b"plain text\n"], "log"))


def test_a_frame_that_unpacks_to_too_much_is_refused_before_it_is_in_memory() -> None:
    bomb = zstandard.ZstdCompressor().compress(b"\n" * (200 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(CorruptDataError, match="more than"):
        list(lines_of([bomb], "log"))


def test_a_line_with_a_newline_is_no_line() -> None:
    with pytest.raises(InvalidRequestError):
        list(seal([b"a\nb"]))


def test_nothing_sealed_is_nothing() -> None:
    assert list(seal([])) == []
    assert list(lines_of([], "log")) == []
