"""Sessions in a working copy with its upload journal, without a mount: the Core runs in this process, a replication process is its child.

Order of steps of a start: the state directory and its lock; the replication process, which admits the store; the Core. Of the end, as in a mount:
changes are refused; what is owed is brought away; the sessions that changed are committed and given up; the child ends; the lock is let go. A program
that is killed leaves no process: the child ends with its socket, and the next opening brings away what is owed.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio

from sessionfs.daemon.bootstrap import empty_directory, replication_request, state_directory
from sessionfs.daemon.core_assembly import CoreAssembly
from sessionfs.daemon.doors.bucket_index import BucketIndex
from sessionfs.daemon.doors.file_states import is_here
from sessionfs.daemon.doors.in_process.core_files import CoreFiles
from sessionfs.daemon.doors.in_process.core_tree import CoreTree
from sessionfs.daemon.doors.refusals import refusal
from sessionfs.daemon.doors.ruling import Ruling, steadily
from sessionfs.daemon.doors.unit_paths import unit_path
from sessionfs.daemon.mount_request import MountRequest
from sessionfs.daemon.replication_child import (
    Child,
    ReplicationChild,
    end_child,
    start_child,
    wait_until_started,
)
from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.daemon.running_mount import serve_replication
from sessionfs.daemon.shutdown import Shutdown
from sessionfs.daemon.state_lock import StateLock
from sessionfs.filesystem.core import Core
from sessionfs.formats.link_messages import AnyMessage
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model import clock as clocks
from sessionfs.model import names
from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import LeftBehindError, NotFoundError, SessionFSError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import SessionPlace
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout

_CHILD_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.5
_REMOVE_TRIES = 3


class CorePlace(SessionPlace):
    """A working copy. Opened by `open_core_place`.

    Args:
        tree: The Core.
        client: The replication process.
        layout: The state directory.
        index: The bucket's index.
        clock: Names of files that are being written.
    """

    def __init__(
        self, tree: CoreTree, client: ReplicationClient, *, layout: StateLayout, index: BucketIndex, clock: Clock
    ) -> None:  # fmt: skip
        self._tree = tree
        self._core = tree.core
        self._client = client
        self._layout = layout
        self._index = index
        self._clock = clock
        read_only = "the place was opened read-only" if self._core.settings.read_only else ""
        claim = partial(self._core.session_requests.claim, force=False)
        self.ruling = Ruling(self._sweep, claim, refuses=read_only)
        self.is_removing = False
        self._files: dict[SessionId, CoreFiles] = {}

    @property
    def trouble(self) -> str:
        """Why nothing reaches the bucket now, "" when nothing stands in the way."""
        return self._client.trouble

    def files(self, session: SessionId) -> CoreFiles:
        """Give the files of a session."""
        if session not in self._files:
            self._files[session] = CoreFiles(
                session, self._tree, layout=self._layout, clock=self._clock, ruling=self.ruling
            )
        return self._files[session]

    async def list_sessions(self) -> list[SessionId]:
        """Name the sessions that have a file, here or in the bucket."""
        self.ruling.require_open()
        # The answer knows every operation so far, sessions that were removed just now among them; a list alone may not.
        with suppress(UnavailableError):
            await self._client.status()
        listed = sorted(entry.name.decode() for entry in await self._tree.entries(ROOT_NUMBER))
        return [session for session in map(names.session_id, listed) if await self._has_file(session)]

    async def _has_file(self, session: SessionId) -> bool:
        """Look into one that is here, or was removed here; any other is listed for the objects that it has in the bucket."""
        if not is_here(self._layout, session) and not self.ruling.was_removed(session):
            return True
        return await self._tree.has_file(session)

    async def remove_session(self, session: SessionId) -> None:
        """Remove everything of a session."""
        self.is_removing = True
        self.ruling.note_removed(session)
        try:
            await self.ruling.changed(session, partial(self._remove, session))
        except OSError as problem:
            raise refusal(problem, session) from problem

    async def _remove(self, session: SessionId) -> None:
        for attempt in range(1, _REMOVE_TRIES + 1):
            try:
                await self._tree.remove_tree(unit_path(session))
            except OSError as problem:
                if problem.errno not in {errno.ENOTEMPTY, errno.ESTALE} or attempt == _REMOVE_TRIES:
                    raise
            else:
                return

    async def read_index(self) -> bytes | None:
        """Read ``sessions.json`` in the bucket."""
        self.ruling.require_open()
        return await self._index.read()

    async def write_index(self, body: bytes) -> None:
        """Replace ``sessions.json`` in the bucket."""
        self.ruling.require_open()
        await self._index.write(body)

    async def set_index_aside(self, stamp_seconds: int) -> str | None:
        """Rename ``sessions.json`` in the bucket."""
        self.ruling.require_open()
        return await self._index.set_aside(stamp_seconds)

    async def claim(self, session: SessionId, *, force: bool = False) -> None:
        """Own a session; one that is not there yet is made."""
        self.ruling.require_open()
        try:
            try:
                await self._core.session_requests.claim(session, force=force)
            except NotFoundError:
                await self._tree.directory(unit_path(session), make=True)
                await self._core.session_requests.claim(session, force=force)
        except OSError as problem:
            raise refusal(problem, session) from problem
        self.ruling.note_claimed(session)

    async def release(self, session: SessionId) -> None:
        """Commit a session and let others own it."""
        self.ruling.require_open()
        if self.ruling.is_ours(session):
            with suppress(NotFoundError):
                await steadily(partial(self._core.session_requests.release, session))
        self.ruling.note_released(session)

    def owns(self, session: SessionId) -> bool:
        """Whether a session was claimed, and not lost since."""
        return self.ruling.owns(session)

    async def commit(self, session: SessionId, trigger: str) -> int:
        """Make a generation."""
        self.ruling.require_open()
        return (await self._core.session_requests.commit(session, trigger)).generation

    async def look_whether_lost(self, session: SessionId) -> None:
        """Look who owns a session of which a notice says that it is not ours: the notice may be older than our last claim."""
        while True:
            with suppress(UnavailableError):
                rows = (await self._client.status()).sessions
                break
            await trio.sleep(_LOOK_AGAIN_SECONDS)
        if not any(row.id == session and row.owned_here for row in rows):
            self.ruling.note_lost(session)

    async def _sweep(self, session: SessionId) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            await self._tree.remove_temporaries(session)


class _Lasting:
    """A task that goes on when the program is cancelled: the end needs it.

    Attributes:
        scope: Cancels it.
        ended: Set when it has ended.
    """

    def __init__(self, nursery: trio.Nursery, call: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        self.scope = trio.CancelScope(shield=True)
        self.ended = trio.Event()
        nursery.start_soon(self._run, call, arguments)

    async def _run(self, call: Callable[..., Awaitable[None]], arguments: tuple[Any, ...]) -> None:
        try:
            with self.scope:
                await call(*arguments)
        finally:
            self.ended.set()


@dataclass(slots=True)
class _Parts:
    """What `open_core_place` has put together."""

    place: CorePlace
    core: Core
    client: ReplicationClient
    keeper: ReplicationChild
    shutdown: Shutdown
    notices: trio.MemoryReceiveChannel[SessionId]

    async def run_beside(self) -> None:
        """Do what nobody waits for, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.core.run_background)
            async for session in self.notices:
                await self.place.look_whether_lost(session)


@asynccontextmanager
async def open_core_place(
    request: MountRequest, *, close_seconds: float, clock: Clock | None = None
) -> AsyncIterator[CorePlace]:
    """Open a state directory for this process alone.

    Args:
        request: The store, the state directory and the settings; its mount point is "".
        close_seconds: How long the end may take to bring away what is owed.
        clock: Time and randomness, None for the machine's.

    Raises:
        StateLockedError: Another process has it.
        StoreRefusedError, AccessError, NotFoundError: The store cannot be used.
        UnavailableError: It does not answer, and was never seen before.
        LeftBehindError: At the end: bytes did not reach the bucket in time; they are kept, and the next opening brings them away.
    """
    clock = clock or SystemClock()
    layout = StateLayout(request.state_root)
    with state_directory(layout) as keep:
        lock = await trio.to_thread.run_sync(partial(StateLock, layout.lock, mount_point="", clock=clock))
        try:
            start = partial(start_child, log_path=layout.daemon_log)
            child = await trio.to_thread.run_sync(start, replication_request(request, first=True))
            try:
                await trio.to_thread.run_sync(wait_until_started, child, abandon_on_cancel=True)
                keep()
                async with _running(request, layout, clock, child, lock, close_seconds) as place:
                    yield place
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(end_child, child)
        finally:
            lock.release()


@asynccontextmanager
async def _running(
    request: MountRequest,
    layout: StateLayout,
    clock: Clock,
    child: Child,
    lock: StateLock,
    close_seconds: float,
) -> AsyncIterator[CorePlace]:
    """Run the Core and what belongs to it while the block lasts."""
    empty_directory(layout.staging)
    empty_directory(layout.trash)
    assembly = CoreAssembly(layout, clock=clock, boot_id=clocks.boot_id())
    index = BucketIndex(request.store_url, layout=layout, settings=request.settings.replication, clock=clock)
    parts = _put_together(request, layout, clock, assembly, index, lock)
    budget_seconds = request.settings.mount.shutdown_budget_seconds
    problem: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            served = _Lasting(nursery, serve_replication, parts.keeper, parts.client, child)
            beside = _Lasting(nursery, parts.run_beside)
            seconds = min(close_seconds, budget_seconds)
            try:
                yield parts.place
                seconds = close_seconds
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - raised below, where the nursery cannot wrap it
                problem = error
            finally:
                try:
                    with trio.CancelScope(shield=True):
                        await _end(parts, seconds)
                        with trio.move_on_after(_CHILD_SECONDS):
                            await served.ended.wait()
                finally:
                    # Shielded tasks that nobody ends would keep the program for ever, whatever has interrupted the end.
                    served.scope.cancel()
                    beside.scope.cancel()
    finally:
        parts.core.close()
        assembly.close()
        index.close()
    if problem is not None:
        raise problem
    _require_nothing_left(parts.shutdown)


def _put_together(
    request: MountRequest,
    layout: StateLayout,
    clock: Clock,
    assembly: CoreAssembly,
    index: BucketIndex,
    lock: StateLock,
) -> _Parts:
    settings = request.settings.filesystem
    client = assembly.client(settings)
    umask = os.umask(0)
    try:
        core = assembly.core(client, settings, control_socket="")
    finally:
        # The program's own: modes are given with it taken off.
        os.umask(umask)
    place = CorePlace(CoreTree(core, umask=umask), client, layout=layout, index=index, clock=clock)

    suspects, notices = trio.open_memory_channel[SessionId](math.inf)

    def watch(message: AnyMessage) -> None:
        if isinstance(message, SessionState) and not message.owned:
            suspects.send_nowait(SessionId(message.session))

    keeper = assembly.keeper(
        core,
        client,
        replication_request(request, first=False),
        start=partial(start_child, log_path=layout.daemon_log),
        watch=watch,
    )
    shutdown = Shutdown(
        core,
        client,
        mount_point=lambda: layout.root,
        on_unmounted=lock.ending,
        pending_turns=core.session_requests.pending_turns,
    )
    return _Parts(place, core, client, keeper, shutdown, notices)


async def _end(parts: _Parts, seconds: float) -> None:
    """Bring away what is owed, give the sessions up, and end the replication process."""
    parts.place.ruling.close()
    parts.core.block_writers("the place is being closed")
    if parts.place.is_removing:
        # Who removes a session means every deletion of it: none waits for a person.
        with suppress(SessionFSError):
            await parts.client.retry()
    await parts.shutdown.after_unmount(seconds=seconds)
    await parts.keeper.stop()
    parts.core.stop_background()


def _require_nothing_left(shutdown: Shutdown) -> None:
    result = shutdown.result
    if result is None or not result.owed_files:
        return
    count = "an unknown number of" if result.owed_files < 0 else str(result.owed_files)
    raise LeftBehindError(
        f"{count} files have not reached the bucket yet{': ' + result.degraded if result.degraded else ''}",
        paths=tuple(result.left),
        remedy="they are kept on this disk; opening the place again brings them away",
    )
