"""The command that runs a door's contract on registered backends: what it says, and that the contract sees what is broken."""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from sessionfs.formats.logs.json_lines import Window
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.port import FileStat
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.contracts import __main__ as command
from sessionfs.testing.contracts.promise import Factory, require
from sessionfs.testing.contracts.session_store import PROMISES, Backend
from tests.unit.sessions.dictionary_store import DictionaryStore


class _LosesAppends(DictionaryStore):
    async def _append(self, session: SessionId, path: str, line: bytes) -> None:
        before = self.files.get((session, path), b"")
        await trio.lowlevel.checkpoint()
        self.files[session, path] = before + line


class _AppendsTwice(DictionaryStore):
    async def _append(self, session: SessionId, path: str, line: bytes) -> None:
        await super()._append(session, path, line * 2)


class _OneStamp(DictionaryStore):
    async def _quarantine_index(self) -> str | None:
        found = await super()._quarantine_index()
        return found and "sessions.json.corrupt-7"


class _RemovesNeighbours(DictionaryStore):
    async def _remove_session(self, session: SessionId) -> None:
        self.files = {name: body for name, body in self.files.items() if not name[0].startswith(session)}


class _MissesRemovals(DictionaryStore):
    async def _remove_session(self, session: SessionId) -> None:
        if session not in await self._list_sessions():
            raise NotFoundError(f"no session {session}")
        await super()._remove_session(session)


class _Unescapes(DictionaryStore):
    async def _list_files(self, session: SessionId) -> list[str]:
        return [urllib.parse.unquote(path) for path in await super()._list_files(session)]


class _Truncates(DictionaryStore):
    async def _write_file(self, session: SessionId, path: str, body: bytes) -> None:
        await super()._write_file(session, path, body[: 8 << 20])


class _OneRevision(DictionaryStore):
    async def _stat(self, session: SessionId, path: str) -> FileStat:
        return FileStat(path, len(await self._read_file(session, path)), 0, "always the same")


class _ShowsTornLines(DictionaryStore):
    async def _read_tail(self, session: SessionId, path: str, budget_bytes: int) -> Window:
        raw = (await self._read_file(session, path))[-budget_bytes:]
        return Window(tuple(raw.splitlines()), 0, len(raw))


class _ReadsBehindTheOffset(DictionaryStore):
    async def _read_before(self, session: SessionId, path: str, offset: int, budget_bytes: int) -> Window:
        return await super()._read_before(session, path, offset + 1, budget_bytes)


class _RenamesIntoBoth(DictionaryStore):
    async def _rename_file(self, session: SessionId, path: str, new: str) -> None:
        await self._write_file(session, new, await self._read_file(session, path))


class _WritesInTwoSteps(DictionaryStore):
    async def _write_file(self, session: SessionId, path: str, body: bytes) -> None:
        await super()._write_file(session, path, body[: len(body) // 2])
        await trio.lowlevel.checkpoint()
        await super()._write_file(session, path, body)


class _ForgetsTheIndex(DictionaryStore):
    async def _remove_session(self, session: SessionId) -> None:
        self._index = None
        await super()._remove_session(session)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (_LosesAppends, "appends-at-once"),
        (_AppendsTwice, "append"),
        (_OneStamp, "index-aside-twice"),
        (_RemovesNeighbours, "neighbours"),
        (_MissesRemovals, "remove-session"),
        (_Unescapes, "odd-names"),
        (_Truncates, "big-file"),
        (_OneRevision, "stat"),
        (_ShowsTornLines, "torn-tail"),
        (_ReadsBehindTheOffset, "window"),
        (_RenamesIntoBoth, "rename"),
        (_WritesInTwoSteps, "writes-at-once"),
        (_ForgetsTheIndex, "index-apart"),
    ],
)
async def test_the_contract_sees_a_backend_that_breaks_a_promise(
    broken: type[DictionaryStore], promise: str
) -> None:
    assert promise in await command.failures(PROMISES, _factory(broken))


async def test_every_promise_is_tried_on_a_fresh_backend() -> None:
    made: list[DictionaryStore] = []

    @asynccontextmanager
    async def counted() -> AsyncIterator[Backend]:
        made.append(DictionaryStore())
        yield made[-1]

    assert await command.failures(PROMISES, counted) == {}
    assert len(made) == len(PROMISES)


async def test_a_backend_may_be_a_place_or_two_stores() -> None:
    @asynccontextmanager
    async def place() -> AsyncIterator[Backend]:
        async with open_object_place(MemoryStore(), SystemClock()) as opened:
            yield opened

    @asynccontextmanager
    async def two() -> AsyncIterator[Backend]:
        first, second = DictionaryStore(), DictionaryStore()
        yield first, second

    assert await command.failures(PROMISES, place) == {}
    # Two that share nothing are no two stores over the same bytes.
    assert {"appends-at-once", "write-replaces"} <= set(await command.failures(PROMISES, two))


async def test_a_backend_that_cannot_be_made_keeps_no_promise() -> None:
    none_left: list[DictionaryStore] = []

    @asynccontextmanager
    async def refused() -> AsyncIterator[Backend]:
        require(len(none_left) > 0, "no backend today")
        yield none_left.pop()

    broken = await command.failures(PROMISES, refused)
    assert set(broken) == {promise.id for promise in PROMISES}
    assert set(broken.values()) == {"no backend today"}


async def test_a_backend_that_hangs_breaks_the_promise_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hangs(DictionaryStore):
        async def _read_index(self) -> bytes | None:
            await trio.sleep(3600)
            return None

    monkeypatch.setattr(command, "LIMIT_SECONDS", 0.2)
    some = tuple(promise for promise in PROMISES if promise.id in {"index-missing", "write-read"})
    assert await command.failures(some, _factory(Hangs)) == {"index-missing": "not done after 0.2 seconds"}


async def test_an_error_in_a_group_is_said_as_it_is() -> None:
    @asynccontextmanager
    async def grouped() -> AsyncIterator[Backend]:
        yield DictionaryStore()
        raise ExceptionGroup("of a nursery", [ValueError("inside")])

    assert await command.failures(PROMISES[:1], grouped) == {PROMISES[0].id: "ValueError: inside"}


@pytest.mark.parametrize("arguments", [[], ["window"], ["session_store", "more"], ["--help"]])
def test_another_use_is_told_the_doors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert "session_store|event_log|archive|catalogue" in capsys.readouterr().err


def test_without_a_backend_nothing_was_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["session_store"]) == 2
    assert capsys.readouterr().err == "no backend is registered under sessionfs.contracts.session_store\n"


BACKENDS = """
from contextlib import asynccontextmanager
from tests.unit.sessions.dictionary_store import DictionaryStore

class Broken(DictionaryStore):
    async def _read_index(self):
        raise ValueError("no index here")

@asynccontextmanager
async def good():
    yield DictionaryStore()

@asynccontextmanager
async def broken():
    yield Broken()
"""


def test_backends_that_are_registered_are_run_and_reported_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "contract_backends.py").write_text(BACKENDS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    _register(tmp_path, "a-good = contract_backends:good")
    assert command.main(["session_store"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["a-good", promise.id, "holds"] for promise in PROMISES]

    _register(tmp_path, "a-good = contract_backends:good", "broken = contract_backends:broken")
    assert command.main(["session_store"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(PROMISES)
    line = next(line for line in lines if line.startswith("broken  index-missing"))
    assert line.endswith(
        "BROKEN  A missing index is empty, and nothing is set aside. But ValueError: no index here."
    )
    assert [line for line in lines if line.startswith("a-good") and not line.endswith("holds")] == []

    _register(tmp_path, "a-good = contract_backends:good", "lost = contract_backends:nowhere")
    assert command.main(["session_store"]) == 2
    assert "lost  contract_backends:nowhere cannot be loaded: " in capsys.readouterr().err


def _factory(kind: type[DictionaryStore]) -> Factory[Backend]:
    @asynccontextmanager
    async def factory() -> AsyncIterator[Backend]:
        yield kind()

    return factory


def _register(directory: Path, *entries: str) -> None:
    """Register backends as an installed package does."""
    information = directory / "contract_backends-1.dist-info"
    information.mkdir(exist_ok=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: contract-backends\nVersion: 1\n", encoding="utf-8"
    )
    (information / "entry_points.txt").write_text(
        "\n".join(["[sessionfs.contracts.session_store]", *entries, ""]), encoding="utf-8"
    )
