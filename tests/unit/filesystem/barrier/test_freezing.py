"""A commit finds every byte as it stood at its barrier, whatever programs do afterwards."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from sessionfs.filesystem.barrier import freezing
from sessionfs.filesystem.barrier.first_bytes import copy_first_bytes
from sessionfs.filesystem.inodes import Node
from sessionfs.formats.commit_messages import Barrier, FrozenAt, FrozenImage, Thaw
from sessionfs.formats.link_messages import Evict
from sessionfs.formats.ownership_messages import SessionState
from tests.unit.filesystem.conftest import ME, Rig, answer

Rigs = Callable[..., Rig]
BODY = b"0123456789"


def cut(rig: Rig, commit: str = "c1", *, session: str = "s") -> dict[int, int]:
    """Hold a barrier; gives the sizes of the frozen files by number."""
    held = rig.core.barrier(Barrier(session, commit, [], -1))
    assert not held.is_behind
    return {frozen.number: frozen.size_bytes for frozen in held.frozen}


def where(rig: Rig, number: int, commit: str = "c1") -> FrozenAt:
    return rig.core.frozen_image(FrozenImage(commit, number))


def kept(rig: Rig, number: int, *path: str, size_bytes: int = len(BODY), commit: str = "c1") -> bytes:
    """Read a frozen file's bytes as a commit does."""
    at = where(rig, number, commit)
    assert not at.is_lost
    place = Path(rig.layout.staging, at.staged) if at.staged else Path(rig.layout.sessions, *path)
    return place.read_bytes()[:size_bytes]


async def frozen_file(rig: Rig) -> tuple[int, int]:
    """A session with one frozen file; gives the numbers of root and file."""
    root = await rig.session()
    number = await rig.file(root, b"a", BODY)
    assert cut(rig) == {number: len(BODY)}
    return root, number


async def overwrite(rig: Rig, _root: int, number: int) -> Any:
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    assert await answer(rig.core.write(opened.handle, 3, b"xyz")) == 3
    rig.core.release(opened.handle)


async def overwrite_the_last_byte(rig: Rig, _root: int, number: int) -> Any:
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    await answer(rig.core.write(opened.handle, len(BODY) - 1, b"xyz"))
    rig.core.release(opened.handle)


async def append(rig: Rig, _root: int, number: int) -> Any:
    opened = await answer(rig.core.open(number, os.O_WRONLY | os.O_APPEND, ME))
    written = rig.core.write(opened.handle, 0, b"more")
    assert written == 4, "an append must not wait"
    rig.core.release(opened.handle)


async def truncate_by_path(rig: Rig, _root: int, number: int) -> Any:
    await answer(rig.core.setattr(number, ME, size=4))


async def truncate_by_handle(rig: Rig, _root: int, number: int) -> Any:
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    await answer(rig.core.setattr(number, ME, size=0, handle=opened.handle))
    rig.core.release(opened.handle)


async def extend(rig: Rig, _root: int, number: int) -> Any:
    await answer(rig.core.setattr(number, ME, size=400))


async def open_with_truncation(rig: Rig, _root: int, number: int) -> Any:
    opened = await answer(rig.core.open(number, os.O_WRONLY | os.O_TRUNC, ME))
    rig.core.write(opened.handle, 0, b"new")
    rig.core.release(opened.handle)


async def create_over(rig: Rig, root: int, _number: int) -> Any:
    opened, _ = await answer(rig.core.create(root, b"a", 0o644, os.O_WRONLY | os.O_TRUNC, ME))
    rig.core.release(opened.handle)


async def unlink(rig: Rig, root: int, _number: int) -> Any:
    await answer(rig.core.unlink(root, b"a", ME))


async def unlink_and_write_on(rig: Rig, root: int, number: int) -> Any:
    opened = await answer(rig.core.open(number, os.O_RDWR, ME))
    await answer(rig.core.unlink(root, b"a", ME))
    assert rig.core.write(opened.handle, 10, b"behind") == 6
    await answer(rig.core.write(opened.handle, 0, b"below"))
    rig.core.release(opened.handle)


async def replace(rig: Rig, root: int, _number: int) -> Any:
    await rig.file(root, b"n", b"other")
    await answer(rig.core.rename(root, b"n", root, b"a", 0, ME))


async def rename_then_overwrite(rig: Rig, root: int, number: int) -> Any:
    await answer(rig.core.rename(root, b"a", root, b"b", 0, ME))
    await overwrite(rig, root, number)


async def link_then_unlink_both(rig: Rig, root: int, number: int) -> Any:
    await answer(rig.core.link(number, root, b"b", ME))
    await answer(rig.core.unlink(root, b"a", ME))
    assert rig.core.getattr(number).nlink == 1
    await answer(rig.core.unlink(root, b"b", ME))
    assert rig.core.getattr(number).nlink == 0


async def forget_then_unlink(rig: Rig, root: int, number: int) -> Any:
    rig.core.forget(number, 1)
    await answer(rig.core.unlink(root, b"a", ME))
    assert await rig.file(root, b"fresh") != number, "its number must stay taken"


CHANGES = (
    overwrite, overwrite_the_last_byte, append, truncate_by_path, truncate_by_handle, extend, open_with_truncation, create_over, unlink,
    unlink_and_write_on, replace, rename_then_overwrite, link_then_unlink_both, forget_then_unlink,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_the_bytes_of_the_barrier_are_there_after_any_change(
    rig: Rig, change: Callable[[Rig, int, int], Awaitable[Any]]
) -> None:
    root, number = await frozen_file(rig)
    await change(rig, root, number)
    assert kept(rig, number, "s", "a") == BODY
    rig.core.thaw(Thaw("c1"))
    assert os.listdir(rig.layout.staging) == []
    assert where(rig, number).is_lost


@pytest.mark.parametrize("change", [append, extend], ids=lambda change: change.__name__)
async def test_a_file_that_only_grows_is_not_copied(
    rig: Rig, change: Callable[[Rig, int, int], Awaitable[Any]]
) -> None:
    root, number = await frozen_file(rig)
    assert where(rig, number) == FrozenAt("", is_grown=False)
    await change(rig, root, number)
    assert where(rig, number) == FrozenAt("", is_grown=True)
    assert os.listdir(rig.layout.staging) == []


async def test_a_file_is_copied_once(rig: Rig) -> None:
    root, number = await frozen_file(rig)
    for _ in range(3):
        await overwrite(rig, root, number)
    assert len(os.listdir(rig.layout.staging)) == 1
    assert kept(rig, number) == BODY
    assert (await rig.read(number)) == b"012xyz6789"


async def test_a_removed_file_shows_its_own_links_only(rig: Rig) -> None:
    root, number = await frozen_file(rig)
    opened = await answer(rig.core.open(number, os.O_RDWR, ME))
    await answer(rig.core.unlink(root, b"a", ME))
    assert rig.core.getattr(number).nlink == 0
    rig.core.release(opened.handle)
    assert os.listdir(rig.layout.trash) == [str(number)]
    rig.core.forget(number, 1)
    assert os.listdir(rig.layout.trash) == []
    assert kept(rig, number) == BODY


class SlowCopy:
    """Lets a test hold the copying thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = trio.Event()
        self.go_on = threading.Event()
        self.problem: OSError | None = None
        self._copy = copy_first_bytes
        self._token = trio.lowlevel.current_trio_token()
        monkeypatch.setattr(freezing, "copy_first_bytes", self)

    def __call__(self, source: int, target: str, size_bytes: int) -> None:
        self._token.run_sync_soon(self.begun.set)
        self.go_on.wait(30)
        if self.problem is not None:
            raise self.problem
        self._copy(source, target, size_bytes)


async def test_what_changes_the_kept_bytes_waits_for_the_copy_and_appends_do_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, number = await frozen_file(rig)
    first = await answer(rig.core.open(number, os.O_RDWR, ME))
    log = await answer(rig.core.open(number, os.O_WRONLY | os.O_APPEND, ME))
    slow = SlowCopy(monkeypatch)
    done: list[str] = []

    async def change(name: str, call: Callable[[], Any]) -> None:
        await answer(call())
        done.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change, "write", lambda: rig.core.write(first.handle, 0, b"AB"))
        await slow.begun.wait()
        nursery.start_soon(change, "second write", lambda: rig.core.write(first.handle, 2, b"CD"))
        nursery.start_soon(change, "truncate", lambda: rig.core.setattr(number, ME, size=5))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert rig.core.write(log.handle, 0, b"tail") == 4
        assert done == []
        assert rig.core.read(first.handle, 0, 10) == BODY
        assert where(rig, number) == FrozenAt("", is_grown=True)
        slow.go_on.set()
    assert sorted(done) == ["second write", "truncate", "write"]
    assert kept(rig, number) == BODY
    assert (await rig.read(number))[:4] == b"ABCD"


async def test_a_full_disk_is_the_writers_error_and_changes_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, number = await frozen_file(rig)
    opened = await answer(rig.core.open(number, os.O_RDWR, ME))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(freezing, "copy_first_bytes", full)
        for call in (
            lambda: rig.core.write(opened.handle, 0, b"x"),
            lambda: rig.core.setattr(number, ME, size=0),
            lambda: rig.core.open(number, os.O_WRONLY | os.O_TRUNC, ME),
        ):
            with pytest.raises(OSError, match="No space left"):
                await answer(call())
        assert await rig.read(number) == BODY
        assert kept(rig, number, "s", "a") == BODY
    await overwrite(rig, root, number)
    assert kept(rig, number) == BODY


@pytest.mark.parametrize("failing", ["unlink", "rename"])
async def test_a_name_that_could_not_go_leaves_no_link(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    root, number = await frozen_file(rig)
    await rig.file(root, b"n", b"other")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        # The last name of a file that the kernel knows goes by a rename to the trash.
        patch.setattr(os, "rename", refuse)
        call = (
            partial(rig.core.unlink, root, b"a", ME)
            if failing == "unlink"
            else partial(rig.core.rename, root, b"n", root, b"a", 0, ME)
        )
        with pytest.raises(OSError, match="no"):
            await answer(call())
    assert os.listdir(rig.layout.staging) == []
    assert rig.core.getattr(number).nlink == 1
    assert kept(rig, number, "s", "a") == BODY


async def test_a_frozen_file_is_not_evicted(rig: Rig) -> None:
    _, number = await frozen_file(rig)
    status = os.stat(os.path.join(rig.layout.sessions, "s", "a"))
    message = Evict(number, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    assert rig.core.evict(message) is False
    rig.core.forget(number, 1)
    assert rig.core.evict(message, b"s/a") is False
    rig.core.thaw(Thaw("c1"))
    assert rig.core.evict(message, b"s/a") is True


async def test_commits_of_two_sessions_do_not_touch_each_other(rig: Rig) -> None:
    roots = [await rig.session(name) for name in (b"s", b"t")]
    numbers = [await rig.file(root, b"a", BODY) for root in roots]
    assert cut(rig, "c1", session="s") == {numbers[0]: 10}
    assert cut(rig, "c2", session="t") == {numbers[1]: 10}
    for root, number in zip(roots, numbers, strict=True):
        await overwrite(rig, root, number)
    rig.core.thaw(Thaw("c1"))
    assert kept(rig, numbers[1], commit="c2") == BODY
    assert where(rig, numbers[0]).is_lost
    assert len(os.listdir(rig.layout.staging)) == 1


async def test_the_next_commit_of_a_session_lets_go_what_a_dead_one_kept(rig: Rig) -> None:
    root, number = await frozen_file(rig)
    await overwrite(rig, root, number)
    assert cut(rig, "c2") == {number: 10}
    assert os.listdir(rig.layout.staging) == []
    assert where(rig, number, "c1").is_lost
    assert kept(rig, number, "s", "a", commit="c2") == b"012xyz6789"


async def test_a_commit_that_ends_during_a_copy_leaves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, number = await frozen_file(rig)
    opened = await answer(rig.core.open(number, os.O_RDWR, ME))
    slow = SlowCopy(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer, rig.core.write(opened.handle, 0, b"x"))
        await slow.begun.wait()
        rig.core.thaw(Thaw("c1"))
        slow.go_on.set()
    assert os.listdir(rig.layout.staging) == []
    assert await rig.read(number) == b"x123456789"


async def test_a_lost_session_keeps_nothing_for_its_commit(rig: Rig) -> None:
    root, number = await frozen_file(rig)
    await overwrite(rig, root, number)
    rig.core.note_session_state(SessionState("s", owned=False, holder="host b"))
    assert os.listdir(rig.layout.staging) == []
    assert where(rig, number).is_lost


async def test_bytes_that_were_cut_below_the_mount_are_lost(rig: Rig) -> None:
    _, number = await frozen_file(rig)
    os.truncate(os.path.join(rig.layout.sessions, "s", "a"), 3)
    assert where(rig, number).is_lost


async def test_a_large_file_is_copied_at_the_barrier(rigs: Rigs) -> None:
    rig = rigs(freeze_copy_bytes=4)
    root = await rig.session()
    large, small = await rig.file(root, b"large", b"12345"), await rig.file(root, b"small", b"1234")
    assert cut(rig) == {large: 5, small: 4}
    assert where(rig, large).staged
    assert not where(rig, small).staged
    opened = await answer(rig.core.open(large, os.O_WRONLY, ME))
    assert rig.core.write(opened.handle, 0, b"x") == 1
    assert kept(rig, large) == b"12345"


async def test_a_write_only_handle_does_not_keep_the_copy_from_being_read(rig: Rig) -> None:
    root, number = await frozen_file(rig)
    await answer(rig.core.setattr(number, ME, mode=0o200))
    await overwrite(rig, root, number)
    at = where(rig, number)
    # Root reads everything; others learn that nobody could have read the file.
    assert at.is_lost or kept(rig, number) == BODY


def test_the_registry_is_asked_only_for_frozen_files(rig: Rig) -> None:
    assert not rig.core._loading.freezing.must_copy(Node(5, 0, None), 0)
