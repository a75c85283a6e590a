from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.model import keys, names, roots
from sessionfs.model.errors import InvalidSessionIdError
from sessionfs.model.names import SessionId


def _is_component(text: str) -> bool:
    try:
        names.session_id(text)
    except InvalidSessionIdError:
        return False
    return True


words = st.sampled_from(["plugins", "agents", "eval", "sessions", "g3", "conflicts", "x", "run7"])
components = st.one_of(words, st.text(min_size=1, max_size=20)).filter(_is_component)
units = st.one_of(
    components,
    components.map(lambda one: f"%plugins%{one}"),
    components.map(lambda one: f"%eval%{one}"),
    st.tuples(components, components).map(lambda two: f"%agents%{two[0]}%plugins%{two[1]}"),
).map(SessionId)
paths = st.lists(st.binary(min_size=1, max_size=20), max_size=4).map(b"/".join)
SHA256 = "ab" * 32
STAMP = "20260131T235959.123456Z"


def _is_path(path: bytes) -> bool:
    segments = path.split(b"/") if path else []
    return not any(s in {b"", b".", b".."} or b"\0" in s for s in segments) and segments[:1] != [
        b".sessionfs"
    ]


@given(units)
def test_an_id_is_read_back_from_each_of_its_spellings(unit: SessionId) -> None:
    assert roots.unit_id(unit) == unit
    assert roots.named_unit(roots.shown_id(unit)) == unit
    assert roots.internal_id(roots.shown_id(unit)) == unit
    assert roots.of_key_segments(roots.key_base(unit).split("/")) == unit
    assert roots.of_mount_path(roots.mount_path(unit)) == unit
    assert roots.of_mount_path(roots.mount_path(unit) + "/deep/file") == unit
    assert roots.is_shared_root(unit) == unit.startswith("%")
    assert not roots.is_tree_of_the_past(unit)


@given(units, st.sampled_from(["g1", "g1234567890", "conflicts", "unnamed"]))
def test_a_tree_of_the_past_names_its_owner_and_is_no_unit(unit: SessionId, what: str) -> None:
    tree = f"{unit}%{what}"
    assert roots.is_tree_of_the_past(tree)
    assert not roots.is_shared_root(tree)
    assert roots.split_tree(tree) == (unit, what)
    assert len(tree.encode()) <= names.MAX_NAME_BYTES
    with pytest.raises(InvalidSessionIdError):
        roots.unit_id(tree)


@given(units, paths.filter(_is_path), st.booleans())
def test_a_live_key_is_read_back(unit: SessionId, path: bytes, is_directory: bool) -> None:
    key = keys.live_key(unit, path, is_directory=is_directory or not path)
    assert key is not None
    assert keys.parse_live_key(key) == keys.LivePath(unit, path, is_directory or not path)
    assert keys.session_of_key(key) == unit
    kept = keys.parse_conflict_key(keys.conflict_key(key, stamp=STAMP, holder="h"))
    assert kept is not None
    assert (kept.session, kept.stamp, kept.holder) == (unit, STAMP, "h")
    assert kept.path in {path, None}


@given(units)
def test_records_beside_a_unit_are_its_own_and_nobodys_files(unit: SessionId) -> None:
    beside = [
        keys.owner_key(unit),
        keys.manifest_key(unit),
        keys.generation_key(unit, 7),
        keys.retired_key(unit, 7),
        keys.content_key(unit, SHA256),
        keys.alias_key(unit, SHA256),
        keys.commit_marker_key(unit),
        keys.conflict_key(keys.session_prefix(unit) + "a", stamp=STAMP, holder="h"),
    ]
    base = roots.key_base(unit)
    for key in beside:
        keys.validate_key(key)
        assert keys.parse_live_key(key) is None
        assert keys.session_of_key(key) is None
        head = base + key.removeprefix(base).partition("/")[0]
        assert keys.session_with(head + ("/" if head != key else "")) == unit
    assert keys.parse_generation_key(unit, keys.retired_key(unit, 7)) == 7
    assert keys.parse_content_key(unit, keys.alias_key(unit, SHA256)) == (SHA256, True)
    assert keys.session_of_prefix(keys.session_prefix(unit)) == unit
    assert keys.session_of_prefix(keys.manifest_prefix(unit)) is None


@given(units, units)
def test_no_key_of_one_unit_is_below_another(first: SessionId, second: SessionId) -> None:
    prefixes = [
        [
            make(unit)
            for make in (
                keys.session_prefix,
                keys.manifest_prefix,
                keys.objects_prefix,
                keys.conflicts_prefix,
            )
        ]
        for unit in (first, second)
    ]
    for one in prefixes[0]:
        for other in prefixes[1]:
            assert first == second or not one.startswith(other)


def test_sessions_may_have_the_names_of_the_kinds() -> None:
    assert keys.session_prefix(SessionId("plugins")) == "sessions/plugins/"
    assert keys.session_prefix(SessionId("%plugins%x")) == "plugins/x/"
    assert keys.owner_key(SessionId("%agents%a%plugins%x")) == "agents/a/plugins/x.owner/owner.json"
    assert roots.named_unit("eval") == "eval"
    assert roots.of_mount_path("eval/run7") == "eval"
    assert roots.of_mount_path(".sessionfs/eval/run7") == "%eval%run7"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "%eval",
        "%eval%",
        "%eval%.",
        "%eval%a/b",
        "%eval%a.manifest",
        "%eval%.sessionfs",
        "%eval%a%b",
        "%eval%a%g3",
        "%other%a",
        "%sessions%a",
        "%agents%a",
        "%agents%a%plugins",
        "%agents%a%other%p",
        "%plugins%" + "x" * 129,
        "%agents%" + "x" * 120 + "%plugins%" + "y" * 120,
        "s%g3",
    ],
)
def test_other_texts_are_no_units(text: str) -> None:
    with pytest.raises(InvalidSessionIdError):
        roots.unit_id(text)
    assert not roots.is_shared_root(text)


@pytest.mark.parametrize(
    "text", ["eval/", "/eval/a", "eval/a/b", "agents/a/plugins", "agents/a/x/p", "other/a", "sessions/a"]
)
def test_people_cannot_name_what_is_no_unit(text: str) -> None:
    with pytest.raises(InvalidSessionIdError):
        roots.named_unit(text)
    assert roots.internal_id(text) == text


@pytest.mark.parametrize(
    "key",
    [
        "eval/a",
        "agents/a/plugins/p",
        "agents/a/data/x",
        "agents/a/plugins",
        "eval/a%b/x",
        "other/a/x",
        "eval//x",
        "sessions/a",
    ],
)
def test_other_keys_are_no_live_keys(key: str) -> None:
    assert keys.parse_live_key(key) is None
    assert keys.session_of_key(key) is None


@pytest.mark.parametrize(
    "path", ["", ".sessionfs", ".sessionfs/eval", ".sessionfs/agents/a/plugins", ".sessionfs/x/y", "a%b/x"]
)
def test_paths_outside_of_every_unit(path: str) -> None:
    assert roots.of_mount_path(path) is None


def test_lines_for_people_name_roots_as_people_do() -> None:
    line = "session %eval%run7 and '%agents%a b%plugins%p': %plugins%x%g3 of s%g3, 100% of a%25b"
    assert (
        roots.readable(line)
        == "session eval/run7 and 'agents/a b/plugins/p': plugins/x%g3 of s%g3, 100% of a%25b"
    )
    assert roots.shown_id("%eval%run7%g3") == "eval/run7%g3"
    assert roots.shown_id("s%g3") == "s%g3"
