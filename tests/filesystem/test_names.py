from __future__ import annotations

import errno
import os
import stat

import pytest

from tests.filesystem.test_open_read_write import make
from tests.filesystem.test_rename_and_unlink import errno_of

pytestmark = pytest.mark.fuse

ODD_NAMES = [
    b" ",
    b"a b",
    b"new\nline",
    b"100%",
    b"%41",
    b"back\\slash",
    b"\xff\xfe",
    b"\xc3\xa9",
    b"-",
    b"n" * 255,
    b"\xf0\x9f\x92\xa1",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_is_kept_byte_for_byte(session: str, name: bytes) -> None:
    path = os.path.join(os.fsencode(session), name)
    with open(path, "wb") as file:
        file.write(name)
    assert os.listdir(os.fsencode(session)) == [name]
    with open(path, "rb") as file:
        assert file.read() == name


def test_a_name_of_256_bytes_is_too_long(session: str) -> None:
    assert errno_of(os.mkdir, os.path.join(session, "n" * 256)) == errno.ENAMETOOLONG


def test_a_missing_name_is_found_once_it_is_made(session: str) -> None:
    path = os.path.join(session, "later")
    assert not os.path.exists(path)
    make(path)
    assert os.path.exists(path)


def test_inode_numbers_are_unique_and_stay(session: str) -> None:
    paths = [make(os.path.join(session, str(number))) for number in range(50)]
    numbers = [os.stat(path).st_ino for path in paths]
    assert len(set(numbers)) == 50
    os.rename(paths[0], os.path.join(session, "moved"))
    assert os.stat(os.path.join(session, "moved")).st_ino == numbers[0]


def test_symlinks_keep_their_text(session: str) -> None:
    for target in (b"a", b"/absolute/nowhere", b"../../up", b"x" * 1000, b"\xff"):
        path = os.path.join(os.fsencode(session), b"link")
        os.symlink(target, path)
        assert os.readlink(path) == target
        assert stat.S_ISLNK(os.lstat(path).st_mode)
        assert os.lstat(path).st_size == len(target)
        os.unlink(path)


def test_fifos_and_sockets_can_be_made(session: str) -> None:
    path = os.path.join(session, "fifo")
    os.mkfifo(path, 0o640)
    assert stat.S_ISFIFO(os.stat(path).st_mode)
    os.mknod(os.path.join(session, "socket"), stat.S_IFSOCK | 0o600)
    assert stat.S_ISSOCK(os.stat(os.path.join(session, "socket")).st_mode)


def test_a_listing_shows_dots_and_each_name_once(session: str) -> None:
    for number in range(1000):
        make(os.path.join(session, f"f{number}"))
    assert sorted(os.listdir(session)) == sorted(f"f{number}" for number in range(1000))


def test_a_listing_of_twenty_thousand_names_is_complete(session: str) -> None:
    for number in range(20_000):
        os.mknod(os.path.join(session, f"{number:05}"))
    with os.scandir(session) as entries:
        names = [entry.name for entry in entries]
    assert sorted(names) == [f"{number:05}" for number in range(20_000)]


def test_names_that_stay_are_listed_while_others_come_and_go(session: str) -> None:
    for number in range(500):
        make(os.path.join(session, f"stay{number}"))
        make(os.path.join(session, f"go{number}"))
    seen: list[str] = []
    with os.scandir(session) as entries:
        for index, entry in enumerate(entries):
            seen.append(entry.name)
            if index < 500:
                os.unlink(os.path.join(session, f"go{index}"))
                make(os.path.join(session, f"new{index}"))
    assert len(seen) == len(set(seen))
    assert {f"stay{number}" for number in range(500)} <= set(seen)


def test_a_tree_deeper_than_the_longest_path_is_usable(session: str) -> None:
    home = os.open(".", os.O_RDONLY)
    try:
        os.chdir(session)
        for _ in range(100):
            os.mkdir("d" * 50)
            os.chdir("d" * 50)
        make("deep", b"here")
        with open("deep", "rb") as file:
            assert file.read() == b"here"
        for _ in range(5):
            os.chdir("..")
        assert os.listdir(".") == ["d" * 50]
    finally:
        os.fchdir(home)
        os.close(home)


def test_more_directories_than_descriptors_stay_reachable(session: str) -> None:
    for number in range(700):
        os.mkdir(os.path.join(session, f"d{number}"))
        make(os.path.join(session, f"d{number}", "f"), b"%d" % number)
    for number in range(0, 700, 7):
        with open(os.path.join(session, f"d{number}", "f"), "rb") as file:
            assert file.read() == b"%d" % number


def test_the_disk_is_described(session: str) -> None:
    described = os.statvfs(session)
    assert described.f_namemax == 255
    assert described.f_blocks > 0
