"""Sessions that come as a whole, and what another host removes from those that nobody looks at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.model.errors import CorruptDataError, UnavailableError
from sessionfs.testing.fake_remote import FakeRemote

from .conftest import ME, Rig, answer

Rigs = Callable[..., Rig]
BODIES = {b"a": b"1" * 300, b"b": b"2", b"d/c": b"3" * 20, b"d/e/f": b"4" * 4}


def fill(remote: FakeRemote) -> dict[bytes, int]:
    """Put a session into the bucket; gives the numbers by path."""
    root = remote.add_session("s")
    numbers = {b"": root, b"d": remote.add_directory(root, b"d")}
    numbers[b"d/e"] = remote.add_directory(numbers[b"d"], b"e")
    for path, body in BODIES.items():
        above, _, name = path.rpartition(b"/")
        numbers[path] = remote.add_file(numbers[above], name, body)
    remote.add_symlink(root, b"l", b"a")
    return numbers


def on_disk(rig: Rig) -> dict[bytes, bytes]:
    """Bytes of the regular files that are here, by path."""
    base = Path(rig.layout.sessions, "s")
    return {
        os.fsencode(path.relative_to(base)): path.read_bytes()
        for path in base.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def fetches(rig: Rig) -> list[int]:
    return [int(number) for name, number in rig.remote.take_calls() if name == "fetch"]


def is_here(rig: Rig, *names: str) -> bool:
    return Path(rig.layout.sessions, *names).exists()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await trio.sleep(0.01)
    raise AssertionError("it never became true")


async def test_an_eager_session_is_here_before_it_is_shown(rigs: Rigs) -> None:
    rig = rigs(eager=True)
    numbers = fill(rig.remote)
    shown = await rig.look(b"s")
    assert shown.number == numbers[b""]
    assert on_disk(rig) == BODIES
    assert len(fetches(rig)) == len(BODIES)
    rig.remote.fail("away")
    assert await rig.read((await rig.look(b"s", b"d", b"e", b"f")).number) == BODIES[b"d/e/f"]
    assert (await rig.look(b"s", b"d")).number == numbers[b"d"]


async def test_what_says_what_the_others_are_comes_when_they_are_here(rigs: Rigs) -> None:
    rig = rigs(eager=True)
    numbers = fill(rig.remote)
    metadata = rig.remote.add_directory(numbers[b""], b"metadata")
    index = [rig.remote.add_file(metadata, name, b"{}") for name in (b"session.json", b"index.json")]
    await rig.look(b"s")
    came = fetches(rig)
    assert len(came) == len(BODIES) + 2
    assert set(came[-2:]) == set(index)


@pytest.mark.parametrize("problem", [UnavailableError("away"), CorruptDataError("does not verify")])
async def test_an_eager_session_that_lacks_a_file_is_not_shown(rigs: Rigs, problem: Exception) -> None:
    rig = rigs(eager=True)
    numbers = fill(rig.remote)
    answered = rig.remote.fetch

    async def refuse(number: int) -> object:
        if number == numbers[b"d/c"]:
            raise problem
        return await answered(number)

    rig.remote.fetch = refuse  # type: ignore[method-assign, assignment]
    for _ in range(2):
        with pytest.raises(type(problem)):
            await rig.look(b"s")
    assert rig.core.status_counters()["sessions"] == 0
    rig.remote.fetch = answered  # type: ignore[method-assign]
    assert (await rig.look(b"s")).number == numbers[b""]
    assert on_disk(rig) == BODIES


async def test_many_who_open_an_eager_session_share_the_wait(rigs: Rigs) -> None:
    rig = rigs(eager=True)
    numbers = fill(rig.remote)
    found: list[int] = []

    async def look() -> None:
        found.append((await rig.look(b"s", b"d", b"c")).number)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(look)
    assert found == [numbers[b"d/c"]] * 5
    assert len(fetches(rig)) == len(BODIES)


async def test_an_eager_session_takes_longer_than_one_timeout(rigs: Rigs) -> None:
    rig = rigs(eager=True, fetch_timeout_seconds=0.3)
    fill(rig.remote)
    answered = rig.remote.fetch

    async def slow(number: int) -> object:
        await trio.sleep(0.5)
        return await answered(number)

    rig.remote.fetch = slow  # type: ignore[method-assign, assignment]
    await rig.look(b"s")
    assert on_disk(rig) == BODIES


async def test_a_prefetched_session_comes_small_files_first(rigs: Rigs) -> None:
    rig = rigs(prefetch=True)
    numbers = fill(rig.remote)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.core.run_background)
        await rig.look(b"s")
        await until(lambda: on_disk(rig) == BODIES)
        rig.core.stop_background()
    assert fetches(rig) == [numbers[path] for path in sorted(BODIES, key=lambda path: len(BODIES[path]))]
    assert rig.core.status_counters()["inodes"] == 2


async def test_a_prefetch_ends_with_the_store_and_with_room(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(prefetch=True)
    fill(rig.remote)
    rig.remote.fail("away")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.core.run_background)
        await rig.look(b"s")
        await trio.sleep(0.1)
        assert on_disk(rig) == {}
        rig.remote.fail("")
        rig.remote.add_file(rig.remote.add_session("t"), b"x", b"x")
        monkeypatch.setattr(type(rig.core._whole), "_has_room", lambda _self: False)
        await rig.look(b"t")
        await trio.sleep(0.1)
        rig.core.stop_background()
    assert not is_here(rig, "t", "x")
    assert rig.core.status_counters()["waits"] == 0


@pytest.mark.parametrize("is_known", [True, False])
async def test_what_another_host_removed_leaves_this_disk(rigs: Rigs, is_known: bool) -> None:
    rig = rigs(foreign_lag_seconds=0.2, eager=True)
    numbers = fill(rig.remote)
    await rig.look(b"s", b"d", b"e", b"f")
    if not is_known:
        for path in (b"d/e/f", b"d/e", b"d"):
            rig.core.forget(numbers[path], 1)
    opened = await answer(rig.core.open((await rig.look(b"s", b"b")).number, os.O_RDONLY, ME))
    gone = (b"d", b"d/c", b"d/e", b"d/e/f", b"b")

    def build(remote: FakeRemote) -> None:
        del remote.children[numbers[b""]][b"d"]
        remote.refreshed = SessionRefreshed([numbers[b""]], [], foreign=True)

    rig.remote.replace_names(numbers[b""], {numbers[path]: b"s/" + path for path in gone}, build)
    await trio.sleep(0.2)
    assert await rig.names(numbers[b""]) == [b"a", b"b", b"l"]
    assert on_disk(rig) == {b"a": BODIES[b"a"], b"b": BODIES[b"b"]}
    assert not is_here(rig, "s", "d")
    assert rig.core.read(opened.handle, 0, 10) == BODIES[b"b"]
    rig.core.release(opened.handle)
    assert on_disk(rig) == {b"a": BODIES[b"a"]}
    assert len([number for name, number, _ in rig.records() if name == "EVICTED" and not number]) == 5


async def test_a_removed_session_is_asked_for_anew(rigs: Rigs) -> None:
    rig = rigs(foreign_lag_seconds=0.2)
    root = rig.remote.add_session("s")
    await rig.look(b"s")

    def build(remote: FakeRemote) -> None:
        del remote.roots["s"]

    rig.remote.replace_names(root, {root: b"s"}, build)
    await trio.sleep(0.2)
    assert (await rig.look(b"s")).number == 0
    assert os.listdir(rig.layout.sessions) == []
    made = await rig.session()
    assert made != root
    assert (await rig.look(b"s")).number == made


async def test_a_reader_that_begins_to_write_loses_nothing(rigs: Rigs) -> None:
    rig = rigs(foreign_lag_seconds=0.2)
    numbers = fill(rig.remote)
    number = (await rig.look(b"s", b"a")).number
    reading = await answer(rig.core.open(number, os.O_RDONLY, ME))
    rig.remote.refreshed = SessionRefreshed([], [number], foreign=True, paths={number: b"s/a"})
    await trio.sleep(0.2)
    await rig.look(b"s", b"a")
    writing = await answer(rig.core.open(number, os.O_WRONLY, ME))
    assert rig.core.write(writing.handle, 0, b"ours") == 4
    rig.core.release(writing.handle)
    rig.core.release(reading.handle)
    assert on_disk(rig)[b"a"][:4] == b"ours"
    assert numbers[b"a"] == number


def keep_something(rig: Rig) -> None:
    Path(rig.layout.sessions, "s", "d", "kept.db-wal").write_bytes(b"local")


async def test_a_directory_with_something_of_ours_stays(rigs: Rigs) -> None:
    rig = rigs(foreign_lag_seconds=0.2, eager=True)
    numbers = fill(rig.remote)
    await rig.look(b"s", b"d")
    keep_something(rig)
    paths = {numbers[path]: b"s/" + path for path in (b"d", b"d/c", b"d/e", b"d/e/f")}
    rig.remote.refreshed = SessionRefreshed([], list(paths), foreign=True, paths=paths)
    await trio.sleep(0.2)
    await rig.look(b"s", b"a")
    assert on_disk(rig)[b"d/kept.db-wal"] == b"local"
    assert not is_here(rig, "s", "d", "e")
