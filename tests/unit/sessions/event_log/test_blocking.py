"""The blocking form, and the page that shows both forms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    BucketNotFoundError,
    HandleClosedError,
    InvalidRequestError,
    ReadOnlyHandleError,
    SessionAlreadyOwnedError,
)
from sessionfs.sessions.event_log import BlockingEventLog, FlushFailedError
from sessionfs.sessions.event_log.blocking import PlaceManager
from sessionfs.sessions.object_place import open_object_place
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.open_store import open_store

from .records import header, said

PAGE = Path(__file__).parents[4] / "docs" / "python" / "event-log.md"


def opened(directory: Path) -> PlaceManager:
    return open_object_place(open_store(str(directory / "store")), SystemClock())


def test_everything_can_be_done_without_an_event_loop(tmp_path: Path) -> None:
    with BlockingEventLog(lambda: opened(tmp_path)) as log:
        with log.create(header()) as writer:
            writer.append(said(0, 2))
            writer.flush()
            log.flush()
            assert (writer.next_seq, writer.session, writer.header) == (2, "s1", header())
            with pytest.raises(SessionAlreadyOwnedError):
                log.open_to_write("s1")
            with pytest.raises(InvalidRequestError):
                writer.append(said(7))
        reader = log.open("s1", "read")
        assert reader.read() == reader.replay() == said(0, 2)
        assert reader.read(1, 1) == said(1)
        with pytest.raises(ReadOnlyHandleError):
            reader.append(said(2))
        log.fork("s1", header("s2")).close()
        assert log.list() == [log.stat("s1"), log.stat("s2")]
        writer = log.open_to_write("s1")
        writer.append(said(2))
    log.close()
    with pytest.raises(HandleClosedError):
        reader.read()
    with BlockingEventLog(lambda: opened(tmp_path)) as log:
        assert log.open("s1", "read").read() == said(0, 3), "the end of the service did not store an event"


def test_a_place_that_cannot_be_opened_is_an_error_and_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(BucketNotFoundError):
        BlockingEventLog(lambda: opened(tmp_path / "missing"))


def test_what_the_end_could_not_store_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BlockingEventLog(lambda: opened(tmp_path))
    log.create(header()).append(said(0))

    def fail(*_arguments: object, **_options: object) -> None:
        raise BucketNotFoundError("the disk is gone")

    monkeypatch.setattr(LocalDirectoryStore, "put", fail)
    with pytest.raises(FlushFailedError) as caught:
        log.close()
    assert set(caught.value.by_session) == {"s1"}
    log.close()


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        assert '"STORE"' in program
        exec(  # noqa: S102 - the page's own programs
            compile(program.replace("STORE", str(tmp_path / "store")), str(PAGE), "exec"),
            {"__name__": "page"},
        )
