"""An HTTP server on loopback for tests: every request is given to a function, which gives the answer."""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request.

    Attributes:
        method: The HTTP method.
        path: The path as it was sent.
        query: The decoded query.
        headers: Names in lower case.
        body: The body.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer.

    Attributes:
        status: HTTP status; 0 ends the connection without a word.
        body: The body.
        headers: More headers; a ``content-length`` that is not the body's ends the connection behind it.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[HttpRequest], HttpAnswer]


class HttpServer:
    """The server. Use as a context manager.

    Args:
        answer: Answers; called in a thread for each connection.
        port: The port of 127.0.0.1 to listen on, 0 for any.
    """

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.answer = answer
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    answer: Answer

    def handle_error(self, *_arguments: object) -> None:
        """Say nothing: clients break connections off."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = TIMEOUT_SECONDS
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
        query = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.answer(HttpRequest(self.command, address.path, query, headers, body))
        if answer.status == 0:
            self.close_connection = True
            return
        self.send_response(answer.status)
        shown = {"content-length": str(len(answer.body))}
        shown |= {name.lower(): value for name, value in answer.headers.items()}
        for name, value in shown.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)
        self.close_connection = int(shown["content-length"]) != len(answer.body)
