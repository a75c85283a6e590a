"""Verification says what is wrong in one line each, and repairs without removing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sessionfs.formats import commit_marker, object_metadata, ownership
from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import UnsupportedFormatError
from sessionfs.replication.maintenance.verifying.findings import SessionReport
from sessionfs.replication.maintenance.verifying.verification import Verification
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.world import (
    SETTINGS,
    Author,
    HandClock,
    S,
    Tree,
    all_objects,
    hydrate,
    sha,
    tree_of,
)

MARKER = "sessions/s.snapshot.json"


@pytest.fixture
def trees(author: Author) -> list[Tree]:
    """Three generations: a log that grew and was started anew, a file that changed."""
    return [
        tree_of(author.commit({b"d": None, b"d/f": b"one", b"log": b"a\n", b"k": b"k"}), author),
        tree_of(author.commit({b"d": None, b"d/f": b"two", b"log": b"a\nb\n", b"k": b"k"}), author),
        tree_of(author.commit({b"d": None, b"d/f": b"two", b"log": b"x\n", b"k": b"k"}), author),
    ]


async def verify(
    store: ObjectStore, clock: HandClock, *, quick: bool = False, repair: bool = False
) -> SessionReport:
    reading = TrioStore(store, clock, SETTINGS)
    verification = Verification(reading, clock, SETTINGS, is_quick=quick, is_repairing=repair)
    assert await verification.sessions() == [S]
    return await verification.verify(S)


def lines(report: SessionReport) -> list[tuple[str, str]]:
    return [(finding.kind, finding.text) for finding in report.findings]


def spoil(store: MemoryStore, key: str, body: bytes) -> None:
    """Change an object's bytes and nothing of its metadata, as a broken disk does."""
    stored = store._contents.objects[key]
    store._contents.objects[key] = replace(stored, body=body, stat=replace(stored.stat, size_bytes=len(body)))


def remove(store: MemoryStore, key: str) -> None:
    store.delete(key, condition=Unconditional())


@pytest.mark.parametrize("quick", [False, True])
async def test_a_whole_session_has_no_findings(
    quick: bool, trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    report = await verify(memory, clock, quick=quick)
    assert lines(report) == []
    assert (report.generation, report.intact, report.newest_intact) == (3, {1, 2, 3}, 3)
    assert not report.is_damaged


async def test_every_object_is_read_once(trees: list[Tree], memory: MemoryStore, clock: HandClock) -> None:
    reading = TrioStore(memory, clock, SETTINGS)
    await Verification(reading, clock, SETTINGS).verify(S)
    files = [key for key in all_objects(memory) if not key.endswith("/")]
    prefixes = 2  # the log is read up to where an older generation ends
    assert reading.requests["get"] <= len(files) + 2 + prefixes


@pytest.mark.parametrize("body", [b"tw0", b"t", b"tWo and more", b""])
async def test_a_live_object_with_other_bytes_is_named_with_its_generations(
    body: bytes, trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    spoil(memory, "sessions/s/d/f", body)
    report = await verify(memory, clock)
    assert ("corrupt", "sessions/s/d/f has other bytes than its sha256 says") in lines(report)
    hurt = next(finding for finding in report.findings if finding.generations)
    assert (hurt.path, hurt.generations) == ("s/d/f", (2, 3))
    assert report.is_damaged
    assert report.newest_intact == 1


async def test_a_missing_object_is_named(trees: list[Tree], memory: MemoryStore, clock: HandClock) -> None:
    remove(memory, "sessions/s/k")
    for quick in (False, True):
        report = await verify(memory, clock, quick=quick)
        assert lines(report) == [("missing", "the bytes of s/k are in no object")]
        assert report.findings[0].generations == (1, 2, 3)
        assert report.newest_intact == 0


async def test_swapped_objects_are_named(trees: list[Tree], memory: MemoryStore, clock: HandClock) -> None:
    first, second = "sessions/s/d/f", "sessions/s/k"
    stored = {key: memory._contents.objects[key] for key in (first, second)}
    for key, other in ((first, second), (second, first)):
        metadata = stored[other].stat.metadata or ObjectMetadata()
        memory.put(key, stored[other].body, condition=Unconditional(), metadata=metadata)
    report = await verify(memory, clock)
    assert {finding.path for finding in report.findings if finding.kind == "corrupt"} == {"s/d/f", "s/k"}


async def test_spoiled_bytes_below_objects_hurt_only_past_generations(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    key = keys.content_key(S, sha(b"one"))
    spoil(memory, key, b"onE")
    report = await verify(memory, clock)
    assert ("corrupt", f"{key} has other bytes than its name says") in lines(report)
    assert (report.intact, report.newest_intact) == ({2, 3}, 3)


async def test_an_alias_whose_object_is_gone_hurts_what_needs_it(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    remove(memory, keys.content_key(S, sha(b"a\nb\n")))
    report = await verify(memory, clock)
    assert {finding.path for finding in report.findings} == {"s/log"}
    assert report.intact == {3}


@pytest.mark.parametrize("body", [b"", b"{", b'{"format": 1}'])
async def test_a_broken_manifest_is_named_and_an_older_generation_is_offered(
    body: bytes, trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    for key in ("sessions/s.manifest/manifest.json", "sessions/s.manifest/0000000003.json"):
        memory.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())
    report = await verify(memory, clock)
    named = {finding.key for finding in report.findings if finding.kind == "corrupt"}
    assert named >= {"sessions/s.manifest/manifest.json", "sessions/s.manifest/0000000003.json"}
    assert report.newest_intact == 2


async def test_a_missing_manifest_is_named(trees: list[Tree], memory: MemoryStore, clock: HandClock) -> None:
    remove(memory, "sessions/s.manifest/manifest.json")
    report = await verify(memory, clock)
    assert ("missing", "session s has generations and no manifest.json") in lines(report)
    assert report.newest_intact == 3


async def test_a_manifest_of_another_session_is_no_generation(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    raw, _ = manifests.encode(Manifest("other", 2))
    memory.put(keys.generation_key(S, 2), raw, condition=Unconditional(), metadata=ObjectMetadata())
    report = await verify(memory, clock)
    assert report.hurt == {2}


async def test_a_newer_format_is_refused_by_name(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    memory.put(keys.manifest_key(S), b'{"format": 99}', condition=Unconditional(), metadata=ObjectMetadata())
    with pytest.raises(UnsupportedFormatError, match="format 99"):
        await verify(memory, clock)


async def test_orphans_strange_keys_and_unfinished_commits_are_no_damage(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    raw, _ = manifests.encode(Manifest(S, 4, previous=3))
    for key, body in {
        keys.content_key(S, sha(b"orphan")): b"orphan",
        "sessions/s/a%zz": b"strange",
        "sessions/s.objects/strange": b"strange",
        keys.generation_key(S, 4): raw,
    }.items():
        memory.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())
    report = await verify(memory, clock)
    assert sorted(finding.kind for finding in report.findings) == [
        "orphan",
        "strange",
        "strange",
        "unfinished",
    ]
    assert not report.is_damaged
    assert report.newest_intact == 3


async def test_an_object_of_a_later_epoch_than_the_owners_is_told(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    record = ownership.encode(OwnerRecord(session="s", holder="h", epoch=1))
    memory.put(keys.owner_key(S), record, condition=Unconditional(), metadata=ObjectMetadata())
    user = object_metadata.encode(FileAttributes(0o100644, 0, 0, 1), Provenance(sha(b"late"), "w", 2, "l"))
    memory.put("sessions/s/late", b"late", condition=Unconditional(), metadata=ObjectMetadata(user))
    report = await verify(memory, clock)
    assert [finding.kind for finding in report.findings] == ["epoch"]


@pytest.mark.parametrize("spoiled", ["older", "gone", "broken"])
async def test_a_marker_that_is_behind_is_told_and_repaired(
    spoiled: str, trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    right = all_objects(memory)[MARKER]
    if spoiled == "gone":
        remove(memory, MARKER)
    else:
        older = commit_marker.encode(
            commit_marker.CommitMarker(session="s", generation=2, manifest_key="k", manifest_sha256="0")
        )
        body = older if spoiled == "older" else b"{"
        memory.put(MARKER, body, condition=Unconditional(), metadata=ObjectMetadata())
    report = await verify(memory, clock)
    assert [finding.kind for finding in report.findings] == ["corrupt" if spoiled == "broken" else "lagging"]
    repaired = await verify(memory, clock, repair=True)
    assert all(finding.is_repaired for finding in repaired.findings)
    again = commit_marker.decode(all_objects(memory)[MARKER], MARKER)
    wanted = commit_marker.decode(right, MARKER)
    assert (again.generation, again.manifest_sha256) == (wanted.generation, wanted.manifest_sha256)
    assert lines(await verify(memory, clock)) == []


async def test_the_newest_generations_own_manifest_is_written_again(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    remove(memory, keys.generation_key(S, 3))
    report = await verify(memory, clock)
    assert [finding.kind for finding in report.findings] == ["missing"]
    await verify(memory, clock, repair=True)
    assert lines(await verify(memory, clock)) == []
    assert (await hydrate(memory, generation=3))[1] == trees[2]


async def test_lost_bytes_are_brought_back_from_wherever_they_are(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    remove(memory, keys.content_key(S, sha(b"one")))
    remove(memory, "sessions/s/k")
    aside = f"sessions/s.conflicts/k/{'20260131T235959.123456Z'}-w"
    memory.put(aside, b"k and more", condition=Unconditional(), metadata=ObjectMetadata())
    memory.put("sessions/s/elsewhere", b"one", condition=Unconditional(), metadata=ObjectMetadata())
    before = all_objects(memory)
    report = await verify(memory, clock, repair=True)
    assert {finding.path for finding in report.findings if finding.is_repaired} == {"s/k", "s/d/f"}
    assert not report.is_damaged
    assert report.newest_intact == 3
    assert lines(await verify(memory, clock)) == []
    after = all_objects(memory)
    assert {key: after[key] for key in before} == before
    for number, tree in enumerate(trees, 1):
        assert (await hydrate(memory, generation=number))[1] == tree


async def test_what_cannot_be_brought_back_stays_damage(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    remove(memory, "sessions/s/k")
    before = all_objects(memory)
    report = await verify(memory, clock, repair=True)
    assert report.is_damaged
    assert report.newest_intact == 0
    assert all_objects(memory) == before


async def test_without_repair_nothing_is_written(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    remove(memory, MARKER)
    remove(memory, keys.content_key(S, sha(b"one")))
    before = all_objects(memory)
    await verify(memory, clock)
    assert all_objects(memory) == before


async def test_a_session_that_moves_meanwhile_is_not_called_damaged(
    trees: list[Tree], memory: MemoryStore, author: Author, clock: HandClock
) -> None:
    class Moving(MemoryStore):
        def __init__(self, action: Callable[[], object]) -> None:
            super().__init__(clock)
            self._contents = memory._contents
            self.action: Callable[[], object] | None = action

        def list_page(self, prefix: str, **more: object) -> object:  # type: ignore[override]
            page = super().list_page(prefix, **more)  # type: ignore[arg-type]
            if prefix == "sessions/s.objects/" and self.action is not None:
                action, self.action = self.action, None
                action()
            return page

    moving = Moving(lambda: author.commit({b"d": None, b"d/f": b"three", b"log": b"y\n", b"k": b"K"}))
    report = await verify(moving, clock)
    assert moving.action is None
    assert not report.is_damaged
    assert {finding.kind for finding in report.findings} <= {"moving", "lagging"}
    assert report.intact == {1, 2, 3}


async def test_remains_of_a_removed_session_are_told(
    trees: list[Tree], memory: MemoryStore, author: Author, clock: HandClock
) -> None:
    author.commit({}, removed=True)
    memory.put("sessions/s/left", b"x", condition=Unconditional(), metadata=ObjectMetadata())
    report = await verify(memory, clock)
    assert lines(report) == [("orphan", "1 objects of the removed session s are still there")]
