"""A large file on a host that has nothing of it: its end at once, and all of it right, whatever dies meanwhile."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionfs.daemon.control.client import ControlClient

from .conftest import MakeHost
from .rig import Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

BLOCK_BYTES = 8 << 20
SIZE_BYTES = 40 << 20
BODY = random.Random(6).randbytes(SIZE_BYTES)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def make_reader(make_fast_host: MakeHost) -> Callable[[str], Host]:
    """Gives hosts of a bucket in which another host has committed a large file."""
    writer = make_fast_host("writer")
    writer.mount()
    (writer.directory / "s").mkdir()
    (writer.directory / "s" / "large").write_bytes(BODY)
    (writer.directory / "s" / "small").write_bytes(b"small")
    writer.umount()

    def make(name: str) -> Host:
        made = make_fast_host(name)
        made.mount()
        return made

    return make


def downloaded_bytes(host: Host) -> int:
    socket = os.getxattr(host.mount_point, "user.sessionfs.control").decode()
    with ControlClient(socket, mount_point=str(host.mount_point)) as client:
        return int(client.call("status")["downloaded_bytes"])


def output(*command: str | Path) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout


def sha256sum(path: Path) -> str:
    return output("sha256sum", path).split()[0].decode()


def staged(host: Host) -> list[str]:
    return os.listdir(host.working_copy().parent / "staging")


def test_the_end_of_a_large_file_moves_one_block_and_the_whole_is_right_afterwards(
    make_reader: Callable[[str], Host],
) -> None:
    host = make_reader("a")
    path = host.directory / "s" / "large"
    assert path.stat().st_size == SIZE_BYTES
    before = downloaded_bytes(host)
    assert output("tail", "-c", "100", path) == BODY[-100:]
    assert downloaded_bytes(host) - before == BLOCK_BYTES
    assert output("head", "-c", "10", path) == BODY[:10]
    assert downloaded_bytes(host) - before == 2 * BLOCK_BYTES
    assert sha256sum(path) == SHA256
    assert downloaded_bytes(host) - before == SIZE_BYTES
    wait_until((host.working_copy() / "s" / "large").exists, 20)
    assert sha256sum(host.working_copy() / "s" / "large") == SHA256
    assert staged(host) == []
    assert os.getxattr(path, "user.sessionfs.sha256") == SHA256.encode()
    # It is as clean as one that was fetched whole: nothing is owed, and a change goes the usual way.
    assert host.session_status("s")["owed_files"] == 0
    with open(path, "ab") as file:
        file.write(b"more")
    host.umount()
    after = make_reader_of_tail(host)
    assert after == BODY[-4:] + b"more"


def make_reader_of_tail(host: Host) -> bytes:
    """Mount again and read the end."""
    host.mount()
    return output("tail", "-c", "8", host.directory / "s" / "large")


@pytest.mark.parametrize("victim", ["replication", "all"])
def test_a_kill_in_the_middle_of_a_large_file_leaves_nothing_wrong(
    make_reader: Callable[[str], Host], victim: str
) -> None:
    host = make_reader("a")
    path = host.directory / "s" / "large"
    assert output("tail", "-c", "100", path) == BODY[-100:]
    found: list[str] = []

    def read() -> None:
        try:
            found.append(sha256sum(path))
        except subprocess.CalledProcessError:
            found.append("failed")

    reader = threading.Thread(target=read, daemon=True)
    daemon, replication = host.remember_pids()
    before = downloaded_bytes(host)
    reader.start()
    wait_until(lambda: downloaded_bytes(host) > before, 20, step=0)
    os.kill(replication, signal.SIGSTOP)
    assert reader.is_alive(), "the kill came too late to prove anything"
    assert len(staged(host)) == 1
    if victim == "all":
        host.kill(daemon, replication)
        subprocess.run(["umount", "-l", host.mount_point], capture_output=True, check=False)
    else:
        host.kill(replication)
    reader.join(90)
    assert not reader.is_alive()
    if victim == "all":
        assert found == ["failed"]
        host.mount()
        assert staged(host) == []
    else:
        assert found == [SHA256]
        assert host.remember_pids()[0] == daemon
    assert output("tail", "-c", "100", path) == BODY[-100:]
    assert sha256sum(path) == SHA256
    assert (host.directory / "s" / "small").read_bytes() == b"small"
    assert host.session_status("s")["owed_files"] == 0


def test_a_past_generation_of_a_large_file_is_read_by_its_end(make_reader: Callable[[str], Host]) -> None:
    host = make_reader("a")
    path = host.directory / "s" / "large"
    with open(path, "r+b") as file:
        file.seek(5)
        file.write(b"changed")
    generation = host.snapshot("s")["generation"]
    other = make_reader("b")
    before = downloaded_bytes(other)
    past = other.directory / "s" / ".sessionfs" / "generations" / str(generation - 1) / "large"
    assert output("tail", "-c", "100", past) == BODY[-100:]
    assert downloaded_bytes(other) - before <= BLOCK_BYTES + 100_000
    assert output("head", "-c", "12", past) == BODY[:12]
    assert output("head", "-c", "12", other.directory / "s" / "large") == BODY[:5] + b"changed"
    assert sha256sum(past) == SHA256
