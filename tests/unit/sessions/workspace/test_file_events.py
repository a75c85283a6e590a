"""Every change of a file is an event that says exactly what changed, whoever made it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sessionfs.model.errors import InvalidRequestError, NotFoundError
from sessionfs.model.names import session_id
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.workspace.observation.observed_files import KNOWN_FILE_BYTES
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Heard, MemoryPlace

BIG = b"0123456789abcdef" * (KNOWN_FILE_BYTES // 16 + 1)


@pytest.fixture
async def workspace(place: SessionPlace, heard: Heard) -> AsyncIterator[Workspace]:
    async with Workspace.create(place, "s", options=WorkspaceOptions(subscriber=heard)) as opened:
        heard.events.clear()
        yield opened


async def test_a_write_an_append_a_rewrite_a_rename_and_a_removal_say_exactly_what_they_did(
    workspace: Workspace, heard: Heard
) -> None:
    await workspace.write_file("a", b"hello")
    await workspace.append_file("a", b" world")
    await workspace.write_file("a", b"hello world!")
    await workspace.write_file("a", b"help")
    await workspace.write_file("a", b"zzzz")
    await workspace.append_file("new", b"12")
    await workspace.rename_file("a", "b")
    await workspace.remove_file("b")
    assert heard.files() == [
        ("created", "a", 5, 0, 5),
        ("updated", "a", 11, 5, 6),
        ("updated", "a", 12, 11, 1),
        ("updated", "a", 4, 3, -8),
        ("updated", "a", 4, 0, 0),
        ("created", "new", 2, 0, 2),
        ("renamed", "b", 4, 4, 0),
        ("deleted", "b", 0, 0, -4),
    ]


async def test_an_event_says_whether_all_is_new_or_appended_or_neither(
    workspace: Workspace, heard: Heard
) -> None:
    await workspace.write_file("a", b"hello")
    await workspace.append_file("a", b" world")
    await workspace.write_file("a", b"help, more than before")
    await workspace.write_file("a", b"help")
    kinds = [(event.is_all_new, event.is_append) for event in heard.events]
    assert kinds == [(True, False), (False, True), (False, False), (False, False)]
    assert {event.session_id for event in heard.events} == {"s"}
    assert [event.number for event in heard.events] == sorted({event.number for event in heard.events})


async def test_what_others_did_is_found_with_the_same_exactness(
    workspace: Workspace, place: SessionPlace, heard: Heard
) -> None:
    files = place.files(session_id("s"))
    await workspace.write_file("log", b"one\n")
    await workspace.write_file("text", b"hello")
    await workspace.write_file("gone", b"123")
    await workspace.write_file("old", b"the same bytes")
    heard.events.clear()
    await files.append("log", b"two\n")
    await files.write("text", b"help!")
    await files.remove("gone")
    await files.write("fresh", b"xy")
    await files.rename("old", "young")
    changes = await workspace.changes()
    assert sorted(heard.files()) == [
        ("created", "fresh", 2, 0, 2),
        ("deleted", "gone", 0, 0, -3),
        ("renamed", "young", 14, 14, 0),
        ("updated", "log", 8, 4, 4),
        ("updated", "text", 5, 3, 0),
    ]
    assert [event.is_foreign for event in changes.events[-5:]] == [True] * 5
    assert [event.old_path for event in changes.events if event.old_path] == ["old"]
    assert (await workspace.changes(changes.last)).events == ()


async def test_what_others_did_right_before_a_change_of_ours_is_announced_first(
    workspace: Workspace, place: SessionPlace, heard: Heard
) -> None:
    files = place.files(session_id("s"))
    await workspace.write_file("a", b"one\n")
    await workspace.write_file("b", b"one\n")
    await files.append("a", b"two\n")
    await files.write("b", b"ONE\n")
    await files.write("c", b"theirs")
    heard.events.clear()
    await workspace.append_file("a", b"three\n")
    await workspace.append_file("b", b"two\n")
    await workspace.write_file("c", b"ours")
    assert [event.is_foreign for event in heard.events] == [True, False] * 3
    assert heard.files() == [
        ("updated", "a", 8, 4, 4),
        ("updated", "a", 14, 8, 6),
        ("updated", "b", 4, 0, 0),
        ("updated", "b", 8, 4, 4),
        ("created", "c", 6, 0, 6),
        ("updated", "c", 4, 0, -2),
    ]
    assert await workspace.read_file("a") == b"one\ntwo\nthree\n"


async def test_a_file_whose_bytes_are_not_kept_tells_an_append_from_a_rewrite(
    workspace: Workspace, place: SessionPlace, heard: Heard
) -> None:
    files = place.files(session_id("s"))
    size = len(BIG)
    await workspace.write_file("big", BIG)
    await workspace.append_file("big", b"1")
    await workspace.write_file("big", BIG + b"12")
    await files.write("big", BIG + b"123")
    await workspace.changes()
    await files.write("big", b"X" + BIG[1:] + b"1234")
    await workspace.changes()
    assert heard.files() == [
        ("created", "big", size, 0, size),
        ("updated", "big", size + 1, size, 1),
        ("updated", "big", size + 2, size + 1, 1),
        ("updated", "big", size + 3, size + 2, 1),
        ("updated", "big", size + 4, 0, 1),
    ]


async def test_a_recalled_session_knows_what_was_there(place: SessionPlace, heard: Heard) -> None:
    async with Workspace.create(place, "s") as first:
        await first.write_file("log", b"one\n")
        await first.write_file("big", b"x" * 100)
    options = WorkspaceOptions(subscriber=heard, sum_bytes=2000)
    async with Workspace.recall(place, "s", options=options) as second:
        heard.events.clear()
        await second.append_file("log", b"two\n")
        await place.files(session_id("s")).append("big", b"y")
        await second.changes()
        assert heard.files() == [("updated", "log", 8, 4, 4), ("updated", "big", 101, 100, 1)]


async def test_a_file_that_was_never_read_shows_its_first_change_by_others_as_a_rewrite(heard: Heard) -> None:
    place = MemoryPlace()
    place.disk.put("s", "log", b"one\n")
    options = WorkspaceOptions(subscriber=heard, sum_bytes=0)
    async with Workspace.open(place, "s", options=options) as workspace:
        heard.events.clear()
        place.disk.put("s", "log", b"one\ntwo\n")
        await workspace.changes()
        place.disk.put("s", "log", b"one\ntwo\nthree\n")
        await workspace.changes()
        assert heard.files() == [("updated", "log", 8, 0, 4), ("updated", "log", 14, 8, 6)]


async def test_a_file_that_changes_while_it_is_read_is_looked_at_again(heard: Heard) -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        heard.events.clear()
        place.disk.put("s", "f", b"one")

        def meanwhile(name: str, path: str) -> None:
            if (name, path) == ("read", "f"):
                place.before = lambda _name, _path: None
                place.disk.put("s", "f", b"two!")

        place.before = meanwhile
        await workspace.changes()
        await workspace.changes()
        # First as long as it was when it was described, then as it is.
        assert heard.files() == [("created", "f", 3, 0, 3), ("updated", "f", 4, 3, 1)]


async def test_an_append_on_which_others_get_in_each_time_arrives_all_the_same(heard: Heard) -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        await workspace.write_file("log", b"")
        heard.events.clear()

        def meanwhile(name: str, path: str) -> None:
            if (name, path) == ("append", "log"):
                place.disk.put("s", "log", place.disk.bodies("s")["log"] + b"theirs\n")

        place.before = meanwhile
        await workspace.append_file("log", b"ours\n")
        place.before = lambda _name, _path: None
        body = place.disk.bodies("s")["log"]
        assert body.count(b"ours\n") == 1
        length = 0
        for kind, _, size, offset, added in heard.files():
            assert (kind, offset, offset + added) == ("updated", length, size)
            length = size
        assert length == len(body)


async def test_a_subscriber_that_raises_fails_no_write_and_what_it_missed_is_kept(
    place: SessionPlace,
) -> None:
    told: list[str] = []

    def fail(event: object) -> None:
        told.append(str(event))
        raise ValueError("no")

    async with Workspace.create(place, "s", options=WorkspaceOptions(subscriber=fail)) as workspace:
        await workspace.write_file("a", b"1")
        assert await workspace.read_file("a") == b"1"
        assert len(told) == 1
        assert [event.path for event in (await workspace.changes()).events if event.path == "a"] == ["a"]


async def test_a_bad_path_or_no_bytes_changes_nothing_and_tells_nothing(
    workspace: Workspace, place: SessionPlace, heard: Heard
) -> None:
    before = await place.files(session_id("s")).list()
    for path in ("", "/a", "a/../b", "a//b", ".sessionfs/x", "a\\b"):
        with pytest.raises(InvalidRequestError):
            await workspace.write_file(path, b"")
        with pytest.raises(InvalidRequestError):
            await workspace.append_file(path, b"")
        with pytest.raises(InvalidRequestError):
            await workspace.rename_file("a", path)
    with pytest.raises(InvalidRequestError, match="str"):
        await workspace.write_file("a", "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError):
        await workspace.read_file("a", -1)
    with pytest.raises(InvalidRequestError):
        await workspace.changes(-1)
    with pytest.raises(NotFoundError):
        await workspace.rename_file("a", "b")
    with pytest.raises(NotFoundError):
        await workspace.read_file("a")
    await workspace.remove_file("a")
    assert await place.files(session_id("s")).list() == before
    assert heard.events == []


async def test_files_are_listed_below_a_directory_and_asked_for(workspace: Workspace) -> None:
    for path in ("d/b", "d/a", "da", "e"):
        await workspace.write_file(path, path.encode())
    assert await workspace.list_files("d") == ["d/a", "d/b"]
    assert await workspace.list_files("nowhere") == []
    assert set(await workspace.list_files()) >= {"d/a", "d/b", "da", "e"}
    assert (await workspace.file_exists("e"), await workspace.file_exists("d")) == (True, False)
    assert await workspace.read_file("d/a", 1, 2) == b"/"
    assert (await workspace.stat_file("da")).size_bytes == 2
