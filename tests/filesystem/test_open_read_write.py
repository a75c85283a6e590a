from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.fuse


def make(path: str, body: bytes = b"") -> str:
    with open(path, "wb") as file:
        file.write(body)
    return path


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_bytes_written_are_read_back(session: str) -> None:
    path = make(os.path.join(session, "a"), b"hello" * 100_000)
    assert read(path) == b"hello" * 100_000
    assert os.stat(path).st_size == 500_000
    assert os.listdir(session) == ["a"]


def test_exclusive_creation_refuses_an_existing_name(session: str) -> None:
    path = make(os.path.join(session, "a"))
    with pytest.raises(FileExistsError):
        os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_opening_with_truncation_empties_the_file(session: str) -> None:
    path = make(os.path.join(session, "a"), b"old")
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)


def test_two_handles_keep_their_own_access_modes(session: str) -> None:
    path = make(os.path.join(session, "a"), b"abc")
    writer, reader = os.open(path, os.O_WRONLY), os.open(path, os.O_RDONLY)
    assert os.pread(reader, 3, 0) == b"abc"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(writer, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(reader, b"x")
    os.close(writer)
    os.close(reader)


def test_two_processes_that_append_lose_no_line(session: str) -> None:
    path = make(os.path.join(session, "log"))
    code = "import os,sys\nf=os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND)\nfor i in range(300): os.write(f,sys.argv[2].encode()*63+b'\\n')"
    children = [subprocess.Popen([sys.executable, "-c", code, path, letter]) for letter in "ab"]
    assert [child.wait(60) for child in children] == [0, 0]
    lines = read(path).split(b"\n")
    assert sorted(lines) == sorted([b""] + [b"a" * 63] * 300 + [b"b" * 63] * 300)


def test_a_hole_reads_as_zeros_and_takes_no_space(session: str) -> None:
    path = os.path.join(session, "sparse")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"end", 50 << 20)
    assert os.pread(descriptor, 10, 1 << 20) == bytes(10)
    status = os.fstat(descriptor)
    assert status.st_size == (50 << 20) + 3
    assert status.st_blocks * 512 < 1 << 20
    os.close(descriptor)


@pytest.mark.parametrize("size", [0, 1, 4095, 10_000])
def test_truncate_cuts_and_extends(session: str, size: int) -> None:
    path = make(os.path.join(session, "a"), b"x" * 5000)
    os.truncate(path, size)
    assert read(path) == (b"x" * 5000 + bytes(5000))[:size]


def test_a_shared_mapping_reaches_the_file(session: str) -> None:
    path = make(os.path.join(session, "a"), bytes(8192))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        mapped[4090:4100] = b"0123456789"
        mapped.flush()
    assert read(path)[4090:4100] == b"0123456789"


def test_direct_io_is_taken(session: str) -> None:
    path = os.path.join(session, "a")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    with mmap.mmap(-1, 4096) as page:
        page[:] = b"d" * 4096
        assert os.writev(descriptor, [page]) == 4096
    os.close(descriptor)
    assert read(path) == b"d" * 4096


def test_modification_time_is_not_before_the_write(session: str) -> None:
    path = make(os.path.join(session, "a"), b"1")
    before = os.stat(path).st_mtime_ns
    descriptor = os.open(path, os.O_WRONLY)
    for number in range(5):
        os.pwrite(descriptor, b"%d" % number, 0)
        now = os.fstat(descriptor)
        assert now.st_mtime_ns >= before
        assert now.st_mtime_ns >= now.st_ctime_ns
        before = now.st_mtime_ns
    os.close(descriptor)


def test_fsync_and_synchronous_writes_return(session: str) -> None:
    path = os.path.join(session, "a")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    os.write(descriptor, b"x")
    os.fsync(descriptor)
    os.fdatasync(descriptor)
    os.close(descriptor)
    directory = os.open(session, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    assert read(path) == b"x"


def test_locks_exclude_each_other(session: str) -> None:
    path = make(os.path.join(session, "a"))
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    fcntl.flock(first, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(first, fcntl.LOCK_UN)
    fcntl.lockf(first, fcntl.LOCK_EX)
    code = "import fcntl,sys\nf=open(sys.argv[1],'r+')\ntry: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError: sys.exit(7)"
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 7
    os.close(first)
    os.close(second)


def test_reading_a_directory_as_a_file_is_refused(session: str) -> None:
    os.mkdir(os.path.join(session, "d"))
    with pytest.raises(IsADirectoryError):
        os.open(os.path.join(session, "d"), os.O_WRONLY)
    descriptor = os.open(os.path.join(session, "d"), os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        os.read(descriptor, 1)
    os.close(descriptor)
