"""Random operations on stores of every local kind answer as a dictionary does, error for error."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionfs.model.errors import NotFoundError
from sessionfs.sessions.store import SessionStore, open_session_store

from .dictionary_store import DictionaryStore

SESSIONS = st.sampled_from(["s", "s1", "ü 1"])
# No path is a directory of another: what a store makes of that is its own.
PATHS = st.sampled_from(["a", "a-b", "d/a", "d/e/50%", "log.jsonl"])
BODIES = st.one_of(
    st.binary(max_size=30), st.sampled_from([b"", b"x" * 70_000, b'{"seq":1}\n{"seq":1}\ntorn'])
)
LINES = st.sampled_from(["", "text", '{"seq":1}', '{"seq":2}', "ä" * 40])
SIZES = st.integers(1, 100)

Operation = Callable[[SessionStore], Awaitable[Any]]


async def _size(store: SessionStore, session: str, path: str) -> int:
    return (await store.stat(session, path)).size_bytes


def _operation(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(name), *arguments)


OPERATIONS = st.one_of(
    _operation("write_file", SESSIONS, PATHS, BODIES),
    _operation("write_private", SESSIONS, PATHS, BODIES),
    _operation("append", SESSIONS, PATHS, LINES),
    _operation("remove_file", SESSIONS, PATHS),
    _operation("rename_file", SESSIONS, PATHS, PATHS),
    _operation("remove_session", SESSIONS),
    _operation("read_file", SESSIONS, PATHS),
    _operation("replay", SESSIONS, PATHS),
    _operation("read_tail", SESSIONS, PATHS, SIZES),
    _operation("read_before", SESSIONS, PATHS, SIZES, SIZES),
    _operation("size", SESSIONS, PATHS),
    _operation("list_files", SESSIONS),
    _operation("write_index", st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
    _operation("read_index"),
)


@given(operations=st.lists(OPERATIONS, max_size=25))
@settings(deadline=None, max_examples=20)
def test_every_store_answers_as_a_dictionary_does(operations: list[tuple[Any, ...]]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with open_session_store("memory:") as memory, open_session_store(directory) as local:
                model = DictionaryStore()
                for name, *arguments in operations:
                    wanted = await _answer(model, name, arguments)
                    for store in (memory, local):
                        assert await _answer(store, name, arguments) == wanted, name
                await _require_equal(model, memory, local)

    trio.run(play)


async def _answer(store: SessionStore, name: str, arguments: list[Any]) -> Any:
    try:
        if name == "size":
            return await _size(store, *arguments)
        return await getattr(store, name)(*arguments)
    except NotFoundError:
        return NotFoundError


async def _require_equal(model: DictionaryStore, *stores: SessionStore) -> None:
    for store, session in itertools.product(stores, ("s", "s1", "ü 1")):
        files = {path: await store.read_file(session, path) for path in await store.list_files(session)}
        assert files == {path: body for (owner, path), body in model.files.items() if owner == session}
        if files:
            assert session in await store.list_sessions()
