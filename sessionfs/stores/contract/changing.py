"""Promises about deleting, copying and appending."""

from __future__ import annotations

from sessionfs.model.errors import InvalidRequestError, ObjectNotFoundError, PreconditionFailedError
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectMetadata, Token, Unconditional
from sessionfs.stores.contract.promise import Promise, Scratch, go_on, pattern, require, require_error

_STALE = Token("0123456789abcdef0123456789abcdef")
_NEW = ObjectMetadata({"mode": "0100600"}, "text/plain")


class _CallerError(Exception):
    """Raised by a callback, as a caller's own error would be."""


def _delete(scratch: Scratch) -> None:
    scratch.put("dir/file", b"x")
    scratch.put("dir/", b"")
    for name in ("dir/file", "dir/"):
        scratch.store.delete(scratch.key(name), condition=Unconditional())
    require(scratch.names() == [], "something is left")
    for name in ("dir/file", "dir/", "never"):
        scratch.store.delete(scratch.key(name), condition=Unconditional())


def _delete_if_match(scratch: Scratch) -> None:
    token = scratch.put("file", b"1")
    key = scratch.key("file")
    require_error(
        PreconditionFailedError, lambda: scratch.store.delete(key, condition=IfMatch(_STALE)), "a stale token"
    )
    require(scratch.body("file") == b"1", "the refused delete removed the object")
    scratch.store.delete(key, condition=IfMatch(token))
    require(scratch.names() == [], "the object is still there")
    require_error(
        PreconditionFailedError,
        lambda: scratch.store.delete(key, condition=IfMatch(token)),
        "a missing object",
    )
    require_error(
        InvalidRequestError, lambda: scratch.store.delete(key, condition=IfAbsent()), "a delete with IfAbsent"
    )


def _copy(scratch: Scratch) -> None:
    body = pattern(50_000)
    source = scratch.put("source &+%", body, metadata=ObjectMetadata({"mode": "0100644", "old": "yes"}))
    target = _copied(scratch, "source &+%", "a/target #?", source, IfAbsent())
    stat = scratch.head("a/target #?")
    require(scratch.body("a/target #?") == body and stat.token == target, f"the copy differs: {stat}")
    require(stat.metadata == _NEW, f"metadata was not replaced: {stat.metadata}")
    require(scratch.head("source &+%").token == source, "the source changed")


def _copy_source(scratch: Scratch) -> None:
    first = scratch.put("source", b"first")
    scratch.put("source", b"second", IfMatch(first))
    require_error(
        PreconditionFailedError,
        lambda: _copied(scratch, "source", "target", first, IfAbsent()),
        "a moved source",
    )
    require_error(
        ObjectNotFoundError,
        lambda: _copied(scratch, "missing", "target", first, IfAbsent()),
        "a missing source",
    )
    require(scratch.names() == ["source"], "a refused copy made an object")


def _copy_target(scratch: Scratch) -> None:
    source, target = scratch.put("source", b"source"), scratch.put("target", b"target")
    for condition in (IfAbsent(), IfMatch(_STALE)):
        require_error(
            PreconditionFailedError,
            lambda condition=condition: _copied(scratch, "source", "target", source, condition),  # type: ignore[misc]
            f"a copy under {condition}",
        )
    require_error(
        PreconditionFailedError,
        lambda: _copied(scratch, "source", "missing", source, IfMatch(_STALE)),
        "IfMatch on a missing target",
    )
    require(scratch.body("target") == b"target", "a refused copy changed the target")
    _copied(scratch, "source", "target", source, IfMatch(target))
    require(scratch.body("target") == b"source", "the copy did not replace the target")


def _copy_self(scratch: Scratch) -> None:
    token = scratch.put("file", b"same bytes", metadata=ObjectMetadata({"mode": "0100644"}))
    after = _copied(scratch, "file", "file", token, IfMatch(token))
    stat = scratch.head("file")
    require(stat.metadata == _NEW and stat.token == after, f"after a copy onto itself: {stat}")
    require(scratch.body("file") == b"same bytes", "the bytes changed")
    marker = scratch.put("dir/", b"", metadata=ObjectMetadata({"mode": "040755"}))
    _copied(scratch, "dir/", "dir/", marker, IfMatch(marker))
    require(scratch.head("dir/").metadata == _NEW, "the marker's metadata was not replaced")


def _append(scratch: Scratch) -> None:
    body = pattern(max(scratch.store.capabilities.minimum_part_bytes, 70_000))
    scratch.put("log", body)
    base = scratch.head("log")
    token = scratch.store.append(
        scratch.key("log"), iter([b"one\n", b"", b"two\n"]), base=base, metadata=_NEW, before_complete=go_on
    )
    stat = scratch.head("log")
    require(scratch.body("log") == body + b"one\ntwo\n", "the appended object has other bytes")
    require((stat.token, stat.metadata, stat.size_bytes) == (token, _NEW, len(body) + 8), f"appended: {stat}")
    require(token != base.token, "the token did not change")

    def appended() -> Token:
        return scratch.store.append(
            scratch.key("log"), [b"three\n"], base=base, metadata=_NEW, before_complete=go_on
        )

    require_error(PreconditionFailedError, appended, "an append to a moved object")
    require(scratch.head("log").token == token, "the refused append changed the object")
    scratch.store.delete(scratch.key("log"), condition=Unconditional())
    require_error(PreconditionFailedError, appended, "an append to a missing object")
    require(scratch.names() == [], "the refused append made an object")


def _append_stopped(scratch: Scratch) -> None:
    body = pattern(max(scratch.store.capabilities.minimum_part_bytes, 100))
    scratch.put("log", body)
    base = scratch.head("log")
    seen: list[int] = []

    def stop() -> None:
        seen.append(scratch.head("log").size_bytes)
        raise _CallerError

    try:
        scratch.store.append(scratch.key("log"), [b"x"], base=base, metadata=_NEW, before_complete=stop)
    except _CallerError:
        require(seen == [len(body)], "the object changed before it was complete")
        require(scratch.head("log").token == base.token, "an append that was stopped changed the object")
    else:
        require(False, "the caller's error was swallowed")  # noqa: FBT003 - never holds


def _copied(scratch: Scratch, source: str, target: str, token: Token, condition: Condition) -> Token:
    return scratch.store.copy(
        scratch.key(source), scratch.key(target), source_token=token, condition=condition, metadata=_NEW
    )


CHANGING = (
    Promise("delete", "A delete removes one object; without a condition a missing one is success.", _delete),
    Promise(
        "delete-if-match", "A delete is refused unless the object has exactly that token.", _delete_if_match
    ),
    Promise("copy", "A copy has the source's bytes and the metadata it was given.", _copy),
    Promise("copy-source", "A copy is refused when its source has moved or is missing.", _copy_source),
    Promise("copy-target", "A copy is refused by the condition on its target.", _copy_target),
    Promise("copy-self", "A copy onto itself replaces the metadata.", _copy_self),
    Promise("append", "An append is the object and its tail, refused when the object has moved.", _append),
    Promise("append-stopped", "An append that is stopped changes nothing.", _append_stopped),
)
