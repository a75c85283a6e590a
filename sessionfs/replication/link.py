"""Requests over one socket between the daemon and the replication process, in both directions at once.

Invariants:

* Every call ends: with its reply, the other side's error, or `UnavailableError` when the link breaks.
* Requests are handled at the same time, each in its own task; replies leave in the order they are ready.
* A notice never waits. Of the notices of one class (about one session) only the newest is kept: they cannot fill the buffer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
import trio

from sessionfs.formats import link_messages
from sessionfs.formats.link_message import Message
from sessionfs.formats.link_messages import (
    LENGTH_BYTES,
    AnyMessage,
    Envelope,
    Failure,
)
from sessionfs.model.errors import InternalError, SessionFSError, UnavailableError

Handler = Callable[[AnyMessage], Awaitable[AnyMessage]]
"""Answers one request; what it returns for a notice is dropped. It may raise `SessionFSError`."""

Reply = TypeVar("Reply", bound=Message)

_RECEIVE_BYTES = 1 << 16
_log = structlog.get_logger("sessionfs.link")


class _Call:
    """A request that waits for its reply."""

    __slots__ = ("arrived", "reply")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.reply: AnyMessage | None = None


class Link:
    """One side of the link.

    Args:
        stream: A connected stream socket; the link closes it.
        handler: Answers the other side's requests.
        unclaimed: Given replies that came after their caller had given up.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        handler: Handler,
        *,
        unclaimed: Callable[[AnyMessage], None] = lambda _reply: None,
    ) -> None:
        self._unclaimed = unclaimed
        self._stream = stream
        self._handler = handler
        self._calls: dict[int, _Call] = {}
        self._identifier = 0
        self._frames: list[bytes] = []
        self._notices: dict[tuple[type[AnyMessage], str], AnyMessage] = {}
        self._wake = trio.Event()
        self.closed = False

    async def call(self, message: AnyMessage) -> AnyMessage:
        """Send a request and wait for its reply.

        Raises:
            UnavailableError: The link is, or becomes, broken; `closed` is true then.
            SessionFSError: The other side's error.
        """
        if self.closed:
            raise _broken()
        self._identifier += 1
        identifier = self._identifier
        call = self._calls[identifier] = _Call()
        self._send(Envelope(identifier, False, message))  # noqa: FBT003 - positional record
        try:
            await call.arrived.wait()
        finally:
            self._calls.pop(identifier, None)
        reply = call.reply
        if reply is None:
            raise _broken()
        if isinstance(reply, Failure):
            raise link_messages.error_of(reply)
        return reply

    async def ask(self, message: AnyMessage, kind: type[Reply]) -> Reply:
        """Send a request whose reply is of one kind; as `call`.

        Raises:
            InternalError: The reply is of another kind.
        """
        reply = await self.call(message)
        if not isinstance(reply, kind):
            raise InternalError(f"{type(message).__name__} was answered with {type(reply).__name__}")
        return reply

    def notify(self, message: AnyMessage) -> None:
        """Send a notice without waiting; a newer one of its class may replace it, a broken link loses it."""
        if not self.closed:
            self._notices[type(message), getattr(message, "session", "")] = message
            self._wake.set()

    async def serve(self) -> None:
        """Move messages until the link ends; then fail every waiting call and close the socket."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                await self._read(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.closed = True
            for call in self._calls.values():
                call.arrived.set()
            await trio.aclose_forcefully(self._stream)

    async def aclose(self) -> None:
        """End the link from this side; `serve` returns."""
        await trio.aclose_forcefully(self._stream)

    def _send(self, envelope: Envelope) -> None:
        self._frames.append(link_messages.encode(envelope))
        self._wake.set()

    async def _write(self, scope: trio.CancelScope) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                frames, self._frames = self._frames, []
                notices, self._notices = self._notices, {}
                # Notices first: they say what the requests behind them build on.
                head = [link_messages.encode(Envelope(0, False, notice)) for notice in notices.values()]  # noqa: FBT003
                await self._stream.send_all(b"".join(head + frames))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()

    async def _read(self, nursery: trio.Nursery) -> None:
        buffer = bytearray()
        while True:
            try:
                received = await self._stream.receive_some(_RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not received:
                return
            buffer += received
            start = 0
            while len(buffer) - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                end = body + link_messages.decode_length(bytes(buffer[start:body]))
                if len(buffer) < end:
                    break
                self._take(link_messages.decode(bytes(buffer[body:end])), nursery)
                start = end
            del buffer[:start]

    def _take(self, envelope: Envelope, nursery: trio.Nursery) -> None:
        if not envelope.is_reply:
            nursery.start_soon(self._answer, envelope)
            return
        call = self._calls.get(envelope.identifier)
        if call is None:
            self._unclaimed(envelope.body)
            return
        call.reply = envelope.body
        call.arrived.set()

    async def _answer(self, envelope: Envelope) -> None:
        try:
            reply = await self._handler(envelope.body)
        except SessionFSError as error:
            reply = link_messages.failure_of(error)
        except Exception as error:  # noqa: BLE001 - one request's fault must not end the link
            name = type(envelope.body).__name__
            _log.exception("request failed", request=name)
            reply = link_messages.failure_of(
                InternalError(f"{name} failed: {error!r}", remedy="see daemon.log")
            )
        if envelope.identifier:
            self._send(Envelope(envelope.identifier, True, reply))  # noqa: FBT003 - positional record
        elif isinstance(reply, Failure) and reply.kind != "InternalError":
            _log.error("notice failed", request=type(envelope.body).__name__, problem=reply.message)


def _broken() -> UnavailableError:
    return UnavailableError("the replication process does not answer", remedy="it is started again by itself")
