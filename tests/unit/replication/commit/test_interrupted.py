"""A commit that dies at any of its steps leaves the generation before, byte for byte; then the owner goes on and commits."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

from sessionfs.formats.intent_records import Operation
from sessionfs.model import keys
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.stopping_store import StoppingStore
from sessionfs.working_copy.lease_page import LeasePage
from tests.unit.replication.commit.commit_world import CommitWorld, Tree, live_objects, read_generation
from tests.unit.replication.commit.mortality import Steps, died
from tests.unit.replication.uploads.tree_world import FAST, SESSION, FileFaults


class MortalWorld(Steps, CommitWorld):
    """A host that owns its session, and whose process can die at any call of the store or transaction of the journal."""

    def __init__(self, directory: Path) -> None:
        self.shared = MemoryStore()
        super().__init__(directory, store=self.shared, mount_point=str(directory / "state" / "sessions"))

    def start(self) -> None:
        self.mortal = StoppingStore(self.shared)
        self.store = FileFaults(self.mortal)
        self.ownership = Ownership(
            self.journal,
            TrioStore(self.mortal, self.clock, FAST),
            FAST,
            self.clock,
            page=LeasePage.open(self.layout.lease, "boot"),
            raise_event=self.journal.add_event,
            tell=lambda _state: None,
            host="host",
        )
        self.authority = self.ownership
        super().start()
        self.trio_store.guard = self.ownership.guard

    async def own(self) -> None:
        claim = await self.ownership.claim(SESSION)
        if claim.is_news:
            self.ownership.note_caught_up(SESSION)

    async def restart(self) -> None:
        """Another process on the same state directory."""
        self.start()
        await self.own()
        self.uploader.settle_unknown()


class Program:
    """A program with a database open in the session, writing all the time."""

    def __init__(self, world: MortalWorld) -> None:
        self.world = world
        path = os.fsdecode(world.path(b"data.db"))
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=0.2)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("CREATE TABLE rows (value INTEGER)")
        status = world.status(b"data.db")
        parent = world.number(b"")
        world.tell(Operation.CREATE, parent=parent, name=b"data.db", mode=status.st_mode, made=status.st_ino)

    def add(self, value: int) -> None:
        self.connection.execute("INSERT INTO rows VALUES (?)", (value,))
        self.world.tell(Operation.WRITTEN, number=self.world.number(b"data.db"))


async def prepared(directory: Path) -> tuple[MortalWorld, Program]:
    """A session with one generation, and everything that can happen to a file since."""
    world = MortalWorld(directory)
    await world.own()
    world.make_directory(b"d")
    for name in (b"kept", b"grown", b"rewritten", b"overwritten", b"renamed", b"deleted", b"d/inside"):
        world.write(name, b"first bytes of " + name)
    program = Program(world)
    program.add(1)
    await world.commit()
    await world.settle()
    world.append(b"grown", b" and more")
    world.write(b"rewritten", b"second bytes")
    world.write(b"overwritten", b"uploaded before the commit begins")
    world.rename(b"renamed", b"d/renamed")
    world.unlink(b"deleted")
    world.write(b"fresh", b"new")
    world.make_symlink(b"link", b"fresh")
    program.add(2)
    await world.uploader.flush([])
    return world, program


def rows_of(tree: Tree, directory: Path) -> list[int]:
    image = tree[b"data.db"]
    assert image is not None
    path = directory / "alone.db"
    path.write_bytes(image)
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [row[0] for row in connection.execute("SELECT value FROM rows ORDER BY value")]
    finally:
        connection.close()
        path.unlink()


def compared(tree: Tree, directory: Path) -> dict[bytes, object]:
    """A tree in which the database is its rows, and SQLite's side files are left out."""
    shown: dict[bytes, object] = {
        path: body for path, body in tree.items() if not path.startswith(b"data.db")
    }
    shown[b"data.db"] = rows_of(tree, directory)
    return shown


def of_disk(world: MortalWorld, rows: list[int]) -> dict[bytes, object]:
    shown: dict[bytes, object] = {
        path: body for path, body in world.tree().items() if not path.startswith(b"data.db")
    }
    shown[b"data.db"] = rows
    return shown


async def run_commit(world: MortalWorld, program: Program) -> int:
    """Commit while programs go on; gives how many steps it took."""

    def go_on() -> None:
        # Programs and the log outlive the process that is to die.
        world.is_counting = False
        world.write(b"rewritten", b"third bytes, after the cut")
        world.append(b"grown", b" and again")
        program.add(3)
        world.is_counting = True

    world.freezer.after_barrier = go_on
    with world.steps():
        await world.commit()
        return world.taken


def body_in(store: MemoryStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as body:
        return body.read()


async def one_death(directory: Path, step: int, *, is_applied: bool) -> str:
    """Die at a step, look at the bucket, go on, look again; gives what was found after the death."""
    world, program = await prepared(directory)
    first = compared(read_generation(world.shared), directory)
    cut = of_disk(world, [1, 2])
    world.mortal.stop_at(step, is_applied=is_applied)
    try:
        await run_commit(world, program)
    except BaseException as problem:
        if not died(problem):
            raise
    is_dead = world.mortal.is_dead
    found = compared(read_generation(world.shared), directory)
    newest = json.loads(body_in(world.shared, keys.manifest_key(SESSION)))["generation"]
    assert found == (first if newest == 1 else cut), (step, is_applied, newest)
    assert compared(read_generation(world.shared, 1), directory) == first
    await world.restart()
    rows = [row[0] for row in program.connection.execute("SELECT value FROM rows ORDER BY value")]
    report = await world.commit()
    assert report.generation > newest or report.is_unchanged
    await world.settle()
    assert compared(read_generation(world.shared), directory) == of_disk(world, rows)
    assert compared(read_generation(world.shared, 1), directory) == first
    live = dict(live_objects(world.shared))
    assert {path for path in live if not path.startswith(b"data.db")} == {
        path for path, body in of_disk(world, rows).items() if body is not None and path != b"data.db"
    }
    program.connection.close()
    if not is_dead:
        return "alive"
    return "before" if newest == 1 else "after"


async def test_a_commit_that_dies_at_any_step_damages_nothing(tmp_path: Path) -> None:
    world, program = await prepared(tmp_path / "count")
    steps = await run_commit(world, program)
    program.connection.close()
    assert steps > 40
    outcomes: list[str] = []
    for step in range(steps):
        for is_applied in (False, True):
            name = f"{step}-{is_applied}"
            outcomes.append(await one_death(tmp_path / name, step, is_applied=is_applied))
    # How many steps there are depends a little on how uploads meet.
    assert outcomes.count("alive") <= len(outcomes) // 10
    print(f"{len(outcomes)} deaths in {steps} steps: {outcomes.count('before')} before the commit point")
    assert outcomes.count("before") > outcomes.count("after") > 0
