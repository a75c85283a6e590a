"""A mount that only answers, and a daemon that only listens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from sessionfs.daemon.control.protocol import DrainResult, Progress
from sessionfs.daemon.control.server import ControlServer, ShowProgress
from sessionfs.formats.link_messages import (
    Conflict,
    ConflictList,
    Event,
    EventList,
)
from sessionfs.model.errors import SessionFSError

STATUS: dict[str, Any] = {
    "mount": "/srv/sessions",
    "store": "s3://bucket?endpoint=http://127.0.0.1:8333",
    "engine": "pyfuse3",
    "supervisor_pid": None,
    "daemon_pid": 10,
    "replication_pid": 11,
    "policy": "degrade",
    "degraded": "",
    "sessions": [
        {
            "id": "2026-01-31-refactor-the-parser",
            "owner": "",
            "owned_here": True,
            "state": "owed",
            "owed_files": 3,
            "owed_bytes": 1_500_000,
            "oldest_owed_seconds": 2.25,
            "generation": 12,
            "committed_at": "2026-01-31T23:59:59.123456Z",
            "conflicts": 0,
            "commit_problem": "",
        }
    ],
    "held": "",
    "state_dir": "/state",
}
CONFLICT = Conflict("s", "a.txt", "sessions/s.conflicts/a.txt/x-unknown", "2026-01-31T00:00:00Z", "unknown")


SNAPSHOT: dict[str, Any] = {
    "session": "s",
    "generation": 12,
    "manifest_key": "sessions/s.manifest/0000000012.json",
    "manifest_sha256": "5" * 64,
    "trigger": "command",
    "turn": 7,
    "completed_at": "2026-01-31T23:59:59.123456Z",
    "objects": 1007,
    "bytes": 95_420_416,
    "objects_uploaded": 10,
    "objects_skipped": 997,
    "bytes_uploaded": 1_048_576,
    "requests": 13,
    "duration_seconds": 1.25,
    "barrier_seconds": 0.0125,
    "moving": [],
    "is_unchanged": False,
}


@dataclass
class FakeMount:
    """Implements `MountControl` from fixed answers.

    Attributes:
        left: What a drain or shutdown leaves behind.
        error: Raised by everything instead of answering.
        asked: Operations with their arguments.
        events_kept: What has happened.
    """

    left: list[str] = field(default_factory=list)
    error: SessionFSError | None = None
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    events_kept: list[Event] = field(default_factory=list)
    status_body: dict[str, Any] = field(default_factory=lambda: dict(STATUS))
    snapshot_body: dict[str, Any] = field(default_factory=lambda: dict(SNAPSHOT))
    conflicts_kept: list[Conflict] = field(default_factory=lambda: [CONFLICT])
    fault: Exception | None = None

    def _note(self, name: str, **arguments: Any) -> None:
        self.asked.append((name, arguments))
        if self.fault is not None:
            raise self.fault
        if self.error is not None:
            raise self.error

    async def status(self) -> dict[str, object]:
        self._note("status")
        return self.status_body

    async def drain(self, *, timeout_seconds: float | None, progress: ShowProgress) -> DrainResult:
        self._note("drain", timeout_seconds=timeout_seconds)
        await progress(Progress(2, 20))
        return DrainResult(len(self.left), 10 * len(self.left), self.left, "no answer" if self.left else "")

    async def shut_down(
        self, *, timeout_seconds: float | None, abandon: bool, force: bool, progress: ShowProgress
    ) -> DrainResult:
        self._note("shut_down", timeout_seconds=timeout_seconds, abandon=abandon, force=force)
        return await self.drain(timeout_seconds=timeout_seconds, progress=progress)

    async def retry(self) -> None:
        self._note("retry")

    async def conflicts(self) -> ConflictList:
        self._note("conflicts")
        return ConflictList(self.conflicts_kept)

    async def snapshot(self, session: str, *, trigger: str) -> dict[str, object]:
        self._note("snapshot", session=session, trigger=trigger)
        return self.snapshot_body

    async def claim(self, session: str, *, force: bool) -> None:
        self._note("claim", session=session, force=force)

    async def release(self, session: str) -> None:
        self._note("release", session=session)

    async def resolve(self, key: str) -> None:
        self._note("resolve", key=key)

    async def events(self, after: int, limit: int) -> EventList:
        self._note("events", after=after, limit=limit)
        return EventList([event for event in self.events_kept if event.number > after][:limit])


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until something outside this loop has happened."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - nobody tells us
            await trio.sleep(0.01)


@contextlib.contextmanager
def listening(mount: FakeMount, directory: Path) -> Iterator[str]:
    """Serve a control socket from a thread; gives its path. A shutdown ends it, as it ends a daemon."""
    path = str(directory / "control.sock")
    ready = threading.Event()
    scopes: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def serve() -> None:
        server = ControlServer(path, mount)
        await server.open()
        async with trio.open_nursery() as nursery:
            scopes.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            nursery.start_soon(server.serve)
            ready.set()
            await server.shutdown_answered.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    ready.wait()
    try:
        yield path
    finally:
        token, scope = scopes[0]
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(scope.cancel)
        thread.join()
