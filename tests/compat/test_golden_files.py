"""Bytes that released versions wrote open for ever. A golden file is added, never changed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from sessionfs.formats import (
    commit_marker,
    content_alias,
    intent_records,
    manifest,
    object_metadata,
    ownership,
)
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.formats.content_alias import ContentAlias
from sessionfs.formats.intent_records import HEADER_BYTES, Intent, Operation, Outcome, Record
from sessionfs.formats.logs import zstd_log
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.formats.ownership import BeatRecord, OwnerRecord

GOLDEN = Path(__file__).parent / "golden"

MANIFEST = Manifest(
    session="s-2026",
    generation=12,
    previous=9,
    created_at="2026-01-31T23:59:59.123456Z",
    trigger="unmount",
    entries=(
        ManifestEntry(b"", stat.S_IFDIR | 0o750, uid=1000, gid=1000, mtime_ns=1_700_000_000_000_000_001, token="r"),
        ManifestEntry(
            b"a link", stat.S_IFLNK | 0o777, 7, "1" * 64, "t1", mtime_ns=-5, target=b"d/\xff %\n"
        ),
        ManifestEntry(b"d", stat.S_IFDIR | 0o1777, token="t2"),
        ManifestEntry(
            b"d/\xff%\x01",
            stat.S_IFREG | 0o4755,
            1 << 40,
            "0123456789abcdef" * 4,
            '"etag-3"',
            0,
            4_294_967_295,
            1_700_000_000_123_456_789,
            {b"user.mime": b"text/plain", b"user.\xe9": b"\x00\xff"},
        ),
        ManifestEntry(b"one", stat.S_IFREG | 0o644, 3, "2" * 64, "t4", link_group=1),
        ManifestEntry(b"two", stat.S_IFREG | 0o644, 3, "2" * 64, "", link_group=1),
    ),
)  # fmt: skip
REMOVED = Manifest("s-2026", 13, previous=12, epoch=4, holder="h", recovery="committed", removed=True)
MARKER = CommitMarker(
    session="s-2026",
    generation=12,
    manifest_key="sessions/s-2026.manifest/0000000012.json",
    manifest_sha256="3" * 64,
    trigger="unmount",
    turn=3,
    completed_at="2026-01-31T23:59:59.123456Z",
    objects=6,
    bytes=1024,
    objects_uploaded=2,
    objects_skipped=4,
    bytes_uploaded=512,
)
BASE = 4096
BOOT = "01234567-89ab-cdef-0123-456789abcdef"
RECORDS: tuple[Record, ...] = (
    Intent(1, Operation.CREATE, 0, 2, b"\xff name", mode=0o100644, uid=1000, gid=1000, wall_ns=7, unique=9),
    Outcome(1, 0, 42),
    Intent(2, Operation.RENAME, 42, 2, b"\xff name", 3, b"new", 44, wall_ns=8),
    Outcome(2, 17),
    Intent(3, Operation.SETATTR, 42, mode=0o100600, uid=0, gid=0, mtime_ns=-1),
    Outcome(3, -1, 42),
    *(Intent(number + 3, number, 42) for number in range(1, 20)),
)
ATTRIBUTES = FileAttributes(stat.S_IFREG | 0o640, 1000, 100, 1_700_000_000_123_456_789)
ALIAS = ContentAlias("5" * 64, 1 << 40)
OWNER = OwnerRecord(
    session="s-2026",
    holder="a" * 32,
    epoch=7,
    state="released",
    beat=f"hosts/{'a' * 32}.json",
    host="build-7",
    acquired_at="2026-01-31T23:59:59.123456Z",
)
BEAT = BeatRecord(
    holder="a" * 32,
    counter=12,
    lease_seconds=60.0,
    host="build-7",
    sent_at="2026-01-31T23:59:59.123456Z",
)
PROVENANCE = Provenance("4" * 64, "w" * 32, 5, "l" * 32)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("manifest-1.json", MANIFEST), ("manifest-1.json.zst", MANIFEST), ("manifest-removed-1.json", REMOVED)],
)
def test_a_manifest_of_format_1_opens(name: str, expected: Manifest) -> None:
    assert manifest.decode((GOLDEN / name).read_bytes(), name) == expected


@pytest.mark.parametrize(
    ("name", "written"), [("manifest-1.json", MANIFEST), ("manifest-removed-1.json", REMOVED)]
)
def test_a_manifest_is_written_as_ever(name: str, written: Manifest) -> None:
    assert manifest.encode(written) == ((GOLDEN / name).read_bytes(), "")


def test_a_manifest_of_the_older_layout_opens() -> None:
    read = manifest.decode((GOLDEN / "manifest-older-layout.json").read_bytes(), "manifest.json")
    assert (read.format, read.generation) == (0, 41)
    assert [entry.path for entry in read.entries] == [b"context/notes.md", b"metadata/session.json"]


def test_a_commit_marker_of_format_1_opens_and_is_written_as_ever() -> None:
    raw = (GOLDEN / "commit-marker-1.json").read_bytes()
    assert commit_marker.decode(raw, "marker") == MARKER
    assert commit_marker.encode(MARKER) == raw


def test_an_intent_log_of_version_1_opens_and_is_written_as_ever() -> None:
    raw = (GOLDEN / "intent-log-1.bin").read_bytes()
    assert intent_records.decode_header(raw, "intent.log") == (BASE, BOOT)
    read = list(intent_records.decode_records(raw[HEADER_BYTES:]))
    assert tuple(record for record, _ in read) == RECORDS
    assert read[-1][1] == len(raw) - HEADER_BYTES
    written = intent_records.encode_header(BASE, BOOT) + b"".join(map(intent_records.encode_record, RECORDS))
    assert written == raw


def test_numbers_of_operations_on_disk_never_change() -> None:
    assert {operation.name: operation.value for operation in Operation if operation <= 19} == {
        "CREATE": 1, "MKDIR": 2, "SYMLINK": 3, "MKNOD": 4, "LINK": 5, "UNLINK": 6, "RMDIR": 7, "RENAME": 8,
        "EXCHANGE": 9, "SETATTR": 10, "TRUNCATE": 11, "XATTR": 12, "OPEN_WRITE": 13, "RELEASE_WRITE": 14,
        "WRITTEN": 15, "FETCHED": 16, "EVICTED": 17, "MATERIALISED": 18, "STARTED": 19,
    }  # fmt: skip


def test_metadata_of_an_object_opens_and_is_written_as_ever() -> None:
    user = json.loads((GOLDEN / "object-metadata-1.json").read_text())
    assert object_metadata.decode_attributes(user, modified_ns=0, is_directory=False) == ATTRIBUTES
    assert object_metadata.decode_provenance(user) == PROVENANCE
    assert object_metadata.encode(ATTRIBUTES, PROVENANCE) == user


def test_a_content_alias_opens_and_is_written_as_ever() -> None:
    raw = (GOLDEN / "content-alias-1.json").read_bytes()
    assert content_alias.decode(raw, "alias") == ALIAS
    assert content_alias.encode(ALIAS) == raw


def test_an_owner_record_of_format_1_opens_and_is_written_as_ever() -> None:
    raw = (GOLDEN / "owner-1.json").read_bytes()
    assert ownership.decode_owner(raw, "owner.json") == OWNER
    assert ownership.encode(OWNER) == raw


def test_a_beat_of_format_1_opens_and_is_written_as_ever() -> None:
    raw = (GOLDEN / "beat-1.json").read_bytes()
    assert ownership.decode_beat(raw, "beat.json") == BEAT
    assert ownership.encode(BEAT) == raw


def test_a_sealed_segment_opens() -> None:
    raw = (GOLDEN / "sealed-segment-1.jsonl.zst").read_bytes()
    lines = [b'{"seq":%d,"text":"%s"}' % (number, b"x" * (number % 90)) for number in range(200)]
    assert list(zstd_log.lines_of([raw], "segment")) == lines
