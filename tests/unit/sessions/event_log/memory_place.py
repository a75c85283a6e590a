"""A place in a dictionary, without threads, whose changes of logs can be scripted: for tests of time, faults and cancellation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from sessionfs.model.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat, SessionFiles, SessionPlace

Apply = Callable[[float], FileStat]
"""Makes a change, or the first part of it, and gives the file."""
Fault = Callable[[Apply], Awaitable[FileStat]]


async def refuse(_apply: Apply) -> FileStat:
    raise UnavailableError("the place refuses")


async def lose_answer(apply: Apply) -> FileStat:
    apply(1.0)
    raise OutcomeUnknownError("no answer came")


async def tear(apply: Apply) -> FileStat:
    apply(0.6)
    raise UnavailableError("the place broke in the middle")


async def hang_before(_apply: Apply) -> FileStat:
    await trio.sleep_forever()
    raise AssertionError


async def hang_after(apply: Apply) -> FileStat:
    apply(1.0)
    await trio.sleep_forever()
    raise AssertionError


@dataclass
class SharedBytes:
    """What several places see.

    Attributes:
        bodies: By session and path: bytes and revision.
        owners: Who owns a session.
        faults: What the next changes of logs meet, by session.
        sync_faults: What the next syncs raise, by path.
        meanwhile: Called once, before the next write of a whole log.
    """

    bodies: dict[tuple[str, str], tuple[bytes, int]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    sync_faults: dict[str, list[Exception]] = field(default_factory=dict)
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    revisions: int = 0

    def set(self, session: str, path: str, body: bytes) -> FileStat:
        self.revisions += 1
        self.bodies[session, path] = (body, self.revisions)
        return FileStat(path, len(body), self.revisions, str(self.revisions))


class MemoryFiles(SessionFiles):
    """Files of one session."""

    def __init__(self, shared: SharedBytes, session: SessionId, calls: Counter[tuple[str, str]]) -> None:
        self._shared = shared
        self._session = session
        self._calls = calls

    @property
    def session(self) -> SessionId:
        return self._session

    async def stat(self, path: str) -> FileStat:
        await self._called("stat", path)
        return self._stat(path)

    async def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        await self._called("read", path)
        self._stat(path)
        return self._shared.bodies[self._session, path][0][start:end]

    async def write(
        self,
        path: str,
        body: bytes,
        *,
        is_private: bool = False,
        is_new: bool = False,
        base: FileStat | None = None,
    ) -> FileStat:
        del is_private
        await self._called("write", path)
        if self._shared.meanwhile and "header" not in path:
            self._shared.meanwhile.pop()()
        if is_new and (self._session, path) in self._shared.bodies:
            raise AlreadyExistsError(f"{path} is there")
        if base is not None and self._revision(path) != base.revision:
            raise PreconditionFailedError(f"{path} is another")
        return await self._change(path, b"", body)

    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        del is_synced  # nothing survives this process
        await self._called("append", path)
        if base is not None and self._stat(path).revision != base.revision:
            raise PreconditionFailedError(f"{path} is another")
        return await self._change(path, self._shared.bodies.get((self._session, path), (b"", 0))[0], tail)

    async def list(self, below: str = "") -> list[FileStat]:
        await self._called("list", below)
        return [self._stat(path) for session, path in sorted(self._shared.bodies) if session == self._session]

    async def remove(self, path: str) -> None:
        await self._called("remove", path)
        self._shared.bodies.pop((self._session, path), None)

    async def rename(self, path: str, new: str) -> None:
        raise InvalidRequestError(f"no log renames a file, {path} to {new}")

    async def sync(self, path: str = "") -> None:
        await self._called("sync", path)
        if self._shared.sync_faults.get(path):
            raise self._shared.sync_faults[path].pop(0)

    def _revision(self, path: str) -> str:
        return str(self._shared.bodies.get((self._session, path), (b"", 0))[1])

    async def _called(self, name: str, path: str) -> None:
        await trio.lowlevel.checkpoint()
        self._calls[name, path] += 1

    def _stat(self, path: str) -> FileStat:
        if (self._session, path) not in self._shared.bodies:
            raise NotFoundError(f"no {path}")
        body, revision = self._shared.bodies[self._session, path]
        return FileStat(path, len(body), revision, str(revision))

    async def _change(self, path: str, before: bytes, added: bytes) -> FileStat:
        def apply(part: float) -> FileStat:
            return self._shared.set(self._session, path, before + added[: round(part * len(added))])

        faults = self._shared.faults.get(self._session, [])
        if faults and "header" not in path:
            return await faults.pop(0)(apply)
        return apply(1.0)


class MemoryPlace(SessionPlace):
    """One host's view of the shared bytes.

    Attributes:
        calls: How often each call was made, by name and path.
    """

    def __init__(self, shared: SharedBytes, host: str = "here") -> None:
        self.shared = shared
        self.calls: Counter[tuple[str, str]] = Counter()
        self._host = host

    def files(self, session: SessionId) -> MemoryFiles:
        return MemoryFiles(self.shared, session, self.calls)

    async def list_sessions(self) -> list[SessionId]:
        await trio.lowlevel.checkpoint()
        return sorted({SessionId(session) for session, _ in self.shared.bodies})

    async def remove_session(self, session: SessionId) -> None:
        for key in [key for key in self.shared.bodies if key[0] == session]:
            del self.shared.bodies[key]

    async def read_index(self) -> bytes | None:
        return None

    async def write_index(self, body: bytes) -> None:
        raise InvalidRequestError(f"no index of {len(body)} bytes here")

    async def set_index_aside(self, stamp_seconds: int) -> str | None:
        del stamp_seconds
        return None

    async def claim(self, session: SessionId, *, force: bool = False) -> None:
        del force
        await trio.lowlevel.checkpoint()
        holder = self.shared.owners.setdefault(session, self._host)
        if holder != self._host:
            raise SessionAlreadyOwnedError(f"{session} is {holder}'s", holder=holder)

    async def release(self, session: SessionId) -> None:
        await trio.lowlevel.checkpoint()
        if self.owns(session):
            del self.shared.owners[session]

    def owns(self, session: SessionId) -> bool:
        return self.shared.owners.get(session) == self._host

    async def commit(self, session: SessionId, trigger: str) -> int:
        raise InvalidRequestError(f"no generation of {session} for {trigger} here")
