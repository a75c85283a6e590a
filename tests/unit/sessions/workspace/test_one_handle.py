"""One open handle on a session in a program; and an end that waits for what is under way, and lets nothing in behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from sessionfs.model.errors import (
    AlreadyExistsError,
    HandleClosedError,
    InvalidRequestError,
    LocalDiskError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId, session_id
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Heard, MemoryPlace


class SlowPlace(MemoryPlace):
    """Holds up one request until the test lets it go.

    Attributes:
        held: Name and path of the request.
        reached: It came.
        gate: Lets it go.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = ("", "")
        self.reached = trio.Event()
        self.gate = trio.Event()

    async def asked(self, name: str, path: str = "") -> None:
        await super().asked(name, path)
        if (name, path) == self.held:
            self.reached.set()
            await self.gate.wait()


@asynccontextmanager
async def under_way(
    place: SlowPlace, request: tuple[str, str], change: Callable[[], Awaitable[object]]
) -> AsyncIterator[list[object]]:
    """Have a change under way whose request is held up; gives what it gave once it has ended."""
    gave: list[object] = []

    async def run() -> None:
        gave.append(await change())

    place.held = request
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await place.reached.wait()
            yield gave
            place.gate.set()


async def test_a_second_handle_on_a_session_is_refused_and_the_first_goes_on(place: SessionPlace) -> None:
    async with Workspace.open(place, "s") as first:
        with pytest.raises(SessionAlreadyOwnedError, match="open in this program"):
            async with Workspace.open(place, "s"):
                pass
        await first.write_file("a", b"1")
        assert place.owns(session_id("s"))
        async with Workspace.shared(place, "plugins/p"), Workspace.open(place, "t"):
            with pytest.raises(SessionAlreadyOwnedError):
                async with Workspace.shared(place, "plugins/p"):
                    pass
        await first.close()
        async with Workspace.open(place, "s") as second:
            await second.abandon()
            async with Workspace.open(place, "s") as third:
                assert await third.read_file("a") == b"1"


async def test_a_handle_whose_begin_or_end_failed_is_in_nobodys_way(tmp_path: Path) -> None:
    place = MemoryPlace()
    for request in ("claim", "list", "write"):
        place.before = lambda name, _path, request=request: setattr(place, "is_down", name == request)  # type: ignore[misc]
        with pytest.raises(UnavailableError):
            async with Workspace.open(place, "s"):
                pass
    place.before, place.is_down = lambda _name, _path: None, False
    with pytest.raises(UnavailableError):
        async with Workspace.open(place, "s"):
            place.is_down = True
    place.is_down = False
    kept = WorkspaceOptions(local_directory=str(tmp_path))
    for leave in (Workspace.close, Workspace.abandon):

        async def spoil_the_disk_and(leave: Callable[[Workspace], Awaitable[None]] = leave) -> None:
            async with Workspace.open(place, "s", options=kept) as workspace:
                (tmp_path / "s" / "events.json").unlink()
                (tmp_path / "s" / "events.json").mkdir()
                await leave(workspace)

        with pytest.raises(LocalDiskError):
            await spoil_the_disk_and()
        (tmp_path / "s" / "events.json").rmdir()
    async with Workspace.open(place, "s"):
        pass


CHANGES: list[tuple[tuple[str, str], Callable[[Workspace], Awaitable[object]]]] = [
    (("write", "f"), lambda workspace: workspace.write_file("f", b"late")),
    (("append", "f"), lambda workspace: workspace.append_file("f", b"late")),
    (("sync", "journal/active.jsonl"), lambda workspace: workspace.journal().append({"n": 1})),
    (("write", "metadata/session.json"), lambda workspace: workspace.record_turn()),
    (("commit", "s"), lambda workspace: workspace.snapshot()),
]


@pytest.mark.parametrize(("request_", "change"), CHANGES)
async def test_a_close_waits_for_what_is_under_way_and_lets_nothing_in_behind_it(
    request_: tuple[str, str], change: Callable[[Workspace], Awaitable[object]]
) -> None:
    place = SlowPlace()
    async with (
        Workspace.open(place, "s") as workspace,
        trio.open_nursery() as nursery,
        under_way(place, request_, lambda: change(workspace)) as gave,
    ):
        nursery.start_soon(workspace.close)
        await trio.testing.wait_all_tasks_blocked()
        assert place.owns(session_id("s"))
        assert not workspace.is_closed
        new: list[Callable[[], Awaitable[object]]] = [
            lambda: workspace.write_file("g", b""), lambda: workspace.blobs().put(b"x"),
            lambda: workspace.journal().append({}), workspace.snapshot, workspace.record_turn,
        ]  # fmt: skip
        for begun in new:
            with pytest.raises(HandleClosedError, match="being closed"):
                await begun()
        assert gave == []
    assert len(gave) == 1
    assert (workspace.is_closed, place.disk.owners) == (True, {})
    assert place.disk.generations[-1][2] == place.disk.bodies("s")


async def test_all_parts_of_a_change_that_is_under_way_are_done_before_the_end() -> None:
    place = SlowPlace()
    async with Workspace.open(place, "s") as workspace, trio.open_nursery() as nursery:
        path = "blobs/2d/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
        async with under_way(place, ("write", f"{path}.bin"), lambda: workspace.blobs().put(b"x")):
            nursery.start_soon(workspace.close)
            await trio.testing.wait_all_tasks_blocked()
    assert {f"{path}.bin", f"{path}.meta"} <= set(place.disk.generations[-1][2])


async def test_a_close_that_failed_takes_changes_again() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        place.is_down = True
        with pytest.raises(UnavailableError):
            await workspace.close()
        place.is_down = False
        await workspace.write_file("a", b"1")
        await workspace.close()
        assert place.disk.generations[-1][2]["a"] == b"1"


async def test_abandon_ends_a_close_that_waits() -> None:
    place = SlowPlace()
    async with (
        Workspace.open(place, "s") as workspace,
        under_way(place, ("write", "f"), lambda: workspace.write_file("f", b"late")),
        trio.open_nursery() as nursery,
    ):

        async def close() -> None:
            with pytest.raises(HandleClosedError):
                await workspace.close()

        nursery.start_soon(close)
        await trio.testing.wait_all_tasks_blocked()
        await workspace.abandon()
    assert place.disk.generations == []
    async with Workspace.open(place, "s"):
        pass


async def test_a_publication_has_what_was_under_way_and_nothing_comes_after_it() -> None:
    place = SlowPlace()
    published: list[int | None] = []
    async with Workspace.shared(place, "eval/run") as run, trio.open_nursery() as nursery:

        async def publish() -> None:
            published.append(await run.publish())

        async with under_way(place, ("write", "f"), lambda: run.write_file("f", b"late")):
            nursery.start_soon(publish)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(AlreadyExistsError, match="being published"):
                await run.write_file("g", b"")
    assert published == [1]
    assert sorted(place.disk.generations[0][2]) == ["f", "published.json"]
    assert place.disk.generations[0][2] == place.disk.bodies("%eval%run")


class RefusingPlace(MemoryPlace):
    """Makes generations, but the store refuses them."""

    async def commit(self, session: SessionId, trigger: str) -> int:
        del session, trigger
        raise InvalidRequestError("the put was refused: 400 EntityTooLarge")


async def test_a_generation_that_the_store_refuses_is_no_place_without_generations(heard: Heard) -> None:
    place = RefusingPlace()
    with pytest.raises(InvalidRequestError, match="EntityTooLarge"):
        async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)):
            pass
    assert place.owns(session_id("s"))
    (told,) = [event.details for event in heard.events if event.name == "session.snapshot.result"]
    assert (told["ok"], "EntityTooLarge" in str(told["problem"])) == (False, True)

    async def publish() -> None:
        async with Workspace.shared(place, "eval/run") as run:
            try:
                await run.publish()
            finally:
                await run.abandon()

    with pytest.raises(InvalidRequestError, match="EntityTooLarge"):
        await publish()


async def test_a_look_that_the_close_overtakes_ends_the_watching_quietly() -> None:
    place = SlowPlace()
    async with Workspace.open(place, "s") as workspace:
        place.held = ("stat", "theirs")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workspace.watch, 0.001)
            place.disk.put("s", "theirs", b"1")
            with trio.fail_after(10):
                await place.reached.wait()
            await workspace.abandon()
            place.gate.set()
