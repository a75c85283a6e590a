"""A mount that answers: what runs beside the kernel engine, and what can be asked of it."""

from __future__ import annotations

import os
import signal
from typing import Protocol

import msgspec
import structlog
import trio

from sessionfs.daemon.control.protocol import DrainResult
from sessionfs.daemon.control.server import COMMAND, ControlServer, ShowProgress
from sessionfs.daemon.mount_request import MountRequest
from sessionfs.daemon.replication_child import Child, ReplicationChild
from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.daemon.shutdown import Shutdown
from sessionfs.formats.commit_messages import Committed
from sessionfs.formats.link_messages import (
    ConflictList,
    EventList,
)
from sessionfs.model import roots
from sessionfs.model.errors import SessionFSError

EXIT_DONE = 0
EXIT_LEFT_BEHIND = 4
_HURRY_SECONDS = 0.5
_DETACHED_SECONDS = 0.5
_ANSWER_SECONDS = 2.0
_log = structlog.get_logger("sessionfs.daemon")


class Engine(Protocol):
    """The kernel engine of a mount that is already in the tree."""

    async def serve(self) -> None:
        """Answer the kernel until the mount is gone."""

    def unmount(self) -> None:
        """Let `serve` return although somebody still holds the detached mount."""


class SessionSide(Protocol):
    """The part of the Core that acts on one session."""

    async def commit(self, session: str, trigger: str) -> Committed:
        """Commit it now."""

    async def claim(self, session: str, *, force: bool) -> None:
        """Become its owner."""

    async def release(self, session: str) -> None:
        """Commit it and give it up, unless something has a file of it open for writing."""

    def problems(self) -> dict[str, str]:
        """Say why the last commit of each session failed, of those where it did."""


class RunningMount:
    """Implements `MountControl`, and runs until the mount is gone.

    Args:
        request: What was asked for.
        engine: Answers the kernel.
        engine_name: For status.
        client: The replication process.
        child: Keeps it running.
        shutdown: Ends the mount.
        sessions: Acts on one session.
    """

    def __init__(
        self,
        request: MountRequest,
        *,
        engine: Engine,
        engine_name: str,
        client: ReplicationClient,
        child: ReplicationChild,
        shutdown: Shutdown,
        sessions: SessionSide,
    ) -> None:
        self._request = request
        self._engine = engine
        self._engine_name = engine_name
        self._client = client
        self._child = child
        self._shutdown = shutdown
        self._sessions = sessions
        self._budget_seconds = request.settings.mount.shutdown_budget_seconds
        self._ended_by_signal = False

    async def run(self, server: ControlServer) -> int:
        """Serve until the mount is gone and what was owed is away, or the budget is used up.

        Returns:
            The exit code of the process.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._signals)
            nursery.start_soon(server.serve)
            await self._serve()
            await self._shutdown.wait_until_idle()
            if self._shutdown.result is None:
                _log.info("the mount was taken away from outside")
                await self._shutdown.after_unmount(seconds=self._budget_seconds)
            elif not self._ended_by_signal:
                with trio.move_on_after(_ANSWER_SECONDS):
                    await server.shutdown_answered.wait()
            await self._child.stop()
            nursery.cancel_scope.cancel()
        result = self._shutdown.result
        return EXIT_LEFT_BEHIND if result is None or result.owed_files else EXIT_DONE

    async def _serve(self) -> None:
        """Serve until the kernel says that the mount is gone, or a shutdown has detached it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_then_cancel, nursery.cancel_scope)
            await self._shutdown.completed.wait()
            # A plain unmount has ended it already; a detached mount ends with its last user, or now.
            await trio.sleep(_DETACHED_SECONDS)
            self._engine.unmount()
            await trio.sleep(_DETACHED_SECONDS)
            nursery.cancel_scope.cancel()

    async def _serve_then_cancel(self, scope: trio.CancelScope) -> None:
        await self._engine.serve()
        scope.cancel()

    async def _signals(self) -> None:
        async with trio.open_nursery() as nursery:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
                async for number in received:
                    _log.info("signal received", signal=signal.Signals(number).name)
                    if self._shutdown.active:
                        self._shutdown.hurry(
                            _HURRY_SECONDS if self._ended_by_signal else self._budget_seconds
                        )
                    else:
                        nursery.start_soon(self._end_by_signal)
                    self._ended_by_signal = True

    async def _end_by_signal(self) -> None:
        try:
            await self._shutdown.run(trigger="sigterm", timeout_seconds=self._budget_seconds, force=True)
        except SessionFSError as error:
            _log.error("the mount could not be ended", problem=str(error))

    # --- MountControl

    async def status(self) -> dict[str, object]:
        """Give the status document: the documented keys of ``status --json``, and more for people."""
        document: dict[str, object] = {
            "mount": self._request.mount_point,
            "store": self._request.store_url,
            "engine": self._engine_name,
            "supervisor_pid": None,
            "daemon_pid": os.getpid(),
            "replication_pid": self._child.pid or None,
            "policy": self._request.settings.filesystem.policy,
            "degraded": self._client.trouble,
            "sessions": [],
            "state_dir": self._request.state_root,
        }
        try:
            status = await self._client.status()
        except SessionFSError as error:
            document["degraded"] = document["degraded"] or str(error)
            return document
        document |= {
            "degraded": status.degraded or self._client.trouble,
            "sessions": self._with_problems(msgspec.to_builtins(status.sessions)),
            "owed_files": status.owed_files,
            "owed_bytes": status.owed_bytes,
            "uploaded_bytes": status.uploaded_bytes,
            "uploads": status.uploads,
            "downloaded_bytes": status.downloaded_bytes,
            "requests": status.requests,
            "held": status.held,
        }
        return document

    def _with_problems(self, sessions: list[dict[str, object]]) -> list[dict[str, object]]:
        problems = self._sessions.problems()
        return [
            session
            | {
                "id": roots.shown_id(str(session["id"])),
                "commit_problem": roots.readable(problems.get(str(session["id"]), "")),
            }
            for session in sessions
        ]

    async def drain(self, *, timeout_seconds: float | None, progress: ShowProgress) -> DrainResult:
        """Upload everything that is owed."""
        return await self._shutdown.drain(timeout_seconds=timeout_seconds, progress=progress)

    async def shut_down(
        self, *, timeout_seconds: float | None, abandon: bool, force: bool, progress: ShowProgress
    ) -> DrainResult:
        """Drain, commit and unmount."""
        return await self._shutdown.run(
            trigger="unmount",
            timeout_seconds=timeout_seconds,
            abandon=abandon,
            force=force,
            progress=progress,
        )

    async def retry(self) -> None:
        """Try everything again now."""
        await self._client.retry()

    async def conflicts(self) -> ConflictList:
        """Give what is kept aside."""
        found = (await self._client.conflicts()).conflicts
        return ConflictList(
            [msgspec.structs.replace(one, session=roots.shown_id(one.session)) for one in found]
        )

    async def events(self, after: int, limit: int) -> EventList:
        """Give events after a number."""
        return await self._client.events(after, limit)

    async def snapshot(self, session: str, *, trigger: str = COMMAND) -> dict[str, object]:
        """Commit a session now; gives the generation, with the names of ``snapshot --json``."""
        committed = await self._sessions.commit(roots.internal_id(session), trigger)
        document: dict[str, object] = msgspec.to_builtins(committed)
        document.pop("type", None)  # the tag of messages
        return document | {"session": roots.shown_id(committed.session)}

    async def claim(self, session: str, *, force: bool) -> None:
        """Become the owner of a session."""
        await self._sessions.claim(roots.internal_id(session), force=force)

    async def release(self, session: str) -> None:
        """Commit a session and give it up."""
        await self._sessions.release(roots.internal_id(session))

    async def resolve(self, key: str) -> None:
        """End a conflict; the file itself is the command's to write."""
        await self._client.resolve_conflict(key)


async def serve_replication(child: ReplicationChild, client: ReplicationClient, started: Child) -> None:
    """Run everything that belongs to the replication process, until `ReplicationChild.stop`."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await child.run(started)
        nursery.cancel_scope.cancel()
