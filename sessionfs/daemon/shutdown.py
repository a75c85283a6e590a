"""How a mount ends, whoever asks for it.

Order: new writers are refused; what is owed is brought away; the sessions that changed are committed; the mount is
taken away; whatever the last open file still left is brought away too; the sessions are given up, those that still owe
something excepted. A signal leaves little time: then the sessions in which a turn has just ended are committed before
everything else. A step that fails before the mount is gone leaves everything as it was, with writers let in again.
Abandoning writes nothing and gives nothing up.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import structlog
import trio

from sessionfs.daemon.checks.unmount import busy_error, unmount
from sessionfs.daemon.control.protocol import DrainResult, Progress
from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.formats.link_messages import (
    Drained,
)
from sessionfs.model.errors import ConflictError, SessionFSError, UnavailableError

_POLL_SECONDS = 0.2
_BUSY_TRIES = 5
_COMMIT_RETRY_SECONDS = 1.0
_COMMIT_TRIES = 3
_COMMIT_MINIMUM_SECONDS = 1.0
_RELEASE_MINIMUM_SECONDS = 1.0
_UNKNOWN = DrainResult(-1, -1, ["(unknown: the replication process did not answer)"])
_log = structlog.get_logger("sessionfs.daemon")

ShowProgress = Callable[[Progress], Awaitable[None]]


class WriterGate(Protocol):
    """The part of the Core that refuses new writers."""

    def block_writers(self, reason: str) -> None:
        """Refuse changes and opens for writing from now on."""

    def allow_writers(self) -> None:
        """Let them in again."""


async def no_progress(_progress: Progress) -> None:
    """Nobody watches."""


class Shutdown:
    """The one shutdown of a mount.

    Args:
        gate: Refuses new writers.
        client: Brings files away.
        mount_point: Gives the absolute path of the mount, which may move.
        on_unmounted: Called when the mount is gone.
        pending_turns: Names the sessions in which a turn has ended that no commit has yet.
    """

    def __init__(
        self,
        gate: WriterGate,
        client: ReplicationClient,
        *,
        mount_point: Callable[[], str],
        on_unmounted: Callable[[], None],
        pending_turns: Callable[[], list[str]] = list,
    ) -> None:
        self._pending_turns = pending_turns
        self._gate = gate
        self._client = client
        self._mount_point = mount_point
        self._on_unmounted = on_unmounted
        self._deadline = math.inf
        self._unmounted = False
        self._one = trio.Lock()
        self.completed = trio.Event()
        self.result: DrainResult | None = None

    @property
    def active(self) -> bool:
        """Whether the mount is being ended."""
        return self._one.locked()

    async def wait_until_idle(self) -> None:
        """Return when nobody is ending the mount."""
        async with self._one:
            return

    def hurry(self, seconds: float) -> None:
        """Let what is under way take at most so long from now."""
        self._deadline = min(self._deadline, trio.current_time() + seconds)

    async def run(
        self,
        *,
        trigger: str,
        timeout_seconds: float | None,
        abandon: bool = False,
        force: bool = False,
        progress: ShowProgress = no_progress,
    ) -> DrainResult:
        """End the mount.

        Args:
            trigger: Named in the commit: ``unmount`` or ``sigterm``.
            timeout_seconds: For everything together; then the mount ends with bytes behind. None: as long as needed.
            abandon: Leave everything that is owed behind.
            force: Detach a mount that something uses.
            progress: Told five times a second.

        Raises:
            ConflictError: It is being ended already.
            MountError: Something uses it, and `force` is false.
        """
        if self.active:
            raise ConflictError(f"{self._mount_point()} is being unmounted already")
        async with self._one:
            self._deadline = math.inf if timeout_seconds is None else trio.current_time() + timeout_seconds
            self._gate.block_writers("the mount is being ended")
            try:
                if trigger == "unmount" and not abandon:
                    await self._release_held()
                if trigger == "sigterm" and not abandon:
                    await self._commit_turns(trigger)
                await self._bring_away(trigger, abandon=abandon, progress=progress)
                await self._unmount(force=force)
            except BaseException:
                if not self._unmounted:
                    self._gate.allow_writers()
                raise
            # Whoever had a file open could write until now.
            result = await self._bring_away(trigger, abandon=abandon, progress=progress)
            if not abandon:
                await self._release_sessions()
            self._finish(result)
            return result

    async def after_unmount(self, *, seconds: float) -> DrainResult:
        """Bring away what is owed of a mount that somebody else has taken away."""
        self._note_unmounted()
        self._deadline = trio.current_time() + seconds
        result = await self._bring_away("unmount", abandon=False, progress=no_progress)
        await self._release_sessions()
        self._finish(result)
        return result

    async def drain(self, *, timeout_seconds: float | None, progress: ShowProgress) -> DrainResult:
        """Upload everything that is owed now, without ending anything."""
        deadline = math.inf if timeout_seconds is None else trio.current_time() + timeout_seconds
        return await self._drain(lambda: deadline, progress)

    def _finish(self, result: DrainResult) -> None:
        self.result = result
        if result.owed_files:
            _log.error(
                "bytes left behind",
                files=result.owed_files,
                bytes=result.owed_bytes,
                paths=result.left,
                reason=result.degraded,
            )
        else:
            _log.info("nothing left behind")
        self.completed.set()

    async def _bring_away(self, trigger: str, *, abandon: bool, progress: ShowProgress) -> DrainResult:
        if abandon:
            return await self._look()
        result = await self._drain(lambda: self._deadline, progress)
        problem = await self._commit(trigger, progress)
        if not problem:
            return result
        left = [*result.left, f"(the manifests of the sessions that changed: {problem})"]
        return DrainResult(max(result.owed_files, 0) + 1, result.owed_bytes, left, problem)

    async def _drain(self, deadline: Callable[[], float], progress: ShowProgress) -> DrainResult:
        result = _UNKNOWN
        while True:
            started = trio.current_time()
            is_hopeless = False
            wait_seconds = max(0.0, min(_POLL_SECONDS, deadline() - started))
            try:
                with trio.fail_at(max(deadline(), started + _POLL_SECONDS)):
                    drained = await self._client.drain(wait_seconds)
                result = _result_of(drained)
                is_hopeless = drained.owed_files == drained.stuck_files
            except trio.TooSlowError:
                pass
            except SessionFSError as error:
                result = DrainResult(result.owed_files, result.owed_bytes, result.left, str(error))
            if result.owed_files == 0 or is_hopeless or trio.current_time() >= deadline():
                return result
            await progress(Progress(max(result.owed_files, 0), max(result.owed_bytes, 0), result.degraded))
            await trio.sleep_until(min(started + _POLL_SECONDS, deadline()))

    async def _release_held(self) -> None:
        """Who unmounts by hand means the deletions that the brake held; a signal confirms nothing."""
        with (
            suppress(SessionFSError),
            trio.move_on_at(max(self._deadline, trio.current_time() + _POLL_SECONDS)),
        ):
            await self._client.retry()

    async def _commit_turns(self, trigger: str) -> None:
        """Commit what a program was told, or would have been told, is a finished turn; a failure shows later, when all is committed."""
        with trio.move_on_at(self._deadline):
            for session in self._pending_turns():
                with suppress(SessionFSError):
                    await self._client.commit(session, trigger, is_turn=True)

    async def _look(self) -> DrainResult:
        try:
            return _result_of(await self._client.drain(0))
        except SessionFSError:
            return _UNKNOWN

    async def _commit(self, trigger: str, progress: ShowProgress) -> str:
        """Write the manifests; give why they could not be written, "" when they were."""
        problem = "no time was left"
        tries = 0
        with trio.move_on_at(max(self._deadline, trio.current_time() + _COMMIT_MINIMUM_SECONDS)):
            while tries < _COMMIT_TRIES:
                try:
                    await self._client.commit_all(trigger)
                    return ""
                except SessionFSError as error:
                    problem = str(error)
                    _log.warning("sessions not committed", problem=problem)
                    # A store that is away may come back; anything else does not pass by waiting.
                    tries += not isinstance(error, UnavailableError)
                if trio.current_time() >= self._deadline:
                    break
                await progress(Progress(0, 0, f"manifests: {problem}"))
                await trio.sleep(_COMMIT_RETRY_SECONDS)
        return problem

    async def _release_sessions(self) -> None:
        """Let other hosts take the sessions at once; one that is not given up is theirs when the lease is over."""
        with trio.move_on_at(max(self._deadline, trio.current_time() + _RELEASE_MINIMUM_SECONDS)) as scope:
            try:
                await self._client.release_all()
            except SessionFSError as error:
                _log.warning("sessions not released", problem=str(error))
        if scope.cancelled_caught:
            _log.warning("sessions not released", problem="no time was left")

    async def _unmount(self, *, force: bool) -> None:
        mount_point = self._mount_point()
        for attempt in range(_BUSY_TRIES):
            if await trio.to_thread.run_sync(_unmount_plainly, mount_point):
                self._note_unmounted()
                return
            if attempt < _BUSY_TRIES - 1:
                await trio.sleep(0.1)
        if not force:
            raise await trio.to_thread.run_sync(busy_error, mount_point)
        _log.warning("mount is in use and is detached", mount_point=mount_point)
        await trio.to_thread.run_sync(_unmount_lazily, mount_point)
        self._note_unmounted()

    def _note_unmounted(self) -> None:
        self._unmounted = True
        self._on_unmounted()


def _result_of(drained: Drained) -> DrainResult:
    return DrainResult(drained.owed_files, drained.owed_bytes, drained.paths, drained.degraded)


def _unmount_plainly(mount_point: str) -> bool:
    return unmount(mount_point, lazily=False)


def _unmount_lazily(mount_point: str) -> bool:
    return unmount(mount_point, lazily=True)
