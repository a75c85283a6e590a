"""Promises about several writers at once."""

from __future__ import annotations

from collections import Counter

import trio

from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.testing.contracts.promise import require

_S = "contract-session"
_LINES_EACH = 50
_LOG = "journal/events.jsonl"


async def _appends(store: SessionStore, second: SessionStore) -> None:
    async def add(writer: SessionStore, name: str) -> None:
        for number in range(_LINES_EACH):
            await writer.append(_S, _LOG, f"{name} {number:03d} {'x' * (number * 13 % 90)}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, store, "first")
        nursery.start_soon(add, second, "second")
    wanted = [
        f"{name} {number:03d} {'x' * (number * 13 % 90)}".encode()
        for name in ("first", "second")
        for number in range(_LINES_EACH)
    ]
    raw = await store.read_file(_S, _LOG)
    found = raw.split(b"\n")[:-1]
    require(raw.endswith(b"\n"), "the last line has no newline")
    lost, more = Counter(wanted) - Counter(found), Counter(found) - Counter(wanted)
    require(not lost, f"{lost.total()} lines are lost, the first is {next(iter(lost), b'')!r}")
    require(not more, f"{more.total()} lines are torn or twice there, the first is {next(iter(more), b'')!r}")
    for name in (b"first", b"second"):
        mine = [line for line in found if line.startswith(name)]
        require(mine == sorted(mine), "one writer's lines are not in its order")


async def _whole_files(store: SessionStore, second: SessionStore) -> None:
    bodies = {letter * 40_000 for letter in (b"a", b"b")}
    await store.write_file(_S, "f", min(bodies))
    done = trio.Event()

    async def write(writer: SessionStore, body: bytes) -> None:
        for _ in range(8):
            await writer.write_file(_S, "f", body)

    async def write_both() -> None:
        async with trio.open_nursery() as writers:
            writers.start_soon(write, store, min(bodies))
            writers.start_soon(write, second, max(bodies))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_both)
        while not done.is_set():
            require(await second.read_file(_S, "f") in bodies, "a reader saw a file that nobody wrote")


async def _separate_files(store: SessionStore, second: SessionStore) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(12):
            writer = store if number % 2 else second
            nursery.start_soon(writer.write_file, _S, f"d/{number:02d}", b"%d" % number)
    require(
        await store.list_files(_S) == [f"d/{number:02d}" for number in range(12)],
        "files written at once are lost",
    )


async def _cancelled(store: SessionStore, second: SessionStore) -> None:
    await store.write_file(_S, "f", b"before")
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.write_file(_S, "f", b"after")
    require(await second.read_file(_S, "f") in {b"before", b"after"}, "a cancelled write left half a file")
    await store.write_file(_S, "f", b"later")
    require(await second.read_file(_S, "f") == b"later", "a cancelled write stands in the way of the next")


PROMISES = (
    (
        "appends-at-once",
        "Two writers append 50 lines each at once: all 100 are there, whole, each once, each writer's in order.",
        _appends,
    ),
    ("writes-at-once", "While two write a file, a reader sees one of the two, whole.", _whole_files),
    ("files-at-once", "Files that are written at once are all there.", _separate_files),
    ("cancelled", "A cancelled write leaves the file as it was or as it was to be.", _cancelled),
)
