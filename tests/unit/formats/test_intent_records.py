"""Records of the intent log: round trips, torn tails, newer logs."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats import intent_records
from sessionfs.formats.intent_records import HEADER_BYTES, Intent, Operation, Outcome, Record
from sessionfs.model.errors import UnsupportedFormatError

BOOT = "01234567-89ab-cdef-0123-456789abcdef"
numbers = st.integers(0, (1 << 64) - 1)
signed = st.integers(-1, (1 << 32) - 1)
intents = st.builds(
    Intent,
    numbers,
    st.sampled_from(Operation).map(int),
    numbers,
    numbers,
    st.binary(max_size=255),
    numbers,
    st.binary(max_size=255),
    numbers,
    signed,
    signed,
    signed,
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    numbers,
    numbers,
)
records = st.lists(intents | st.builds(Outcome, numbers, signed, numbers), max_size=5)


def encoded(written: list[Record]) -> bytes:
    return b"".join(map(intent_records.encode_record, written))


@given(records)
def test_records_come_back_with_the_offsets_behind_them(written: list[Record]) -> None:
    raw = encoded(written)
    read = list(intent_records.decode_records(raw))
    assert [record for record, _ in read] == written
    assert [offset for _, offset in read] == [len(encoded(written[:n])) for n in range(1, len(written) + 1)]


@given(records, st.integers(0, 1 << 12))
def test_a_torn_tail_ends_the_records_before_it(written: list[Record], cut: int) -> None:
    raw = encoded(written)
    whole = [record for record, _ in intent_records.decode_records(raw[: len(raw) - cut % (len(raw) + 1)])]
    assert whole == written[: len(whole)]


@given(records, st.binary(max_size=64))
def test_garbage_behind_the_records_ends_them(written: list[Record], garbage: bytes) -> None:
    read = [record for record, _ in intent_records.decode_records(encoded(written) + garbage)]
    assert read[: len(written)] == written


def test_a_frame_whose_checksum_holds_and_whose_content_is_unknown_ends_the_records() -> None:
    payload = b"\xc1"
    frame = struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
    assert list(intent_records.decode_records(frame + encoded([Outcome(1)]))) == []


def test_a_frame_whose_checksum_does_not_hold_ends_the_records() -> None:
    raw = bytearray(encoded([Outcome(1), Outcome(2)]))
    raw[4] ^= 1
    assert list(intent_records.decode_records(bytes(raw))) == []


def test_a_frame_that_claims_too_much_ends_the_records() -> None:
    frame = struct.pack("<II", intent_records.MAX_PAYLOAD_BYTES + 1, 0)
    assert list(intent_records.decode_records(frame + b"\0" * (intent_records.MAX_PAYLOAD_BYTES + 2))) == []


@given(numbers)
def test_a_header_comes_back(base: int) -> None:
    raw = intent_records.encode_header(base, BOOT)
    assert len(raw) == HEADER_BYTES
    assert intent_records.decode_header(raw + b"more", "intent.log") == (base, BOOT)


@given(st.binary(max_size=80))
def test_other_bytes_are_no_header(raw: bytes) -> None:
    if raw[:7] != intent_records.MAGIC[:7]:
        assert intent_records.decode_header(raw, "intent.log") is None
    assert intent_records.decode_header(raw[: HEADER_BYTES - 1], "intent.log") is None


def test_a_file_of_something_else_is_no_log() -> None:
    assert intent_records.decode_header(b"SQLite format 3\0" * 4, "intent.log") is None


def test_a_newer_log_is_refused() -> None:
    raw = bytearray(intent_records.encode_header(0, BOOT))
    raw[7] += 1
    with pytest.raises(UnsupportedFormatError) as refused:
        intent_records.decode_header(bytes(raw), "intent.log")
    assert (refused.value.name, refused.value.found, refused.value.supported) == ("intent.log", 2, 1)
