"""SQLite databases in use, left behind by a dead program, and at rest. Programs are processes: locks belong to them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.replication.uploads import sqlite_image
from sessionfs.replication.uploads.sqlite_image import DatabaseImages, database_path_of
from sessionfs.replication.uploads.working_files import WorkingFiles

from .tree_world import SESSION, World

NAME = b"x.sqlite"
PROGRAM = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement)
print("ready", flush=True)
sys.stdin.read()
"""
ROWS = (
    "INSERT INTO t SELECT value FROM (WITH RECURSIVE c(value) AS"
    " (SELECT 1 UNION ALL SELECT value + 1 FROM c WHERE value < 500) SELECT value FROM c)"
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.mount_point = world.layout.sessions
    world.start()
    return world


def raw(world: World, path: bytes) -> bytes:
    with open(world.path(path), "rb") as file:
        return file.read()


@contextmanager
def opened_for_writing(world: World) -> Iterator[None]:
    with open(world.path(NAME), "r+b"):
        yield


@contextmanager
def program(world: World, *statements: str, killed: bool = False) -> Iterator[None]:
    """A program with the database open, its statements done."""
    is_new = not os.path.exists(world.path(NAME))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, world.path(NAME), *statements],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        tell(world, is_new=is_new)
        yield
        if killed:
            process.kill()
        process.communicate()
    for suffix in (b"-wal", b"-shm", b"-journal"):
        number = world.journal.resolve(SESSION, NAME + suffix)
        if number is not None and not os.path.exists(world.path(NAME + suffix)):
            world.tell(Operation.UNLINK, number=number, parent=world.number(b""), name=NAME + suffix)


def tell(world: World, *, is_new: bool) -> None:
    names = [NAME] if is_new else []
    names += [
        NAME + suffix
        for suffix in (b"-wal", b"-shm", b"-journal")
        if os.path.exists(world.path(NAME + suffix)) and world.journal.resolve(SESSION, NAME + suffix) is None
    ]
    for name in names:
        status = world.status(name)
        world.tell(
            Operation.CREATE,
            parent=world.number(b""),
            name=name,
            mode=status.st_mode,
            made=status.st_ino,
        )
    world.journal.mark(world.key(NAME), SESSION, world.clock.wall_ns())


def rows_in_bucket(world: World, tmp_path: Path) -> int:
    """Open the object as a standalone database."""
    copy = tmp_path / f"copy-{len(os.listdir(tmp_path))}"
    copy.write_bytes(world.body(world.key(NAME)))
    database = sqlite3.connect(copy)
    try:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(database.execute("SELECT count(*) FROM t").fetchone()[0])
    finally:
        database.close()


def identities(world: World) -> dict[str, tuple[int, int]]:
    return {
        entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns)
        for entry in os.scandir(os.fsdecode(world.path(b"")))
        if not entry.name.endswith("-shm")
    }


async def test_committed_rows_in_the_write_ahead_log_are_in_the_image(world: World, tmp_path: Path) -> None:
    with program(world, "PRAGMA journal_mode = WAL", "CREATE TABLE t (v)", ROWS):
        before = identities(world)
        assert before["x.sqlite-wal"][0] > 0
        await world.settle()
        assert rows_in_bucket(world, tmp_path) == 500
        assert identities(world) == before
        assert world.bucket().keys() == {"sessions/s1/", world.key(NAME)}
        node = world.journal.node(world.number(NAME))
        assert node is not None
        assert node.clean_identity[0] == -1


async def test_an_image_owes_no_other_image(world: World) -> None:
    with program(world, "PRAGMA journal_mode = WAL", "CREATE TABLE t (v)", ROWS):
        await world.settle()
        calls = len(world.store.calls)
        await world.settle()
        assert len(world.store.calls) == calls
        world.journal.mark(world.key(NAME), SESSION, world.clock.wall_ns())
        await world.settle()
        assert len(world.store.calls) == calls


async def test_an_open_transaction_of_a_rollback_database_is_not_in_the_image(
    world: World, tmp_path: Path
) -> None:
    with program(world, "CREATE TABLE t (v)", "INSERT INTO t VALUES (1)", "BEGIN IMMEDIATE", ROWS):
        await world.settle()
        assert rows_in_bucket(world, tmp_path) == 1


async def test_a_locked_database_is_deferred_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_image, "LOCK_SECONDS", 0.05)
    with program(world, "CREATE TABLE t (v)", "BEGIN EXCLUSIVE"):
        async with world.running():
            await world.uploader.drain(0.5)
        row = world.journal.work(world.key(NAME))
        assert row is not None
        assert "locked" in row.reason
    await world.settle()


async def test_what_a_killed_program_left_in_its_log_is_in_the_image(world: World, tmp_path: Path) -> None:
    with program(world, "PRAGMA journal_mode = WAL", "CREATE TABLE t (v)", ROWS, killed=True):
        pass
    before = identities(world)
    assert before["x.sqlite-wal"][0] > 0
    await world.settle()
    assert rows_in_bucket(world, tmp_path) == 500
    assert identities(world) == before


async def test_what_a_killed_program_did_not_commit_is_rolled_back_in_the_image(
    world: World, tmp_path: Path
) -> None:
    spill = ("PRAGMA cache_size = 1", "PRAGMA cache_spill = 1", "BEGIN", ROWS, ROWS, ROWS)
    with program(world, "CREATE TABLE t (v)", "INSERT INTO t VALUES (1)", *spill, killed=True):
        pass
    assert raw(world, NAME + b"-journal") != b""
    before = identities(world)
    await world.settle()
    assert rows_in_bucket(world, tmp_path) == 1
    assert identities(world) == before


async def test_a_database_at_rest_is_its_own_image(world: World) -> None:
    with program(world, "PRAGMA journal_mode = WAL", "CREATE TABLE t (v)", ROWS):
        pass
    await world.settle()
    assert world.body(world.key(NAME)) == raw(world, NAME)
    node = world.journal.node(world.number(NAME))
    assert node is not None
    assert node.clean_identity[0] == world.status(NAME).st_size


async def test_a_database_closed_after_its_image_ends_as_itself(world: World) -> None:
    with program(world, "PRAGMA journal_mode = WAL", "CREATE TABLE t (v)", ROWS):
        await world.settle()
    world.journal.mark(world.key(NAME), SESSION, world.clock.wall_ns())
    await world.settle()
    assert world.body(world.key(NAME)) == raw(world, NAME)


async def test_bytes_that_only_begin_like_a_database_are_a_programs_own(world: World) -> None:
    body = b"SQLite format 3\x00" + b"\xff" * 5000
    world.write(NAME, body)
    with opened_for_writing(world):
        await world.settle()
    assert world.body(world.key(NAME)) == body


async def test_a_database_without_a_mount_is_read_from_the_working_copy(tmp_path: Path) -> None:
    world = World(tmp_path)
    with program(world, "PRAGMA journal_mode = WAL", "CREATE TABLE t (v)", ROWS):
        await world.settle()
        assert rows_in_bucket(world, tmp_path) == 500


async def test_an_object_of_a_side_file_goes_after_the_databases_image(world: World) -> None:
    with program(world, "PRAGMA journal_mode = WAL", "CREATE TABLE t (v)", ROWS):
        await world.settle()
        side = NAME + b"-wal"
        world.put_foreign(side, b"old log")
        known = world.journal.object(world.key(NAME))
        assert known is not None
        found = world.stat(side)
        with world.journal.transaction():
            world.journal.put_object(
                replace(known, key=world.key(side), token=found.token, write_id="", sha256="", number=0)
            )
        world.journal.mark(world.key(side), SESSION, world.clock.wall_ns())
        world.journal.mark(world.key(NAME), SESSION, world.clock.wall_ns())
        await world.settle()
        assert world.bucket().keys() == {"sessions/s1/", world.key(NAME)}


def test_side_files_are_known_by_their_database(world: World) -> None:
    files = WorkingFiles(world.layout)
    world.write(b"notes", b"")
    world.write(b"notes-journal", b"dear diary")
    world.write(b"db", b"")
    world.write(b"db-wal", b"\x37\x7f\x06\x82....")
    world.write(b"real", b"SQLite format 3\x00" + b"\0" * 100)
    world.write(b"real-shm", b"")
    world.write(b"alone-wal", b"\x37\x7f\x06\x82....")
    world.make_directory(b"d")
    world.write(b"d/real", b"SQLite format 3\x00")
    world.write(b"d/real-journal", b"x")
    assert {
        path: files.is_side_file(SESSION, path)
        for path in (
            b"notes-journal",
            b"db-wal",
            b"real-shm",
            b"alone-wal",
            b"d/real-journal",
            b"real",
            b"-wal",
        )
    } == {
        b"notes-journal": False,
        b"db-wal": True,
        b"real-shm": True,
        b"alone-wal": False,
        b"d/real-journal": True,
        b"real": False,
        b"-wal": False,
    }


def test_the_shared_index_names_no_database() -> None:
    assert database_path_of(b"d/x.db-wal") == b"d/x.db"
    assert database_path_of(b"x.db-journal") == b"x.db"
    assert database_path_of(b"x.db-shm") is None
    assert database_path_of(b"d-wal/x") is None


def test_a_database_of_a_shared_root_is_read_where_programs_reach_it(world: World, tmp_path: Path) -> None:
    place = tmp_path / "mount" / ".sessionfs" / "eval" / "run7"
    place.mkdir(parents=True)
    with sqlite3.connect(place / os.fsdecode(NAME)) as database:
        database.execute("CREATE TABLE t (value)")
        database.execute("INSERT INTO t VALUES (7)")
    images = DatabaseImages(WorkingFiles(world.layout), world.layout, world.clock, str(tmp_path / "mount"))
    source = images.pin("%eval%run7", NAME)
    assert source is not None
    assert source.execute("SELECT value FROM t").fetchall() == [(7,)]
    source.close()
