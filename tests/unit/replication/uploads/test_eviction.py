"""Clean files leave a full disk, least recently used first; what is not certainly in the bucket never does."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.formats import extended_attributes
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import (
    Evict,
)
from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.model.errors import UnavailableError
from sessionfs.replication.eviction import Evictor
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.testing.faulty_store import FailBefore
from sessionfs.working_copy.exclusions import Exclusions

from .tree_world import FAST, SESSION, World, until

KIB = 1 << 10
FILE_BYTES = 64 * KIB
LIMIT_BYTES = 5 * FILE_BYTES
NAMES = [b"%d" % number for number in range(10)]


class Daemon:
    """Does what it is asked, unless a file is open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.open_paths: set[bytes] = set()
        self.asked: list[bytes] = []
        self.by_blocks: dict[bytes, str] = {}

    async def evict(self, request: Evict) -> bool:
        path = request.path.removeprefix(SESSION.encode() + b"/")
        self.asked.append(path)
        self.by_blocks[path] = request.blocks_of
        key = self.world.key(path)
        assert key in self.world.uploader.in_flight
        status = self.world.status(path)
        assert (status.st_size, status.st_mtime_ns, status.st_ctime_ns) == (
            request.size_bytes, request.mtime_ns, request.ctime_ns,
        )  # fmt: skip
        if path in self.open_paths:
            return False
        self.world.evict(path)
        return True


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A host with ten files, read one second after the other."""
    made = World(tmp_path)
    for name in NAMES:
        made.write(name, os.urandom(FILE_BYTES))
    return made


def used(world: World, name: bytes, second: int) -> None:
    """Let a file have been read at a time; a reader changes no other time that counts."""
    status = world.status(name)
    os.utime(world.path(name), ns=(second * 10**9, status.st_mtime_ns))
    found = world.status(name)
    world.journal.update_node(world.number(name), clean_ctime_ns=found.st_ctime_ns)


def change_without_a_record(world: World, name: bytes) -> None:
    Path(os.fsdecode(world.path(name))).write_bytes(b"no record tells of this")


async def clean(world: World) -> None:
    await world.settle()
    for index, name in enumerate(NAMES):
        used(world, name, 1_000_000_000 + index)


def evictor(
    world: World, daemon: Daemon, *, free_percent: int = 50, limit_bytes: int = LIMIT_BYTES
) -> Evictor:
    settings = msgspec.structs.replace(FAST, cache_limit_bytes=limit_bytes, sweep_interval_seconds=0.01)
    return Evictor(
        world.journal,
        world.trio_store,
        world.layout,
        settings,
        Exclusions(("5",)),
        daemon=daemon,
        uploader=world.uploader,
        space=lambda _path: (free_percent * LIMIT_BYTES, 100 * LIMIT_BYTES),
    )


def here(world: World) -> list[bytes]:
    return sorted(name for name in NAMES if os.path.exists(world.path(name)))


async def test_the_least_recently_used_leave_until_nine_tenths_of_the_limit(world: World) -> None:
    await clean(world)
    used(world, b"0", 2_000_000_000)
    daemon = Daemon(world)
    assert await evictor(world, daemon).relieve() == 6 * FILE_BYTES
    assert here(world) == [b"0", b"5", b"8", b"9"]
    assert world.uploader.in_flight == set()
    assert await evictor(world, daemon).relieve() == 0
    node = world.journal.node(world.number(b"1"))
    assert node is not None
    assert (node.present, node.reserved, node.size_bytes) == (False, True, FILE_BYTES)


async def test_what_is_owed_open_written_linked_or_changed_stays(world: World) -> None:
    await clean(world)
    daemon = Daemon(world)
    daemon.open_paths.add(b"0")
    world.write(b"1", os.urandom(FILE_BYTES))
    world.tell(Operation.OPEN_WRITE, number=world.number(b"2"))
    world.link(b"3", b"linked")
    change_without_a_record(world, b"4")
    world.uploader.in_flight.add(world.key(b"6"))
    await evictor(world, daemon, limit_bytes=1).relieve()
    assert here(world) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]
    assert set(daemon.asked) == {b"0", b"7", b"8", b"9"}


async def test_the_daemon_is_told_which_files_may_come_back_block_by_block(world: World) -> None:
    world.write(b"large", os.urandom(BLOCK_BYTES + 1))
    await clean(world)
    daemon = Daemon(world)
    await evictor(world, daemon, limit_bytes=1).relieve()
    node = world.journal.node(world.number(b"large"))
    assert node is not None
    assert daemon.by_blocks[b"large"] == node.sha256 != ""
    assert daemon.by_blocks[b"0"] == ""


async def test_what_the_bucket_does_not_confirm_stays(world: World) -> None:
    await clean(world)
    daemon = Daemon(world)
    world.memory.delete(world.key(b"0"), condition=Unconditional())
    world.memory.put(world.key(b"1"), b"theirs", condition=Unconditional(), metadata=ObjectMetadata())
    await evictor(world, daemon, limit_bytes=1).relieve()
    assert here(world) == [b"0", b"1", b"5"]
    assert {b"0", b"1"} & set(daemon.asked) == set()


async def test_nothing_leaves_while_the_store_is_away(world: World) -> None:
    await clean(world)
    daemon = Daemon(world)
    world.store.plan("head", *(FailBefore(UnavailableError("away")) for _ in range(100)))
    with pytest.raises(UnavailableError):
        await evictor(world, daemon).relieve()
    assert here(world) == sorted(NAMES)
    assert world.uploader.in_flight == set()


async def test_a_nearly_full_disk_lets_clean_files_leave(world: World) -> None:
    await clean(world)
    daemon = Daemon(world)
    large = 100 * FILE_BYTES
    assert await evictor(world, daemon, limit_bytes=large, free_percent=5).relieve() == 0
    assert await evictor(world, daemon, limit_bytes=large, free_percent=4).relieve() == 9 * FILE_BYTES
    assert here(world) == [b"5"]


async def test_extended_attributes_are_kept_by_the_journal(world: World) -> None:
    os.setxattr(world.path(b"0"), "user.tag", b"blue")
    await clean(world)
    await evictor(world, Daemon(world), limit_bytes=1).relieve()
    node = world.journal.node(world.number(b"0"))
    assert node is not None
    assert extended_attributes.unpack(node.xattrs) == {b"user.tag": b"blue"}


async def test_a_change_while_the_bucket_is_asked_keeps_the_file(world: World) -> None:
    await clean(world)
    daemon = Daemon(world)
    eviction = evictor(world, daemon, limit_bytes=1)
    real = eviction._is_in_bucket

    async def change_then_ask(known: object) -> bool:
        if known.key == world.key(b"0"):  # type: ignore[attr-defined]
            world.change_mode(b"0", 0o600)
        return await real(known)  # type: ignore[arg-type]

    eviction._is_in_bucket = change_then_ask  # type: ignore[method-assign]
    await eviction.relieve()
    assert here(world) == [b"0", b"5"]
    assert b"0" not in daemon.asked


async def test_files_leave_after_activity_only_and_come_back(world: World) -> None:
    await clean(world)
    eviction = evictor(world, Daemon(world))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(eviction.run)
        await trio.sleep(0.1)
        assert here(world) == sorted(NAMES)
        eviction.note_activity()
        await until(lambda: len(here(world)) == 4)
        nursery.cancel_scope.cancel()
    world.fetch(b"0")
    assert b"0" in here(world)
    await world.settle()


async def test_without_a_limit_nothing_leaves(world: World) -> None:
    await clean(world)
    eviction = evictor(world, Daemon(world), limit_bytes=0)
    eviction.note_activity()
    with trio.fail_after(2):
        await eviction.run()
    assert here(world) == sorted(NAMES)
