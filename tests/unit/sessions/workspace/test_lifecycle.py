"""How a workspace begins and ends: made, recalled, closed, failed, cancelled, abandoned."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AlreadyExistsError,
    HandleClosedError,
    InvalidRequestError,
    InvalidSessionIdError,
    NotFoundError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SettingsError,
    UnavailableError,
)
from sessionfs.model.names import SessionId, session_id
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import NewSession, Workspace

from .world import HandClock, Heard, Killed, MemoryFiles, MemoryPlace

CONFIG = bytes(range(256)) + b"\r\n {not: json}"


async def test_a_session_that_was_made_is_recalled_with_its_config_byte_by_byte(place: SessionPlace) -> None:
    new = NewSession(config=CONFIG, profile="coder", plugins=["p", "q"], labels={"team": "ü"})
    async with Workspace.create(place, "s", new=new) as made:
        assert (made.id, made.metadata.status, made.metadata.ended_at) == ("s", "active", None)
        await made.write_file("files/a", b"1")
        assert place.owns(session_id("s"))
    assert made.metadata.status == "ended"
    assert made.metadata.ended_at is not None
    assert not place.owns(session_id("s"))
    async with Workspace.recall(place, "s") as recalled:
        assert await recalled.config() == CONFIG
        assert (recalled.metadata.profile, recalled.metadata.plugins) == ("coder", ("p", "q"))
        assert (recalled.metadata.labels, recalled.metadata.status) == ({"team": "ü"}, "active")
        assert recalled.metadata.started_at == made.metadata.started_at
        assert recalled.metadata.ended_at is None
        assert await recalled.list_files("files") == ["files/a"]


async def test_open_makes_a_session_or_goes_on_with_it(place: SessionPlace) -> None:
    for config in (b"first", b"second"):
        async with Workspace.open(place, "s", new=NewSession(config=config)) as workspace:
            assert await workspace.config() == b"first"
    async with Workspace.open(place) as other:
        assert await other.config() is None
        assert other.id != "s"


async def test_a_session_that_is_there_is_not_made_again_and_one_that_is_not_is_not_recalled() -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s", new=NewSession(config=b"1")):
        pass
    before = dict(place.disk.files["s"])
    with pytest.raises(AlreadyExistsError, match="s already"):
        async with Workspace.create(place, "s", new=NewSession(config=b"2")):
            pass
    with pytest.raises(NotFoundError):
        async with Workspace.recall(place, "t"):
            pass
    assert place.disk.files["s"] == before
    assert place.disk.files.get("t", {}) == {}
    assert place.disk.owners == {}


async def test_bad_ids_options_and_beginnings_are_refused_and_nothing_is_changed() -> None:
    place = MemoryPlace()
    for bad in ("", "a/b", "..", "%eval%x", "x.owner"):
        with pytest.raises(InvalidSessionIdError):
            async with Workspace.open(place, bad):
                pass
    beginnings = [
        NewSession(labels={"a": 1}),  # type: ignore[dict-item]
        NewSession(plugins=[3]),  # type: ignore[list-item]
        NewSession(config="text"),  # type: ignore[arg-type]
    ]
    for new in beginnings:
        with pytest.raises(InvalidRequestError):
            async with Workspace.open(place, "s", new=new):
                pass
    options: list[dict[str, object]] = [
        {"policy": "hope"}, {"id_format": "uuid"}, {"journal_segment_bytes": 0}, {"event_limit": 0},
        {"blob_cache_bytes": -1}, {"probe_seconds": float("nan")},
    ]  # fmt: skip
    for option in options:
        with pytest.raises(SettingsError):
            WorkspaceOptions(**option)  # type: ignore[arg-type]
    assert (place.disk.files, place.disk.owners, place.changes) == ({}, {}, 0)


async def test_an_id_that_is_taken_is_passed_over_when_ids_are_made() -> None:
    class Repeating(HandClock):
        ids = iter(["0" * 31 + "1", "0" * 31 + "1", "0" * 31 + "1", "0" * 31 + "2"] + ["0" * 31 + "1"] * 100)

        def unique_id(self) -> str:
            return next(self.ids)

    place = MemoryPlace()
    options = WorkspaceOptions(clock=Repeating(), id_format="datetime_short", blob_cache_bytes=0)
    async with Workspace.open(place, options=options) as first:
        assert first.id == "270115-0816-0001"
    async with Workspace.open(place, options=options) as second:
        assert second.id == "270115-0816-0002"
    with pytest.raises(AlreadyExistsError, match="random_hex"):
        async with Workspace.open(place, options=options):
            pass


async def test_two_owners_are_never_there(place: SessionPlace) -> None:
    if not isinstance(place, MemoryPlace):
        async with Workspace.open(place, "s"), Workspace.open(place, "t"):
            assert place.owns(session_id("s"))
            assert place.owns(session_id("t"))
        return
    other = MemoryPlace(place.disk)
    async with Workspace.open(place, "s"):
        with pytest.raises(SessionAlreadyOwnedError):
            async with Workspace.open(other, "s"):
                pass
        assert place.owns(session_id("s"))
    async with Workspace.open(other, "s"):
        pass


async def test_a_place_that_does_not_answer_fails_the_open_under_both_policies_and_nothing_stays_claimed() -> (
    None
):
    for policy in ("degrade", "strict"):
        for request in ("read", "list", "claim", "write"):
            place = MemoryPlace()
            place.disk.put("s", "files/a", b"x")

            def down(name: str, _path: str, place: MemoryPlace = place, request: str = request) -> None:
                if name == request:
                    place.is_down = True
                elif name == "release":
                    place.is_down = False

            place.before = down
            with pytest.raises(UnavailableError):
                async with Workspace.open(place, "s", options=WorkspaceOptions(policy=policy)):
                    pass
            assert place.disk.owners == {}
            assert place.disk.bodies("s") == {"files/a": b"x"}


async def test_close_makes_the_last_generation_with_everything_in_it_and_may_be_repeated(
    heard: Heard,
) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        await workspace.write_file("files/a", b"1")
        assert await workspace.snapshot("turn 1") == 1
        place.disk.put("s", "files/b", b"through the mount")
        await workspace.close()
        await workspace.close()
        await workspace.abandon()
        assert workspace.is_closed
    assert [(session, trigger) for session, trigger, _ in place.disk.generations] == [
        ("s", "turn 1"),
        ("s", "close"),
    ]
    last = place.disk.generations[-1][2]
    assert (last["files/a"], last["files/b"]) == (b"1", b"through the mount")
    assert b'"status":"ended"' in last["metadata/session.json"]
    assert [event.path for event in heard.events if event.path == "files/b"] == ["files/b"]
    results = [event.details for event in heard.events if event.name == "session.snapshot.result"]
    assert [(one["trigger"], one["ok"], one["generation"]) for one in results] == [
        ("turn 1", True, 1),
        ("close", True, 2),
    ]
    assert heard.names("session.owner.") == ["acquired"]


async def test_a_place_without_generations_refuses_a_snapshot_and_is_closed_without(
    place: SessionPlace, heard: Heard
) -> None:
    if isinstance(place, MemoryPlace):
        return
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        with pytest.raises(InvalidRequestError, match="no generation"):
            await workspace.snapshot()
    assert workspace.metadata.status == "ended"
    assert heard.names("session.snapshot.") == []


async def test_a_generation_that_fails_is_told_as_one_that_is_made(heard: Heard) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
        place.is_down = True
        with pytest.raises(UnavailableError):
            await workspace.snapshot("turn")
        place.is_down = False
        (told,) = [event.details for event in heard.events if event.name == "session.snapshot.result"]
        assert (told["trigger"], told["ok"], told["problem"]) == ("turn", False, "the place does not answer")
        assert "generation" not in told
        assert heard.names("session.storage.") == ["degraded"]


async def test_a_bad_trigger_makes_no_generation() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        for trigger in ("", "two\nlines", "x" * 101):
            with pytest.raises(InvalidRequestError):
                await workspace.snapshot(trigger)
        assert place.disk.generations == []


async def test_everything_on_a_closed_workspace_raises_handle_closed(place: SessionPlace) -> None:
    async with Workspace.open(place, "s") as workspace:
        await workspace.blobs().put(b"x")
        await workspace.journal().append({"a": 1})
        directory = workspace.files_dir()
    before = await place.files(session_id("s")).list()
    calls = [
        lambda: workspace.write_file("a", b""), lambda: workspace.read_file("a"),
        lambda: workspace.append_file("a", b""), lambda: workspace.remove_file("a"),
        lambda: workspace.rename_file("a", "b"), workspace.list_files, workspace.changes, workspace.snapshot,
        lambda: workspace.file_exists("a"), workspace.config, lambda: workspace.update_metadata(turn_count=1),
        workspace.record_turn, lambda: workspace.plugin_dir("p"), lambda: workspace.blobs().put(b"y"),
        lambda: workspace.blobs().get("0" * 64), workspace.blobs().list,
        lambda: workspace.journal().append({}), workspace.journal().rotate,
        lambda: directory.write("a", b""), directory.list,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(HandleClosedError):
            await call()
    assert await place.files(session_id("s")).list() == before


async def test_a_block_that_an_error_leaves_ends_the_session_as_failed() -> None:
    place = MemoryPlace()

    async def fail() -> None:
        async with Workspace.open(place, "s") as opened:
            left.append(opened)
            await opened.write_file("a", b"1")
            raise ZeroDivisionError

    left: list[Workspace] = []
    with pytest.raises(ZeroDivisionError):
        await fail()
    (workspace,) = left
    assert (workspace.metadata.status, place.disk.owners) == ("failed", {})
    assert place.disk.generations[-1][2]["a"] == b"1"


async def test_a_block_that_is_cancelled_ends_the_session_all_the_same() -> None:
    place = MemoryPlace()
    with trio.move_on_after(0.01) as scope:
        async with Workspace.open(place, "s") as workspace:
            await workspace.write_file("a", b"1")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert (workspace.is_closed, workspace.metadata.status, place.disk.owners) == (True, "failed", {})
    assert place.disk.generations[-1][2]["a"] == b"1"


async def test_abandon_writes_nothing_commits_nothing_and_frees_the_handle(place: SessionPlace) -> None:
    async with Workspace.open(place, "s") as workspace:
        await workspace.write_file("a", b"1")
        before = await place.files(session_id("s")).list()
        await workspace.abandon()
        await workspace.abandon()
        await workspace.close()
        with pytest.raises(HandleClosedError):
            await workspace.write_file("a", b"2")
    assert await place.files(session_id("s")).list() == before
    assert place.owns(session_id("s"))
    if isinstance(place, MemoryPlace):
        assert place.disk.generations == []
    async with Workspace.recall(place, "s") as again:
        assert await again.read_file("a") == b"1"
    assert not place.owns(session_id("s"))


async def test_a_close_that_failed_may_be_repeated_and_nothing_was_given_away() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        place.is_down = True
        with pytest.raises(UnavailableError):
            await workspace.close()
        assert not workspace.is_closed
        place.is_down = False
        assert place.owns(session_id("s"))
        await workspace.close()
    assert place.disk.owners == {}
    assert len(place.disk.generations) == 1


async def test_the_error_that_left_the_block_is_raised_also_when_the_close_fails() -> None:
    place = MemoryPlace()

    async def fail() -> None:
        async with Workspace.open(place, "s") as opened:
            left.append(opened)
            place.is_down = True
            raise ZeroDivisionError

    left: list[Workspace] = []
    with pytest.raises(ZeroDivisionError) as caught:
        await fail()
    assert left[0].is_closed
    assert any("could not be closed" in note for note in caught.value.__notes__)


async def test_an_owner_that_lost_its_session_writes_nothing_and_is_told_once(heard: Heard) -> None:
    place = MemoryPlace()

    async def lose() -> None:
        async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=heard)) as workspace:
            place.disk.owners["s"] = "another"
            before.append(place.disk.bodies("s"))
            for _ in range(2):
                with pytest.raises(OwnershipLostError):
                    await workspace.write_file("a", b"1")

    before: list[dict[str, bytes]] = []
    with pytest.raises(OwnershipLostError):
        await lose()
    assert [place.disk.bodies("s")] == before
    assert place.disk.generations == []
    assert heard.names("session.owner.") == ["acquired", "lost"]


async def test_directories_are_prefixes_that_no_name_leaves(place: SessionPlace) -> None:
    async with Workspace.open(place, "s") as workspace:
        plugin = await workspace.plugin_dir("p")
        await plugin.write("state/a", b"1")
        await plugin.append("state/a", b"2")
        await workspace.context_dir().write("c", b"3", is_private=True)
        await workspace.files_dir().write("f", b"4")
        assert (await plugin.read("state/a"), await plugin.list()) == (b"12", ["state/a"])
        assert (await plugin.exists("state/a"), await plugin.exists("a")) == (True, False)
        assert await workspace.read_file("plugins/p/state/a") == b"12"
        assert await workspace.metadata_dir().list() == ["session.json"]
        assert (await workspace.list_files("context"), plugin.path) == (["context/c"], None)
        if isinstance(place, MemoryPlace):
            assert place.private == {"context/c"}
        await plugin.remove("state/a")
        assert await plugin.list() == []
        for name in ("../x", "/x", "", "a/../../x", "C:x", ".sessionfs/x"):
            with pytest.raises(InvalidRequestError):
                await plugin.write(name, b"")
        for name in ("", "a/b", "..", "."):
            with pytest.raises(InvalidRequestError):
                await workspace.plugin_dir(name)


async def test_a_place_with_real_paths_has_the_directories_on_its_disk(tmp_path: Path) -> None:
    class RealFiles(MemoryFiles):
        def real_path(self, path: str) -> str:
            return f"{tmp_path}/{self.session}/{path}".rstrip("/")

    class RealPlace(MemoryPlace):
        def files(self, session: SessionId) -> RealFiles:
            return RealFiles(self, session)

    async with Workspace.open(RealPlace(), "s") as workspace:
        assert sorted(entry.name for entry in os.scandir(tmp_path / "s")) == ["context", "files", "metadata"]
        assert workspace.files_dir().path == f"{tmp_path}/s/files"
        assert (await workspace.plugin_dir("p")).path == f"{tmp_path}/s/plugins/p"
        assert [entry.name for entry in os.scandir(tmp_path / "s" / "plugins")] == ["p"]


async def test_watching_finds_what_others_do_without_being_asked(heard: Heard) -> None:
    place = MemoryPlace()
    found = trio.Event()

    def tell(event: object) -> None:
        heard(event)  # type: ignore[arg-type]
        if getattr(event, "path", "") == "theirs":
            found.set()

    async with Workspace.open(place, "s", options=WorkspaceOptions(subscriber=tell)) as workspace:
        with pytest.raises(InvalidRequestError):
            await workspace.watch(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workspace.watch, 0.001)
            place.is_down = True
            while "storage.degraded" not in heard.names():
                await trio.lowlevel.checkpoint()
            place.is_down = False
            place.disk.put("s", "theirs", b"x")
            with trio.fail_after(5):
                await found.wait()
            nursery.cancel_scope.cancel()


async def test_metadata_of_the_system_clock_is_in_utc() -> None:
    place = MemoryPlace()
    async with Workspace.open(
        place, options=WorkspaceOptions(clock=SystemClock(), id_format="timestamp")
    ) as one:
        raw = msgspec.json.decode(await one.read_file("metadata/session.json"))
    assert raw["started_at"].endswith("Z")
    assert raw["started_at"][:10].replace("-", "") == one.id[:8]


@pytest.mark.parametrize("is_created", [True, False])
async def test_the_config_of_a_creation_that_died_is_not_that_of_the_next(is_created: bool) -> None:
    place = MemoryPlace()
    place.kill_at, place.is_after = 1, True
    with pytest.raises(Killed):
        async with Workspace.create(place, "s", new=NewSession(config=b"of the first")):
            pass
    place.disk.owners.clear()
    assert place.disk.bodies("s") == {"metadata/config": b"of the first"}
    begin = Workspace.create if is_created else Workspace.open
    async with begin(MemoryPlace(place.disk), "s") as workspace:
        assert await workspace.config() is None
    assert set(place.disk.bodies("s")) == {"metadata/session.json"}
