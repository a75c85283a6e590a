"""A place that does not answer: one event when it begins, one when it ends, and what either policy does meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import AccessError, OutcomeUnknownError, UnavailableError
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore

from .world import HandClock, Heard, MemoryPlace

DOWN_AND_UP = ["degraded", "recovered"]


async def test_an_outage_is_one_event_and_its_end_is_another_each_time(heard: Heard) -> None:
    place, clock = MemoryPlace(), HandClock()
    async with Workspace.open(
        place, "s", options=WorkspaceOptions(subscriber=heard, clock=clock)
    ) as workspace:
        for outage in (1, 2):
            place.is_down = True
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await workspace.write_file("a", b"1")
                with pytest.raises(UnavailableError):
                    await workspace.list_files()
            assert workspace.degraded_reason == "the place does not answer"
            clock.seconds += 2.5
            place.is_down = False
            await workspace.write_file("a", b"2")
            await workspace.write_file("a", b"3")
            assert workspace.degraded_reason == ""
            assert heard.names("session.storage.") == DOWN_AND_UP * outage
        ends = [event.details for event in heard.events if event.name == "session.storage.recovered"]
        assert ends == [{"seconds": 2.5}] * 2


async def test_under_degrade_each_write_tries_and_the_first_that_arrives_ends_the_outage(
    heard: Heard,
) -> None:
    place = MemoryPlace()
    async with Workspace.open(
        place, "s", options=WorkspaceOptions(subscriber=heard, clock=HandClock())
    ) as workspace:
        place.is_down = True
        with pytest.raises(UnavailableError):
            await workspace.write_file("a", b"1")
        place.is_down = False
        await workspace.write_file("a", b"1")
        assert heard.names("session.storage.") == DOWN_AND_UP


async def test_under_strict_writes_are_refused_until_the_place_answers_a_question(heard: Heard) -> None:
    place, clock = MemoryPlace(), HandClock()
    options = WorkspaceOptions(policy="strict", subscriber=heard, clock=clock, probe_seconds=5)
    async with Workspace.open(place, "s", options=options) as workspace:
        await workspace.write_file("a", b"1")
        place.is_down = True
        with pytest.raises(UnavailableError):
            await workspace.write_file("a", b"2")
        asked: list[str] = []
        place.before = lambda name, _path: asked.append(name)
        place.is_down = False
        before = place.disk.bodies("s")
        changes: list[Callable[[], Awaitable[object]]] = [
            lambda: workspace.write_file("a", b"3"), lambda: workspace.append_file("a", b"3"),
            lambda: workspace.remove_file("a"), lambda: workspace.rename_file("a", "b"),
            lambda: workspace.journal().append({"a": 1}) , lambda: workspace.update_metadata(profile="x"),
        ]  # fmt: skip
        for change in changes[:4]:
            with pytest.raises(UnavailableError, match="refused while"):
                await change()
        assert (place.disk.bodies("s"), asked) == (before, [])
        clock.seconds += 5
        await workspace.write_file("a", b"3")
        assert place.disk.bodies("s")["a"] == b"3"
        assert asked[0] == "stat"
        for change in changes[4:]:
            await change()
        assert heard.names("session.storage.") == DOWN_AND_UP


async def test_under_strict_a_question_without_an_answer_keeps_writes_refused(heard: Heard) -> None:
    place, clock = MemoryPlace(), HandClock()
    options = WorkspaceOptions(policy="strict", subscriber=heard, clock=clock, probe_seconds=1)
    async with Workspace.open(place, "s", options=options) as workspace:
        place.is_down = True
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await workspace.write_file("a", b"1")
            clock.seconds += 1
        assert heard.names("session.storage.") == ["degraded"]
        place.is_down = False
        # A read that is answered opens the gate as well.
        assert await workspace.list_files() == ["metadata/session.json"]
        await workspace.write_file("a", b"1")
        assert heard.names("session.storage.") == DOWN_AND_UP


async def test_a_blob_that_cannot_be_pushed_fails_alone_and_closes_no_gate(heard: Heard) -> None:
    place = MemoryPlace()
    options = WorkspaceOptions(policy="strict", subscriber=heard, clock=HandClock())
    async with Workspace.open(place, "s", options=options) as workspace:

        def down_for_blobs(_name: str, path: str) -> None:
            place.is_down = path.startswith("blobs/")

        place.before = down_for_blobs
        with pytest.raises(UnavailableError):
            await workspace.blobs().put(b"x")
        await workspace.write_file("a", b"1")
        place.before, place.is_down = lambda _name, _path: None, False
        assert (await workspace.blobs().put(b"x")).is_new
        assert heard.names("session.storage.") == []
        assert not workspace.is_closed


async def test_under_strict_a_blob_is_sent_while_other_writes_are_refused(heard: Heard) -> None:
    place = MemoryPlace()
    options = WorkspaceOptions(policy="strict", subscriber=heard, clock=HandClock(), probe_seconds=60)
    async with Workspace.open(place, "s", options=options) as workspace:
        place.is_down = True
        with pytest.raises(UnavailableError):
            await workspace.write_file("a", b"1")
        place.is_down = False
        await workspace.blobs().put(b"x")
        # It was answered: that ends the outage.
        await workspace.write_file("a", b"1")
        assert heard.names("session.storage.") == DOWN_AND_UP


async def test_a_place_that_says_that_nothing_reaches_the_bucket_is_degraded_while_it_takes_writes(
    heard: Heard,
) -> None:
    place, clock = MemoryPlace(), HandClock()
    options = WorkspaceOptions(policy="strict", subscriber=heard, clock=clock)
    async with Workspace.open(place, "s", options=options) as workspace:
        place.trouble = "503"
        await workspace.write_file("a", b"1")
        assert workspace.degraded_reason == "503"
        clock.seconds += 10
        with pytest.raises(UnavailableError, match="503"):
            await workspace.write_file("a", b"2")
        place.trouble = ""
        clock.seconds += 10
        await workspace.write_file("a", b"2")
        assert heard.names("session.storage.") == DOWN_AND_UP


async def test_a_bucket_that_does_not_answer_degrades(heard: Heard) -> None:
    store = FaultyStore(MemoryStore())
    async with (
        open_object_place(store, SystemClock()) as place,
        Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace,
    ):
        store.plan("put", FailBefore(UnavailableError("503")))
        with pytest.raises(UnavailableError):
            await workspace.write_file("a", b"2")
        assert heard.names("session.storage.") == ["degraded"]
        await workspace.write_file("a", b"2")
        assert heard.names("session.storage.") == DOWN_AND_UP
        store.assert_all_used()


async def test_an_answer_that_was_lost_degrades_and_what_arrived_is_announced_later(heard: Heard) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        heard.events.clear()

        def lose(name: str, path: str) -> None:
            if (name, path) == ("append", "log"):
                place.disk.put("s", "log", b"one\n")
                raise OutcomeUnknownError("cut off")

        place.before = lose
        with pytest.raises(OutcomeUnknownError):
            await workspace.append_file("log", b"one\n")
        place.before = lambda _name, _path: None
        assert heard.names() == ["storage.degraded"]
        await workspace.append_file("log", b"two\n")
        assert heard.names() == ["storage.degraded", "storage.recovered", "file.created", "file.updated"]
        assert heard.files() == [("created", "log", 4, 0, 4), ("updated", "log", 8, 4, 4)]


async def test_a_request_without_credentials_is_no_answer_of_the_place(heard: Heard) -> None:
    place = MemoryPlace()
    options = WorkspaceOptions(policy="strict", subscriber=heard, probe_seconds=0)

    def refuse(_name: str, _path: str) -> None:
        raise AccessError("the token is expired")

    async with Workspace.open(place, "s", options=options) as workspace:
        place.before = refuse
        with pytest.raises(AccessError):
            await workspace.read_file("a")
        assert heard.names("session.storage.") == []
        place.before, place.is_down = lambda _name, _path: None, True
        with pytest.raises(UnavailableError):
            await workspace.read_file("a")
        place.before, place.is_down = refuse, False
        for _ in range(2):
            with pytest.raises(AccessError):
                await workspace.write_file("a", b"1")
        assert workspace.degraded_reason
        place.before = lambda _name, _path: None
        await workspace.write_file("a", b"1")
        assert heard.names("session.storage.") == DOWN_AND_UP
