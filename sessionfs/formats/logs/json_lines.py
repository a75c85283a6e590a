"""Logs of one JSON text a line: what is whole, what is a repetition, and windows of whole lines.

A line ends with a newline. What follows the last newline is torn: a program is in the middle of it, or died there; nobody is shown it. A writer
that was not sure whether a line arrived writes it again with the same ``seq``: readers drop lines whose ``seq`` is not above the last one seen in
that file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

NEWLINE = b"\n"


class _Numbered(msgspec.Struct):
    seq: int | None = None


_decoder = msgspec.json.Decoder(_Numbered)


@dataclass(frozen=True, slots=True)
class Window:
    """Whole lines of a file, one after the other.

    Attributes:
        lines: Without their newlines.
        start: Offset of the first in the file, bytes; what to ask for next when going back.
        end: Offset behind the newline of the last.
    """

    lines: tuple[bytes, ...]
    start: int
    end: int


class Repetitions:
    """The ``seq`` rule for the lines of one file, in order."""

    def __init__(self) -> None:
        self._last: int | None = None

    def is_new(self, line: bytes) -> bool:
        """Whether a line says something new; a line without a ``seq`` always does."""
        seq = seq_of(line)
        if seq is None:
            return True
        if self._last is not None and seq <= self._last:
            return False
        self._last = seq
        return True


def seq_of(line: bytes) -> int | None:
    """The ``seq`` of a line; None when it has none, or is no JSON object."""
    if b'"seq"' not in line:
        return None
    try:
        return _decoder.decode(line).seq
    except msgspec.DecodeError:
        return None


def split_torn(raw: bytes) -> tuple[bytes, bytes]:
    """Part the whole lines from what follows the last newline."""
    end = raw.rfind(NEWLINE) + 1
    return raw[:end], raw[end:]


def without_repetitions(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Give the lines of one file that say something new."""
    seen = Repetitions()
    return (line for line in lines if seen.is_new(line))


def last_lines(raw: bytes, start: int, budget_bytes: int) -> Window | None:
    """Give the last whole lines of a part of a file, as many as fit a budget, at least one.

    Args:
        raw: The part; it ends where the window may end: at the file's end (a torn tail is left out), or at the start of a line.
        start: Its offset in the file.
        budget_bytes: Length of the lines together, newlines included, from 1.

    Returns:
        The window, empty when the file has no whole line before its end; None when more must be read before `start` to know where the
        first line begins.
    """
    whole, _ = split_torn(raw)
    if not whole:
        return Window((), start, start) if start == 0 else None
    begin = max(0, len(whole) - budget_bytes)
    if begin > 0 or start > 0:
        # The byte before a line is a newline: the first line is whole only when that one is seen.
        newline = whole.find(NEWLINE, max(0, begin - 1), len(whole) - 1)
        if newline < 0:
            # The last line alone is longer than the budget: it is given all the same.
            newline = whole.rfind(NEWLINE, 0, len(whole) - 1)
        if newline < 0 and start > 0:
            return None
        begin = newline + 1
    lines = whole[begin:].split(NEWLINE)[:-1]
    return Window(tuple(lines), start + begin, start + len(whole))
