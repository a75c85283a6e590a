"""The replication process's life as the daemon sees it: started, started again when it dies.

Its death is never a reason to end the mount: programs that need nothing from the store notice nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog
import trio

from sessionfs.daemon.control.protocol import revived_error
from sessionfs.daemon.launch.command import module_command, module_environment
from sessionfs.daemon.mount_request import (
    ReplicationOutcome,
    ReplicationRequest,
    frame,
    receive_frame,
)
from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.formats.link_messages import (
    Failure,
)
from sessionfs.model.clock import Clock
from sessionfs.model.errors import InternalError, SessionFSError
from sessionfs.replication.link import Handler, Link

_CRASHES = 5
_CRASH_WINDOW_SECONDS = 60.0
_SLOW_RESTART_SECONDS = 10.0
_QUICK_RESTART_SECONDS = 0.05
_START_SECONDS = 90.0
_END_SECONDS = 3.0
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_log = structlog.get_logger("sessionfs.daemon")


@dataclass(slots=True)
class Child:
    """A started process whose socket is ours.

    Attributes:
        process: The process.
        connection: Our end of its socket.
    """

    process: subprocess.Popen[bytes]
    connection: socket.socket


def start_child(request: ReplicationRequest, *, log_path: str = "") -> Child:
    """Start the process and hand it its request; it reports on the socket when the store was seen.

    Args:
        request: What it must know.
        log_path: File that its log goes to, "" for this process's standard error.

    Raises:
        InternalError: No process could be made.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    log = None
    try:
        log = os.open(log_path, _LOG_FLAGS, 0o600) if log_path else None
        process = subprocess.Popen(
            module_command("sessionfs.daemon.launch.replication", "--fd", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=module_environment(os.environ),
            start_new_session=True,
        )
    except OSError as problem:
        ours.close()
        raise InternalError(f"the replication process cannot be started: {problem.strerror}") from None
    finally:
        theirs.close()
        if log is not None:
            os.close(log)
    ours.sendall(frame(request))
    return Child(process, ours)


def wait_until_started(child: Child, *, seconds: float = _START_SECONDS) -> str:
    """Wait for the report of a starting process; blocks.

    Returns:
        Why the store cannot be used now, "" when it can.

    Raises:
        SessionFSError: Its own error, or that it died or never spoke.
    """
    child.connection.settimeout(seconds)
    try:
        raw = receive_frame(child.connection)
    except TimeoutError:
        raise InternalError(f"the replication process said nothing for {seconds:.0f} s") from None
    except (EOFError, ConnectionError):
        child.process.wait()
        raise InternalError(
            f"the replication process ended with {child.process.returncode}", remedy="see daemon.log"
        ) from None
    child.connection.settimeout(None)
    outcome = msgspec.msgpack.decode(raw, type=ReplicationOutcome)
    if isinstance(outcome, Failure):
        raise revived_error(outcome.kind, outcome.message, outcome.remedy)
    return outcome.degraded


class ReplicationChild:
    """Keeps one replication process running.

    Args:
        request: For every start after the first.
        client: Told of every link.
        handler: Answers what the process asks.
        clock: Counts deaths.
        start: Starts a process.
        on_process: Told the id of every process before it is served, and 0 when it has ended.
    """

    def __init__(
        self,
        request: ReplicationRequest,
        *,
        client: ReplicationClient,
        handler: Handler,
        clock: Clock,
        start: Callable[[ReplicationRequest], Child] = start_child,
        on_process: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        self._on_process = on_process
        self._start = start
        self._request = request
        self._client = client
        self._handler = handler
        self._clock = clock
        self._deaths: deque[float] = deque(maxlen=_CRASHES + 1)
        self._stopping = False
        self._link: Link | None = None
        self.pid = 0

    async def run(self, child: Child) -> None:
        """Serve a started process, then its successors, until `stop`."""
        while True:
            self.pid = child.process.pid
            self._on_process(self.pid)
            child.connection.setblocking(False)  # noqa: FBT003 - the socket's own signature
            link = self._link = Link(
                trio.SocketStream(trio.socket.from_stdlib_socket(child.connection)),
                self._handler,
                unclaimed=self._client.discard,
            )
            self._client.attach(link)
            try:
                await link.serve()
            except BaseException:
                end_child(child)
                raise
            self._client.detach("the replication process has ended and is started again")
            self.pid = 0
            self._on_process(0)
            await _reap(child)
            if self._stopping:
                return
            _log.error("replication process died", returncode=child.process.returncode)
            child = await self._restart()

    async def stop(self) -> None:
        """End the process in order; `run` returns."""
        self._stopping = True
        await self._client.stop()
        if self._link is not None:
            await self._link.aclose()

    async def _restart(self) -> Child:
        while True:
            await trio.sleep(self._pause_seconds())
            child: Child | None = None
            try:
                child = self._start(self._request)
                await trio.to_thread.run_sync(wait_until_started, child, abandon_on_cancel=True)
            except SessionFSError as error:
                self._client.detach(f"the replication process cannot start: {error}")
                _log.error("replication process cannot start", problem=str(error))
                if child is not None:
                    child.connection.close()
                    await _reap(child)
            except BaseException:
                if child is not None:
                    end_child(child)
                raise
            else:
                _log.info("replication process started again", pid=child.process.pid)
                return child

    def _pause_seconds(self) -> float:
        now = self._clock.elapsed_seconds()
        self._deaths.append(now)
        if len(self._deaths) > _CRASHES and now - self._deaths[0] < _CRASH_WINDOW_SECONDS:
            self._client.detach(f"the replication process died {_CRASHES} times in a minute; see daemon.log")
            return _SLOW_RESTART_SECONDS
        return _QUICK_RESTART_SECONDS


def end_child(child: Child) -> None:
    """End a process that nobody asks any more: its socket is the sign; one that does not end is killed. Blocks, at most three seconds."""
    with contextlib.suppress(OSError):
        # Whoever still reads from it in a thread is woken.
        child.connection.shutdown(socket.SHUT_RDWR)
    child.connection.close()
    try:
        child.process.wait(timeout=_END_SECONDS)
    except Exception:  # noqa: BLE001 - whatever it was, the process must not stay
        child.process.kill()
        child.process.wait()


async def _reap(child: Child) -> None:
    """Wait for a process whose socket is closed; it ends by itself, or is ended."""
    for _ in range(40):
        if child.process.poll() is not None:
            return
        await trio.sleep(0.05)
    child.process.kill()
    await trio.to_thread.run_sync(child.process.wait)
