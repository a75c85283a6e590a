"""What every place of an archive does, as data: ids, sentences and checks.

A factory gives a fresh, empty `Objects`. The last promises run the whole archive on it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from sessionfs.formats.archive.records import BLOCK_BYTES
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidKeyError,
    PreconditionFailedError,
    TooLargeError,
)
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import TrioStore
from sessionfs.sessions.archive.archive import Archive
from sessionfs.sessions.archive.objects import MAX_KEY_BYTES, MAX_OBJECT_BYTES, Objects
from sessionfs.sessions.archive.stored_objects import StoredObjects
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import open_store
from sessionfs.testing.contracts.promise import BrokenPromiseError, Promise, require, require_error

BAD_KEYS = (
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "a/../b",
    "a/./b",
    "a\\b",
    "a\0b",
    "a b",
    "a\n",
    "\u00e4",
    "x" * 256,
    "/".join(["long"] * 250),
)
_RACERS = 6


def objects_of(store: ObjectStore) -> Objects:
    """Give the archive's objects in a store, for factories."""
    clock, settings = SystemClock(), ReplicationSettings(retry_minimum_seconds=0.01)
    return StoredObjects(TrioStore(store, clock, settings), clock, settings)


@asynccontextmanager
async def memory_backend() -> AsyncIterator[Objects]:
    """Give objects in this process's memory."""
    yield objects_of(MemoryStore())


@asynccontextmanager
async def file_backend() -> AsyncIterator[Objects]:
    """Give objects in a directory that is gone afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        store = await trio.to_thread.run_sync(open_store, directory)
        yield objects_of(store)
        store.close()


async def _holds(objects: Objects, key: str, body: bytes | None) -> None:
    try:
        found = await objects.get(key)
    except FileNotFoundError:
        require(body is None, f"{key} is missing")
        return
    require(found == body, f"{key} has {len(found)} other bytes")


async def _missing(objects: Objects) -> None:
    await _holds(objects, "a/missing", None)
    await objects.put("a/missing-not", b"x", immutable=True)
    await _holds(objects, "a/missing", None)


async def _round_trip(objects: Objects) -> None:
    longest = "/".join(["k" * 255] * 3 + ["k" * 200])[:MAX_KEY_BYTES]
    bodies = {
        "empty": b"",
        "one": b"x",
        "binary/x": bytes(range(256)),
        "most": os.urandom(MAX_OBJECT_BYTES),
        "A.b_c-d%25/E": b"y",
        longest: b"z",
    }
    for is_immutable in (True, False):
        for key, body in bodies.items():
            await objects.put(f"{key}{int(is_immutable)}"[-MAX_KEY_BYTES:], body, immutable=is_immutable)
        for key, body in bodies.items():
            await _holds(objects, f"{key}{int(is_immutable)}"[-MAX_KEY_BYTES:], body)


async def _immutable(objects: Objects) -> None:
    await objects.put("k", b"first", immutable=True)
    await objects.put("k", b"first", immutable=True)
    for other in (b"other", b"fi", b"first!", b""):

        async def put(body: bytes = other) -> None:
            await objects.put("k", body, immutable=True)

        await require_error(AlreadyExistsError, put, "to put other bytes as immutable")
        await _holds(objects, "k", b"first")


async def _mutable(objects: Objects) -> None:
    for body in (b"first", b"second", b"second", b""):
        await objects.put("k", body, immutable=False)
        await _holds(objects, "k", body)


async def _immutable_race(objects: Objects) -> None:
    won: list[bytes] = []

    async def put(body: bytes) -> None:
        try:
            await objects.put("raced", body, immutable=True)
        except AlreadyExistsError:
            return
        won.append(body)

    async with trio.open_nursery() as nursery:
        for number in range(_RACERS):
            nursery.start_soon(put, b"%d" % number)
    require(len(won) == 1, f"{len(won)} of {_RACERS} racers put other bytes under one immutable key")
    await _holds(objects, "raced", won[0])


async def _swap(objects: Objects) -> None:
    await require_error(
        PreconditionFailedError, lambda: objects.swap("p", b"2", old=b"1"), "to swap a missing object"
    )
    await _holds(objects, "p", None)
    await objects.swap("p", b"1", old=None)
    await objects.swap("p", b"1", old=None)
    await require_error(
        PreconditionFailedError, lambda: objects.swap("p", b"2", old=None), "to swap one that is there"
    )
    await _holds(objects, "p", b"1")
    await objects.swap("p", b"2", old=b"1")
    await require_error(
        PreconditionFailedError, lambda: objects.swap("p", b"3", old=b"1"), "to swap what was swapped"
    )
    await _holds(objects, "p", b"2")


async def _swap_race(objects: Objects) -> None:
    won: list[bytes] = []
    old: bytes | None = None
    for turn in range(2):

        async def swap(body: bytes, held: bytes | None = old) -> None:
            try:
                await objects.swap("p", body, old=held)
            except PreconditionFailedError:
                return
            won.append(body)

        async with trio.open_nursery() as nursery:
            for number in range(_RACERS):
                nursery.start_soon(swap, b"%d-%d" % (turn, number))
        require(len(won) == turn + 1, f"{len(won) - turn} of {_RACERS} racers swapped one object")
        old = won[-1]
        await _holds(objects, "p", old)


async def _too_large(objects: Objects) -> None:
    body = bytes(MAX_OBJECT_BYTES + 1)
    await objects.put("k", b"x", immutable=False)
    for is_immutable in (True, False):

        async def put(is_immutable: bool = is_immutable) -> None:
            await objects.put("k", body, immutable=is_immutable)

        await require_error(TooLargeError, put, "to put more than 2 MiB")
    await require_error(
        TooLargeError, lambda: objects.swap("k", body, old=b"x"), "to swap in more than 2 MiB"
    )
    await _holds(objects, "k", b"x")


async def _bad_keys(objects: Objects) -> None:
    for key in BAD_KEYS:

        async def put(key: str = key) -> None:
            await objects.put(key, b"x", immutable=True)

        async def get(key: str = key) -> None:
            await objects.get(key)

        async def swap(key: str = key) -> None:
            await objects.swap(key, b"x", old=None)

        for request in (put, get, swap):
            await require_error(InvalidKeyError, request, f"a request for {key[:20]!r}")


async def _cancelled(objects: Objects) -> None:
    body = os.urandom(BLOCK_BYTES)
    with trio.CancelScope() as scope:
        scope.cancel()
        await objects.put("k", body, immutable=True)
    try:
        found = await objects.get("k")
    except FileNotFoundError:
        found = body
    require(found == body, "a cancelled put left other bytes")
    await objects.put("k", body, immutable=True)
    await _holds(objects, "k", body)


async def _checkpoints(objects: Objects) -> None:
    with tempfile.TemporaryDirectory() as directory:
        source, state = os.path.join(directory, "source"), os.path.join(directory, "state")
        os.mkdir(source)
        archive = Archive(objects, SystemClock(), state_directory=state)
        content, ids = b"", []
        for grown in (os.urandom(3), os.urandom(2 * BLOCK_BYTES - 3), os.urandom(BLOCK_BYTES + 1)):
            content += grown
            await trio.to_thread.run_sync(_write, os.path.join(source, "log"), content)
            ids.append((await archive.publish("s", source)).id)
        lengths = (3, 2 * BLOCK_BYTES, len(content))
        # Another host: it remembers nothing.
        other = Archive(objects, SystemClock())
        for checkpoint, length in (*zip(ids, lengths, strict=True), ("", len(content))):
            target = os.path.join(directory, f"restored{checkpoint}")
            await other.restore("s", target, checkpoint=checkpoint)
            found = await trio.to_thread.run_sync(_read, os.path.join(target, "log"))
            require(found == content[:length], f"checkpoint {checkpoint!r} is not as it was")


async def _two_publishers(objects: Objects) -> None:
    with tempfile.TemporaryDirectory() as directory:
        published: dict[str, bytes] = {}

        async def publish(name: str) -> None:
            source, body = os.path.join(directory, name), name.encode()
            await trio.to_thread.run_sync(os.mkdir, source)
            await trio.to_thread.run_sync(_write, os.path.join(source, "log"), body)
            try:
                published[(await Archive(objects, SystemClock()).publish("s", source)).id] = body
            except ConflictError:
                return

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(publish, f"p{number}")
        archive, target = Archive(objects, SystemClock()), os.path.join(directory, "restored")
        newest = await archive.restore("s", target)
        if newest.id not in published:
            raise BrokenPromiseError("the newest checkpoint is of a publisher that lost")
        found = await trio.to_thread.run_sync(_read, os.path.join(target, "log"))
        require(found == published[newest.id], "the newest checkpoint has another publisher's bytes")
        require(newest.number == len(published), "a checkpoint was published, and then lost from the chain")


def _write(path: str, body: bytes) -> None:
    with open(path, "wb") as file:
        file.write(body)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


PROMISES: tuple[Promise[Objects], ...] = (
    Promise("missing", "a missing object is FileNotFoundError", _missing),
    Promise("round-trip", "what was put is what is got, from 0 bytes to 2 MiB", _round_trip),
    Promise("immutable", "an immutable object is never changed, and the same again is success", _immutable),
    Promise("mutable", "any other object is replaced whole", _mutable),
    Promise("immutable-race", "of several that put one immutable key exactly one wins", _immutable_race),
    Promise("swap", "a swap changes exactly what its caller read", _swap),
    Promise("swap-race", "of several that swap one object exactly one wins", _swap_race),
    Promise("too-large", "more than 2 MiB is refused, and nothing is changed", _too_large),
    Promise("bad-keys", "a key that breaks the rules is refused by every request", _bad_keys),
    Promise("cancelled-put", "a cancelled put leaves all of the bytes or none", _cancelled),
    Promise("checkpoints", "every checkpoint of a growing file is restored byte for byte", _checkpoints),
    Promise("two-publishers", "of publishers at once none loses what another published", _two_publishers),
)
"""All promises of an archive's place."""
