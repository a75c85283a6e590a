"""``.sessionfs`` in a session: what is there, commits by writing ``snapshot``, and the read-only trees."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest
import trio

from sessionfs.filesystem.control.control_files import trigger_of
from sessionfs.model.errors import (
    CorruptDataError,
    OutcomeUnknownError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
)

from .conftest import ME, Rig, Somebody, answer

NAMES = [b"conflicts", b"generations", b"snapshot", b"status", b"unnamed"]
NOBODY = Somebody(65_534, 65_534)


async def control(rig: Rig, *names: bytes) -> int:
    """Give the number of something below ``.sessionfs`` of the session ``s``, made at first use."""
    if b"s" not in os.listdir(os.fsencode(rig.layout.sessions)):
        await rig.session()
    return int((await rig.look(b"s", b".sessionfs", *names)).number)


async def write(
    rig: Rig, *pieces: bytes, caller: Somebody = ME, flags: int = os.O_WRONLY | os.O_TRUNC
) -> None:
    opened = await answer(rig.core.open(await control(rig, b"snapshot"), flags, caller))
    try:
        for piece in pieces:
            assert await answer(rig.core.write(opened.handle, 0, piece)) == len(piece)
    finally:
        rig.core.release(opened.handle)


async def read(rig: Rig, name: bytes) -> Any:
    opened = await answer(rig.core.open(await control(rig, name), os.O_RDONLY, ME))
    body = await answer(rig.core.read(opened.handle, 0, 1 << 20))
    rig.core.release(opened.handle)
    return json.loads(body)


def past(rig: Rig, number: int, body: bytes = b"old") -> int:
    """Put a generation with one file ``a`` in a directory ``d`` into the bucket; gives the file's number."""
    root = rig.remote.add_session(f"s%g{number}", foreign=False)
    rig.remote.add_directory(root, b"empty")
    rig.remote.generations.setdefault("s", []).append(number)
    return rig.remote.add_file(rig.remote.add_directory(root, b"d"), b"a", body)


async def test_the_control_directory_is_found_and_never_listed(rig: Rig) -> None:
    session = await rig.session()
    assert await rig.names(session) == []
    assert await rig.names(await control(rig)) == NAMES


async def test_what_is_there_has_kinds_and_modes_of_its_own(rig: Rig) -> None:
    modes = {name: (await rig.look(b"s", b".sessionfs", name)).mode for name in NAMES if await control(rig)}
    assert modes[b"snapshot"] == stat.S_IFREG | 0o644
    assert modes[b"status"] == stat.S_IFREG | 0o444
    assert {modes[name] for name in (b"conflicts", b"generations", b"unnamed")} == {stat.S_IFDIR | 0o555}


async def test_no_other_name_is_there(rig: Rig) -> None:
    parent = await control(rig)
    generations = await control(rig, b"generations")
    for where, name in ((parent, b"x"), (generations, b"0"), (generations, b"01"), (generations, b"-1")):
        with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
            await answer(rig.core.lookup(where, name, ME))


async def test_a_listed_name_is_known_once_the_kernel_took_it(rig: Rig) -> None:
    handle = await answer(rig.core.opendir(await control(rig), ME))
    for name, shown, _, found in await answer(rig.core.readdir(handle, 0)):
        if name == b"status":
            rig.core.adopt(handle, name, found)
            assert rig.core.getattr(shown.number).number == shown.number
            rig.core.forget(shown.number, 1)
            with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                rig.core.getattr(shown.number)
            return
    pytest.fail("status is not listed")


# --- snapshot


async def test_a_line_commits_inside_its_write(rig: Rig) -> None:
    await write(rig, b"turn\n")
    assert rig.remote.commits == [("s", "turn", False)]


async def test_opening_truncating_and_closing_commit_nothing(rig: Rig) -> None:
    await write(rig)
    rig.core.setattr(await control(rig, b"snapshot"), ME, size=0)
    assert rig.remote.commits == []


async def test_a_line_in_pieces_commits_once_at_its_end(rig: Rig) -> None:
    await write(rig, b"be", b"fore ", b"", b"lunch\n")
    assert rig.remote.commits == [("s", "before lunch", False)]


async def test_a_line_without_end_is_forgotten_with_its_descriptor(rig: Rig) -> None:
    await write(rig, b"half")
    await write(rig, b"whole\n")
    assert [trigger for _, trigger, _ in rig.remote.commits] == ["whole"]
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        await write(rig, b"x" * 5000)


async def test_several_lines_in_one_write_are_one_commit(rig: Rig) -> None:
    await write(rig, b"one\ntwo\n")
    assert rig.remote.commits == [("s", "two", False)]


@pytest.mark.parametrize(
    ("line", "trigger"),
    [
        (b"", "file"),
        (b"  \t", "file"),
        (b" turn 7 ", "turn 7"),
        (b"a\x00b\x1bc", "abc"),
        ("née".encode(), "née"),
        (b"x" * 100, "x" * 64),
    ],
)
def test_a_trigger_is_at_most_64_printable_characters(line: bytes, trigger: str) -> None:
    assert trigger_of(line) == trigger


@pytest.mark.parametrize(
    "problem",
    [
        UnavailableError("no route"),
        SessionAlreadyOwnedError("theirs", holder="h"),
        OutcomeUnknownError("who knows"),
    ],
)
async def test_a_commit_that_fails_fails_the_write(rig: Rig, problem: SessionFSError) -> None:
    rig.remote.commit_error = problem
    with pytest.raises(type(problem)):
        await write(rig, b"turn\n")
    assert (await read(rig, b"snapshot")) == {"session": "s", "trigger": "turn", "problem": problem.message}


async def test_reading_gives_the_last_result(rig: Rig) -> None:
    assert await read(rig, b"snapshot") == {}
    await write(rig, b"one\n")
    await write(rig, b"two\n")
    shown = await read(rig, b"snapshot")
    assert (shown["session"], shown["generation"], shown["trigger"]) == ("s", 2, "two")
    assert {"objects", "bytes_uploaded", "duration_seconds", "barrier_seconds"} <= set(shown)


async def test_the_status_says_why_the_last_commit_failed(rig: Rig) -> None:
    assert await read(rig, b"status") == {"id": "s", "commit_problem": ""}
    rig.remote.commit_error = UnavailableError("no route")
    with pytest.raises(UnavailableError):
        await write(rig, b"turn\n")
    assert await read(rig, b"status") == {"id": "s", "commit_problem": "no route"}


async def test_a_read_during_a_commit_does_not_wait_for_it(rig: Rig) -> None:
    waiting, go_on = trio.Event(), trio.Event()
    commit = rig.remote.commit

    async def slow(session: str, trigger: str, *, is_turn: bool = False) -> Any:
        waiting.set()
        await go_on.wait()
        return await commit(session, trigger, is_turn=is_turn)

    rig.remote.commit = slow  # type: ignore[method-assign]
    await control(rig)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(write, rig, b"turn\n")
        await waiting.wait()
        assert await read(rig, b"snapshot") == {}
        go_on.set()
    assert (await read(rig, b"snapshot"))["generation"] == 1


async def test_only_the_owner_of_the_session_may_commit_by_the_file(rig: Rig) -> None:
    await control(rig)
    with pytest.raises(OSError, match=os.strerror(errno.EACCES)):
        await write(rig, b"turn\n", caller=NOBODY)
    assert rig.remote.commits == []
    shown = await rig.look(b"s", b".sessionfs", b"snapshot")
    assert (shown.uid, shown.gid) == (ME.uid, ME.gid)


async def test_nothing_but_the_snapshot_can_be_written(rig: Rig) -> None:
    status = await control(rig, b"status")
    with pytest.raises(OSError, match=os.strerror(errno.EACCES)):
        await answer(rig.core.open(status, os.O_WRONLY, ME))
    with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
        rig.core.setattr(status, ME, size=0)
    with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
        rig.core.setattr(await control(rig, b"snapshot"), ME, mode=0o777)
    for parent in (await control(rig), await control(rig, b"generations")):
        with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
            await answer(rig.core.mkdir(parent, b"x", 0o755, ME))


async def test_a_mount_that_takes_no_changes_takes_no_commits(rig: Rig) -> None:
    await control(rig)
    rig.core.block_writers("the mount is being ended")
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        await write(rig, b"turn\n")


async def test_under_strict_a_failed_commit_closes_the_session_until_the_next_succeeds(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(policy="strict")
    session = await rig.session()
    number = await rig.file(session, b"a", b"1")
    rig.remote.commit_error = UnavailableError("no route")
    with pytest.raises(UnavailableError):
        await write(rig, b"turn\n")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        await answer(rig.core.open(number, os.O_WRONLY, ME))
    assert await rig.read(number) == b"1"
    rig.remote.commit_error = None
    await write(rig, b"turn\n")
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    rig.core.release(opened.handle)


# --- read-only trees


async def test_a_past_generation_is_a_directory_of_ordinary_files(rig: Rig) -> None:
    await control(rig)
    past(rig, 3, b"as it was")
    found = await rig.look(b"s", b".sessionfs", b"generations", b"3", b"d", b"a")
    assert await rig.read(found.number) == b"as it was"


async def test_generations_are_listed_by_number(rig: Rig) -> None:
    listing = await control(rig, b"generations")
    assert await rig.names(listing) == []
    for number in (3, 4, 11):
        past(rig, number)
    assert await rig.names(listing) == [b"11", b"3", b"4"]


async def test_a_generation_is_asked_for_once(rig: Rig) -> None:
    await control(rig)
    past(rig, 3)
    numbers = {(await rig.look(b"s", b".sessionfs", b"generations", b"3")).number for _ in range(3)}
    assert len(numbers) == 1
    assert rig.remote.calls.count(("open_session", "s%g3")) == 1


async def test_a_generation_that_comes_later_is_found_at_once(rig: Rig) -> None:
    listing = await control(rig, b"generations")
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        await answer(rig.core.lookup(listing, b"3", ME))
    past(rig, 3)
    assert (await answer(rig.core.lookup(listing, b"3", ME))).number


@pytest.mark.parametrize("problem", [UnavailableError("no route"), CorruptDataError("bad manifest")])
async def test_a_generation_that_cannot_be_read_is_never_said_to_be_missing(
    rig: Rig, problem: SessionFSError
) -> None:
    listing = await control(rig, b"generations")
    rig.remote.error = problem
    with pytest.raises(type(problem)):
        await answer(rig.core.lookup(listing, b"3", ME))
    handle = await answer(rig.core.opendir(listing, ME))
    with pytest.raises(type(problem)):
        await answer(rig.core.readdir(handle, 0))


async def test_nothing_of_the_past_can_be_changed(rig: Rig) -> None:
    await control(rig)
    past(rig, 3)
    root = (await rig.look(b"s", b".sessionfs", b"generations", b"3")).number
    directory = (await rig.look(b"s", b".sessionfs", b"generations", b"3", b"d")).number
    file = (await rig.look(b"s", b".sessionfs", b"generations", b"3", b"d", b"a")).number
    core = rig.core
    attempts: list[Callable[[], Any]] = [
        lambda: core.create(root, b"x", 0o644, os.O_WRONLY, ME),
        lambda: core.mkdir(directory, b"x", 0o755, ME),
        lambda: core.symlink(root, b"x", b"y", ME),
        lambda: core.unlink(directory, b"a", ME),
        lambda: core.rmdir(root, b"empty", ME),
        lambda: core.rename(directory, b"a", directory, b"b", 0, ME),
        lambda: core.link(file, root, b"x", ME),
        lambda: core.open(file, os.O_WRONLY, ME),
        lambda: core.open(file, os.O_RDONLY | os.O_TRUNC, ME),
        lambda: core.setattr(file, ME, mode=0o600),
        lambda: core.setattr(file, ME, size=0),
        lambda: core.setattr(root, ME, mode=0o700),
        lambda: core.setxattr(file, b"user.x", b"y", ME),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            await answer(attempt())
    assert rig.remote.calls.count(("claim", "s%g3")) == 0


async def test_the_past_has_no_control_directory_and_is_no_session_of_the_mount(rig: Rig) -> None:
    await control(rig)
    past(rig, 3)
    root = (await rig.look(b"s", b".sessionfs", b"generations", b"3")).number
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        await answer(rig.core.lookup(root, b".sessionfs", ME))
    assert await rig.names(1) == [b"s"]
    assert (await answer(rig.core.lookup(1, b"s%g3", ME))).number == 0


async def test_what_was_kept_aside_is_a_tree_that_follows_the_bucket(rigs: Callable[..., Rig]) -> None:
    rig = rigs(foreign_lag_seconds=0)
    parent = await control(rig)
    empty = await answer(rig.core.lookup(parent, b"conflicts", ME))
    assert await rig.names(empty.number) == []
    root = rig.remote.add_session("s%conflicts", foreign=False)
    rig.remote.add_file(root, b"a.txt", b"theirs")
    found = await answer(rig.core.lookup(parent, b"conflicts", ME))
    assert await rig.names(found.number) == [b"a.txt"]
    rig.remote.add_file(root, b"b.txt", b"also theirs")
    assert (await answer(rig.core.lookup(parent, b"conflicts", ME))).number == found.number
    assert await rig.names(found.number) == [b"a.txt", b"b.txt"]
    assert not any(name == "refresh_session" for name, _ in rig.remote.calls)


async def test_keys_that_no_path_can_name_are_shown_too(rig: Rig) -> None:
    await control(rig)
    rig.remote.add_file(rig.remote.add_session("s%unnamed", foreign=False), b"a%5C%5Cb", b"odd")
    found = await rig.look(b"s", b".sessionfs", b"unnamed", b"a%5C%5Cb")
    assert await rig.read(found.number) == b"odd"
