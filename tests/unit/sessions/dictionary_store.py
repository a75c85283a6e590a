"""A session store in a dictionary with the nine core operations alone: what the derived ones do by default is tried on it."""

from __future__ import annotations

from collections.abc import Callable

import trio

from sessionfs.model.errors import NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.sessions.store.session_store import SessionStore


class DictionaryStore(SessionStore):
    """Files by session and path.

    Args:
        before: Called before each operation that changes something, with its name.

    Attributes:
        files: The bytes of all files.
        calls: Names of the core operations that were called.
    """

    def __init__(self, before: Callable[[str], None] = lambda _name: None) -> None:
        self.files: dict[tuple[str, str], bytes] = {}
        self.calls: list[str] = []
        self._before = before
        self._index: bytes | None = None
        self._asides = 0

    async def _read_index(self) -> bytes | None:
        await self._called("read_index")
        return self._index

    async def _write_index(self, body: bytes) -> None:
        await self._changing("write_index")
        self._index = body

    async def _quarantine_index(self) -> str | None:
        await self._changing("quarantine_index")
        if self._index is None:
            return None
        self._index = None
        self._asides += 1
        return f"sessions.json.corrupt-{self._asides}"

    async def _list_sessions(self) -> list[SessionId]:
        await self._called("list_sessions")
        return [SessionId(session) for session in {session for session, _ in self.files}]

    async def _remove_session(self, session: SessionId) -> None:
        await self._changing("remove_session")
        self.files = {name: body for name, body in self.files.items() if name[0] != session}

    async def _read_file(self, session: SessionId, path: str) -> bytes:
        await self._called("read_file")
        try:
            return self.files[session, path]
        except KeyError:
            raise NotFoundError(f"session {session} has no file {path!r}") from None

    async def _write_file(self, session: SessionId, path: str, body: bytes) -> None:
        await self._changing("write_file")
        self.files[session, path] = body

    async def _append(self, session: SessionId, path: str, line: bytes) -> None:
        await self._changing("append")
        self.files[session, path] = self.files.get((session, path), b"") + line

    async def _list_files(self, session: SessionId) -> list[str]:
        await self._called("list_files")
        return [path for owner, path in self.files if owner == session]

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        await trio.lowlevel.checkpoint()

    async def _changing(self, name: str) -> None:
        await self._called(name)
        self._before(name)
