"""SQLite databases in a commit: what SQLite says was there at the cut, whatever its files look like."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.databases import Databases
from tests.unit.replication.commit.commit_world import CommitWorld, live_objects, read_generation


class Database:
    """A program with a database open in the session."""

    def __init__(self, world: CommitWorld, name: bytes, *, mode: str) -> None:
        self.world = world
        self.name = name
        self.connection = sqlite3.connect(os.fsdecode(world.path(name)), isolation_level=None, timeout=0.2)
        self.connection.execute(f"PRAGMA journal_mode = {mode}")
        self.connection.execute("CREATE TABLE rows (value INTEGER)")
        status = world.status(name)
        parent = world.number(b"")
        world.tell(Operation.CREATE, parent=parent, name=name, mode=status.st_mode, made=status.st_ino)

    def add(self, value: int) -> None:
        self.connection.execute("INSERT INTO rows VALUES (?)", (value,))
        self.world.tell(Operation.WRITTEN, number=self.world.number(self.name))


@pytest.fixture
def world(tmp_path: Path) -> CommitWorld:
    # The working copy itself stands for the mount: programs' locks hold on both.
    return CommitWorld(tmp_path, mount_point=str(tmp_path / "state" / "sessions"))


def rows_of(tmp_path: Path, image: bytes | None) -> list[int]:
    """Open an image alone, as on an empty host."""
    assert image is not None
    path = tmp_path / "alone" / "image.db"
    path.parent.mkdir(exist_ok=True)
    for old in path.parent.iterdir():
        old.unlink()
    path.write_bytes(image)
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row[0] for row in connection.execute("SELECT value FROM rows ORDER BY value")]
    finally:
        connection.close()


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
async def test_a_database_is_committed_as_it_was_at_the_cut(
    world: CommitWorld, tmp_path: Path, mode: str
) -> None:
    database = Database(world, b"data.db", mode=mode)
    database.add(1)

    def write_later() -> None:
        if mode == "WAL":
            database.add(2)

    world.freezer.after_barrier = write_later
    report = await world.commit()
    assert report.moving == []
    assert rows_of(tmp_path, read_generation(world.memory)[b"data.db"]) == [1]
    database.add(3)
    await world.settle()
    wanted = [1, 2, 3] if mode == "WAL" else [1, 3]
    assert rows_of(tmp_path, live_objects(world.memory)[b"data.db"]) == wanted
    assert rows_of(tmp_path, read_generation(world.memory)[b"data.db"]) == [1]
    assert set(read_generation(world.memory)) == {b"data.db"}
    database.connection.close()


async def test_a_first_write_between_pin_and_barrier_is_pinned_in_a_second_try(
    world: CommitWorld, tmp_path: Path
) -> None:
    first = Database(world, b"first.db", mode="WAL")
    late = Database(world, b"late.db", mode="WAL")
    first.add(1)
    late.add(1)
    await world.commit()
    await world.settle()
    first.add(2)
    barriers: list[int] = []

    def at_barrier() -> None:
        barriers.append(1)
        if len(barriers) == 1:
            late.add(2)

    world.freezer.at_barrier = at_barrier
    await world.commit()
    assert len(barriers) == 2
    found = read_generation(world.memory)
    assert rows_of(tmp_path, found[b"first.db"]) == [1, 2]
    assert rows_of(tmp_path, found[b"late.db"]) == [1, 2]
    first.connection.close()
    late.connection.close()


async def test_after_the_barrier_only_what_changed_since_the_pins_is_looked_at(
    world: CommitWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        world.write(b"f%d" % number, b"owed")
    world.write(b"open", b"owed")
    world.tell(Operation.OPEN_WRITE, number=world.number(b"open"))
    looked: list[list[bytes]] = []
    find = Databases.find

    async def seen(self: Databases, session: SessionId, paths: Iterable[bytes]) -> list[bytes]:
        looked.append(list(paths))
        return await find(self, session, looked[-1])

    monkeypatch.setattr(Databases, "find", seen)
    world.freezer.at_barrier = lambda: world.write(b"f7", b"written at the barrier")
    await world.commit()
    assert looked == [[b"f7", b"open"]]


async def test_a_database_that_is_opened_between_pin_and_barrier_is_pinned_in_a_second_try(
    world: CommitWorld, tmp_path: Path
) -> None:
    """No record tells of what it writes then: the descriptor does."""
    database = Database(world, b"data.db", mode="WAL")
    database.add(1)
    database.connection.close()
    barriers: list[sqlite3.Connection] = []

    def open_and_write() -> None:
        program = sqlite3.connect(os.fsdecode(world.path(b"data.db")), isolation_level=None)
        if not barriers:
            world.tell(Operation.OPEN_WRITE, number=world.number(b"data.db"))
            program.execute("INSERT INTO rows VALUES (2)")
        barriers.append(program)

    world.freezer.at_barrier = open_and_write
    await world.commit()
    assert len(barriers) == 2
    assert rows_of(tmp_path, read_generation(world.memory)[b"data.db"]) == [1, 2]
    for program in barriers:
        program.close()


async def test_an_idle_database_is_not_sent_again(world: CommitWorld) -> None:
    database = Database(world, b"data.db", mode="WAL")
    database.add(1)
    await world.commit()
    await world.settle()
    world.write(b"other", b"change")
    before = len([key for key in world.calls("put") if key.endswith("data.db")])
    report = await world.commit()
    assert len([key for key in world.calls("put") if key.endswith("data.db")]) == before
    assert report.objects == 3
    database.connection.close()


async def test_what_only_looks_like_a_database_is_committed_as_bytes(world: CommitWorld) -> None:
    world.write(b"fake.db", b"SQLite format 3\x00 and then nonsense")
    world.write(b"fake.db-wal", b"\x37\x7f\x06\x82 not a log")
    await world.commit()
    assert read_generation(world.memory) == {b"fake.db": b"SQLite format 3\x00 and then nonsense"}
