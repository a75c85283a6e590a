from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
import time

import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.testing.fake_remote import FakeRemote
from tests.filesystem.conftest import Mounter
from tests.filesystem.mounting import Mounted, Rig
from tests.filesystem.test_open_read_write import make, read
from tests.filesystem.test_rename_and_unlink import EXCHANGE, errno_of, renameat2
from tests.filesystem.test_sessions import intents

pytestmark = pytest.mark.fuse

MTIME_NS = 1_600_000_000_123_456_789


def tree(remote: FakeRemote) -> dict[str, int]:
    root = remote.add_session("s")
    numbers = {"root": root}
    numbers["a"] = remote.add_file(root, b"a", b"body of a", mode=0o640, xattrs={b"user.tag": b"blue"})
    numbers["b"] = remote.add_file(root, b"b", b"body of b")
    numbers["d"] = remote.add_directory(root, b"d", mode=0o750)
    numbers["c"] = remote.add_file(numbers["d"], b"c", b"c" * 100_000)
    remote.add_symlink(root, b"l", b"d/c")
    numbers["h"] = remote.add_file(root, b"h1", b"linked", nlink=2)
    remote.add_file(root, b"h2", b"linked", nlink=2, number=numbers["h"])
    return numbers


def fetches(mounted: Mounted) -> list[int]:
    return [number for name, number in mounted.remote("take_calls") if name == "fetch"]


def on_disk(mounted: Mounted, *names: str) -> str:
    return os.path.join(mounted.layout.sessions, "s", *names)


def change_a(rig: Rig, root: int) -> None:
    rig[1].replace_file(root, b"a", b"longer body of a", mtime_ns=MTIME_NS + 1)


def change_twice(rig: Rig, root: int) -> None:
    rig[1].remove_name(root, b"b")
    rig[1].add_file(root, b"new", b"new")


def nothing_new(rig: Rig) -> None:
    rig[1].refreshed = SessionRefreshed([], [], foreign=True)


def evict(rig: Rig, number: int, path: bytes) -> bool:
    from sessionfs.formats.link_messages import (
        Evict,
    )

    status = os.stat(os.path.join(os.fsencode(rig[1]._layout.sessions), path))
    return rig[0].evict(Evict(number, status.st_size, status.st_mtime_ns, status.st_ctime_ns), path)


def fall_silent(rig: Rig) -> None:
    rig[1].silent = True


def put_into_bucket(rig: Rig, directory: int, name: bytes, number: int, body: bytes) -> None:
    status = os.stat(os.path.join(os.fsencode(rig[1]._layout.sessions), b"s", name))
    rig[1].children.setdefault(directory, {})
    rig[1].add_file(directory, name, body, number=number, mtime_ns=status.st_mtime_ns)


def test_a_remote_tree_shows_itself_without_fetching(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree)
    assert os.listdir(mounted.path) == ["s"]
    assert sorted(os.listdir(mounted.at("s"))) == ["a", "b", "d", "h1", "h2", "l"]
    status = os.stat(mounted.at("s", "a"))
    assert (status.st_ino, status.st_size, status.st_mtime_ns) == (numbers["a"], 9, MTIME_NS)
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert os.stat(mounted.at("s", "d")).st_ino == numbers["d"]
    assert stat.S_IMODE(os.stat(mounted.at("s", "d")).st_mode) == 0o750
    assert os.stat(mounted.at("s", "d")).st_mtime_ns == 1_500_000_000_000_000_009
    assert os.stat(mounted.at("s")).st_mtime_ns == 1_000_000_000_000_000_001
    assert os.readlink(mounted.at("s", "l")) == "d/c"
    assert os.lstat(mounted.at("s", "l")).st_mtime_ns == 1_400_000_000_000_000_007
    assert os.stat(mounted.at("s", "h1")).st_nlink == 2
    assert os.getxattr(mounted.at("s", "a"), "user.tag") == b"blue"
    assert os.listxattr(mounted.at("s", "a")) == ["user.tag"]
    assert fetches(mounted) == []
    assert {intent.operation for intent in intents(mounted)} == {Operation.MATERIALISED}


def test_opening_a_remote_file_fetches_it_once(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree)
    before = os.stat(mounted.at("s", "a"))
    assert read(mounted.at("s", "a")) == b"body of a"
    assert read(mounted.at("s", "l")) == b"c" * 100_000
    assert read(mounted.at("s", "a")) == b"body of a"
    assert fetches(mounted) == [numbers["a"], numbers["c"]]
    after = os.stat(mounted.at("s", "a"))
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert os.getxattr(mounted.at("s", "a"), "user.tag") == b"blue"
    assert os.stat(mounted.at("s")).st_mtime_ns == 1_000_000_000_000_000_001
    assert os.listdir(mounted.layout.staging) == []
    assert [intent.number for intent in intents(mounted) if intent.operation == Operation.FETCHED] == [
        numbers["a"], numbers["c"],
    ]  # fmt: skip


def test_many_readers_share_one_fetch(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree)
    found: list[bytes] = []
    readers = [
        threading.Thread(target=lambda: found.append(read(mounted.at("s", "d", "c")))) for _ in range(8)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
    assert found == [b"c" * 100_000] * 8
    assert fetches(mounted) == [numbers["c"]]


def test_a_fetch_that_fails_is_an_io_error_and_not_a_missing_file(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    mounted.remote("fail", "no answer")
    assert errno_of(os.open, mounted.at("s", "a"), os.O_RDONLY) == errno.EIO
    assert errno_of(os.truncate, mounted.at("s", "a"), 3) == errno.EIO
    assert os.stat(mounted.at("s", "a")).st_size == 9
    mounted.remote("fail", "")
    assert read(mounted.at("s", "a")) == b"body of a"


def test_changes_without_bytes_fetch_nothing(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree)
    os.chmod(mounted.at("s", "a"), 0o600)
    os.utime(mounted.at("s", "a"), ns=(1, 77))
    os.rename(mounted.at("s", "a"), mounted.at("s", "d", "moved"))
    os.unlink(mounted.at("s", "b"))
    os.link(mounted.at("s", "d", "c"), mounted.at("s", "c2"))
    renameat2(mounted.at("s", "d", "moved"), mounted.at("s", "c2"), EXCHANGE)
    os.rename(mounted.at("s", "h1"), mounted.at("s", "h3"))
    assert fetches(mounted) == []
    assert sorted(os.listdir(mounted.at("s"))) == ["c2", "d", "h2", "h3", "l"]
    assert sorted(os.listdir(mounted.at("s", "d"))) == ["c", "moved"]
    status = os.stat(mounted.at("s", "c2"))
    assert (status.st_ino, stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (numbers["a"], 0o600, 77)
    assert os.stat(mounted.at("s", "d", "moved")).st_nlink == 2
    mounted.remote("change_entry", numbers["a"], mode=stat.S_IFREG | 0o600, mtime_ns=77)
    assert read(mounted.at("s", "c2")) == b"body of a"
    assert stat.S_IMODE(os.stat(mounted.at("s", "c2")).st_mode) == 0o600
    assert os.stat(mounted.at("s", "c2")).st_mtime_ns == 77
    named = {
        intent.number
        for intent in intents(mounted)
        if intent.operation in {Operation.UNLINK, Operation.SETATTR}
    }
    assert named == {numbers["a"], numbers["b"]}


def test_a_file_here_replaces_a_remote_one_and_the_other_way_round(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree)
    make(mounted.at("s", "mine"), b"mine")
    os.rename(mounted.at("s", "mine"), mounted.at("s", "a"))
    assert read(mounted.at("s", "a")) == b"mine"
    os.rename(mounted.at("s", "b"), mounted.at("s", "a"))
    assert os.stat(mounted.at("s", "a")).st_ino == numbers["b"]
    assert not os.path.exists(on_disk(mounted, "a"))
    assert read(mounted.at("s", "a")) == b"body of b"
    assert fetches(mounted) == [numbers["b"]]


def test_a_truncated_remote_file_is_not_fetched(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree)
    with open(mounted.at("s", "a"), "wb") as file:
        file.write(b"new")
    os.truncate(mounted.at("s", "b"), 0)
    assert fetches(mounted) == []
    assert read(mounted.at("s", "a")) == b"new"
    assert read(mounted.at("s", "b")) == b""
    status = os.stat(mounted.at("s", "a"))
    assert (status.st_ino, stat.S_IMODE(status.st_mode)) == (numbers["a"], 0o640)
    assert os.getxattr(mounted.at("s", "a"), "user.tag") == b"blue"
    assert status.st_mtime_ns > MTIME_NS


def test_appending_to_a_remote_file_keeps_its_beginning(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    with open(mounted.at("s", "a"), "ab") as file:
        file.write(b"!")
    os.setxattr(mounted.at("s", "b"), "user.x", b"1")
    os.truncate(mounted.at("s", "b"), 4)
    assert read(mounted.at("s", "a")) == b"body of a!"
    assert read(mounted.at("s", "b")) == b"body"


def test_both_names_of_a_linked_remote_file_are_one_file(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree)
    with open(mounted.at("s", "h1"), "ab") as file:
        file.write(b"+")
    assert os.stat(mounted.at("s", "h1")).st_nlink == 2
    assert read(mounted.at("s", "h2")) == b"linked+"
    assert os.stat(mounted.at("s", "h2")).st_ino == numbers["h"]
    assert os.stat(on_disk(mounted, "h1")).st_ino == os.stat(on_disk(mounted, "h2")).st_ino
    os.unlink(mounted.at("s", "h1"))
    assert os.stat(mounted.at("s", "h2")).st_nlink == 1
    assert fetches(mounted) == [numbers["h"]]


def test_directories_with_remote_files_are_not_empty(mounter: Mounter) -> None:
    mounted, _ = mounter(tree)
    assert errno_of(os.rmdir, mounted.at("s", "d")) == errno.ENOTEMPTY
    os.mkdir(mounted.at("s", "e"))
    assert errno_of(os.rename, mounted.at("s", "e"), mounted.at("s", "d")) == errno.ENOTEMPTY
    assert errno_of(os.rmdir, mounted.at("s")) == errno.ENOTEMPTY
    assert errno_of(make, mounted.at("s", "d")) == errno.EISDIR
    os.unlink(mounted.at("s", "d", "c"))
    os.rmdir(mounted.at("s", "d"))


def test_a_foreign_session_shows_what_another_host_writes(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree, foreign_lag_seconds=1.0)
    assert read(mounted.at("s", "a")) == b"body of a"
    assert os.path.exists(on_disk(mounted, "a"))
    mounted.ask(change_a, numbers["root"])
    time.sleep(1.7)
    assert os.stat(mounted.at("s", "a")).st_size == len(b"longer body of a")
    assert read(mounted.at("s", "a")) == b"longer body of a"
    assert os.stat(mounted.at("s", "a")).st_mtime_ns == MTIME_NS + 1
    mounted.ask(change_twice, numbers["root"])
    time.sleep(1.7)
    assert sorted(os.listdir(mounted.at("s"))) == ["a", "d", "h1", "h2", "l", "new"]
    assert [intent.number for intent in intents(mounted) if intent.operation == Operation.EVICTED] == [
        numbers["a"]
    ]


def change_kinds(rig: Rig, numbers: dict[str, int]) -> None:
    """Another host: a becomes a directory, l points elsewhere, d is gone with what is in it."""
    remote, root = rig[1], numbers["root"]

    def build(remote: FakeRemote) -> None:
        for name in (b"a", b"l", b"d"):
            del remote.children[root][name]
        below = remote.add_directory(root, b"a")
        remote.add_file(below, b"inside", b"new")
        remote.add_symlink(root, b"l", b"elsewhere")
        remote.refreshed = SessionRefreshed([root], [], foreign=True)

    link = remote.children[root][b"l"].number
    paths = {numbers["a"]: b"s/a", link: b"s/l", numbers["d"]: b"s/d", numbers["c"]: b"s/d/c"}
    remote.replace_names(root, paths, build)


def test_names_of_another_kind_replace_what_is_here(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree, foreign_lag_seconds=1.0)
    assert read(mounted.at("s", "a")) == b"body of a"
    assert read(mounted.at("s", "l")) == b"c" * 100_000
    mounted.ask(change_kinds, numbers)
    time.sleep(1.7)
    assert sorted(os.listdir(mounted.at("s"))) == ["a", "b", "h1", "h2", "l"]
    assert os.listdir(mounted.at("s", "a")) == ["inside"]
    assert read(mounted.at("s", "a", "inside")) == b"new"
    assert os.readlink(mounted.at("s", "l")) == "elsewhere"
    assert not os.path.exists(on_disk(mounted, "d"))
    gone = {intent.number for intent in intents(mounted) if intent.operation == Operation.EVICTED}
    assert {numbers["a"], numbers["d"], numbers["c"]} <= gone


def test_a_directory_gets_the_attributes_that_another_host_gave_it(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree, foreign_lag_seconds=1.0)
    assert read(mounted.at("s", "d", "c")) == b"c" * 100_000
    mounted.remote("change_directory", numbers["root"], b"d", b"s/d", mode=0o711)
    time.sleep(1.7)
    os.listdir(mounted.at("s"))
    assert stat.S_IMODE(os.stat(mounted.at("s", "d")).st_mode) == 0o711
    assert stat.S_IMODE(os.stat(on_disk(mounted, "d")).st_mode) == 0o711
    assert os.stat(mounted.at("s", "d")).st_mtime_ns == 1_500_000_000_000_000_009


def test_an_open_file_of_a_foreign_session_keeps_its_bytes_until_it_is_closed(mounter: Mounter) -> None:
    mounted, numbers = mounter(tree, foreign_lag_seconds=1.0)
    descriptor = os.open(mounted.at("s", "a"), os.O_RDONLY)
    mounted.ask(change_a, numbers["root"])
    time.sleep(1.7)
    os.stat(mounted.at("s", "a"))
    assert os.pread(descriptor, 99, 0) == b"body of a"
    os.close(descriptor)
    time.sleep(1.2)
    assert read(mounted.at("s", "a")) == b"longer body of a"


def test_the_first_change_makes_a_foreign_session_our_own(mounter: Mounter) -> None:
    mounted, _ = mounter(tree, foreign_lag_seconds=0.2)
    make(mounted.at("s", "mine"))
    time.sleep(0.3)
    mounted.remote("take_calls")
    os.listdir(mounted.at("s"))
    read(mounted.at("s", "mine"))
    assert [name for name, _ in mounted.remote("take_calls") if name == "refresh_session"] == []


def test_evicted_bytes_come_back_under_the_same_number(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    root = os.stat(mounted.at("s")).st_ino
    path = make(mounted.at("s", "mine"), b"mine")
    number = os.stat(path).st_ino
    mounted.ask(put_into_bucket, root, b"mine", number, b"mine")
    descriptor = os.open(path, os.O_RDONLY)
    assert mounted.ask(evict, number, b"s/mine") is False
    os.close(descriptor)
    time.sleep(0.1)
    assert mounted.ask(evict, number, b"s/mine") is True
    assert not os.path.exists(on_disk(mounted, "mine"))
    others = [os.stat(make(mounted.at("s", f"other{n}"))).st_ino for n in range(20)]
    assert number not in others
    assert os.stat(path).st_size == 4
    assert os.stat(path).st_ino == number
    assert read(path) == b"mine"
    assert os.stat(path).st_ino == number
    os.unlink(path)
    make(mounted.at("s", "x"))
    time.sleep(0.1)
    assert os.listdir(mounted.layout.evicted) == []


@pytest.mark.parametrize("from_outside", [False, True])
def test_a_store_that_is_silent_holds_up_neither_other_calls_nor_the_end(
    mounter: Mounter, from_outside: bool
) -> None:
    mounted, _ = mounter(tree)
    os.stat(mounted.at("s", "a"))
    mounted.ask(fall_silent)
    found: list[int] = []
    path = mounted.at("s", "a")
    readers = [
        threading.Thread(target=lambda: found.append(errno_of(os.open, path, os.O_RDONLY)), daemon=True)
        for _ in range(10)
    ]
    for reader in readers:
        reader.start()
    time.sleep(0.2)
    assert os.stat(mounted.at("s", "b")).st_size == 9
    make(mounted.at("s", "new"), b"x")
    started = time.monotonic()
    if from_outside:
        subprocess.run(["fusermount3", "-u", "-z", mounted.path], check=True)
    mounted.unmount()
    for reader in readers:
        reader.join(10)
    assert time.monotonic() - started < 8
    assert len(found) == 10
    assert 0 not in found
