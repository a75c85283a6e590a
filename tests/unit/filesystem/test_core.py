from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest
import trio

from sessionfs.filesystem import inodes
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import (
    Evict,
)
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.errors import NotFoundError, UnavailableError
from sessionfs.working_copy.layout import ROOT_NUMBER
from tests.unit.filesystem.conftest import ME, Rig, Somebody, answer

STRANGER = Somebody(54321, 54321)


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "full")


async def refused(call: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    try:
        await answer(call(*arguments, **named))
    except OSError as problem:
        return problem.errno or 0
    return 0


async def test_nothing_is_applied_when_the_intent_cannot_be_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"x")
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    await trio.sleep(0.6)
    monkeypatch.setattr(rig.log, "_append", refuse)
    assert await refused(rig.core.mkdir, root, b"d", 0o755, ME) == errno.ENOSPC
    assert await refused(rig.core.unlink, root, b"a", ME) == errno.ENOSPC
    assert await refused(rig.core.rename, root, b"a", root, b"b", 0, ME) == errno.ENOSPC
    assert await refused(rig.core.write, opened.handle, 0, b"y") == errno.ENOSPC
    assert await refused(rig.core.open, number, os.O_RDWR, ME) == errno.ENOSPC
    monkeypatch.undo()
    assert await rig.names(root) == [b"a"]
    assert await rig.read(number) == b"x"


async def test_a_record_that_must_come_is_written_before_the_next_intent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = await rig.session()
    opened, _ = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    with monkeypatch.context() as patch:
        patch.setattr(rig.log, "_append", refuse)
        rig.core.release(opened.handle)
        assert await refused(rig.core.mkdir, root, b"d", 0o755, ME) == errno.ENOSPC
    await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert rig.operations()[-2:] == ["RELEASE_WRITE", "MKDIR"]


async def test_an_operation_that_the_disk_refused_says_so_in_the_log(rig: Rig) -> None:
    root = await rig.session()
    await rig.file(root, b"a")
    assert await refused(rig.core.mkdir, root, b"a", 0o755, ME) == errno.EEXIST
    assert [(name, number) for name, number, _ in rig.records()][-1] == ("MKDIR", errno.EEXIST)


async def test_writes_are_noted_at_most_twice_a_second(rig: Rig) -> None:
    root = await rig.session()
    opened, _ = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    for number in range(100):
        rig.core.write(opened.handle, number, b"x")
    await trio.sleep(0.55)
    rig.core.write(opened.handle, 0, b"x")
    rig.core.release(opened.handle)
    assert rig.operations() == ["MKDIR", "CREATE", "OPEN_WRITE", "WRITTEN", "WRITTEN", "RELEASE_WRITE"]


async def test_an_image_counts_changes_below_its_end(rig: Rig) -> None:
    root = await rig.session()
    opened, shown = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    rig.core.write(opened.handle, 0, b"12345")
    first = rig.core.begin_image(shown.number)
    assert (first.size_bytes, first.rewrites, first.writers) == (5, 0, 1)
    rig.core.write(opened.handle, 5, b"678")
    assert rig.core.begin_image(shown.number).rewrites == 0
    rig.core.write(opened.handle, 4, b"x")
    await answer(rig.core.setattr(shown.number, ME, size=2))
    last = rig.core.end_image(shown.number)
    assert (last.size_bytes, last.rewrites) == (2, 2)
    rig.core.release(opened.handle)
    assert rig.core.begin_image(shown.number).writers == 0
    rig.core.forget(shown.number, 1)
    for call in (rig.core.end_image, rig.core.begin_image):
        with pytest.raises(NotFoundError):
            call(shown.number)


async def test_appends_through_two_handles_are_no_rewrites(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"log", b"0")
    flags = os.O_WRONLY | os.O_APPEND
    first, second = [await answer(rig.core.open(number, flags, ME)) for _ in range(2)]
    rig.core.begin_image(number)
    for opened in (first, second, first):
        rig.core.write(opened.handle, 1, b"x")
    assert rig.core.end_image(number).rewrites == 0
    assert await rig.read(number) == b"0xxx"


async def test_what_the_kernel_forgets_is_forgotten(rig: Rig) -> None:
    root = await rig.session()
    directory = await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    numbers = [await rig.file(directory.number, b"%d" % n) for n in range(20)]
    assert rig.core.status_counters()["inodes"] == 23
    rig.core.forget(directory.number, 1)
    assert rig.core.status_counters()["inodes"] == 23
    for number in numbers:
        rig.core.forget(number, 1)
    assert rig.core.status_counters()["inodes"] == 2
    assert (await rig.look(b"s", b"d", b"7")).number == numbers[7]
    assert ("list_children", directory.number) in rig.remote.calls


async def test_a_number_is_not_reused_while_the_kernel_knows_it(rig: Rig) -> None:
    root = await rig.session()
    old = await rig.file(root, b"a", b"old")
    await answer(rig.core.unlink(root, b"a", ME))
    assert [await rig.file(root, b"n%d" % n) for n in range(30)].count(old) == 0
    assert rig.core.getattr(old).nlink == 0
    rig.core.forget(old, 1)
    assert await refused(rig.core.getattr, old) == errno.ESTALE
    assert os.listdir(rig.layout.trash) == []


async def test_the_trash_of_the_last_daemon_is_emptied(rig: Rig) -> None:
    root = await rig.session()
    await rig.file(root, b"a")
    await answer(rig.core.unlink(root, b"a", ME))
    rig.stop()
    assert len(os.listdir(rig.layout.trash)) == 1
    rig.start()
    assert os.listdir(rig.layout.trash) == []


async def test_a_file_can_be_found_by_its_number(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a")
    assert (await answer(rig.core.lookup(number, b".", ME))).number == number
    assert (await answer(rig.core.lookup(root, b"..", ME))).number == ROOT_NUMBER
    assert await refused(rig.core.lookup, 99999, b".", ME) == errno.ESTALE


async def test_a_session_made_while_the_store_is_away_is_taken(rig: Rig) -> None:
    rig.remote.error = UnavailableError("away")
    root = await rig.session(b"fresh")
    await rig.file(root, b"a")
    assert await rig.names(root) == [b"a"]
    with pytest.raises(UnavailableError):
        await rig.look(b"unknown")


@pytest.mark.parametrize("call", ["open_session", "list_children"])
async def test_waits_for_names_end_after_the_timeout(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    rig = rigs(fetch_timeout_seconds=0.2)
    rig.remote.add_file(rig.remote.add_session("s"), b"a", b"x")

    async def silent(_argument: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(rig.remote, call, silent)
    with trio.fail_after(5):
        with pytest.raises(OSError, match="Input/output error"):
            await rig.look(b"s", b"a")
    assert rig.core.status_counters()["waits"] == 0


async def test_a_known_name_is_shown_while_the_store_is_silent(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(fetch_timeout_seconds=0.5, foreign_lag_seconds=1.0)
    number = rig.remote.add_file(rig.remote.add_session("s"), b"a", b"x")
    await rig.look(b"s", b"a")

    async def silent(_session: str, **_named: int) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(rig.remote, "refresh_session", silent)
    await trio.sleep(0.6)
    assert (await rig.look(b"s", b"a")).number == number


async def test_a_lag_of_nothing_still_answers(rigs: Callable[..., Rig]) -> None:
    rig = rigs(foreign_lag_seconds=0.0)
    number = rig.remote.add_file(rig.remote.add_session("s"), b"a", b"x")
    assert (await rig.look(b"s", b"a")).number == number
    assert await rig.read(number) == b"x"


async def test_two_at_once_wait_for_the_names_of_one_directory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = rig.remote.add_session("s")
    number = rig.remote.add_file(root, b"a", b"x")
    await rig.look(b"s")
    answered = rig.remote.list_children

    async def slow(directory: int) -> Any:
        await trio.sleep(0.1)
        return await answered(directory)

    monkeypatch.setattr(rig.remote, "list_children", slow)
    found: list[int] = []

    async def look() -> None:
        found.append((await rig.look(b"s", b"a")).number)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(look)
    assert found == [number] * 3


async def test_a_file_removed_while_it_is_fetched_stays_removed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = rig.remote.add_session("s")
    number = rig.remote.add_file(root, b"a", b"x")
    await rig.look(b"s", b"a")
    answered, asked = rig.remote.fetch, trio.Event()

    async def slow(wanted: int) -> Any:
        asked.set()
        await trio.sleep(0.1)
        return await answered(wanted)

    monkeypatch.setattr(rig.remote, "fetch", slow)
    found: list[int] = []

    async def opener() -> None:
        found.append(await refused(rig.core.open, number, os.O_RDONLY, ME))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(opener)
        await asked.wait()
        await answer(rig.core.unlink(root, b"a", ME))
    assert found == [errno.ESTALE]
    assert os.listdir(rig.layout.staging) == []
    assert await rig.names(root) == []


async def test_a_chmod_during_a_fetch_wins(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    root = rig.remote.add_session("s")
    number = rig.remote.add_file(root, b"a", b"x", mode=0o644)
    await rig.look(b"s", b"a")
    answered, asked = rig.remote.fetch, trio.Event()

    async def slow(wanted: int) -> Any:
        asked.set()
        await trio.sleep(0.1)
        return await answered(wanted)

    monkeypatch.setattr(rig.remote, "fetch", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.read, number)
        await asked.wait()
        await answer(rig.core.setattr(number, ME, mode=0o600))
    assert stat.S_IMODE(rig.core.getattr(number).mode) == 0o600


async def test_a_store_that_is_away_leaves_a_foreign_session_as_it_was(rigs: Callable[..., Rig]) -> None:
    rig = rigs(foreign_lag_seconds=0.1)
    root = rig.remote.add_session("s")
    number = rig.remote.add_file(root, b"a", b"x")
    await rig.look(b"s", b"a")
    assert await rig.read(number) == b"x"
    rig.remote.error = UnavailableError("away")
    await trio.sleep(0.1)
    assert await rig.names(root) == [b"a"]
    assert await rig.read(number) == b"x"


async def test_files_that_nobody_knows_are_evicted_by_their_path(rig: Rig) -> None:
    root = await rig.session()
    directory = await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    number = await rig.file(directory.number, b"a", b"body")
    rig.core.forget(number, 1)
    rig.core.forget(directory.number, 1)
    status = os.stat(os.path.join(rig.layout.sessions, "s", "d", "a"))
    wrong = Evict(number, status.st_size, status.st_mtime_ns, status.st_ctime_ns - 1)
    right = Evict(number, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    assert rig.core.evict(wrong, b"s/d/a") is False
    assert rig.core.evict(right) is False
    assert rig.core.evict(right, b"s/d/none") is False
    assert rig.core.evict(right, b"s/d/a") is True
    assert os.listdir(os.path.join(rig.layout.sessions, "s", "d")) == []
    assert os.listdir(rig.layout.evicted) == [str(number)]
    assert os.stat(os.path.join(rig.layout.evicted, str(number))).st_ino == number
    assert rig.operations()[-1] == Operation.EVICTED.name
    assert rig.core.status_counters()["inodes"] == 2


async def test_an_evicted_file_keeps_its_number_after_a_restart(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"body")
    status = os.stat(os.path.join(rig.layout.sessions, "s", "a"))
    assert rig.core.evict(Evict(number, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    rig.stop()
    rig.remote.roots["s"] = await described(rig, root)
    rig.remote.children[root] = {}
    rig.remote.add_file(root, b"a", b"body", number=number)
    rig.start()
    assert (await rig.look(b"s", b"a")).number == number
    assert await rig.read(number) == b"body"
    assert number not in [await rig.file(root, b"n%d" % n) for n in range(20)]


async def described(rig: Rig, root: int) -> Any:
    rig.remote.add_session("other")
    found = rig.remote.roots.pop("other")
    import msgspec

    assert found.root is not None
    return msgspec.structs.replace(
        found, root=msgspec.structs.replace(found.root, number=root), foreign=False
    )


async def test_a_file_with_another_writer_is_not_evicted(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"body")
    path = os.path.join(rig.layout.sessions, "s", "a")
    writer = os.open(path, os.O_WRONLY)
    status = os.stat(path)
    message = Evict(number, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    assert rig.core.evict(message) is False
    os.close(writer)
    assert rig.core.evict(message) is True
    assert (await rig.look(b"s", b"a")).size == 4


async def test_a_missing_capability_is_remembered(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a")
    rig.core.forget(number, 1)
    await rig.look(b"s", b"a")
    assert not rig.core.lacks_capability(number)
    assert await refused(rig.core.getxattr, number, b"security.capability", ME) == errno.ENODATA
    assert rig.core.lacks_capability(number)
    assert not rig.core.lacks_capability(123456)


async def test_strangers_are_refused_without_a_kernel_too(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a")
    await answer(rig.core.setattr(number, ME, mode=0o600))
    assert await refused(rig.core.open, number, os.O_RDONLY, STRANGER) == errno.EACCES
    assert await refused(rig.core.create, root, b"b", 0o644, os.O_RDWR, STRANGER) == errno.EACCES
    assert await refused(rig.core.setattr, number, STRANGER, mode=0o777) == errno.EPERM
    assert await refused(rig.core.setattr, number, STRANGER, mtime_ns=1, atime_ns=1) == errno.EPERM
    assert await refused(rig.core.setxattr, number, b"user.x", b"1", STRANGER) == errno.EACCES
    assert await refused(rig.core.getxattr, number, b"user.x", STRANGER) == errno.EACCES
    assert rig.core.access(number, 4, STRANGER) is False
    await answer(rig.core.setattr(root, ME, mode=0o700))
    assert await refused(rig.core.lookup, root, b"a", STRANGER) == errno.EACCES
    assert await refused(rig.core.opendir, root, STRANGER) == errno.EACCES


async def test_names_below_closed_directories_are_not_cached_on_an_open_mount(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(allow_other=True)
    root = await rig.session()
    await rig.file(root, b"a")
    assert (await rig.look(b"s", b"a")).entry_timeout == rig.settings.cache_timeout_seconds
    told: list[tuple[int, bytes]] = []

    class Kernel:
        def invalidate_entry(self, parent: int, name: bytes) -> None:
            told.append((parent, name))

        def invalidate_inode(self, number: int) -> None:
            told.append((number, b""))

    rig.core.set_notifier(Kernel())
    await answer(rig.core.setattr(root, ME, mode=0o700))
    assert told == [(root, b"a")]
    assert (await rig.look(b"s", b"a")).entry_timeout == 0
    assert (await rig.look(b"s", b"none")).entry_timeout == 0


async def test_fsync_in_the_bucket_waits_for_the_bucket(rigs: Callable[..., Rig]) -> None:
    rig = rigs(fsync="bucket")
    root = await rig.session()
    opened, shown = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    await rig.core.fsync(opened.handle, data_only=True)
    below = await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    for directory in (below.number, root):
        await rig.core.fsyncdir(await answer(rig.core.opendir(directory, ME)))
    assert [call for call in rig.remote.calls if call[0] in {"flush", "commit"}] == [
        ("flush", shown.number),
        ("flush", below.number),
        ("commit", "s"),
    ]
    assert rig.remote.commits == [("s", "fsync", False)]
    rig.remote.error = UnavailableError("away")
    with pytest.raises(UnavailableError):
        await rig.core.fsync(opened.handle, data_only=False)


async def test_descriptors_of_directories_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inodes, "MAX_DIRECTORY_DESCRIPTORS", 8)
    root = await rig.session()
    numbers = []
    for n in range(40):
        made = await answer(rig.core.mkdir(root, b"d%d" % n, 0o755, ME))
        numbers.append(made.number)
        await rig.file(made.number, b"f", b"%d" % n)
    assert rig.core.status_counters()["directory_descriptors"] <= 8
    for n in (0, 20, 39):
        assert await rig.read((await answer(rig.core.lookup(numbers[n], b"f", ME))).number) == b"%d" % n


async def test_a_handle_that_is_not_open_is_refused(rig: Rig) -> None:
    assert await refused(rig.core.read, 77, 0, 1) == errno.EBADF
    assert await refused(rig.core.write, 77, 0, b"x") == errno.EBADF
    assert await refused(rig.core.readdir, 77, 0) == errno.EBADF
    rig.core.release(77)
    rig.core.releasedir(77)


async def test_a_sync_to_the_bucket_of_a_session_that_was_lost_is_an_error(rigs: Callable[..., Rig]) -> None:
    """What was written before the loss is in no generation."""
    rig = rigs(fsync="bucket")
    session = await rig.session()
    await rig.file(session, b"a", b"1")
    handle = await answer(rig.core.opendir(session, ME))
    await rig.core.fsyncdir(handle)
    rig.core.note_session_state(SessionState("s", owned=False, holder="b"))
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        await rig.core.fsyncdir(handle)
    rig.core.releasedir(handle)
