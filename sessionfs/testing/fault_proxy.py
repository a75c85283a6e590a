"""A small HTTP proxy in front of an S3 server that fails as planned, and counts what passes.

It hands every request on with its own Host header, so signatures stay valid: the client signs for the proxy's address, and the
server checks against the header it gets.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

_LIMIT_BYTES = 1 << 16
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DropRequest:
    """The connection ends before the server sees the request."""


@dataclass(frozen=True, slots=True)
class DropResponse:
    """The server does it, then the connection ends: a lost response."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The proxy answers itself; the server sees the request only with `forward`.

    Attributes:
        status: HTTP status; 200 makes an error inside a 200.
        code: S3's error code.
        headers: More headers, for instance ``x-amz-bucket-region``.
        forward: Whether the server does it first.
    """

    status: int
    code: str = "Planned"
    headers: dict[str, str] = field(default_factory=dict)
    forward: bool = False


@dataclass(frozen=True, slots=True)
class DelayResponse:
    """The server does it, the answer comes later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class TruncateBody:
    """The answer announces its whole body and ends early."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """The server sees the request late: when the event is set, whatever became of the client; as of a machine that was paused.

    Attributes:
        held: Set by the proxy once it has the whole request.
        until: Set by the test.
    """

    held: threading.Event = field(default_factory=threading.Event)
    until: threading.Event = field(default_factory=threading.Event)


Fault = DropRequest | DropResponse | Reply | DelayResponse | TruncateBody | HoldRequest


@dataclass(slots=True)
class _Plan:
    fault: Fault
    method: str
    text: str
    times: int


@dataclass(frozen=True, slots=True)
class _Message:
    """A request or answer: first line, headers as they came, body as sent, and its whole length on the wire."""

    first: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    wire_bytes: int

    def header(self, name: bytes) -> bytes:
        return next((value for found, value in self.headers if found.lower() == name), b"")

    def encoded(self, *, without: bytes = b"") -> bytes:
        lines = [self.first, *(b"%s: %s" % pair for pair in self.headers if pair[0].lower() != without)]
        return b"\r\n".join([*lines, b"", self.body])


class FaultProxy:
    """The proxy. Use as a context manager.

    Args:
        endpoint: URL of the server behind it.

    Attributes:
        requests: Each request that came in: (method, path with query).
        methods: How many by method.
        bytes_received: Bytes from clients, headers included.
        body_bytes_received: Bytes of the bodies alone.
    """

    def __init__(self, endpoint: str) -> None:
        address = urllib.parse.urlsplit(endpoint)
        self._upstream = (address.hostname or "127.0.0.1", address.port or 80)
        self._lock = threading.Lock()
        self._plans: list[_Plan] = []
        self._listener: socket.socket | None = None
        self._port = 0
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.requests: list[tuple[str, str]] = []
        self.methods: Counter[str] = Counter()
        self.bytes_received = 0
        self.body_bytes_received = 0

    def __enter__(self) -> Self:
        self.come_up()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.go_down()
        for thread in self._threads:
            thread.join(_TIMEOUT_SECONDS)

    @property
    def endpoint(self) -> str:
        """The proxy's URL."""
        return f"http://127.0.0.1:{self._port}"

    def url_for(self, store_url: str) -> str:
        """Give the same store's URL through the proxy."""
        head, _, query = store_url.partition("?")
        options = dict(urllib.parse.parse_qsl(query)) | {"endpoint": self.endpoint}
        return f"{head}?{urllib.parse.urlencode(options, safe=':/')}"

    def plan(self, fault: Fault, *, method: str = "", text: str = "", times: int = 1) -> None:
        """Queue a fault for the next requests that match.

        Args:
            fault: What happens.
            method: HTTP method, "" for any.
            text: Part of the decoded path and query, "" for any.
            times: How many requests it happens to.
        """
        with self._lock:
            self._plans.append(_Plan(fault, method, text, times))

    def forget_plans(self) -> None:
        """Drop what is still planned."""
        with self._lock:
            self._plans.clear()

    def assert_all_used(self) -> None:
        """Fail when a planned fault never happened."""
        with self._lock:
            left = [plan for plan in self._plans if plan.times > 0]
        if left:
            raise AssertionError(f"planned faults that were not used: {left}")

    def reset_counters(self) -> None:
        """Start counting anew."""
        with self._lock:
            self.requests.clear()
            self.methods.clear()
            self.bytes_received = 0
            self.body_bytes_received = 0

    def go_down(self) -> None:
        """Refuse connections and end the ones there are: an outage."""
        with self._lock:
            listener, self._listener = self._listener, None
            connections = list(self._connections)
        if listener is not None:
            # A thread that waits in accept wakes up by shutdown, not by close.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def come_up(self) -> None:
        """Accept connections again, on the same port."""
        if self._listener is not None:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(128)
        self._port = listener.getsockname()[1]
        self._listener = listener
        self._start(self._accept, listener)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        with self._lock:
            self._threads = [known for known in self._threads if known.is_alive()]
            self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.settimeout(_TIMEOUT_SECONDS)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connections.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        try:
            reader = _Reader(client)
            while (request := reader.message(expect=client)) is not None:
                fault = self._count_and_choose(request)
                if isinstance(fault, DropRequest):
                    return
                if isinstance(fault, HoldRequest):
                    fault.held.set()
                    fault.until.wait(_TIMEOUT_SECONDS)
                answer = None
                if not isinstance(fault, Reply) or fault.forward:
                    if server is None:
                        server = socket.create_connection(self._upstream, timeout=_TIMEOUT_SECONDS)
                        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        answers = _Reader(server)
                    server.sendall(request.encoded(without=b"expect"))
                    answer = answers.message(is_answer_to=request.first)
                    if answer is None:
                        return
                if not self._answer(client, fault, answer, request):
                    return
        except (OSError, ValueError):
            return
        finally:
            with self._lock:
                self._connections.discard(client)
            client.close()
            if server is not None:
                server.close()

    def _answer(
        self, client: socket.socket, fault: Fault | None, answer: _Message | None, request: _Message
    ) -> bool:
        """Answer the client; False when the connection has to end."""
        if isinstance(fault, DropResponse):
            return False
        if isinstance(fault, Reply):
            client.sendall(_own_answer(fault, request))
            return True
        if answer is None:
            return False
        data = answer.encoded()
        if isinstance(fault, TruncateBody):
            client.sendall(data[: len(data) - len(answer.body) + fault.after_bytes])
            return False
        if isinstance(fault, DelayResponse):
            time.sleep(fault.seconds)
        client.sendall(data)
        return True

    def _count_and_choose(self, request: _Message) -> Fault | None:
        method, path = (part.decode("latin-1") for part in request.first.split(b" ")[:2])
        shown = urllib.parse.unquote(path)
        with self._lock:
            self.requests.append((method, path))
            self.methods[method] += 1
            self.bytes_received += request.wire_bytes
            self.body_bytes_received += len(request.body)
            for plan in self._plans:
                if plan.times > 0 and plan.method in {"", method} and plan.text in shown:
                    plan.times -= 1
                    return plan.fault
        return None


class _Reader:
    """Reads HTTP/1.1 messages from a socket."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = b""

    def message(self, *, expect: socket.socket | None = None, is_answer_to: bytes = b"") -> _Message | None:
        """Read one message, None when the connection ended before it began."""
        head = self._until(b"\r\n\r\n")
        if head is None:
            return None
        if is_answer_to and head.split(b" ")[1:2] == [b"100"]:
            return self.message(is_answer_to=is_answer_to)
        first, *lines = head[:-4].split(b"\r\n")
        pairs = (line.partition(b":") for line in lines)
        headers = tuple((name, value.strip()) for name, _, value in pairs)
        message = _Message(first, headers, b"", len(head))
        if expect is not None and message.header(b"expect").lower() == b"100-continue":
            expect.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if is_answer_to.startswith(b"HEAD ") or (is_answer_to and first.split(b" ")[1] in {b"204", b"304"}):
            return message
        if message.header(b"transfer-encoding").lower() == b"chunked":
            body = self._chunked()
        else:
            body = self._exactly(int(message.header(b"content-length") or 0))
        return _Message(first, headers, body, len(head) + len(body))

    def _chunked(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            line = self._until(b"\r\n") or b""
            size = int(line.partition(b";")[0].strip(), 16)
            piece = self._exactly(size + 2)
            pieces += [line, piece]
            if size == 0:
                return b"".join(pieces)

    def _until(self, end: bytes) -> bytes | None:
        while end not in self._buffer:
            received = self._source.recv(_LIMIT_BYTES)
            if not received:
                return None
            self._buffer += received
        found, _, self._buffer = self._buffer.partition(end)
        return found + end

    def _exactly(self, size: int) -> bytes:
        pieces = [self._buffer[:size]]
        self._buffer = self._buffer[size:]
        left = size - len(pieces[0])
        while left:
            received = self._source.recv(min(left, 1 << 20))
            if not received:
                raise ValueError("the connection ended inside a body")
            pieces.append(received)
            left -= len(received)
        return b"".join(pieces)


def _own_answer(fault: Reply, request: _Message) -> bytes:
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{fault.code}</Code><Message>as planned</Message><RequestId>1</RequestId></Error>"
    ).encode()
    if request.first.startswith(b"HEAD "):
        body = b""
    headers = {"Content-Type": "application/xml", "Content-Length": str(len(body))} | fault.headers
    lines = [f"HTTP/1.1 {fault.status} Planned", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
