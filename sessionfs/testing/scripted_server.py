"""An HTTP server on loopback that gives planned answers, one after the other, and records what it was asked."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self

from sessionfs.testing.http_server import HttpAnswer, HttpRequest, HttpServer


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
        self._server = HttpServer(self._serve)

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        return self._server.endpoint

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
        self._server.__enter__()
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        self._server.__exit__()
        if self._planned and kind is None:
            raise AssertionError(f"planned answers that were not used: {list(self._planned)}")

    def _serve(self, request: HttpRequest) -> HttpAnswer:
        path = urllib.parse.unquote(request.path)
        planned = self.answer(Asked(request.method, path, request.query, request.headers, request.body))
        content = planned.content
        body = content if isinstance(content, bytes) else json.dumps(content).encode("utf-8")
        return HttpAnswer(planned.status, body, planned.headers)
