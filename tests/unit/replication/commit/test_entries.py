"""What a generation says of each path: bytes, attributes, and the paths that have no object of their own."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.model import keys
from sessionfs.model.errors import UnavailableError
from sessionfs.stores.base import IfMatch
from sessionfs.testing.faulty_store import Interfere
from tests.unit.replication.commit.commit_world import SLOW, CommitWorld, read_generation
from tests.unit.replication.hydration.hosts import Host
from tests.unit.replication.uploads.tree_world import FAST, SESSION

LONG = b"\xff" * 250
"""Each byte takes three letters of a key: two such names are longer than any key."""


@pytest.fixture
def world(tmp_path: Path) -> CommitWorld:
    return CommitWorld(tmp_path)


@pytest.fixture
def slow(tmp_path: Path) -> CommitWorld:
    return CommitWorld(tmp_path, settings=SLOW)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def block_sums(body: bytes) -> tuple[str, ...]:
    return tuple(digest(body[at : at + BLOCK_BYTES]) for at in range(0, len(body), BLOCK_BYTES))


# --- attributes


async def everything(world: CommitWorld) -> None:
    """A file, a directory and a link, with attributes; and what no generation has."""
    world.make_directory(b"d")
    world.write(b"f", b"abc")
    world.make_symlink(b"l", b"f")
    world.write(b"d/session.lock", b"excluded")
    world.make_fifo(b"pipe")
    os.setxattr(world.path(b"f"), "user.a", b"b")
    os.setxattr(world.path(b"d"), "user.d", b"")
    os.setxattr(world.path(b"f"), "user.sessionfs.state", b"of the mount")
    world.change_mode(b"f", 0o640)
    world.write(b"local-only", b"no object, and nothing owed")
    key = world.key(b"local-only")
    work = world.journal.work(key)
    assert work is not None
    world.journal.finish_work(key, work.version)


@pytest.mark.parametrize("settled", [False, True])
async def test_entries_have_bytes_and_attributes_and_leave_out_what_never_leaves_this_host(
    slow: CommitWorld, settled: bool
) -> None:
    await everything(slow)
    if settled:
        await slow.settle()
    await slow.commit()
    named = slow.entries()
    assert list(named) == [b"", b"d", b"f", b"l"]
    file, status = named[b"f"], slow.status(b"f")
    assert (file.mode, file.uid, file.gid, file.mtime_ns) == (
        stat.S_IFREG | 0o640,
        status.st_uid,
        status.st_gid,
        status.st_mtime_ns,
    )
    assert (file.size_bytes, file.sha256, file.link_group) == (3, digest(b"abc"), 0)
    assert file.token == slow.stat(b"f").token
    assert file.xattrs == {b"user.a": b"b"}
    directory = named[b"d"]
    assert directory.token == slow.memory.head(slow.key(b"d", is_directory=True)).token
    assert (directory.type, directory.xattrs, directory.sha256, directory.size_bytes) == (
        "directory",
        {b"user.d": b""},
        "",
        0,
    )
    assert directory.mode == slow.status(b"d").st_mode
    link = named[b"l"]
    assert (link.type, link.target, link.sha256, link.size_bytes) == ("symlink", b"f", digest(b"f"), 1)
    assert link.token == slow.stat(b"l").token


async def test_attributes_are_those_of_the_cut(slow: CommitWorld) -> None:
    slow.write(b"f", b"abc")
    os.setxattr(slow.path(b"f"), "user.a", b"before")
    slow.change_mode(b"f", 0o600)

    def change() -> None:
        os.setxattr(slow.path(b"f"), "user.a", b"after")
        slow.change_mode(b"f", 0o666)
        slow.write(b"f", b"longer than before")

    slow.freezer.after_barrier = change
    await slow.commit()
    entry = slow.entries()[b"f"]
    assert stat.S_IMODE(entry.mode) == 0o600
    assert (entry.size_bytes, entry.xattrs) == (3, {b"user.a": b"before"})


async def test_what_vanishes_from_the_disk_meanwhile_stays_as_it_was_noted(world: CommitWorld) -> None:
    world.write(b"f", b"abc")
    await world.settle()
    os.unlink(world.path(b"f"))
    await world.commit()
    entry = world.entries()[b"f"]
    assert (entry.sha256, entry.token) == (digest(b"abc"), world.stat(b"f").token)


async def test_a_directory_without_an_object_is_named_without_a_token(world: CommitWorld) -> None:
    world.write(b"f", b"abc")
    await world.settle()
    world.journal.drop_object(keys.session_prefix(SESSION))
    os.chmod(world.path(b""), 0o711)
    await world.commit()
    root = world.entries()[b""]
    assert (root.token, stat.S_IMODE(root.mode)) == ("", 0o711)


async def test_names_of_one_file_are_one_group_and_others_are_in_none(world: CommitWorld) -> None:
    world.write(b"alone", b"same bytes")
    for first, second in ((b"a", b"b"), (b"c", b"d")):
        world.write(first, b"same bytes")
        world.link(first, second)
    await world.commit()
    groups = {path: entry.link_group for path, entry in world.entries().items()}
    assert groups[b"a"] == groups[b"b"] != 0
    assert groups[b"c"] == groups[b"d"] != 0
    assert groups[b"a"] != groups[b"c"]
    assert groups[b"alone"] == groups[b""] == 0


async def test_names_whose_objects_differ_are_no_group(world: CommitWorld) -> None:
    world.write(b"a", b"bytes")
    world.link(b"a", b"b")
    await world.settle()
    known = world.journal.object(world.key(b"b"))
    assert known is not None
    world.put_foreign(b"b", b"other")
    token = world.stat(b"b").token
    world.journal.put_object(replace(known, token=token, size_bytes=5, sha256=digest(b"other"), write_id=""))
    await world.commit()
    named = world.entries()
    assert (named[b"a"].link_group, named[b"b"].link_group) == (0, 0)
    assert read_generation(world.memory) == {b"a": b"bytes", b"b": b"other"}


# --- files that are not on this disk


async def test_evicted_files_are_named_from_the_journal(world: CommitWorld) -> None:
    world.write(b"f", b"abc")
    world.write(b"g", b"other")
    await world.commit()
    before = world.entries()
    world.evict(b"f")
    world.write(b"g", b"changed")
    assert (await world.commit()).generation == 2
    assert world.entries()[b"f"] == before[b"f"]
    world.rename(b"f", b"moved")
    await world.commit()
    moved = world.entries()[b"moved"]
    assert (moved.sha256, moved.mtime_ns) == (before[b"f"].sha256, before[b"f"].mtime_ns)
    assert read_generation(world.memory) == {b"moved": b"abc", b"g": b"changed"}
    assert read_generation(world.memory, 2) == {b"f": b"abc", b"g": b"changed"}


async def test_a_host_that_has_fetched_nothing_commits_what_is_there(
    world: CommitWorld, tmp_path: Path
) -> None:
    await everything(world)
    world.make_directory(LONG)
    world.write(LONG + b"/" + LONG, b"no key can spell it")
    await world.commit()
    first = world.manifest()
    host = Host(tmp_path / "b" / "state", world.memory)
    await host.hydrator.open_session(SESSION)
    host.journal.close()
    other = CommitWorld(tmp_path / "b", store=world.memory)
    other.journal.update_session(SESSION, changed=True, written=True)
    assert (await other.commit()).generation == 2
    assert other.manifest().entries == first.entries


async def test_attributes_of_a_directory_outlive_a_change_of_its_names_since_the_commit(
    world: CommitWorld, tmp_path: Path
) -> None:
    await everything(world)
    await world.commit()
    world.write(b"d/new", b"uploaded, and in no generation")
    await world.settle()
    host = Host(tmp_path / "b" / "state", world.memory)
    await host.hydrator.open_session(SESSION)
    host.journal.close()
    other = CommitWorld(tmp_path / "b", store=world.memory)
    other.journal.update_session(SESSION, changed=True, written=True)
    await other.commit()
    assert other.entries()[b"d"].xattrs == {b"user.d": b""}
    assert b"d/new" in other.entries()


async def test_bytes_of_another_tool_are_hashed_before_a_generation_names_them(
    world: CommitWorld, tmp_path: Path
) -> None:
    """A26: a token alone says nothing once the object was copied aside."""
    long = os.urandom(BLOCK_BYTES + 5)
    world.write(b"a", b"ours")
    await world.commit()
    world.put_foreign(b"foreign", b"no hash")
    world.put_foreign(b"long", long)
    host = Host(tmp_path / "b" / "state", world.memory)
    await host.hydrator.open_session(SESSION)
    host.journal.close()
    other = CommitWorld(tmp_path / "b", store=world.memory)
    other.journal.update_session(SESSION, changed=True, written=True)
    await other.commit()
    named = other.entries()
    assert named[b"foreign"].sha256 == digest(b"no hash")
    assert (named[b"long"].sha256, named[b"long"].blocks) == (digest(long), block_sums(long))
    # A change of its attributes needs no bytes here, and does not end the promise.
    other.change_mode(b"foreign", 0o600)
    other.unlink(b"long")
    await other.settle()
    other.unlink(b"foreign")
    await other.settle()
    assert read_generation(other.memory) == {b"a": b"ours", b"foreign": b"no hash", b"long": long}
    assert other.freezer.kept() == os.listdir(other.layout.staging) == []


async def test_bytes_of_another_tool_that_are_changed_meanwhile_are_named_as_they_are_then(
    world: CommitWorld, tmp_path: Path
) -> None:
    world.write(b"a", b"ours")
    await world.commit()
    world.put_foreign(b"foreign", b"no hash")
    host = Host(tmp_path / "b" / "state", world.memory)
    await host.hydrator.open_session(SESSION)
    host.journal.close()
    other = CommitWorld(tmp_path / "b", store=world.memory)
    other.journal.update_session(SESSION, changed=True, written=True)
    world.put_foreign(b"foreign", b"moved")
    # What the cut has is nowhere any more: that is told, and the next cut has what is there.
    with pytest.raises(UnavailableError, match="foreign was changed"):
        await other.commit()
    assert other.manifest().generation == 1
    await other.commit()
    assert other.entries()[b"foreign"].sha256 == digest(b"moved")
    assert read_generation(other.memory) == {b"a": b"ours", b"foreign": b"moved"}


# --- blocks


async def test_files_longer_than_a_block_have_the_sums_of_their_blocks(slow: CommitWorld) -> None:
    long, exact = os.urandom(BLOCK_BYTES + (1 << 20)), os.urandom(BLOCK_BYTES)
    slow.write(b"long", long)
    slow.write(b"exact", exact)
    await slow.settle()
    slow.write(b"changing", long)
    slow.freezer.after_barrier = lambda: slow.write(b"changing", b"short now")
    await slow.commit()
    named = slow.entries()
    assert named[b"long"].blocks == named[b"changing"].blocks == block_sums(long)
    assert len(named[b"long"].blocks) == 2
    assert (named[b"exact"].blocks, named[b""].blocks) == ((), ())
    assert named[b"changing"].token == ""
    slow.freezer.after_barrier = lambda: None
    slow.write(b"other", b"so that there is something to commit")
    await slow.commit()
    assert slow.entries()[b"long"].blocks == block_sums(long)
    assert slow.entries()[b"changing"].blocks == ()


async def test_a_long_log_that_grew_is_named_with_the_blocks_of_its_beginning(slow: CommitWorld) -> None:
    body = os.urandom(BLOCK_BYTES + 4096)
    slow.write(b"log", body)
    slow.freezer.in_place.add(b"log")
    slow.freezer.after_barrier = lambda: slow.append(b"log", os.urandom(BLOCK_BYTES))
    await slow.commit()
    entry = slow.entries()[b"log"]
    assert entry.blocks == block_sums(body)
    assert (entry.size_bytes, entry.token) == (len(body), slow.stat(b"log").token)
    assert slow.stat(b"log").size_bytes == len(body) + BLOCK_BYTES


# --- paths that no key can spell


async def test_bytes_without_a_possible_key_go_to_their_content(world: CommitWorld) -> None:
    world.make_directory(LONG)
    for body in (b"small", b"large" * 100, b""):
        world.write(LONG + b"/" + LONG + b"%d" % len(body), body)
    for setting in (FAST, msgspec.structs.replace(FAST, part_bytes=100)):
        world.settings = setting
        world.start()
        world.write(b"so that there is something to commit", setting.part_bytes.to_bytes(8))
        report = await world.commit()
        named = world.entries()
        for body in (b"small", b"large" * 100, b""):
            entry = named[LONG + b"/" + LONG + b"%d" % len(body)]
            assert (entry.token, entry.sha256, entry.size_bytes) == ("", digest(body), len(body))
            if body:
                assert world.body(keys.content_key(SESSION, digest(body))) == body
        assert report.objects == 6


async def test_they_are_sent_once_and_counted(slow: CommitWorld) -> None:
    slow.make_directory(LONG)
    slow.write(LONG + b"/" + LONG, b"body")
    first = await slow.commit()
    assert len(slow.kept_by_content()) == 1
    puts = len(slow.store.calls)
    slow.write(b"f", b"x")
    second = await slow.commit()
    content = keys.content_key(SESSION, digest(b"body"))
    assert content not in [key for _, key in slow.store.calls[puts:]]
    assert first.bytes_uploaded == 4
    assert second.bytes_uploaded == 1


async def test_bytes_that_change_while_they_are_stored_are_not_stored_under_another_hash(
    world: CommitWorld,
) -> None:
    path = LONG + b"/" + LONG
    world.make_directory(LONG)
    world.write(path, b"before")
    await world.settle()
    world.write(path, b"again!")
    real = world.path(path)

    def change() -> None:
        with open(real, "r+b") as file:
            file.write(b"after!")

    for key in world.kept_by_content():
        world.journal.drop_object(key)
    world.settings = SLOW
    world.start()
    world.store.plan("put", Interfere(change))
    with pytest.raises(UnavailableError, match="changed while it was committed"):
        await world.commit()
    world.store._planned.clear()
    await world.commit()
    entry = world.entries()[path]
    assert world.body(keys.content_key(SESSION, entry.sha256)) == b"after!"
    for key, body in world.kept_by_content().items():
        assert key.endswith(digest(body))


async def test_a_file_without_a_key_that_vanished_fails_the_commit(world: CommitWorld) -> None:
    path = LONG + b"/" + LONG
    world.make_directory(LONG)
    world.write(path, b"body")
    os.unlink(world.path(path))
    with pytest.raises(UnavailableError):
        await world.commit()
    assert world.row().changed


async def test_bytes_deeper_than_the_longest_path_are_in_the_generation(world: CommitWorld) -> None:
    descriptor = os.open(world.path(b""), os.O_RDONLY | os.O_DIRECTORY)
    path, parent = b"", world.number(b"")
    for _ in range(20):
        name = b"d" * 250
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
        made = os.fstat(below).st_ino
        world.tell(Operation.MKDIR, parent=parent, name=name, mode=0o755, made=made)
        parent = made
        path = path + b"/" + name if path else name
    file = os.open(b"f", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=descriptor)
    os.write(file, b"deep")
    os.setxattr(file, "user.a", b"b")
    world.tell(Operation.CREATE, parent=parent, name=b"f", mode=0o644, made=os.fstat(file).st_ino)
    os.close(file)
    os.close(descriptor)
    await world.commit()
    entry = world.entries()[path + b"/f"]
    assert (entry.sha256, entry.xattrs, entry.token) == (digest(b"deep"), {b"user.a": b"b"}, "")
    assert world.body(keys.content_key(SESSION, entry.sha256)) == b"deep"


async def test_bytes_that_the_uploader_keeps_by_content_are_named(world: CommitWorld) -> None:
    """A file with no live object, of which the journal knows where its bytes are."""
    world.write(b"f", b"abc")
    world.write(b"same", b"abc")
    await world.settle()
    known = world.journal.object(world.key(b"f"))
    assert known is not None
    content = keys.content_key(SESSION, digest(b"abc"))
    world.journal.put_object(replace(known, key=content, mode=stat.S_IFREG | 0o600))
    for name in (b"f", b"same"):
        world.memory.delete(world.key(name), condition=IfMatch(world.stat(name).token))
        world.journal.drop_object(world.key(name))
    os.chmod(world.path(b"same"), 0o640)
    await world.commit()
    named = world.entries()
    for path, mode in ((b"f", 0o644), (b"same", 0o640)):
        assert (named[path].token, named[path].sha256) == ("", digest(b"abc"))
        assert stat.S_IMODE(named[path].mode) == mode
