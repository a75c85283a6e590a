"""Keys are built and parsed in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.model import keys
from sessionfs.model.errors import InvalidKeyError
from sessionfs.model.names import SessionId

from .test_names import file_names

SESSION = SessionId("s")
paths = st.lists(file_names.filter(lambda n: n != b".sessionfs" and len(n) < 60), min_size=1, max_size=4)


@given(paths, st.booleans())
def test_a_live_key_reads_back(parts: list[bytes], is_directory: bool) -> None:
    path = b"/".join(parts)
    key = keys.live_key(SESSION, path, is_directory=is_directory)
    assert key is not None
    keys.validate_any_key(key)
    assert keys.parse_live_key(key) == keys.LivePath(SESSION, path, is_directory)


def test_the_root_of_a_session_has_a_marker() -> None:
    assert keys.live_key(SESSION, b"", is_directory=True) == "sessions/s/"
    assert keys.parse_live_key("sessions/s/") == keys.LivePath(SESSION, b"", is_directory=True)


def test_a_path_too_long_for_a_key_has_none() -> None:
    assert keys.live_key(SESSION, b"/".join([b"d" * 200] * 6), is_directory=False) is None


@pytest.mark.parametrize(
    "key",
    ["other/x", "sessions/s", "sessions/s.owner/owner.json", "sessions/s/a//b", "sessions/s/%41", "sessions//x",
     "sessions/s/.sessionfs/status", "sessions/s/a/../b"],
)  # fmt: skip
def test_a_key_that_no_path_can_name_is_nobodys(key: str) -> None:
    assert keys.parse_live_key(key) is None


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a/./b", "../a", "a\\b", "a\nb", "a\0", "x" * 1025, "\ud800"]
)
def test_bad_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidKeyError):
        keys.validate_key(key)


@pytest.mark.parametrize("prefix", ["a", "/", "a//", "a/../"])
def test_a_prefix_is_whole_segments(prefix: str) -> None:
    with pytest.raises(InvalidKeyError):
        keys.validate_prefix(prefix)
    assert keys.validate_prefix("") == ""
    assert keys.validate_prefix("a/b/") == "a/b/"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a", "a", True),
        ("a", "a/", True),
        ("a", "a/b", True),
        ("a/b/", "a", True),
        ("a", "ab", False),
        ("a/b", "a/c", False),
    ],
)
def test_related_keys_are_prefixes_by_whole_segments(first: str, second: str, expected: bool) -> None:
    assert keys.related(first, second) is expected


def test_sibling_keys() -> None:
    sha = "ab" * 32
    assert keys.manifest_key(SESSION) == "sessions/s.manifest/manifest.json"
    assert keys.generation_key(SESSION, 7) == "sessions/s.manifest/0000000007.json"
    assert keys.commit_marker_key(SESSION) == "sessions/s.snapshot.json"
    assert keys.content_key(SESSION, sha) == f"sessions/s.objects/ab/{sha}"
    assert keys.conflict_key("sessions/s/a/b", stamp="T", holder="h") == "sessions/s.conflicts/a/b/T-h"
    assert keys.conflict_key("sessions/s/", stamp="T", holder="h") == "sessions/s.conflicts/_root/T-h"
    long = keys.conflict_key("sessions/s/" + "x" * 1010, stamp="T", holder="h")
    assert long == "sessions/s.conflicts/_long/T-h"


@pytest.mark.parametrize("path", [b"a", b"a/b", b"a\\b/\xff", b"_root/x", b"x.conflicts/y"])
def test_a_conflict_key_tells_its_path(path: bytes) -> None:
    live = keys.live_key(SessionId("s"), path, is_directory=False)
    assert live is not None
    stamp = "20260131T235959.123456Z"
    key = keys.conflict_key(live, stamp=stamp, holder="0a-b")
    assert keys.parse_conflict_key(key) == keys.KeptAside(SessionId("s"), path, stamp, "0a-b")


@pytest.mark.parametrize("path", ["_root", "_long", "a%zz"])
def test_a_conflict_key_that_does_not_tell_its_path_has_none(path: str) -> None:
    found = keys.parse_conflict_key(f"sessions/s.conflicts/{path}/20260131T235959.123456Z-h")
    assert found is not None
    assert found.path is None


@pytest.mark.parametrize(
    "key",
    [
        "sessions/s/a",
        "else/s.conflicts/a/20260131T235959.123456Z-h",
        "sessions/s.conflicts/20260131T235959.123456Z-h",
        "sessions/s.conflicts/a/yesterday-h",
        "sessions/a/b.conflicts/a/20260131T235959.123456Z-h",
    ],
)
def test_another_key_is_no_conflict_key(key: str) -> None:
    assert keys.parse_conflict_key(key) is None
    with pytest.raises(InvalidKeyError):
        keys.content_key(SESSION, "short")
    with pytest.raises(InvalidKeyError):
        keys.conflict_key("else", stamp="T", holder="h")


@pytest.mark.parametrize(
    ("prefix", "session"),
    [
        ("sessions/s/", "s"),
        ("sessions/s.manifest/", None),
        ("sessions/s.owner/", None),
        ("sessions/C:x/", None),
    ],
)
def test_common_prefixes_name_sessions_but_not_their_siblings(prefix: str, session: str | None) -> None:
    assert keys.session_of_prefix(prefix) == session
