from __future__ import annotations

import ctypes
import errno
import os

import pytest

from tests.filesystem.mounting import Mounted, Rig
from tests.filesystem.test_open_read_write import make, read

pytestmark = pytest.mark.fuse

_libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4


def renameat2(source: str, target: str, flags: int) -> None:
    if _libc.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flags) != 0:
        raise OSError(ctypes.get_errno(), source)


def errno_of(call: object, *arguments: object) -> int:
    try:
        call(*arguments)  # type: ignore[operator]
    except OSError as refused:
        return refused.errno or 0
    return 0


def inodes_known(rig: Rig) -> int:
    return rig[0].status_counters()["inodes"]


def test_rename_replaces_a_file_at_once(session: str) -> None:
    old, new = make(os.path.join(session, "old"), b"old"), make(os.path.join(session, "new"), b"new")
    os.rename(new, old)
    assert read(old) == b"new"
    assert os.listdir(session) == ["old"]


def test_an_open_file_survives_being_renamed_over(session: str) -> None:
    old, new = make(os.path.join(session, "old"), b"old"), make(os.path.join(session, "new"), b"new")
    descriptor = os.open(old, os.O_RDWR)
    os.rename(new, old)
    assert os.pread(descriptor, 9, 0) == b"old"
    os.pwrite(descriptor, b"OLD!", 0)
    status = os.fstat(descriptor)
    assert (status.st_nlink, status.st_size) == (0, 4)
    os.close(descriptor)
    assert read(old) == b"new"


def test_an_unlinked_open_file_is_whole_until_it_is_closed(session: str, shared_mount: Mounted) -> None:
    path = make(os.path.join(session, "a"), b"bytes")
    descriptor = os.open(path, os.O_RDWR)
    os.unlink(path)
    assert not os.path.exists(path)
    assert os.fstat(descriptor).st_nlink == 0
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 3)
    os.pwrite(descriptor, b"more", 3)
    assert os.pread(descriptor, 10, 0) == b"bytmore"
    assert os.listdir(shared_mount.layout.trash)
    os.close(descriptor)


def test_what_was_removed_leaves_no_inode_and_no_trash(session: str, shared_mount: Mounted) -> None:
    before = shared_mount.ask(inodes_known)
    for number in range(50):
        os.unlink(make(os.path.join(session, f"f{number}"), b"x"))
        os.mkdir(os.path.join(session, "d"))
        os.rmdir(os.path.join(session, "d"))
    os.unlink(make(os.path.join(session, "last")))
    assert shared_mount.ask(inodes_known) <= before + 2
    assert len(os.listdir(shared_mount.layout.trash)) <= 1


def test_the_rules_of_rename_hold(session: str) -> None:
    def at(name: str) -> str:
        return os.path.join(session, name)

    make(at("file"))
    os.mkdir(at("empty"))
    os.mkdir(at("full"))
    os.mkdir(at("full/inner"))
    assert errno_of(os.rename, at("file"), at("empty")) == errno.EISDIR
    assert errno_of(os.rename, at("empty"), at("file")) == errno.ENOTDIR
    assert errno_of(os.rename, at("empty"), at("full")) == errno.ENOTEMPTY
    assert errno_of(os.rename, at("full"), at("full/inner/below")) == errno.EINVAL
    assert errno_of(os.rename, at("none"), at("other")) == errno.ENOENT
    os.rename(at("full"), at("empty"))
    assert os.listdir(at("empty")) == ["inner"]
    os.link(at("file"), at("same"))
    os.rename(at("file"), at("same"))
    assert sorted(os.listdir(session)) == ["empty", "file", "same"]


def test_rename_without_replacing_and_exchange(session: str) -> None:
    first, second = make(os.path.join(session, "1"), b"one"), make(os.path.join(session, "2"), b"two")
    assert errno_of(renameat2, first, second, NOREPLACE) == errno.EEXIST
    assert errno_of(renameat2, first, os.path.join(session, "3"), EXCHANGE) == errno.ENOENT
    assert errno_of(renameat2, first, second, WHITEOUT) == errno.EINVAL
    renameat2(first, second, EXCHANGE)
    assert (read(first), read(second)) == (b"two", b"one")
    os.mkdir(os.path.join(session, "d"))
    make(os.path.join(session, "d", "in"), b"in")
    renameat2(first, os.path.join(session, "d"), EXCHANGE)
    assert read(os.path.join(first, "in")) == b"in"
    assert read(os.path.join(session, "d")) == b"two"
    renameat2(second, os.path.join(session, "4"), NOREPLACE)
    assert read(os.path.join(session, "4")) == b"one"


def test_a_moved_directory_takes_its_files_along(session: str) -> None:
    os.makedirs(os.path.join(session, "a/b/c"))
    path = make(os.path.join(session, "a/b/c/f"), b"x")
    descriptor = os.open(path, os.O_RDWR)
    os.rename(os.path.join(session, "a/b"), os.path.join(session, "z"))
    os.write(descriptor, b"y")
    os.close(descriptor)
    assert read(os.path.join(session, "z/c/f")) == b"y"
    assert os.stat(os.path.join(session, "z/c/..")).st_ino == os.stat(os.path.join(session, "z")).st_ino


def test_only_empty_directories_are_removed(session: str) -> None:
    os.makedirs(os.path.join(session, "d/e"))
    assert errno_of(os.rmdir, os.path.join(session, "d")) == errno.ENOTEMPTY
    assert errno_of(os.unlink, os.path.join(session, "d")) in {errno.EISDIR, errno.EPERM}
    assert errno_of(os.rmdir, make(os.path.join(session, "f"))) == errno.ENOTDIR
    os.rmdir(os.path.join(session, "d/e"))
    os.rmdir(os.path.join(session, "d"))


def test_a_removed_working_directory_is_empty_and_refuses_new_files(session: str) -> None:
    os.mkdir(os.path.join(session, "d"))
    descriptor = os.open(os.path.join(session, "d"), os.O_RDONLY)
    os.rmdir(os.path.join(session, "d"))
    assert os.listdir(descriptor) == []
    assert os.fstat(descriptor).st_mode
    with pytest.raises(FileNotFoundError):
        os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor)
    os.close(descriptor)


def test_hard_links_are_one_file(session: str) -> None:
    first = make(os.path.join(session, "1"), b"one")
    second = os.path.join(session, "2")
    os.link(first, second)
    assert os.stat(first).st_ino == os.stat(second).st_ino
    assert os.stat(first).st_nlink == 2
    with open(second, "ab") as file:
        file.write(b"+")
    assert read(first) == b"one+"
    descriptor = os.open(first, os.O_RDONLY)
    os.unlink(first)
    assert os.fstat(descriptor).st_nlink == 1
    os.close(descriptor)
    assert read(second) == b"one+"
    assert errno_of(os.link, second, second) == errno.EEXIST
    os.mkdir(os.path.join(session, "d"))
    assert errno_of(os.link, os.path.join(session, "d"), first) == errno.EPERM
