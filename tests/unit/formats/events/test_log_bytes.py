"""A log as bytes: cut anywhere, it is a whole log and a torn end of which every complete record can be had."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats.events import event as events
from sessionfs.formats.events import log_bytes
from sessionfs.formats.events.event import Event
from sessionfs.formats.events.header import Encoding
from sessionfs.formats.logs import zstd_log
from sessionfs.model.errors import CorruptDataError, InvalidRequestError

ENCODINGS: tuple[Encoding, ...] = ("zstd", "lines")


def lines_of(first: int, count: int, text_bytes: int = 20) -> list[bytes]:
    noise = random.Random(first)
    return [
        events.encode(Event(seq, seq, "message.user", data={"text": noise.randbytes(text_bytes).hex()}))
        for seq in range(first, first + count)
    ]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_batches_come_back_in_order(encoding: Encoding) -> None:
    batches = [lines_of(0, 1), lines_of(1, 7), lines_of(8, 300, 3000)]
    raw = b"".join(log_bytes.encode(batch, encoding) for batch in batches)
    split = log_bytes.split(raw, encoding, 0, "log")
    assert list(split.lines) == [line for batch in batches for line in batch]
    assert (split.whole_bytes, split.recovered, split.is_torn) == (len(raw), (), False)


def test_a_batch_of_usual_length_is_one_frame_and_a_long_one_several() -> None:
    assert len(list(zstd_log.frames_of(log_bytes.encode(lines_of(0, 9), "zstd"), "log"))) == 1
    long = list(zstd_log.frames_of(log_bytes.encode(lines_of(0, 5, 300_000), "zstd"), "log"))
    assert len(long) > 1
    assert log_bytes.encode([], "zstd") == log_bytes.encode([], "lines") == b""


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_last_batch_cut_at_any_byte_is_never_whole_and_gives_every_complete_record(
    encoding: Encoding,
) -> None:
    before, last = lines_of(0, 3), lines_of(3, 5)
    whole, tail = log_bytes.encode(before, encoding), log_bytes.encode(last, encoding)
    counts = []
    for cut in range(len(tail)):
        split = log_bytes.split(whole + tail[:cut], encoding, 0, "log")
        shown = [*split.lines, *split.recovered]
        assert shown == [*before, *last][: len(shown)]
        if encoding == "zstd":
            assert list(split.lines) == before
        assert len(split.lines) >= len(before)
        assert split.is_torn == (split.whole_bytes < len(whole) + cut)
        counts.append(len(shown))
    assert counts == sorted(counts), "more bytes gave fewer records"
    assert set(counts) == set(range(3, 9)), "a record was had only together with the one behind it"
    assert counts[-1] == 8, "only the last byte was missing"


def test_a_record_can_be_had_from_a_torn_frame_as_soon_as_its_last_byte_is_there() -> None:
    lines = lines_of(0, 4)
    frame = zstd_log.seal_batch(lines)
    alone = [zstd_log.seal_batch(lines[:count]) for count in range(1, 5)]
    for count, shorter in enumerate(alone, 1):
        # A frame of fewer lines has an empty last block (3 bytes) and a checksum (4) behind them; its header may be shorter by one byte.
        cut = len(shorter) - 7 + 1
        assert list(log_bytes.split(frame[:cut], "zstd", 0, "log").recovered[:count]) == lines[:count]


@given(st.binary(max_size=200), st.sampled_from(ENCODINGS))
def test_any_bytes_give_events_or_the_documented_error(raw: bytes, encoding: Encoding) -> None:
    try:
        split = log_bytes.split(raw, encoding, 0, "log")
    except CorruptDataError:
        return
    assert split.is_torn == (split.whole_bytes < len(raw))


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=7))
def test_a_flipped_bit_in_a_whole_frame_is_never_read_as_another_event(position: int, bit: int) -> None:
    lines = lines_of(0, 3)
    raw = bytearray(log_bytes.encode(lines, "zstd"))
    raw[position % len(raw)] ^= 1 << bit
    try:
        split = log_bytes.split(bytes(raw), "zstd", 0, "log")
    except CorruptDataError:
        return
    assert list(split.lines) in ([], lines)


def test_records_that_do_not_belong_there_are_not_recovered() -> None:
    foreign = log_bytes.encode(lines_of(7, 2), "zstd")[:-1]
    assert log_bytes.split(foreign, "zstd", 0, "log").recovered == ()
    assert len(log_bytes.split(foreign, "zstd", 7, "log").recovered) == 2
    assert log_bytes.split(b'{"seq":0}', "lines", 0, "log").recovered == ()


def test_a_frame_that_ends_in_the_middle_of_a_line_is_damaged() -> None:
    import zstandard

    with pytest.raises(CorruptDataError, match="middle of a line"):
        log_bytes.split(
            zstandard.ZstdCompressor(write_checksum=True).compress(b"no newline"), "zstd", 0, "log"
        )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("written", [0, 10, 130, 10_000])
def test_bytes_that_a_power_cut_left_unwritten_are_torn(encoding: Encoding, written: int) -> None:
    before, last = lines_of(0, 2), lines_of(2, 4)
    whole, tail = log_bytes.encode(before, encoding), log_bytes.encode(last, encoding)
    split = log_bytes.split(whole + tail[:written] + bytes(4096), encoding, 0, "log")
    clean = log_bytes.split(whole + tail[:written], encoding, 0, "log")
    assert (split.lines, split.recovered, split.is_torn) == (clean.lines, clean.recovered, True)
    assert split.whole_bytes == clean.whole_bytes


@pytest.mark.parametrize("lines", [[b"two\nlines"], [bytes(zstd_log.MAX_FRAME_BYTES)]])
def test_a_frame_of_what_is_no_line_or_too_much_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(InvalidRequestError):
        zstd_log.seal_batch(lines)
