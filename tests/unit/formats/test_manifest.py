"""Manifests: round trips, canonical bytes, older and newer layouts, garbage."""

from __future__ import annotations

import json
import stat
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats import manifest
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError

KEY = "sessions/s.manifest/manifest.json"
SHA = "a" * 64

names = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b".."}
)
paths = st.lists(names, max_size=3).map(b"/".join)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
naturals = st.integers(0, (1 << 63) - 1)
modes = st.builds(
    lambda kind, bits: kind | bits,
    st.sampled_from([stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK]),
    st.integers(0, 0o7777),
)
entries = st.builds(
    ManifestEntry,
    path=paths,
    mode=modes,
    size_bytes=naturals,
    sha256=st.sampled_from(["", SHA]),
    token=st.text(max_size=8),
    uid=st.integers(0, (1 << 32) - 1),
    gid=st.integers(0, (1 << 32) - 1),
    mtime_ns=int64,
    xattrs=st.dictionaries(st.binary(min_size=1, max_size=8), st.binary(max_size=8), max_size=3),
    target=st.binary(max_size=12),
    link_group=naturals,
)
manifests = st.builds(
    Manifest,
    session=st.just("s"),
    generation=naturals,
    entries=st.lists(entries, max_size=5, unique_by=lambda entry: entry.path).map(
        lambda found: tuple(sorted(found, key=lambda entry: entry.path))
    ),
    previous=naturals,
    created_at=st.text(max_size=8),
    trigger=st.text(max_size=8),
    epoch=naturals,
    holder=st.text(max_size=8),
    recovery=st.sampled_from(["live", "committed"]),
    removed=st.booleans(),
)


def document(**changes: Any) -> bytes:
    entry = {"path": "a", "type": "file", "mode": 0o100644, "size": 1, "sha256": SHA, "token": "t"}
    base: dict[str, Any] = {"format": 1, "session": "s", "generation": 1, "entries": [entry]}
    return json.dumps(base | changes).encode()


def with_entry(**changes: Any) -> bytes:
    entry = {"path": "a", "type": "file", "mode": 0o100644}
    return document(entries=[entry | changes])


@given(manifests)
def test_every_manifest_comes_back_as_it_was(written: Manifest) -> None:
    raw, encoding = manifest.encode(written)
    assert encoding == ""
    assert manifest.decode(raw, KEY) == written


@given(manifests)
def test_the_bytes_are_canonical(written: Manifest) -> None:
    raw, _ = manifest.encode(written)
    parsed = json.loads(raw)
    again = json.dumps(parsed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert json.loads(again) == parsed
    assert list(parsed) == sorted(parsed)
    listed = [entry["path"] for entry in parsed["entries"]]
    assert listed == sorted(listed)


def test_a_manifest_has_no_spaces_and_plain_fields() -> None:
    entry = ManifestEntry(
        b"d/\xff %", stat.S_IFREG | 0o644, 3, SHA, "t", 1, 2, 5, {b"user.\xff": b"v"}, link_group=7
    )
    raw, _ = manifest.encode(Manifest("s", 2, (entry,), previous=1, created_at="now", trigger="unmount"))
    assert raw == (
        b'{"created_at":"now","entries":[{"gid":2,"link_group":7,"mode":33188,"mtime_ns":5,"path":"d/%FF %25",'
        b'"sha256":"' + SHA.encode() + b'","size":3,"target":"","token":"t","type":"file","uid":1,'
        b'"xattrs":{"user.%FF":"dg=="}}],"epoch":0,"format":1,"generation":2,"holder":"","previous":1,'
        b'"recovery":"live","removed":false,"session":"s","trigger":"unmount"}'
    )


def test_a_manifest_above_one_mebibyte_is_compressed_and_opens() -> None:
    many = tuple(
        ManifestEntry(f"{n:06d}".encode(), stat.S_IFREG | 0o644, n, SHA, str(n)) for n in range(8000)
    )
    raw, encoding = manifest.encode(Manifest("s", 1, many))
    assert encoding == "zstd"
    assert len(raw) < 1 << 20
    assert manifest.decode(raw, KEY).entries == many


def test_unknown_fields_are_accepted() -> None:
    entry = {"path": "a", "type": "file", "mode": 0o100644, "colour": [1]}
    read = manifest.decode(document(colour={"x": 1}, entries=[entry]), KEY)
    assert read.entries == (ManifestEntry(b"a", 0o100644),)


def test_unsorted_entries_are_read_in_order() -> None:
    unsorted = [{"path": path, "type": "file", "mode": 0o100644} for path in ("b", "a")]
    read = manifest.decode(document(entries=unsorted), KEY)
    assert [entry.path for entry in read.entries] == [b"a", b"b"]


@pytest.mark.parametrize("found", [2, 99, 0, -1, 1 << 80])
def test_an_unknown_format_is_refused_with_its_key_and_both_versions(found: int) -> None:
    with pytest.raises(UnsupportedFormatError) as refused:
        manifest.decode(document(format=found, entries="of another kind"), KEY)
    assert (refused.value.name, refused.value.found, refused.value.supported) == (KEY, found, 1)
    assert KEY in str(refused.value)


def test_the_older_layout_is_a_set_of_paths_without_digests() -> None:
    raw = b'{"generation": 7, "paths": ["b/100%", "a", "a", "", "../up", "x//y"]}'
    read = manifest.decode(raw, KEY)
    assert (read.format, read.generation) == (manifest.OLDER_FORMAT, 7)
    assert [(entry.path, entry.sha256) for entry in read.entries] == [(b"a", ""), (b"b/100%", "")]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"format":"1"}',
        b'{"format":true}',
        b'{"format":1}',
        b'{"generation":1}',
        b'{"generation":-1,"paths":[]}',
        b'{"a":' * 100_000,
        document(recovery="perhaps"),
        document(entries=[{"path": "a", "type": "file", "mode": 0o100644}] * 2),
        with_entry(path="a//b"),
        with_entry(path="/a"),
        with_entry(path="../a"),
        with_entry(path="%41"),
        with_entry(type="fifo"),
        with_entry(type="directory"),
        with_entry(mode=0o10644),
        with_entry(mode=-1),
        with_entry(size=-1),
        with_entry(uid=1 << 32),
        with_entry(mtime_ns=1 << 63),
        with_entry(sha256="A" * 64),
        with_entry(sha256="a" * 63),
        with_entry(xattrs={"user.a": "no base64!"}),
        with_entry(xattrs={"user.a": "\u00e9"}),
        b"\x28\xb5\x2f\xfd garbage",
    ],
)
def test_what_is_no_manifest_is_corrupt_and_named(raw: bytes) -> None:
    with pytest.raises(CorruptDataError, match=KEY):
        manifest.decode(raw, KEY)


def test_a_manifest_that_unpacks_beyond_the_limit_is_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(b" " * 5000 + document())
    with pytest.raises(CorruptDataError, match="longer than 4096 bytes"):
        manifest.decode(bomb, KEY, limit_bytes=4096)
    with pytest.raises(CorruptDataError, match="longer than 8 bytes"):
        manifest.decode(document(), KEY, limit_bytes=8)
    assert manifest.MAX_DECODED_BYTES == 1 << 30


def test_a_torn_compressed_manifest_is_corrupt() -> None:
    whole = zstandard.ZstdCompressor().compress(document(trigger="x" * 500))
    for length in range(4, len(whole)):
        with pytest.raises(CorruptDataError):
            manifest.decode(whole[:length], KEY)


@given(st.binary(max_size=200))
def test_garbage_gives_only_the_two_errors(raw: bytes) -> None:
    for prefix in (b"", b"\x28\xb5\x2f\xfd", b'{"format":1,'):
        with pytest.raises((CorruptDataError, UnsupportedFormatError)):
            manifest.decode(prefix + raw, KEY)


@given(manifests, st.integers(0, 1 << 16), st.integers(0, 255))
def test_a_changed_byte_gives_a_manifest_or_the_two_errors(written: Manifest, place: int, byte: int) -> None:
    raw = bytearray(manifest.encode(written)[0])
    raw[place % len(raw)] = byte
    try:
        assert isinstance(manifest.decode(bytes(raw), KEY), Manifest)
    except (CorruptDataError, UnsupportedFormatError) as problem:
        assert KEY in str(problem)  # noqa: PT017 - either outcome is right


def test_an_entry_of_another_kind_is_written_as_a_file() -> None:
    assert ManifestEntry(b"pipe", stat.S_IFIFO | 0o644).type == "file"
    assert ManifestEntry(b"link", stat.S_IFLNK | 0o777).type == "symlink"
