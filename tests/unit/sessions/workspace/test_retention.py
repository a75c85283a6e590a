"""What this host keeps of sessions that ended leaves after an age; nothing else ever does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionfs.model.errors import (
    InvalidRequestError,
    LocalDiskError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.workspace.options import WorkspaceOptions, age_seconds
from sessionfs.sessions.workspace.retention import remove_expired
from sessionfs.sessions.workspace.workspace import Workspace

from .world import HandClock, MemoryPlace

DAY_SECONDS = 86_400


def units(root: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith("."))


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("5m", 300), ("1s", 1), ("2w", 1_209_600)]
)
def test_an_age_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert age_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "d", "0d", "-1d", "1.5h", "30 d", "30d ", "30D", "1d12h", "٣d", "9" * 10 + "d"]
)
async def test_anything_else_is_no_age_and_removes_nothing(text: str, tmp_path: Path) -> None:
    clock = HandClock()
    async with Workspace.open(
        MemoryPlace(), "s", options=WorkspaceOptions(local_directory=str(tmp_path), clock=clock)
    ):
        pass
    clock.seconds += 1000 * DAY_SECONDS
    with pytest.raises(InvalidRequestError):
        await remove_expired(str(tmp_path), text, clock)
    assert units(tmp_path) == ["s"]


async def test_what_is_kept_of_a_session_that_ended_leaves_after_its_age_and_the_place_keeps_all(
    tmp_path: Path,
) -> None:
    place, clock = MemoryPlace(), HandClock()
    options = WorkspaceOptions(local_directory=str(tmp_path), clock=clock)
    async with Workspace.open(place, "old", options=options) as workspace:
        put = await workspace.blobs().put(b"x")
    async with Workspace.shared(place, "plugins/p", options=options) as root:
        await root.write_file("a", b"1")
    clock.seconds += DAY_SECONDS
    async with Workspace.open(place, "young", options=options):
        pass
    before = {session: place.disk.bodies(session) for session in place.disk.files}
    # A clean end leaves the copies where they are.
    assert units(tmp_path) == ["%plugins%p", "old", "young"]
    asked: list[str] = []
    place.before = lambda name, _path: asked.append(name)
    clock.seconds += DAY_SECONDS
    assert await remove_expired(str(tmp_path), "3d", clock) == []
    assert await remove_expired(str(tmp_path), "36h", clock) == ["%plugins%p", "old"]
    assert (units(tmp_path), asked) == (["young"], [])
    assert {session: place.disk.bodies(session) for session in place.disk.files} == before
    place.before = lambda _name, _path: None
    async with Workspace.recall(place, "old", options=options) as again:
        assert await again.blobs().get(put.sha256) == b"x"


async def test_a_session_that_is_open_abandoned_owed_or_that_did_not_end_is_kept_whatever_its_age(
    tmp_path: Path,
) -> None:
    place, clock = MemoryPlace(), HandClock()
    options = WorkspaceOptions(local_directory=str(tmp_path), clock=clock)
    async with Workspace.open(place, "abandoned", options=options) as workspace:
        await workspace.abandon()
    async with Workspace.open(place, "ended and abandoned", options=options):
        pass
    async with Workspace.open(place, "ended and abandoned", options=options) as workspace:
        await workspace.abandon()
    async with Workspace.open(place, "owed", options=options):
        pass
    async with Workspace.open(place, "again", options=options):
        pass
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "ended.json").write_bytes(b"{")
    async with Workspace.open(place, "again", options=options):
        clock.seconds += 1000 * DAY_SECONDS
        owed = await remove_expired(str(tmp_path), "1d", clock, is_owed=lambda unit: unit == "owed")
        assert owed == []
    assert units(tmp_path) == ["abandoned", "again", "damaged", "ended and abandoned", "owed"]
    assert await remove_expired(str(tmp_path), "1d", clock) == ["owed"]


async def test_the_working_copy_goes_first_and_one_that_stays_keeps_the_rest(tmp_path: Path) -> None:
    clock = HandClock()
    options = WorkspaceOptions(local_directory=str(tmp_path), clock=clock)
    async with Workspace.open(MemoryPlace(), "s", options=options):
        pass
    clock.seconds += DAY_SECONDS

    def refuse(unit: SessionId) -> None:
        raise OSError(f"{unit} is busy")

    with pytest.raises(LocalDiskError, match="s is busy"):
        await remove_expired(str(tmp_path), "1h", clock, remove_working_copy=refuse)
    assert units(tmp_path) == ["s"]
    removed: list[SessionId] = []
    assert await remove_expired(str(tmp_path), "1h", clock, remove_working_copy=removed.append) == ["s"]
    assert removed == ["s"]


async def test_a_directory_that_does_not_exist_and_what_is_no_session_are_passed_over(tmp_path: Path) -> None:
    clock = HandClock()
    assert await remove_expired(str(tmp_path / "nowhere"), "1d", clock) == []
    (tmp_path / "%nothing").mkdir()
    (tmp_path / "file").write_bytes(b"")
    assert await remove_expired(str(tmp_path), "1d", clock) == []
    assert units(tmp_path) == ["%nothing", "file"]


@pytest.mark.parametrize("when", ["claim", "establish"])
async def test_an_opening_that_is_refused_leaves_the_age_of_the_session_as_it_was(
    tmp_path: Path, when: str
) -> None:
    place, clock = MemoryPlace(), HandClock()
    options = WorkspaceOptions(local_directory=str(tmp_path), clock=clock)
    async with Workspace.open(place, "s", options=options):
        pass
    clock.seconds += DAY_SECONDS
    marks: list[bool] = []

    def refuse(name: str, _path: str) -> None:
        if name == "claim" and when == "claim":
            raise SessionAlreadyOwnedError("it is owned", holder="other")
        if name == "write":
            marks.append((tmp_path / "s" / "ended.json").exists())
            raise UnavailableError("503")

    place.before = refuse
    with pytest.raises((SessionAlreadyOwnedError, UnavailableError)):
        async with Workspace.recall(place, "s", options=options):
            pass
    assert marks == ([] if when == "claim" else [False])
    assert await remove_expired(str(tmp_path), "1h", clock) == ["s"]
