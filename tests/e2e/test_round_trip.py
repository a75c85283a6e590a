"""A session made with ordinary tools is in the bucket, object for object, and comes back on another host."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sessionfs.model import keys
from sessionfs.model.names import SessionId

from .conftest import MakeHost
from .rig import Bucket, Host, differences, tree, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

SOURCE_FILES = 3000


def shell(script: str, directory: Path) -> str:
    """Run a script with ordinary tools."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=directory, capture_output=True, text=True, check=False, timeout=280
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def source_tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real source tree of 3,000 files: what is installed beside this test."""
    target = tmp_path_factory.mktemp("source") / "tree.tar"
    count = 0
    with tarfile.open(target, "w") as archive:
        for base in (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"]):
            for path in sorted(Path(base).rglob("*.py")):
                if count == SOURCE_FILES:
                    break
                if path.is_file() and "site-packages" not in path.parts[len(Path(base).parts) :]:
                    archive.add(path, f"src{Path(base).name}/{path.relative_to(base)}", recursive=False)
                    count += 1
    assert count == SOURCE_FILES
    return target


def use_ordinary_tools(session: Path, tarball: Path) -> None:
    """Work in a session as people do."""
    shell(f"mkdir source && tar -xf {tarball} -C source", session)
    shell(
        """mkdir repository && cd repository && cp -r ../source/* . && git init -q . && git add -A
        git -c user.name=t -c user.email=t@example.org commit -qm first && test -z "$(git status --porcelain)"
        git fsck --strict && git gc -q && git checkout -qb other && echo x > new && git add new
        git -c user.name=t -c user.email=t@example.org commit -qm second""",
        session,
    )
    (session / "edited.txt").write_text("one\ntwo\n")
    shell('sed -i s/two/three/ edited.txt && test "$(cat edited.txt)" = "$(printf \'one\\nthree\')"', session)
    # As vim saves: write beside, remove the backup, rename over.
    shell(
        "cp edited.txt .edited.swp && mv edited.txt edited.txt~ && mv .edited.swp edited.txt && rm edited.txt~",
        session,
    )
    for mode in ("wal", "delete"):
        database = sqlite3.connect(session / f"{mode}.sqlite")
        database.execute(f"PRAGMA journal_mode = {mode}")
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
        for number in range(50):
            with database:
                database.execute("INSERT INTO t (v) VALUES (?)", (f"value {number}" * 20,))
        database.close()
    links = session / "links"
    links.mkdir()
    (links / "first").write_bytes(b"one body, three names")
    os.link(links / "first", links / "second")
    os.link(links / "first", session / "third")
    (links / "dangling").symlink_to("nowhere/at all")
    (links / "absolute").symlink_to("/etc/hostname")
    (session / "empty" / "directories" / "deep").mkdir(parents=True)
    with (session / "sparse").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
    odd = os.fsencode(session) + b"/odd"
    os.mkdir(odd)
    for name in (
        b"a b",
        b"new\nline",
        b"100%",
        b"%41",
        b"\xff\xfe",
        b"back\\slash",
        b"x" * 255,
        "ä€😀".encode(),
        b"-rf",
        b"+&#?=",
    ):
        with open(odd + b"/" + name, "wb") as raw:
            raw.write(name)
    os.chmod(session / "edited.txt", 0o4751)
    os.chown(session / "edited.txt", 1234, 2345)
    os.utime(session / "edited.txt", ns=(1, 987_654_321_123_456_789))
    os.setxattr(session / "edited.txt", "user.colour", b"\x00blue")
    (session / "empty file").touch()


def test_pip_installs_into_a_venv_inside_a_session(host: Host, tmp_path: Path) -> None:
    session = host.directory / "venv"
    session.mkdir()
    wheel = tmp_path / "tiny_thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_thing.py", "VALUE = 7\n")
        archive.writestr(
            "tiny_thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1\n"
        )
        archive.writestr(
            "tiny_thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_thing-1.dist-info/RECORD", "")
    shell(
        f"{sys.executable} -m venv env && env/bin/pip install -q --no-index {wheel}"
        " && test \"$(env/bin/python -c 'import tiny_thing; print(tiny_thing.VALUE)')\" = 7",
        session,
    )


def test_tail_follows_a_growing_log(host: Host, tmp_path: Path) -> None:
    session = host.directory / "s"
    session.mkdir()
    log = session / "log"
    log.touch()
    seen = tmp_path / "seen"
    with (
        seen.open("wb") as output,
        subprocess.Popen(["tail", "-n", "+1", "-f", str(log)], stdout=output) as tail,
    ):
        for number in range(20):
            with log.open("a") as file:
                file.write(f"line {number}\n")
            time.sleep(0.05)
        wait_until(lambda: "line 19" in seen.read_text(), 10)
        tail.kill()
    assert seen.read_text().splitlines() == [f"line {number}" for number in range(20)]


def test_a_file_is_a_plain_object_within_two_seconds(host: Host, bucket: Bucket) -> None:
    (host.directory / "s").mkdir()
    taken: list[float] = []
    # The best of five: a busy machine delays some, a wrong delay delays all.
    for number in range(5):
        started = time.monotonic()
        (host.directory / "s" / f"note {number}.txt").write_text("hello")
        wait_until(partial(has_size, bucket, f"sessions/s/note {number}.txt", 5), 20)
        taken.append(time.monotonic() - started)
    assert min(taken) <= 2.0
    assert bucket.read("sessions/s/note 0.txt") == b"hello"


def has_size(bucket: Bucket, key: str, size_bytes: int) -> bool:
    """Whether an object is there with this length."""
    return bucket.size_or_zero(key) == size_bytes


def test_locks_keep_processes_apart(host: Host) -> None:
    (host.directory / "s").mkdir()
    path = host.directory / "s" / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        busy = subprocess.run(["flock", "-n", str(path), "true"], check=False)
    assert busy.returncode == 1


def expected_keys(session: str, seen: Path) -> dict[str, bytes]:
    """Key of every path that must be in the bucket."""
    found: dict[str, bytes] = {}
    for path, entry in tree(seen).items():
        key = keys.live_key(SessionId(session), path, is_directory=stat.S_ISDIR(entry.mode))
        assert key is not None
        found[key] = path
    return found


@pytest.mark.timeout(1200)
def test_a_session_reaches_the_bucket_and_comes_back_identical(
    host: Host, bucket: Bucket, make_host: MakeHost, source_tarball: Path, tmp_path: Path
) -> None:
    session = host.directory / "project"
    session.mkdir()
    use_ordinary_tools(session, source_tarball)
    copy = tmp_path / "native"
    shell(f"cp -a {session} {copy} && diff -r --no-dereference {session} {copy}", tmp_path)
    before = tree(session)
    host.umount()

    found = bucket.listed()
    expected = expected_keys("project", copy)
    live = {key for key in found if key.startswith("sessions/project/")}
    assert live == set(expected)
    siblings = found - live
    assert siblings == {
        "sessions/project.manifest/manifest.json", "sessions/project.manifest/0000000001.json", "sessions/project.snapshot.json",
        "sessions/project.owner/owner.json",
    }  # fmt: skip
    databases = {b"wal.sqlite", b"delete.sqlite"}
    with ThreadPoolExecutor(8) as pool:
        described = dict(zip(expected, pool.map(bucket.metadata, expected), strict=True))
    for key, path in expected.items():
        entry = before[path]
        metadata = described[key]
        assert int(metadata["mode"]) == entry.mode, key
        assert (int(metadata["uid"]), int(metadata["gid"])) == (entry.uid, entry.gid), key
        if not stat.S_ISLNK(entry.mode):
            seconds, _, fraction = metadata["mtime"].partition(".")
            assert int(seconds) * 10**9 + int(fraction) == entry.mtime_ns, key
        if stat.S_ISREG(entry.mode) and path not in databases:
            assert metadata["sessionfs-sha256"] == entry.sha256, key
    for key in list(expected)[:: max(1, len(expected) // 200)]:
        entry = before[expected[key]]
        if stat.S_ISREG(entry.mode) and expected[key] not in databases:
            assert bucket.read(key) == (copy / os.fsdecode(expected[key])).read_bytes()

    second = make_host("b")
    second.mount()
    after = tree(second.directory / "project")
    for path in databases:
        # The image holds the same rows; SQLite laid it out.
        before.pop(path)
        after.pop(path)
        with sqlite3.connect(second.directory / "project" / os.fsdecode(path)) as database:
            assert database.execute("SELECT count(*), max(id) FROM t").fetchone() == (50, 50)
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
    assert differences(before, after) == []
    shell(
        'cd repository && git fsck --strict && test -z "$(git status --porcelain)"',
        second.directory / "project",
    )
    second.umount()


def test_a_name_whose_spelling_is_too_long_for_a_key_comes_back(
    host: Host, bucket: Bucket, make_host: MakeHost
) -> None:
    (host.directory / "s").mkdir()
    name = b"\xff" * 100
    inside = os.fsencode(host.directory / "s") + b"/" + name
    with open(inside, "wb") as file:
        file.write(b"kept by content")
    host.umount()
    assert any(key.startswith("sessions/s.objects/") for key in bucket.listed())
    second = make_host("b")
    second.mount()
    with open(os.fsencode(second.directory / "s") + b"/" + name, "rb") as file:
        assert file.read() == b"kept by content"
