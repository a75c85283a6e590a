"""The doors for programs beside what a program would do by hand: an fsync loop, boto3."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from sessionfs.bench.contest import Contest, Count, Round
from sessionfs.model.clock import Clock
from sessionfs.model.names import session_id
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import TrioStore
from sessionfs.sessions.archive.archive import Archive
from sessionfs.sessions.archive.stored_objects import StoredObjects
from sessionfs.sessions.event_log import Event, Header, open_event_log
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.store import open_session_store
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.observed import ObservedStore
from sessionfs.stores.s3.bare import BareObjects

_APPENDS = 300
_TEXT = "x" * 120
_OBJECTS = 200
_BODY = os.urandom(4096)
_AT_ONCE = 16
_LOG_BYTES = 100 << 20
_GROWTH_BYTES = 1 << 10


@asynccontextmanager
async def event_log_appends(directory: str, clock: Clock) -> AsyncIterator[Contest]:
    """Append one event and flush it, on a directory store; bare: write a line and fsync, in the same directory."""
    with tempfile.TemporaryDirectory(prefix=".sessionfs-bench-", dir=directory) as scratch:
        os.mkdir(os.path.join(scratch, "store"))
        store = LocalDirectoryStore(os.path.join(scratch, "store"), clock=clock)
        descriptor = os.open(
            os.path.join(scratch, "bare"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        )
        line = b'{"seq":1,"type":"message.assistant","data":{"text":"%s"}}\n' % _TEXT.encode()
        try:
            async with open_object_place(store, clock) as place, open_event_log(place) as log:
                writer = await log.create(Header(id="bench", created_at=_now_ms(), cwd="/"))

                async def ours() -> None:
                    for _ in range(_APPENDS):
                        event = Event(writer.next_seq, _now_ms(), "message.assistant", data={"text": _TEXT})
                        await writer.append([event])
                        await writer.flush()

                async def bare() -> None:
                    for _ in range(_APPENDS):
                        os.write(descriptor, line)
                        os.fsync(descriptor)

                yield Contest(
                    "event-log",
                    "EventLog append and flush of one event on a directory store; bare: write a line, fsync",
                    _APPENDS, 0.5, ours, bare,
                )  # fmt: skip
                await writer.close()
        finally:
            os.close(descriptor)


@asynccontextmanager
async def session_store_requests(url: str, clock: Clock) -> AsyncIterator[list[Contest]]:
    """Make, rewrite and read files of 4 KiB in a bucket, many at once; bare: boto3 on the same bucket from as many threads."""
    session = session_id(f"bench-{clock.unique_id()[:12]}")
    bare = _BareFiles(BareObjects(url), f"{session}-bare/")
    fresh = itertools.count()
    async with open_session_store(url) as store:

        async def make(_number: int) -> None:
            await store.write_file(session, f"new{next(fresh)}", _BODY)

        async def write(number: int) -> None:
            await store.write_file(session, f"f{number}", _BODY)

        async def read(number: int) -> None:
            await store.read_file(session, f"f{number}")

        # Whoever has claimed a session knows that nobody else commits: a rewrite needs no look at the newest generation.
        await store.place.claim(session)
        what = f"of {_OBJECTS} files of 4 KiB, {_AT_ONCE} at once; bare: boto3 from as many threads"
        try:
            yield [
                Contest(
                    f"session-store-{name}", f"{verb} {what}", _OBJECTS, 0.7, _round(ours), _round(beside)
                )
                for name, verb, ours, beside in (
                    ("make", "making", make, bare.make),
                    ("rewrite", "rewriting, in a claimed session,", write, bare.write),
                    ("read", "reading", read, bare.read),
                )
            ]
        finally:
            with trio.CancelScope(shield=True):
                await store.remove_session(session)
                await store.place.release(session)
                await bare.remove()


class _BareFiles:
    """The same with the SDK alone."""

    def __init__(self, objects: BareObjects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._names: set[str] = set()
        self._fresh = itertools.count()

    async def make(self, _number: int) -> None:
        await self._put(f"new{next(self._fresh)}")

    async def write(self, number: int) -> None:
        await self._put(f"f{number}")

    async def _put(self, name: str) -> None:
        self._names.add(name)
        await trio.to_thread.run_sync(self._objects.put, self._prefix + name, _BODY)

    async def read(self, number: int) -> None:
        await trio.to_thread.run_sync(self._objects.get, f"{self._prefix}f{number}")

    async def remove(self) -> None:
        for name in self._names:
            await trio.to_thread.run_sync(self._objects.delete, self._prefix + name)


def _round(call: Callable[[int], Awaitable[None]]) -> Round:
    """Give a round of many calls, some at once."""

    async def every() -> None:
        limiter = trio.CapacityLimiter(_AT_ONCE)

        async def one(number: int) -> None:
            async with limiter:
                await call(number)

        async with trio.open_nursery() as nursery:
            for number in range(_OBJECTS):
                nursery.start_soon(one, number)

    return every


async def archive_growth(directory: str, clock: Clock) -> Count:
    """Publish a log of 100 MiB, let it grow by 1 KiB, publish again, and count what is sent then."""
    sent: Counter[str] = Counter()

    def note(kind: str, seconds: float, bytes_sent: int, bytes_received: int, error_name: str) -> None:
        del seconds, bytes_received, error_name
        if kind == "put":
            sent["objects"] += 1
            sent["log bytes"] += bytes_sent if bytes_sent == _tail_bytes() else 0

    with tempfile.TemporaryDirectory(prefix=".sessionfs-bench-", dir=directory) as scratch:
        for name in ("store", "logs"):
            os.mkdir(os.path.join(scratch, name))
        store = LocalDirectoryStore(os.path.join(scratch, "store"), clock=clock)
        observed = ObservedStore(store, clock=clock, on_request=note)
        settings = ReplicationSettings()
        archive = Archive(
            StoredObjects(TrioStore(observed, clock, settings), clock, settings), clock,
            state_directory=os.path.join(scratch, "state"),
        )  # fmt: skip
        log = os.path.join(scratch, "logs", "events.jsonl")
        await trio.to_thread.run_sync(_grow, log, _LOG_BYTES)
        await archive.publish("bench", os.path.join(scratch, "logs"))
        sent.clear()
        await trio.to_thread.run_sync(_grow, log, _GROWTH_BYTES)
        await archive.publish("bench", os.path.join(scratch, "logs"))
    return Count(
        "archive-growth",
        "Objects sent by a checkpoint of a 100 MiB log that grew by 1 KiB: a tail, a manifest, the pointer",
        dict(sent),
        {"objects": 3, "log bytes": _tail_bytes()},
    )


def _tail_bytes() -> int:
    return (_LOG_BYTES + _GROWTH_BYTES) % (64 << 10)


def _grow(path: str, size_bytes: int) -> None:
    piece = os.urandom(min(size_bytes, 1 << 20))
    with open(path, "ab") as file:
        file.writelines(piece for _ in range(size_bytes // len(piece)))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
