"""A large batch of deletions is held; ordinary work is not."""

from __future__ import annotations

from sessionfs.working_copy.deletion_brake import DeletionBrake
from sessionfs.working_copy.exclusions import Exclusions, side_file_of


def brake() -> DeletionBrake:
    return DeletionBrake(limit_files=1000, window_seconds=10)


def note(target: DeletionBrake, first: int, last: int, at: float) -> None:
    for index in range(first, last):
        target.note("s", f"k{index}", at)


def test_deletions_within_the_window_count_together() -> None:
    target = brake()
    note(target, 0, 600, 0)
    note(target, 600, 1001, 5)
    assert len(target.recent(5)["s"]) == 1001
    assert target.is_mass(1001, files_before=100_000)
    assert not target.is_mass(1000, files_before=100_000)


def test_older_ones_do_not_count() -> None:
    target = brake()
    note(target, 0, 600, 0)
    note(target, 600, 1001, 11)
    assert len(target.recent(11)["s"]) == 401
    assert target.recent(100) == {}


def test_the_same_key_counts_once() -> None:
    target = brake()
    for moment in range(5):
        note(target, 0, 120, moment)
    assert len(target.recent(4)["s"]) == 120


def test_half_of_a_session_is_a_mass_unless_it_is_small() -> None:
    assert brake().is_mass(120, files_before=200)
    assert not brake().is_mass(120, files_before=300)
    assert not brake().is_mass(50, files_before=50)


def test_few_deletions_are_not_even_looked_at() -> None:
    target = brake()
    note(target, 0, 99, 0)
    assert target.recent(0) == {}


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
