"""What a handle has read of a log. It only ever grows.

Invariants:

* `lines` are verified events in order; they are never taken back, whatever the place shows later.
* Of the whole part that is known only its last bytes are read again, with what is new, and compared: where they differ, the log was written again in
  other frames, or it is another one. That is told by its events, and another log is an error, not an older view.
* A log of an older format is migrated in memory; its raw file is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from sessionfs.formats.events import event as events
from sessionfs.formats.events import log_bytes, older
from sessionfs.formats.events.event import FORMAT, Event
from sessionfs.formats.events.header import Header
from sessionfs.formats.events.log_bytes import Split
from sessionfs.model.errors import CorruptDataError, PreconditionFailedError
from sessionfs.sessions.event_log import finding
from sessionfs.sessions.event_log.finding import Found
from sessionfs.sessions.event_log.turn_repair import OpenTurns
from sessionfs.sessions.port import FileStat, SessionFiles

_IN_A_THREAD_BYTES = 256 << 10
"""More than this is unpacked beside the event loop."""
_COMPARED_BYTES = 4 << 10
"""So much of the whole part is read again: several events with their times, or the checksums of frames."""


class StoredLog:
    """The events of a log that are in the place, as far as they were read. Made by `open_stored`.

    Args:
        files: The session's files.
        found: Which log.

    Attributes:
        header: The log's header; that of the migrated log for an older format.
        lines: Its events.
        whole_bytes: Where the whole part of the raw file ends.
        rest: The raw file behind that: what is torn, and what can be had from it.
    """

    def __init__(self, files: SessionFiles, found: Found) -> None:
        self.header: Header = found.header or Header(id=files.session, created_at=0)
        self.lines: list[bytes] = []
        self.whole_bytes = 0
        self.rest = Split((), 0, (), is_torn=False)
        self._files = files
        self._found = found
        self._seen_revision = ""
        self._seen_end = b""
        self._open_turns = OpenTurns()
        self._fed = 0

    @property
    def version(self) -> int:
        """Format of the raw file."""
        return self._found.version

    @property
    def stat(self) -> FileStat:
        """The raw file as it was when it was last read."""
        return self._found.stat

    @property
    def name(self) -> str:
        """The raw file, for errors."""
        return f"{self._files.session}/{self._found.stat.path}"

    async def refresh(self) -> None:
        """Read what is new.

        Raises:
            NotFoundError: The log is gone.
            CorruptDataError: What is new cannot be read; what was read before stays.
            PreconditionFailedError: Another log has taken its place.
        """
        if self._found.version < FORMAT:
            self._found = await finding.find(self._files)
        else:
            stat = await self._files.stat(self._found.stat.path)
            self._found = Found(FORMAT, self._found.header, stat)
        if self._found.stat.revision == self._seen_revision:
            return
        await self._read()
        self._seen_revision = self._found.stat.revision

    def add(self, lines: Sequence[bytes]) -> None:
        """Take events that were stored by the log's writer."""
        self.lines += lines

    def closers(self) -> list[Event]:
        """Give the events that close what is open."""
        for one in self._decoded(self.lines[self._fed :], self._fed):
            self._open_turns.feed(one)
        self._fed = len(self.lines)
        return self._open_turns.closers()

    async def _read(self) -> None:
        if self._found.version < FORMAT:
            await self._read_older()
            return
        if self._found.header is not None:
            self.header = self._found.header
        stat = self._found.stat
        if stat.size_bytes < self.whole_bytes or (self.lines and not self.whole_bytes):
            # It was of an older format until now, or it is an older view of this log, or another log.
            await self._read_whole(stat)
            return
        seen = self._seen_end
        raw = await self._files.read(stat.path, self.whole_bytes - len(seen), stat.size_bytes)
        if not raw.startswith(seen):
            await self._read_whole(stat)
            return
        try:
            rest, new = await self._parsed(raw[len(seen) :], len(self.lines))
        except CorruptDataError:
            # When another log took its place, that one is read from its own beginning.
            await self._read_whole(stat)
            return
        self._take(rest.lines, new)
        self.whole_bytes += rest.whole_bytes
        self._seen_end = raw[: len(seen) + rest.whole_bytes][-_COMPARED_BYTES:]
        self.rest = rest

    async def _read_whole(self, stat: FileStat) -> None:
        raw = await self._files.read(stat.path)
        rest, found = await self._parsed(raw, 0)
        self._replace(rest.lines, found)
        if len(rest.lines) == len(self.lines):
            self.whole_bytes = rest.whole_bytes
            self._seen_end = raw[: rest.whole_bytes][-_COMPARED_BYTES:]
            self.rest = rest

    async def _read_older(self) -> None:
        raw = await self._files.read(self._found.stat.path)
        migrated = await trio.to_thread.run_sync(
            older.migrate, raw, self._found.version, self._files.session, self.header.encoding
        )
        self.header = migrated.header
        self._replace(migrated.lines, self._decoded(migrated.lines, 0))

    async def _parsed(self, raw: bytes, first_seq: int) -> tuple[Split, list[Event]]:
        def parse() -> tuple[Split, list[Event]]:
            rest = log_bytes.split(raw, self.header.encoding, first_seq, self.name)
            return rest, self._decoded(rest.lines, first_seq)

        return await trio.to_thread.run_sync(parse) if len(raw) > _IN_A_THREAD_BYTES else parse()

    def _decoded(self, lines: Sequence[bytes], first_seq: int) -> list[Event]:
        return [events.decode_stored(line, seq, self.name) for seq, line in enumerate(lines, first_seq)]

    def _replace(self, lines: Sequence[bytes], found: Sequence[Event]) -> None:
        """Take a whole log that must be this one, older or newer than what is known."""
        shared = min(len(lines), len(self.lines))
        if list(lines[:shared]) != self.lines[:shared]:
            raise PreconditionFailedError(
                f"the log of session {self._files.session} was replaced by another", remedy="open it again"
            )
        self._take(lines[shared:], found[shared:])

    def _take(self, lines: Sequence[bytes], found: Sequence[Event]) -> None:
        is_fed = self._fed == len(self.lines)
        self.lines += lines
        if is_fed:
            for one in found:
                self._open_turns.feed(one)
            self._fed = len(self.lines)


async def open_stored(files: SessionFiles) -> StoredLog:
    """Find a session's log and read it.

    Raises:
        NotFoundError: There is none.
        UnsupportedFormatError: It, or an event in it, is of a newer format.
        CorruptDataError: It cannot be read.
    """
    found = await finding.find(files)
    log = StoredLog(files, found)
    await log.refresh()
    return log
