"""Promises about the index."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from sessionfs.model.errors import CorruptDataError, InvalidRequestError
from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.testing.contracts.promise import require, require_error

_ASIDE = re.compile(r"sessions\.json\.corrupt-(\d+)")
_INDEX: dict[str, Any] = {
    "s1": {"title": "Übung 🙂", "turns": 3, "cost": 0.25, "labels": ["a", None, True], "nested": {"": {}}},
    "big": 2**70 + 1,
    "": [],
}
_DAMAGED = (b"", b"{", b"[]", b"null", b'{"a": 1} x', b'{"a": "\xff"}', b"\0" * 20, b"[" * 5000)


async def _missing(store: SessionStore, _second: SessionStore) -> None:
    require(await store.read_index() == {}, "a missing index is not empty")
    require(await store.quarantine_index() is None, "a missing index was set aside")


async def _round_trip(store: SessionStore, second: SessionStore) -> None:
    await store.write_index(_INDEX)
    require(await second.read_index() == _INDEX, "the index reads back otherwise")
    await second.write_index({"other": 1})
    require(await store.read_index() == {"other": 1}, "a replaced index does not have its new content alone")
    await store.write_index({})
    require(await store.read_index() == {}, "an empty index reads back otherwise")
    require(await store.quarantine_index() is not None, "an empty index counts as missing")


async def _apart(store: SessionStore, _second: SessionStore) -> None:
    await store.write_index(_INDEX)
    require(await store.list_sessions() == [], "the index is listed as a session")
    await store.write_file("s1", "sessions.json", b"a file")
    await store.remove_session("s1")
    require(await store.read_index() == _INDEX, "removing a session changed the index")


async def _bad(store: SessionStore, _second: SessionStore) -> None:
    await store.write_index({"kept": 1})
    circle: dict[str, Any] = {}
    circle["self"] = circle
    bad: tuple[Any, ...] = (
        None, [], "text", {1: "a"}, {"a": (1,)}, {"a": float("nan")}, {"a": float("inf")}, {"a": {1}},
        {"a": b"bytes"}, {"a": object()}, {"a": "\ud800"}, circle,
    )  # fmt: skip
    for index in bad:
        await require_error(
            InvalidRequestError, partial(store.write_index, index), f"an index of {type(index).__name__}"
        )
    require(await store.read_index() == {"kept": 1}, "a refused index was written")


async def _damaged(store: SessionStore, second: SessionStore) -> None:
    for raw in _DAMAGED:
        await store._write_index(raw)  # noqa: SLF001 - no public operation damages an index
        error = await require_error(CorruptDataError, second.read_index, f"reading {raw[:20]!r}")
        require("sessions.json" in str(error), f"the error does not name the file: {error}")
    aside = await store.quarantine_index()
    require(aside is not None, "a damaged index is not set aside")
    require(await store.read_index() == {}, "an index that was set aside is still there")
    await store.write_index({"new": 1})
    require(await second.read_index() == {"new": 1}, "no index can be written after one was set aside")


async def _twice(store: SessionStore, second: SessionStore) -> None:
    stamps: list[int] = []
    for number in range(4):
        await store.write_index({"number": number})
        aside = await (store if number % 2 else second).quarantine_index()
        found = _ASIDE.fullmatch(aside or "")
        require(found is not None, f"an aside is named {aside!r}")
        stamps += [int(found.group(1))] if found is not None else []
    require(stamps == sorted(set(stamps)), f"the stamps of asides are {stamps}")
    require(await store.quarantine_index() is None, "the index was set aside twice")
    require(await store.list_sessions() == [], "asides are listed as sessions")


PROMISES = (
    ("index-missing", "A missing index is empty, and nothing is set aside.", _missing),
    ("index-round-trip", "The index reads back as it was written, whoever wrote it.", _round_trip),
    ("index-apart", "The index is no session, and no session's.", _apart),
    ("index-bad", "What is no JSON object is refused, and the index left alone.", _bad),
    (
        "index-damaged",
        "A damaged index raises CorruptDataError that names it, until it is set aside.",
        _damaged,
    ),
    ("index-aside-twice", "Asides made in one second have names of their own, each above the last.", _twice),
)
