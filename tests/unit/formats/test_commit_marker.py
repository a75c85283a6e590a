"""Commit markers: round trips, newer versions, garbage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats import commit_marker
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError

KEY = "sessions/s.snapshot.json"
texts = st.text(max_size=10)
counts = st.integers(0, (1 << 63) - 1)
markers = st.builds(
    CommitMarker,
    session=st.sampled_from(["", "s", "a/b", "%eval%run7", "%agents%a%plugins%p"]),
    generation=counts,
    manifest_key=texts,
    manifest_sha256=texts,
    trigger=texts,
    turn=counts,
    completed_at=texts,
    objects=counts,
    bytes=counts,
    objects_uploaded=counts,
    objects_skipped=counts,
    bytes_uploaded=counts,
)


@given(markers)
def test_every_marker_comes_back_as_it_was(written: CommitMarker) -> None:
    assert commit_marker.decode(commit_marker.encode(written), KEY) == written


def test_a_marker_has_the_fields_of_the_format_in_order() -> None:
    raw = commit_marker.encode(CommitMarker(session="s", generation=1, manifest_key="k", manifest_sha256="d"))
    assert list(json.loads(raw)) == [
        "bytes", "bytes_uploaded", "completed_at", "format", "generation", "manifest_key", "manifest_sha256",
        "objects", "objects_skipped", "objects_uploaded", "session", "trigger", "turn",
    ]  # fmt: skip
    assert b" " not in raw


def test_a_shared_root_is_named_as_in_its_keys() -> None:
    raw = commit_marker.encode(
        CommitMarker(session="%eval%run7", generation=1, manifest_key="k", manifest_sha256="d")
    )
    assert json.loads(raw)["session"] == "eval/run7"


def test_unknown_fields_are_accepted() -> None:
    raw = b'{"format":1,"session":"s","generation":1,"manifest_key":"k","manifest_sha256":"d","new":[{}]}'
    assert commit_marker.decode(raw, KEY).generation == 1


def test_an_unknown_format_is_refused_with_its_key_and_both_versions() -> None:
    with pytest.raises(UnsupportedFormatError) as refused:
        commit_marker.decode(b'{"format":2}', KEY)
    assert (refused.value.name, refused.value.found, refused.value.supported) == (KEY, 2, 1)


@given(st.binary(max_size=100))
def test_garbage_gives_only_the_two_errors(raw: bytes) -> None:
    for prefix in (b"", b'{"format":1,'):
        with pytest.raises((CorruptDataError, UnsupportedFormatError)):
            commit_marker.decode(prefix + raw, KEY)


@pytest.mark.parametrize("raw", [b"{}", b'{"format":1}', b'{"format":1,"generation":-1}'])
def test_what_is_no_marker_is_corrupt_and_named(raw: bytes) -> None:
    with pytest.raises(CorruptDataError, match=KEY):
        commit_marker.decode(raw, KEY)
