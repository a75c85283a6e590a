"""Shared roots: owned and committed as sessions are; an evaluation run is published once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    HandleClosedError,
    InvalidRequestError,
    InvalidSessionIdError,
    SessionAlreadyOwnedError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.model.roots import named_unit
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Heard, MemoryPlace

UNIT = "%eval%run"


@pytest.mark.parametrize("name", ["plugins/p", "agents/a/plugins/p", "eval/run"])
async def test_a_root_is_owned_written_and_let_go(name: str, place: SessionPlace, heard: Heard) -> None:
    options = WorkspaceOptions(subscriber=heard)
    async with Workspace.shared(place, name, options=options) as root:
        assert (root.id, place.owns(named_unit(name))) == (name, True)
        await root.write_file("d/a", b"1")
        await root.blobs().put(b"x")
    assert not place.owns(named_unit(name))
    assert await place.files(named_unit(name)).read("d/a") == b"1"
    assert {event.session_id for event in heard.events} == {name}
    with pytest.raises(HandleClosedError):
        await root.write_file("d/a", b"2")
    async with Workspace.shared(place, name) as again:
        assert "d/a" in await again.list_files()
        assert "metadata/session.json" not in await again.list_files()


async def test_each_root_has_its_own_owner_and_its_own_generations() -> None:
    place = MemoryPlace()
    other = MemoryPlace(place.disk)
    async with Workspace.shared(place, "plugins/p") as root, Workspace.shared(other, "plugins/q"):
        await root.write_file("a", b"1")
        assert await root.snapshot("turn") == 1
        with pytest.raises(SessionAlreadyOwnedError):
            async with Workspace.shared(other, "plugins/p"):
                pass
    assert [(unit, trigger) for unit, trigger, _ in place.disk.generations] == [
        ("%plugins%p", "turn"),
        ("%plugins%q", "close"),
        ("%plugins%p", "close"),
    ]


@pytest.mark.parametrize(
    "name", ["s", "plugins", "eval/", "eval/a/b", "agents/a", "other/x", "%eval%run", ""]
)
async def test_what_is_no_shared_root_is_refused_and_nothing_is_claimed(name: str) -> None:
    place = MemoryPlace()
    with pytest.raises(InvalidSessionIdError):
        async with Workspace.shared(place, name):
            pass
    assert place.disk.owners == {}


async def test_an_evaluation_is_published_once_and_only_read_from_then_on(place: SessionPlace) -> None:
    async with Workspace.shared(place, "eval/run") as run:
        await run.write_file("result.json", b"{}")
        before_it = run.publication
        await run.publish()
        assert (before_it, run.publication is None) == (None, False)
    for _ in range(2):
        async with Workspace.shared(place, "eval/run") as again:
            assert again.publication == run.publication
            before = await place.files(named_unit("eval/run")).list()
            changes: list[Callable[[], Awaitable[object]]] = [
                again.publish, lambda: again.write_file("x", b""), lambda: again.append_file("result.json", b""),
                lambda: again.remove_file("result.json"), lambda: again.rename_file("result.json", "x"),
                lambda: again.blobs().put(b"x"),
            ]  # fmt: skip
            for change in changes:
                with pytest.raises(AlreadyExistsError):
                    await change()
            assert await again.read_file("result.json") == b"{}"
            assert await place.files(named_unit("eval/run")).list() == before


async def test_a_publication_is_a_generation_with_its_mark_in_it() -> None:
    place = MemoryPlace()
    async with Workspace.shared(place, "eval/run") as run:
        await run.write_file("result.json", b"{}")
        assert await run.publish() == 1
    _, trigger, files = place.disk.generations[0]
    assert (trigger, sorted(files)) == ("publish", ["published.json", "result.json"])


async def test_a_publication_that_somebody_else_made_meanwhile_is_not_made_again() -> None:
    place = MemoryPlace()
    async with Workspace.shared(place, "eval/run") as run:
        theirs = b'{"published_at":"2026-01-01T00:00:00.000000Z","format":1}'
        place.disk.put(UNIT, "published.json", theirs)
        with pytest.raises(AlreadyExistsError):
            await run.publish()
        assert place.disk.bodies(UNIT)["published.json"] == theirs


async def test_only_evaluations_are_published() -> None:
    place = MemoryPlace()
    async with Workspace.shared(place, "plugins/eval") as root:
        with pytest.raises(InvalidRequestError):
            await root.publish()
        await root.write_file("a", b"1")
        assert place.disk.bodies("%plugins%eval") == {"a": b"1"}


async def test_a_publication_that_fails_publishes_nothing() -> None:
    place = MemoryPlace()
    async with Workspace.shared(place, "eval/run") as run:
        place.is_down = True
        with pytest.raises(UnavailableError):
            await run.publish()
        place.is_down = False
        assert run.publication is None
        await run.write_file("a", b"1")
        assert await run.publish() == 1


@pytest.mark.parametrize(
    ("body", "error"), [(b'{"format":2}', UnsupportedFormatError), (b"{", CorruptDataError)]
)
async def test_a_mark_that_cannot_be_read_fails_the_open_and_nothing_stays_claimed(
    body: bytes, error: type[Exception]
) -> None:
    place = MemoryPlace()
    place.disk.put(UNIT, "published.json", body)
    with pytest.raises(error):
        async with Workspace.shared(place, "eval/run"):
            pass
    assert (place.disk.owners, place.disk.bodies(UNIT)) == ({}, {"published.json": body})
