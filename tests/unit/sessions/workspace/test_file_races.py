"""What others do in the very moment in which a file is listed, read, written or renamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from sessionfs.model.errors import (
    AlreadyExistsError,
    NotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.sessions.workspace.observation.observed_files import KNOWN_FILE_BYTES
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Heard, MemoryPlace


@pytest.fixture
def place() -> MemoryPlace:
    return MemoryPlace()


@pytest.fixture
async def workspace(place: MemoryPlace, heard: Heard) -> AsyncIterator[Workspace]:
    async with Workspace.create(place, "s", options=WorkspaceOptions(subscriber=heard)) as opened:
        heard.events.clear()
        yield opened


def once(place: MemoryPlace, request: tuple[str, str], action: Callable[[], None]) -> None:
    """Let somebody do something right before a request."""

    def before(name: str, path: str) -> None:
        if (name, path) == request:
            place.before = lambda _name, _path: None
            action()

    place.before = before


async def test_a_file_that_goes_between_the_listing_and_the_look_is_no_event_or_its_end(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    place.disk.put("s", "brief", b"1")
    once(place, ("stat", "brief"), lambda: place.disk.remove("s", "brief"))
    await workspace.changes()
    place.disk.put("s", "brief", b"1")
    once(place, ("read", "brief"), lambda: place.disk.remove("s", "brief"))
    await workspace.changes()
    assert heard.files() == []
    await workspace.write_file("known", b"1")
    place.disk.put("s", "known", b"2")
    once(place, ("read", "known"), lambda: place.disk.remove("s", "known"))
    await workspace.changes()
    assert heard.files() == [("created", "known", 1, 0, 1), ("deleted", "known", 0, 0, -1)]


async def test_a_file_that_comes_back_behind_the_listing_changed_and_did_not_go(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    await workspace.write_file("a", b"12")
    place.disk.remove("s", "a")
    once(place, ("stat", "a"), lambda: place.disk.put("s", "a", b"123"))
    await workspace.changes()
    assert heard.files() == [("created", "a", 2, 0, 2), ("updated", "a", 3, 2, 1)]


async def test_a_file_that_goes_while_a_recalled_session_is_looked_at_is_unknown(heard: Heard) -> None:
    place = MemoryPlace()
    place.disk.put("s", "a", b"1")
    once(place, ("read", "a"), lambda: place.disk.remove("s", "a"))
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        await workspace.changes()
        assert [path for _, path, *_ in heard.files()] == ["metadata/session.json"]


async def test_a_new_file_is_made_where_another_was_removed_by_others(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    await workspace.write_file("a", b"1")
    with pytest.raises(AlreadyExistsError):
        await workspace.write_file("a", b"2", is_new=True)
    place.disk.remove("s", "a")
    await workspace.write_file("a", b"22", is_new=True)
    assert heard.files() == [("created", "a", 1, 0, 1), ("deleted", "a", 0, 0, -1), ("created", "a", 2, 0, 2)]


async def test_a_file_is_renamed_with_what_others_added_in_that_moment(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    await workspace.write_file("a", b"1")
    once(place, ("stat", "b"), lambda: place.disk.put("s", "b", b"12"))
    await workspace.rename_file("a", "b")
    once(place, ("rename", "c"), lambda: place.disk.put("s", "c", b"theirs"))
    await workspace.rename_file("c", "d")
    await workspace.rename_file("d", "d")
    with pytest.raises(NotFoundError):
        await workspace.rename_file("e", "e")
    assert heard.files() == [
        ("created", "a", 1, 0, 1),
        ("renamed", "b", 2, 2, 0),
        ("updated", "b", 2, 1, 1),
        ("created", "d", 6, 0, 6),
    ]


async def test_a_file_that_others_make_in_the_moment_of_an_append_is_whole_with_both(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    once(place, ("append", "a"), lambda: place.disk.put("s", "a", b"theirs\n"))
    await workspace.append_file("a", b"ours\n")
    assert place.disk.bodies("s")["a"] == b"theirs\nours\n"
    assert heard.files() == [("created", "a", 12, 0, 12)]


async def test_a_file_of_the_same_length_is_no_rename_when_its_bytes_are_others(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    await workspace.write_file("old", b"12")
    heard.events.clear()
    place.disk.remove("s", "old")
    place.disk.put("s", "new", b"34")
    await workspace.changes()
    assert sorted(heard.files()) == [("created", "new", 2, 0, 2), ("deleted", "old", 0, 0, -2)]


async def test_files_of_one_length_that_others_move_are_each_told_as_what_they_were(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    for number in range(5):
        await workspace.write_file(f"d/{number}", b"%d" % number)
    heard.events.clear()
    for number in range(5):
        place.disk.remove("s", f"d/{number}")
        place.disk.put("s", f"e/{4 - number}", b"%d" % number)
    await workspace.changes()
    moved = {event.old_path: event.path for event in heard.events}
    assert moved == {f"d/{number}": f"e/{4 - number}" for number in range(5)}
    assert {kind for kind, *_ in heard.files()} == {"renamed"}


async def test_a_file_that_grew_over_a_restart_is_known_again_when_others_move_it(
    tmp_path: Path, heard: Heard
) -> None:
    place = MemoryPlace()
    options = WorkspaceOptions(subscriber=heard, local_directory=str(tmp_path))
    async with Workspace.open(place, "s", options=options) as first:
        await first.write_file("log", b"one\n")
        await first.write_file("empty", b"")
    async with Workspace.open(place, "s", options=options) as second:
        await second.append_file("log", b"two\n")
        heard.events.clear()
        place.disk.put("s", "moved", place.disk.bodies("s")["log"])
        place.disk.put("s", "other", b"ONE\ntwo\n")
        place.disk.remove("s", "log")
        place.disk.remove("s", "empty")
        place.disk.put("s", "void", b"")
        await second.changes()
        assert sorted(heard.files()) == [
            ("created", "other", 8, 0, 8),
            ("created", "void", 0, 0, 0),
            ("deleted", "empty", 0, 0, 0),
            ("renamed", "moved", 8, 8, 0),
        ]


async def test_bytes_that_were_known_before_others_wrote_a_long_file_are_not_held_against_it(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    await workspace.write_file("a", b"abc")
    place.disk.put("s", "a", b"x" * (KNOWN_FILE_BYTES + 1))
    await workspace.changes()
    heard.events.clear()
    await workspace.write_file("a", b"abcd")
    assert heard.files() == [("updated", "a", 4, 0, 3 - KNOWN_FILE_BYTES)]


async def test_an_append_that_a_place_never_takes_is_refused_in_the_end(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    def refuse(name: str, path: str) -> None:
        if (name, path) == ("append", "a"):
            raise PreconditionFailedError("not now")

    place.before = refuse
    with pytest.raises(PreconditionFailedError):
        await workspace.append_file("a", b"1")
    assert heard.files() == []


async def test_an_outage_in_the_middle_of_a_look_loses_no_event(
    workspace: Workspace, place: MemoryPlace, heard: Heard
) -> None:
    await workspace.write_file("gone", b"1")
    heard.events.clear()
    place.disk.remove("s", "gone")
    place.disk.put("s", "fresh", b"1")

    def down(name: str, path: str) -> None:
        place.is_down = (name, path) == ("stat", "fresh")

    place.before = down
    with pytest.raises(UnavailableError):
        await workspace.changes()
    place.before, place.is_down = lambda _name, _path: None, False
    await workspace.changes()
    assert sorted(heard.files()) == [("created", "fresh", 1, 0, 1), ("deleted", "gone", 0, 0, -1)]


async def test_long_files_are_exact_too(workspace: Workspace, place: MemoryPlace, heard: Heard) -> None:
    body = bytes(range(256)) * (5 << 12)
    length = len(body)
    await workspace.write_file("a", body)
    await workspace.append_file("a", body)
    place.disk.put("s", "a", body * 3)
    await workspace.changes()
    put = await workspace.blobs().put(body)
    assert await workspace.blobs().get(put.sha256) == body
    assert heard.files()[:3] == [
        ("created", "a", length, 0, length),
        ("updated", "a", 2 * length, length, length),
        ("updated", "a", 3 * length, 2 * length, length),
    ]


async def test_tasks_that_write_one_file_at_once_are_told_one_after_the_other(
    workspace: Workspace, heard: Heard
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(workspace.append_file, "log", b"%d\n" % number)
            nursery.start_soon(workspace.write_file, f"f{number}", b"x")
        nursery.start_soon(workspace.changes)
    sizes = [(size, offset) for _, path, size, offset, _ in heard.files() if path == "log"]
    assert sizes == [(2 * number + 2, 2 * number) for number in range(10)]
