"""Large files of the bucket through the kernel, read before they are here."""

from __future__ import annotations

import errno
import mmap
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.testing.fake_remote import FakeRemote
from tests.filesystem.conftest import Mounter
from tests.filesystem.mounting import Mounted, Rig
from tests.filesystem.test_rename_and_unlink import errno_of

pytestmark = pytest.mark.fuse

BLOCKS = 6
LAST = BLOCKS - 1
SIZE_BYTES = LAST * BLOCK_BYTES + 1_234_567


def body() -> bytes:
    """The file's content, the same in every process."""
    return random.Random(4).randbytes(SIZE_BYTES)


BODY = body()


def tree(remote: FakeRemote) -> int:
    return remote.add_large_file(remote.add_session("s"), b"f", body())


def set_bad_blocks(rig: Rig, *blocks: int) -> None:
    rig[1].bad_blocks = set(blocks)


def blocks(mounted: Mounted) -> list[int]:
    found: list[int] = mounted.remote("blocks_asked")
    return found


def is_here(mounted: Mounted) -> bool:
    return Path(mounted.layout.sessions, "s", "f").exists()


def wait_until_here(mounted: Mounted) -> None:
    deadline = time.monotonic() + 20
    while not is_here(mounted):
        assert time.monotonic() < deadline, "the file never got its place"
        time.sleep(0.01)


def test_a_tail_and_a_head_bring_one_block_each(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    path = mounted.at("s", "f")
    assert os.stat(path).st_size == SIZE_BYTES
    assert subprocess.run(["tail", "-c", "100", path], capture_output=True, check=True).stdout == BODY[-100:]
    assert blocks(mounted) == [LAST]
    assert subprocess.run(["head", "-c", "1", path], capture_output=True, check=True).stdout == BODY[:1]
    assert blocks(mounted) == [LAST, 0]
    assert not is_here(mounted)


def test_a_copy_brings_every_block_once_and_the_file_is_here(mounter: Mounter, tmp_path: Path) -> None:
    mounted, _ = mounter(tree)
    subprocess.run(["cp", mounted.at("s", "f"), tmp_path / "copy"], check=True)
    assert (tmp_path / "copy").read_bytes() == BODY
    wait_until_here(mounted)
    assert sorted(blocks(mounted)) == list(range(BLOCKS))
    assert Path(mounted.layout.sessions, "s", "f").read_bytes() == BODY
    assert os.listdir(mounted.layout.staging) == []


def test_reads_anywhere_give_what_the_file_has(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    chance = random.Random(5)
    with open(mounted.at("s", "f"), "rb", buffering=0) as file:
        for _ in range(60):
            offset, length = chance.randrange(SIZE_BYTES + 100), chance.randrange(1, 300_000)
            file.seek(offset)
            wanted = BODY[offset : offset + length]
            found = b""
            while len(found) < len(wanted):
                piece = file.read(length - len(found))
                assert piece
                found += piece
            assert found == wanted


def test_many_readers_at_once_get_their_bytes_and_each_block_comes_once(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    wrong: list[int] = []

    def read(seed: int) -> None:
        chance = random.Random(seed)
        descriptor = os.open(mounted.at("s", "f"), os.O_RDONLY)
        for _ in range(20):
            offset = chance.randrange(SIZE_BYTES)
            if os.pread(descriptor, 5000, offset) != BODY[offset : offset + 5000]:
                wrong.append(offset)
        os.close(descriptor)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert not any(reader.is_alive() for reader in readers)
    assert wrong == []
    asked = blocks(mounted)
    assert sorted(asked) == sorted(set(asked))


def test_a_mapping_shows_the_pages_that_are_touched(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    with open(mounted.at("s", "f"), "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        assert view[-50:] == BODY[-50:]
        middle = 2 * BLOCK_BYTES + BLOCK_BYTES // 2
        assert view[middle : middle + 99] == BODY[middle : middle + 99]
        assert sorted(blocks(mounted)) == [2, LAST]
        assert view[:] == BODY


def test_a_bad_block_is_an_io_error_and_never_short_or_zeros(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    mounted.ask(set_bad_blocks, 1)
    descriptor = os.open(mounted.at("s", "f"), os.O_RDONLY)
    assert errno_of(os.pread, descriptor, 100, BLOCK_BYTES + 5) == errno.EIO
    assert os.pread(descriptor, 100, 3 * BLOCK_BYTES) == BODY[3 * BLOCK_BYTES :][:100]
    copied = subprocess.run(["cp", mounted.at("s", "f"), "/dev/null"], check=False, capture_output=True)
    assert copied.returncode == 1
    assert errno_of(os.open, mounted.at("s", "f"), os.O_RDWR) == errno.EIO
    mounted.ask(set_bad_blocks)
    assert os.pread(descriptor, 100, BLOCK_BYTES + 5) == BODY[BLOCK_BYTES + 5 :][:100]
    os.close(descriptor)


def test_a_writer_and_a_reader_see_one_file(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    path = mounted.at("s", "f")
    with open(path, "rb", buffering=0) as reader:
        reader.seek(LAST * BLOCK_BYTES)
        assert reader.read(10) == BODY[LAST * BLOCK_BYTES :][:10]
        with open(path, "r+b", buffering=0) as writer:
            writer.seek(LAST * BLOCK_BYTES)
            writer.write(b"0123456789")
            writer.seek(0, os.SEEK_END)
            writer.write(b"more")
        reader.seek(LAST * BLOCK_BYTES)
        assert reader.read(10) == b"0123456789"
        reader.seek(SIZE_BYTES - 4)
        assert reader.read(100) == BODY[-4:] + b"more"
        with open(path, "wb"):
            pass
        reader.seek(0)
        assert reader.read(10) == b""


def test_an_unlinked_file_is_read_to_its_end(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    with open(mounted.at("s", "f"), "rb", buffering=0) as reader:
        assert reader.read(10) == BODY[:10]
        os.unlink(mounted.at("s", "f"))
        mounted.remote("fail", "away")
        reader.seek(0)
        assert b"".join(iter(lambda: reader.read(1 << 20), b"")) == BODY


def test_a_silent_store_holds_up_only_who_reads_what_is_not_here(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    path = mounted.at("s", "f")
    with open(path, "rb", buffering=0) as reader:
        assert reader.read(10) == BODY[:10]
    mounted.remote("hold_blocks")
    found: list[bytes] = []

    def read() -> None:
        with open(path, "rb", buffering=0) as late:
            late.seek(3 * BLOCK_BYTES)
            found.append(late.read(10))

    threads = [threading.Thread(target=read, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while len(blocks(mounted)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with open(path, "rb", buffering=0) as reader:
        reader.seek(5000)
        assert reader.read(10) == BODY[5000:5010]
    assert os.stat(path).st_size == SIZE_BYTES
    assert found == []
    mounted.remote("let_blocks_go")
    for thread in threads:
        thread.join(20)
    assert found == [BODY[3 * BLOCK_BYTES :][:10]] * 20
