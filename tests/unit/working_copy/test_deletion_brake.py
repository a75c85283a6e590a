"""A large batch of deletions is held; ordinary work is not."""

from __future__ import annotations

from sessionfs.working_copy.deletion_brake import DeletionBrake
from sessionfs.working_copy.exclusions import Exclusions, side_file_of


def brake() -> DeletionBrake:
    return DeletionBrake(limit_files=1000, window_seconds=10)


def note(target: DeletionBrake, count: int, at: float) -> None:
    for index in range(count):
        target.note("s", f"k{index}", at)


def test_more_than_the_limit_within_the_window_is_held_whole() -> None:
    target = brake()
    note(target, 600, 0)
    note(target, 401, 5)
    assert len(target.held("s", 5, files_before=100_000)) == 1001


def test_the_same_number_spread_out_is_not() -> None:
    target = brake()
    note(target, 600, 0)
    note(target, 401, 11)
    assert target.held("s", 11, files_before=100_000) == []


def test_half_of_a_session_is_held_unless_it_is_small() -> None:
    target = brake()
    note(target, 120, 0)
    assert len(target.held("s", 0, files_before=200)) == 120
    target = brake()
    note(target, 50, 0)
    assert target.held("s", 0, files_before=50) == []


def test_sessions_are_counted_apart_and_forgotten() -> None:
    target = brake()
    note(target, 600, 0)
    assert target.held("other", 0, files_before=1) == []
    assert target.sessions() == ["s"]
    assert target.held("s", 100, files_before=1) == []
    assert target.sessions() == []


def test_exclusions_match_names_anywhere_and_paths_as_a_whole() -> None:
    excluded = Exclusions(("*.tmp", "build/**", "session.lock"))
    assert excluded.match(b"a/b.tmp")
    assert excluded.match(b"build/x/y")
    assert excluded.match(b"deep/session.lock")
    assert not excluded.match(b"src/build/x")
    assert not excluded.match(b"tmp")
    assert excluded.match(b"\xff.tmp")
    assert not Exclusions(()).match(b"x")


def test_side_files_name_their_database() -> None:
    assert side_file_of(b"x.db-wal") == b"x.db"
    assert side_file_of(b"x.sqlite-journal") == b"x.sqlite"
    assert side_file_of(b"-wal") is None
    assert side_file_of(b"x.wal") is None
