"""Logs of JSON lines: torn tails, repetitions, windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionfs.formats.logs.json_lines import (
    last_lines,
    seq_of,
    split_torn,
    without_repetitions,
)


def test_what_follows_the_last_newline_is_torn() -> None:
    assert split_torn(b'{"a":1}\n{"b":') == (b'{"a":1}\n', b'{"b":')
    assert split_torn(b"whole\n") == (b"whole\n", b"")
    assert split_torn(b"torn") == (b"", b"torn")


@pytest.mark.parametrize(
    ("line", "seq"),
    [
        (b'{"seq": 3, "x": {"seq": 9}}', 3),
        (b'{"x": {"seq": 9}}', None),
        (b'{"text": "\\"seq\\""}', None),
        (b'{"seq": "3"}', None),
        (b'{"seq": true}', None),
        (b"[1]", None),
        (b'no json "seq"', None),
        (b"", None),
    ],
)
def test_the_seq_of_a_line(line: bytes, seq: int | None) -> None:
    assert seq_of(line) == seq


def test_lines_at_or_below_the_last_seq_are_dropped_and_those_without_one_pass() -> None:
    lines = [
        b'{"seq":1}',
        b"plain",
        b'{"seq":2}',
        b'{"seq":2,"again":1}',
        b'{"seq":1}',
        b"plain",
        b'{"seq":4}',
    ]
    assert list(without_repetitions(lines)) == [
        b'{"seq":1}',
        b"plain",
        b'{"seq":2}',
        b"plain",
        b'{"seq":4}',
    ]


def test_a_tail_never_shows_the_torn_line() -> None:
    window = last_lines(b"one\ntwo\nthree\nto", 0, 100)
    assert window is not None
    assert (window.lines, window.start, window.end) == ((b"one", b"two", b"three"), 0, 14)


def test_a_tail_has_as_many_whole_lines_as_fit_the_budget() -> None:
    raw = b"one\ntwo\nthree\n"
    for budget, lines, start in ((6, (b"three",), 8), (9, (b"three",), 8), (10, (b"two", b"three"), 4)):
        window = last_lines(raw, 0, budget)
        assert window is not None
        assert (window.lines, window.start) == (lines, start)


def test_a_line_longer_than_the_budget_is_given_all_the_same() -> None:
    window = last_lines(b"short\n" + b"x" * 50 + b"\n", 0, 3)
    assert window is not None
    assert (window.lines, window.start) == ((b"x" * 50,), 6)


def test_more_must_be_read_when_the_part_does_not_show_where_a_line_begins() -> None:
    assert last_lines(b"end of a long line\n", 100, 10) is None
    assert last_lines(b"torn", 100, 10) is None
    empty = last_lines(b"torn", 0, 10)
    assert empty is not None
    assert empty.lines == ()


@given(
    st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")), max_size=20),
    st.integers(min_value=1, max_value=40),
    st.integers(min_value=1, max_value=30),
)
def test_windows_going_back_give_every_line_once(lines: list[bytes], budget: int, read_bytes: int) -> None:
    raw = b"".join(line + b"\n" for line in lines) + b"torn"
    found: list[bytes] = []
    end = len(raw)
    while end:
        size = read_bytes
        window = None
        while window is None:
            start = max(0, end - size)
            window = last_lines(raw[start:end], start, budget)
            size *= 2
        assert sum(len(line) + 1 for line in window.lines) <= budget or len(window.lines) == 1
        found = [*window.lines, *found]
        if not window.lines:
            break
        end = window.start
    assert found == lines
