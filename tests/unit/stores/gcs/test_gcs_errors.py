"""What errors of GCS mean whatever an object is called, and what they never show."""

from __future__ import annotations

import ssl
import traceback
from collections.abc import Iterator
from xml.sax.saxutils import escape

import pytest
import requests
from urllib3 import HTTPSConnectionPool
from urllib3 import exceptions as transport

from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    ConcurrentRequestError,
    InvalidRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.stores.base import IfAbsent, ObjectMetadata, ObjectStore, Token, Unconditional
from sessionfs.stores.gcs import uploads
from sessionfs.stores.gcs.errors import Request, classify
from sessionfs.stores.open_store import open_store
from sessionfs.testing.scripted_server import Planned, ScriptedServer

PLAIN = ObjectMetadata()
PIECE = 256 << 10
SECRET = "the-address-of-an-upload-is-a-secret"
NO_BUCKET = "The specified bucket does not exist."
ALL_WORDS = (
    "bucket not found/The bucket list does not exist/not found: bucket/NoSuchBucket/too many cooks/Rate Limit Exceeded/"
    "rateLimitExceeded/quotaExceeded/CERTIFICATE_VERIFY_FAILED.md"
)
HOSTILE = [
    ALL_WORDS,
    NO_BUCKET,
    'x: {"error":{"message":"' + NO_BUCKET + '","errors":[{"reason":"rateLimitExceeded"}]}}',
    "<Error><Code>NoSuchBucket</Code>",
]


def head(store: ObjectStore, key: str) -> object:
    return store.head(key)


def get(store: ObjectStore, key: str) -> object:
    return store.get(key, byte_range=None, expected=None)


def put(store: ObjectStore, key: str) -> object:
    return store.put(key, b"body", condition=IfAbsent(), metadata=PLAIN)


def delete(store: ObjectStore, key: str) -> object:
    return store.delete(key, condition=Unconditional())


def list_page(store: ObjectStore, key: str) -> object:
    return store.list_page(f"{key}/", page=None, whole_segments=True)


def copy(store: ObjectStore, key: str) -> object:
    return store.copy("from", key, source_token=Token("5"), condition=IfAbsent(), metadata=PLAIN)


def json_refusal(status: int, message: str, reason: str) -> Planned:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return Planned(status, {"error": {"code": status, "message": message, "errors": errors}})


def xml_refusal(status: int, code: str, details: str) -> Planned:
    text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>No.</Message><Details>{details}</Details></Error>"
    return Planned(status, text.encode(), {"content-type": "application/xml"})


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as started:
        yield started


@pytest.fixture
def store(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(uploads, "PIECE_BYTES", PIECE)
    opened = open_store(f"gs://bucket?endpoint={server.endpoint}")
    yield opened
    opened.close()


@pytest.mark.parametrize("key", HOSTILE[:2])
@pytest.mark.parametrize(
    ("status", "reason", "wanted"),
    [
        (400, "invalid", InvalidRequestError),
        (401, "authError", AccessError),
        (403, "forbidden", AccessError),
        (409, "conflict", ConcurrentRequestError),
        (412, "conditionNotMet", PreconditionFailedError),
        (429, "other", ThrottledError),
        (501, "notImplemented", InvalidRequestError),
        (503, "backendError", None),
    ],
)
def test_name_of_an_object_does_not_change_what_an_answer_means(
    server: ScriptedServer,
    store: ObjectStore,
    key: str,
    status: int,
    reason: str,
    wanted: type[SessionFSError] | None,
) -> None:
    for call in (head, get, put, delete, list_page):
        server.plan(json_refusal(status, f"the request on bucket/{key} was refused: {key}", reason))
        with pytest.raises(SessionFSError) as caught:
            call(store, key)
        unclear = OutcomeUnknownError if call in {put, delete} else UnavailableError
        assert type(caught.value) is (wanted or unclear)


@pytest.mark.parametrize("key", HOSTILE)
def test_missing_object_is_no_missing_bucket_whatever_its_name(
    server: ScriptedServer, store: ObjectStore, key: str
) -> None:
    missing = json_refusal(404, f"No such object: bucket/{key}", "notFound")
    server.plan(missing, Planned(200, {}))
    with pytest.raises(ObjectNotFoundError):
        head(store, key)
    server.plan(missing)
    delete(store, key)
    for details in (f"No such object: bucket/{escape(key)}", f"No such object: bucket/{key}"):
        server.plan(xml_refusal(404, "NoSuchKey", details))
        with pytest.raises(ObjectNotFoundError):
            get(store, key)
    for text in (key, f"No such object: {key}"):
        server.plan(Planned(404, f"gone: {text}".encode()))
        with pytest.raises(ObjectNotFoundError):
            get(store, key)
    server.plan(missing, json_refusal(404, "No such object: bucket/from", "notFound"), Planned(200, {}))
    with pytest.raises(ObjectNotFoundError, match="from"):
        copy(store, key)


@pytest.mark.parametrize("key", HOSTILE)
def test_forbidden_object_is_no_throttling_in_the_xml_api_either(
    server: ScriptedServer, store: ObjectStore, key: str
) -> None:
    server.plan(xml_refusal(403, "AccessDenied", f"no access to bucket/{key}"))
    with pytest.raises(AccessError):
        get(store, key)


@pytest.mark.parametrize("reason", ["rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"])
def test_rate_is_known_by_its_reason_alone(server: ScriptedServer, store: ObjectStore, reason: str) -> None:
    for call in (head, put):
        server.plan(json_refusal(403, "no", reason))
        with pytest.raises(ThrottledError):
            call(store, "key")


def test_missing_bucket_is_known_in_both_apis(server: ScriptedServer, store: ObjectStore) -> None:
    for call in (head, put, delete, list_page, copy):
        server.plan(json_refusal(404, NO_BUCKET, "notFound"))
        with pytest.raises(BucketNotFoundError):
            call(store, "key")
    server.plan(xml_refusal(404, "NoSuchBucket", ""))
    with pytest.raises(BucketNotFoundError):
        get(store, "key")


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'{"error": {"errors": [1]}}', b'{"error": {"errors": 1}}', b"\xff"]
)
def test_answer_that_names_nothing_is_known_by_its_status(
    server: ScriptedServer, store: ObjectStore, body: bytes
) -> None:
    server.plan(Planned(403, body))
    with pytest.raises(AccessError):
        get(store, "key")


@pytest.mark.parametrize("key", HOSTILE)
def test_only_a_certificate_that_is_not_trusted_is_one(key: str) -> None:
    request = Request("put", "bucket", key, "changing")
    pool = HTTPSConnectionPool("store.example")

    def meaning(cause: Exception) -> type[SessionFSError]:
        inside = transport.MaxRetryError(pool, f"/bucket/{key}", transport.SSLError(cause))
        return type(classify(requests.exceptions.SSLError(inside), request))

    assert meaning(ssl.SSLError("record layer failure")) is OutcomeUnknownError
    assert meaning(ssl.SSLCertVerificationError("self-signed certificate")) is AccessError


def shown_by(error: BaseException | None) -> str:
    """Everything that a traceback shows, and what it leaves out as well."""
    text = "".join(traceback.format_exception(error)) if error is not None else ""
    waiting, seen = [error], list[BaseException]()
    while waiting:
        found = waiting.pop()
        if found is not None and found not in seen:
            seen.append(found)
            text += f"{found!r} {found}"
            waiting += [found.__cause__, found.__context__]
    return text


@pytest.mark.parametrize("pieces_before", [0, 2])
@pytest.mark.parametrize(
    "answer", [Planned(0), Planned(503), Planned(400), Planned(403), Planned(410), Planned(412), Planned(429)]
)
def test_address_of_an_upload_is_in_no_traceback(
    server: ScriptedServer, store: ObjectStore, answer: Planned, pieces_before: int
) -> None:
    start = Planned(200, headers={"Location": f"{server.endpoint}/upload?upload_id={SECRET}"})
    kept = [Planned(308, headers={"Range": f"bytes=0-{(count + 1) * PIECE - 1}"}) for count in (0, 1)]
    server.plan(start, *kept[:pieces_before], answer)
    with pytest.raises(SessionFSError) as caught:
        store.put("key", b"x" * (3 * PIECE), condition=Unconditional(), metadata=PLAIN)
    assert SECRET not in shown_by(caught.value)


def test_address_of_an_upload_is_not_shown_when_its_server_is_gone(
    server: ScriptedServer, store: ObjectStore
) -> None:
    with ScriptedServer() as gone:
        nowhere = gone.endpoint
    server.plan(Planned(200, headers={"Location": f"{nowhere}/upload?upload_id={SECRET}"}))
    with pytest.raises(UnavailableError) as caught:
        store.put("key", b"x" * (3 * PIECE), condition=Unconditional(), metadata=PLAIN)
    assert SECRET not in shown_by(caught.value)
