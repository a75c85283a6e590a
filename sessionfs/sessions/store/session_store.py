"""What a session store is: an index of sessions, and the files of each.

Invariants:

* Every request is checked here before a backend is called (`request_checks`): a bad one raises and changes nothing.
* A backend gives nine core operations. The six derived ones have defaults built from those, and are overridden only to be cheaper.
* Changes of one session by several writers at once are safe as far as the backend's `_append` is; whole files have the last writer's bytes.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from typing import Any

from sessionfs.formats.logs.json_lines import Window, last_lines, split_torn, without_repetitions
from sessionfs.model.errors import InternalError
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat
from sessionfs.sessions.store import request_checks as checks

Line = str | bytes | dict[str, Any]
"""What `SessionStore.append` takes: text, its UTF-8 bytes, or a JSON object."""


class SessionStore(ABC):
    """Sessions, their files and their index. Safe to use from several tasks."""

    # --- the index

    async def read_index(self) -> dict[str, Any]:
        """Read the index; a missing one is empty.

        Raises:
            CorruptDataError: It is no JSON object; the error names the file.
        """
        return checks.read_index_bytes(await self._read_index())

    async def write_index(self, index: dict[str, Any]) -> None:
        """Replace the index; the last writer's stands.

        Args:
            index: A JSON object.

        Raises:
            InvalidRequestError: It is none, or would not read back as it is.
        """
        await self._write_index(checks.index_bytes(index))

    async def quarantine_index(self) -> str | None:
        """Set the index aside, readable or not; from then on it is missing.

        Returns:
            The aside's name, ``sessions.json.corrupt-<seconds>``, above that of every aside before; None when there was no index.
        """
        return await self._quarantine_index()

    # --- sessions

    async def list_sessions(self) -> list[SessionId]:
        """Name the sessions that have a file, sorted."""
        return sorted(await self._list_sessions())

    async def remove_session(self, session: str) -> None:
        """Remove all files of a session; one that is gone is success. The index is left alone.

        Raises:
            InvalidSessionIdError: It is no session id.
        """
        await self._remove_session(checks.checked_session(session))

    # --- files: all raise InvalidSessionIdError and InvalidRequestError for a bad id or path

    async def read_file(self, session: str, path: str) -> bytes:
        """Read a whole file.

        Args:
            session: Its session.
            path: ``/``-separated, relative to the session.

        Raises:
            NotFoundError: There is none.
        """
        return await self._read_file(checks.checked_session(session), checks.checked_file_path(path))

    async def write_file(self, session: str, path: str, body: bytes) -> None:
        """Replace a file, or make it: whole or not at all."""
        await self._write_file(
            checks.checked_session(session), checks.checked_file_path(path), checks.checked_body(body)
        )

    async def append(self, session: str, path: str, line: Line) -> None:
        """Add one line and its newline at the end of a file, which is made when it is missing.

        Other writers' lines are kept, whole. What is in the file already is not looked at. When the answer of a bucket is lost while another
        writer changes the file, the line may be there twice: give lines a ``seq``, and `replay` gives each once. So a writer that is not sure
        whether its line arrived appends it again.

        Args:
            session: The session.
            path: The file.
            line: Text, UTF-8 bytes or a JSON object, without a newline.

        Raises:
            InvalidRequestError: It is no line.
        """
        await self._append(
            checks.checked_session(session), checks.checked_file_path(path), checks.line_bytes(line)
        )

    async def list_files(self, session: str) -> list[str]:
        """List the paths of all files of a session, sorted by their UTF-8 bytes; none for one that does not exist."""
        return sorted(await self._list_files(checks.checked_session(session)), key=os.fsencode)

    async def replay(self, session: str, path: str) -> list[bytes]:
        """Give the lines of a file that say something new, without their newlines.

        A line whose ``seq`` is not above the last one seen in the file is a repetition and dropped; a torn line at the end is left out.

        Raises:
            NotFoundError: There is none.
        """
        whole, _ = split_torn(await self.read_file(session, path))
        return list(without_repetitions(whole.split(b"\n")[:-1]))

    async def read_tail(self, session: str, path: str, budget_bytes: int) -> Window:
        """Give the last whole lines of a file, repetitions included.

        Args:
            session: The session.
            path: The file.
            budget_bytes: Length of the lines together, newlines included, from 1; one line is given even when it is longer.

        Raises:
            NotFoundError: There is none.
        """
        return await self._read_tail(
            checks.checked_session(session),
            checks.checked_file_path(path),
            checks.checked_length(budget_bytes, "budget", least=1),
        )

    async def read_before(self, session: str, path: str, offset: int, budget_bytes: int) -> Window:
        """Give the last whole lines before an offset, as `read_tail`: going back from one window's ``start`` to the next gives every line once.

        Args:
            session: The session.
            path: The file.
            offset: Where the window may end, from 0; inside a line the window ends before that line, behind the file's end it ends there.
            budget_bytes: As in `read_tail`.

        Raises:
            NotFoundError: There is none.
        """
        return await self._read_before(
            checks.checked_session(session),
            checks.checked_file_path(path),
            checks.checked_length(offset, "offset", least=0),
            checks.checked_length(budget_bytes, "budget", least=1),
        )

    async def stat(self, session: str, path: str) -> FileStat:
        """Describe a file.

        Raises:
            NotFoundError: There is none.
        """
        return await self._stat(checks.checked_session(session), checks.checked_file_path(path))

    async def write_private(self, session: str, path: str, body: bytes) -> None:
        """As `write_file`; nobody but the owner may read it where it lies on a disk (0600)."""
        await self._write_private(
            checks.checked_session(session), checks.checked_file_path(path), checks.checked_body(body)
        )

    async def remove_file(self, session: str, path: str) -> None:
        """Remove a file; one that is gone is success."""
        await self._remove_file(checks.checked_session(session), checks.checked_file_path(path))

    async def rename_file(self, session: str, path: str, new: str) -> None:
        """Give a file another path, replacing what is there: a crash leaves both, or the new one, never neither.

        Raises:
            NotFoundError: There is no file at `path`.
        """
        unit, old_path = checks.checked_session(session), checks.checked_file_path(path)
        new_path = checks.checked_file_path(new)
        if old_path == new_path:
            await self._stat(unit, old_path)
        else:
            await self._rename_file(unit, old_path, new_path)

    # --- the nine core operations of a backend; what they are given has been checked

    @abstractmethod
    async def _read_index(self) -> bytes | None:
        """Give the bytes of the index; None when it is missing."""

    @abstractmethod
    async def _write_index(self, body: bytes) -> None:
        """Replace the index, whole or not at all."""

    @abstractmethod
    async def _quarantine_index(self) -> str | None:
        """Do `quarantine_index`."""

    @abstractmethod
    async def _list_sessions(self) -> list[SessionId]:
        """Name the sessions that have a file, in any order."""

    @abstractmethod
    async def _remove_session(self, session: SessionId) -> None:
        """Remove all files of a session; one that is gone is success."""

    @abstractmethod
    async def _read_file(self, session: SessionId, path: str) -> bytes:
        """Read a file; `NotFoundError` when there is none, and that is certain."""

    @abstractmethod
    async def _write_file(self, session: SessionId, path: str, body: bytes) -> None:
        """Replace a file, whole or not at all."""

    @abstractmethod
    async def _append(self, session: SessionId, path: str, line: bytes) -> None:
        """Add a line, which ends with its newline; no other writer's bytes are lost by it."""

    @abstractmethod
    async def _list_files(self, session: SessionId) -> list[str]:
        """List the paths of all files of a session, in any order."""

    # --- the six derived operations: right for every backend, as long as nobody else changes the session during the last two

    async def _read_tail(self, session: SessionId, path: str, budget_bytes: int) -> Window:
        return _window(await self._read_file(session, path), budget_bytes)

    async def _read_before(self, session: SessionId, path: str, offset: int, budget_bytes: int) -> Window:
        return _window((await self._read_file(session, path))[:offset], budget_bytes)

    async def _stat(self, session: SessionId, path: str) -> FileStat:
        """Describe a file by its bytes; the time of its change is not known, and given as 0."""
        body = await self._read_file(session, path)
        return FileStat(path, len(body), 0, hashlib.sha256(body).hexdigest())

    async def _write_private(self, session: SessionId, path: str, body: bytes) -> None:
        """Write a file; a backend that keeps files on a disk others can read overrides this."""
        await self._write_file(session, path, body)

    async def _remove_file(self, session: SessionId, path: str) -> None:
        """Write the session anew without the file.

        Meanwhile the other files are in a session of their own as well, so that a crash loses none; the next removal from the session finishes
        what it left.
        """
        aside = _aside_of(session)
        await self._bring_back(session, aside)
        files = await self._list_files(session)
        if path not in files:
            return
        for other in files:
            if other != path:
                await self._write_file(aside, other, await self._read_file(session, other))
        await self._remove_session(session)
        await self._bring_back(session, aside)

    async def _rename_file(self, session: SessionId, path: str, new: str) -> None:
        await self._write_file(session, new, await self._read_file(session, path))
        await self._remove_file(session, path)

    async def _bring_back(self, session: SessionId, aside: SessionId) -> None:
        kept = await self._list_files(aside)
        there = set(await self._list_files(session))
        for path in kept:
            if path not in there:
                await self._write_file(session, path, await self._read_file(aside, path))
        if kept:
            await self._remove_session(aside)


def _aside_of(session: SessionId) -> SessionId:
    """Where the default removal keeps a session's files meanwhile; short enough whatever the session's id."""
    return SessionId(f"rewriting-{hashlib.sha256(session.encode('utf-8')).hexdigest()}")


def _window(raw: bytes, budget_bytes: int) -> Window:
    found = last_lines(raw, 0, budget_bytes)
    if found is None:
        raise InternalError("a file that was read from its start has no first line")
    return found
