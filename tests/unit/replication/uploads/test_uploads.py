"""The uploader on a memory store: what reaches the bucket, and by which request."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.formats import object_metadata
from sessionfs.model import keys
from sessionfs.model.errors import UnavailableError
from sessionfs.replication.uploads import key_upload
from sessionfs.working_copy.known_content import KnownObject

from .tree_world import FAST, SESSION, World, until

BIG = b"0123456789" * 500


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_files_directories_and_symlinks_become_plain_objects(world: World) -> None:
    world.write(b"a.txt", b"hello")
    world.make_directory(b"d")
    world.write(b"d/\xff %\n", b"")
    world.make_symlink(b"l", b"a.txt")
    await world.settle()
    world.assert_equal({b"a.txt": b"hello", b"d": None, b"d/\xff %\n": b"", b"l": b"a.txt"})
    assert world.stat(b"l").metadata.user["mode"] == str(stat.S_IFLNK | 0o777)  # type: ignore[union-attr]
    assert world.stat(b"a.txt").metadata.content_type == "text/plain"  # type: ignore[union-attr]
    assert world.memory.head(world.key(b"d", is_directory=True)).metadata.content_type == (  # type: ignore[union-attr]
        "application/x-directory"
    )
    uploaded = {event["path"]: event for event in world.events("session.file.uploaded")}
    assert uploaded["a.txt"] == {
        "session_id": "s1", "path": "a.txt", "size": 5, "key": "sessions/s1/a.txt", "how": "put",
    }  # fmt: skip


async def test_what_is_already_there_is_not_sent_again(world: World) -> None:
    world.write(b"a", b"x")
    await world.settle()
    before = len(world.store.calls)
    world.journal.mark(world.key(b"a"), SESSION, world.clock.wall_ns())
    await world.settle()
    assert len(world.store.calls) == before


async def test_a_file_that_was_never_sent_is_forgotten_without_a_request(world: World) -> None:
    await world.settle()
    before = len(world.store.calls)
    world.write(b".a.swp", b"x")
    world.unlink(b".a.swp")
    await world.settle()
    assert [key for _, key in world.store.calls[before:] if "swp" in key] == []


async def test_a_rename_is_a_server_side_copy_and_then_a_delete(world: World) -> None:
    world.write(b"a", BIG)
    await world.settle()
    world.store.calls.clear()
    world.rename(b"a", b"b")
    await world.settle()
    world.assert_equal({b"b": BIG})
    changed = [(method, key) for method, key in world.store.calls if not key.endswith("/")]
    assert changed == [("copy", world.key(b"b")), ("delete", world.key(b"a"))]


async def test_a_small_rename_sends_the_body(world: World) -> None:
    world.write(b"a", b"x")
    await world.settle()
    world.rename(b"a", b"b")
    await world.settle()
    world.assert_equal({b"b": b"x"})
    assert world.calls("copy") == []


async def test_a_mode_change_is_a_copy_of_the_object_onto_itself(world: World) -> None:
    world.write(b"a", BIG)
    await world.settle()
    lineage = world.stat(b"a").metadata.user["sessionfs-lineage"]  # type: ignore[union-attr]
    world.change_mode(b"a", 0o600)
    await world.settle()
    world.assert_equal({b"a": BIG})
    assert world.calls("copy") == [world.key(b"a")]
    assert world.stat(b"a").metadata.user["sessionfs-lineage"] == lineage  # type: ignore[union-attr]


async def test_a_rewrite_has_a_new_lineage(world: World) -> None:
    world.write(b"a", BIG)
    await world.settle()
    lineage = world.stat(b"a").metadata.user["sessionfs-lineage"]  # type: ignore[union-attr]
    world.write(b"a", b"other")
    await world.settle()
    assert world.stat(b"a").metadata.user["sessionfs-lineage"] != lineage  # type: ignore[union-attr]


async def test_a_hard_link_is_a_copy(world: World) -> None:
    world.write(b"a", BIG)
    await world.settle()
    world.link(b"a", b"b")
    await world.settle()
    world.assert_equal({b"a": BIG, b"b": BIG})
    assert world.calls("copy") == [world.key(b"b")]


async def test_an_append_sends_only_the_tail(world: World) -> None:
    world.write(b"log", BIG)
    await world.settle()
    lineage = world.stat(b"log").metadata.user["sessionfs-lineage"]  # type: ignore[union-attr]
    sent = world.uploader.uploaded_bytes
    world.append(b"log", b"tail")
    await world.settle()
    world.assert_equal({b"log": BIG + b"tail"})
    assert world.calls("append") == [world.key(b"log")]
    assert world.uploader.uploaded_bytes - sent == 4
    assert world.stat(b"log").metadata.user["sessionfs-lineage"] == lineage  # type: ignore[union-attr]


async def test_growth_after_a_change_of_the_first_bytes_is_a_whole_put(world: World) -> None:
    world.write(b"log", BIG)
    await world.settle()
    world.write(b"log", b"X" + BIG[1:] + b"tail")
    await world.settle()
    world.assert_equal({b"log": b"X" + BIG[1:] + b"tail"})
    assert world.calls("append") == []


async def test_a_large_file_is_put_in_parts(tmp_path: Path) -> None:
    world = World(tmp_path)
    body = os.urandom(FAST.part_bytes * 2 + 5)
    world.write(b"large", body)
    await world.settle()
    world.assert_equal({b"large": body})
    assert world.calls("put_parts") == [world.key(b"large")]


async def test_uploads_never_hold_more_bytes_than_their_budget(tmp_path: Path) -> None:
    budget = 3 << 20
    settings = FAST.__class__(
        upload_delay_seconds=0.0,
        max_upload_delay_seconds=0.0,
        upload_memory_bytes=budget,
        concurrent_uploads=16,
    )
    world = World(tmp_path, settings=settings)
    for number in range(8):
        world.write(b"f%d" % number, bytes([number]) * (1 << 20))
    await world.settle()
    assert 0 < world.uploader._keys.sender.budget.most_bytes <= budget


async def test_names_exchanged_here_are_exchanged_in_the_bucket(world: World) -> None:
    world.write(b"a", BIG)
    world.write(b"b", BIG[::-1])
    await world.settle()
    world.exchange(b"a", b"b")
    await world.settle()
    world.assert_equal({b"a": BIG[::-1], b"b": BIG})


async def test_names_of_files_that_are_only_in_the_bucket_are_exchanged(world: World) -> None:
    world.write(b"a", b"first")
    world.write(b"b", b"second")
    await world.settle()
    world.evict(b"a")
    world.evict(b"b")
    world.exchange(b"a", b"b")
    await world.settle()
    world.assert_equal({b"a": b"second", b"b": b"first"})


async def test_files_that_are_only_in_the_bucket_are_renamed_linked_changed_and_removed(world: World) -> None:
    for name in (b"a", b"b", b"c", b"d"):
        world.write(name, b"<" + name + b">")
    await world.settle()
    for name in (b"a", b"b", b"c", b"d"):
        world.evict(name)
    world.rename(b"b", b"e")
    world.rename(b"a", b"b")
    world.link(b"c", b"f")
    world.change_mode(b"c", 0o600)
    world.unlink(b"d")
    sent = world.uploader.uploaded_bytes
    await world.settle()
    world.assert_equal({b"b": b"<a>", b"c": b"<c>", b"e": b"<b>", b"f": b"<c>"})
    assert world.uploader.uploaded_bytes == sent


async def test_a_file_gives_way_to_a_directory_of_its_name_in_order(world: World) -> None:
    world.write(b"x", b"file")
    await world.settle()
    world.store.calls.clear()
    world.unlink(b"x")
    world.make_directory(b"x")
    world.write(b"x/y", b"below")
    await world.settle()
    world.assert_equal({b"x": None, b"x/y": b"below"})
    order = [key for _, key in world.store.calls if "/x" in key]
    assert order.index(world.key(b"x")) < order.index(world.key(b"x/y"))


async def test_a_directory_gives_way_to_a_file_of_its_name_in_order(world: World) -> None:
    world.make_directory(b"x")
    world.write(b"x/y", b"below")
    await world.settle()
    world.store.calls.clear()
    world.rename(b"x/y", b"z")
    world.remove_directory(b"x")
    world.rename(b"z", b"x")
    await world.settle()
    world.assert_equal({b"x": b"below"})
    order = [key for _, key in world.store.calls]
    assert order.index(world.key(b"x/y")) < order.index(world.key(b"x"))


async def test_a_file_that_takes_its_directorys_name_is_moved_though_only_the_bucket_has_it(
    world: World,
) -> None:
    world.make_directory(b"x")
    world.write(b"x/y", b"below")
    await world.settle()
    world.evict(b"x/y")
    world.rename(b"x/y", b"z")
    world.remove_directory(b"x")
    world.rename(b"z", b"x")
    await world.settle()
    world.assert_equal({b"x": b"below"})


async def test_excluded_names_and_fifos_stay_here(world: World) -> None:
    world.write(b"session.lock", b"pid")
    world.make_fifo(b"pipe")
    await world.settle()
    world.assert_equal({})


async def test_a_session_that_is_removed_leaves_no_live_object(world: World) -> None:
    world.make_directory(b"d")
    world.write(b"d/f", b"x")
    await world.settle()
    world.unlink(b"d/f")
    world.remove_directory(b"d")
    await world.settle()
    world.assert_equal({})


async def test_an_unreadable_mode_is_uploaded_and_kept(world: World) -> None:
    world.write(b"secret", b"x")
    world.change_mode(b"secret", 0o000)
    await world.settle()
    world.assert_equal({b"secret": b"x"})
    assert stat.S_IMODE(world.status(b"secret").st_mode) == 0


async def test_a_path_that_no_key_can_spell_keeps_its_bytes_by_content(tmp_path: Path) -> None:
    world = World(tmp_path)
    store = world.memory.with_capabilities(world.memory.capabilities.__class__(maximum_segment_bytes=100))
    world = World(tmp_path / "other", store=store)
    world.write(b"n" * 120, b"bytes")
    await world.settle()
    world.assert_equal({})
    node = world.journal.node(world.number(b"n" * 120))
    assert node is not None
    assert world.body(keys.content_key(SESSION, node.sha256)) == b"bytes"


async def test_a_held_delete_waits(world: World) -> None:
    world.write(b"a", b"x")
    await world.settle()
    world.unlink(b"a")
    world.journal.hold_work([world.key(b"a")])
    async with world.running():
        assert await world.uploader.drain(0.1) == 1
    assert world.key(b"a") in world.bucket()


async def test_flush_returns_when_the_key_is_in_the_bucket(tmp_path: Path) -> None:
    slow = FAST.__class__(upload_delay_seconds=600.0, max_upload_delay_seconds=600.0)
    world = World(tmp_path, settings=slow)
    world.write(b"a", b"x")
    world.write(b"b", b"y")
    async with world.running():
        await trio.sleep(0.05)
        assert world.bucket() == {}
        await world.uploader.flush([world.key(b"a")])
        assert world.bucket() == {world.key(b"a"): b"x"}


async def test_flush_says_why_it_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # How soon the last try comes is a matter of jitter; this is about the tries before it.
    monkeypatch.setattr(key_upload, "_MISSING_TRIES", 1_000_000)
    world = World(tmp_path)
    await world.settle()
    world.write(b"a", b"x")
    os.unlink(world.path(b"a"))
    async with world.running():
        with pytest.raises(UnavailableError, match="not in the bucket in time"):
            await world.uploader.flush([world.key(b"a")], 0.1)
    row = world.journal.work(world.key(b"a"))
    assert row is not None
    assert row.reason == "it is not on this disk"


async def test_a_missing_file_without_a_record_is_never_deleted_in_the_bucket(world: World) -> None:
    world.write(b"a", b"x")
    await world.settle()
    os.unlink(world.path(b"a"))
    world.journal.mark(world.key(b"a"), SESSION, world.clock.wall_ns())
    async with world.running():
        await world.uploader.drain(0.2)
    assert world.body(world.key(b"a")) == b"x"


async def test_a_clean_file_is_recorded_with_its_identity(world: World) -> None:
    world.write(b"a", b"x")
    await world.settle()
    node, status = world.journal.node(world.number(b"a")), world.status(b"a")
    assert node is not None
    assert node.clean_identity == (1, status.st_mtime_ns, status.st_ctime_ns)
    assert node.size_bytes == 1


async def test_negative_and_fractional_times_survive(world: World) -> None:
    world.write(b"a", b"x")
    os.utime(world.path(b"a"), ns=(-1, -1_500_000_001))
    await world.settle()
    user = world.stat(b"a").metadata.user  # type: ignore[union-attr]
    assert object_metadata.decode_time(user["mtime"], 0) == -1_500_000_001


async def test_a_flush_does_not_wait_behind_a_backlog(tmp_path: Path) -> None:
    world = World(tmp_path, settings=msgspec.structs.replace(FAST, concurrent_uploads=1))
    await world.settle()
    with world.journal.transaction():
        for count in range(2000):
            world.journal.mark(world.key(b"gone%d" % count), SESSION, world.clock.wall_ns())
            world.journal.put_object(_object_of(world, b"gone%d" % count))
    world.write(b"wanted now", b"x")
    async with world.running():
        await world.uploader.flush([world.key(b"wanted now")])
    assert len(world.journal.all_work()) > 1500
    assert world.bucket()[world.key(b"wanted now")] == b"x"


def _object_of(world: World, path: bytes) -> KnownObject:
    return KnownObject(world.key(path), 0, "t", "w", "aa", 1, 0, 0, 0, 0, "")


async def test_a_row_that_waits_for_a_stuck_one_says_so(world: World) -> None:
    world.write(b"x", BIG)
    await world.settle()
    world.evict(b"x")
    world.put_foreign(b"x", b"somebody else's")
    world.rename(b"x", b"y")
    async with world.running():
        await until(
            lambda: (
                (row := world.journal.work(world.key(b"x"))) is not None and row.reason.startswith("waits")
            )
        )
    row = world.journal.work(world.key(b"y"))
    assert row is not None
    assert row.state == "stuck"
