"""Ownership, kept bytes and torn lines as programs meet them, through the kernel."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from sessionfs.formats.commit_messages import Barrier, FrozenImage, Thaw
from sessionfs.formats.ownership_messages import Claimed, SessionState
from sessionfs.model.errors import SessionAlreadyOwnedError
from sessionfs.testing.fake_remote import FakeRemote
from tests.filesystem.conftest import Mounter
from tests.filesystem.mounting import Mounted, Rig
from tests.filesystem.test_open_read_write import make, read
from tests.filesystem.test_rename_and_unlink import errno_of
from tests.filesystem.test_sessions import intents

pytestmark = pytest.mark.fuse

BODY = b"0123456789" * 1000
WHOLE = b'{"n": 1}\n'
FRAGMENT = b'{"n": 2, "te'


def held_elsewhere(remote: FakeRemote) -> None:
    remote.add_file(remote.add_session("s"), b"a", BODY)
    remote.claim_error = SessionAlreadyOwnedError("s is owned", holder="host b")


def free(rig: Rig) -> None:
    rig[1].claim_error = None


def lose(rig: Rig) -> None:
    rig[0].note_session_state(SessionState("s", owned=False, holder="host b"))


def torn(remote: FakeRemote) -> None:
    remote.add_file(remote.add_session("s"), b"log.jsonl", WHOLE + FRAGMENT)
    remote.claims = [Claimed(is_unclean=True)]


def hold_barrier(rig: Rig, number: int) -> int:
    held = rig[0].barrier(Barrier("s", "c1", [number], rig[0]._volume.log.position))
    return sum(frozen.size_bytes for frozen in held.frozen)


def image_of(rig: Rig, number: int) -> str:
    return rig[0].frozen_image(FrozenImage("c1", number)).staged


def thaw(rig: Rig) -> None:
    rig[0].thaw(Thaw("c1"))


def replace(beside: str, path: str) -> None:
    make(beside, b"other")
    os.rename(beside, path)


def kept(mounted: Mounted, number: int, size_bytes: int) -> bytes:
    """Read a frozen file's bytes as a commit does."""
    while True:
        name = mounted.ask(image_of, number)
        place = (
            os.path.join(mounted.layout.staging, name)
            if name
            else os.path.join(mounted.layout.sessions, "s", "a")
        )
        body = read(place)[:size_bytes]
        if mounted.ask(image_of, number) == name:
            return body


def test_a_session_of_another_host_is_a_read_only_filesystem(mounter: Mounter) -> None:
    mounted, _ = mounter(held_elsewhere)
    path = mounted.at("s", "a")
    assert errno_of(lambda: os.open(path, os.O_WRONLY)) == errno.EROFS
    assert errno_of(lambda: os.open(mounted.at("s", "n"), os.O_WRONLY | os.O_CREAT)) == errno.EROFS
    assert errno_of(lambda: os.mkdir(mounted.at("s", "d"))) == errno.EROFS
    assert errno_of(lambda: os.unlink(path)) == errno.EROFS
    assert errno_of(lambda: os.truncate(path, 0)) == errno.EROFS
    assert read(path) == BODY
    mounted.ask(free)
    make(path, b"ours now")
    assert read(path) == b"ours now"


def test_a_handle_of_a_lost_session_writes_nothing_more(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    make(mounted.at("s", "a"), BODY)
    descriptor = os.open(mounted.at("s", "a"), os.O_WRONLY)
    mounted.ask(lose)
    assert errno_of(lambda: os.pwrite(descriptor, b"x", 0)) == errno.EROFS
    os.close(descriptor)
    assert read(mounted.at("s", "a")) == BODY


def test_a_torn_line_is_gone_for_whoever_appends(mounter: Mounter) -> None:
    mounted, _ = mounter(torn)
    path = mounted.at("s", "log.jsonl")
    assert read(path) == WHOLE + FRAGMENT  # the kernel has its pages and its length now
    with open(path, "ab", buffering=0) as log:
        log.write(b'{"n": 3}\n')
    assert os.stat(path).st_size == len(WHOLE) + 9
    assert read(path) == WHOLE + b'{"n": 3}\n'
    (name,) = [name for name in os.listdir(mounted.at("s")) if ".torn-" in name]
    assert read(mounted.at("s", name)) == FRAGMENT


READER = """
import sqlite3, sys, threading
print("here", flush=True)
sys.stdin.readline()
def run():
    connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True, isolation_level=None)
    connection.execute("pragma wal_autocheckpoint = 0")
    connection.execute("begin")
    print(connection.execute("select count(*) from t").fetchone()[0], flush=True)
    sys.stdin.readline()
    connection.close()
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


def exempt(rig: Rig, pid: int) -> None:
    rig[0].set_exempt_pid(pid)
    rig[0].block_writers("the mount is being ended")


def test_a_database_imaged_by_the_replication_process_is_not_changed_by_it(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    path = mounted.at("s", "x.db")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as program:
        program.execute("pragma journal_mode = wal")
        program.execute("create table t (n)")
        program.execute("insert into t values (1)")
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "here\n"
            mounted.ask(exempt, reader.pid)
            before = intents(mounted)
            reader.stdin.write("go\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == "1\n"
            reader.stdin.write("end\n")
            reader.stdin.flush()
            reader.stdin.close()
            assert reader.wait(30) == 0
        assert intents(mounted) == before
        assert errno_of(lambda: os.open(path, os.O_WRONLY)) == errno.EROFS


def test_stores_through_a_mapping_do_not_reach_what_a_commit_keeps(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    make(mounted.at("s", "a"), BODY)
    number = os.stat(mounted.at("s", "a")).st_ino
    assert mounted.ask(hold_barrier, number) == len(BODY)
    with open(mounted.at("s", "a"), "r+b") as file, mmap.mmap(file.fileno(), len(BODY)) as mapping:
        mapping[10:20] = b"xxxxxxxxxx"
        mapping.flush()
    assert kept(mounted, number, len(BODY)) == BODY
    assert read(mounted.at("s", "a"))[10:20] == b"xxxxxxxxxx"


def test_a_commit_reads_the_cut_while_programs_write_append_and_replace(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    path, beside = mounted.at("s", "a"), mounted.at("s", "n")
    for turn in range(20):
        make(path, BODY)
        number = os.stat(path).st_ino
        descriptor = os.open(path, os.O_RDWR)
        assert mounted.ask(hold_barrier, number) == len(BODY)
        changes: tuple[Callable[[], object], ...] = (
            lambda: os.pwrite(descriptor, b"y" * 5000, 100),  # noqa: B023 - it ends within this turn
            lambda: os.pwrite(descriptor, b"more", len(BODY)),  # noqa: B023
            partial(replace, beside, path),
            lambda: os.ftruncate(descriptor, 5),  # noqa: B023
        )
        order = (turn % 4, (turn + 1) % 4, (turn + 3) % 4)
        program = threading.Thread(target=lambda: [changes[index]() for index in order])  # noqa: B023
        program.start()
        body = kept(mounted, number, len(BODY))
        program.join()
        assert body == BODY
        assert kept(mounted, number, len(BODY)) == BODY
        os.close(descriptor)
        mounted.ask(thaw)
    assert os.listdir(mounted.layout.staging) == []
