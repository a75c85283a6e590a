"""A place in memory that makes generations, goes down and dies when a test wants it; and a clock that stands still."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from sessionfs.model.errors import (
    AlreadyExistsError,
    NotFoundError,
    OwnershipLostError,
    PreconditionFailedError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat, SessionFiles, SessionPlace, checked_path
from sessionfs.sessions.workspace.observation.events import WorkspaceEvent


class Killed(BaseException):
    """The process ends here."""


class HandClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self._ids = itertools.count(1)

    def wall_ns(self) -> int:
        return 1_800_000_000_000_000_000 + int(self.seconds * 1e9)

    def elapsed_seconds(self) -> float:
        return self.seconds

    def jitter(self) -> float:
        return 0.0

    def unique_id(self) -> str:
        return f"{next(self._ids):032x}"


@dataclass
class Disk:
    """What outlives a process.

    Attributes:
        files: Bytes and revision, by session and path.
        owners: Who owns a session.
        generations: What was committed, oldest first.
    """

    files: dict[str, dict[str, tuple[bytes, str]]] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    generations: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list)
    revisions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def put(self, session: str, path: str, body: bytes) -> None:
        """Change a file as another program would."""
        self.files.setdefault(session, {})[path] = (body, str(next(self.revisions)))

    def remove(self, session: str, path: str) -> None:
        """Remove a file as another program would."""
        del self.files[session][path]

    def bodies(self, session: str) -> dict[str, bytes]:
        """Give the files of a session."""
        return {path: body for path, (body, _) in sorted(self.files.get(session, {}).items())}


class MemoryPlace(SessionPlace):
    """A place over a disk; several places are several processes.

    Attributes:
        is_down: Nothing is answered.
        trouble: As of a place that takes writes while nothing reaches the bucket.
        before: Called before each request, with its name and path.
        kill_at: The process dies at this change, counted from the first.
        is_after: It dies right after the change was applied.
        changes: Changes so far.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.is_down = False
        self.trouble = ""
        self.before: Callable[[str, str], None] = lambda _name, _path: None
        self.kill_at = 0
        self.is_after = False
        self.changes = 0
        self.is_dead = False
        self.synced: list[str] = []
        self.private: set[str] = set()

    async def asked(self, name: str, path: str = "") -> None:
        await trio.lowlevel.checkpoint()
        if self.is_dead:
            raise Killed
        self.before(name, path)
        if self.is_down:
            raise UnavailableError("the place does not answer")

    def change(self, apply: Callable[[], None]) -> None:
        self.changes += 1
        is_last = self.changes == self.kill_at
        if not is_last or self.is_after:
            apply()
        if is_last:
            self.is_dead = True
            raise Killed

    def files(self, session: SessionId) -> MemoryFiles:
        return MemoryFiles(self, session)

    async def list_sessions(self) -> list[SessionId]:
        await self.asked("list_sessions")
        return sorted(SessionId(one) for one, files in self.disk.files.items() if files)

    async def remove_session(self, session: SessionId) -> None:
        await self.asked("remove_session")
        self.disk.files.pop(session, None)

    async def read_index(self) -> bytes | None:
        return None

    async def write_index(self, body: bytes) -> None:
        del body
        raise AssertionError("a workspace writes no index")

    async def set_index_aside(self, stamp_seconds: int) -> str | None:
        del stamp_seconds
        return None

    async def claim(self, session: SessionId, *, force: bool = False) -> None:
        del force
        await self.asked("claim", session)
        if self.disk.owners.setdefault(session, self) is not self:
            raise SessionAlreadyOwnedError(f"{session} is owned", holder="other")

    async def release(self, session: SessionId) -> None:
        await self.asked("release", session)
        if self.owns(session):
            del self.disk.owners[session]

    def owns(self, session: SessionId) -> bool:
        return self.disk.owners.get(session) is self

    async def commit(self, session: SessionId, trigger: str) -> int:
        await self.asked("commit", session)
        self.disk.generations.append((session, trigger, self.disk.bodies(session)))
        return len(self.disk.generations)


class MemoryFiles(SessionFiles):
    """Files of one session in a place."""

    def __init__(self, place: MemoryPlace, session: SessionId) -> None:
        self._place = place
        self._session = session

    @property
    def session(self) -> SessionId:
        return self._session

    @property
    def _here(self) -> dict[str, tuple[bytes, str]]:
        return self._place.disk.files.setdefault(self._session, {})

    def _shown(self, path: str) -> FileStat:
        if path not in self._here:
            raise NotFoundError(f"no {path}")
        body, revision = self._here[path]
        return FileStat(path, len(body), int(revision), revision)

    async def stat(self, path: str) -> FileStat:
        await self._place.asked("stat", path)
        return self._shown(checked_path(path))

    async def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        await self._place.asked("read", path)
        self._shown(path)
        return self._here[path][0][start:end]

    async def write(
        self,
        path: str,
        body: bytes,
        *,
        is_private: bool = False,
        is_new: bool = False,
        base: FileStat | None = None,
    ) -> FileStat:
        await self._place.asked("write", path)
        if is_private:
            self._place.private.add(path)
        self._require_owner()
        if is_new and path in self._here:
            raise AlreadyExistsError(f"{path} is there")
        self._require_base(path, base)
        self._place.change(lambda: self._place.disk.put(self._session, path, body))
        return self._shown(path)

    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        await self._place.asked("append", path)
        if is_synced:
            self._place.synced.append(path)
        self._require_owner()
        self._require_base(path, base)
        body = self._here.get(path, (b"", ""))[0] + tail
        self._place.change(lambda: self._place.disk.put(self._session, path, body))
        return self._shown(path)

    async def list(self, below: str = "") -> list[FileStat]:
        await self._place.asked("list", below)
        return [
            self._shown(path)
            for path in sorted(self._here)
            if not below or path == below or path.startswith(f"{below}/")
        ]

    async def remove(self, path: str) -> None:
        await self._place.asked("remove", path)
        self._require_owner()
        self._place.change(lambda: self._here.pop(path, None) and None)

    async def rename(self, path: str, new: str) -> None:
        await self._place.asked("rename", path)
        self._require_owner()
        self._shown(path)

        def move() -> None:
            self._here[new] = self._here.pop(path)

        self._place.change(move)

    async def sync(self, path: str = "") -> None:
        await self._place.asked("sync", path)
        self._place.synced.append(path)

    def _require_base(self, path: str, base: FileStat | None) -> None:
        if base is not None and (path not in self._here or self._here[path][1] != base.revision):
            raise PreconditionFailedError(f"{path} is another one")

    def _require_owner(self) -> None:
        if not self._place.owns(self._session):
            raise OwnershipLostError(f"{self._session} is another's", holder="other")


class Heard:
    """A subscriber that remembers."""

    def __init__(self) -> None:
        self.events: list[WorkspaceEvent] = []

    def __call__(self, event: WorkspaceEvent) -> None:
        self.events.append(event)

    def names(self, beginning: str = "session.") -> list[str]:
        return [
            event.name.removeprefix(beginning) for event in self.events if event.name.startswith(beginning)
        ]

    def files(self) -> list[tuple[str, str, int, int, int]]:
        """Give kind, path, size, offset and bytes added of the events about files, and forget all."""
        found = [
            (
                event.name.removeprefix("session.file."),
                event.path,
                event.size,
                event.offset,
                event.bytes_added,
            )
            for event in self.events
            if event.name.startswith("session.file.")
        ]
        self.events.clear()
        return found
