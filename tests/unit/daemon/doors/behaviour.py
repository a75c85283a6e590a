"""What the files of a mirrored place do, whatever stands before the working copy: tried here without a mount, and end to end through one."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from sessionfs.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat, SessionFiles, SessionPlace


@dataclass
class Stage:
    """A place, another door of it (or the same), and a session that nothing is in.

    Attributes:
        place: The place.
        other: The other door.
        session: The session.
        working_copy: Where the sessions' files are on this disk.
    """

    place: SessionPlace
    other: SessionPlace
    session: SessionId
    working_copy: Path

    @property
    def files(self) -> SessionFiles:
        return self.place.files(self.session)

    def on_disk(self, path: str) -> Path:
        return self.working_copy / self.session / path

    async def paths(self, below: str = "") -> list[str]:
        return [one.path for one in await self.files.list(below)]


async def a_file_is_read_as_it_was_written(stage: Stage) -> None:
    body = bytes(range(256)) * 40_000
    written = await stage.files.write("deep/er/ü %.bin", body)
    assert written == await stage.files.stat("deep/er/ü %.bin")
    assert (written.path, written.size_bytes) == ("deep/er/ü %.bin", len(body))
    assert await stage.files.read("deep/er/ü %.bin") == body
    assert await stage.files.read("deep/er/ü %.bin", 5, 9) == body[5:9]
    assert await stage.files.read("deep/er/ü %.bin", len(body) - 3) == body[-3:]
    assert await stage.files.read("deep/er/ü %.bin", len(body) + 3, len(body) + 9) == b""
    assert await stage.files.read("deep/er/ü %.bin", 9, 5) == b""
    await stage.files.write("deep/er/ü %.bin", b"")
    assert await stage.files.read("deep/er/ü %.bin") == b""


async def what_is_not_there_is_not_found(stage: Stage) -> None:
    for path in ("nothing", "no/such/place"):
        for call in (stage.files.stat(path), stage.files.read(path), stage.files.sync(path)):
            with pytest.raises(NotFoundError, match=path):
                await call
        await stage.files.remove(path)
        with pytest.raises(NotFoundError):
            await stage.files.rename(path, "new")
    assert await stage.files.list() == await stage.files.list("no/such") == []
    assert stage.session not in await stage.place.list_sessions()


async def a_new_file_is_made_once(stage: Stage) -> None:
    await stage.files.write("f", b"first", is_new=True)
    for door in (stage.place, stage.other):
        with pytest.raises(AlreadyExistsError):
            await door.files(stage.session).write("f", b"second", is_new=True)
    outcomes: list[str] = []

    async def make(door: SessionPlace, name: str) -> None:
        try:
            await door.files(stage.session).write("race", name.encode(), is_new=True)
        except AlreadyExistsError:
            return
        outcomes.append(name)

    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(make, stage.other if number % 2 else stage.place, str(number))
    assert [await stage.files.read("race")] == [name.encode() for name in outcomes]
    assert await stage.files.read("f") == b"first"
    assert await stage.paths() == ["f", "race"]


async def a_private_file_stays_private(stage: Stage) -> None:
    def mode(path: str) -> int:
        return stat.S_IMODE(stage.on_disk(path).stat().st_mode)

    await stage.files.write("token", b"secret", is_private=True)
    await stage.files.write("plain", b"open")
    assert (mode("token"), mode("plain") & 0o077) == (0o600, 0o044)
    await stage.files.write("token", b"other secret")
    await stage.files.append("token", b" and more")
    assert mode("token") == 0o600
    assert stat.S_IMODE(stage.on_disk("").stat().st_mode) == 0o755


async def an_append_adds_behind_what_is_there(stage: Stage) -> None:
    first = await stage.files.append("d/log", b"one\n")
    second = await stage.files.append("d/log", b"two\n", base=first)
    assert second == await stage.files.stat("d/log")
    for base in (first, FileStat("d/log", 8, 1, "another")):
        with pytest.raises(PreconditionFailedError):
            await stage.other.files(stage.session).append("d/log", b"never\n", base=base)
    with pytest.raises(PreconditionFailedError):
        await stage.files.append("no/log", b"never\n", base=first)
    assert (await stage.files.append("d/log", b"", base=second)).size_bytes == 8
    synced = await stage.files.append("d/log", b"three\n", is_synced=True)
    assert synced.size_bytes == 14
    assert await stage.files.read("d/log") == b"one\ntwo\nthree\n"
    assert await stage.paths() == ["d/log"]


async def appends_at_once_are_all_there(stage: Stage) -> None:
    async def add(door: SessionPlace, name: int) -> None:
        for number in range(60):
            await door.files(stage.session).append("log", b"%d %d\n" % (name, number))

    async with trio.open_nursery() as nursery:
        for name in range(4):
            nursery.start_soon(add, stage.other if name % 2 else stage.place, name)
    lines = (await stage.files.read("log")).splitlines()
    assert Counter(lines) == Counter(b"%d %d" % (name, number) for name in range(4) for number in range(60))


async def appends_under_a_condition_are_each_there_once(stage: Stage) -> None:
    await stage.files.write("log", b"")
    refused = 0

    async def add(door: SessionPlace, name: int) -> None:
        nonlocal refused
        files, number = door.files(stage.session), 0
        while number < 20:
            base = await files.stat("log")
            try:
                await files.append("log", b"%d %d\n" % (name, number), base=base)
            except PreconditionFailedError:
                refused += 1
            else:
                number += 1

    async with trio.open_nursery() as nursery:
        for name in range(3):
            nursery.start_soon(add, stage.other if name % 2 else stage.place, name)
    lines = (await stage.files.read("log")).splitlines()
    assert Counter(lines) == Counter(b"%d %d" % (name, number) for name in range(3) for number in range(20))
    assert refused


async def a_list_is_sorted_and_has_files_only(stage: Stage) -> None:
    for path in ("b", "a/z", "a/b/c", "a.txt", "ä", "a/b.txt"):
        await stage.files.write(path, path.encode())
    await stage.files.rename("b", "empty/b")
    await stage.files.remove("empty/b")
    stage.on_disk(".sessionfs-new-left").touch()
    assert await stage.paths() == ["a.txt", "a/b.txt", "a/b/c", "a/z", "ä"]
    assert await stage.paths("a/b") == ["a/b/c"]
    assert await stage.paths("a.txt") == ["a.txt"]
    assert await stage.paths("a.txt/x") == await stage.paths("empty") == []
    assert [one.size_bytes for one in await stage.files.list("a")] == [7, 5, 3]


async def a_rename_replaces_what_is_there(stage: Stage) -> None:
    await stage.files.write("old", b"moved")
    await stage.files.write("new/place", b"replaced")
    await stage.files.rename("old", "new/place")
    await stage.files.rename("new/place", "new/place")
    assert await stage.files.read("new/place") == b"moved"
    with pytest.raises(NotFoundError):
        await stage.files.rename("old", "new/place")
    with pytest.raises(ConflictError):
        await stage.files.rename("new/place", "new")
    assert await stage.paths() == ["new/place"]


async def a_file_in_the_way_of_a_directory_changes_nothing(stage: Stage) -> None:
    await stage.files.write("a", b"file")
    await stage.files.write("d/x", b"x")
    for path, call in (("a/b", stage.files.write), ("a/b", stage.files.append), ("d", stage.files.append)):
        with pytest.raises(ConflictError):
            await call(path, b"never")
    with pytest.raises(ConflictError):
        await stage.files.write("d", b"never")
    for path in ("a/b", "d"):
        with pytest.raises(NotFoundError):
            await stage.files.read(path)
    await stage.files.remove("d")
    await stage.files.remove("a/b")
    assert await stage.paths() == ["a", "d/x"]
    assert sorted(os.listdir(stage.on_disk(""))) == ["a", "d"]


async def a_bad_path_is_refused_before_anything_happens(stage: Stage) -> None:
    for path in (
        "../x",
        "/x",
        "a//b",
        "C:/x",
        "a\\b",
        "a\0b",
        ".sessionfs/status",
        ".sessionfs-new-x",
        "x" * 300,
    ):
        for call in (
            stage.files.write(path, b""),
            stage.files.append(path, b""),
            stage.files.read(path),
            stage.files.stat(path),
            stage.files.list(path),
            stage.files.remove(path),
            stage.files.rename(path, "x"),
            stage.files.rename("x", path),
            stage.files.sync(path),
        ):
            with pytest.raises(InvalidRequestError):
                await call
    with pytest.raises(InvalidRequestError):
        await stage.files.read("x", -1)
    with pytest.raises(InvalidRequestError):
        await stage.files.read("x", 0, -1)
    assert not stage.on_disk("").exists()


async def other_bytes_have_another_revision(stage: Stage) -> None:
    seen: set[str] = set()
    for number in range(40):
        written = await stage.files.write("f", b"%04d" % number)
        assert (await stage.files.stat("f")).revision == written.revision
        seen.add(written.revision)
    assert len(seen) == 40


async def what_is_synced_is_still_there(stage: Stage) -> None:
    await stage.files.write("a/b", b"1")
    await stage.files.sync("a/b")
    await stage.files.sync()
    assert await stage.files.read("a/b") == b"1"


async def a_removed_session_is_gone(stage: Stage) -> None:
    for path in ("a/b/c", "d"):
        await stage.files.write(path, b"x")
    assert stage.session in await stage.place.list_sessions()
    await stage.place.remove_session(stage.session)
    await stage.place.remove_session(stage.session)
    assert await stage.paths() == []
    assert stage.session not in await stage.place.list_sessions()
    await stage.files.write("again", b"x")
    assert await stage.paths() == ["again"]


async def a_session_without_a_file_is_not_listed(stage: Stage) -> None:
    await stage.place.claim(stage.session)
    assert stage.session not in await stage.place.list_sessions()
    await stage.files.write("f", b"")
    assert stage.session in await stage.place.list_sessions()
    await stage.files.remove("f")
    assert stage.session not in await stage.place.list_sessions()


async def a_claim_is_held_until_it_is_released(stage: Stage) -> None:
    place, session = stage.place, stage.session
    assert not place.owns(session)
    await place.release(session)
    await place.claim(session)
    await place.claim(session)
    assert place.owns(session)
    await stage.files.write("f", b"x")
    await place.release(session)
    assert not place.owns(session)
    await place.release(session)
    await stage.files.write("f", b"y")
    assert not place.owns(session)
    await place.release(session)
    await place.claim(session)
    assert place.owns(session)


async def a_commit_makes_the_next_generation(stage: Stage) -> None:
    await stage.files.write("f", b"1")
    first = await stage.place.commit(stage.session, "test")
    await stage.files.write("f", b"2")
    assert await stage.place.commit(stage.session, "test") > first >= 1


async def a_shared_root_is_like_a_session(stage: Stage) -> None:
    root = SessionId(f"%agents%{stage.session}%plugins%p")
    files = stage.place.files(root)
    await files.write("a/b", b"shared", is_new=True)
    await files.append("a/log", b"line\n")
    assert [one.path for one in await files.list()] == ["a/b", "a/log"]
    assert await stage.place.commit(root, "test") >= 1
    assert root not in await stage.place.list_sessions()
    await stage.place.release(root)
    await stage.place.remove_session(root)
    assert await files.list() == []


async def the_index_is_the_buckets(stage: Stage) -> None:
    place = stage.place
    await place.write_index(b"{}")
    assert await stage.other.read_index() == b"{}"
    aside = await place.set_index_aside(1_700_000_000)
    assert aside is not None
    assert aside.startswith("sessions.json.corrupt-")
    assert await place.read_index() is None
    assert await place.set_index_aside(1_700_000_000) is None


BEHAVIOUR: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    a_file_is_read_as_it_was_written,
    what_is_not_there_is_not_found,
    a_new_file_is_made_once,
    a_private_file_stays_private,
    an_append_adds_behind_what_is_there,
    appends_at_once_are_all_there,
    appends_under_a_condition_are_each_there_once,
    a_list_is_sorted_and_has_files_only,
    a_rename_replaces_what_is_there,
    a_file_in_the_way_of_a_directory_changes_nothing,
    a_bad_path_is_refused_before_anything_happens,
    other_bytes_have_another_revision,
    what_is_synced_is_still_there,
    a_removed_session_is_gone,
    a_session_without_a_file_is_not_listed,
    a_claim_is_held_until_it_is_released,
    a_commit_makes_the_next_generation,
    a_shared_root_is_like_a_session,
    the_index_is_the_buckets,
)
EVERY = pytest.mark.parametrize("behaviour", BEHAVIOUR, ids=[one.__name__ for one in BEHAVIOUR])
