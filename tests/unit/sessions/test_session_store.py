"""The session store itself: checks before backends, what is derived, and patience."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionfs.formats.logs.json_lines import Window
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AccessError,
    InvalidRequestError,
    OutcomeUnknownError,
    SessionFSError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.model.settings import ReplicationSettings
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.store.place_session_store import TRIES, PlaceSessionStore
from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.contracts.session_store_checks.bad_requests import BAD_LINES, BAD_PATHS, BAD_SESSIONS
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, LostResponse, Pass

from .dictionary_store import DictionaryStore

CORE = {
    "read_index",
    "write_index",
    "quarantine_index",
    "list_sessions",
    "remove_session",
    "read_file",
    "write_file",
    "append",
    "list_files",
}
DERIVED = {"read_tail", "read_before", "stat", "write_private", "remove_file", "rename_file"}


class _StoppedError(Exception):
    """The process ended here."""


class _CalmClock(SystemClock):
    """No time passes between tries."""

    def jitter(self) -> float:
        return 0.0


def test_a_backend_gives_nine_operations_and_gets_six() -> None:
    assert {name.removeprefix("_") for name in SessionStore.__abstractmethods__} == CORE
    assert not {f"_{name}" for name in DERIVED} & set(vars(DictionaryStore))


@pytest.mark.parametrize("operation", sorted((CORE | DERIVED | {"replay"}) - {"list_sessions"}))
async def test_a_bad_request_reaches_no_backend(operation: str) -> None:
    store = DictionaryStore()
    more: dict[str, tuple[Any, ...]] = {
        "write_file": (b"x",),
        "write_private": (b"x",),
        "append": ("x",),
        "read_tail": (1,),
        "read_before": (1, 1),
        "rename_file": ("new",),
    }
    bad: list[tuple[Any, ...]] = []
    if operation == "write_index":
        bad = [(None,), ([],), ({"a": {1}},)]
    elif operation in {"list_files", "remove_session"}:
        bad = [(session,) for session in BAD_SESSIONS]
    elif operation not in {"read_index", "quarantine_index"}:
        bad = [(session, "f", *more.get(operation, ())) for session in BAD_SESSIONS]
        bad += [("s", path, *more.get(operation, ())) for path in BAD_PATHS]
    bad += [("s", "f", line) for line in BAD_LINES if operation == "append"]
    bad += [("s", "f", "text") for _ in [0] if operation in {"write_file", "write_private"}]
    for arguments in bad:
        with pytest.raises(InvalidRequestError):
            await getattr(store, operation)(*arguments)
    assert store.calls == []


async def test_a_buffer_that_changes_later_is_copied() -> None:
    store = DictionaryStore()
    buffer = bytearray(b"first")
    given_bytes: Any = buffer
    await store.write_file("s", "f", given_bytes)
    buffer[:] = b"other"
    assert await store.read_file("s", "f") == b"first"


async def test_a_removal_that_stops_anywhere_loses_no_other_file() -> None:
    def prepare(before: Callable[[str], None]) -> DictionaryStore:
        store = DictionaryStore(before)
        store.files = {("s", f"d/{number}"): b"%d" % number for number in range(4)}
        return store

    others = {("s", f"d/{number}"): b"%d" % number for number in (0, 1, 3)}
    stops = 0
    for stop_at in itertools.count(1):
        store = prepare(_stopping_at(stop_at))
        try:
            await store.remove_file("s", "d/2")
        except _StoppedError:
            stops += 1
            assert set(others.values()) <= set(store.files.values()), f"stopped at change {stop_at}"
            await store.remove_file("s", "d/2")
            assert store.files == others
        else:
            assert store.files == others
            break
    # Three copies, the removal, three copies back, the copies' removal.
    assert stops == 8


async def test_what_a_stopped_removal_left_brings_no_old_bytes_back() -> None:
    store = DictionaryStore(_stopping_at(3))
    store.files = {("s", name): b"old" for name in "abcd"}
    with pytest.raises(_StoppedError):
        await store.remove_file("s", "d")
    await store.write_file("s", "a", b"new")
    await store.remove_file("s", "missing")
    assert store.files == {("s", "a"): b"new", ("s", "b"): b"old", ("s", "c"): b"old", ("s", "d"): b"old"}


async def test_a_rename_that_stops_anywhere_leaves_both_or_the_new_one() -> None:
    seen: set[tuple[str, ...]] = set()
    for stop_at in itertools.count(1):
        store = DictionaryStore(_stopping_at(stop_at))
        store.files = {("s", "old"): b"moved", ("s", "new"): b"replaced"}
        try:
            await store.rename_file("s", "old", "new")
        except _StoppedError:
            bodies = list(store.files.values())
            assert b"moved" in bodies
            seen.add(tuple(sorted(path for session, path in store.files if session == "s")))
        else:
            assert store.files == {("s", "new"): b"moved"}
            break
    assert ("new", "old") in seen


@given(
    lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=8),
    torn=st.sampled_from([b"", b"t", b"torn" * 6]),
    offset=st.integers(0, 120),
    budget=st.integers(1, 60),
)
@settings(deadline=None, max_examples=70)
def test_windows_read_in_parts_are_those_of_the_whole_file(
    lines: list[bytes], torn: bytes, offset: int, budget: int
) -> None:
    body = b"".join(line + b"\n" for line in lines) + torn

    async def windows(store: SessionStore) -> tuple[Window, Window]:
        await store.write_file("s", "f", body)
        return await store.read_tail("s", "f", budget), await store.read_before("s", "f", offset, budget)

    async def both() -> None:
        clock = SystemClock()
        async with open_object_place(MemoryStore(), clock) as place:
            assert await windows(PlaceSessionStore(place, clock)) == await windows(DictionaryStore())

    trio.run(both)


async def test_a_tail_reads_no_more_of_a_long_file_than_it_needs() -> None:
    bucket, clock = FaultyStore(MemoryStore()), SystemClock()
    async with open_object_place(bucket, clock) as place:
        store = PlaceSessionStore(place, clock)
        await store.write_file("s", "f", b"0123456\n" * 100_000)
        before = place.store.downloaded_bytes
        sent = len(bucket.calls)
        assert (await store.read_tail("s", "f", 24)).lines == (b"0123456",) * 3
        assert (await store.read_before("s", "f", 400_003, 16)).end == 400_000
    assert place.store.downloaded_bytes == before
    # A look and one part; and in the middle of a line one part more.
    assert [method for method, _ in bucket.calls[sent:]] == ["head", "get", "head", "get", "get"]


CHANGES: dict[str, tuple[str, Callable[[SessionStore], Any]]] = {
    "write_file": ("put", lambda store: store.write_file("s", "f", b"new")),
    "write_private": ("put", lambda store: store.write_private("s", "f", b"new")),
    "append": ("append", lambda store: store.append("s", "f", "line")),
    "remove_file": ("delete", lambda store: store.remove_file("s", "f")),
    "rename_file": ("copy", lambda store: store.rename_file("s", "f", "g")),
    "remove_session": ("delete", lambda store: store.remove_session("s")),
    "write_index": ("put", lambda store: store.write_index({"a": 1})),
    "quarantine_index": ("copy", lambda store: store.quarantine_index()),
}


@pytest.mark.parametrize("operation", CHANGES)
async def test_a_change_that_the_store_did_not_take_is_tried_five_times(operation: str) -> None:
    method, change = CHANGES[operation]
    bucket, clock = FaultyStore(MemoryStore()), _CalmClock()
    async with open_object_place(bucket, clock) as place:
        store = PlaceSessionStore(place, clock, backing_off=ReplicationSettings())
        await store.write_file("s", "f", b"x")
        await store.write_index({"old": 1})
        passing: list[SessionFSError] = [UnavailableError("down"), ThrottledError("slow down")]
        bucket.plan(method, *(FailBefore(error) for error in passing * 2))
        await change(store)
        bucket.assert_all_used()
        await store.write_file("s", "f", b"x")
        await store.write_index({"old": 1})
        bucket.plan(method, *(FailBefore(UnavailableError("down")) for _ in range(TRIES)))
        with pytest.raises(UnavailableError, match="down"):
            await change(store)
        bucket.assert_all_used()
        assert await store.read_file("s", "f") == b"x"
        assert await store.read_index() == {"old": 1}


async def test_a_change_whose_outcome_is_not_known_is_not_repeated() -> None:
    bucket, clock = FaultyStore(MemoryStore()), _CalmClock()
    async with open_object_place(bucket, clock) as place:
        store = PlaceSessionStore(place, clock, backing_off=ReplicationSettings())
        await store.append("s", "f", "first")
        bucket.plan("append", LostResponse())
        bucket.plan("head", Pass(), FailBefore(AccessError("refused")))
        with pytest.raises(OutcomeUnknownError):
            await store.append("s", "f", "second")
        bucket.assert_all_used()
        assert await store.read_file("s", "f") == b"first\nsecond\n"


async def test_a_place_that_keeps_what_it_could_not_send_is_asked_once() -> None:
    bucket, clock = FaultyStore(MemoryStore()), _CalmClock()
    async with open_object_place(bucket, clock) as place:
        store = PlaceSessionStore(place, clock)
        await store.write_file("s", "f", b"x")
        bucket.plan("put", FailBefore(UnavailableError("down")))
        with pytest.raises(UnavailableError):
            await store.write_file("s", "f", b"new")


def _stopping_at(number: int) -> Callable[[str], None]:
    """Stop before the given change, counted from 1, and at no later one."""
    counter = itertools.count(1)

    def before(name: str) -> None:
        if next(counter) == number:
            raise _StoppedError(name)

    return before
