"""What a barrier notes: the changing files of one session, and the position of the log that is the cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionfs.formats.commit_messages import Barrier, BarrierHeld
from sessionfs.formats.link_messages import Evict
from sessionfs.model.errors import LocalDiskError
from sessionfs.working_copy.layout import ROOT_NUMBER
from tests.unit.filesystem.conftest import ME, Rig, answer

Rigs = Callable[..., Rig]


def hold(
    rig: Rig, numbers: list[int] | None = None, *, since: int | None = None, **fields: Any
) -> BarrierHeld:
    position = rig.log.position if since is None else since
    return rig.core.barrier(Barrier("s", "c1", numbers or [], position, **fields))


def staging(rig: Rig) -> list[Path]:
    return list(Path(rig.layout.staging).iterdir())


def numbers(held: BarrierHeld) -> set[int]:
    return {frozen.number for frozen in held.frozen}


async def test_what_the_log_tells_after_the_position_is_frozen(rig: Rig) -> None:
    root = await rig.session()
    before = await rig.file(root, b"before", b"x")
    position = rig.log.position
    created = await rig.file(root, b"created", b"x")
    await answer(rig.core.setattr(before, ME, mode=0o600))
    held = hold(rig, since=position)
    assert numbers(held) == {before, created}
    assert held.log_position == rig.log.position
    assert held.pause_seconds >= 0
    assert numbers(hold(rig)) == set()


@pytest.mark.parametrize(
    "change", ["chmod", "utime", "xattr", "link", "rename", "exchange", "truncate", "write"]
)
async def test_every_kind_of_change_to_a_file_counts(rig: Rig, change: str) -> None:
    root = await rig.session()
    number, other = await rig.file(root, b"a", b"body"), await rig.file(root, b"b", b"other")
    position, core = rig.log.position, rig.core
    expected = {number}
    if change == "chmod":
        await answer(core.setattr(number, ME, mode=0o600))
    elif change == "utime":
        await answer(core.setattr(number, ME, mtime_ns=5, atime_ns=5))
    elif change == "xattr":
        await answer(core.setxattr(number, b"user.x", b"1", ME))
    elif change == "link":
        await answer(core.link(number, root, b"c", ME))
    elif change == "rename":
        await answer(core.rename(root, b"a", root, b"b", 0, ME))
    elif change == "exchange":
        await answer(core.rename(root, b"a", root, b"b", 2, ME))
        expected = {number, other}
    elif change == "truncate":
        await answer(core.setattr(number, ME, size=1))
    else:
        opened = await answer(core.open(number, os.O_WRONLY, ME))
        core.write(opened.handle, 0, b"x")
        core.release(opened.handle)
    assert numbers(hold(rig, since=position)) == expected


async def test_files_open_for_writing_are_frozen_and_tell_of_their_next_write_at_once(rig: Rig) -> None:
    root = await rig.session()
    opened, shown = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    rig.core.write(opened.handle, 0, b"12345")
    held = hold(rig)
    assert [(one.number, one.size_bytes, one.writers) for one in held.frozen] == [(shown.number, 5, 1)]
    rig.core.write(opened.handle, 5, b"6")
    assert rig.operations()[-2:] == ["WRITTEN", "WRITTEN"]


async def test_a_frozen_file_is_described_as_it_stands(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"12345")
    await answer(rig.core.setattr(number, ME, mode=0o640))
    os.setxattr(os.path.join(rig.layout.sessions, "s", "a"), "user.sessionfs.own", b"1")
    await answer(rig.core.setxattr(number, b"user.colour", b"red", ME))
    status = os.stat(os.path.join(rig.layout.sessions, "s", "a"))
    (frozen,) = hold(rig, [number]).frozen
    assert (frozen.mode, frozen.uid, frozen.gid) == (status.st_mode, status.st_uid, status.st_gid)
    assert (frozen.size_bytes, frozen.mtime_ns, frozen.ctime_ns) == (
        5,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )
    assert (frozen.xattrs, frozen.writers) == ({b"user.colour": b"red"}, 0)


async def test_only_regular_files_of_the_session_that_are_here_are_frozen(rig: Rig) -> None:
    root, other = await rig.session(), await rig.session(b"t")
    await rig.file(other, b"a", b"not ours")
    await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    await answer(rig.core.symlink(root, b"l", b"a", ME))
    await answer(rig.core.mknod(root, b"p", 0o010644, 0, ME))
    kept = await rig.file(root, b"kept")
    assert numbers(hold(rig, since=0)) == {kept}
    remote = rig.remote.add_session("r")
    number = rig.remote.add_file(remote, b"a", b"body")
    await rig.look(b"r", b"a")
    held = rig.core.barrier(Barrier("r", "c2", [number, 12345], rig.log.position))
    assert held.frozen == []


async def test_files_that_the_kernel_forgot_are_found_by_their_path(rig: Rig) -> None:
    root = await rig.session()
    below = await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    number = await rig.file(below.number, b"a", b"12345")
    rig.core.forget(number, 1)
    rig.core.forget(below.number, 1)
    assert numbers(hold(rig, [number])) == set()
    held = hold(rig, [number], paths={number: b"d/a"})
    assert [(one.number, one.size_bytes) for one in held.frozen] == [(number, 5)]
    found = await rig.look(b"s", b"d", b"a")
    await answer(rig.core.setattr(found.number, ME, size=1))
    assert [path.read_bytes() for path in staging(rig)] == [b"12345"]
    assert numbers(hold(rig, [99], paths={99: b"d/none"})) == set()


async def test_a_path_that_is_another_file_by_now_is_not_frozen(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"12345")
    assert numbers(hold(rig, [number + 1000], paths={number + 1000: b"a"})) == set()


async def test_a_directory_that_was_moved_lets_the_commit_ask_again(rig: Rig) -> None:
    root = await rig.session()
    below = await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    number = await rig.file(below.number, b"a", b"12345")
    position = rig.log.position
    await answer(rig.core.rename(root, b"d", root, b"e", 0, ME))
    held = hold(rig, [number], since=position)
    assert held.is_behind
    assert held.frozen == []
    held = hold(rig, [number], since=held.log_position)
    assert not held.is_behind
    assert numbers(held) == {number}


async def test_a_changed_file_that_nobody_knows_lets_the_commit_ask_again(rig: Rig) -> None:
    root = await rig.session()
    position = rig.log.position
    number = await rig.file(root, b"a", b"12345")
    rig.core.forget(number, 1)
    held = hold(rig, since=position)
    assert held.is_behind
    assert numbers(hold(rig, [number], since=held.log_position, paths={number: b"a"})) == {number}


async def test_files_that_came_and_went_need_no_second_look(rig: Rig) -> None:
    root = await rig.session()
    position = rig.log.position
    for name in (b"a", b"b"):
        number = await rig.file(root, name, b"x")
        await answer(rig.core.unlink(root, name, ME))
        rig.core.forget(number, 1)
    replaced = await rig.file(root, b"old", b"x")
    new = await rig.file(root, b"new", b"x")
    await answer(rig.core.rename(root, b"new", root, b"old", 0, ME))
    rig.core.forget(replaced, 1)
    gone = await rig.session(b"gone")
    await answer(rig.core.rmdir(ROOT_NUMBER, b"gone", ME))
    rig.core.forget(gone, 1)
    held = hold(rig, since=position)
    assert not held.is_behind
    assert numbers(held) == {new}


async def test_a_file_that_left_the_working_copy_needs_no_second_look(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"12345")
    position = rig.log.position
    await answer(rig.core.setattr(number, ME, mode=0o600))
    status = os.stat(os.path.join(rig.layout.sessions, "s", "a"))
    assert rig.core.evict(Evict(number, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    rig.core.forget(number, 1)
    held = hold(rig, since=position)
    assert (held.frozen, held.is_behind) == ([], False)


async def test_what_the_journal_has_read_is_not_named_again(rig: Rig) -> None:
    root = await rig.session()
    await rig.file(root, b"a", b"x")
    rig.core.note_log_consumed(rig.log.position)
    assert numbers(hold(rig, since=0)) == set()
    number = await rig.file(root, b"b", b"x")
    assert numbers(hold(rig, since=0)) == {number}


async def test_bytes_that_a_commit_has_from_elsewhere_are_described_and_not_kept(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"x.db", b"12345")
    assert numbers(hold(rig, [number], unkept=[number])) == {number}
    await answer(rig.core.setattr(number, ME, size=1))
    assert os.listdir(rig.layout.staging) == []


async def test_what_sqlite_keeps_beside_a_database_is_no_changing_file(rig: Rig) -> None:
    root = await rig.session()
    database = await rig.file(root, b"x.db", b"SQLite format 3\x00and more")
    await rig.file(root, b"x.db-wal", b"frames")
    own = await rig.file(root, b"y-wal", b"no database has this name")
    opened, _ = await answer(rig.core.create(root, b"x.db-shm", 0o644, os.O_RDWR, ME))
    assert numbers(hold(rig, since=0)) == {database, own}
    rig.core.release(opened.handle)


async def test_removed_files_that_are_still_open_are_in_no_generation(rig: Rig) -> None:
    root = await rig.session()
    opened, _ = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    await answer(rig.core.unlink(root, b"a", ME))
    held = hold(rig, since=0)
    assert (held.frozen, held.is_behind) == ([], False)
    rig.core.release(opened.handle)


async def test_a_log_without_a_whole_end_holds_no_barrier(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    root = await rig.session()
    opened, _ = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.log, "_append", refuse)
        rig.core.release(opened.handle)
        with pytest.raises(LocalDiskError, match="full"):
            hold(rig)
    hold(rig)
    assert rig.operations()[-1] == "RELEASE_WRITE"


async def test_a_session_that_nobody_used_since_the_mount_is_frozen_by_paths(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"12345")
    rig.stop()
    rig.remote.roots["s"] = rig.remote.known_here("s", root)
    rig.start()
    held = rig.core.barrier(Barrier("s", "c1", [number], rig.log.position, paths={number: b"a"}))
    assert numbers(held) == {number}
    assert (await rig.look(b"s", b"a")).number == number
    await answer(rig.core.setattr(number, ME, size=1))
    assert len(os.listdir(rig.layout.staging)) == 1
    hold(rig)
    assert os.listdir(rig.layout.staging) == []
