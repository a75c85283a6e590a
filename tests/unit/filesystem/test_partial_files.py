"""Large files that are read before they are here."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.formats.link_messages import Evict
from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.model.errors import CorruptDataError, UnavailableError

from .conftest import ME, Rig, answer

Rigs = Callable[..., Rig]

BLOCKS = 6
BODY = random.Random(1).randbytes((BLOCKS - 1) * BLOCK_BYTES + 1000)
OTHER = random.Random(2).randbytes(2 * BLOCK_BYTES + 7)
LAST = BLOCKS - 1


class Large:
    """A session with one large file in the bucket.

    Attributes:
        root: Number of the session's root.
        number: The file's.
    """

    def __init__(self, rig: Rig, *, foreign: bool = True) -> None:
        self.rig = rig
        self.root = rig.remote.add_session("s", foreign=foreign)
        self.number = rig.remote.add_large_file(self.root, b"f", BODY)

    async def open(self, flags: int = os.O_RDONLY, name: bytes = b"f") -> int:
        """Open the file; gives the handle."""
        found = await self.rig.look(b"s", name)
        return int((await answer(self.rig.core.open(found.number, flags, ME))).handle)

    async def read(self, handle: int, offset: int, length: int) -> bytes:
        found: bytes = await answer(self.rig.core.read(handle, offset, length))
        return found

    async def touch(self, handle: int, blocks: Iterable[int]) -> None:
        """Read a little of each block, in order."""
        for block in blocks:
            offset = block * BLOCK_BYTES
            assert await self.read(handle, offset, 10) == BODY[offset : offset + 10]

    def asked(self) -> list[int]:
        return self.rig.remote.blocks_asked()

    def fetched_whole(self) -> bool:
        return any(name == "fetch" for name, _ in self.rig.remote.calls)

    def here(self, name: str = "f") -> Path:
        """The file's place in the working copy."""
        return Path(self.rig.layout.sessions, "s", name)

    def staged(self) -> list[str]:
        return os.listdir(self.rig.layout.staging)


@pytest.fixture
def large(rig: Rig) -> Large:
    return Large(rig)


@asynccontextmanager
async def background(rig: Rig) -> AsyncIterator[None]:
    """Let what nobody waits for run."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.core.run_background)
        await trio.testing.wait_all_tasks_blocked()
        yield
        rig.core.stop_background()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await trio.sleep(0.01)
    raise AssertionError("it never became true")


# --- what is brought


async def test_opening_brings_nothing_and_a_read_only_the_blocks_it_touches(large: Large) -> None:
    handle = await large.open()
    assert large.asked() == []
    assert await large.read(handle, len(BODY) - 100, 4096) == BODY[-100:]
    assert large.asked() == [LAST]
    assert await large.read(handle, 0, 1) == BODY[:1]
    assert await large.read(handle, len(BODY) - 100, 100) == BODY[-100:]
    assert large.asked() == [LAST, 0]
    border = 3 * BLOCK_BYTES
    assert await large.read(handle, border - 5, 10) == BODY[border - 5 : border + 5]
    assert sorted(large.asked()) == [0, 2, 3, LAST]
    assert await large.read(handle, len(BODY), 10) == b""
    assert not large.fetched_whole()
    assert not large.here().exists()


async def test_a_file_without_sums_of_its_blocks_comes_whole(rig: Rig) -> None:
    root = rig.remote.add_session("s")
    rig.remote.add_file(root, b"f", BODY)
    found = await rig.look(b"s", b"f")
    assert (await rig.read(found.number))[:10] == BODY[:10]
    assert [call for call in rig.remote.take_calls() if "fetch" in call[0]] == [("fetch", found.number)]


async def test_a_store_that_is_away_is_an_error_of_the_read_and_not_of_the_open(large: Large) -> None:
    large.rig.remote.fail("away")
    handle = await large.open()
    with pytest.raises(UnavailableError):
        await large.read(handle, 0, 10)
    large.rig.remote.fail("")
    assert await large.read(handle, 0, 10) == BODY[:10]


async def test_readers_of_one_block_share_it_and_four_blocks_come_at_once(large: Large) -> None:
    handles = [await large.open() for _ in range(2)]
    large.rig.remote.hold_blocks()
    found: dict[tuple[int, int], bytes] = {}

    async def read(handle: int, block: int) -> None:
        found[handle, block] = await large.read(handle, block * BLOCK_BYTES + 5, 20)

    async with trio.open_nursery() as nursery:
        for block in (4, 2, 0, 3, 1, 5):
            for handle in handles:
                nursery.start_soon(read, handle, block)
        await trio.testing.wait_all_tasks_blocked()
        assert len(large.asked()) == 4
        large.rig.remote.let_blocks_go()
    assert sorted(large.asked()) == list(range(BLOCKS))
    assert all(body == BODY[b * BLOCK_BYTES + 5 :][:20] for (_, b), body in found.items())


async def test_one_reader_in_a_row_gets_two_blocks_in_advance_and_others_none(large: Large) -> None:
    async with background(large.rig):
        handle = await large.open()
        await large.touch(handle, [3, 5, 0])
        await trio.testing.wait_all_tasks_blocked()
        assert large.asked() == [3, 5, 0]
        await large.touch(handle, [1])
        await until(lambda: sorted(large.asked()) == [0, 1, 2, 3, 5])
        assert await large.read(handle, 2 * BLOCK_BYTES - 1, 1) == BODY[2 * BLOCK_BYTES - 1 :][:1]
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(large.asked()) == [0, 1, 2, 3, 5]


async def test_after_four_blocks_in_a_row_the_rest_follows_and_the_file_is_here(large: Large) -> None:
    async with background(large.rig):
        handle = await large.open()
        await large.touch(handle, range(4))
        await until(large.here().exists)
        assert sorted(large.asked()) == list(range(BLOCKS))
        assert large.here().read_bytes() == BODY
        assert large.staged() == []
        assert large.rig.operations()[-1] == "FETCHED"
        assert not large.fetched_whole()
        large.rig.remote.fail("away")
        assert await large.read(handle, 5, 10) == BODY[5:15]
        assert await large.read(await large.open(), 5, 10) == BODY[5:15]
        status = large.here().stat()
        assert (status.st_size, stat.S_IMODE(status.st_mode)) == (len(BODY), 0o644)
        assert status.st_mtime_ns == 1_600_000_000_123_456_789


async def test_a_file_of_which_every_block_was_touched_is_here(large: Large) -> None:
    async with background(large.rig):
        await large.touch(await large.open(), [5, 3, 1, 4, 2, 0])
        await until(large.here().exists)
        assert large.here().read_bytes() == BODY


async def test_what_follows_a_reader_ends_when_he_has_gone(large: Large) -> None:
    large.rig.remote.add_large_file(large.root, b"larger", bytes(12 * BLOCK_BYTES))
    async with background(large.rig):
        handle = await large.open(name=b"larger")
        for block in range(3):
            assert await large.read(handle, block * BLOCK_BYTES, 9) == bytes(9)
        await until(lambda: sorted(large.asked()) == [0, 1, 2, 3, 4])
        await trio.testing.wait_all_tasks_blocked()
        large.rig.remote.hold_blocks()
        assert await large.read(handle, 3 * BLOCK_BYTES, 9) == bytes(9)
        await until(lambda: sorted(large.asked()) == [0, 1, 2, 3, 4, 5, 6, 7])
        large.rig.core.release(handle)
        large.rig.remote.let_blocks_go()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(large.asked()) == [0, 1, 2, 3, 4, 5, 6, 7]


async def test_a_block_that_does_not_verify_is_an_error_and_never_shown(large: Large) -> None:
    large.rig.remote.bad_blocks = {1}
    async with background(large.rig):
        handle = await large.open()
        await large.touch(handle, [0])
        for _ in range(2):
            with pytest.raises(CorruptDataError):
                await large.read(handle, BLOCK_BYTES - 2, 4)
        await large.touch(handle, [2, 3, 4, 5])
        with pytest.raises(CorruptDataError):
            await large.open(os.O_RDWR)
        assert not large.here().exists()
        large.rig.remote.bad_blocks = set()
        assert await large.read(handle, BLOCK_BYTES - 2, 4) == BODY[BLOCK_BYTES - 2 : BLOCK_BYTES + 2]
        await until(large.here().exists)
    assert large.here().read_bytes() == BODY


# --- who needs all of it, and who changes it meanwhile


async def test_a_writer_takes_over_the_blocks_that_are_here(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [4, 1])
    writing = await large.open(os.O_RDWR)
    assert sorted(large.asked()) == list(range(BLOCKS))
    assert not large.fetched_whole()
    assert large.rig.core.write(writing, 3, b"new") == 3
    assert await large.read(reading, 0, 8) == BODY[:3] + b"new" + BODY[6:8]
    assert large.here().read_bytes() == BODY[:3] + b"new" + BODY[6:]


async def test_a_file_cut_to_nothing_is_empty_for_its_readers(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [1])
    large.rig.remote.hold_blocks()
    late: list[bytes] = []

    async def read_late() -> None:
        late.append(await large.read(reading, 2 * BLOCK_BYTES, 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_late)
        await trio.testing.wait_all_tasks_blocked()
        writing = await large.open(os.O_WRONLY | os.O_TRUNC)
        large.rig.remote.let_blocks_go()
    assert late == [b""]
    assert large.rig.core.write(writing, 0, b"anew") == 4
    assert await large.read(reading, 0, 10) == b"anew"
    assert large.staged() == []
    assert large.asked() == [1, 2]


async def test_a_writer_who_waits_for_blocks_gets_the_file_that_was_cut_meanwhile(large: Large) -> None:
    large.rig.remote.hold_blocks()
    handles: list[int] = []

    async def write() -> None:
        handles.append(await large.open(os.O_RDWR))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        await large.open(os.O_WRONLY | os.O_TRUNC)
        large.rig.remote.let_blocks_go()
    assert len(large.asked()) == 4
    assert not large.fetched_whole()
    assert large.rig.core.write(handles[0], 0, b"anew") == 4
    assert large.here().read_bytes() == b"anew"
    assert large.staged() == []


async def test_a_file_keeps_its_blocks_through_rename_chmod_and_another_name(large: Large) -> None:
    rig = large.rig
    reading = await large.open()
    await large.touch(reading, [1])
    await answer(rig.core.rename(large.root, b"f", large.root, b"g", 0, ME))
    await answer(rig.core.setattr(large.number, ME, mode=0o600))
    await answer(rig.core.link(large.number, large.root, b"h", ME))
    rig.remote.change_entry(large.number, mode=stat.S_IFREG | 0o600, nlink=2)
    await large.touch(reading, [3])
    await large.open(os.O_RDWR, b"g")
    assert sorted(large.asked()) == list(range(BLOCKS))
    assert large.here("g").read_bytes() == BODY
    assert large.here("g").samefile(large.here("h"))
    assert stat.S_IMODE(large.here("g").stat().st_mode) == 0o600
    assert await large.read(reading, 7, 10) == BODY[7:17]


@pytest.mark.parametrize("how", ["unlink", "rename"])
async def test_a_file_that_loses_its_name_is_read_to_its_end(large: Large, how: str) -> None:
    core = large.rig.core
    reading = await large.open()
    await large.touch(reading, [1])
    if how == "unlink":
        await answer(core.unlink(large.root, b"f", ME))
    else:
        await large.rig.file(large.root, b"other")
        await answer(core.rename(large.root, b"other", large.root, b"f", 0, ME))
    large.rig.remote.fail("away")
    await large.touch(reading, range(BLOCKS))
    assert large.staged() == []
    core.release(reading)


async def test_a_name_can_be_removed_while_the_store_is_away(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [1])
    large.rig.remote.fail("away")
    await answer(large.rig.core.unlink(large.root, b"f", ME))
    await large.touch(reading, [1])
    with pytest.raises(UnavailableError):
        await large.touch(reading, [2])
    large.rig.core.release(reading)
    assert large.staged() == []


async def test_one_of_two_names_goes_without_waiting(large: Large) -> None:
    reading = await large.open()
    await answer(large.rig.core.link(large.number, large.root, b"g", ME))
    assert large.rig.core.unlink(large.root, b"f", ME) is None
    await large.touch(reading, [1])
    assert large.asked() == [1]


async def test_an_evicted_file_comes_back_by_blocks(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"f", BODY)
    rig.remote.children[root] = {}
    rig.remote.add_file(root, b"f", BODY, number=number)
    sha256 = rig.remote.sum_blocks(number)
    status = os.stat(os.path.join(rig.layout.sessions, "s", "f"))
    identity = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    assert rig.core.evict(Evict(number, *identity, blocks_of=sha256), b"s/f")
    opened = await answer(rig.core.open(number, os.O_RDONLY, ME))
    assert await answer(rig.core.read(opened.handle, len(BODY) - 3, 9)) == BODY[-3:]
    assert rig.remote.blocks_asked() == [LAST]


# --- another host


def replace_elsewhere(large: Large) -> None:
    """Let another host put other bytes, which may come by blocks too."""
    large.rig.remote.replace_file(large.root, b"f", OTHER, mtime_ns=5)
    large.rig.remote.sum_blocks(large.number)


async def refresh(large: Large) -> None:
    """Let the mount hear of it, as when the lag is over."""
    session = large.rig.core._sessions.sessions[b"s"]
    await large.rig.core._loading.compare(session)
    await large.rig.look(b"s", b"f")


async def test_who_reads_keeps_what_another_host_replaced_until_he_closes_it(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [0])
    replace_elsewhere(large)
    await refresh(large)
    await large.touch(reading, [1, 0])
    shown = await large.rig.look(b"s", b"f")
    assert shown.size == len(BODY)
    large.rig.core.release(reading)
    shown = await large.rig.look(b"s", b"f")
    assert (shown.size, shown.mtime_ns) == (len(OTHER), 5)
    again = await large.open()
    assert await large.read(again, len(OTHER) - 9, 100) == OTHER[-9:]
    large.rig.core.release(again)
    assert large.staged() == []


async def test_old_bytes_that_are_nowhere_any_more_are_stale(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [0])
    large.rig.remote.lost = {large.rig.remote.children[large.root][b"f"].blocks_of}
    replace_elsewhere(large)
    await refresh(large)
    await large.touch(reading, [0])
    with pytest.raises(OSError, match="Stale") as problem:
        await large.touch(reading, [1])
    assert problem.value.errno == errno.ESTALE


async def test_a_writer_gets_the_newer_bytes_while_others_read_the_old(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [0])
    replace_elsewhere(large)
    await refresh(large)
    writing = await large.open(os.O_RDWR)
    assert large.here().read_bytes() == OTHER
    assert await large.read(writing, 0, 9) == OTHER[:9]
    await large.touch(reading, [0, 2])
    assert large.rig.core.getattr(large.number).size == len(OTHER)
    large.rig.core.release(reading)
    assert large.staged() == []


async def test_bytes_that_were_replaced_before_the_mount_heard_of_it_come_whole(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [0])
    replace_elsewhere(large)
    await large.open(os.O_RDWR)
    assert large.fetched_whole()
    assert large.here().read_bytes() == OTHER
    await large.touch(reading, [0, 1])


async def test_a_reader_of_a_name_that_another_host_removed_goes_on(large: Large) -> None:
    reading = await large.open()
    await large.touch(reading, [0])
    large.rig.remote.children[large.root].pop(b"f")
    large.rig.remote.refreshed = SessionRefreshed([large.root], [large.number], foreign=True)
    session = large.rig.core._sessions.sessions[b"s"]
    await large.rig.core._loading.compare(session)
    assert await large.rig.names((await large.rig.look(b"s")).number) == []
    await large.touch(reading, [0, 1])
    large.rig.core.release(reading)
    assert large.staged() == []


# --- staging


async def test_blocks_stay_a_while_after_the_last_reader_and_then_leave(rigs: Rigs) -> None:
    large = Large(rigs(fetch_timeout_seconds=0.3))
    async with background(large.rig):
        first = await large.open()
        await large.touch(first, [2])
        large.rig.core.release(first)
        second = await large.open()
        await large.touch(second, [2])
        assert large.asked() == [2]
        large.rig.core.release(second)
        assert len(large.staged()) == 1
        await until(lambda: large.staged() == [])
        await large.touch(await large.open(), [2])
        assert large.asked() == [2, 2]
