"""``sessionfs migrate`` as a user runs it: from directory to bucket and back, refusals, an end by SIGKILL, the switch.

``SESSIONFS_TEST_MIGRATE=1000x20`` runs the round trip with 1,000 sessions of 20 files.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sessionfs.cli.exit_codes import FAILED, LEFT_BEHIND, OWNED_ELSEWHERE
from sessionfs.formats.migration.records import RECORD_KEY, MigrationRecord, encode_record
from sessionfs.model.names import session_id
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata
from sessionfs.stores.local_directory import LocalDirectoryStore, open_for_reading
from sessionfs.stores.store_urls import store_id
from tests.unit.migration.world import contents
from tests.unit.replication.maintenance.world import Author, HandClock

from .conftest import MakeHost
from .rig import Bucket, Host, wait_until

SESSIONS, FILES = (int(part) for part in os.environ.get("SESSIONFS_TEST_MIGRATE", "20x10").split("x"))
READ_ONLY = "mount --make-rprivate / && mount --bind {0} {0} && mount -o remount,ro,bind {0} && ! touch {0}/x 2>/dev/null && "


def fill(directory: Path, sessions: int, files: int) -> None:
    """Make a store of committed sessions: mostly small files, some longer, each session with directories and a link."""
    directory.mkdir()
    store = LocalDirectoryStore(str(directory))
    chance = random.Random(7)
    for number in range(sessions):
        tree: dict[bytes, bytes | str | None] = {b"work": None, b"link": "work"}
        for name in range(files):
            size = chance.choice([0, 10, 300, 4000, 4000, 30_000])
            tree[b"work/file %d \xc3\xa9.txt" % name] = chance.randbytes(size)
        Author(store, HandClock(), session_id(f"s{number:04d}")).commit(tree)
    index = json.dumps({f"s{number:04d}": {} for number in range(sessions)}).encode()
    metadata = ObjectMetadata({}, "application/json")
    store.put("sessions.json", index, condition=IfAbsent(), metadata=metadata)


def migrated(host: Host, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.run("migrate", *arguments, "--json", timeout=1800))
    return found


def kept(directory: Path) -> dict[str, tuple[bytes, dict[str, str], str]]:
    """Bytes, user metadata and encoding of everything in a store; a server may guess content types where the source has none."""
    found = contents(open_for_reading(str(directory)))
    return {
        key: (
            body,
            {name: value for name, value in metadata.user.items() if value},
            metadata.content_encoding,
        )
        for key, (body, metadata) in found.items()
    }


def files_of(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, length and time of everything in a directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        state = path.lstat()
        found[str(path)] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return found


@pytest.fixture
def host(make_fast_host: MakeHost) -> Host:
    """A host that has not mounted anything."""
    return make_fast_host()


@pytest.fixture
def target(host: Host, store_url: str, probe_record: bytearray) -> Iterator[str]:
    """A store in the bucket; what one host found out about the server, which takes seconds, the next one knows."""
    record = host.state / store_id(store_url) / "capabilities.json"
    if probe_record:
        record.parent.mkdir(parents=True)
        record.write_bytes(probe_record)
    yield store_url
    if record.exists():
        probe_record[:] = record.read_bytes()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small store in a directory."""
    directory = tmp_path / "source"
    fill(directory, 3, 4)
    return directory


@pytest.mark.s3
@pytest.mark.timeout(3600)
def test_from_a_directory_to_a_bucket_and_back_every_byte_is_the_same(
    host: Host, bucket: Bucket, target: str, tmp_path: Path
) -> None:
    fill(tmp_path / "one", SESSIONS, FILES)
    before = files_of(tmp_path / "one")
    began = time.monotonic()
    there = migrated(host, "--from", str(tmp_path / "one"), "--to", target)
    up_seconds = time.monotonic() - began
    assert files_of(tmp_path / "one") == before
    again = migrated(host, "--from", str(tmp_path / "one"), "--to", target)
    began = time.monotonic()
    back = migrated(host, "--from", target, "--to", f"local:{tmp_path / 'two'}")
    down_seconds = time.monotonic() - began
    print(f"{there['result']['objects']} objects: up {up_seconds:.1f} s, down {down_seconds:.1f} s")
    assert there["result"]["copied"] == there["result"]["objects"] > SESSIONS * FILES
    assert (again["result"]["copied"], again["result"]["unchanged"]) == (0, there["result"]["objects"])
    assert len({run["result"]["checksum"] for run in (there, again, back)}) == 1
    for path in list((tmp_path / "one").glob("sessions/*/work/*"))[:20]:
        assert bucket.read(str(path.relative_to(tmp_path / "one"))) == path.read_bytes()
    assert kept(tmp_path / "two") == kept(tmp_path / "one")


def test_a_source_on_a_read_only_mount_is_enough(host: Host, source: Path, tmp_path: Path) -> None:
    wanted = contents(open_for_reading(str(source)))
    host.launcher = (
        "unshare",
        *(() if os.geteuid() == 0 else ("--map-root-user",)),
        "--mount",
        "sh",
        "-c",
        READ_ONLY.format(shlex.quote(str(source))) + 'exec "$@"',
        "sh",
    )
    migrated(host, "--from", str(source), "--to", str(tmp_path / "two"))
    assert contents(open_for_reading(str(tmp_path / "two"))) == wanted


def test_a_dry_run_writes_nothing_at_all_and_counts(host: Host, source: Path, tmp_path: Path) -> None:
    before = files_of(source)
    found = migrated(host, "--from", str(source), "--to", str(tmp_path / "two"), "--dry-run")
    assert (
        found["plan"]["to_copy"] == found["plan"]["objects"] == len(contents(open_for_reading(str(source))))
    )
    assert found["plan"]["bytes_to_copy"] == found["plan"]["bytes"] > 0
    assert (found["result"], found["switched"]) == (None, "")
    assert files_of(source) == before
    assert not (tmp_path / "two").exists()
    (tmp_path / "two").mkdir()
    migrated(host, "--from", str(source), "--to", str(tmp_path / "two"), "--dry-run")
    assert os.listdir(tmp_path / "two") == []
    assert not host.state.exists()


def test_a_run_that_is_killed_is_finished_by_the_next(host: Host, tmp_path: Path) -> None:
    fill(tmp_path / "one", 24, 8)
    target = tmp_path / "two"
    command = [
        sys.executable,
        "-m",
        "sessionfs",
        "migrate",
        "--from",
        str(tmp_path / "one"),
        "--to",
        str(target),
    ]
    running = subprocess.Popen(
        command, env=host.full_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: len(list(target.glob("sessions/*"))) > 12, 60, step=0.002)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert not (target / "sessions.json").exists()
    found = migrated(host, "--from", str(tmp_path / "one"), "--to", str(target))
    assert found["result"]["kept"] + found["result"]["unchanged"] > 0
    assert 0 < found["result"]["copied"] < found["result"]["objects"]
    assert contents(open_for_reading(str(target))) == contents(open_for_reading(str(tmp_path / "one")))


def test_a_destination_with_sessions_of_its_own_is_refused_and_left_alone(
    host: Host, source: Path, tmp_path: Path
) -> None:
    fill(tmp_path / "two", 1, 1)
    before = files_of(tmp_path / "two")
    done = host.finished("migrate", "--from", str(source), "--to", str(tmp_path / "two"))
    assert done.returncode == FAILED
    assert f"file://{tmp_path}/two is not empty" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert files_of(tmp_path / "two") == before


@pytest.mark.fuse
def test_a_mounted_source_is_refused_here_and_from_another_host_and_then_migrated_whole(
    make_fast_host: MakeHost, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    source, target = f"file://{tmp_path}/one", tmp_path / "two"
    here = make_fast_host("here", source)
    here.mount()
    (here.directory / "s1").mkdir()
    (here.directory / "s1" / "notes.txt").write_text("kept\n")
    here.wait_until_clean()
    elsewhere = make_fast_host("elsewhere", source)
    for host, remedy in ((here, f"sessionfs umount {here.mount_point}"), (elsewhere, "sessionfs umount DIR")):
        done = host.finished("migrate", "--from", source, "--to", str(target))
        assert done.returncode == OWNED_ELSEWHERE, done.stderr
        assert "in use by" in done.stderr
        assert remedy in done.stderr
    assert not target.exists()
    here.umount()
    migrated(here, "--from", source, "--to", str(target))
    there = make_fast_host("there", f"file://{target}")
    there.mount()
    assert (there.directory / "s1" / "notes.txt").read_text() == "kept\n"
    (there.directory / "s1" / "more.txt").write_text("new\n")
    there.umount()
    done = here.finished("migrate", "--from", source, "--to", str(target))
    assert done.returncode == FAILED
    assert "was changed since it was migrated to" in done.stderr


@pytest.mark.fuse
def test_a_part_of_a_store_is_not_mounted(make_fast_host: MakeHost, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    store = LocalDirectoryStore(str(tmp_path / "one"))
    record = MigrationRecord(
        source="s3://old", source_id="x", state="copying", started_at="2026-01-02T03:04:05Z"
    )
    token = store.put(RECORD_KEY, encode_record(record), condition=IfAbsent(), metadata=ObjectMetadata())
    host = make_fast_host("here", f"file://{tmp_path}/one")
    done = host.finished("mount", host.store, str(host.mount_point))
    assert done.returncode == FAILED, done.stderr
    assert "holds a part of s3://old" in done.stderr
    assert "sessionfs migrate --from s3://old" in done.stderr
    finished = encode_record(msgspec.structs.replace(record, state="complete"))
    store.put(RECORD_KEY, finished, condition=IfMatch(token), metadata=ObjectMetadata())
    host.mount()
    host.umount()


@pytest.mark.fuse
def test_bytes_that_a_host_did_not_upload_are_not_forgotten(make_fast_host: MakeHost, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    source = f"file://{tmp_path}/one"
    host = make_fast_host(
        "here", source, SESSIONFS_UPLOAD_DELAY_SECONDS="600", SESSIONFS_MAX_UPLOAD_DELAY_SECONDS="600"
    )
    host.mount()
    (host.directory / "s1").mkdir()
    (host.directory / "s1" / "notes.txt").write_text("only here\n")
    host.remember_pids()
    host.die()
    done = host.finished("migrate", "--from", source, "--to", str(tmp_path / "two"))
    assert done.returncode == LEFT_BEHIND, done.stderr
    assert "files of this host are not in" in done.stderr
    assert not (tmp_path / "two").exists()


@pytest.mark.s3
def test_the_switch_names_the_bucket_and_the_way_back_is_told(host: Host, target: str, source: Path) -> None:
    named = host.base / "session-store.json"
    named.write_text(json.dumps({"backend": "local", "directory": str(source)}))
    host.environment["SESSIONFS_STORE"] = str(named)
    dry = migrated(host, "--to", target, "--dry-run")
    assert (dry["source"], json.loads(named.read_text())["backend"]) == (f"file://{source}", "local")
    found = migrated(host, "--to", target)
    assert found["switched"] == str(named)
    assert json.loads(named.read_text())["backend"] == "s3"
    sessions = json.loads(host.run("ls", "--json"))
    assert [session["id"] for session in sessions] == ["s0000", "s0001", "s0002"]
    os.replace(f"{named}.before", named)
    assert migrated(host, "--to", target, "--dry-run")["plan"]["to_copy"] == 0
