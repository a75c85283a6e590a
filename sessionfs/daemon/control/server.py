"""The daemon's side of the control socket."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec
import structlog
import trio

import sessionfs
from sessionfs.daemon.control.protocol import (
    MAX_LINE_BYTES,
    PROTOCOL_VERSION,
    DrainResult,
    ErrorBody,
    Progress,
    Reply,
    Request,
)
from sessionfs.formats.link_messages import (
    ConflictList,
    EventList,
)
from sessionfs.model import roots
from sessionfs.model.errors import InternalError, InvalidRequestError, SessionFSError

TAKES = ("theirs", "ours")
COMMAND = "command"
"""Trigger of a commit that a person asks for."""
_FOLLOW_SECONDS = 0.3
_log = structlog.get_logger("sessionfs.control")
_decoder = msgspec.json.Decoder(Request)

ShowProgress = Callable[[Progress], Awaitable[None]]


class MountControl(Protocol):
    """What can be asked of a mount."""

    async def status(self) -> dict[str, object]:
        """Give the status document."""

    async def drain(self, *, timeout_seconds: float | None, progress: ShowProgress) -> DrainResult:
        """Upload everything that is owed."""

    async def shut_down(
        self, *, timeout_seconds: float | None, abandon: bool, force: bool, progress: ShowProgress
    ) -> DrainResult:
        """Drain, commit and unmount."""

    async def retry(self) -> None:
        """Try everything again now."""

    async def conflicts(self) -> ConflictList:
        """Give what is kept aside."""

    async def events(self, after: int, limit: int) -> EventList:
        """Give events after a number."""

    async def snapshot(self, session: str, *, trigger: str) -> dict[str, object]:
        """Commit a session now; gives the generation."""

    async def claim(self, session: str, *, force: bool) -> None:
        """Become the owner of a session."""

    async def release(self, session: str) -> None:
        """Commit a session and give it up."""

    async def resolve(self, key: str) -> None:
        """End a conflict; whoever asks has put the file right."""


class ControlServer:
    """Listens on a socket that only its owner may use.

    Args:
        path: Of the socket; an old one there is replaced.
        control: Does the work.
    """

    def __init__(self, path: str, control: MountControl) -> None:
        self._path = path
        self.control = control
        self.shutdown_answered = trio.Event()
        self._socket = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    async def open(self) -> None:
        """Bind the socket; connections wait until `serve`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        before = os.umask(0o177)
        try:
            await self._socket.bind(self._path)
        finally:
            os.umask(before)
        self._socket.listen(16)

    async def serve(self) -> None:
        """Answer connections until cancelled; the socket's file goes with it."""
        try:
            await trio.serve_listeners(self._connection, [trio.SocketListener(self._socket)])
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    async def _connection(self, stream: trio.SocketStream) -> None:
        try:
            await _Connection(stream, self).serve()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client went away; what it asked for was cancelled
        except* Exception as problem:  # noqa: BLE001 - one client's fault must not end the daemon
            _log.error("control connection failed", problem=repr(problem))


class _Connection:
    """One client. A request is cancelled when its client goes away."""

    def __init__(self, stream: trio.SocketStream, server: ControlServer) -> None:
        self._stream = stream
        self._server = server
        self._control = server.control
        self._sending = trio.Lock()
        self._greeted = False
        self._operations: Mapping[str, Callable[[Request], Awaitable[object]]] = {
            "status": self._status,
            "drain": self._drain,
            "shutdown": self._shutdown,
            "retry": self._retry,
            "conflicts": self._conflicts,
            "events": self._events,
            "resolve": self._resolve,
            "snapshot": self._snapshot,
            "claim": self._claim,
            "release": self._release,
        }

    async def serve(self) -> None:
        buffer = bytearray()
        async with self._stream, trio.open_nursery() as nursery:
            while received := await self._stream.receive_some(1 << 16):
                buffer += received
                while (end := buffer.find(b"\n")) >= 0:
                    line = bytes(buffer[:end])
                    del buffer[: end + 1]
                    nursery.start_soon(self._answer, line)
                if len(buffer) > MAX_LINE_BYTES:
                    break
            nursery.cancel_scope.cancel()

    async def _answer(self, line: bytes) -> None:
        try:
            request = _decoder.decode(line)
        except msgspec.DecodeError as problem:
            await self._send_error(0, InvalidRequestError(f"no request: {problem}"))
            return
        operation = self._operations.get(request.op)
        try:
            if operation is None:
                known = ", ".join(sorted(self._operations))
                raise InvalidRequestError(f"unknown operation {request.op!r}", remedy=f"known: {known}")
            result = await operation(request)
        except SessionFSError as error:
            await self._send_error(request.id, error)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception as problem:  # noqa: BLE001 - the client is told
            _log.exception("control operation failed", op=request.op)
            await self._send_error(request.id, InternalError(f"{request.op} failed: {problem!r}"))
        else:
            await self._send(Reply(request.id, result=_raw(result)))
        if request.op == "shutdown":
            self._server.shutdown_answered.set()

    async def _status(self, _request: Request) -> object:
        return await self._control.status()

    async def _drain(self, request: Request) -> object:
        return await self._control.drain(timeout_seconds=request.timeout, progress=self._progress_of(request))

    async def _shutdown(self, request: Request) -> object:
        return await self._control.shut_down(
            timeout_seconds=request.timeout,
            abandon=request.abandon,
            force=request.force,
            progress=self._progress_of(request),
        )

    async def _retry(self, _request: Request) -> object:
        await self._control.retry()
        return {}

    async def _conflicts(self, _request: Request) -> object:
        return {"conflicts": (await self._control.conflicts()).conflicts}

    async def _events(self, request: Request) -> object:
        after = request.after
        while True:
            events = (await self._control.events(after, request.limit)).events
            for event in events:
                after = event.number
                await self._send(Reply(request.id, event=_raw(event)))
            if not request.follow:
                return {"after": after}
            if not events:
                await trio.sleep(_FOLLOW_SECONDS)

    async def _snapshot(self, request: Request) -> object:
        return await self._control.snapshot(request.session, trigger=request.trigger or COMMAND)

    async def _claim(self, request: Request) -> object:
        await self._control.claim(request.session, force=request.force)
        return {}

    async def _release(self, request: Request) -> object:
        await self._control.release(request.session)
        return {}

    async def _resolve(self, request: Request) -> object:
        if request.take not in TAKES or not request.key:
            raise InvalidRequestError("a conflict is ended by its key and 'theirs' or 'ours'")
        await self._control.resolve(request.key)
        return {}

    def _progress_of(self, request: Request) -> ShowProgress:
        async def show(progress: Progress) -> None:
            await self._send(Reply(request.id, progress=_raw(progress)))

        return show

    async def _send_error(self, identifier: int, error: SessionFSError) -> None:
        holder = getattr(error, "holder", "")
        message, remedy = roots.readable(error.message), roots.readable(error.remedy)
        body = ErrorBody(type(error).__name__, message, remedy, holder)
        await self._send(Reply(identifier, error=body))

    async def _send(self, reply: Reply) -> None:
        async with self._sending:
            if not self._greeted:
                self._greeted = True
                reply = msgspec.structs.replace(
                    reply, protocol=PROTOCOL_VERSION, version=sessionfs.__version__
                )
            await self._stream.send_all(msgspec.json.encode(reply) + b"\n")


def _raw(body: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(body))
