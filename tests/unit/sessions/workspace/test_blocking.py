"""Workspaces without an event loop."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator

import pytest

from sessionfs.model.errors import AlreadyExistsError, HandleClosedError, NotFoundError
from sessionfs.sessions.portal import Portal
from sessionfs.sessions.workspace.blocking import BlockingWorkspace
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import NewSession

from .world import Heard, MemoryPlace


@pytest.fixture
def portal() -> Iterator[Portal]:
    with Portal() as opened:
        yield opened


def test_a_session_is_made_used_and_recalled(portal: Portal, heard: Heard) -> None:
    place = MemoryPlace()
    options = WorkspaceOptions(subscriber=heard)
    with BlockingWorkspace.create(portal, place, "s", new=NewSession(config=b"c"), options=options) as made:
        assert (made.id, made.config(), made.is_closed, made.degraded_reason) == ("s", b"c", False, "")
        made.write_file("a", b"1", is_new=True)
        made.append_file("a", b"2", is_synced=True)
        assert made.read_file("a", 1) == b"2"
        made.rename_file("a", "b")
        assert (made.file_exists("a"), made.file_exists("b"), made.stat_file("b").size_bytes) == (
            False,
            True,
            2,
        )
        made.remove_file("b")
        assert made.list_files() == ["metadata/config", "metadata/session.json"]
        made.record_turn(prompt_tokens=2, cost_usd=0.5)
        assert made.update_metadata(profile="p").tokens_used == 2
        assert made.snapshot("turn") == 1
        place.disk.put("s", "theirs", b"x")
        changes = made.changes()
        assert [event.path for event in changes.events if event.is_foreign] == ["theirs"]
        assert made.changes(changes.last).events == ()
    assert (made.metadata.status, place.disk.owners) == ("ended", {})
    with BlockingWorkspace.recall(portal, place, "s") as again:
        assert (again.config(), again.metadata.profile) == (b"c", "p")
    assert "file.renamed" in heard.names()


def test_directories_blobs_and_the_journal_wait_too(portal: Portal) -> None:
    with BlockingWorkspace.open(portal, MemoryPlace(), "s") as workspace:
        for directory in (workspace.context_dir(), workspace.files_dir(), workspace.plugin_dir("p")):
            directory.write("a", b"1", is_private=True)
            directory.append("a", b"2")
            assert (directory.read("a"), directory.list(), directory.exists("b")) == (b"12", ["a"], False)
            assert directory.path is None
        directory.remove("a")
        assert workspace.metadata_dir().list() == ["session.json"]
        blobs, sha256 = workspace.blobs(), hashlib.sha256(b"x").hexdigest()
        assert blobs.put(b"x", content_type="a/b", name="n").sha256 == sha256
        assert (blobs.get(sha256), blobs.exists(sha256), blobs.list()) == (b"x", True, [sha256])
        assert blobs.describe(sha256).name == "n"
        journal = workspace.journal()
        assert (journal.append({"n": 1}), journal.append_all([{"n": 2}, {"n": 3}])) == (1, 3)
        journal.rotate()
        assert journal.replay(2) == [{"seq": 3, "n": 3}]
        assert journal.project(lambda total, record: total + record["n"], 0) == 6


def test_a_shared_root_is_published_once(portal: Portal) -> None:
    with BlockingWorkspace.shared(portal, MemoryPlace(), "eval/run") as run:
        run.write_file("a", b"1")
        assert [run.is_published, run.publish(), run.is_published] == [False, 1, True]
        with pytest.raises(AlreadyExistsError):
            run.publish()


def test_what_cannot_be_opened_raises_and_the_portal_goes_on(portal: Portal) -> None:
    place = MemoryPlace()
    with pytest.raises(NotFoundError), BlockingWorkspace.recall(portal, place, "s"):
        pass
    with BlockingWorkspace.open(portal, place, "s") as workspace:
        with pytest.raises(NotFoundError):
            workspace.read_file("a")
        workspace.close()
        workspace.close()
        with pytest.raises(HandleClosedError):
            workspace.read_file("a")


def test_a_block_that_an_error_leaves_ends_the_session_as_failed_and_raises_it(portal: Portal) -> None:
    place = MemoryPlace()
    left: list[BlockingWorkspace] = []

    def fail(before: Callable[[], None]) -> None:
        with BlockingWorkspace.open(portal, place, "s") as workspace:
            left.append(workspace)
            before()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(lambda: None)
    assert (left[0].metadata.status, place.disk.owners) == ("failed", {})

    def go_down() -> None:
        place.is_down = True

    with pytest.raises(ZeroDivisionError) as caught:
        fail(go_down)
    assert left[1].is_closed
    assert any("could not be closed" in note for note in caught.value.__notes__)


def test_threads_share_a_workspace(portal: Portal) -> None:
    with BlockingWorkspace.open(portal, MemoryPlace(), "s") as workspace:
        threads = [
            threading.Thread(target=workspace.append_file, args=("log", b"%d\n" % number))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(workspace.read_file("log").split()) == [b"%d" % number for number in range(8)]
        workspace.abandon()
        assert workspace.is_closed
