"""A file that cannot be read bars nothing but its own reading: it is told as a rewrite."""

from __future__ import annotations

import errno

import pytest

from sessionfs.model.errors import (
    AccessError,
    CorruptDataError,
    LocalDiskError,
    UnavailableError,
)
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Heard, MemoryPlace

PROBLEMS = [
    CorruptDataError("its bytes do not verify"),
    AccessError("403"),
    LocalDiskError("bad sector", errno_number=errno.EIO),
    OSError(errno.EIO, "bad sector"),
]
OTHERS = [
    UnavailableError("503"),
    LocalDiskError("full", errno_number=errno.ENOSPC),
    OSError(errno.ENOTCONN, "the mount is gone"),
]


def spoil(place: MemoryPlace, problem: Exception, requests: tuple[str, ...] = ("read",)) -> None:
    """Let requests about one file fail."""

    def before(name: str, path: str) -> None:
        if name in requests and path == "bad":
            raise problem

    place.before = before


@pytest.mark.parametrize("problem", PROBLEMS)
async def test_a_session_with_a_file_that_cannot_be_read_is_recalled(
    problem: Exception, heard: Heard
) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.write_file("bad", b"x")
        await workspace.write_file("good", b"y")
    spoil(place, problem)
    async with Workspace.recall(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        assert await workspace.read_file("good") == b"y"
        with pytest.raises(type(problem)):
            await workspace.read_file("bad")
        heard.events.clear()
        place.before = lambda _name, _path: None
        place.disk.put("s", "bad", b"xx")
        await workspace.changes()
        assert heard.files() == [("updated", "bad", 2, 0, 1)]


@pytest.mark.parametrize("problem", PROBLEMS)
async def test_a_file_that_others_made_and_that_cannot_be_read_is_told_once_and_bars_no_end(
    problem: Exception, heard: Heard
) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        await workspace.write_file("known", b"abc")
        heard.events.clear()
        place.disk.put("s", "bad", b"12")
        place.disk.put("s", "theirs", b"3")
        spoil(place, problem)
        for _ in range(2):
            await workspace.changes()
        assert heard.files() == [("created", "bad", 2, 0, 2), ("created", "theirs", 1, 0, 1)]
        place.disk.put("s", "bad", b"123")
        await workspace.close()
        assert heard.files()[0] == ("updated", "bad", 3, 0, 1)
    assert place.disk.owners == {}


async def test_a_file_that_may_not_even_be_looked_at_is_told_as_it_is_listed(heard: Heard) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        heard.events.clear()
        place.disk.put("s", "bad", b"12")
        spoil(place, AccessError("403"), ("read", "stat"))
        await workspace.changes()
        assert heard.files() == [("created", "bad", 2, 0, 2)]
        with pytest.raises(AccessError):
            await workspace.write_file("bad", b"1")


async def test_two_files_that_cannot_be_read_are_no_rename_of_each_other(heard: Heard) -> None:
    place = MemoryPlace()

    def refuse(name: str, _path: str) -> None:
        if name == "read":
            raise PROBLEMS[0]

    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        place.disk.put("s", "old", b"12")
        place.before = refuse
        await workspace.changes()
        heard.events.clear()
        place.disk.remove("s", "old")
        place.disk.put("s", "new", b"34")
        await workspace.changes()
        assert sorted(heard.files()) == [("created", "new", 2, 0, 2), ("deleted", "old", 0, 0, -2)]
        place.before = lambda _name, _path: None


async def test_a_damaged_file_is_written_again() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        place.disk.put("s", "bad", b"12")
        spoil(place, PROBLEMS[0])
        await workspace.write_file("bad", b"good")
        assert place.disk.bodies("s")["bad"] == b"good"


@pytest.mark.parametrize("problem", OTHERS)
async def test_what_is_not_of_one_file_is_an_error_as_before(problem: Exception, heard: Heard) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        heard.events.clear()
        place.disk.put("s", "bad", b"12")
        spoil(place, problem)
        with pytest.raises(type(problem)):
            await workspace.changes()
        assert heard.files() == []
        place.before = lambda _name, _path: None
        await workspace.changes()
        assert heard.files() == [("created", "bad", 2, 0, 2)]
