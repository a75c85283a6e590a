"""The replication process: ``python -m sessionfs.daemon.launch.replication --fd N``, started by the daemon only.

Steps: read the request from the socket; take the lock; open the store and see what it can do; say so; serve
until the daemon closes the socket. Signals that end a whole service are ignored: the daemon's shutdown needs
this process to the end, and the socket ends with the daemon.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading

import msgspec
import structlog
import trio

from sessionfs.daemon.log_setup import configure_logs
from sessionfs.daemon.mount_request import ReplicationRequest, Started, frame, receive_frame
from sessionfs.daemon.replication.admission import admit_store
from sessionfs.daemon.state_lock import wait_for_lock
from sessionfs.formats.commit_messages import Barrier, BarrierHeld, FrozenAt, FrozenImage, Thaw
from sessionfs.formats.link_messages import (
    AnyMessage,
    BeginImage,
    Done,
    EndImage,
    Evict,
    Evicted,
    ImageGrant,
    LogConsumed,
    Stop,
    failure_of,
)
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import InternalError, SessionFSError
from sessionfs.replication.link import Link
from sessionfs.replication.maintenance.unfinished_migration import require_finished
from sessionfs.replication.service import ReplicationService
from sessionfs.working_copy.layout import StateLayout

_PREDECESSOR_SECONDS = 10.0
_LAST_SECONDS = 1.0
_log = structlog.get_logger("sessionfs.replication")


def main() -> int:
    """Run the process.

    Returns:
        0 when the daemon ended it, 1 when it could not start.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    try:
        request = msgspec.msgpack.decode(receive_frame(connection), type=ReplicationRequest)
    except EOFError:
        return 1
    configure_logs(request.log_level, process="replication")
    clock = SystemClock()
    layout = StateLayout(request.state_root)
    try:
        # Held until the process ends.
        wait_for_lock(layout.replication_lock, seconds=_PREDECESSOR_SECONDS, clock=clock)
        store, degraded = admit_store(
            request.store_url,
            layout=layout,
            clock=clock,
            connections=2 * request.settings.concurrent_uploads + 4,
            single_host=request.settings.single_host,
            first=request.first,
        )
        if request.first and not degraded:
            require_finished(store)
    except SessionFSError as error:
        _tell(connection, frame(failure_of(error)))
        return 1
    except Exception as error:
        _log.exception("the store cannot be opened")
        _tell(connection, frame(failure_of(InternalError(f"the store cannot be opened: {error!r}"))))
        raise
    _tell(connection, frame(Started(degraded)))
    daemon = DaemonOverLink()
    service = ReplicationService(
        store,
        layout,
        request.settings,
        clock=clock,
        mount_point=request.mount_point,
        daemon=daemon,
    )
    try:
        trio.run(_serve, connection, service, daemon)
    finally:
        service.close()
        store.close()
    return 0


class DaemonOverLink:
    """The daemon as the service sees it."""

    link: Link

    async def begin_image(self, number: int) -> ImageGrant:
        """Ask how a file stands between two writes."""
        return await self.link.ask(BeginImage(number), ImageGrant)

    async def end_image(self, number: int) -> ImageGrant:
        """Ask again after it was read."""
        return await self.link.ask(EndImage(number), ImageGrant)

    async def evict(self, request: Evict) -> bool:
        """Ask to remove a clean file's bytes."""
        return (await self.link.ask(request, Evicted)).done

    async def barrier(self, request: Barrier) -> BarrierHeld:
        """Ask how a session's changing files stand, and to keep those bytes."""
        return await self.link.ask(request, BarrierHeld)

    async def frozen_image(self, request: FrozenImage) -> FrozenAt:
        """Ask where a frozen file's bytes are."""
        return await self.link.ask(request, FrozenAt)

    async def thaw(self, request: Thaw) -> None:
        """Say that a commit is over."""
        await self.link.ask(request, Done)

    def session_state(self, state: SessionState) -> None:
        """Say who owns a session, and how its last commit ended."""
        self.link.notify(state)

    def log_consumed(self, position: int) -> None:
        """Say that the log may be cut."""
        self.link.notify(LogConsumed(position))


async def _serve(connection: socket.socket, service: ReplicationService, daemon: DaemonOverLink) -> None:
    async def answer(message: AnyMessage) -> AnyMessage:
        # Every transaction ends before its handler returns, so there is nothing to wait for.
        return Done() if isinstance(message, Stop) else await service.handle(message)

    connection.setblocking(False)  # noqa: FBT003 - the socket's own signature
    link = daemon.link = Link(trio.SocketStream(trio.socket.from_stdlib_socket(connection)), answer)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        try:
            await link.serve()
        finally:
            # A thread that waits for the store must not keep this process, and with it the lock: what it sent
            # is settled by the next one.
            watchdog = threading.Timer(_LAST_SECONDS, os._exit, (0,))
            watchdog.daemon = True
            watchdog.start()
        nursery.cancel_scope.cancel()


def _tell(connection: socket.socket, raw: bytes) -> None:
    with contextlib.suppress(OSError):  # the daemon is gone; the next read sees it
        connection.sendall(raw)
