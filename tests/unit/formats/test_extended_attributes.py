"""Extended attributes and byte strings in records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats import extended_attributes
from sessionfs.model.errors import CorruptDataError

attributes = st.dictionaries(st.binary(max_size=12), st.binary(max_size=20), max_size=4)


@given(attributes)
def test_attributes_come_back_from_the_journal_and_from_text(xattrs: dict[bytes, bytes]) -> None:
    assert extended_attributes.unpack(extended_attributes.pack(xattrs)) == xattrs
    values = extended_attributes.encode_values(xattrs)
    assert extended_attributes.decode_values(values, "key") == xattrs


def test_no_attributes_take_no_bytes() -> None:
    assert extended_attributes.pack({}) == b""
    assert extended_attributes.unpack(b"") == {}


@given(st.binary(max_size=40))
def test_bytes_are_printable_ascii_as_text(raw: bytes) -> None:
    text = extended_attributes.encode_text(raw)
    assert text.isascii()
    assert text.isprintable()
    assert extended_attributes.decode_text(text) == raw


@given(st.text(max_size=20))
def test_every_text_is_some_bytes(text: str) -> None:
    assert isinstance(extended_attributes.decode_text(text), bytes)


def test_plain_text_is_kept_as_it_is() -> None:
    assert extended_attributes.encode_text(b"../a b/c") == "../a b/c"


@pytest.mark.parametrize("raw", [b"\x01", b"\x81\x01\x02", b"\xff"])
def test_other_bytes_in_the_journal_are_corrupt(raw: bytes) -> None:
    with pytest.raises(CorruptDataError):
        extended_attributes.unpack(raw)
