"""Session ids and the one spelling of a file name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.model import names
from sessionfs.model.errors import InvalidSessionIdError

file_names = (
    st.binary(min_size=1, max_size=255)
    .map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_"))
    .filter(lambda raw: raw not in {b".", b".."})
)


@given(file_names)
def test_every_file_name_has_one_spelling_that_reads_back(name: bytes) -> None:
    segment = names.encode_name(name)
    assert names.decode_name(segment) == name
    assert "/" not in segment
    assert "\\" not in segment
    assert not any(character < " " for character in segment)
    segment.encode("utf-8")


@given(st.text(max_size=40))
def test_a_segment_that_reads_back_is_spelled_as_written(segment: str) -> None:
    name = names.decode_name(segment)
    if name is not None:
        assert names.encode_name(name) == segment


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        (b"a b", "a b"),
        (b"line\nbreak", "line%0Abreak"),
        (b"100%", "100%25"),
        (b"\xff\xfe", "%FF%FE"),
        ("é".encode(), "é"),
        (b"back\\slash", "back%5Cslash"),
        (b"~!@#$^&*()+=,;'\"<>?", "~!@#$^&*()+=,;'\"<>?"),
    ],
)
def test_only_what_must_be_is_escaped(name: bytes, segment: str) -> None:
    assert names.encode_name(name) == segment


@pytest.mark.parametrize("segment", ["", ".", "..", "%41", "%ff", "%zz", "%2F", "%00", "a\\b", "x" * 256])
def test_other_spellings_name_nothing(segment: str) -> None:
    assert names.decode_name(segment) is None


@pytest.mark.parametrize("text", ["a", "2026-01-31", "Ärger", "x" * 128, "a.b", ".hidden", "with space"])
def test_ordinary_session_ids_are_taken(text: str) -> None:
    assert names.session_id(text) == text


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "a/b", "a\\b", "a\0", "a\nb", "C:x", "x" * 129, "ü" * 65, "a.owner", "a.manifest",
     "a.snapshot.json", "a.objects", "a.conflicts", ".sessionfs", "a%b", "\ud800"],
)  # fmt: skip
def test_bad_session_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidSessionIdError):
        names.session_id(text)


def test_a_session_directory_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(InvalidSessionIdError, match="UTF-8"):
        names.session_id_from_name(b"\xff")


@given(st.binary(max_size=60))
def test_a_path_is_shown_on_one_printable_line(path: bytes) -> None:
    assert names.display(path).isprintable()
