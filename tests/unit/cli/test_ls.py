"""What ``ls`` reads of a store, and what it makes of it."""

from __future__ import annotations

from sessionfs.cli.commands.ls_cmd import SessionSummary, summaries
from sessionfs.formats import commit_marker, manifest, ownership
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.formats.manifest import Manifest
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.stores.base import ByteRange, IfAbsent, ObjectBody, ObjectMetadata, Token
from sessionfs.stores.memory import MemoryStore


class ReadKeys(MemoryStore):
    """Notes what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        self.read.append(key)
        return super().get(key, byte_range=byte_range, expected=expected)


def put(store: MemoryStore, key: str, body: bytes = b"") -> None:
    store.put(key, body, condition=IfAbsent(), metadata=ObjectMetadata())


def by_id(store: MemoryStore) -> dict[str, SessionSummary]:
    return {session.id: session for session in summaries(store)}


def marker(session: str, generation: int, objects: int) -> bytes:
    return commit_marker.encode(
        CommitMarker(
            session=session, generation=generation, manifest_key="k", manifest_sha256="s", objects=objects,
            completed_at="2026-01-31T00:00:00Z",
        )
    )  # fmt: skip


def test_sessions_are_summed_from_the_listing_alone() -> None:
    store = ReadKeys()
    for key, body in {
        "sessions/a/": b"",
        "sessions/a/x.txt": b"123",
        "sessions/a/dir/": b"",
        "sessions/a/dir/y": b"4567",
        "sessions/b/": b"",
        "sessions/a.manifest/manifest.json": b"{}",
        "sessions/a.conflicts/x.txt/1-x": b"gone",
        "other/key": b"",
    }.items():
        put(store, key, body)
    assert [(s.id, s.size_bytes, s.files, s.owner, s.generation) for s in summaries(store)] == [
        ("a", 7, 2, "", 0),
        ("b", 0, 0, "", 0),
    ]
    assert store.read == []


def test_owner_and_generation_come_from_two_small_records() -> None:
    store = ReadKeys()
    for session, host, state in (("a", "far", "held"), ("b", "", "held"), ("c", "far", "released")):
        put(store, f"sessions/{session}/x", b"1")
        record = OwnerRecord(session=session, holder="0123456789abcdef", epoch=1, state=state, host=host)  # type: ignore[arg-type]
        put(store, f"sessions/{session}.owner/owner.json", ownership.encode(record))
        put(store, f"sessions/{session}.snapshot.json", marker(session, 3, 2))
        put(store, f"sessions/{session}.manifest/manifest.json", b"never read")
    found = by_id(store)
    assert [found[name].owner for name in "abc"] == ["far", "01234567", ""]
    assert {(session.generation, session.committed_at) for session in found.values()} == {
        (3, "2026-01-31T00:00:00Z")
    }
    assert len(store.read) == 6
    assert not any(key.endswith("manifest.json") for key in store.read)


def test_removed_sessions_are_not_listed_also_when_something_of_them_remains() -> None:
    store = MemoryStore()
    for session, removed in (("gone", True), ("empty", False)):
        stored = manifest.encode(Manifest(session=session, generation=2, removed=removed))[0]
        put(store, f"sessions/{session}.manifest/manifest.json", stored)
        put(store, f"sessions/{session}.snapshot.json", marker(session, 2, 0))
        put(store, f"sessions/{session}/remains", b"1")
    put(store, "sessions/siblings.manifest/manifest.json", b"{}")
    put(store, "sessions/siblings.snapshot.json", marker("siblings", 1, 4))
    assert set(by_id(store)) == {"empty"}


def test_a_record_that_cannot_be_read_hides_no_session() -> None:
    store = MemoryStore()
    put(store, "sessions/a/x", b"1")
    put(store, "sessions/a.owner/owner.json", b"no json")
    put(store, "sessions/a.snapshot.json", b"no json")
    assert (by_id(store)["a"].owner, by_id(store)["a"].generation) == ("", 0)
