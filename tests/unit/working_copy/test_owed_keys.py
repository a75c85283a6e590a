"""What is owed, asked for cheaply: whole sessions by key, one row when one is enough, and each directory once."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.names import SessionId
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.upload_journal import UploadJournal

S = SessionId("s")
FILE, DIRECTORY = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[UploadJournal]:
    """A session with ``a`` and ``d/e/`` in which ``f\\xff`` is, and ``gone`` whose bytes are not on this disk."""
    made = UploadJournal(str(tmp_path / "journal.db"), clock=SystemClock())
    made.add_session(S, 2, known=True, written=True)
    for number, parent, name, mode in (
        (2, ROOT_NUMBER, b"s", DIRECTORY),
        (3, 2, b"a", FILE),
        (4, 2, b"d", DIRECTORY),
        (5, 4, b"e", DIRECTORY),
        (6, 5, b"f\xff", FILE),
        (7, 2, b"gone", FILE),
    ):
        made.put_node(number, mode=mode, present=number != 7)
        made.link(parent, name, number)
    yield made
    made.close()


def statements(journal: UploadJournal) -> list[str]:
    """Every statement from now on."""
    seen: list[str] = []
    journal._database.set_trace_callback(seen.append)
    return seen


def key(path: bytes, *, is_directory: bool = False) -> str:
    found = keys.live_key(S, path, is_directory=is_directory)
    assert found is not None
    return found


def test_what_is_at_several_keys_is_what_is_at_each(journal: UploadJournal) -> None:
    asked = [
        key(b"", is_directory=True), key(b"a"), key(b"a", is_directory=True), key(b"d", is_directory=True), key(b"d"),
        key(b"d/e", is_directory=True), key(b"d/e/f\xff"), key(b"d/none"), key(b"none/f"), key(b"a/f"), key(b"gone"),
        "sessions/s/.sessionfs/x", "sessions/s/a//b", "sessions/none/a", "elsewhere",
    ]  # fmt: skip
    one_by_one = [(found.node.number, found.path) for one in asked if (found := journal.wanted(one))]
    assert [pair for pair in one_by_one if pair[0] != 7] == journal.present_at(asked)
    assert len(journal.present_at(asked)) == 5


def test_each_directory_is_looked_up_once_for_all_keys_in_it(journal: UploadJournal) -> None:
    for number in range(100, 200):
        journal.put_node(number, mode=FILE, present=True)
        journal.link(5, b"%d" % number, number)
    asked = [key(b"d/e/%d" % number) for number in range(100, 200)]
    seen = statements(journal)
    assert len(journal.present_at(asked)) == 100
    assert len(seen) == 100 + 3


def test_a_mark_is_another_when_its_row_went_and_came_back(journal: UploadJournal) -> None:
    journal.mark(key(b"a"), S, 10)
    journal.mark(key(b"d/e/f\xff"), S, 5)
    before = journal.owed_keys(S)
    assert list(before) == [key(b"d/e/f\xff"), key(b"a")]
    journal.mark(key(b"a"), S, 10)
    assert journal.owed_keys(S)[key(b"a")] != before[key(b"a")]
    assert journal.finish_work(key(b"d/e/f\xff"), 0)
    journal.mark(key(b"d/e/f\xff"), S, 11)
    assert journal.owed_keys(S)[key(b"d/e/f\xff")] != before[key(b"d/e/f\xff")]


def test_whether_a_session_owes_something_and_how_much(journal: UploadJournal) -> None:
    assert (journal.owes(S), journal.work_count(S), journal.owing_sessions()) == (False, 0, [])
    journal.mark(key(b"a"), S, 1)
    journal.mark(key(b"d", is_directory=True), S, 1)
    journal.mark("sessions/unknown/x", "unknown", 1)
    journal.update_session(S, owner_state="lost")
    assert (journal.owes(S), journal.work_count(S), journal.owing_sessions()) == (True, 2, [(S, "lost")])
    assert not journal.owes("other")


def test_sessions_that_have_no_name_any_more(journal: UploadJournal) -> None:
    assert journal.unnamed_sessions() == []
    journal.unlink(ROOT_NUMBER, b"s")
    assert journal.unnamed_sessions() == [S]
