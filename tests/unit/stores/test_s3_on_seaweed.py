"""What the S3 store does on a real server beyond the contract: big copies, folders, missing buckets, wrong credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    ConflictError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sessionfs.stores.base import (
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStore,
    Token,
    Unconditional,
    UploadUnderWay,
)
from sessionfs.stores.open_store import open_store
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.stores.s3 import multipart
from sessionfs.stores.s3 import store as s3_store
from sessionfs.testing.fault_proxy import FaultProxy, Reply
from sessionfs.testing.s3_servers import SECRET_ACCESS_KEY, SeaweedServer

pytestmark = pytest.mark.s3

PLAIN = ObjectMetadata()
MIB = 1 << 20
STALE = Token("0123456789abcdef0123456789abcdef")


@pytest.fixture
def url(seaweed: SeaweedServer) -> str:
    return seaweed.fresh_bucket()


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    opened = open_store(url)
    yield opened
    opened.close()


def go_on() -> None:
    return None


def body_of(store: ObjectStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as body:
        return body.read()


def requests_of(store: ObjectStore, key: str = "file") -> dict[str, Callable[[], object]]:
    return {
        "head": lambda: store.head(key),
        "get": lambda: store.get(key, byte_range=None, expected=None),
        "list": lambda: store.list_page("", page=None, whole_segments=False),
        "put": lambda: store.put(key, b"", condition=IfAbsent(), metadata=PLAIN),
        "put_parts": lambda: store.put_parts(
            key, [b"x"], condition=IfAbsent(), metadata=PLAIN, before_complete=go_on
        ),
        "delete": lambda: store.delete(key, condition=Unconditional()),
        "copy": lambda: store.copy(key, "b", source_token=STALE, condition=IfAbsent(), metadata=PLAIN),
    }


@pytest.mark.parametrize("name", ["head", "get", "list", "put", "put_parts", "delete", "copy"])
def test_missing_bucket_is_named_and_not_made(url: str, name: str) -> None:
    missing = open_store(url.replace("s3://bucket-", "s3://missing-"))
    with pytest.raises(BucketNotFoundError, match="missing-") as caught:
        requests_of(missing)[name]()
    assert "correct the store URL" in caught.value.remedy
    missing.close()


@pytest.mark.parametrize("name", ["head", "get", "list", "put", "put_parts", "delete", "copy"])
def test_wrong_secret_is_an_access_error_that_does_not_repeat_it(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONFS_SECRET_ACCESS_KEY", "wrong-" + SECRET_ACCESS_KEY)
    wrong = open_store(url)
    with pytest.raises(AccessError) as caught:
        requests_of(wrong)[name]()
    assert SECRET_ACCESS_KEY not in str(caught.value)
    assert "\n" not in str(caught.value)
    wrong.close()


def test_unknown_access_key_is_an_access_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONFS_ACCESS_KEY_ID", "nobody")
    wrong = open_store(url)
    with pytest.raises(AccessError, match="does not know this access key"):
        requests_of(wrong)["put"]()
    wrong.close()


def test_large_object_is_copied_in_parts(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_store, "SINGLE_COPY_BYTES", MIB)
    monkeypatch.setattr(multipart, "SMALL_COPY_PART_BYTES", 5 * MIB)
    parts = [bytes([number]) * (5 * MIB) for number in range(3)]
    token = store.put_parts(
        "source", [*parts, b"end"], condition=IfAbsent(), metadata=PLAIN, before_complete=go_on
    )
    new = ObjectMetadata({"mode": "1"})
    store.copy("source", "target", source_token=token, condition=IfAbsent(), metadata=new)
    assert body_of(store, "target") == b"".join(parts) + b"end"
    assert store.head("target").metadata == new
    with pytest.raises(PreconditionFailedError):
        store.copy("source", "target", source_token=token, condition=IfAbsent(), metadata=new)
    store.put("source", b"moved", condition=Unconditional(), metadata=PLAIN)
    with pytest.raises(PreconditionFailedError):
        store.copy("source", "other", source_token=token, condition=IfAbsent(), metadata=new)


def test_copy_that_is_too_large_for_one_request_is_made_in_parts(
    seaweed: SeaweedServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "SINGLE_COPY_BYTES", MIB)
    with FaultProxy(seaweed.endpoint) as proxy:
        store = open_store(proxy.url_for(url))
        token = store.put("source", b"x" * (2 * MIB), condition=IfAbsent(), metadata=PLAIN)
        proxy.plan(Reply(400, "InvalidRequest"), method="PUT", text="/target")
        store.copy("source", "target", source_token=token, condition=IfAbsent(), metadata=PLAIN)
        assert body_of(store, "target") == b"x" * (2 * MIB)
        small = store.put("small", b"x", condition=IfAbsent(), metadata=PLAIN)
        proxy.plan(Reply(400, "InvalidRequest"), method="PUT", text="/target")
        with pytest.raises(InvalidRequestError):
            store.copy("small", "target", source_token=small, condition=Unconditional(), metadata=PLAIN)
        proxy.assert_all_used()
        store.close()


def test_append_to_a_short_object_is_refused_before_any_request(store: ObjectStore) -> None:
    store.put("log", b"short", condition=IfAbsent(), metadata=PLAIN)
    with pytest.raises(InvalidRequestError, match="too short"):
        store.append("log", [b"x"], base=store.head("log"), metadata=PLAIN, before_complete=go_on)


def test_file_with_objects_below_its_name_is_a_conflict(store: ObjectStore) -> None:
    store.put("dir/below", b"x", condition=IfAbsent(), metadata=PLAIN)
    with pytest.raises(ConflictError, match="cannot be stored"):
        store.put("dir", b"file", condition=IfAbsent(), metadata=PLAIN)
    store.put("file", b"x", condition=IfAbsent(), metadata=PLAIN)
    with pytest.raises(ConflictError, match="cannot be stored"):
        store.put("file/", b"", condition=IfAbsent(), metadata=PLAIN)
    assert body_of(store, "file") == b"x"


def test_store_used_by_a_single_host_looks_before_it_puts(store: ObjectStore) -> None:
    careful = store.with_capabilities(replace(store.capabilities, conditional_put=False))
    token = careful.put("file", b"1", condition=IfAbsent(), metadata=PLAIN)
    for condition in (IfAbsent(), IfMatch(STALE)):
        with pytest.raises(PreconditionFailedError):
            careful.put("file", b"2", condition=condition, metadata=PLAIN)
    careful.put("file", b"3", condition=IfMatch(token), metadata=PLAIN)
    assert body_of(store, "file") == b"3"


def test_etags_may_be_sent_unquoted(store: ObjectStore) -> None:
    """SeaweedFS takes both spellings; Ceph RGW 16 takes only this one."""
    token = store.put("file", b"1", condition=IfAbsent(), metadata=PLAIN)
    unquoted = store.with_capabilities(replace(store.capabilities, etag_spelling="unquoted"))
    unquoted.put("file", b"2", condition=IfMatch(token), metadata=PLAIN)
    with pytest.raises(PreconditionFailedError):
        unquoted.put("file", b"3", condition=IfMatch(token), metadata=PLAIN)


def test_deleted_marker_leaves_no_object_though_the_folder_answers(store: ObjectStore) -> None:
    store.put("dir/", b"", condition=IfAbsent(), metadata=PLAIN)
    store.put("dir/file", b"", condition=IfAbsent(), metadata=PLAIN)
    store.delete("dir/", condition=IfMatch(store.head("dir/").token))
    with pytest.raises(ObjectNotFoundError):
        store.head("dir/")
    with pytest.raises(ObjectNotFoundError):
        store.get("dir/", byte_range=None, expected=None)


@pytest.mark.parametrize("prefix", ["", "below/"])
def test_uploads_that_were_begun_are_listed_and_given_up(url: str, prefix: str) -> None:
    plain = open_store(url)
    assert isinstance(plain, s3_store.S3Store)
    for key in ("s/one", "s/two", "other/three"):
        plain._client.create_multipart_upload(Bucket=plain._connection.bucket, Key=prefix + key)
    store = PrefixedStore(plain, prefix, url=url) if prefix else plain
    found = store.uploads_under_way("s/")
    assert sorted(upload.key for upload in found) == ["s/one", "s/two"]
    assert all(upload.started_ns > 1_700_000_000 * 10**9 for upload in found)
    for upload in found:
        store.abort_upload(upload)
        store.abort_upload(upload)
    assert store.uploads_under_way("s/") == []
    assert [upload.key for upload in store.uploads_under_way("")] == ["other/three"]
    store.close()


def test_an_upload_that_is_gone_is_given_up_and_a_server_that_lists_none_has_none(
    seaweed: SeaweedServer, url: str
) -> None:
    with FaultProxy(seaweed.endpoint) as proxy:
        store = open_store(proxy.url_for(url))
        proxy.plan(Reply(404, "NoSuchUpload"), method="DELETE", text="/s/gone")
        store.abort_upload(UploadUnderWay("s/gone", "u", 0))
        proxy.plan(Reply(501, "NotImplemented"), method="GET", text="uploads")
        assert store.uploads_under_way("s/") == []
        proxy.assert_all_used()
        store.close()
