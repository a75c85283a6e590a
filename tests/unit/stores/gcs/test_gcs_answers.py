"""What becomes of answers that a real GCS gives and an emulator does not: planned one by one on a small server."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import pytest

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
from sessionfs.stores.base import (
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
    Unconditional,
)
from sessionfs.stores.gcs import uploads
from sessionfs.stores.open_store import open_store
from sessionfs.testing.scripted_server import Planned, ScriptedServer

PLAIN = ObjectMetadata()
RICH = ObjectMetadata({"mode": "0100644"}, "text/plain", "zstd")
PIECE = 256 << 10
BODY = bytes(range(256)) * (3 * PIECE // 256 - 2)
AS_SENT = {"metadata": {"mode": "0100644"}, "contentType": "text/plain", "contentEncoding": "zstd"}
SECRET = "the-address-of-an-upload-is-a-secret"


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


def go_on() -> None:
    return None


def described(key: str = "key", generation: int = 7, **more: object) -> dict[str, object]:
    time = "2026-01-31T23:59:59.123456Z"
    return {"name": key, "generation": str(generation), "size": "4", "updated": time, **more}


def refusal(status: int, message: str = "no", reason: str = "") -> Planned:
    errors = [{"message": message, "reason": reason}]
    return Planned(status, {"error": {"code": status, "message": message, "errors": errors}})


def body_answer(body: bytes, *, length: int | None = None, generation: int = 7, **headers: str) -> Planned:
    said = {
        "x-goog-generation": str(generation),
        "x-goog-stored-content-length": str(len(body)),
        "x-goog-stored-content-encoding": "zstd",
        "x-goog-meta-mode": "0100644",
        "x-goog-hash": f"crc32c={crc32c(body)},md5=xx",
        "content-type": "text/plain",
        "last-modified": "Sat, 31 Jan 2026 23:59:59 GMT",
        "content-length": str(len(body) if length is None else length),
    }
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Planned(200, body, said | named)


def crc32c(body: bytes) -> str:
    checksum: Any = google_crc32c.Checksum(body)  # type: ignore[no-untyped-call]
    return base64.b64encode(checksum.digest()).decode("ascii")


def put(store: ObjectStore, condition: Condition | None = None) -> Token:
    return store.put("key", b"body", condition=condition or Unconditional(), metadata=RICH)


def put_long(store: ObjectStore, condition: Condition | None = None) -> Token:
    return store.put_parts(
        "key", [BODY], condition=condition or Unconditional(), metadata=RICH, before_complete=go_on
    )


def copy(store: ObjectStore) -> Token:
    return store.copy("a/b", "c/d", source_token=Token("5"), condition=IfAbsent(), metadata=RICH)


def append(store: ObjectStore) -> Token:
    base = ObjectStat("key", 10, Token("5"), 0)
    return store.append("key", [b"tail"], base=base, metadata=RICH, before_complete=go_on)


CHANGING: list[Callable[[ObjectStore], object]] = [
    put,
    copy,
    lambda store: store.delete("key", condition=Unconditional()),
]
READING: list[Callable[[ObjectStore], object]] = [
    lambda store: store.head("key"),
    lambda store: store.get("key", byte_range=None, expected=None),
    lambda store: store.list_page("", page=None, whole_segments=False),
    lambda store: store.uploads_under_way(""),
]


@pytest.mark.parametrize("status", [408, 500, 503, 0])
@pytest.mark.parametrize("call", [*CHANGING, *READING])
def test_unclear_answer_is_unknown_for_a_change_and_asked_for_once(
    server: ScriptedServer, store: ObjectStore, call: Callable[[ObjectStore], object], status: int
) -> None:
    server.plan(Planned(status))
    wanted = OutcomeUnknownError if call in CHANGING else UnavailableError
    with pytest.raises(wanted):
        call(store)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (refusal(401, "Invalid Credentials"), AccessError),
        (refusal(403, "does not have storage.objects.create access"), AccessError),
        (refusal(403, "Rate Limit Exceeded", "rateLimitExceeded"), ThrottledError),
        (refusal(429, "The object exceeded the rate limit for object mutation operations"), ThrottledError),
        (
            refusal(412, "At least one of the pre-conditions you specified did not hold."),
            PreconditionFailedError,
        ),
        (refusal(404, "The specified bucket does not exist."), BucketNotFoundError),
        (refusal(409, "conflict"), ConcurrentRequestError),
        (refusal(400, "Invalid argument"), InvalidRequestError),
        (refusal(501), InvalidRequestError),
    ],
)
@pytest.mark.parametrize("call", [put, *READING])
def test_clear_refusal_has_one_meaning_everywhere(
    server: ScriptedServer,
    store: ObjectStore,
    call: Callable[[ObjectStore], object],
    answer: Planned,
    wanted: type[SessionFSError],
) -> None:
    server.plan(answer)
    with pytest.raises(wanted) as caught:
        call(store)
    assert type(caught.value) is wanted
    assert len(server.asked) == 1


def test_put_sends_metadata_and_checksum(server: ScriptedServer, store: ObjectStore) -> None:
    server.plan(Planned(200, described()))
    assert put(store, IfAbsent()) == "7"
    (asked,) = server.asked
    assert asked.query["ifGenerationMatch"] == "0"
    assert asked.query["uploadType"] == "multipart"
    for part in (b'"crc32c"', b'"mode": "0100644"', b'"contentEncoding": "zstd"', b"text/plain", b"body"):
        assert part in asked.body


def test_put_without_a_generation_in_the_answer_is_no_success(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(Planned(200, {"name": "key"}))
    with pytest.raises(OutcomeUnknownError, match="names no generation"):
        put(store)


def test_copy_goes_on_until_all_bytes_are_moved(server: ScriptedServer, store: ObjectStore) -> None:
    step = {"done": False, "totalBytesRewritten": "100", "objectSize": "250", "rewriteToken": "t1"}
    server.plan(
        Planned(200, step),
        Planned(200, {**step, "totalBytesRewritten": "200", "rewriteToken": "t2"}),
        Planned(200, {"done": True, "resource": described("c/d", 9, **AS_SENT)}),
    )
    assert copy(store) == "9"
    assert [asked.query.get("rewriteToken") for asked in server.asked] == [None, "t1", "t2"]
    for asked in server.asked:
        assert asked.path == "/storage/v1/b/bucket/o/a/b/rewriteTo/b/bucket/o/c/d"
        assert (asked.query["ifGenerationMatch"], asked.query["ifSourceGenerationMatch"]) == ("0", "5")
        assert asked.content == {
            "metadata": {"mode": "0100644"},
            "contentType": "text/plain",
            "contentEncoding": "zstd",
        }


@pytest.mark.parametrize(
    "made",
    [
        {**AS_SENT, "metadata": {"mode": "0100644", "old": "1"}},
        {**AS_SENT, "contentType": "x/y"},
        {**AS_SENT, "contentEncoding": ""},
        {},
    ],
)
def test_copy_that_kept_something_of_its_source_is_put_right(
    server: ScriptedServer, store: ObjectStore, made: dict[str, object]
) -> None:
    server.plan(Planned(200, {"done": True, "resource": described("c/d", 9, **made)}), Planned(200, {}))
    assert copy(store) == "9"
    change = server.asked[-1]
    assert (change.method, change.path) == ("PATCH", "/storage/v1/b/bucket/o/c/d")
    assert change.query == {"ifGenerationMatch": "9"}
    kept: Any = made.get("metadata", {})
    wanted = {**dict.fromkeys(kept), "mode": "0100644"}
    assert change.content == {**AS_SENT, "metadata": wanted}


@pytest.mark.parametrize("status", [403, 412, 503, 0])
def test_copy_that_cannot_be_put_right_is_unknown(
    server: ScriptedServer, store: ObjectStore, status: int
) -> None:
    server.plan(Planned(200, {"done": True, "resource": described("c/d", 9)}), Planned(status))
    with pytest.raises(OutcomeUnknownError, match="put right"):
        copy(store)


def test_copy_that_stands_still_ends(server: ScriptedServer, store: ObjectStore) -> None:
    step = {"done": False, "totalBytesRewritten": "100", "objectSize": "250", "rewriteToken": "t1"}
    server.plan(Planned(200, step), Planned(200, step))
    with pytest.raises(UnavailableError, match="stands still"):
        copy(store)


@pytest.mark.parametrize(
    "content", [b"<html>", {}, {"done": False}, {"done": True}, {"done": True, "resource": None}, [1]]
)
def test_copy_whose_answer_cannot_be_read_is_unknown(
    server: ScriptedServer, store: ObjectStore, content: object
) -> None:
    server.plan(Planned(200, content))
    with pytest.raises(OutcomeUnknownError):
        copy(store)


@pytest.mark.parametrize("status", [404, 412])
def test_copy_says_which_of_the_two_did_not_match(
    server: ScriptedServer, store: ObjectStore, status: int
) -> None:
    server.plan(refusal(status), Planned(200, described("a/b", 6)))
    with pytest.raises(PreconditionFailedError, match="'a/b' is not at token 5"):
        copy(store)
    server.plan(refusal(412), Planned(200, described("a/b", 5)))
    with pytest.raises(PreconditionFailedError, match="'c/d' exists already"):
        copy(store)
    server.plan(refusal(status), refusal(404), Planned(200, {}))
    with pytest.raises(ObjectNotFoundError, match="a/b"):
        copy(store)


def test_compose_names_all_generations_and_its_tail_is_removed(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(Planned(200, described("tail", 6)), Planned(200, described("key", 8)), Planned(204))
    assert append(store) == "8"
    tail, composed, removed = server.asked
    name = composed.content["sourceObjects"][1]["name"]
    assert name.startswith(".sessionfs-tails/")
    assert name.encode() in tail.body
    assert (removed.method, removed.path) == ("DELETE", f"/storage/v1/b/bucket/o/{name}")
    assert composed.query["ifGenerationMatch"] == "5"
    sources = [
        (part["name"], part["objectPreconditions"]["ifGenerationMatch"])
        for part in composed.content["sourceObjects"]
    ]
    assert sources == [("key", 5), (name, 6)]
    destination = composed.content["destination"]
    assert destination["metadata"] == {"mode": "0100644"}
    assert (destination["contentType"], destination["contentEncoding"]) == ("text/plain", "zstd")


@pytest.mark.parametrize("removal", [Planned(204), Planned(503)])
def test_compose_without_an_answer_is_unknown_and_its_tail_is_removed(
    server: ScriptedServer, store: ObjectStore, removal: Planned
) -> None:
    server.plan(Planned(200, described("tail", 6)), Planned(0), removal)
    with pytest.raises(OutcomeUnknownError):
        append(store)
    assert [asked.method for asked in server.asked] == ["POST", "POST", "DELETE"]


def test_tail_that_may_not_be_stored_leaves_nothing_unknown(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(Planned(0), Planned(204))
    with pytest.raises(UnavailableError, match="tail of 'key'"):
        append(store)
    assert [asked.method for asked in server.asked] == ["POST", "DELETE"]


def started(server: ScriptedServer) -> Planned:
    return Planned(200, headers={"Location": f"{server.endpoint}/upload?upload_id={SECRET}"})


def kept(end: int) -> Planned:
    return Planned(308, headers={"Range": f"bytes=0-{end - 1}"} if end else {})


def test_pieces_that_a_server_keeps_in_part_are_sent_again_from_there(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(
        started(server),
        kept(1000),
        kept(PIECE),
        kept(2 * PIECE),
        kept(2 * PIECE + 500),
        Planned(200, described()),
    )
    assert put_long(store, IfMatch(Token("5"))) == "7"
    start, *sent = server.asked
    assert (start.query["uploadType"], start.query["ifGenerationMatch"]) == ("resumable", "5")
    total = len(BODY)
    assert [asked.headers["content-range"] for asked in sent] == [
        f"bytes 0-{PIECE - 1}/*",
        f"bytes 1000-{PIECE - 1}/*",
        f"bytes {PIECE}-{2 * PIECE - 1}/*",
        f"bytes {2 * PIECE}-{total - 1}/{total}",
        f"bytes {2 * PIECE + 500}-{total - 1}/{total}",
    ]
    for asked in sent:
        first, _, last = asked.headers["content-range"][6:].partition("/")[0].partition("-")
        assert asked.body == BODY[int(first) : int(last) + 1]
    assert sent[-1].headers["x-goog-hash"] == f"crc32c={crc32c(BODY)}"


@pytest.mark.parametrize("end", [0, PIECE + 1])
def test_server_that_keeps_nothing_or_too_much_is_given_up(
    server: ScriptedServer, store: ObjectStore, end: int
) -> None:
    server.plan(started(server), kept(end), Planned(499))
    with pytest.raises(UnavailableError, match="kept"):
        put_long(store)
    assert server.asked[-1].method == "DELETE"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (Planned(0), UnavailableError),
        (Planned(503), UnavailableError),
        (refusal(410), ConcurrentRequestError),
        (Planned(200, {}), UnavailableError),
    ],
)
def test_upload_that_breaks_before_its_end_is_given_up_and_nothing_is_unknown(
    server: ScriptedServer, store: ObjectStore, answer: Planned, wanted: type[SessionFSError]
) -> None:
    server.plan(started(server), answer, Planned(499))
    with pytest.raises(wanted) as caught:
        put_long(store)
    assert server.asked[-1].method == "DELETE"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "answer", [Planned(0), Planned(503), refusal(404), refusal(410), Planned(200, b"?"), Planned(200, {})]
)
def test_last_piece_without_a_clear_answer_is_unknown_and_not_given_up(
    server: ScriptedServer, store: ObjectStore, answer: Planned
) -> None:
    server.plan(started(server), kept(PIECE), kept(2 * PIECE), answer)
    with pytest.raises(OutcomeUnknownError) as caught:
        put_long(store)
    assert [asked.method for asked in server.asked] == ["POST", "PUT", "PUT", "PUT"]
    assert SECRET not in str(caught.value)


def test_last_piece_whose_condition_fails_is_refused_and_given_up(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(started(server), kept(PIECE), kept(2 * PIECE), refusal(412), Planned(499))
    with pytest.raises(PreconditionFailedError, match="exists already"):
        put_long(store, IfAbsent())


def test_body_comes_with_its_description_in_one_request(server: ScriptedServer, store: ObjectStore) -> None:
    server.plan(body_answer(b"abcd"))
    with store.get("a/ü #?", byte_range=None, expected=Token("7")) as body:
        assert body.read() == b"abcd"
        assert body.stat == ObjectStat("a/ü #?", 4, Token("7"), 1769903999 * 1_000_000_000, RICH)
    (asked,) = server.asked
    assert asked.path == "/bucket/a/ü #?"
    assert asked.headers["x-goog-if-generation-match"] == "7"


def test_body_of_an_encoding_comes_as_it_is_stored(server: ScriptedServer, store: ObjectStore) -> None:
    server.plan(
        body_answer(b"no gzip at all", content_encoding="gzip", x_goog_stored_content_encoding="gzip")
    )
    with store.get("key", byte_range=None, expected=None) as body:
        assert body.read() == b"no gzip at all"
        assert body.stat.metadata is not None
        assert body.stat.metadata.content_encoding == "gzip"
    assert server.asked[0].headers["accept-encoding"] == "gzip"


def test_body_with_other_bytes_than_the_store_keeps_is_not_given(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(body_answer(b"abcd", x_goog_hash="crc32c=AAAAAA=="))
    with (
        store.get("key", byte_range=None, expected=None) as body,
        pytest.raises(UnavailableError, match="other bytes"),
    ):
        body.read()


def test_short_body_never_ends_silently(server: ScriptedServer, store: ObjectStore) -> None:
    server.plan(body_answer(b"abcd", length=9, x_goog_stored_content_length="9"))
    with (
        store.get("key", byte_range=None, expected=None) as body,
        pytest.raises(UnavailableError, match="4 of 9"),
    ):
        body.read()


def test_range_that_is_ignored_is_no_part(server: ScriptedServer, store: ObjectStore) -> None:
    server.plan(body_answer(b"abcd"))
    with pytest.raises(UnavailableError, match="ranges are ignored"):
        store.get("key", byte_range=ByteRange(1, 2), expected=None)


def test_range_beyond_the_end_is_empty_only_when_the_object_says_so(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(refusal(416), Planned(200, described()))
    with store.get("key", byte_range=ByteRange(4, 9), expected=Token("7")) as body:
        assert body.read() == b""
    server.plan(refusal(416), Planned(200, described(size="100")))
    with pytest.raises(UnavailableError, match="changed"):
        store.get("key", byte_range=ByteRange(4, 9), expected=None)


def test_body_without_a_description_is_looked_up_and_asked_for_again(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(Planned(200, b"old!"), Planned(200, described(metadata={"mode": "1"})), Planned(200, b"abcd"))
    with store.get("key", byte_range=None, expected=None) as body:
        assert body.read() == b"abcd"
        assert body.stat.metadata == ObjectMetadata({"mode": "1"}, "")
    assert server.asked[-1].headers["x-goog-if-generation-match"] == "7"
    server.plan(Planned(200, b"abcd"), Planned(200, described(generation=8)))
    with pytest.raises(PreconditionFailedError):
        store.get("key", byte_range=None, expected=Token("7"))
    server.plan(body_answer(b"abcd", generation=8))
    with pytest.raises(PreconditionFailedError):
        store.get("key", byte_range=None, expected=Token("7"))


def test_object_that_changes_between_looking_and_reading_is_looked_at_again(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(body_answer(b"old!", last_modified="no date"), Planned(200, described()), refusal(412))
    server.plan(Planned(200, described(generation=8)), Planned(200, b"abcd"))
    with store.get("key", byte_range=None, expected=None) as body:
        assert body.stat.token == "8"
        assert body.read() == b"abcd"
    server.plan(Planned(200, b"abcd"), *[Planned(200, described()), refusal(412)] * 5)
    with pytest.raises(UnavailableError, match="changes faster"):
        store.get("key", byte_range=None, expected=None)


def test_listing_goes_on_with_the_servers_token(server: ScriptedServer, store: ObjectStore) -> None:
    server.plan(
        Planned(200, {"items": [described("p/a")], "prefixes": ["p/d/"], "nextPageToken": "more"}),
        Planned(200, {"items": [described("p/z")]}),
    )
    pages = list(store.list_all("p/", whole_segments=True))
    assert [[stat.key for stat in page.objects] for page in pages] == [["p/a"], ["p/z"]]
    assert pages[0].prefixes == ("p/d/",)
    assert pages[0].objects[0].metadata is None
    assert pages[0].objects[0].modified_ns == 1769903999_123456000
    first, second = server.asked
    assert (first.query["prefix"], first.query["delimiter"], first.query["maxResults"]) == ("p/", "/", "1000")
    assert second.query["pageToken"] == "more"


def test_tails_are_listed_page_by_page(server: ScriptedServer, store: ObjectStore) -> None:
    tail = {"name": ".sessionfs-tails/1", "timeCreated": "2026-01-31T23:59:59Z"}
    server.plan(
        Planned(200, {"items": [{**tail, "metadata": {"sessionfs-key": "a/%C3%BC"}}], "nextPageToken": "2"}),
        Planned(200, {"items": [{**tail, "metadata": {"sessionfs-key": "b/x"}}, tail]}),
    )
    assert [(found.key, found.started_ns) for found in store.uploads_under_way("a/")] == [
        ("a/ü", 1769903999 * 1_000_000_000)
    ]
    assert len(server.asked) == 2


def test_delete_of_a_missing_object_is_success_only_without_a_condition(
    server: ScriptedServer, store: ObjectStore
) -> None:
    server.plan(refusal(404), refusal(404))
    store.delete("key", condition=Unconditional())
    with pytest.raises(PreconditionFailedError):
        store.delete("key", condition=IfMatch(Token("7")))
    assert [asked.query.get("ifGenerationMatch") for asked in server.asked] == [None, "7"]


def test_head_that_may_not_list_believes_the_404(server: ScriptedServer, store: ObjectStore) -> None:
    server.plan(refusal(404), refusal(403))
    with pytest.raises(ObjectNotFoundError):
        store.head("key")
    server.plan(refusal(404), Planned(503))
    with pytest.raises(UnavailableError):
        store.head("key")
