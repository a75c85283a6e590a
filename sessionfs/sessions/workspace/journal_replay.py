"""Reading a journal: its segments in order, then what is active, each record once.

A segment that is sealed while the journal is read is read before what is active then: a reader never misses what moved.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Self

import msgspec
import trio

from sessionfs.formats.logs import json_lines, zstd_log
from sessionfs.model.errors import CorruptDataError, NotFoundError
from sessionfs.sessions.workspace.observation.observed_files import ObservedFiles

DIRECTORY = "journal"
ACTIVE = "journal/active.jsonl"
_SEGMENT = re.compile(r"journal/events-([0-9]{3,9})\.jsonl\.zst")


class Replay:
    """The records of a journal, one after the other; may be left at any time.

    Args:
        files: Where the journal is.
        after: Leave out records up to this `seq`, from 0.
    """

    def __init__(self, files: ObservedFiles, after: int) -> None:
        self._files = files
        self._after = after
        self._seen = json_lines.Repetitions()
        self._last = 0
        self._read: set[str] = set()
        self._lines: deque[bytes] = deque()
        self._path = ""
        """Of the lines; "" before the first."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        """Give the next record.

        Raises:
            CorruptDataError: A segment does not verify, a line is no JSON object, or records are missing.
            UnavailableError: The place did not answer.
        """
        while True:
            while not self._lines:
                if self._path == ACTIVE:
                    raise StopAsyncIteration
                await self._next_file()
            line = self._lines.popleft()
            if not self._seen.is_new(line):
                continue
            record = _record(line, self._path)
            number = json_lines.seq_of(line)
            if number is not None:
                if number != self._last + 1:
                    lacking = f"{self._last + 1} to {number - 1}"
                    raise CorruptDataError(f"{self._path}: the journal lacks records {lacking}")
                self._last = number
            if number is None or number > self._after:
                return record

    async def _next_file(self) -> None:
        path = await self._unread_segment()
        if path is None:
            active = await lines_of(self._files, ACTIVE)
            path = await self._unread_segment()
            if path is None:
                self._path = ACTIVE
                self._lines.extend(active)
                return
        self._lines.extend(await lines_of(self._files, path))
        self._read.add(path)
        self._path = path

    async def _unread_segment(self) -> str | None:
        paths = (await segments(self._files)).values()
        return next((path for path in paths if path not in self._read), None)


async def segments(files: ObservedFiles) -> dict[int, str]:
    """Give the paths of the sealed segments by their numbers, in order."""
    found: dict[int, str] = {}
    for stat in await files.list(DIRECTORY):
        match = _SEGMENT.fullmatch(stat.path)
        if match is not None:
            found[int(match[1])] = stat.path
    return dict(sorted(found.items()))


async def lines_of(files: ObservedFiles, path: str) -> list[bytes]:
    """Give the whole lines of a file of the journal; an active file that is missing has none.

    Raises:
        CorruptDataError: A segment does not verify.
    """
    try:
        raw = await files.read(path)
    except NotFoundError:
        if path == ACTIVE:
            return []
        raise
    if path != ACTIVE:
        return await trio.to_thread.run_sync(lambda: list(zstd_log.lines_of([raw], path)))
    return json_lines.split_torn(raw)[0].split(json_lines.NEWLINE)[:-1]


def _record(line: bytes, path: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as problem:
        raise CorruptDataError(f"{path} has a line that is no JSON object: {problem}") from None
    return record
