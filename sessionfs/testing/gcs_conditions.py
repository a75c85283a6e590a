"""What gcp-storage-emulator leaves out of GCS, added by a proxy in front of it: conditions, pages, and the metadata of copies.

The emulator (2026.7) takes every condition and ignores it, gives a listing as one page, keeps the source's metadata on a rewrite, and names no
generation beside a body. It keeps the objects and does the work here too; the proxy holds one lock around looking and doing, so
of racing requests exactly one wins. Nothing of ours decides what a client should have sent.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import re
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, Self

from sessionfs.testing.http_server import TIMEOUT_SECONDS, HttpAnswer, HttpRequest, HttpServer

_OBJECT = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)")
_COMPOSE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose")
_REWRITE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)")
_LIST = re.compile(r"/storage/v1/b/([^/]+)/o")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")
_MEDIA = re.compile(r"/([^/]+)/(.+)")
_FIRST_PART = re.compile(rb"\r\n\r\n(\{.*?\})\r\n--", re.DOTALL)
_DROPPED = frozenset({"connection", "content-length", "date", "server", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A generation that an object must have, 0 for no object."""

    bucket: str
    name: str
    generation: str


@dataclass(slots=True)
class Exchange:
    """A request, and its answer once there is one."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    status: int = 0
    answer: bytes = b""
    answer_headers: dict[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The path with its query."""
        return self.path + ("?" + urllib.parse.urlencode(self.query) if self.query else "")

    def say(self, status: int, content: Any) -> None:
        """Answer with JSON."""
        self.status, self.answer = status, json.dumps(content).encode("utf-8")
        self.answer_headers = {"Content-Type": "application/json"}


class ConditionsProxy:
    """The proxy. Use as a context manager.

    Args:
        emulator: The emulator's URL.
        port: The port of 127.0.0.1 to listen on, 0 for any.

    Attributes:
        requests: Method, path and query of everything that came, in order.
    """

    def __init__(self, emulator: str, port: int = 0) -> None:
        self._address = urllib.parse.urlsplit(emulator)
        self._lock = threading.Lock()
        self._uploads: dict[str, Condition] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self._server = HttpServer(self._answered, port)

    @property
    def endpoint(self) -> str:
        """The proxy's URL."""
        return self._server.endpoint

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.__exit__()

    def _answered(self, request: HttpRequest) -> HttpAnswer:
        exchange = Exchange(request.method, request.path, request.query, request.headers, request.body)
        self.serve(exchange)
        return HttpAnswer(exchange.status, exchange.answer, exchange.answer_headers)

    def serve(self, exchange: Exchange) -> None:
        """Answer one request, as GCS would."""
        with self._lock:
            self.requests.append((exchange.method, exchange.path, dict(exchange.query)))
            for condition in self._conditions(exchange):
                if self._generation(condition.bucket, condition.name) != condition.generation:
                    exchange.say(HTTPStatus.PRECONDITION_FAILED, {"error": {"message": "conditionNotMet"}})
                    return
            if exchange.method == "GET" and _LIST.fullmatch(exchange.path):
                self._list(exchange)
                return
            self._forward(exchange)
            self._complete(exchange)

    # --- what was asked

    def _conditions(self, exchange: Exchange) -> list[Condition]:
        if exchange.method == "GET":
            return self._reading(exchange)
        wanted = exchange.query.get("ifGenerationMatch")
        if upload := _UPLOAD.fullmatch(exchange.path):
            return self._uploading(exchange, upload[1], wanted)
        found: list[Condition] = []
        if rewrite := _REWRITE.fullmatch(exchange.path):
            source = exchange.query.get("ifSourceGenerationMatch")
            found += _required(
                rewrite[1], rewrite[2], source if self._exists(rewrite[1], rewrite[2]) else None
            )
            return found + _required(rewrite[3], rewrite[4], wanted)
        if compose := _COMPOSE.fullmatch(exchange.path):
            for part in json.loads(exchange.body)["sourceObjects"]:
                source = part.get("objectPreconditions", {}).get("ifGenerationMatch")
                name = urllib.parse.quote(part["name"], safe="")
                found += _required(compose[1], name, source if self._exists(compose[1], name) else None)
            return found + _required(compose[1], compose[2], wanted)
        if (named := _OBJECT.fullmatch(exchange.path)) and self._exists(named[1], named[2]):
            return _required(named[1], named[2], wanted)
        return found

    def _reading(self, exchange: Exchange) -> list[Condition]:
        wanted = exchange.headers.get("x-goog-if-generation-match")
        media = _MEDIA.fullmatch(exchange.path)
        if wanted is None or media is None:
            return []
        name = urllib.parse.quote(urllib.parse.unquote(media[2]), safe="")
        return _required(media[1], name, wanted if self._exists(media[1], name) else None)

    def _uploading(self, exchange: Exchange, bucket: str, wanted: str | None) -> list[Condition]:
        if (upload_id := exchange.query.get("upload_id")) is not None:
            ends = not exchange.headers.get("content-range", "").endswith("/*")
            kept = self._uploads.get(upload_id)
            return [kept] if kept is not None and ends and exchange.method == "PUT" else []
        described = _FIRST_PART.search(exchange.body)
        meta = json.loads(described[1] if described else exchange.body or b"{}")
        return _required(bucket, urllib.parse.quote(meta["name"], safe=""), wanted)

    # --- what is done

    def _complete(self, exchange: Exchange) -> None:
        """Add to the emulator's answer what it left out."""
        if exchange.status >= HTTPStatus.BAD_REQUEST:
            return
        if exchange.query.get("uploadType") == "resumable" and "upload_id" not in exchange.query:
            self._remember(exchange)
        elif rewrite := _REWRITE.fullmatch(exchange.path):
            self._describe_copy(exchange, rewrite[3], rewrite[4])
        elif exchange.method == "GET" and not exchange.path.startswith("/storage/"):
            self._describe_media(exchange)

    def _remember(self, exchange: Exchange) -> None:
        address = urllib.parse.urlsplit(exchange.answer_headers["Location"])
        upload_id = urllib.parse.parse_qs(address.query)["upload_id"][0]
        wanted = exchange.query.get("ifGenerationMatch")
        bucket = exchange.path.split("/")[-2]
        name = urllib.parse.quote(json.loads(exchange.body)["name"], safe="")
        for condition in _required(bucket, name, wanted):
            self._uploads[upload_id] = condition

    def _describe_copy(self, exchange: Exchange, bucket: str, name: str) -> None:
        described = {"metadata": {}, "contentEncoding": "", **json.loads(exchange.body)}
        change = Exchange(
            "PATCH",
            f"/storage/v1/b/{bucket}/o/{name}",
            {},
            {"Content-Type": "application/json"},
            json.dumps(described).encode("utf-8"),
        )
        self._forward(change)
        content = json.loads(exchange.answer)
        exchange.say(exchange.status, {**content, "resource": json.loads(change.answer)})

    def _describe_media(self, exchange: Exchange) -> None:
        media = _MEDIA.fullmatch(exchange.path)
        if media is None:
            return
        stat = self._described(media[1], urllib.parse.quote(urllib.parse.unquote(media[2]), safe=""))
        changed = datetime.fromisoformat(stat["updated"])
        exchange.answer_headers |= {
            "X-Goog-Generation": stat["generation"],
            "X-Goog-Stored-Content-Length": str(stat["size"]),
            "X-Goog-Stored-Content-Encoding": stat.get("contentEncoding") or "identity",
            "Last-Modified": email.utils.format_datetime(changed, usegmt=True),
        }

    def _list(self, exchange: Exchange) -> None:
        after = exchange.query.pop("pageToken", "")
        limit = int(exchange.query.pop("maxResults", "1000"))
        self._forward(exchange)
        if exchange.status != HTTPStatus.OK:
            return
        found = json.loads(exchange.answer)
        entries = [(item["name"], item) for item in found.get("items", ())]
        entries += [(prefix, None) for prefix in found.get("prefixes", ())]
        rest = sorted((entry for entry in entries if entry[0] > after), key=lambda entry: entry[0])
        shown = rest[:limit]
        content: dict[str, Any] = {
            "items": [item for _, item in shown if item is not None],
            "prefixes": [name for name, item in shown if item is None],
        }
        if len(rest) > limit:
            content["nextPageToken"] = shown[-1][0]
        exchange.say(HTTPStatus.OK, content)

    # --- the emulator

    def _exists(self, bucket: str, name: str) -> bool:
        return bool(self._described(bucket, name))

    def _generation(self, bucket: str, name: str) -> str:
        return str(self._described(bucket, name).get("generation", "0"))

    def _described(self, bucket: str, name: str) -> dict[str, Any]:
        look = Exchange("GET", f"/storage/v1/b/{bucket}/o/{name}", {}, {}, b"")
        self._forward(look)
        found: dict[str, Any] = json.loads(look.answer) if look.status == HTTPStatus.OK else {}
        return found

    def _forward(self, exchange: Exchange) -> None:
        connection = http.client.HTTPConnection(
            self._address.hostname or "", self._address.port, timeout=TIMEOUT_SECONDS
        )
        headers = {name: value for name, value in exchange.headers.items() if name.lower() not in _DROPPED}
        try:
            connection.request(exchange.method, exchange.target, exchange.body or None, headers)
            answer = connection.getresponse()
            exchange.status, exchange.answer = answer.status, answer.read()
            exchange.answer_headers = {
                name: value for name, value in answer.getheaders() if name.lower() not in _DROPPED
            }
        finally:
            connection.close()


def _required(bucket: str, name: str, generation: str | int | None) -> list[Condition]:
    return [] if generation is None else [Condition(bucket, name, str(generation))]
