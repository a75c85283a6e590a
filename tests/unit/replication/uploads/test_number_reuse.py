"""A number that the disk gives again, files that vanish, and bytes whose last object is about to go."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.formats.intent_records import Operation
from sessionfs.model import keys
from sessionfs.stores.base import Condition, ObjectMetadata, Token
from sessionfs.stores.memory import MemoryStore

from .tree_world import FAST, SESSION, World, until

BIG = b"0123456789" * 500


class Interrupting(MemoryStore):
    """Does something while a put is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.action: Callable[[], None] = lambda: None

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if key.endswith("/f"):
            action, self.action = self.action, lambda: None
            trio.from_thread.run_sync(action)
        return super().put(key, body, condition=condition, metadata=metadata)


async def test_a_directory_that_gets_the_number_of_a_file_in_flight_stays_a_directory(tmp_path: Path) -> None:
    store = Interrupting()
    world = World(tmp_path, store=store)
    world.write(b"f", b"old")
    number = world.number(b"f")

    def remove_and_make() -> None:
        world.tell(Operation.UNLINK, number=number, parent=world.number(b""), name=b"f")
        os.unlink(world.path(b"f"))
        os.mkdir(world.path(b"d"))
        world.tell(Operation.MKDIR, parent=world.number(b""), name=b"d", mode=0o755, made=number)

    store.action = remove_and_make
    async with world.running():
        await until(lambda: "sessions/s1/f" in world.calls("put"))
        await world.uploader.drain(5.0)
    node = world.journal.node(number)
    assert node is not None
    assert stat.S_ISDIR(node.mode)
    assert set(world.bucket()) == {"sessions/s1/", "sessions/s1/d/"}


@pytest.mark.parametrize("name", [b"f.tmp", b"n" * 255], ids=["excluded", "too-long"])
async def test_a_remote_file_renamed_to_a_name_without_an_object_keeps_its_bytes(
    tmp_path: Path, name: bytes
) -> None:
    settings = msgspec.structs.replace(FAST, exclude_globs=("*.tmp",))
    world = World(tmp_path, settings=settings)
    above = b""
    if not name.endswith(b".tmp"):
        for _depth in range(4):
            above = above + b"/" + b"d" * 250 if above else b"d" * 250
            world.make_directory(above)
    world.write(b"f", BIG)
    await world.settle()
    world.evict(b"f")
    target = above + b"/" + name if above else name
    world.rename(b"f", target)
    await world.settle()
    assert "sessions/s1/f" not in world.bucket()
    world.rename(target, b"g")
    await world.settle()
    assert world.bucket()["sessions/s1/g"] == BIG


async def test_a_file_written_over_a_remote_one_that_moved_to_an_excluded_name_keeps_both(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, settings=msgspec.structs.replace(FAST, exclude_globs=("*.tmp",)))
    world.write(b"f", BIG)
    await world.settle()
    world.evict(b"f")
    world.rename(b"f", b"f.tmp")
    world.write(b"f", b"new")
    await world.settle()
    world.rename(b"f.tmp", b"g")
    await world.settle()
    bucket = world.bucket()
    assert (bucket["sessions/s1/f"], bucket["sessions/s1/g"]) == (b"new", BIG)


async def test_a_file_that_vanished_without_a_record_does_not_hold_the_drain(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write(b"kept", b"in the bucket")
    world.make_directory(b"d")
    world.write(b"d/inside", b"also")
    await world.settle()
    world.write(b"never", b"sent")
    os.unlink(world.path(b"never"))
    os.unlink(world.path(b"kept"))
    shutil.rmtree(world.path(b"d"))
    for path, is_directory in ((b"kept", False), (b"d", True), (b"d/inside", False)):
        world.journal.mark(world.key(path, is_directory=is_directory), SESSION, 1)
    await world.settle()
    bucket = world.bucket()
    assert bucket[world.key(b"kept")] == b"in the bucket"
    assert bucket[world.key(b"d/inside")] == b"also"
    assert world.journal.resolve(SESSION, b"never") is None
    assert [event["path"] for event in world.events("session.file.missing")] == ["never"]
    assert not world.is_here(b"kept")
    assert not world.is_here(b"d/inside")
    assert keys.live_key(SESSION, b"d", is_directory=True) in bucket
