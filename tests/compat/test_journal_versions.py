"""Upload journals of released versions open in place, and lose nothing."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import UnsupportedFormatError
from sessionfs.working_copy.upload_journal import UploadJournal

GOLDEN = Path(__file__).parent / "golden"


def written_by(version: int, directory: Path) -> str:
    path = directory / "journal.db"
    database = sqlite3.connect(path)
    database.executescript((GOLDEN / f"journal-{version}.sql").read_text())
    database.execute(f"PRAGMA user_version = {version}")
    database.close()
    return str(path)


def test_a_journal_of_version_1_is_taken_over(tmp_path: Path) -> None:
    journal = UploadJournal(written_by(1, tmp_path), clock=SystemClock())
    row = journal.session("s")
    assert row is not None
    assert (row.generation, row.manifest_token, row.written, row.changed) == (4, "m", True, True)
    assert (row.epoch, row.owner_state, row.tree_of) == (0, "", 0)
    known = journal.object("sessions/s/f%FF")
    assert known is not None
    assert (known.token, known.sha256, known.size_bytes, known.epoch) == ("t1", "a" * 64, 3, 0)
    assert journal.is_named("sessions/s/f%FF")
    assert journal.resolve("s", b"f\xff") == 11
    assert [work.key for work in journal.session_work("s")] == ["sessions/s/"]
    assert journal.attempts("sessions/s/") == [("w2", 0)]
    assert [(found.key, found.holder, found.reason) for found in journal.conflicts()] == [
        ("sessions/s.conflicts/f/x-y", "y", "")
    ]
    assert [event.name for event in journal.events(0, 10)] == ["session.file.created"]
    # Only what was there before may be named by a manifest of then.
    journal.put_object(replace(known, key="sessions/s/new"))
    assert not journal.is_named("sessions/s/new")
    journal.close()
    again = UploadJournal(str(tmp_path / "journal.db"), clock=SystemClock())
    assert not again.fresh
    again.close()


def test_a_journal_of_version_2_opens(tmp_path: Path) -> None:
    journal = UploadJournal(written_by(2, tmp_path), clock=SystemClock())
    row = journal.session("s")
    assert row is not None
    assert (row.generation, row.epoch, row.owner_state, row.recovery, row.turn) == (
        4,
        4,
        "held",
        "committed",
        2,
    )
    key = "sessions/s/f%FF"
    known = journal.object(key)
    assert known is not None
    assert (known.token, known.lineage, known.epoch) == ("t1", "l1", 4)
    assert journal.is_named(key)
    assert [(prefix.size_bytes, prefix.is_proven) for prefix in journal.prefixes(key)] == [
        (1, False),
        (2, True),
    ]
    assert journal.blocks("a" * 64) == ("d" * 64,)
    assert journal.is_base(key, "t0")
    assert journal.was_base(key, "w0")
    assert journal.resolve("s", b"f\xff") == 11
    assert [work.key for work in journal.session_work("s")] == ["sessions/s/"]
    assert journal.meta("log_position") == "17"
    journal.close()


def test_a_taken_over_journal_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    UploadJournal(written_by(1, tmp_path), clock=SystemClock()).close()
    UploadJournal(str(tmp_path / "new.db"), clock=SystemClock()).close()

    def columns(name: str) -> dict[str, set[str]]:
        database = sqlite3.connect(tmp_path / name)
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {
            table: {row[1] for row in database.execute(f"PRAGMA table_info({table})")} for table in tables
        }
        indices = {row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}
        database.close()
        return {**found, "indices": indices}

    assert columns("journal.db") == columns("new.db")
    (tmp_path / "journal.db").unlink()
    written_by(2, tmp_path)
    assert columns("journal.db") == columns("new.db")


def test_a_newer_journal_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = written_by(1, tmp_path)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(UnsupportedFormatError, match="99"):
        UploadJournal(path, clock=SystemClock())
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone() == (99,)
    database.close()
