"""Events are numbered and kept, also across restarts, and nothing that happened meanwhile gets by."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from sessionfs.model.errors import LocalDiskError, StateLockedError
from sessionfs.sessions.workspace.observation import event_history
from sessionfs.sessions.workspace.observation.events import WorkspaceEvent
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import HandClock, Heard, Killed, MemoryPlace


def kept_here(directory: Path, heard: Heard | None = None, *, event_limit: int = 1000) -> WorkspaceOptions:
    return WorkspaceOptions(
        local_directory=str(directory), subscriber=heard, event_limit=event_limit, clock=HandClock()
    )


async def test_what_others_did_while_no_workspace_was_open_is_told_exactly_at_the_next(
    tmp_path: Path, heard: Heard
) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=kept_here(tmp_path)) as first:
        await first.write_file("log", b"one\n")
        await first.append_file("log", b"two\n")
        await first.write_file("gone", b"1")
        last = (await first.changes()).last
    place.disk.put("s", "log", b"one\ntwo\nthree\n")
    place.disk.put("s", "fresh", b"12")
    place.disk.remove("s", "gone")
    async with Workspace.open(place, "s", options=kept_here(tmp_path, heard)) as second:
        foreign = [
            (event.name, event.path, event.offset, event.bytes_added)
            for event in heard.events
            if event.is_foreign
        ]
        assert sorted(foreign) == [
            ("session.file.created", "fresh", 0, 2),
            ("session.file.deleted", "gone", 0, -1),
            ("session.file.updated", "log", 8, 6),
        ]
        changes = await second.changes(last)
        assert changes.is_complete
        assert [event for event in changes.events if event.is_foreign] == [
            event for event in heard.events if event.is_foreign
        ]
        everything = (await second.changes()).events
        assert [event.path for event in everything if event.name == "session.file.created"][:2] == [
            "metadata/session.json",
            "log",
        ]
        # An append goes on without reading the file again.
        heard.events.clear()
        reads: list[str] = []
        place.before = lambda name, path: reads.append(path) if name == "read" else None
        await second.append_file("log", b"four\n")
        assert (heard.files(), reads) == ([("updated", "log", 19, 14, 5)], [])


async def run_until_killed(
    place: MemoryPlace, directory: Path, heard: Heard, write: Callable[[Workspace], Awaitable[object]]
) -> None:
    """Write until the process dies; what it kept is as it was at its last request, as after a power cut."""
    file = directory / "s" / "events.json"
    kept = b""

    def look(_name: str, _path: str) -> None:
        nonlocal kept
        kept = file.read_bytes() if file.exists() else b""

    async def run() -> None:
        async with Workspace.open(place, "s", options=kept_here(directory, heard)) as workspace:
            while True:
                await write(workspace)

    place.before = look
    with pytest.raises(Killed):
        await run()
    file.write_bytes(kept)
    place.disk.owners.clear()


async def test_after_a_crash_no_number_is_given_twice_and_every_change_is_found(
    tmp_path: Path, heard: Heard
) -> None:
    place, first_heard, numbers = MemoryPlace(), Heard(), itertools.count()
    place.kill_at, place.is_after = 6, True

    async def write(workspace: Workspace) -> None:
        await workspace.write_file(f"f{next(numbers)}", b"x")

    await run_until_killed(place, tmp_path, first_heard, write)
    last = max(event.number for event in first_heard.events)
    files = set(place.disk.bodies("s")) - {"metadata/session.json"}
    assert files == {f"f{number}" for number in range(5)}
    async with Workspace.open(MemoryPlace(place.disk), "s", options=kept_here(tmp_path, heard)) as again:
        assert min(event.number for event in heard.events) > last
        # What was announced before the crash may be announced again; what was not, is.
        assert {event.path for event in heard.events} >= files
        changes = await again.changes(last)
        assert changes.is_complete
        assert {event.path for event in changes.events} >= files


async def test_so_many_events_are_kept_and_who_asks_for_older_ones_is_told(tmp_path: Path) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=kept_here(tmp_path, event_limit=5)) as workspace:
        last = (await workspace.changes()).last
        for number in range(5):
            await workspace.write_file(f"f{number}", b"")
        kept = await workspace.changes(last)
        assert (kept.is_complete, len(kept.events)) == (True, 5)
        await workspace.write_file("one more", b"")
        late = await workspace.changes(last)
        assert (late.is_complete, len(late.events)) == (False, 5)
        assert not (await workspace.changes(late.last + 1)).is_complete
        caught_up = await workspace.changes(late.last)
        assert (caught_up.is_complete, caught_up.events, caught_up.last) == (True, (), late.last)


async def test_numbers_are_reserved_again_before_they_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_history, "_RESERVED", 5)
    monkeypatch.setattr(event_history, "_NEARLY_USED", 2)
    place, first_heard, second_heard = MemoryPlace(), Heard(), Heard()
    place.kill_at = 30
    await run_until_killed(place, tmp_path, first_heard, lambda workspace: workspace.append_file("f", b"x"))
    options = kept_here(tmp_path, second_heard)
    async with Workspace.open(MemoryPlace(place.disk), "s", options=options):
        assert min(e.number for e in second_heard.events) > max(e.number for e in first_heard.events) >= 28


async def test_a_process_that_dies_before_it_kept_anything_gives_no_number_twice(tmp_path: Path) -> None:
    place, first_heard, second_heard = MemoryPlace(), Heard(), Heard()
    place.kill_at = 1
    with pytest.raises(Killed):
        async with Workspace.open(place, "s", options=kept_here(tmp_path, first_heard)):
            pass
    place.disk.owners.clear()
    assert not (tmp_path / "s" / "events.json").exists()
    async with Workspace.open(
        MemoryPlace(place.disk), "s", options=kept_here(tmp_path, second_heard)
    ) as again:
        assert min(e.number for e in second_heard.events) > max(e.number for e in first_heard.events)
        assert (await again.changes(second_heard.events[0].number - 1)).is_complete


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format":9}', b'{"format":1,"events":3}'])
async def test_a_history_that_cannot_be_read_is_begun_anew_with_other_numbers(
    tmp_path: Path, damage: bytes, heard: Heard
) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=kept_here(tmp_path)) as first:
        await first.write_file("a", b"1")
        last = (await first.changes()).last
    (tmp_path / "s" / "events.json").write_bytes(damage)
    async with Workspace.open(place, "s", options=kept_here(tmp_path, heard)) as second:
        assert min(event.number for event in heard.events) > last
        assert not (await second.changes(last)).is_complete


async def test_a_disk_that_refuses_is_named_and_nothing_stays_claimed(tmp_path: Path) -> None:
    place = MemoryPlace()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalDiskError, match="file"):
        async with Workspace.open(place, "s", options=kept_here(tmp_path / "file")):
            pass
    (tmp_path / "s" / "events.json").mkdir(parents=True)
    with pytest.raises(LocalDiskError, match=r"events\.json"):
        async with Workspace.open(place, "s", options=kept_here(tmp_path)):
            pass
    assert (place.disk.owners, place.changes) == ({}, 0)
    (tmp_path / "s" / "events.json").rmdir()
    async with Workspace.open(place, "s", options=kept_here(tmp_path)):
        pass


async def test_two_workspaces_do_not_share_a_local_directory_of_a_session(tmp_path: Path) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=kept_here(tmp_path)) as first:
        with pytest.raises(StateLockedError):
            async with Workspace.open(MemoryPlace(place.disk), "s", options=kept_here(tmp_path)):
                pass
        await first.write_file("a", b"1")
        assert place.disk.owners
    async with Workspace.open(place, "s", options=kept_here(tmp_path)):
        pass


async def test_numbers_are_reserved_while_many_changes_are_announced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_history, "_RESERVED", 20)
    monkeypatch.setattr(event_history, "_NEARLY_USED", 5)
    place, heard = MemoryPlace(), Heard()
    reserved_file = tmp_path / "s" / "events.json.reserved"
    short: list[int] = []

    def tell(event: WorkspaceEvent) -> None:
        heard(event)
        if event.number >= int(reserved_file.read_bytes()):
            short.append(event.number)

    options = WorkspaceOptions(local_directory=str(tmp_path), subscriber=tell)
    async with Workspace.open(place, "s", options=options) as workspace:
        for number in range(100):
            place.disk.put("s", f"d/{number}", b"%d" % number)
        await workspace.changes()
        for number in range(100):
            place.disk.remove("s", f"d/{number}")
        await workspace.changes()
    assert heard.names("session.file.").count("deleted") == 100
    assert short == []


async def test_tasks_that_reserve_at_once_do_it_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_history, "_RESERVED", 3)
    monkeypatch.setattr(event_history, "_NEARLY_USED", 2)
    async with Workspace.open(MemoryPlace(), "s", options=kept_here(tmp_path)) as workspace:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(workspace.write_file, f"f{number}", b"")
        last = (await workspace.changes()).last
        assert int((tmp_path / "s" / "events.json.reserved").read_bytes()) > last
