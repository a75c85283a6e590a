"""What is SQLite's own: the file, its versions, other processes, crashes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    CorruptDataError,
    LocalDiskError,
    TooLargeError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.model.names import session_id
from sessionfs.sessions.catalogue import sqlite_schema
from sessionfs.sessions.catalogue.record import MAX_NUMBER, SessionRecord
from sessionfs.sessions.catalogue.sqlite_catalogue import SqliteCatalogue
from sessionfs.testing.contracts.catalogue import ACME, example

S1 = session_id("s1")


class HandClock(SystemClock):
    """Stands still; moved by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1000

    def wall_ns(self) -> int:
        return self.now_ms * 1_000_000 + 999_999


async def _open(path: Path, busy_timeout_seconds: float = 10.0) -> SqliteCatalogue:
    return await SqliteCatalogue.open(path, SystemClock(), busy_timeout_seconds=busy_timeout_seconds)


def _raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


async def test_what_was_created_is_there_when_the_catalogue_is_opened_again(tmp_path: Path) -> None:
    async with await _open(tmp_path / "c.db") as catalogue:
        made = await catalogue.create(example())
    async with await _open(tmp_path / "c.db") as again:
        assert await again.get(ACME, S1) == made
    assert os.listdir(tmp_path) == ["c.db"]
    assert os.stat(tmp_path / "c.db").st_mode & 0o777 == 0o600


async def test_a_file_whose_name_means_something_to_sqlite_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:x?mode=memory", "a b?c#d"):
        async with await SqliteCatalogue.open(name, SystemClock()) as catalogue:
            await catalogue.create(example())
        async with await SqliteCatalogue.open(name, SystemClock()) as catalogue:
            assert (await catalogue.get(ACME, S1)).id == S1
        assert (tmp_path / name).exists()


async def test_times_are_the_clocks_and_a_change_is_never_earlier_than_the_one_before(tmp_path: Path) -> None:
    clock = HandClock()
    async with await SqliteCatalogue.open(tmp_path / "c.db", clock) as catalogue:
        made = await catalogue.create(SessionRecord(ACME, S1))
        assert (made.created_at_ms, made.updated_at_ms) == (1000, 1000)
        clock.now_ms = 2000
        saved = await catalogue.save(made)
        assert (saved.created_at_ms, saved.updated_at_ms) == (1000, 2000)
        clock.now_ms = 500
        assert (await catalogue.save(saved)).updated_at_ms == 2000
        given = await catalogue.create(SessionRecord(ACME, session_id("s2"), created_at_ms=700))
        assert (given.created_at_ms, given.updated_at_ms) == (700, 700)


async def test_a_revision_that_cannot_grow_is_kept(tmp_path: Path) -> None:
    async with await _open(tmp_path / "c.db") as catalogue:
        last = await catalogue.import_(example(revision=MAX_NUMBER, updated_at_ms=1))
        with pytest.raises(TooLargeError):
            await catalogue.save(last)
        with pytest.raises(TooLargeError):
            await catalogue.import_(example(title="other", revision=1))
        assert await catalogue.scan() == [last]


@pytest.mark.parametrize("mode", ["wal", "delete"])
async def test_a_newer_catalogue_is_refused_and_left_as_it_is(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "c.db"
    async with await _open(path) as catalogue:
        await catalogue.create(example())
    raw = _raw(path)
    raw.execute(f"PRAGMA journal_mode = {mode}")
    raw.execute(f"PRAGMA user_version = {sqlite_schema.VERSION + 1}")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(UnsupportedFormatError) as refusal:
        await _open(path)
    assert (refusal.value.found, refusal.value.supported) == (2, 1)
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c.db"]


async def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    raw = _raw(path)
    raw.execute("CREATE TABLE sessions (id)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(CorruptDataError, match="no catalogue"):
        await _open(path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(CorruptDataError):
        await _open(path)
    assert path.read_bytes() == b"not a database, " * 100


async def test_a_record_that_was_tampered_with_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with await _open(path) as catalogue:
        await catalogue.create(example())
        raw = _raw(path)
        raw.execute("UPDATE sessions SET labels = '{'")
        raw.close()
        for request in (catalogue.get(ACME, S1), catalogue.list(ACME), catalogue.save(example(revision=1))):
            with pytest.raises(CorruptDataError, match="'s1'"):
                await request


async def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match="missing"):
        await _open(tmp_path / "missing" / "c.db")
    assert os.listdir(tmp_path) == []


async def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with await _open(path) as catalogue:
        made = await catalogue.create(example())
        connection = catalogue._connection
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(LocalDiskError) as refusal:
            await catalogue.create(example("s2", metadata=b"x" * 60_000))
        assert refusal.value.errno_number == 28
        assert await catalogue.scan() == [made]


async def test_a_change_that_another_process_holds_up_is_reported_and_did_not_happen(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    other = None
    async with await _open(path, busy_timeout_seconds=0.3) as catalogue:
        made = await catalogue.create(example())
        other = _raw(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="another process"):
            await catalogue.save(replace(made, title="late"))
        assert await catalogue.get(ACME, S1) == made, "a reader does not wait for a writer"
        other.execute("ROLLBACK")
        other.close()
        assert (await catalogue.save(replace(made, title="now"))).title == "now"


async def test_a_change_that_is_cancelled_while_it_waits_never_happens(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with await _open(path, busy_timeout_seconds=60) as catalogue:
        other = _raw(path)
        other.execute("BEGIN IMMEDIATE")
        with trio.move_on_after(0.3) as scope:
            await catalogue.create(example())
        assert scope.cancelled_caught
        other.execute("ROLLBACK")
        other.close()
        assert await catalogue.scan() == []
        await catalogue.create(example())


async def test_closing_waits_for_the_change_under_way(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    catalogue = await _open(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catalogue.create, example())
        await trio.testing.wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await catalogue.close()
    async with await _open(path) as again:
        assert len(await again.scan()) == 1


_WRITER = """
import sys, trio
from sessionfs.model.clock import SystemClock
from sessionfs.sessions.catalogue.sqlite_catalogue import SqliteCatalogue
from sessionfs.testing.contracts.catalogue import example

async def main(path, name, count):
    async with await SqliteCatalogue.open(path, SystemClock()) as catalogue:
        for number in range(int(count)):
            session = f"{name}{number:06d}"
            await catalogue.create(example(session, labels={"id": session}, metadata=session.encode() * 5000))
            print(session, flush=True)

trio.run(main, *sys.argv[1:])
"""

_COUNTER = """
import sys, trio
from dataclasses import replace
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import AlreadyExistsError, PreconditionFailedError
from sessionfs.sessions.catalogue.sqlite_catalogue import SqliteCatalogue
from sessionfs.testing.contracts.catalogue import ACME, example

async def main(path, count):
    async with await SqliteCatalogue.open(path, SystemClock()) as catalogue:
        try:
            await catalogue.create(example("counter", title="0"))
        except AlreadyExistsError:
            pass
        done = 0
        while done < int(count):
            found = await catalogue.get(ACME, "counter")
            try:
                await catalogue.save(replace(found, title=str(int(found.title) + 1)))
            except PreconditionFailedError:
                continue
            done += 1

trio.run(main, *sys.argv[1:])
"""


def _process(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def _end(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=120)
    return said


async def test_a_process_that_is_killed_while_it_creates_leaves_whole_records_only(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    acknowledged: list[str] = []
    for turn in range(3):
        writer = _process(_WRITER, path, f"t{turn}-", 1_000_000)
        assert writer.stdout is not None
        acknowledged += [writer.stdout.readline().strip() for _ in range(10 + 7 * turn)]
        writer.kill()
        acknowledged += _end(writer).split()
    async with await _open(path) as catalogue:
        found = await catalogue.list(ACME, "", 1000)
        whole = [
            replace(
                example(one.id, labels={"id": one.id}, metadata=one.id.encode() * 5000),
                updated_at_ms=one.updated_at_ms,
                revision=1,
            )
            for one in found
        ]
        assert found == whole
        assert {one.id for one in found} >= {name for name in acknowledged if len(name) == len("t0-000000")}
        assert len(found) >= len(acknowledged) - 3
    raw = _raw(path)
    assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    raw.close()


async def test_two_processes_make_the_file_and_change_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writers = [_process(_WRITER, path, name, 40) for name in ("a", "b")]
    for writer in writers:
        _end(writer)
        assert writer.returncode == 0
    async with await _open(path) as catalogue:
        assert len(await catalogue.scan("", 1000)) == 80


async def test_those_who_make_the_file_at_once_all_use_it(tmp_path: Path) -> None:
    for turn in range(5):
        opened: list[SqliteCatalogue] = []

        async def start(number: int, turn: int = turn, opened: list[SqliteCatalogue] = opened) -> None:
            catalogue = await _open(tmp_path / f"{turn}.db")
            opened.append(catalogue)
            await catalogue.create(example(f"s{number}"))

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(start, number)
        assert [len(await catalogue.scan()) for catalogue in opened] == [12] * 12
        for catalogue in opened:
            await catalogue.close()


async def test_no_change_of_two_processes_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    counters = [_process(_COUNTER, path, 40) for _ in range(2)]
    for counter in counters:
        _end(counter)
        assert counter.returncode == 0
    async with await _open(path) as catalogue:
        counted = await catalogue.get(ACME, session_id("counter"))
        assert (counted.title, counted.revision) == ("80", 81)


def test_the_local_catalogue_needs_no_postgresql() -> None:
    program = (
        "import sys, sessionfs.sessions.catalogue.sqlite_catalogue, sessionfs.sessions.catalogue.blocking;"
        "sys.exit('psycopg' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
