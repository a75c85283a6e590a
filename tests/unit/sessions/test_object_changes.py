"""Changes under conditions: late attempts, writers in between, and what a failure leaves open."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from sessionfs.formats import object_metadata
from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    ConflictError,
    OutcomeUnknownError,
    OwnershipLostError,
    PreconditionFailedError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import session_id
from sessionfs.model.settings import ReplicationSettings
from sessionfs.sessions.object_place import open_object_place
from sessionfs.stores import local_objects
from sessionfs.stores.base import ObjectMetadata, ObjectStat, ObjectStore, Token, Unconditional
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, Interfere, LostResponse
from tests.unit.replication.uploads.tree_world import until

from .test_object_files import appending, body_of, commit

SESSION = session_id("s")
QUICK = ReplicationSettings(retry_minimum_seconds=0, retry_maximum_seconds=0)


class LateStore(FaultyStore):
    """The first put of a key gets no answer, and arrives when it is told to."""

    def __init__(self, key: str) -> None:
        super().__init__(MemoryStore())
        self._key = key
        self.late: list[Callable[[], Token]] = []
        self._is_over = False

    def put(self, key: str, body: bytes, **named: object) -> Token:
        if key == self._key and not self._is_over:
            self._is_over = True
            self.late.append(lambda: self.inner.put(key, body, **named))  # type: ignore[arg-type]
            raise OutcomeUnknownError("no answer")
        return super().put(key, body, **named)  # type: ignore[arg-type]


def put_by_hand(store: ObjectStore, key: str, body: bytes) -> None:
    store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())


async def test_a_late_attempt_replaces_nothing_that_was_written_since() -> None:
    store = LateStore("sessions/s/f")
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("f", b"first")
        await files.write("f", b"second")
        with pytest.raises(PreconditionFailedError):
            store.late[0]()
        assert await files.read("f") == b"second"


async def test_a_file_that_is_made_by_a_late_attempt_of_the_same_call_is_no_others() -> None:
    store = LateStore("sessions/s/f")
    async with open_object_place(store, SystemClock()) as place:
        put = store.put

        def arrive(key: str, body: bytes, **named: object) -> Token:
            if store.late:
                store.late.pop()()
            return put(key, body, **named)

        store.put = arrive  # type: ignore[method-assign]
        await place.files(SESSION).write("f", b"new", is_new=True)
        assert await place.files(SESSION).read("f") == b"new"


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_rename_takes_along_what_is_appended_meanwhile(kind: str, tmp_path: Path) -> None:
    inner = MemoryStore() if kind == "memory" else LocalDirectoryStore(str(tmp_path))
    store = FaultyStore(inner)
    async with (
        open_object_place(store, SystemClock()) as place,
        open_object_place(inner, SystemClock()) as other,
    ):
        files, theirs = place.files(SESSION), other.files(SESSION)
        await files.append("a", b"one\n")

        def append() -> None:
            trio.from_thread.run(theirs.append, "a", b"two\n")

        store.plan("delete", Interfere(append))
        await files.rename("a", "b")
        store.assert_all_used()
        assert await theirs.read("b") == b"one\ntwo\n"
        assert [one.path for one in await theirs.list()] == ["b"]


async def test_an_append_keeps_who_may_read_a_file() -> None:
    store = appending("put")
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("secret", b"one\n", is_private=True)
        await files.append("secret", b"two\n")
    found = store.inner.head("sessions/s/secret")
    assert found.metadata is not None
    shown = object_metadata.decode_attributes(found.metadata.user, modified_ns=0, is_directory=False)
    assert shown.mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["append", "make"])
async def test_a_failure_after_an_attempt_that_may_arrive_is_an_unknown_outcome(how: str) -> None:
    store = LateStore("sessions/s/log")
    async with open_object_place(store, SystemClock(), QUICK) as place:
        files = place.files(SESSION)
        await files.write("other", b"")
        head, looks = store.head, []

        def cut(key: str) -> ObjectStat:
            """One look settles the lost answer; then the line is cut."""
            if key == "sessions/s/log" and store.late:
                looks.append(key)
                if len(looks) > 1:
                    raise UnavailableError("away")
            return head(key)

        store.head = cut  # type: ignore[method-assign]
        if how == "make":
            # The second attempt is not even sent.
            store.plan("put", FailBefore(UnavailableError("away")))
        call = files.append("log", b"x\n") if how == "append" else files.write("log", b"x\n", is_new=True)
        with pytest.raises(OutcomeUnknownError, match="may have been done"):
            await call


async def test_a_commit_made_right_before_a_write_keeps_what_it_names() -> None:
    store = MemoryStore()
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("a", b"named")
        bodies = commit(store, "a")
        await files.write("a", b"new")
    for sha256, body in bodies.items():
        assert body_of(store, keys.content_key(SESSION, sha256)) == body


async def test_a_write_over_what_was_seen_is_refused_when_it_is_another() -> None:
    store = MemoryStore()
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        seen = await files.write("a", b"one")
        seen = await files.write("a", b"two", base=seen)
        put_by_hand(store, "sessions/s/a", b"of another tool")
        with pytest.raises(PreconditionFailedError):
            await files.write("a", b"three", base=seen)
        assert await files.read("a") == b"of another tool"


async def test_a_write_over_what_another_tool_put_meanwhile_is_done_all_the_same() -> None:
    store = MemoryStore()
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        await files.write("a", b"one")
        put_by_hand(store, "sessions/s/a", b"of another tool")
        await files.write("a", b"two")
        assert await files.read("a") == b"two"


@pytest.mark.parametrize("name", ["a\\b", "c:temp", "x" * 200 + "/" + "y" * 200, "no path//at all"])
async def test_a_session_is_removed_whatever_a_mount_or_a_tool_made_in_it(name: str, tmp_path: Path) -> None:
    store = LocalDirectoryStore(str(tmp_path)) if "//" not in name else None
    memory = MemoryStore()
    key = keys.live_key(SESSION, os.fsencode(name), is_directory=False) or ""
    if store is None:
        key = "sessions/s/%zz"
    put_by_hand(store or memory, key, b"x")
    async with open_object_place(store or memory, SystemClock()) as place:
        await place.files(SESSION).sync()
        await place.remove_session(SESSION)
        assert await place.list_sessions() == []


async def test_a_marker_whose_delete_got_no_answer_is_deleted() -> None:
    store = FaultyStore(MemoryStore())
    async with open_object_place(store, SystemClock()) as place:
        await place.files(SESSION).write("f", b"x")
        store.plan("delete", LostResponse(), FailBefore(OutcomeUnknownError("never sent")))
        await place.remove_session(SESSION)
        store.assert_all_used()
        assert await place.list_sessions() == []


# --- who may write


async def test_a_release_that_failed_is_done_by_the_next() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    async with (
        open_object_place(store, SystemClock()) as place,
        open_object_place(memory, SystemClock()) as other,
    ):
        await place.claim(SESSION)
        store.plan("put", FailBefore(UnavailableError("busy")))
        with pytest.raises(UnavailableError):
            await place.release(SESSION)
        await place.release(SESSION)
        await other.claim(SESSION)


async def test_a_claim_that_is_cancelled_leaves_nothing_claimed() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory)
    async with (
        open_object_place(store, SystemClock()) as place,
        open_object_place(memory, SystemClock()) as other,
    ):
        scope = trio.CancelScope()
        store.plan("put", Interfere(lambda: trio.from_thread.run_sync(scope.cancel)))
        with scope:
            await place.claim(SESSION)
        assert scope.cancelled_caught
        assert not place.owns(SESSION)
        await other.claim(SESSION)


async def test_what_was_released_is_not_written_before_it_is_claimed_again() -> None:
    memory = MemoryStore()
    async with (
        open_object_place(memory, SystemClock()) as place,
        open_object_place(memory, SystemClock()) as other,
    ):
        await place.claim(SESSION)
        await place.release(SESSION)
        await other.claim(SESSION)
        with pytest.raises(OwnershipLostError):
            await place.files(SESSION).write("f", b"of nobody")
        with pytest.raises(SessionAlreadyOwnedError):
            await place.claim(SESSION)
        await other.release(SESSION)
        await place.claim(SESSION)
        await place.files(SESSION).write("f", b"mine")


async def test_a_session_that_was_released_can_be_removed(tmp_path: Path) -> None:
    store = LocalDirectoryStore(str(tmp_path))
    async with (
        open_object_place(store, SystemClock()) as place,
        open_object_place(store, SystemClock()) as other,
    ):
        await place.claim(SESSION)
        await place.files(SESSION).write("f", b"x")
        await place.release(SESSION)
        await other.claim(SESSION)
        with pytest.raises(SessionAlreadyOwnedError):
            await place.remove_session(SESSION)
        await other.release(SESSION)
        await place.remove_session(SESSION)
        assert await place.list_sessions() == []
        await other.claim(SESSION)


async def test_an_append_in_place_asks_for_the_permission_when_its_turn_comes(tmp_path: Path) -> None:
    store = LocalDirectoryStore(str(tmp_path))
    async with open_object_place(store, SystemClock()) as place:
        await place.claim(SESSION)
        files = place.files(SESSION)
        await files.append("log", b"one\n")

        async def append() -> None:
            with pytest.raises(ConflictError):
                await files.append("log", b"of a stale owner\n")

        async with trio.open_nursery() as nursery:
            with store._locked("sessions/s/log"):
                nursery.start_soon(append)
                await until(lambda: trio.to_thread.current_default_thread_limiter().borrowed_tokens > 0)
                place._ownership._ownership.lose(SESSION, holder="other", reason="taken over")
    assert body_of(store, "sessions/s/log") == b"one\n"


# --- appends in place


async def test_what_a_writer_left_that_died_is_not_shown_and_not_built_upon(tmp_path: Path) -> None:
    store = LocalDirectoryStore(str(tmp_path))
    async with open_object_place(store, SystemClock()) as place:
        files = place.files(SESSION)
        await files.append("log", b"whole\n")
        log = tmp_path / "sessions/s/log"
        os.setxattr(log, "user.sessionfs.appending", b"6")
        log.write_bytes(b"whole\ntorn")
        assert await files.read("log") == b"whole\n"
        assert [one.size_bytes for one in await files.list()] == [6]
        assert (await files.stat("log")).size_bytes == 6
        await files.append("log", b"acknowledged\n")
        assert await files.read("log") == b"whole\nacknowledged\n"
        assert "user.sessionfs.appending" not in os.listxattr(log)


async def test_a_reader_never_sees_a_part_of_what_is_being_added(tmp_path: Path) -> None:
    store = LocalDirectoryStore(str(tmp_path))
    line = b"x" * (1 << 20) + b"\n"
    lengths: set[int] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            lengths.add(store.head("sessions/s/log").size_bytes)

    async with open_object_place(store, SystemClock()) as place:
        await place.files(SESSION).append("log", line)
        watcher = threading.Thread(target=watch)
        watcher.start()
        for _ in range(20):
            await place.files(SESSION).append("log", line)
        is_over.set()
        watcher.join()
    assert {length % len(line) for length in lengths} == {0}


def test_a_reader_that_falls_between_two_appends_sees_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)

    def between(file: int | str) -> int | None:
        """The first append ends, and a second begins, after the reader has looked how long the file is."""
        monkeypatch.undo()
        os.write(descriptor, b"o\nthr")
        os.setxattr(path, "user.sessionfs.appending", b"8")
        return local_objects.noted_size(file)

    monkeypatch.setattr(local_objects, "noted_size", between)
    assert local_objects.whole_status(descriptor)[1] == 8
    os.close(descriptor)


async def test_an_append_whose_flush_failed_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_object_place(LocalDirectoryStore(str(tmp_path)), SystemClock()) as place:
        files = place.files(SESSION)
        await files.append("log", b"one\n")

        def fail(_descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", fail)
        with pytest.raises(OutcomeUnknownError):
            await files.append("log", b"two\n", is_synced=True)
        with pytest.raises(OutcomeUnknownError):
            await files.sync("log")


async def test_an_append_that_fails_behind_its_bytes_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_object_place(LocalDirectoryStore(str(tmp_path)), SystemClock()) as place:
        files = place.files(SESSION)
        await files.append("log", b"one\n")

        def fail(_descriptor: int, **_named: object) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "utime", fail)
        with pytest.raises(Exception, match="not permitted"):
            await files.append("log", b"two\n")
        monkeypatch.undo()
        assert await files.read("log") == b"one\n"
