"""Clocks give what they say."""

from __future__ import annotations

from sessionfs.model import clock


def test_times_as_text_sort_as_times() -> None:
    first, second = 1_700_000_000_123_456_789, 1_700_000_000_223_456_789
    assert clock.utc_text(first) == "2023-11-14T22:13:20.123456Z"
    assert clock.sortable_stamp(first) == "20231114T221320.123456Z"
    assert clock.sortable_stamp(first) < clock.sortable_stamp(second)


def test_the_system_clock_moves_and_never_repeats_an_id() -> None:
    system = clock.SystemClock()
    assert system.elapsed_seconds() <= system.elapsed_seconds()
    assert system.wall_ns() > first_of_2024()
    assert 0 <= system.jitter() < 1
    assert system.unique_id() != system.unique_id()
    assert len(clock.boot_id()) == 36


def first_of_2024() -> int:
    return 1_704_067_200_000_000_000
