"""What becomes of a request when the network or the server misbehaves: a real SeaweedFS behind a proxy with planned faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sessionfs.model.errors import (
    AccessError,
    ConcurrentRequestError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.open_store import open_store
from sessionfs.stores.s3 import connection
from sessionfs.testing.fault_proxy import (
    DelayResponse,
    DropRequest,
    DropResponse,
    FaultProxy,
    Reply,
    TruncateBody,
)
from sessionfs.testing.s3_servers import SeaweedServer

pytestmark = pytest.mark.s3

PLAIN = ObjectMetadata()
PART = b"p" * (5 << 20)


@dataclass
class Rig:
    proxy: FaultProxy
    store: ObjectStore
    behind: ObjectStore

    def put(self, key: str, body: bytes = b"body") -> str:
        return self.behind.put(key, body, condition=Unconditional(), metadata=PLAIN)

    def has(self, key: str) -> bool:
        try:
            self.behind.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def uploads(self) -> int:
        client = self.behind._client  # type: ignore[attr-defined]
        bucket = self.behind._connection.bucket  # type: ignore[attr-defined]
        return len(client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))


@pytest.fixture
def rig(seaweed: SeaweedServer) -> Iterator[Rig]:
    url = seaweed.fresh_bucket()
    with FaultProxy(seaweed.endpoint) as proxy:
        store, behind = open_store(proxy.url_for(url)), open_store(url)
        yield Rig(proxy, store, behind)
        store.close()
        behind.close()
        proxy.assert_all_used()


def go_on() -> None:
    return None


def test_signed_requests_pass_unchanged_and_are_counted(rig: Rig) -> None:
    rig.store.put("a b/100%+ü", b"12345", condition=IfAbsent(), metadata=ObjectMetadata({"mode": "1"}))
    with rig.store.get("a b/100%+ü", byte_range=None, expected=None) as body:
        assert body.read() == b"12345"
    assert rig.proxy.methods == {"PUT": 1, "GET": 1}
    assert rig.proxy.body_bytes_received == 5
    assert 5 < rig.proxy.bytes_received < 5000


def test_put_whose_response_is_lost_is_unknown_and_was_applied(rig: Rig) -> None:
    rig.proxy.plan(DropResponse(), method="PUT", text="/file")
    with pytest.raises(OutcomeUnknownError):
        rig.store.put("file", b"x", condition=IfAbsent(), metadata=PLAIN)
    assert rig.has("file")


def test_put_whose_request_is_lost_is_unknown_and_was_not_applied(rig: Rig) -> None:
    rig.proxy.plan(DropRequest(), method="PUT")
    with pytest.raises(OutcomeUnknownError):
        rig.store.put("file", b"x", condition=IfAbsent(), metadata=PLAIN)
    assert not rig.has("file")


def test_delete_and_copy_whose_response_is_lost_are_unknown(rig: Rig) -> None:
    token = rig.store.put("source", b"x", condition=IfAbsent(), metadata=PLAIN)
    rig.proxy.plan(DropResponse(), method="PUT", text="/target")
    with pytest.raises(OutcomeUnknownError):
        rig.store.copy("source", "target", source_token=token, condition=IfAbsent(), metadata=PLAIN)
    assert rig.has("target")
    rig.proxy.plan(DropResponse(), method="DELETE")
    with pytest.raises(OutcomeUnknownError):
        rig.store.delete("source", condition=IfMatch(token))
    assert not rig.has("source")


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "ConditionalRequestConflict", ConcurrentRequestError),
        (412, "PreconditionFailed", PreconditionFailedError),
        (503, "SlowDown", ThrottledError),
        (429, "TooManyRequests", ThrottledError),
        (503, "ServiceUnavailable", OutcomeUnknownError),
        (500, "InternalError", OutcomeUnknownError),
        (502, "BadGateway", OutcomeUnknownError),
        (504, "GatewayTimeout", OutcomeUnknownError),
        (403, "AccessDenied", AccessError),
    ],
)
def test_refused_put_has_the_meaning_of_its_status(
    rig: Rig, status: int, code: str, expected: type[SessionFSError]
) -> None:
    token = rig.put("file")
    rig.proxy.plan(Reply(status, code), method="PUT")
    with pytest.raises(SessionFSError) as caught:
        rig.store.put("file", b"x", condition=IfMatch(token), metadata=PLAIN)  # type: ignore[arg-type]
    assert type(caught.value) is expected


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_reads_are_never_unknown_and_never_missing(rig: Rig, status: int) -> None:
    rig.put("file")
    for method, read in (
        ("GET", lambda: rig.store.get("file", byte_range=None, expected=None)),
        ("HEAD", lambda: rig.store.head("file")),
        ("GET", lambda: rig.store.list_page("", page=None, whole_segments=False)),
    ):
        rig.proxy.plan(Reply(status, "Whatever"), method=method)
        with pytest.raises(UnavailableError):
            read()


def test_error_inside_a_200_of_a_copy_is_no_success(rig: Rig) -> None:
    token = rig.put("source")
    rig.proxy.plan(Reply(200, "InternalError"), method="PUT", text="/target")
    with pytest.raises(OutcomeUnknownError):
        rig.store.copy("source", "target", source_token=token, condition=IfAbsent(), metadata=PLAIN)  # type: ignore[arg-type]


def test_throttling_inside_a_200_is_unknown_all_the_same(rig: Rig) -> None:
    token = rig.put("source")
    rig.proxy.plan(Reply(200, "SlowDown"), method="PUT", text="/target")
    with pytest.raises(OutcomeUnknownError):
        rig.store.copy("source", "target", source_token=token, condition=IfAbsent(), metadata=PLAIN)  # type: ignore[arg-type]


def test_error_inside_a_200_of_a_complete_is_no_success(rig: Rig) -> None:
    rig.proxy.plan(Reply(200, "InternalError"), method="POST", text="uploadId=")
    with pytest.raises(OutcomeUnknownError):
        rig.store.put_parts("file", [b"x"], condition=IfAbsent(), metadata=PLAIN, before_complete=go_on)
    assert not rig.has("file")


def test_lost_response_of_a_complete_is_unknown_and_the_object_is_whole(rig: Rig) -> None:
    rig.proxy.plan(DropResponse(), method="POST", text="uploadId=")
    with pytest.raises(OutcomeUnknownError):
        rig.store.put_parts("file", [PART, b"x"], condition=IfAbsent(), metadata=PLAIN, before_complete=go_on)
    assert rig.behind.head("file").size_bytes == len(PART) + 1


def test_part_that_fails_is_unavailable_not_unknown_and_the_upload_is_aborted(rig: Rig) -> None:
    rig.proxy.plan(Reply(500, "InternalError"), method="PUT", text="partNumber=2")
    with pytest.raises(UnavailableError):
        rig.store.put_parts("file", [PART, b"x"], condition=IfAbsent(), metadata=PLAIN, before_complete=go_on)
    assert not rig.has("file")
    assert rig.uploads() == 0


def test_conflict_on_complete_aborts_the_upload(rig: Rig) -> None:
    rig.proxy.plan(Reply(409, "ConditionalRequestConflict"), method="POST", text="uploadId=")
    with pytest.raises(ConcurrentRequestError):
        rig.store.put_parts("file", [b"x"], condition=IfAbsent(), metadata=PLAIN, before_complete=go_on)
    assert rig.uploads() == 0


def test_body_that_ends_early_is_unavailable(rig: Rig) -> None:
    rig.put("file", b"x" * 100_000)
    rig.proxy.plan(TruncateBody(50_000), method="GET")
    with rig.store.get("file", byte_range=None, expected=None) as body, pytest.raises(UnavailableError):
        body.read()


def test_append_sends_its_tail_only(rig: Rig) -> None:
    rig.put("log", PART)
    base = rig.store.head("log")
    rig.proxy.reset_counters()
    rig.store.append("log", [b"tail"], base=base, metadata=PLAIN, before_complete=go_on)
    assert rig.behind.head("log").size_bytes == len(PART) + 4
    assert rig.proxy.bytes_received < 20_000


def test_server_that_hangs_is_unknown_for_a_put_and_unavailable_for_a_get(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT_SECONDS", 0.3)
    impatient = open_store(rig.store.url)
    rig.proxy.plan(DelayResponse(1.0), method="PUT")
    with pytest.raises(OutcomeUnknownError):
        impatient.put("file", b"x", condition=IfAbsent(), metadata=PLAIN)
    rig.proxy.plan(DelayResponse(1.0), method="GET")
    with pytest.raises(UnavailableError):
        impatient.get("file", byte_range=None, expected=None)
    impatient.close()


def test_outage_is_unavailable_for_every_request_and_ends(rig: Rig) -> None:
    token = rig.put("file")
    rig.store.head("file")
    rig.proxy.go_down()
    for request in (
        lambda: rig.store.head("file"),
        lambda: rig.store.list_page("", page=None, whole_segments=False),
        lambda: rig.store.put("other", b"", condition=IfAbsent(), metadata=PLAIN),
        lambda: rig.store.delete("file", condition=Unconditional()),
    ):
        with pytest.raises((UnavailableError, OutcomeUnknownError)):
            request()
    with pytest.raises(UnavailableError):
        rig.store.put("other", b"", condition=IfAbsent(), metadata=PLAIN)
    rig.proxy.come_up()
    assert rig.store.head("file").token == token
    assert not rig.has("other")


def test_bucket_in_another_region_is_named(rig: Rig) -> None:
    headers = {"x-amz-bucket-region": "eu-north-1"}
    rig.proxy.plan(Reply(301, "PermanentRedirect", headers), times=20)
    try:
        for request in (
            lambda: rig.store.head("file"),
            lambda: rig.store.put("file", b"", condition=IfAbsent(), metadata=PLAIN),
            lambda: rig.store.list_page("", page=None, whole_segments=False),
        ):
            with pytest.raises(AccessError, match="eu-north-1"):
                request()
    finally:
        rig.proxy.forget_plans()


def test_clock_skew_is_named_with_its_size(rig: Rig) -> None:
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 7200))
    rig.proxy.plan(Reply(403, "RequestTimeTooSkewed", {"Date": later}), method="PUT")
    with pytest.raises(AccessError, match=r"clock differs .* by 7\d\d\d s, it is behind"):
        rig.store.put("file", b"", condition=IfAbsent(), metadata=PLAIN)


def test_request_under_an_unlucky_condition_is_sent_once(rig: Rig) -> None:
    rig.proxy.plan(Reply(500, "InternalError"), method="PUT")
    with pytest.raises(OutcomeUnknownError):
        rig.store.put("file", b"", condition=IfAbsent(), metadata=PLAIN)
    assert rig.proxy.methods["PUT"] == 1
