"""``metadata/session.json``."""

from __future__ import annotations

import msgspec
import pytest

from sessionfs.model.errors import CorruptDataError, InvalidRequestError, UnsupportedFormatError
from sessionfs.sessions.workspace.workspace import Workspace

from .world import MemoryPlace

PATH = "metadata/session.json"
FIELDS = {
    "id", "started_at", "ended_at", "profile", "plugins", "labels", "turn_count", "tokens_used",
    "prompt_tokens_used", "completion_tokens_used", "cost_usd", "status", "format",
}  # fmt: skip


def stored(place: MemoryPlace) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(place.disk.bodies("s")[PATH])
    return found


async def test_the_record_has_exactly_the_named_fields() -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s") as workspace:
        assert set(stored(place)) == FIELDS
        assert (stored(place)["id"], stored(place)["format"]) == ("s", 1)
        assert workspace.metadata.turn_count == 0


async def test_turns_are_added_up() -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s") as workspace:
        await workspace.record_turn(prompt_tokens=10, completion_tokens=5, cost_usd=0.25)
        await workspace.record_turn(prompt_tokens=1, completion_tokens=2, cost_usd=0.5)
        shown = stored(place)
        assert (shown["turn_count"], shown["tokens_used"], shown["cost_usd"]) == (2, 18, 0.75)
        assert (shown["prompt_tokens_used"], shown["completion_tokens_used"]) == (11, 7)


async def test_fields_of_others_are_kept_when_it_is_rewritten_and_so_is_what_they_changed() -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s") as workspace:
        theirs = {
            **stored(place),
            "profile": "theirs",
            "x_new": {"a": [1, 2.50, None]},
            "z": 12345678901234567890,
        }
        place.disk.put("s", PATH, msgspec.json.encode(theirs))
        await workspace.update_metadata(labels={"a": "b"}, status="waiting")
        assert stored(place) == {**theirs, "labels": {"a": "b"}, "status": "waiting"}
        assert b'"x_new":{"a":[1,2.5,null]}' in place.disk.bodies("s")[PATH].replace(b" ", b"")
    assert stored(place)["x_new"] == theirs["x_new"]


async def test_a_record_of_a_later_format_is_refused_before_anything_is_claimed_or_changed() -> None:
    place = MemoryPlace()
    body = b'{"format":2,"id":"s","things":"others"}'
    place.disk.put("s", PATH, body)
    for door in (Workspace.recall(place, "s"), Workspace.open(place, "s")):
        with pytest.raises(UnsupportedFormatError) as caught:
            async with door:
                pass
        assert (caught.value.name, caught.value.found) == (f"sessions/s/{PATH}", 2)
    assert place.disk.bodies("s") == {PATH: body}
    assert (place.disk.owners, place.changes) == ({}, 0)


async def test_a_record_that_cannot_be_read_is_refused_and_left() -> None:
    for body in (
        b"",
        b"[]",
        b"{",
        b'{"id":"s"}',
        b'{"id":"s","started_at":"","turn_count":-1}',
        b'{"format":"x"}',
    ):
        place = MemoryPlace()
        place.disk.put("s", PATH, body)
        with pytest.raises(CorruptDataError, match=PATH):
            async with Workspace.open(place, "s"):
                pass
        assert (place.disk.bodies("s"), place.changes) == ({PATH: body}, 0)


async def test_bad_changes_are_refused_and_nothing_is_written() -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s") as workspace:
        before = place.changes
        changes: list[dict[str, object]] = [
            {"turns": 1}, {"turn_count": -1}, {"turn_count": "1"}, {"cost_usd": float("inf")},
            {"cost_usd": float("nan")}, {"labels": {"a": 1}}, {"plugins": "p"}, {"status": None},
            {"id": "t"}, {"started_at": "x"}, {"ended_at": None},
        ]  # fmt: skip
        for change in changes:
            with pytest.raises(InvalidRequestError):
                await workspace.update_metadata(**change)
        for tokens in (-1, float("nan")):
            with pytest.raises(InvalidRequestError):
                await workspace.record_turn(prompt_tokens=tokens)  # type: ignore[arg-type]
        assert place.changes == before


async def test_a_record_that_somebody_removed_is_written_again() -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "s") as workspace:
        place.disk.remove("s", PATH)
        await workspace.update_metadata(profile="p")
        assert (stored(place)["profile"], stored(place)["id"]) == ("p", "s")


async def test_a_session_that_was_forked_says_its_own_id_when_it_is_opened() -> None:
    place = MemoryPlace()
    async with Workspace.create(place, "parent"):
        pass
    place.disk.put("s", PATH, place.disk.bodies("parent")[PATH])
    async with Workspace.recall(place, "s"):
        assert stored(place)["id"] == "s"
