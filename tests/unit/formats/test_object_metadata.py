"""User metadata of objects: ours, other tools', and anything else."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats import object_metadata
from sessionfs.formats.object_metadata import FileAttributes, Provenance

int64 = st.integers(-(1 << 63), (1 << 63) - 1)
identities = st.integers(0, (1 << 32) - 1)
modes = st.builds(
    lambda kind, bits: kind | bits, st.sampled_from([stat.S_IFREG, stat.S_IFLNK]), st.integers(0, 0o7777)
)
attributes = st.builds(FileAttributes, modes, identities, identities, int64)
provenances = st.builds(
    Provenance, st.sampled_from(["", "a" * 64]), st.text(max_size=8), identities, st.text(max_size=8)
)


@given(attributes, provenances)
def test_attributes_and_provenance_come_back(written: FileAttributes, provenance: Provenance) -> None:
    user = object_metadata.encode(written, provenance)
    assert object_metadata.decode_attributes(user, modified_ns=1, is_directory=False) == written
    assert object_metadata.decode_provenance(user) == provenance


@given(st.integers(0, 0o177777))
def test_a_marker_is_a_directory_and_everything_else_a_file_or_a_link(mode: int) -> None:
    marker = object_metadata.decode_attributes({"mode": str(mode)}, modified_ns=0, is_directory=True)
    other = object_metadata.decode_attributes({"mode": str(mode)}, modified_ns=0, is_directory=False)
    assert stat.S_ISDIR(marker.mode)
    assert stat.S_ISREG(other.mode) or stat.S_ISLNK(other.mode)
    assert stat.S_IMODE(marker.mode) == stat.S_IMODE(other.mode) == stat.S_IMODE(mode)


def test_what_another_tool_left_out_gets_defaults() -> None:
    read = object_metadata.decode_attributes({}, modified_ns=7, is_directory=False)
    assert read == FileAttributes(stat.S_IFREG | 0o644, 0, 0, 7)
    assert (
        object_metadata.decode_attributes({}, modified_ns=7, is_directory=True).mode == stat.S_IFDIR | 0o755
    )
    assert object_metadata.decode_provenance({"sessionfs-sha256": "short"}) == Provenance()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1_000_000_000),
        ("1.5", 1_500_000_000),
        ("1.1234567899", 1_123_456_789),
        ("-1.000000001", -1_000_000_001),
        ("", 42),
        ("x", 42),
        ("1.x", 42),
        ("\u0661", 42),
        ("1e9", 42),
    ],
)
def test_times_of_other_tools_are_read_or_replaced_by_the_stores(text: str, expected: int) -> None:
    assert object_metadata.decode_time(text, 42) == expected


@given(
    st.dictionaries(st.sampled_from(["mode", "uid", "gid", "mtime", "sessionfs-epoch"]), st.text(max_size=30))
)
def test_any_metadata_is_read(user: dict[str, str]) -> None:
    read = object_metadata.decode_attributes(user, modified_ns=0, is_directory=False)
    assert 0 <= read.uid < 10_000_000_000
    assert object_metadata.decode_provenance(user).epoch >= 0
