"""Events are numbered, bounded, and the rare ones outlive the frequent ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.working_copy import upload_journal
from sessionfs.working_copy.upload_journal import UploadJournal


def test_an_outage_is_not_pushed_out_by_the_writes_during_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_journal, "MAX_EVENTS", 100)
    journal = UploadJournal(str(tmp_path / "journal.db"), clock=SystemClock())
    journal.add_event("session.storage.degraded", {"reason": "away"})
    with journal.transaction():
        for number in range(3000):
            journal.add_event("session.file.updated", {"path": f"f{number}"})
    kept = journal.events(0, 10_000)
    assert kept[0].name == "session.storage.degraded"
    assert kept[0].number == 1
    assert kept[-1].number == 3001
    assert len(kept) < 100 + 2 * 1024
    assert [event.number for event in journal.events(2999, 10)] == [3000, 3001]
    journal.close()
    again = UploadJournal(str(tmp_path / "journal.db"), clock=SystemClock())
    again.add_event("session.storage.recovered", {})
    assert again.events(3001, 10)[0].number == 3002
    again.close()


def test_events_name_shared_roots_as_people_do_and_leave_paths_alone(tmp_path: Path) -> None:
    journal = UploadJournal(str(tmp_path / "journal.db"), clock=SystemClock())
    fields: dict[str, str | int | float | bool] = {
        "session_id": "%eval%run7",
        "path": "a%eval%b",
        "problem": "session %eval%run7 is lost",
        "files": 3,
    }
    journal.add_event("session.lost", fields)
    (event,) = journal.events(0, 10)
    assert event.fields == {
        "session_id": "eval/run7", "path": "a%eval%b", "problem": "session eval/run7 is lost", "files": 3,
    }  # fmt: skip
    journal.close()
