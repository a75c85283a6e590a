"""The forms without an event loop: the same answers, from any thread; and the page that shows them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    HandleClosedError,
    InvalidRequestError,
    NotFoundError,
)
from sessionfs.model.names import session_id
from sessionfs.sessions.catalogue.blocking import BlockingCatalogue, BlockingIndex
from sessionfs.sessions.catalogue.postgres_connection import PostgresSettings
from sessionfs.sessions.catalogue.postgres_index import PostgresIndex
from sessionfs.sessions.catalogue.sqlite_catalogue import SqliteCatalogue
from sessionfs.sessions.portal import Portal
from sessionfs.testing.contracts.catalogue import ACME, OTHER, example
from sessionfs.testing.postgres_server import PostgresServer

PAGE = Path(__file__).parents[4] / "docs" / "python" / "catalogue.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
S1 = session_id("s1")


def _open(path: Path, portal: Portal | None = None) -> BlockingCatalogue:
    return BlockingCatalogue(lambda: SqliteCatalogue.open(path, SystemClock()), portal)


def test_a_blocking_catalogue_does_what_the_asynchronous_one_does(tmp_path: Path) -> None:
    with _open(tmp_path / "c.db") as catalogue:
        made = catalogue.create(example())
        with pytest.raises(AlreadyExistsError):
            catalogue.create(example())
        saved = catalogue.save(replace(made, title="new"))
        assert catalogue.get(ACME, S1) == saved
        with pytest.raises(NotFoundError):
            catalogue.get(OTHER, S1)
        theirs = catalogue.import_(example("s2", OTHER, revision=4))
        assert catalogue.list(ACME) == [saved]
        assert catalogue.scan() == [saved, theirs]
        assert catalogue.scan("s1", 1) == [theirs]
        with pytest.raises(InvalidRequestError):
            catalogue.list(ACME, "", 1001)


@pytest.mark.postgres
def test_a_blocking_index_does_what_the_asynchronous_one_does(postgres_server: PostgresServer) -> None:
    settings = PostgresSettings(postgres_server.url(), schema=postgres_server.fresh_schema())
    with BlockingIndex(lambda: PostgresIndex.open(settings)) as index:
        newer = example(revision=2)
        assert index.put(newer)
        assert not index.put(example(revision=1))
        assert index.get(ACME, S1) == newer
        assert index.list(ACME, "", 1) == [newer]


def test_threads_share_a_blocking_catalogue(tmp_path: Path) -> None:
    with _open(tmp_path / "c.db") as catalogue, ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda number: catalogue.create(example(f"s{number}")), range(40)))
        assert sorted(one.id for one in made) == sorted(one.id for one in catalogue.scan("", 1000))


def test_what_is_closed_says_so_and_closing_again_is_success(tmp_path: Path) -> None:
    catalogue = _open(tmp_path / "c.db")
    catalogue.close()
    catalogue.close()
    with pytest.raises(HandleClosedError):
        catalogue.get(ACME, S1)


def test_a_portal_that_was_lent_stays_open(tmp_path: Path) -> None:
    with Portal() as portal:
        first, second = _open(tmp_path / "1.db", portal), _open(tmp_path / "2.db", portal)
        first.close()
        with pytest.raises(HandleClosedError):
            first.create(example())
        assert second.create(example()).id == S1
        second.close()


def test_a_catalogue_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    import threading

    before = {thread.name for thread in threading.enumerate()}
    (tmp_path / "c.db").write_bytes(b"no database " * 1000)
    with pytest.raises(CorruptDataError):
        _open(tmp_path / "c.db")
    assert "sessionfs-doors" not in {thread.name for thread in threading.enumerate()} - before


@pytest.mark.postgres
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_of_the_page_runs(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    postgres_server: PostgresServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SESSION_INDEX_URL", postgres_server.url())
    exec(compile(BLOCKS[number], f"{PAGE.name}, block {number + 1}", "exec"), {"__name__": "__main__"})  # noqa: S102 - the page's own
    expected = re.findall(r"# prints: (.*)$", BLOCKS[number], re.MULTILINE)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected


def test_the_page_shows_both_forms() -> None:
    assert any("async with" in block for block in BLOCKS)
    assert any("BlockingCatalogue" in block for block in BLOCKS)
    assert any("BlockingIndex" in block for block in BLOCKS)
