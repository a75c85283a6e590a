"""The session store over any place: a bucket, a local directory, memory, a working copy, a mount.

* Nothing is kept here: two of them over one place, in one process or on two hosts, see the same bytes.
* A change that did not happen because the place did not answer is tried five times in all, where that is wanted; one whose outcome is not known is
  never repeated: it could be a second line. Reads are repeated by the place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from sessionfs.formats.logs.json_lines import Window, last_lines, split_torn
from sessionfs.model.clock import Clock
from sessionfs.model.errors import UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.retry_policy import backoff_seconds
from sessionfs.sessions.port import FileStat, SessionFiles, SessionPlace
from sessionfs.sessions.store.session_store import SessionStore

TRIES = 5
"""How often a change is tried, the first time included."""
_NANOSECONDS = 1_000_000_000
_Result = TypeVar("_Result")


class PlaceSessionStore(SessionStore):
    """A session store over a place.

    Args:
        place: Where the sessions live; it stays open, and stays its owner's.
        clock: The stamp of an index that is set aside, and the jitter of repeated changes.
        backing_off: How long to wait between tries of a change, by its ``retry_`` fields; None to try once, for a place that keeps what it could
            not send, as a working copy does.

    Attributes:
        place: As given.
    """

    def __init__(
        self, place: SessionPlace, clock: Clock, *, backing_off: ReplicationSettings | None = None
    ) -> None:
        self.place = place
        self._clock = clock
        self._backing_off = backing_off

    async def _read_index(self) -> bytes | None:
        return await self.place.read_index()

    async def _write_index(self, body: bytes) -> None:
        await self._change(lambda: self.place.write_index(body))

    async def _quarantine_index(self) -> str | None:
        stamp_seconds = self._clock.wall_ns() // _NANOSECONDS
        return await self._change(lambda: self.place.set_index_aside(stamp_seconds))

    async def _list_sessions(self) -> list[SessionId]:
        return await self.place.list_sessions()

    async def _remove_session(self, session: SessionId) -> None:
        await self._change(lambda: self.place.remove_session(session))

    async def _read_file(self, session: SessionId, path: str) -> bytes:
        return await self.place.files(session).read(path)

    async def _write_file(self, session: SessionId, path: str, body: bytes) -> None:
        await self._change(lambda: self.place.files(session).write(path, body))

    async def _append(self, session: SessionId, path: str, line: bytes) -> None:
        await self._change(lambda: self.place.files(session).append(path, line))

    async def _list_files(self, session: SessionId) -> list[str]:
        return [found.path for found in await self.place.files(session).list()]

    async def _read_tail(self, session: SessionId, path: str, budget_bytes: int) -> Window:
        files = self.place.files(session)
        return await _window(files, path, (await files.stat(path)).size_bytes, budget_bytes)

    async def _read_before(self, session: SessionId, path: str, offset: int, budget_bytes: int) -> Window:
        files = self.place.files(session)
        end = min(offset, (await files.stat(path)).size_bytes)
        return await _window(files, path, end, budget_bytes)

    async def _stat(self, session: SessionId, path: str) -> FileStat:
        return await self.place.files(session).stat(path)

    async def _write_private(self, session: SessionId, path: str, body: bytes) -> None:
        await self._change(lambda: self.place.files(session).write(path, body, is_private=True))

    async def _remove_file(self, session: SessionId, path: str) -> None:
        await self._change(lambda: self.place.files(session).remove(path))

    async def _rename_file(self, session: SessionId, path: str, new: str) -> None:
        await self._change(lambda: self.place.files(session).rename(path, new))

    async def _change(self, change: Callable[[], Awaitable[_Result]]) -> _Result:
        tried = 0
        while True:
            try:
                return await change()
            except UnavailableError:
                tried += 1
                if self._backing_off is None or tried >= TRIES:
                    raise
                pause_seconds = backoff_seconds(tried, self._backing_off, self._clock)
            await trio.sleep(pause_seconds)


async def _window(files: SessionFiles, path: str, end: int, budget_bytes: int) -> Window:
    """Read back from an offset until the lines of a window are whole; each read is of one state of the file."""
    wanted = budget_bytes + 1
    while True:
        start = max(0, end - wanted)
        raw = await files.read(path, start, end) if end > start else b""
        whole, _ = split_torn(raw)
        # A torn line at the end takes room from the lines that fit the budget: then more is read.
        if start == 0 or len(whole) > budget_bytes:
            found = last_lines(whole, start, budget_bytes)
            if found is not None:
                return found
        wanted *= 2
