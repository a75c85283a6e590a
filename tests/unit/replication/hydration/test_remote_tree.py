"""What one manifest, one listing and a few HEADs make of a session."""

from __future__ import annotations

import hashlib
import stat
from dataclasses import replace

import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, UnavailableError, UnsupportedFormatError
from sessionfs.replication.hydration.survey import RemoteEntry, RemoteTree
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, Interfere

from .hosts import SESSION, StepClock, put, put_plain, reader_of

FILE = stat.S_IFREG | 0o644
LINK = stat.S_IFLNK | 0o777


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(StepClock()))


def put_manifest(store: FaultyStore, manifest: Manifest) -> None:
    raw, encoding = manifests.encode(manifest)
    store.put(
        keys.manifest_key(SESSION),
        raw,
        condition=Unconditional(),
        metadata=ObjectMetadata(content_encoding=encoding),
    )


async def load(store: FaultyStore) -> RemoteTree:
    tree = await reader_of(store).load(SESSION)
    assert tree is not None
    return tree


async def entries(store: FaultyStore) -> dict[bytes, RemoteEntry]:
    return {entry.path: entry for entry in (await load(store)).entries}


def heads(store: FaultyStore) -> list[str]:
    return [key for method, key in store.calls if method == "head"]


async def test_a_session_that_is_nowhere_is_none(store: FaultyStore) -> None:
    put(store, "a", session="other")
    put(store, "a", session="s2")
    assert await reader_of(store).load(SESSION) is None


async def test_without_a_manifest_metadata_of_every_object_is_asked(store: FaultyStore) -> None:
    put(store, "", mode=stat.S_IFDIR | 0o700)
    put(store, "d/", mode=stat.S_IFDIR | 0o1777)
    put(store, "d/f", b"abc", mode=stat.S_IFREG | 0o4750, write_id="w1", lineage="l1")
    put(store, "l", b"d/f", mode=LINK)
    found = await entries(store)
    assert list(found) == [b"", b"d", b"d/f", b"l"]
    assert found[b""].mode == stat.S_IFDIR | 0o700
    assert found[b"d"].mode == stat.S_IFDIR | 0o1777
    file = found[b"d/f"]
    assert (file.mode, file.attributes.uid, file.attributes.gid) == (stat.S_IFREG | 0o4750, 1000, 1001)
    assert (file.size_bytes, file.sha256, file.write_id, file.lineage) == (3, sha(b"abc"), "w1", "l1")
    assert file.attributes.mtime_ns == 1_600_000_000_123_456_789
    assert found[b"l"].target == b"d/f"
    assert len(heads(store)) == 4


async def test_what_another_tool_wrote_gets_defaults_and_this_hosts_owner(store: FaultyStore) -> None:
    put_plain(store, "x/y/z", b"abc")
    found = await entries(store)
    assert list(found) == [b"", b"x", b"x/y", b"x/y/z"]
    assert found[b"x/y"].mode == stat.S_IFDIR | 0o755
    assert found[b"x/y"].key == ""
    file = found[b"x/y/z"]
    assert (file.mode, file.sha256, file.attributes.uid, file.attributes.gid) == (FILE, "", 7, 8)


async def test_a_manifest_describes_what_still_has_its_token_without_a_request(store: FaultyStore) -> None:
    tokens = {name: put(store, name, b"abc") for name in ("one", "two", "moved", "l")}
    tokens[""] = put(store, "")
    put_manifest(
        store,
        Manifest(
            SESSION,
            3,
            (
                ManifestEntry(b"", stat.S_IFDIR | 0o711, token=tokens[""]),
                ManifestEntry(
                    b"one", FILE, 3, sha(b"abc"), tokens["one"], 1, 2, 5, {b"user.a": b"b"}, link_group=1
                ),
                ManifestEntry(b"two", FILE, 3, sha(b"abc"), tokens["two"], 1, 2, 5, link_group=1),
                ManifestEntry(b"moved", FILE, 3, sha(b"abc"), tokens["moved"], xattrs={b"user.old": b""}),
                ManifestEntry(b"deleted", FILE, 3, sha(b"abc"), "was-there"),
                ManifestEntry(b"l", LINK, 6, sha(b"target"), tokens["l"], target=b"target"),
            ),
        ),
    )
    put(store, "moved", b"newer")
    store.calls.clear()
    tree = await load(store)
    found = {entry.path: entry for entry in tree.entries}
    assert list(found) == [b"", b"l", b"moved", b"one", b"two"]
    assert found[b"one"].xattrs == {b"user.a": b"b"}
    assert found[b"one"].link_group == found[b"two"].link_group == 1
    assert found[b"one"].attributes.mtime_ns == 5
    assert found[b"l"].target == b"target"
    assert (found[b"moved"].sha256, found[b"moved"].xattrs) == (sha(b"newer"), None)
    assert heads(store) == ["sessions/s/moved"]
    assert len(store.calls) == 3


async def test_an_object_as_young_as_the_manifest_is_asked_though_its_token_is_the_same(
    store: FaultyStore,
) -> None:
    clock = StepClock()
    young = FaultyStore(MemoryStore(clock))
    token = put(young, "f", b"abc", mode=stat.S_IFREG | 0o600)
    clock.now_ns -= 10_000_000_000
    entry = ManifestEntry(b"f", FILE, 3, sha(b"abc"), token, xattrs={b"user.a": b"b"}, link_group=2)
    put_manifest(young, Manifest(SESSION, 1, (entry, replace(entry, path=b"g"))))
    found = await entries(young)
    assert found[b"f"].mode == stat.S_IFREG | 0o600
    assert found[b"f"].xattrs == {b"user.a": b"b"}
    assert found[b"f"].link_group == 0
    assert heads(young) == ["sessions/s/f"]


async def test_a_hard_link_group_with_a_changed_name_is_no_group(store: FaultyStore) -> None:
    tokens = {name: put(store, name, b"abc") for name in ("one", "two")}
    named = [
        ManifestEntry(name.encode(), FILE, 3, sha(b"abc"), tokens[name], link_group=1) for name in tokens
    ]
    put_manifest(store, Manifest(SESSION, 3, tuple(named)))
    put(store, "two", b"other")
    found = await entries(store)
    assert (found[b"one"].link_group, found[b"two"].link_group) == (0, 0)


async def test_a_removed_session_does_not_exist_whatever_is_left_of_it(store: FaultyStore) -> None:
    put_manifest(store, Manifest(SESSION, 3, removed=True))
    put(store, "left", b"abc")
    store.calls.clear()
    assert await reader_of(store).load(SESSION) is None
    assert [method for method, _ in store.calls] == ["get"]
    put_manifest(store, Manifest(SESSION, 4))
    assert list(await entries(store)) == [b"", b"left"]


async def test_an_empty_generation_is_an_empty_session(store: FaultyStore) -> None:
    put_manifest(store, Manifest(SESSION, 1))
    assert list(await entries(store)) == [b""]


async def test_bytes_without_a_live_object_are_read_from_the_objects(store: FaultyStore) -> None:
    digest = sha(b"kept")
    put(store, "", b"")
    token = store.put(
        keys.content_key(SESSION, digest), b"kept", condition=Unconditional(), metadata=ObjectMetadata()
    )
    put_manifest(
        store,
        Manifest(
            SESSION,
            1,
            (
                ManifestEntry(b"deep/long", FILE, 4, digest),
                ManifestEntry(b"deep/gone", FILE, 4, "1" * 64),
                ManifestEntry(b"deep/dir", stat.S_IFDIR | 0o700),
                ManifestEntry(b"deep/link", LINK, 1, target=b"t"),
            ),
        ),
    )
    tree = await load(store)
    found = {entry.path: entry for entry in tree.entries}
    assert list(found) == [b"", b"deep", b"deep/dir", b"deep/gone", b"deep/link", b"deep/long"]
    assert found[b"deep/long"].key == keys.content_key(SESSION, digest)
    assert found[b"deep/long"].token == token
    assert found[b"deep/gone"].key == ""
    assert found[b"deep/dir"].mode == stat.S_IFDIR | 0o700
    assert [skipped.reason for skipped in tree.skipped] == ["the manifest names it, and it is gone"]


async def test_a_committed_recovery_keeps_what_is_gone(store: FaultyStore) -> None:
    put(store, "", b"")
    kept = ManifestEntry(b"f", FILE, 4, sha(b"kept"), "old-token")
    put_manifest(store, Manifest(SESSION, 1, (kept,), recovery="committed"))
    assert b"f" in await entries(store)
    put_manifest(store, Manifest(SESSION, 2, (kept,), recovery="live"))
    assert b"f" not in await entries(store)


async def test_keys_that_no_path_can_name_are_reported_and_break_nothing(store: FaultyStore) -> None:
    put_plain(store, "x", b"file beside a directory")
    put_plain(store, "x/y", b"inside")
    put_plain(store, "%41", b"another spelling")
    put_plain(store, ".sessionfs/status", b"ours")
    put_plain(store, "good", b"")
    put(store, "link", b"", mode=LINK)
    put(store, "nul", b"a\0b", mode=LINK)
    tree = await load(store)
    assert [entry.path for entry in tree.entries] == [b"", b"good", b"x", b"x/y"]
    assert {skipped.key.removeprefix("sessions/s/") for skipped in tree.skipped} == {
        "x",
        "%41",
        ".sessionfs/status",
        "link",
        "nul",
    }


async def test_excluded_names_are_not_hydrated(store: FaultyStore) -> None:
    for path in ("session.lock", "d/x.db-wal", "d/x.db"):
        put(store, path, b"abc")
    lock = ManifestEntry(b"d/session.lock", FILE, 3, sha(b"abc"))
    put_manifest(store, Manifest(SESSION, 1, (lock,)))
    assert list(await entries(store)) == [b"", b"d", b"d/x.db"]


async def test_private_files_are_only_readable_by_their_owner(store: FaultyStore) -> None:
    put(store, "vm/token", b"secret")
    found = await entries(store)
    assert found[b"vm/token"].mode == stat.S_IFREG | 0o600
    assert found[b"vm/token"].attributes.mode == FILE


async def test_the_older_layout_says_nothing_about_what_is_not_listed(store: FaultyStore) -> None:
    put(store, "a", b"abc")
    raw = b'{"generation": 4, "paths": ["a", "gone"]}'
    store.put(keys.manifest_key(SESSION), raw, condition=Unconditional(), metadata=ObjectMetadata())
    tree = await load(store)
    assert [entry.path for entry in tree.entries] == [b"", b"a"]
    assert tree.survey.manifest is not None
    assert tree.survey.manifest.generation == 4


async def test_an_object_that_goes_between_the_requests_is_left_out(store: FaultyStore) -> None:
    put(store, "a", b"abc")
    store.plan("head", Interfere(lambda: store.delete("sessions/s/a", condition=Unconditional())))
    assert list(await entries(store)) == [b""]


async def test_a_link_that_changes_between_the_requests_is_left_out(store: FaultyStore) -> None:
    put(store, "l", b"one", mode=LINK)
    store.plan(
        "get", Interfere(lambda: None), Interfere(lambda: put(store, "l", b"two", mode=LINK, write_id="x"))
    )
    assert list(await entries(store)) == [b""]


async def test_a_manifest_that_cannot_be_read_fails_the_session(store: FaultyStore) -> None:
    put(store, "a", b"abc")
    for raw, error in ((b"torn", CorruptDataError), (b'{"format":2}', UnsupportedFormatError)):
        store.put(keys.manifest_key(SESSION), raw, condition=Unconditional(), metadata=ObjectMetadata())
        with pytest.raises(error):
            await reader_of(store).load(SESSION)


async def test_a_store_that_does_not_answer_is_an_error_and_no_empty_session(store: FaultyStore) -> None:
    put(store, "a", b"abc")
    store.plan("list_page", *(FailBefore(UnavailableError("away")) for _ in range(5)))
    with pytest.raises(UnavailableError):
        await reader_of(store).load(SESSION)
    store.plan("head", *(FailBefore(UnavailableError("away")) for _ in range(5)))
    with pytest.raises(UnavailableError):
        await reader_of(store).load(SESSION)


async def test_a_path_below_something_that_became_a_file_is_reported(store: FaultyStore) -> None:
    token = put(store, "x", b"a file now")
    put_manifest(store, Manifest(SESSION, 1, (ManifestEntry(b"x/y", FILE, 4, sha(b"kept")),)))
    tree = await load(store)
    assert [entry.path for entry in tree.entries] == [b"", b"x"]
    assert [skipped.reason for skipped in tree.skipped] == ["its directory is a file"]
    assert tree.entries[1].token == token


async def test_a_group_of_directories_or_of_differing_files_is_no_group(store: FaultyStore) -> None:
    directory = stat.S_IFDIR | 0o755
    tokens = {
        name: str(put(store, name, body))
        for name, body in (("", b""), ("d/", b""), ("d/e/", b""), ("one", b"abc"), ("two", b"xyz"))
    }
    named = (
        ManifestEntry(b"d", directory, token=tokens["d/"], link_group=1),
        ManifestEntry(b"d/e", directory, token=tokens["d/e/"], link_group=1),
        ManifestEntry(b"one", FILE, 3, sha(b"abc"), tokens["one"], link_group=2),
        ManifestEntry(b"two", FILE, 3, sha(b"xyz"), tokens["two"], link_group=2),
    )
    put_manifest(store, Manifest(SESSION, 1, named))
    found = await entries(store)
    assert {path: entry.link_group for path, entry in found.items()} == dict.fromkeys(found, 0)
    assert set(found) == {b"", b"d", b"d/e", b"one", b"two"}
