"""Commits: what a manifest names, the order of its writes, and other writers."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.formats import commit_marker
from sessionfs.formats import manifest as manifests
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import (
    AccessError,
    ConcurrentRequestError,
    LocalDiskError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.replication import generation_entries
from sessionfs.stores.base import ObjectMetadata, Token, Unconditional
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, Interfere, LostResponse, Pass
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.layout import ROOT_NUMBER

from .hosts import SESSION, Host

MANIFEST = keys.manifest_key(SESSION)
MARKER = keys.commit_marker_key(SESSION)


@pytest.fixture
def host(tmp_path: Path, store: FaultyStore) -> Iterator[Host]:
    made = Host(tmp_path / "a", store)
    made.make(b"")
    made.make(b"f", b"abc")
    yield made
    made.journal.close()


def read(store: FaultyStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as body:
        return body.read()


def newest(store: FaultyStore) -> Manifest:
    return manifests.decode(read(store, MANIFEST), MANIFEST)


def put_manifest(store: FaultyStore, manifest: Manifest) -> Token:
    raw, _ = manifests.encode(manifest)
    return store.put(MANIFEST, raw, condition=Unconditional(), metadata=ObjectMetadata())


def session_row(host: Host) -> SessionRow:
    row = host.journal.session(SESSION)
    assert row is not None
    return row


def events(host: Host) -> list[str]:
    return [event.name for event in host.journal.events(0, 1000) if not event.name.startswith("session.file")]


async def test_a_commit_writes_the_generation_then_the_manifest_then_the_marker(
    host: Host, store: FaultyStore
) -> None:
    host.upload()
    store.calls.clear()
    assert await host.generations.commit_drained(SESSION, "unmount") == 1
    assert store.calls == [
        ("get", MANIFEST),
        ("put", keys.generation_key(SESSION, 1)),
        ("put", MANIFEST),
        ("put", MARKER),
    ]
    raw = read(store, MANIFEST)
    assert read(store, keys.generation_key(SESSION, 1)) == raw
    marker = commit_marker.decode(read(store, MARKER), MARKER)
    assert marker.manifest_sha256 == hashlib.sha256(raw).hexdigest()
    assert (marker.generation, marker.objects, marker.bytes, marker.objects_uploaded) == (1, 2, 3, 2)
    row = session_row(host)
    assert (row.generation, row.manifest_token, row.changed) == (1, store.head(MANIFEST).token, False)
    assert row.committed_at == newest(store).created_at
    assert events(host) == ["session.snapshot.result"]


async def test_entries_name_content_and_attributes_of_the_objects(host: Host, store: FaultyStore) -> None:
    host.make(b"d", None)
    host.make(b"l", target=b"f")
    host.make(b"d/session.lock", b"excluded")
    os.mkfifo(host.disk(b"pipe"))
    host.journal.put_node(77, mode=stat.S_IFIFO | 0o644, present=True)
    host.journal.link(host.number(b""), b"pipe", 77)
    os.setxattr(host.disk(b"f"), "user.a", b"b")
    os.setxattr(host.disk(b"d"), "user.d", b"")
    host.upload()
    host.make(b"local-only", b"never uploaded")
    for work in host.journal.all_work():
        host.journal.finish_work(work.key, work.version)
    await host.generations.commit_drained(SESSION, "timer")
    named = {entry.path: entry for entry in newest(store).entries}
    assert list(named) == [b"", b"d", b"f", b"l"]
    file = named[b"f"]
    status = os.lstat(host.disk(b"f"))
    assert (file.mode, file.mtime_ns) == (status.st_mode, status.st_mtime_ns)
    assert (file.size_bytes, file.sha256) == (3, hashlib.sha256(b"abc").hexdigest())
    assert file.token == store.head("sessions/s/f").token
    assert file.xattrs == {b"user.a": b"b"}
    assert named[b"d"].xattrs == {b"user.d": b""}
    assert named[b"d"].sha256 == ""
    assert named[b"l"].target == b"f"


async def test_a_session_that_owes_or_has_not_changed_is_not_committed(
    host: Host, store: FaultyStore
) -> None:
    assert await host.generations.commit_drained(SESSION, "timer") is None
    assert await host.generations.commit_removed(SESSION) is None
    host.upload()
    assert await host.generations.commit_drained(SESSION, "timer") == 1
    assert await host.generations.commit_drained(SESSION, "timer") is None
    assert await host.generations.commit_drained("unknown", "timer") is None
    assert await host.generations.commit_removed("unknown") is None


async def test_the_next_commit_counts_what_is_new(host: Host, store: FaultyStore) -> None:
    host.upload()
    await host.generations.commit_drained(SESSION, "timer")
    host.make(b"g", b"12345")
    host.upload()
    assert await host.generations.commit_drained(SESSION, "timer") == 2
    marker = commit_marker.decode(read(store, MARKER), MARKER)
    assert (marker.objects, marker.objects_skipped, marker.bytes_uploaded) == (3, 1, 5)
    assert newest(store).previous == 1


async def test_a_file_that_is_not_here_is_named_from_the_journal(
    host: Host, store: FaultyStore, tmp_path: Path
) -> None:
    os.setxattr(host.disk(b"f"), "user.a", b"b")
    host.upload()
    await host.generations.commit_drained(SESSION, "timer")
    other = Host(tmp_path / "b", store)
    await other.hydrator.open_session(SESSION)
    other.journal.update_session(SESSION, changed=True)
    first = newest(store)
    assert await other.generations.commit_drained(SESSION, "timer") == 2
    assert newest(store).entries == first.entries
    other.journal.close()


async def test_a_taken_number_is_skipped(host: Host, store: FaultyStore) -> None:
    host.upload()
    for number in (1, 2):
        key = keys.generation_key(SESSION, number)
        store.put(key, b"{}", condition=Unconditional(), metadata=ObjectMetadata())
    assert await host.generations.commit_drained(SESSION, "timer") == 3
    assert read(store, keys.generation_key(SESSION, 1)) == b"{}"


async def test_another_writers_commit_is_announced_and_its_number_passed(
    host: Host, store: FaultyStore
) -> None:
    host.upload()
    await host.generations.commit_drained(SESSION, "timer")
    put_manifest(store, Manifest(SESSION, 7, trigger="theirs"))
    host.make(b"g", b"1")
    host.upload()
    assert await host.generations.commit_drained(SESSION, "timer") == 8
    assert newest(store).previous == 7
    assert "session.snapshot.conflict" in events(host)


async def test_a_commit_that_loses_the_race_is_done_again_above_the_winner(
    host: Host, store: FaultyStore
) -> None:
    host.upload()
    store.plan("put", Pass(), Interfere(lambda: put_manifest(store, Manifest(SESSION, 4))))
    assert await host.generations.commit_drained(SESSION, "timer") == 5
    assert newest(store).previous == 4
    assert events(host) == ["session.snapshot.conflict", "session.snapshot.result"]


async def test_a_commit_that_always_loses_fails_and_the_session_stays_changed(
    host: Host, store: FaultyStore
) -> None:
    host.upload()
    real_put, planned = store.inner.put, [4, 14, 24]

    def put_after_another(key: str, body: bytes, **how: object) -> Token:
        if key == MANIFEST and planned:
            raw, _ = manifests.encode(Manifest(SESSION, planned.pop(0)))
            real_put(MANIFEST, raw, condition=Unconditional(), metadata=ObjectMetadata())
        return real_put(key, body, **how)  # type: ignore[arg-type]

    store.inner.put = put_after_another  # type: ignore[method-assign]
    with pytest.raises(PreconditionFailedError):
        await host.generations.commit_drained(SESSION, "timer")
    assert session_row(host).changed
    assert newest(store).generation == 24
    assert events(host)[-1] == "session.snapshot.result"


async def test_a_lost_answer_is_settled_by_looking(host: Host, store: FaultyStore) -> None:
    host.upload()
    store.plan("put", LostResponse(), LostResponse(), LostResponse())
    assert await host.generations.commit_drained(SESSION, "timer") == 1
    assert session_row(host).manifest_token == store.head(MANIFEST).token


async def test_a_busy_store_is_asked_again(host: Host, store: FaultyStore) -> None:
    host.upload()
    busy = FailBefore(ConcurrentRequestError("busy"))
    store.plan("put", busy, Pass(), busy, Pass())
    assert await host.generations.commit_drained(SESSION, "timer") == 1


@pytest.mark.parametrize("step", [0, 1])
async def test_a_commit_that_stops_before_its_point_leaves_the_old_generation(
    host: Host, store: FaultyStore, step: int
) -> None:
    host.upload()
    await host.generations.commit_drained(SESSION, "timer")
    host.make(b"g", b"1")
    host.upload()
    store.plan("put", *([Pass()] * step), FailBefore(AccessError("no")))
    with pytest.raises(AccessError):
        await host.generations.commit_drained(SESSION, "timer")
    assert newest(store).generation == 1
    assert session_row(host).changed
    assert await host.generations.commit_drained(SESSION, "timer") == 2 + step


async def test_a_marker_that_cannot_be_written_lags(host: Host, store: FaultyStore) -> None:
    host.upload()
    store.plan("put", Pass(), Pass(), FailBefore(OutcomeUnknownError("lost")))
    store.plan("head", *(FailBefore(UnavailableError("away")) for _ in range(5)))
    assert await host.generations.commit_drained(SESSION, "timer") == 1
    assert "session.marker.lagging" in events(host)


async def test_a_newer_manifest_is_refused_and_nothing_is_written(host: Host, store: FaultyStore) -> None:
    host.upload()
    store.put(MANIFEST, b'{"format":9}', condition=Unconditional(), metadata=ObjectMetadata())
    store.calls.clear()
    with pytest.raises(UnsupportedFormatError):
        await host.generations.commit_drained(SESSION, "timer")
    assert [method for method, _ in store.calls] == ["get"]
    assert session_row(host).changed


async def test_a_change_during_the_commit_leaves_the_session_changed(host: Host, store: FaultyStore) -> None:
    host.upload()
    real = host.generations._store.put

    async def put_and_change(key: str, body: bytes, **how: object) -> object:
        host.journal.update_session(SESSION, changed=True)
        return await real(key, body, **how)  # type: ignore[arg-type]

    host.generations._store.put = put_and_change  # type: ignore[method-assign, assignment]
    assert await host.generations.commit_drained(SESSION, "timer") == 1
    assert session_row(host).changed


async def test_a_commit_that_died_leaves_the_session_changed(host: Host, store: FaultyStore) -> None:
    host.upload()
    host.journal.update_session(SESSION, changed=False)
    host.journal.set_meta(f"commit_pending:{SESSION}", "1")
    assert await host.new_generations().commit_drained(SESSION, "unmount") == 1


async def test_a_removed_session_is_committed_as_removed(host: Host, store: FaultyStore) -> None:
    host.upload()
    await host.generations.commit_drained(SESSION, "timer")
    assert await host.generations.commit_removed(SESSION) == 2
    assert newest(store).removed
    assert newest(store).entries == ()
    assert await host.generations.commit_removed(SESSION) is None
    host.journal.remove_session(SESSION)
    host.journal.add_session(SESSION, host.number(b""), known=True, written=True)
    assert await host.generations.commit_drained(SESSION, "timer") == 3
    assert "session.snapshot.conflict" not in events(host)


async def test_a_removed_session_that_was_never_committed_needs_no_manifest(
    host: Host, store: FaultyStore
) -> None:
    host.upload()
    assert await host.generations.commit_removed(SESSION) is None


async def test_bytes_without_a_possible_key_go_to_the_objects_and_come_back(
    host: Host, store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = b"\xff" * 250
    host.make(name, None)
    path = name + b"/" + name
    for body, single in ((b"small", 100), (b"large" * 100, 100)):
        monkeypatch.setattr(generation_entries, "_SINGLE_PUT_BYTES", single)
        host.make(path + b"%d" % len(body), body)
    host.upload()
    await host.generations.commit_drained(SESSION, "timer")
    other = Host(tmp_path / "b", store)
    await other.hydrator.open_session(SESSION)
    await other.materialise()
    for body in (b"small", b"large" * 100):
        assert other.read(path + b"%d" % len(body)) == body
    other.journal.update_session(SESSION, changed=True)
    before = newest(store).entries
    for number in other.journal.children(other.number(name)):
        other.evict([number[1]])
    assert await other.generations.commit_drained(SESSION, "timer") == 2
    assert newest(store).entries == before
    other.journal.close()


async def test_bytes_that_the_uploader_keeps_by_content_are_named(host: Host, store: FaultyStore) -> None:
    host.make(b"same", b"abc")
    host.upload()
    digest = hashlib.sha256(b"abc").hexdigest()
    known = host.journal.object("sessions/s/f")
    assert known is not None
    kept = replace(known, key=keys.content_key(SESSION, digest), mode=stat.S_IFREG | 0o600)
    host.journal.put_object(kept)
    for key in ("sessions/s/f", "sessions/s/same"):
        host.journal.drop_object(key)
    os.chmod(host.disk(b"same"), 0o640)
    await host.generations.commit_drained(SESSION, "timer")
    named = {entry.path: entry for entry in newest(store).entries}
    for path, mode in ((b"f", 0o644), (b"same", 0o640)):
        assert (named[path].token, named[path].sha256) == ("", digest)
        assert stat.S_IMODE(named[path].mode) == mode


async def test_bytes_that_cannot_be_stored_fail_the_commit(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = b"\xff" * 250
    host.make(name, None)
    inner = name + b"/" + name
    host.make(inner, b"body")
    host.upload()
    monkeypatch.setattr(generation_entries, "_SINGLE_PUT_BYTES", 1)
    real = generation_entries._measure
    monkeypatch.setattr(generation_entries, "_measure", lambda _path: (4, "1" * 64))
    with pytest.raises(UnavailableError, match="changed while"):
        await host.generations.commit_drained(SESSION, "timer")
    monkeypatch.setattr(generation_entries, "_measure", real)
    os.unlink(host.disk(inner))
    with pytest.raises(LocalDiskError):
        await host.generations.commit_drained(SESSION, "timer")


async def test_what_vanishes_from_the_disk_meanwhile_stays_as_it_was_noted(
    host: Host, store: FaultyStore
) -> None:
    host.upload()
    os.unlink(host.disk(b"f"))
    await host.generations.commit_drained(SESSION, "timer")
    named = {entry.path: entry for entry in newest(store).entries}
    assert named[b"f"].sha256 == hashlib.sha256(b"abc").hexdigest()


async def test_a_directory_without_an_object_is_named_without_a_token(host: Host, store: FaultyStore) -> None:
    host.upload()
    host.journal.drop_object("sessions/s/")
    os.chmod(host.disk(), 0o711)
    await host.generations.commit_drained(SESSION, "timer")
    root = newest(store).entries[0]
    assert (root.path, root.token, stat.S_IMODE(root.mode)) == (b"", "", 0o711)


async def test_bytes_deeper_than_the_longest_path_are_in_the_generation(
    host: Host, store: FaultyStore
) -> None:
    host.upload()
    descriptor = os.open(host.disk(), os.O_RDONLY | os.O_DIRECTORY)
    path, parent = b"", host.journal.child(ROOT_NUMBER, SESSION.encode())
    for _ in range(20):
        name = b"d" * 250
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
        host.note(Operation.MKDIR, os.fstat(below).st_ino, parent=parent or 0, name=name, mode=0o755)
        parent = os.fstat(below).st_ino
        path = path + b"/" + name if path else name
    made = os.open(b"f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=descriptor)
    os.write(made, b"deep")
    os.setxattr(made, "user.a", b"b")
    host.note(Operation.CREATE, os.fstat(made).st_ino, parent=parent or 0, name=b"f", mode=0o644)
    os.close(made)
    os.close(descriptor)
    host.upload()
    await host.generations.commit_drained(SESSION, "unmount")
    entry = next(entry for entry in newest(store).entries if entry.path == path + b"/f")
    assert entry.sha256 == hashlib.sha256(b"deep").hexdigest()
    assert entry.xattrs == {b"user.a": b"b"}
    assert read(store, keys.content_key(SESSION, entry.sha256)) == b"deep"


async def test_bytes_that_change_while_they_are_stored_are_not_stored_under_another_hash(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = b"/".join([b"n" * 250] * 5)
    for depth in range(1, 5):
        host.make(b"/".join(long.split(b"/")[:depth]))
    host.make(long, b"before")
    host.upload()
    monkeypatch.setattr(generation_entries, "_read_whole", lambda _place: b"after!")
    with pytest.raises(UnavailableError):
        await host.generations.commit_drained(SESSION, "unmount")
    monkeypatch.undo()
    await host.generations.commit_drained(SESSION, "unmount")
    entry = next(entry for entry in newest(store).entries if entry.path == long)
    assert read(store, keys.content_key(SESSION, entry.sha256)) == b"before"


async def test_names_whose_objects_differ_are_no_link_group(host: Host, store: FaultyStore) -> None:
    host.upload()
    number = host.journal.resolve(SESSION, b"f")
    root = host.journal.child(ROOT_NUMBER, SESSION.encode())
    assert number is not None
    assert root is not None
    host.journal.link(root, b"g", number)
    known = host.journal.object("sessions/s/f") or host.journal.objects_of(number)[0]
    other = known.key.removesuffix("f") + "g"
    host.journal.put_object(replace(known, key=other, sha256="b" * 64))
    await host.generations.commit_drained(SESSION, "unmount")
    groups = {entry.path: entry.link_group for entry in newest(store).entries}
    assert groups[b"f"] != groups[b"g"]
