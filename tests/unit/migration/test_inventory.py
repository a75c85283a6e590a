"""Which keys are copied, and when."""

from __future__ import annotations

import pytest

from sessionfs.migration.inventory import ARCHIVE, INDEX, Phase, Unit, of_listing, place_of
from sessionfs.model.names import session_id
from sessionfs.model.roots import named_unit
from sessionfs.stores.base import ObjectStat, Token

S = Unit("sessions/s1", session_id("s1"))


@pytest.mark.parametrize(
    ("key", "unit", "phase"),
    [
        ("sessions/s1/", S, Phase.BYTES),
        ("sessions/s1/a/b.txt", S, Phase.BYTES),
        ("sessions/s1/x.manifest/y", S, Phase.BYTES),
        ("sessions/s1.objects/aa/" + "a" * 64, S, Phase.BYTES),
        ("sessions/s1.conflicts/a/20260131T235959.123456Z-h", S, Phase.BYTES),
        ("sessions/s1.manifest/0000000003.json", S, Phase.GENERATIONS),
        ("sessions/s1.manifest/retired/0000000001.json", S, Phase.GENERATIONS),
        ("sessions/s1.manifest/manifest.json", S, Phase.NEWEST),
        ("sessions/s1.snapshot.json", S, Phase.MARKER),
        ("eval/r/x", Unit("eval/r", named_unit("eval/r")), Phase.BYTES),
        ("eval/r.snapshot.json", Unit("eval/r", named_unit("eval/r")), Phase.MARKER),
        ("plugins/p/x", Unit("plugins/p", named_unit("plugins/p")), Phase.BYTES),
        (
            "agents/a/plugins/p.manifest/manifest.json",
            Unit("agents/a/plugins/p", named_unit("agents/a/plugins/p")),
            Phase.NEWEST,
        ),
        ("archive/sessions/x/blocks/1/0", Unit(ARCHIVE), Phase.BYTES),
        ("archive/sessions/x/checkpoints/1", Unit(ARCHIVE), Phase.GENERATIONS),
        ("archive/sessions/x/latest", Unit(ARCHIVE), Phase.NEWEST),
        ("sessions.json.corrupt-1700000000", Unit(INDEX), Phase.BYTES),
        ("sessions.json", Unit(INDEX), Phase.MARKER),
    ],
)
def test_an_object_is_copied_with_its_unit_and_after_what_it_names(
    key: str, unit: Unit, phase: Phase
) -> None:
    assert place_of(key) == (unit, phase)


@pytest.mark.parametrize(
    "key",
    ["readme.txt", "sessions/plain", "plugins/p", "agents/a/x/y", "sessions/a%b/x", "other/sessions/s/x"],
)
def test_a_key_of_another_tool_is_not_copied_and_is_told(key: str) -> None:
    assert place_of(key) is None
    assert of_listing([_stat(key)]).others == [key]


@pytest.mark.parametrize("key", ["sessions/s1//x", "sessions/s1/./x", "sessions/s1/\x01"])
def test_a_key_that_no_request_can_name_is_told(key: str) -> None:
    found = of_listing([_stat(key)])
    assert found.unnameable == [key]
    assert found.objects == {}


def test_notes_of_hosts_are_neither_copied_nor_another_tools() -> None:
    found = of_listing(
        [
            _stat("sessions/s1.owner/owner.json"),
            _stat("hosts/h1.json"),
            _stat("probe/x"),
            _stat("migration.json"),
            _stat("migration/0000000001.json"),
        ]
    )
    assert found.objects == {}
    assert found.others == []
    assert list(found.owners) == ["s1"]
    assert list(found.beats) == ["h1"]
    assert sorted(found.pages) == ["migration.json", "migration/0000000001.json"]


def _stat(key: str) -> ObjectStat:
    return ObjectStat(key, 1, Token("t"), 0)
