"""The GCS store on the emulator with conditions: what it asks for, what it leaves behind, and what it shows."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    BucketNotFoundError,
    InvalidKeyError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreRefusedError,
)
from sessionfs.stores.base import (
    ByteRange,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStore,
    Token,
    Unconditional,
    UploadUnderWay,
)
from sessionfs.stores.gcs import uploads
from sessionfs.stores.open_store import open_store
from sessionfs.stores.probe import probe
from sessionfs.testing.gcs_server import GcsServer

PLAIN = ObjectMetadata()
RICH = ObjectMetadata({"mode": "0100644"}, "text/plain", "zstd")
SMALL_PIECE = 256 << 10


class StopError(Exception):
    """A caller's own error."""


def stop() -> None:
    raise StopError


def go_on() -> None:
    return None


@pytest.fixture
def url(gcs_server: GcsServer) -> str:
    return gcs_server.fresh_bucket().replace("?", "/team a?", 1)


@pytest.fixture
def store(url: str) -> Iterator[ObjectStore]:
    opened = open_store(url)
    yield opened
    opened.close()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", SMALL_PIECE)


def put(store: ObjectStore, key: str, body: bytes = b"body") -> Token:
    return store.put(key, body, condition=Unconditional(), metadata=PLAIN)


def read(store: ObjectStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as body:
        return body.read()


def names(store: ObjectStore) -> list[str]:
    return sorted(stat.key for page in store.list_all("") for stat in page.objects)


def left_tails(gcs_server: GcsServer, url: str) -> list[str]:
    whole = open_store(url.replace("/team a?", "?", 1))
    try:
        return [key for key in names(whole) if "tails" in key]
    finally:
        whole.close()


def test_token_is_the_generation_and_moves_with_every_state(store: ObjectStore) -> None:
    first = put(store, "key")
    assert first.isdigit()
    copied = store.copy("key", "key", source_token=first, condition=IfMatch(first), metadata=RICH)
    assert int(copied) > int(first)
    assert store.head("key").token == copied
    assert store.head("key").metadata == RICH


def test_conditions_are_sent_as_generations(gcs_server: GcsServer, store: ObjectStore) -> None:
    gcs_server.proxy.requests.clear()
    token = store.put("key", b"1", condition=IfAbsent(), metadata=PLAIN)
    token = store.put("key", b"2", condition=IfMatch(token), metadata=PLAIN)
    store.copy("key", "copy", source_token=token, condition=IfAbsent(), metadata=PLAIN)
    base = store.head("key")
    longer = store.append("key", [b"3"], base=base, metadata=PLAIN, before_complete=go_on)
    store.delete("key", condition=IfMatch(longer))
    asked = [
        (method, path.rpartition("/")[2], query.get("ifGenerationMatch"))
        for method, path, query in gcs_server.proxy.requests
        if method != "GET"
    ]
    inserted, replaced, copied, tail, composed, *deletes = asked
    assert inserted == ("POST", "o", "0")
    assert replaced[2] not in {None, "0", token}
    assert copied[2] == "0"
    assert tail == ("POST", "o", "0")
    assert composed == ("POST", "compose", token)
    assert [found[2] for found in deletes] == [None, longer]
    rewritten = next(query for _, path, query in gcs_server.proxy.requests if "rewriteTo" in path)
    assert rewritten["ifSourceGenerationMatch"] == token
    assert int(rewritten["maxBytesRewrittenPerCall"]) % (1 << 20) == 0


@pytest.mark.parametrize("foreign", ["0", "", "etag", "0123456789abcdef", "-5", "9" * 30, "٣"])
def test_token_of_another_store_matches_nothing(store: ObjectStore, foreign: str) -> None:
    put(store, "key", b"kept")
    token = Token(foreign)
    for key in ("key", "missing"):
        with pytest.raises(PreconditionFailedError):
            store.put(key, b"new", condition=IfMatch(token), metadata=PLAIN)
        with pytest.raises(PreconditionFailedError):
            store.delete(key, condition=IfMatch(token))
    with pytest.raises(PreconditionFailedError):
        store.get("key", byte_range=None, expected=token)
    assert read(store, "key") == b"kept"
    assert names(store) == ["key"]


def test_long_body_is_sent_in_pieces_and_appears_at_the_end(store: ObjectStore, small_pieces: None) -> None:
    body = secrets.token_bytes(3 * SMALL_PIECE + 17)
    seen: list[list[str]] = []
    store.put_parts(
        "key",
        iter([body[:100_000], body[100_000:700_000], b"", body[700_000:]]),
        condition=IfAbsent(),
        metadata=RICH,
        before_complete=lambda: seen.append(names(store)),
    )
    assert seen == [[]]
    assert read(store, "key") == body
    assert store.head("key").metadata == RICH
    with store.get("key", byte_range=ByteRange(5, SMALL_PIECE + 5), expected=None) as part:
        assert part.read() == body[5 : SMALL_PIECE + 5]


@pytest.mark.parametrize("length", [0, 1, SMALL_PIECE, SMALL_PIECE + 1, 2 * SMALL_PIECE])
def test_every_length_around_a_piece_comes_back(store: ObjectStore, small_pieces: None, length: int) -> None:
    body = secrets.token_bytes(length)
    store.put_parts("key", [body], condition=IfAbsent(), metadata=PLAIN, before_complete=go_on)
    assert read(store, "key") == body


def test_long_put_is_under_its_condition_too(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", SMALL_PIECE)
    body = secrets.token_bytes(SMALL_PIECE * 2)
    token = store.put("key", body, condition=IfAbsent(), metadata=PLAIN)
    with pytest.raises(PreconditionFailedError):
        store.put("key", body + b"!", condition=IfAbsent(), metadata=PLAIN)
    assert store.head("key").token == token


def test_condition_is_checked_when_a_long_upload_ends(store: ObjectStore, small_pieces: None) -> None:
    body = secrets.token_bytes(2 * SMALL_PIECE + 1)

    def overtake() -> None:
        put(store, "key", b"another was faster")

    with pytest.raises(PreconditionFailedError):
        store.put_parts(
            "key",
            [body],
            condition=IfAbsent(),
            metadata=PLAIN,
            before_complete=overtake,
        )
    assert read(store, "key") == b"another was faster"


@pytest.mark.parametrize("length", [10, 2 * SMALL_PIECE + 1])
def test_upload_that_is_stopped_leaves_nothing(store: ObjectStore, small_pieces: None, length: int) -> None:
    with pytest.raises(StopError):
        store.put_parts("key", [bytes(length)], condition=IfAbsent(), metadata=PLAIN, before_complete=stop)

    def breaking() -> Iterator[bytes]:
        yield bytes(length)
        raise StopError

    with pytest.raises(StopError):
        store.put_parts("key", breaking(), condition=IfAbsent(), metadata=PLAIN, before_complete=go_on)
    assert names(store) == []


def test_append_composes_on_the_server_and_leaves_no_tail(
    gcs_server: GcsServer, store: ObjectStore, url: str, small_pieces: None
) -> None:
    put(store, "log", b"base")
    tail = secrets.token_bytes(SMALL_PIECE + 3)
    gcs_server.proxy.requests.clear()
    token = store.append(
        "log", iter([b"", tail]), base=store.head("log"), metadata=RICH, before_complete=go_on
    )
    downloads = [
        path for method, path, _ in gcs_server.proxy.requests if method == "GET" and "/storage/" not in path
    ]
    assert downloads == []
    stat = store.head("log")
    assert (stat.token, stat.metadata) == (token, RICH)
    assert read(store, "log") == b"base" + tail
    store.append("log", [], base=stat, metadata=PLAIN, before_complete=go_on)
    assert read(store, "log") == b"base" + tail
    assert left_tails(gcs_server, url) == []


def test_append_that_fails_leaves_no_tail(gcs_server: GcsServer, store: ObjectStore, url: str) -> None:
    put(store, "log", b"base")
    old = store.head("log")
    with pytest.raises(StopError):
        store.append("log", [b"tail"], base=old, metadata=PLAIN, before_complete=stop)
    put(store, "log", b"moved")
    with pytest.raises(PreconditionFailedError):
        store.append("log", [b"tail"], base=old, metadata=PLAIN, before_complete=go_on)
    store.delete("log", condition=Unconditional())
    with pytest.raises(PreconditionFailedError):
        store.append("log", [b"tail"], base=old, metadata=PLAIN, before_complete=go_on)
    assert left_tails(gcs_server, url) == []
    assert names(store) == []


def _left_behind(store: ObjectStore, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append as a process does that dies before it removes its tail."""
    base = store.head(key)
    with monkeypatch.context() as patch:
        patch.setattr("sessionfs.stores.gcs.store.GcsStore._delete", lambda *_arguments: None)
        with pytest.raises(StopError):
            store.append(key, [b"tail"], base=base, metadata=PLAIN, before_complete=stop)


def test_tail_left_by_a_killed_process_is_hidden_found_and_removed(
    gcs_server: GcsServer, store: ObjectStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "sessions/ü/log")
    put(store, "sessions/b/log")
    _left_behind(store, "sessions/ü/log", monkeypatch)
    _left_behind(store, "sessions/b/log", monkeypatch)
    assert names(store) == ["sessions/b/log", "sessions/ü/log"]
    page = store.list_page("", page=None, whole_segments=True)
    assert (page.objects, page.prefixes) == ((), ("sessions/",))
    assert len(left_tails(gcs_server, url)) == 2
    (found,) = store.uploads_under_way("sessions/ü/")
    assert found.key == "sessions/ü/log"
    assert abs(found.started_ns - SystemClock().wall_ns()) < 60_000_000_000
    store.abort_upload(found)
    store.abort_upload(found)
    assert [upload.key for upload in store.uploads_under_way("")] == ["sessions/b/log"]


def test_keys_of_tails_are_refused(store: ObjectStore) -> None:
    key = ".sessionfs-tails/mine"
    for doing in (
        lambda: put(store, key),
        lambda: store.head(key),
        lambda: read(store, key),
        lambda: store.delete(key, condition=Unconditional()),
        lambda: store.copy(key, "x", source_token=Token("1"), condition=IfAbsent(), metadata=PLAIN),
    ):
        with pytest.raises(InvalidKeyError):
            doing()
    put(store, "sessions/.sessionfs-tails/mine")
    assert names(store) == ["sessions/.sessionfs-tails/mine"]


def test_upload_that_is_no_tail_cannot_be_given_up(gcs_server: GcsServer) -> None:
    store = open_store(gcs_server.fresh_bucket())
    put(store, "precious")
    with pytest.raises(InvalidRequestError):
        store.abort_upload(UploadUnderWay("precious", "precious", 0))
    assert names(store) == ["precious"]
    store.close()


def test_append_without_compose_reads_and_puts(store: ObjectStore) -> None:
    plain = store.with_capabilities(replace(store.capabilities, append_by_copy=False))
    put(plain, "log", b"base")
    base = plain.head("log")
    plain.append("log", [b"+", b"tail"], base=base, metadata=RICH, before_complete=go_on)
    assert read(plain, "log") == b"base+tail"
    with pytest.raises(PreconditionFailedError):
        plain.append("log", [b"!"], base=base, metadata=RICH, before_complete=go_on)
    assert read(plain, "log") == b"base+tail"


def test_missing_bucket_is_told_from_a_missing_object(gcs_server: GcsServer) -> None:
    store = open_store(f"gs://no-such-bucket?endpoint={gcs_server.endpoint}")
    for doing in (
        lambda: put(store, "key"),
        lambda: store.head("key"),
        lambda: store.list_page("", page=None, whole_segments=False),
        lambda: store.uploads_under_way(""),
    ):
        with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
            doing()
    store.close()
    store = open_store(gcs_server.fresh_bucket())
    with pytest.raises(ObjectNotFoundError):
        store.head("key")
    store.close()


def test_wrong_checksum_is_refused_by_the_server(store: ObjectStore) -> None:
    assert store.refuses_wrong_checksum("key")
    assert names(store) == []


def test_reading_comes_with_the_whole_description(store: ObjectStore) -> None:
    store.put("key", b"0123456789", condition=IfAbsent(), metadata=RICH)
    with store.get("key", byte_range=ByteRange(2, 4), expected=None) as body:
        assert body.read() == b"23"
        assert (body.stat.size_bytes, body.stat.token) == (10, store.head("key").token)


def test_emulator_that_ignores_conditions_is_refused_and_described(gcs_server: GcsServer) -> None:
    store = open_store(gcs_server.fresh_bucket(bare=True))
    with pytest.raises(StoreRefusedError, match="the condition that nothing is there"):
        probe(store, SystemClock())
    found = probe(store, SystemClock(), single_host=True)
    assert not found.capabilities.conditional_put
    said = "\n".join(found.quirks)
    for lacking in (
        "accepted for a single host",
        "conditions on delete",
        "copy's target",
        "copy's source",
        "completing an upload",
    ):
        assert lacking in said
    assert found.capabilities.append_by_copy
    limited = store.with_capabilities(found.capabilities)
    token = put(limited, "key", b"1")
    with pytest.raises(PreconditionFailedError):
        limited.put("key", b"2", condition=IfAbsent(), metadata=PLAIN)
    limited.put("key", b"2", condition=IfMatch(token), metadata=PLAIN)
    with pytest.raises(PreconditionFailedError):
        limited.get("key", byte_range=None, expected=token)
    assert read(limited, "key") == b"2"
    token = limited.put("rich", b"3", condition=IfAbsent(), metadata=RICH)
    metadata = ObjectMetadata({"other": "1"})
    limited.copy("rich", "copy", source_token=token, condition=IfAbsent(), metadata=metadata)
    assert limited.head("copy").metadata == metadata
    store.close()


def test_complete_server_has_no_quirks(store: ObjectStore) -> None:
    found = probe(store, SystemClock())
    assert found.quirks == ()
    assert found.capabilities == store.capabilities
