"""Bytes coming back: whole and verified, or not at all."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from sessionfs.formats import manifest as manifests
from sessionfs.formats.link_messages import (
    Fetched,
)
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys
from sessionfs.model.errors import (
    CorruptDataError,
    InternalError,
    LocalDiskError,
    ObjectNotFoundError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.fetches import fetching
from sessionfs.stores.base import ByteRange, ObjectBody, ObjectMetadata, Token, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore, Truncate

from .hosts import PREFIX, SESSION, Host, StepClock, away, body_of, drop, put, put_plain, put_session


async def test_a_file_comes_whole_verified_and_with_its_attributes(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    fetched = await host.hydrator.fetch(host.number(b"d/f"))
    assert body_of(host, fetched) == b"abc"
    assert (fetched.entry.name, fetched.entry.size_bytes) == (b"f", 3)
    assert fetched.entry.mtime_ns == 1_600_000_000_123_456_789


async def test_an_empty_file_comes_too(host: Host, store: FaultyStore) -> None:
    put(store, "empty", b"")
    await host.hydrator.open_session(SESSION)
    assert body_of(host, await host.hydrator.fetch(host.number(b"empty"))) == b""


async def test_a_large_file_comes_in_ranges(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "RANGE_BYTES", 1000)
    body = os.urandom(10_500)
    put(store, "big", body)
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    assert body_of(host, await host.hydrator.fetch(host.number(b"big"))) == body
    assert [method for method, _ in store.calls].count("get") == 11


async def test_requests_for_one_file_at_once_share_a_download(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    results: list[Fetched] = []

    async def ask() -> None:
        results.append(await host.hydrator.fetch(host.number(b"d/f")))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert [method for method, _ in store.calls].count("get") == 1
    assert len({result.staged for result in results}) == 1


async def test_requests_at_once_share_an_error(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    away(store, "get")
    errors: list[SessionFSError] = []

    async def ask() -> None:
        try:
            await host.hydrator.fetch(host.number(b"d/f"))
        except UnavailableError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert len(errors) == 3


async def test_a_connection_that_ends_early_is_tried_again_and_never_short(
    host: Host, store: FaultyStore
) -> None:
    put(store, "f", b"x" * 5000)
    await host.hydrator.open_session(SESSION)
    store.plan("get", Truncate(100), Truncate(4999))
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"x" * 5000


async def test_bytes_that_do_not_verify_are_refused_and_announced_once(
    host: Host, store: FaultyStore
) -> None:
    put(store, "f", b"bad", sha256="1" * 64)
    await host.hydrator.open_session(SESSION)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="sessions/s/f"):
            await host.hydrator.fetch(host.number(b"f"))
    assert [name for name, _ in host.events] == ["session.file.corrupt"]
    assert host.staged() == []
    assert store.head(PREFIX + "f").size_bytes == 3


async def test_another_tools_file_is_hashed_and_remembered(host: Host, store: FaultyStore) -> None:
    put_plain(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    await host.hydrator.fetch(host.number(b"f"))
    known, node = host.journal.object(PREFIX + "f"), host.journal.node(host.number(b"f"))
    assert known is not None
    assert node is not None
    assert known.sha256 == node.sha256 != ""


async def test_a_fetch_follows_an_object_that_another_host_replaced(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"old")
    await host.hydrator.open_session(SESSION)
    put(store, "f", b"newer", write_id="w2", mode=stat.S_IFREG | 0o600)
    fetched = await host.hydrator.fetch(host.number(b"f"))
    assert body_of(host, fetched) == b"newer"
    assert (fetched.entry.size_bytes, stat.S_IMODE(fetched.entry.mode)) == (5, 0o600)


class RestlessStore(MemoryStore):
    """Another host changes an object before every read of it."""

    change: Callable[[], object] = staticmethod(lambda: None)

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        self.change()
        return super().get(key, byte_range=byte_range, expected=expected)


async def test_a_log_that_grows_faster_than_it_is_read_gives_a_whole_prefix(tmp_path: Path) -> None:
    restless = RestlessStore(StepClock())
    host = Host(tmp_path, restless)
    put(restless, "log", b"1\n")
    await host.hydrator.open_session(SESSION)
    log = [b"1\n"]

    def grow() -> None:
        log.append(b"%d\n" % (len(log) + 1))
        put(restless, "log", b"".join(log))

    restless.change = grow
    fetched = await host.hydrator.fetch(host.number(b"log"))
    body = body_of(host, fetched)
    assert body == b"".join(log)[: len(body)]
    assert body.endswith(b"\n")
    assert fetched.entry.size_bytes == len(body)
    host.journal.close()


async def test_a_file_that_is_rewritten_faster_than_it_is_read_is_an_error(tmp_path: Path) -> None:
    restless = RestlessStore(StepClock())
    host = Host(tmp_path, restless)
    for path, body in (("f", b"0"), ("unhashed", b"0")):
        put(restless, path, body, sha256=None if path == "f" else "")
    await host.hydrator.open_session(SESSION)
    numbers = itertools.count(1)

    def rewrite() -> None:
        body = b"%d" % next(numbers)
        put(restless, "f", body)
        put(restless, "unhashed", body, sha256="")

    restless.change = rewrite
    for name in (b"f", b"unhashed"):
        with pytest.raises(UnavailableError, match="faster"):
            await host.hydrator.fetch(host.number(name))
    assert host.staged() == []
    assert host.events == []
    host.journal.close()


async def test_a_reader_of_a_file_that_is_rewritten_all_the_time_gets_what_was_kept_of_it(
    tmp_path: Path,
) -> None:
    restless = RestlessStore(StepClock())
    host = Host(tmp_path, restless)
    put(restless, "f", b"0")
    await host.hydrator.open_session(SESSION)
    digest = hashlib.sha256(b"0").hexdigest()
    key = keys.content_key(SESSION, digest)
    restless.put(key, b"0", condition=Unconditional(), metadata=ObjectMetadata())
    numbers = itertools.count(1)
    known = host.journal.object(PREFIX + "f")
    assert known is not None

    def rewrite() -> None:
        put(restless, "f", b"%d" % next(numbers))
        # The uploader, say, follows it too, so that the fetch never sees the object that it is known to be.
        host.journal.put_object(replace(known, token=f"t{next(numbers)}"))

    restless.change = rewrite
    fetched = await host.hydrator.fetch(host.number(b"f"))
    assert body_of(host, fetched) == b"0"
    host.journal.close()


async def test_a_file_whose_object_is_gone_is_an_error(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    drop(store, "f")
    with pytest.raises(CorruptDataError, match="no object holds the bytes of s/f"):
        await host.hydrator.fetch(host.number(b"f"))


async def test_bytes_are_taken_from_any_object_that_holds_them(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    put(store, "copy", b"abc")
    await host.hydrator.open_session(SESSION)
    drop(store, "f")
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"abc"


async def test_an_object_that_is_owed_here_is_not_followed(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    host.journal.mark(PREFIX + "f", SESSION, 1)
    put(store, "f", b"other")
    with pytest.raises(CorruptDataError):
        await host.hydrator.fetch(host.number(b"f"))


async def test_only_files_that_exist_are_fetched(host: Host, store: FaultyStore) -> None:
    put_session(store)
    await host.hydrator.open_session(SESSION)
    with pytest.raises(ObjectNotFoundError):
        await host.hydrator.fetch(12345)
    with pytest.raises(InternalError):
        await host.hydrator.fetch(host.number(b"d"))


async def test_a_file_removed_while_it_is_fetched_leaves_nothing(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    number, root = host.number(b"f"), host.number(b"")
    real = host.hydrator._fetcher.fetch

    async def fetch_and_lose(known: object, **how: object) -> tuple[str, str]:
        result = await real(known, **how)  # type: ignore[arg-type]
        host.journal.unlink(root, b"f")
        return result

    host.hydrator._fetcher.fetch = fetch_and_lose  # type: ignore[method-assign]
    with pytest.raises(ObjectNotFoundError):
        await host.hydrator.fetch(number)
    assert host.staged() == []


async def test_a_full_disk_is_a_disk_error_and_leaves_nothing(
    host: Host, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "f", b"abc")
    put(store, "g", b"x" * 100)
    await host.hydrator.open_session(SESSION)

    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(fetching, "RANGE_BYTES", 50)
    for path in (b"f", b"g"):
        with pytest.raises(LocalDiskError) as refused:
            await host.hydrator.fetch(host.number(path))
        assert refused.value.errno_number == 28
    monkeypatch.setattr(os, "fdatasync", full)
    monkeypatch.undo()
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(LocalDiskError):
        await host.hydrator.fetch(host.number(b"f"))
    assert host.staged() == []


async def test_a_cancelled_fetch_leaves_nothing_and_fails_the_others(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    number = host.number(b"f")
    with trio.CancelScope() as scope:
        scope.cancel()
        await host.hydrator.fetch(number)
    assert scope.cancelled_caught
    assert host.staged() == []
    assert body_of(host, await host.hydrator.fetch(number)) == b"abc"


async def test_a_fetch_uses_what_the_uploader_learnt_meanwhile(host: Host, store: FaultyStore) -> None:
    put(store, "f", b"abc")
    await host.hydrator.open_session(SESSION)
    number = host.number(b"f")
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    put(store, "f", b"abc", mode=stat.S_IFREG | 0o600)
    real = host.hydrator._reader.head_entry

    async def head_while_uploading(*arguments: object) -> object:
        entry = await real(*arguments)  # type: ignore[arg-type]
        host.journal.put_object(replace(known, token=store.head(PREFIX + "f").token))
        return entry

    host.hydrator._reader.head_entry = head_while_uploading  # type: ignore[method-assign, assignment]
    fetched = await host.hydrator.fetch(number)
    assert body_of(host, fetched) == b"abc"
    assert stat.S_IMODE(fetched.entry.mode) == 0o644


async def test_kept_bytes_that_are_gone_are_an_error(host: Host, store: FaultyStore) -> None:
    digest = hashlib.sha256(b"kept").hexdigest()
    key = keys.content_key(SESSION, digest)
    store.put(key, b"kept", condition=Unconditional(), metadata=ObjectMetadata())
    entry = ManifestEntry(b"f", stat.S_IFREG | 0o644, 4, digest)
    raw, _ = manifests.encode(Manifest(SESSION, 1, (entry,)))
    store.put(keys.manifest_key(SESSION), raw, condition=Unconditional(), metadata=ObjectMetadata())
    await host.hydrator.open_session(SESSION)
    assert body_of(host, await host.hydrator.fetch(host.number(b"f"))) == b"kept"
    store.delete(key, condition=Unconditional())
    with pytest.raises(CorruptDataError, match="no object holds"):
        await host.hydrator.fetch(host.number(b"f"))


async def test_an_error_ends_many_waits_with_one_error() -> None:
    seen: list[int] = []

    async def fail(item: int) -> None:
        seen.append(item)
        await trio.lowlevel.checkpoint()
        raise UnavailableError(f"item {item}")

    with pytest.raises(UnavailableError):
        await for_each(range(100), fail, limit=3)
    assert len(seen) == 3
