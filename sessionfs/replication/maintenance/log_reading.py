"""Reads a session's logs from the bucket: whole lines, repetitions dropped, from the start or backwards from an offset.

A log that grows while it is read goes on being read: its lineage says that it only grew.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from sessionfs.formats import object_metadata
from sessionfs.formats.logs import zstd_log
from sessionfs.formats.logs.json_lines import Repetitions, Window, last_lines, split_torn, without_repetitions
from sessionfs.model import keys, names
from sessionfs.model.errors import ConflictError, InvalidRequestError, NotFoundError, PreconditionFailedError
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ByteRange, ObjectStat

_RANGE_BYTES = 4 << 20
_TAIL_BYTES = 64 << 10
_SEALED_SUFFIX = b".zst"
_LOG_SUFFIX = re.compile(rb"\.jsonl(\.zst)?$")


@dataclass(frozen=True, slots=True)
class Log:
    """One file of lines.

    Attributes:
        path: Inside its session.
        stat: Its object.
        is_sealed: It is a sealed segment.
    """

    path: bytes
    stat: ObjectStat
    is_sealed: bool


class LogReader:
    """Reads logs.

    Args:
        store: The bucket.
    """

    def __init__(self, store: TrioStore) -> None:
        self._store = store

    async def find(self, session: SessionId, path: bytes) -> Log:
        """Find a log.

        Raises:
            NotFoundError: There is no such object.
            UnavailableError, AccessError: Nothing is known.
        """
        key = keys.live_key(session, path, is_directory=False)
        found = await self._store.head(key, tries=READ_TRIES) if key is not None else None
        if found is None:
            raise NotFoundError(
                f"there is no {session}/{names.display(path)} in the store",
                remedy=f"'sessionfs diff STORE {session} 0 GENERATION' lists what a generation has",
            )
        return Log(path, found, path.endswith(_SEALED_SUFFIX))

    async def segments(self, session: SessionId, path: bytes) -> list[Log]:
        """Find the sealed segments of a log, the oldest first, and the log itself at the end.

        Segments of ``journal/events.jsonl`` are ``journal/events-001.jsonl.zst`` and so on.
        """
        directory, slash, name = path.rpartition(b"/")
        stem = _LOG_SUFFIX.sub(b"", name)
        prefix = keys.live_key(session, directory, is_directory=True)
        if prefix is None:
            return [await self.find(session, path)]
        listed, _ = await self._store.list_all(prefix, whole_segments=True)
        sealed: list[tuple[int, Log]] = []
        pattern = re.compile(re.escape(stem) + rb"-(\d+)\.jsonl(\.zst)?")
        for found in listed:
            live = keys.parse_live_key(found.key)
            matched = pattern.fullmatch(live.path[len(directory + slash) :]) if live is not None else None
            if live is not None and matched is not None:
                log = Log(live.path, found, live.path.endswith(_SEALED_SUFFIX))
                sealed.append((int(matched.group(1)), log))
        sealed.sort(key=lambda pair: (pair[0], pair[1].path))
        return [*(log for _, log in sealed), await self.find(session, path)]

    async def lines(self, log: Log) -> AsyncIterator[bytes]:
        """Give every whole line of a log that says something new.

        Raises:
            CorruptDataError: A frame of a sealed segment does not verify; what was before it was given.
            ConflictError: The file was replaced while it was read.
            UnavailableError, AccessError: The store does not answer.
        """
        seen = Repetitions()
        if log.is_sealed:
            chunks = [chunk async for chunk in self._chunks(log)]
            for line in zstd_log.lines_of(chunks, log.stat.key):
                if seen.is_new(line):
                    yield line
            return
        carry = b""
        async for chunk in self._chunks(log):
            whole, carry = split_torn(carry + chunk)
            for line in _split(whole):
                if seen.is_new(line):
                    yield line

    async def tail(self, logs: list[Log], count: int) -> list[bytes]:
        """Give the last lines of a log and its segments that say something new; only as much as needed is read.

        Args:
            logs: The oldest first.
            count: How many lines, from 1.

        Raises:
            As `lines`.
        """
        found: list[bytes] = []
        for log in reversed(logs):
            wanted = count - len(found)
            if wanted <= 0:
                break
            found = [*await self._tail_of(log, wanted), *found]
        return found

    async def _tail_of(self, log: Log, count: int) -> list[bytes]:
        if log.is_sealed:
            last: deque[bytes] = deque(maxlen=count)
            async for line in self.lines(log):
                last.append(line)
            return list(last)
        budget_bytes = _TAIL_BYTES
        while True:
            window = await self.window(log, None, budget_bytes)
            new = list(without_repetitions(window.lines))
            # A repetition is only known for one when what it repeats was read too: one window more than seems needed.
            if window.start == 0 or len(new) > 2 * count:
                return new[-count:]
            budget_bytes *= 4

    async def window(self, log: Log, end: int | None, budget_bytes: int) -> Window:
        """Give the last whole lines before an offset, repetitions included, so that offsets are those of the file.

        Args:
            log: A log that is not sealed.
            end: Offset of the start of a line, as a window before had it; None for the file's end.
            budget_bytes: Length of the lines together, from 1; one line is given even when it is longer.

        Raises:
            InvalidRequestError: The log is sealed: its bytes are not its lines.
            And as `lines`.
        """
        if log.is_sealed:
            raise InvalidRequestError(
                f"{names.display(log.path)} is sealed and can only be read from its start",
                remedy="leave out --before",
            )
        end = log.stat.size_bytes if end is None else min(end, log.stat.size_bytes)
        wanted = budget_bytes + 1
        while True:
            start = max(0, end - wanted)
            raw = await self._range(log, start, end) if end > start else b""
            found = last_lines(raw, start, budget_bytes)
            if found is not None:
                return found
            wanted *= 2

    async def _chunks(self, log: Log) -> AsyncIterator[bytes]:
        for start in range(0, log.stat.size_bytes, _RANGE_BYTES):
            yield await self._range(log, start, min(start + _RANGE_BYTES, log.stat.size_bytes))

    async def _range(self, log: Log, start: int, end: int) -> bytes:
        token = log.stat.token
        while True:
            try:
                return await self._store.read(
                    log.stat.key, byte_range=ByteRange(start, end), expected=token, tries=READ_TRIES
                )
            except PreconditionFailedError:
                now = await self._store.head(log.stat.key, tries=READ_TRIES)
                if now is None or now.size_bytes < log.stat.size_bytes or _lineage(now) != _lineage(log.stat):
                    raise ConflictError(
                        f"{names.display(log.path)} was replaced while it was read", remedy="run it again"
                    ) from None
                token = now.token


def _lineage(found: ObjectStat) -> str:
    return object_metadata.decode_provenance(found.metadata.user).lineage if found.metadata else ""


def _split(whole: bytes) -> Iterator[bytes]:
    return iter(whole.split(b"\n")[:-1])
