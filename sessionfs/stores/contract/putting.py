"""Promises about putting: whole, under a condition, with metadata."""

from __future__ import annotations

import threading

from sessionfs.model.errors import (
    InvalidKeyError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata, Token, Unconditional
from sessionfs.stores.contract.promise import Promise, Scratch, go_on, pattern, require, require_error

_METADATA = ObjectMetadata(
    {"mode": "0100644", "mtime": "1700000000.123456789", "sessionfs-write": "5f0c", "odd": "a=b&c; d, e"},
    content_type="text/x-python",
    content_encoding="zstd",
)
_STALE = Token("0123456789abcdef0123456789abcdef")


class _CallerError(Exception):
    """Raised by a callback, as a caller's own error would be."""


def _round_trip(scratch: Scratch) -> None:
    body = pattern(100_000)
    token = scratch.put("file", body, metadata=_METADATA)
    stat = scratch.head("file")
    require(scratch.body("file") == body, "other bytes come back")
    require(
        (stat.key, stat.size_bytes, stat.token) == (scratch.key("file"), len(body), token), f"head: {stat}"
    )
    require(stat.metadata == _METADATA, f"metadata comes back as {stat.metadata}")
    require(stat.modified_ns > 0, "no time of change")


def _empty(scratch: Scratch) -> None:
    token = scratch.put("empty", b"")
    stat = scratch.head("empty")
    require(scratch.body("empty") == b"" and stat.size_bytes == 0 and stat.token == token, f"empty: {stat}")


def _if_absent(scratch: Scratch) -> None:
    scratch.put("file", b"first", metadata=_METADATA)
    require_error(PreconditionFailedError, lambda: scratch.put("file", b"second", IfAbsent()), "a second put")
    require(scratch.body("file") == b"first", "the refused put changed the object")


def _if_match(scratch: Scratch) -> None:
    first = scratch.put("file", b"first")
    second = scratch.put("file", b"second", IfMatch(first))
    require(second != first, "other bytes have the same token")
    require_error(
        PreconditionFailedError, lambda: scratch.put("file", b"third", IfMatch(first)), "a stale token"
    )
    require_error(
        PreconditionFailedError,
        lambda: scratch.put("missing", b"x", IfMatch(_STALE)),
        "IfMatch on a missing key",
    )
    require(scratch.body("file") == b"second", "the refused put changed the object")
    require(scratch.names() == ["file"], "the refused put made an object")


def _unconditional(scratch: Scratch) -> None:
    scratch.put("file", b"first", Unconditional(), _METADATA)
    scratch.put("file", b"2", Unconditional(), ObjectMetadata({"mode": "1"}))
    stat = scratch.head("file")
    require(scratch.body("file") == b"2", "the object was not replaced")
    require(
        stat.metadata is not None and dict(stat.metadata.user) == {"mode": "1"}, f"metadata was mixed: {stat}"
    )


def _race_absent(scratch: Scratch) -> None:
    scratch.race("file", IfAbsent())


def _race_match(scratch: Scratch) -> None:
    scratch.race("file", IfMatch(scratch.put("file", b"before")))


def _whole(scratch: Scratch) -> None:
    """Read while somebody overwrites: every body is one of the two, never a mixture."""
    bodies = (b"a" * 300_000, b"b" * 200_000)
    scratch.put("file", bodies[0])
    done = threading.Event()
    failures: list[BaseException] = []

    def writer() -> None:
        try:
            for number in range(12):
                scratch.put("file", bodies[number % 2], Unconditional())
        except BaseException as error:  # noqa: BLE001 - handed to the checking thread
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        while not done.is_set():
            require(scratch.body("file") in bodies, "a read saw a mixture of two puts")
    finally:
        thread.join()
    if failures:
        raise failures[0]


def _parts_at_end(scratch: Scratch) -> None:
    seen: list[str] = []
    first = pattern(max(scratch.store.capabilities.minimum_part_bytes, 100_000))

    def look() -> None:
        seen.extend(scratch.names())

    token = scratch.put_parts("file", first, b"end", before_complete=look)
    stat = scratch.head("file")
    require(not seen, "the object appeared before it was complete")
    require(scratch.body("file") == first + b"end", "other bytes come back")
    require(stat.token == token and stat.metadata is not None, f"head: {stat}")
    require(stat.metadata is not None and stat.metadata.user == {"mode": "0100644"}, f"metadata: {stat}")


def _parts_abort(scratch: Scratch) -> None:
    def stop() -> None:
        raise _CallerError

    def parts() -> object:
        yield b"one"
        raise _CallerError

    for name, body, before_complete in (("late", [b"one"], stop), ("early", parts(), go_on)):
        try:
            scratch.store.put_parts(
                scratch.key(name),
                body,  # type: ignore[arg-type]
                condition=IfAbsent(),
                metadata=ObjectMetadata(),
                before_complete=before_complete,
            )
        except _CallerError:
            continue
        require(False, "the caller's error was swallowed")  # noqa: FBT003 - never holds
    require(scratch.names() == [], "an upload that was stopped left an object")
    left = scratch.store.uploads_under_way(scratch.prefix)
    require(left == [], f"an upload that was stopped left its parts: {left}")


def _parts_conditions(scratch: Scratch) -> None:
    old = scratch.put("file", b"old")
    require_error(PreconditionFailedError, lambda: scratch.put_parts("file", b"new"), "IfAbsent on an object")
    require_error(
        PreconditionFailedError,
        lambda: scratch.put_parts("file", b"new", condition=IfMatch(_STALE)),
        "a stale token",
    )
    require_error(
        PreconditionFailedError,
        lambda: scratch.put_parts("missing", b"new", condition=IfMatch(_STALE)),
        "IfMatch on a missing key",
    )
    require(scratch.body("file") == b"old", "a refused upload changed the object")
    scratch.put_parts("file", b"new", condition=IfMatch(old))
    require(scratch.body("file") == b"new", "the upload did not replace the object")


def _marker(scratch: Scratch) -> None:
    metadata = ObjectMetadata({"mode": "040750", "mtime": "1700000000.5"}, "application/x-directory")
    token = scratch.put("dir/", b"", metadata=metadata)
    stat = scratch.head("dir/")
    require((stat.size_bytes, stat.token, stat.metadata) == (0, token, metadata), f"marker: {stat}")
    require(scratch.body("dir/") == b"", "a marker has bytes")
    changed = ObjectMetadata({"mode": "040700"}, "application/x-directory")
    scratch.put("dir/", b"", IfMatch(token), changed)
    require(scratch.head("dir/").metadata == changed, "the marker's metadata was not replaced")
    require_error(PreconditionFailedError, lambda: scratch.put("dir/", b"", IfAbsent()), "a second marker")
    require_error(InvalidRequestError, lambda: scratch.put("other/", b"x"), "a marker with bytes")


def _implied(scratch: Scratch) -> None:
    scratch.put("dir/sub/file", b"x")
    for name in ("dir/", "dir/sub/", "dir"):
        require_error(ObjectNotFoundError, lambda name=name: scratch.head(name), f"head of {name}")  # type: ignore[misc]
    require(scratch.names() == ["dir/sub/file"], "a directory without a marker is listed")
    scratch.put("dir/", b"", IfAbsent(), ObjectMetadata({"mode": "040755"}))
    require(scratch.names() == ["dir/", "dir/sub/file"], "the marker is not listed")
    scratch.store.delete(scratch.key("dir/"), condition=Unconditional())
    require(scratch.names() == ["dir/sub/file"], "deleting a marker touched what is below it")
    require_error(ObjectNotFoundError, lambda: scratch.head("dir/"), "head of the deleted marker")


def _file_after_directory(scratch: Scratch) -> None:
    scratch.put("name/", b"")
    scratch.put("name/below/file", b"x")
    scratch.store.delete(scratch.key("name/below/file"), condition=Unconditional())
    scratch.store.delete(scratch.key("name/"), condition=Unconditional())
    scratch.put("name", b"a file now", IfAbsent())
    require(scratch.body("name") == b"a file now" and scratch.names() == ["name"], "the file is not there")
    scratch.store.delete(scratch.key("name"), condition=Unconditional())
    scratch.put("name/", b"", IfAbsent())
    require(scratch.names() == ["name/"], "the directory is not there")


def _metadata_limits(scratch: Scratch) -> None:
    full = ObjectMetadata({"a": "x" * 1000, "b": "y" * 1046})
    scratch.put("full", b"", metadata=full)
    require(scratch.head("full").metadata == full, "2 KiB of metadata do not come back")
    for user in ({"a": "x" * 2048}, {"A": "x"}, {"a": "ü"}, {"a": "x\ny"}, {"a": " x"}, {"a b": "x"}):
        metadata = ObjectMetadata(user)
        require_error(
            InvalidRequestError,
            lambda metadata=metadata: scratch.put("bad", b"", metadata=metadata),  # type: ignore[misc]
            f"metadata {user!r}"[:60],
        )
    require(scratch.names() == ["full"], "a refused put made an object")


def _invalid_keys(scratch: Scratch) -> None:
    store = scratch.store
    for bad in (
        "",
        "/",
        "/a",
        "a//b",
        "a/../b",
        "./a",
        "a/.",
        "a\\b",
        "a\nb",
        "a\0b",
        "a\x7fb",
        "x" * 1025,
        "\ud800",
    ):
        for doing in (
            lambda bad=bad: store.put(bad, b"", condition=IfAbsent(), metadata=ObjectMetadata()),
            lambda bad=bad: store.get(bad, byte_range=None, expected=None),
            lambda bad=bad: store.head(bad),
            lambda bad=bad: store.delete(bad, condition=Unconditional()),
            lambda bad=bad: store.list_page(bad or "a", page=None, whole_segments=False),
            lambda bad=bad: store.copy(
                scratch.key("a"), bad, source_token=_STALE, condition=IfAbsent(), metadata=ObjectMetadata()
            ),
        ):
            require_error(InvalidKeyError, doing, f"key {bad[:20]!r}")


def _odd_keys(scratch: Scratch) -> None:
    names = [
        "a b c", " lead and trail ", "100%", "%41%2F", "a+b", "a&b=c", "#hash", "what?", "semi;colon", "quote'\"", "<tag>",
        "héé-日本-😀", "e\u0301", "é", "[x]{y}|z~^`", ":@$,!*()", ".hidden", "..dots", "dir with space/+&%#?/ü", "-dash",
    ]  # fmt: skip
    for name in names:
        scratch.put(name, name.encode())
    require(scratch.names() == sorted(names), f"the listing differs: {set(names) ^ set(scratch.names())}")
    for name in names:
        token = scratch.head(name).token
        require(scratch.body(name, expected=token) == name.encode(), f"bytes of {name!r}")
    for name in names:
        scratch.store.delete(scratch.key(name), condition=Unconditional())
    require(scratch.names() == [], f"not deleted: {scratch.names()}")


def _long_keys(scratch: Scratch) -> None:
    room = 1024 - len(scratch.prefix.encode())
    names = ["n" * 255, "é" * 127, "d/" * 20 + "x", ("m" * 200 + "/") * ((room - 1) // 201) + "e"]
    for name in names:
        scratch.put(name, b"long")
    require(scratch.names() == sorted(names), "the listing differs")
    require(all(scratch.body(name) == b"long" for name in names), "bytes differ")


PUTTING = (
    Promise("put-round-trip", "What was put comes back: bytes, size, token, metadata.", _round_trip),
    Promise("put-empty", "An object may be empty.", _empty),
    Promise("put-if-absent", "IfAbsent is refused when an object is there, and nothing changes.", _if_absent),
    Promise("put-if-match", "IfMatch is refused unless the object has exactly that token.", _if_match),
    Promise(
        "put-unconditional", "An unconditional put replaces bytes and metadata as a whole.", _unconditional
    ),
    Promise("put-race-absent", "Of many who create a key at once, exactly one wins.", _race_absent),
    Promise("put-race-match", "Of many who replace an object at once, exactly one wins.", _race_match),
    Promise("put-whole", "A reader sees the old object or the new one, never a mixture.", _whole),
    Promise("parts-at-end", "An object put in parts appears whole at the end.", _parts_at_end),
    Promise("parts-abort", "An upload that is stopped leaves nothing.", _parts_abort),
    Promise(
        "parts-conditions", "An upload in parts is refused by its condition like a put.", _parts_conditions
    ),
    Promise("marker", "A directory marker is an empty object with metadata.", _marker),
    Promise("marker-implied", "A directory that only has children is no object.", _implied),
    Promise(
        "file-after-directory", "A removed directory's name can be a file's, and back.", _file_after_directory
    ),
    Promise(
        "metadata-limits",
        "2 KiB of ASCII metadata are kept; what would not come back is refused.",
        _metadata_limits,
    ),
    Promise("keys-invalid", "Invalid keys are refused before any request.", _invalid_keys),
    Promise("keys-odd", "Spaces, percent signs, Unicode and URL characters in keys are kept.", _odd_keys),
    Promise("keys-long", "Segments of 255 bytes, many segments and long keys are kept.", _long_keys),
)
