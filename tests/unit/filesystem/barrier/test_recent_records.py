from __future__ import annotations

from sessionfs.filesystem.barrier.recent_records import RecentRecords


def test_only_records_behind_the_position_are_given() -> None:
    recent = RecentRecords()
    for number, position in ((1, 10), (2, 20), (3, 30)):
        recent.note(number, position)
    assert sorted(recent.after(10)) == [2, 3]
    assert list(recent.after(30)) == []


def test_the_newest_record_of_a_file_counts() -> None:
    recent = RecentRecords()
    recent.note(1, 10)
    recent.note(2, 20)
    recent.note(1, 30)
    recent.consume(20)
    assert list(recent.after(0)) == [1]


def test_what_the_journal_holds_is_forgotten() -> None:
    recent = RecentRecords()
    for number in range(100):
        recent.note(number, number)
    recent.consume(98)
    assert list(recent.after(-1)) == [99]
    recent.forget(99)
    recent.forget(99)
    recent.consume(1000)
    assert list(recent.after(-1)) == []
