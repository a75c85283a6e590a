"""An HTTP server on loopback that gives planned answers, one after the other, and records what it was asked."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        method: The HTTP method.
        path: The decoded path.
        query: The decoded query.
        headers: Names in lower case.
        body: The body.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Planned:
    """One answer.

    Attributes:
        status: HTTP status; 0 ends the connection without a word.
        content: Sent as JSON, or as it is when it is bytes.
        headers: More headers.
    """

    status: int = HTTPStatus.OK
    content: Any = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class ScriptedServer:
    """The server. Use as a context manager; leaving it fails when a planned answer was not used.

    Attributes:
        asked: What came, in order.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._planned: deque[Planned] = deque()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.script = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def plan(self, *answers: Planned) -> None:
        """Queue answers; a request for which nothing is planned gets a 501."""
        with self._lock:
            self._planned.extend(answers)

    def answer(self, asked: Asked) -> Planned:
        """Record a request and give its answer."""
        with self._lock:
            self.asked.append(asked)
            return self._planned.popleft() if self._planned else Planned(HTTPStatus.NOT_IMPLEMENTED)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._planned and kind is None:
            raise AssertionError(f"planned answers that were not used: {list(self._planned)}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    script: ScriptedServer

    def handle_error(self, *_arguments: object) -> None:
        """Say nothing: clients break connections off."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def log_message(self, *_arguments: object) -> None:
        return

    def _serve(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        asked = Asked(
            self.command,
            urllib.parse.unquote(address.path),
            dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True)),
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(int(self.headers.get("Content-Length") or 0)),
        )
        planned = self.server.script.answer(asked)
        if planned.status == 0:
            self.close_connection = True
            return
        content = planned.content
        body = content if isinstance(content, bytes) else json.dumps(content).encode("utf-8")
        self.send_response(planned.status)
        planned_headers = {name.lower(): value for name, value in planned.headers.items()}
        headers = {"content-length": str(len(body)), **planned_headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = int(headers["content-length"]) != len(body)
