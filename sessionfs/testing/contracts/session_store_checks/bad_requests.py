"""Promises about requests that can never succeed: the documented error, and nothing changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sessionfs.model.errors import InvalidRequestError, InvalidSessionIdError
from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.testing.contracts.promise import require, require_error

_S = "contract-session"

BAD_PATHS: tuple[Any, ...] = (
    "", "/", "/abs", "../x", "a/../../x", "a/..", ".", "./a", "a//b", "a/", "C:/x", "c:x", "a\\b", "a\0b",
    ".sessionfs/status", "n" * 256, "d/" * 500 + "x", "\ud800", None, b"bytes", 7,
)  # fmt: skip
BAD_SESSIONS: tuple[Any, ...] = (
    "", ".", "..", "../x", "a/b", "/abs", "C:x", "a\\b", "a\0b", "a\nb", "50%", ".sessionfs", "i" * 129,
    "s1.owner", "s1.manifest", "s1.snapshot.json", "s1.objects", "s1.conflicts", "\ud800", None, b"s1", 7,
)  # fmt: skip
BAD_LINES: tuple[Any, ...] = (
    "two\nlines", b"two\nlines", "ends\n", b"\xff\xfe", "\ud800", None, 7, ["a"], {1: "a"}, {"a": object()},
    {"a": float("nan")},
)  # fmt: skip

_Request = Callable[[], Awaitable[object]]


def _requests(store: SessionStore, session: Any, path: Any) -> dict[str, _Request]:
    return {
        "read_file": lambda: store.read_file(session, path),
        "write_file": lambda: store.write_file(session, path, b"x"),
        "append": lambda: store.append(session, path, "x"),
        "replay": lambda: store.replay(session, path),
        "read_tail": lambda: store.read_tail(session, path, 10),
        "read_before": lambda: store.read_before(session, path, 10, 10),
        "stat": lambda: store.stat(session, path),
        "write_private": lambda: store.write_private(session, path, b"x"),
        "remove_file": lambda: store.remove_file(session, path),
        "rename_file": lambda: store.rename_file(session, path, "new"),
    }


async def _paths(store: SessionStore, _second: SessionStore) -> None:
    await _keep(store)
    for path in BAD_PATHS:
        for name, request in _requests(store, _S, path).items():
            await require_error(InvalidRequestError, request, f"{name} of {str(path)[:40]!r}")
        await require_error(
            InvalidRequestError,
            partial(store.rename_file, _S, "kept", path),
            f"renaming to {str(path)[:40]!r}",
        )
    await _require_kept(store)


async def _sessions(store: SessionStore, _second: SessionStore) -> None:
    await _keep(store)
    for session in BAD_SESSIONS:
        requests = _requests(store, session, "kept")
        requests["list_files"] = partial(store.list_files, session)
        requests["remove_session"] = partial(store.remove_session, session)
        for name, request in requests.items():
            await require_error(InvalidSessionIdError, request, f"{name} of session {str(session)[:40]!r}")
    await _require_kept(store)


async def _lines(store: SessionStore, _second: SessionStore) -> None:
    await _keep(store)
    for line in BAD_LINES:
        await require_error(
            InvalidRequestError, partial(store.append, _S, "kept", line), f"appending {line!r}"
        )
    await _require_kept(store)


async def _values(store: SessionStore, _second: SessionStore) -> None:
    await _keep(store)
    bad: Any
    for bad in (0, -1, 1.5, None, "10", True):
        await require_error(
            InvalidRequestError, partial(store.read_tail, _S, "kept", bad), f"a budget of {bad!r}"
        )
    for bad in (-1, 1.5, None, "10"):
        await require_error(
            InvalidRequestError,
            partial(store.read_before, _S, "kept", bad, 9),
            f"an offset of {bad!r}",
        )
    for bad in ("text", None, 7, ["x"]):
        for write in (store.write_file, store.write_private):
            await require_error(InvalidRequestError, partial(write, _S, "kept", bad), f"writing {bad!r}")
    await _require_kept(store)


async def _keep(store: SessionStore) -> None:
    await store.write_file(_S, "kept", b"kept\n")
    await store.write_index({"kept": 1})


async def _require_kept(store: SessionStore) -> None:
    require(await store.list_sessions() == [_S], "a refused request made or removed a session")
    require(await store.list_files(_S) == ["kept"], "a refused request made or removed a file")
    require(await store.read_file(_S, "kept") == b"kept\n", "a refused request changed a file")
    require(await store.read_index() == {"kept": 1}, "a refused request changed the index")


PROMISES = (
    ("bad-path", "A path that leaves its session, or is none, is refused by every operation.", _paths),
    ("bad-session", "What is no session id is refused by every operation.", _sessions),
    ("bad-line", "What is not one line of UTF-8 or a JSON object is not appended.", _lines),
    ("bad-value", "Budgets, offsets and bytes that are none are refused.", _values),
)
