"""The local disk as a cache: clean files leave it and come back, whole sessions come at once, and reading changes nothing."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from sessionfs.testing.fault_proxy import FaultProxy
from sessionfs.testing.s3_servers import SeaweedServer

from .conftest import MakeHost
from .rig import Bucket, Host, differences, tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

MIB = 1 << 20
LIMIT_BYTES = 10 * MIB


def used_bytes(host: Host) -> int:
    """Bytes of the regular files in a host's working copy."""
    total = 0
    for path in host.working_copy().rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            # It may leave while it is looked at.
            found = path.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def owed_files(host: Host) -> int:
    """What a host owes the bucket."""
    return sum(session["owed_files"] for session in host.status()["sessions"])


def numbers(session: Path) -> dict[str, int]:
    """Inode numbers by path."""
    return {str(path.relative_to(session)): path.stat().st_ino for path in session.rglob("*")}


def caching_host(make_host: MakeHost, name: str = "a") -> Host:
    return make_host(name, SESSIONFS_CACHE_LIMIT_BYTES=str(LIMIT_BYTES), SESSIONFS_SWEEP_INTERVAL_SECONDS="1")


def fill(session: Path) -> None:
    (session / "d").mkdir(parents=True)
    for number in range(60):
        directory = session / "d" if number % 2 else session
        (directory / f"f{number}").write_bytes(os.urandom(MIB // 2))
    os.setxattr(session / "f0", "user.tag", b"blue")
    os.chmod(session / "f2", 0o640)


def test_clean_files_leave_a_full_cache_and_come_back_as_they_were(make_host: MakeHost) -> None:
    host = caching_host(make_host)
    host.mount()
    session = host.directory / "s"
    fill(session)
    before, inodes = tree(session), numbers(session)
    host.wait_until_clean()
    wait_until(lambda: used_bytes(host) <= LIMIT_BYTES, 60)
    assert numbers(session) == inodes
    assert differences(before, tree(session)) == []
    wait_until(lambda: used_bytes(host) <= LIMIT_BYTES, 60)
    assert numbers(session) == inodes
    assert owed_files(host) == 0
    host.umount()
    host.mount()
    assert numbers(session) == inodes
    assert differences(before, tree(session)) == []
    assert numbers(session) == inodes
    host.umount()
    plain = make_host("b")
    plain.mount()
    assert differences(before, tree(plain.directory / "s")) == []


def test_what_is_open_mapped_or_owed_stays(make_host: MakeHost, bucket: Bucket) -> None:
    host = caching_host(make_host)
    host.mount()
    session = host.directory / "s"
    session.mkdir()
    (session / "opened").write_bytes(os.urandom(MIB))
    (session / "mapped").write_bytes(os.urandom(MIB))
    host.wait_until_clean()
    time.sleep(1.5)
    opened = os.open(session / "opened", os.O_RDONLY)
    descriptor = os.open(session / "mapped", os.O_RDONLY)
    mapped = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    os.close(descriptor)
    fill(session / "more")
    host.wait_until_clean()
    wait_until(lambda: used_bytes(host) <= LIMIT_BYTES, 60)
    here = {path.name for path in host.working_copy().rglob("*")}
    assert {"opened", "mapped"} <= here
    assert mapped[:] == bucket.read("sessions/s/mapped")
    os.close(opened)
    mapped.close()
    # Each change tells the evictor to look; what is not in the bucket yet must not leave.
    descriptor = os.open(session / "owed", os.O_WRONLY | os.O_CREAT)
    for _ in range(24):
        os.write(descriptor, os.urandom(MIB // 2))
        time.sleep(0.2)
        assert (host.working_copy() / "s" / "owed").exists()
    os.close(descriptor)
    host.wait_until_clean()
    assert bucket.size("sessions/s/owed") == 12 * MIB


@pytest.fixture
def own_server() -> object:
    """A server that this test may stop."""
    with SeaweedServer() as server:
        yield server


def test_nothing_leaves_while_the_store_is_stopped(own_server: SeaweedServer, make_host: MakeHost) -> None:
    host = make_host(
        "a",
        own_server.fresh_bucket(),
        SESSIONFS_CACHE_LIMIT_BYTES=str(LIMIT_BYTES),
        SESSIONFS_SWEEP_INTERVAL_SECONDS="1",
    )
    host.mount()
    session = host.directory / "s"
    session.mkdir()
    (session / "small").write_bytes(b"x")
    host.wait_until_clean()
    own_server.stop()
    fill(session / "more")
    before = tree(session)
    time.sleep(4)
    assert used_bytes(host) > 29 * MIB
    assert differences(before, tree(session)) == []
    own_server.start()
    host.wait_until_clean()
    wait_until(lambda: used_bytes(host) <= LIMIT_BYTES, 60)
    assert differences(before, tree(session)) == []


def remote_session(host: Host) -> Path:
    """Put a session with all kinds of names into the bucket; gives its path on the host."""
    session = host.directory / "s"
    (session / "a" / "b").mkdir(parents=True)
    for number in range(30):
        (session / "a" / f"f{number}").write_bytes(os.urandom(1000 + number))
    (session / "a" / "b" / "deep").write_text("deep")
    (session / "a" / "large").write_bytes(os.urandom(9 * MIB))
    os.link(session / "a" / "f1", session / "a" / "b" / "linked")
    os.symlink("a/f1", session / "link")
    (session / "empty").touch()
    return session


def test_an_eager_mount_reads_without_the_store(own_server: SeaweedServer, make_host: MakeHost) -> None:
    store = own_server.fresh_bucket()
    host = make_host("a", store)
    host.mount()
    session = remote_session(host)
    before = tree(session)
    host.umount()
    eager = make_host("b", store, SESSIONFS_FETCH_TIMEOUT_SECONDS="3")
    eager.mount("--eager")
    (eager.directory / "s").stat()
    own_server.stop()
    assert differences(before, tree(eager.directory / "s")) == []


def test_an_eager_session_with_a_bad_file_is_not_shown(
    host: Host, make_host: MakeHost, bucket: Bucket
) -> None:
    remote_session(host)
    host.umount()
    body = bucket.read("sessions/s/a/f7")
    bucket.write("sessions/s/a/f7", b"tampered", bucket.metadata("sessions/s/a/f7"))
    metadata = bucket.metadata("sessions/s/a/f7")
    eager = make_host("b")
    eager.mount("--eager")
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            os.listdir(eager.directory / "s")
    bucket.write("sessions/s/a/f7", body, metadata)
    wait_until((eager.directory / "s" / "a" / "f7").is_file, 10)
    assert (eager.directory / "s" / "a" / "f7").read_bytes() == body


def test_a_prefetching_mount_brings_everything_without_being_asked(host: Host, make_host: MakeHost) -> None:
    session = remote_session(host)
    before = tree(session)
    host.umount()
    second = make_host("b", SESSIONFS_PREFETCH="true")
    second.mount()
    (second.directory / "s").stat()
    wait_until(lambda: used_bytes(second) >= 9 * MIB + 30_000, 30)
    assert owed_files(second) == 0
    assert differences(before, tree(second.directory / "s")) == []


def test_reading_a_session_makes_nothing_owed(
    host: Host, make_host: MakeHost, bucket: Bucket, seaweed: SeaweedServer, tmp_path: Path
) -> None:
    session = remote_session(host)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-C"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, str(session), *arguments], check=True)
    host.umount()
    before = states(bucket)
    with FaultProxy(seaweed.endpoint) as proxy:
        reader = make_host("b", proxy.url_for(host.store))
        reader.mount()
        proxy.reset_counters()
        there = reader.directory / "s"
        # Without this git writes its index anew, as it does in every copy of a directory.
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        status = [*git, str(there), "status", "--short"]
        found = subprocess.run(status, check=True, capture_output=True, env=environment)
        assert found.stdout == b""
        shutil.copytree(there, tmp_path / "copied", symlinks=True)
        subprocess.run(["cp", "-a", str(there), str(tmp_path / "again")], check=True)
        subprocess.run(["tar", "cf", str(tmp_path / "tar"), "-C", str(there), "."], check=True)
        subprocess.run(["grep", "-r", "nowhere", str(there)], check=False, capture_output=True)
        tree(there)
        time.sleep(3)
        assert owed_files(reader) == 0
        assert proxy.methods["GET"] > 30
        assert set(proxy.methods) <= {"GET", "HEAD"}
        reader.umount()
    assert states(bucket) == before


def states(bucket: Bucket) -> dict[str, tuple[str, str]]:
    """How every object of a bucket stands."""
    found = bucket.client.list_objects(bucket.name, recursive=True)
    return {str(item.object_name): (str(item.etag), str(item.last_modified)) for item in found}
