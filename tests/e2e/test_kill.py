"""kill -9 at random moments of a recorded workload: what a returned system call had written is there afterwards.

``SESSIONFS_TEST_KILLS`` sets the number of kills (200 in the long form), ``SESSIONFS_TEST_SEED`` repeats a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import MakeHost
from .rig import Bucket, Host, differences, tree

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

KILLS = int(os.environ.get("SESSIONFS_TEST_KILLS", "9"))
SEED = int(os.environ.get("SESSIONFS_TEST_SEED", "0")) or random.randrange(1 << 32)


class Recorder:
    """Does random operations and remembers what every returned call had done.

    The call that the kill interrupts may have happened or not: its path is left out of the comparison.
    """

    def __init__(self, session: Path, seed: int) -> None:
        self.session = session
        self.random = random.Random(seed)
        self.files: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        self.unsure: set[str] = set()

    def run_until_dead(self, deadline: float) -> None:
        """Work until the mount dies."""
        while time.monotonic() < deadline:
            operation = self.random.choice(
                (self.write, self.write, self.append, self.rename, self.remove, self.chmod)
            )
            paths = self.plan()
            try:
                operation(*paths)
            except OSError:
                self.unsure.update(paths)
                return

    def plan(self) -> tuple[str, str]:
        """Two names: one that likely exists, one that may."""
        existing = sorted(self.files)
        first = self.random.choice(existing) if existing and self.random.random() < 0.7 else self.fresh()
        return first, self.fresh()

    def fresh(self) -> str:
        """A name out of few, so that names are used again."""
        return f"d{self.random.randrange(4)}/f{self.random.randrange(40)}"

    def write(self, path: str, _other: str) -> None:
        """Replace a file's bytes."""
        body = self.random.randbytes(self.random.randrange(1, 9000))
        with open(self.session / path, "wb", buffering=0) as file:
            file.write(body)
        self.files[path] = body
        self.modes[path] = os.stat(self.session / path).st_mode

    def append(self, path: str, _other: str) -> None:
        """Add a line."""
        line = self.random.randbytes(40).hex().encode() + b"\n"
        with open(self.session / path, "ab", buffering=0) as file:
            file.write(line)
        self.files[path] = self.files.get(path, b"") + line
        self.modes[path] = os.stat(self.session / path).st_mode

    def rename(self, path: str, other: str) -> None:
        """Rename over whatever is there."""
        if path in self.files and path != other:
            os.rename(self.session / path, self.session / other)
            self.files[other], self.modes[other] = self.files.pop(path), self.modes.pop(path)

    def remove(self, path: str, _other: str) -> None:
        """Unlink."""
        if path in self.files:
            os.unlink(self.session / path)
            del self.files[path], self.modes[path]

    def chmod(self, path: str, _other: str) -> None:
        """Change permissions."""
        if path in self.files:
            mode = self.random.choice((0o600, 0o644, 0o755))
            os.chmod(self.session / path, mode)
            self.modes[path] = (self.modes[path] & ~0o7777) | mode

    def check(self, read: Callable[[str], bytes | None], where: str) -> None:
        """Compare, then take over what the interrupted call left."""
        names = {f"d{d}/f{f}" for d in range(4) for f in range(40)} - self.unsure
        wrong = [name for name in sorted(names) if read(name) != self.files.get(name)]
        assert wrong == [], f"{where}, seed {SEED}: {wrong}"

    def adopt(self) -> None:
        """Take the disk's word for what was interrupted."""
        for name in self.unsure:
            path = self.session / name
            if path.exists():
                self.files[name], self.modes[name] = path.read_bytes(), path.stat().st_mode
            else:
                self.files.pop(name, None)
                self.modes.pop(name, None)
        self.unsure.clear()


def read_or_none(path: Path) -> bytes | None:
    """A file's bytes, None when there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_by_kill_9(host: Host, bucket: Bucket, make_host: MakeHost) -> None:
    print(f"seed {SEED}, {KILLS} kills")
    chooser = random.Random(SEED)
    session = host.directory / "s"
    session.mkdir()
    for number in range(4):
        (session / f"d{number}").mkdir()
    recorder = Recorder(session, SEED)
    for round_number in range(KILLS):
        daemon, replication = host.remember_pids()
        victims = chooser.choice(((daemon,), (replication,), (daemon, replication)))
        delay = chooser.uniform(0.05, 2.5)
        killer = subprocess.Popen(["sh", "-c", f"sleep {delay:.3f}; kill -9 {' '.join(map(str, victims))}"])
        recorder.run_until_dead(time.monotonic() + delay + 0.5)
        killer.wait()
        if daemon in victims:
            host.kill(daemon)
            with contextlib.suppress(ProcessLookupError):
                os.kill(replication, signal.SIGCONT)
            host.mount()
        recorder.check(lambda name: read_or_none(session / name), f"round {round_number}, mount")
        recorder.adopt()
    host.wait_until_clean(300)
    live = {key.removeprefix("sessions/s/") for key in bucket.listed("sessions/s/") if not key.endswith("/")}
    assert live == set(recorder.files)
    for name, body in recorder.files.items():
        assert bucket.read(f"sessions/s/{name}") == body, name
        assert int(bucket.metadata(f"sessions/s/{name}")["mode"]) == recorder.modes[name], name
    before = tree(session)
    host.umount()
    second = make_host("b")
    second.mount()
    assert differences(before, tree(second.directory / "s")) == []


def test_changes_of_files_that_are_not_here_survive_kill_9(
    host: Host, bucket: Bucket, make_host: MakeHost
) -> None:
    session = host.directory / "s"
    (session / "d").mkdir(parents=True)
    for name in ("mode", "old", "gone", "d/inner"):
        (session / name).write_text(name)
    host.umount()
    second = make_host("b", SESSIONFS_UPLOAD_DELAY_SECONDS="5")
    second.mount()
    there = second.directory / "s"
    os.chmod(there / "mode", 0o755)
    os.rename(there / "old", there / "new")
    os.unlink(there / "gone")
    os.rename(there / "d", there / "e")
    assert not any(path.is_file() for path in (second.working_copy() / "s").rglob("*")), "nothing was fetched"
    second.kill(*second.remember_pids())
    second.mount()
    assert sorted(os.listdir(there)) == ["e", "mode", "new"]
    assert (there / "mode").stat().st_mode & 0o777 == 0o755
    second.wait_until_clean()
    live = {key.removeprefix("sessions/s/") for key in bucket.listed("sessions/s/")}
    assert live == {"", "mode", "new", "e/", "e/inner"}
    assert bucket.read("sessions/s/new") == b"old"
    assert bucket.read("sessions/s/e/inner") == b"d/inner"
    assert int(bucket.metadata("sessions/s/mode")["mode"]) & 0o777 == 0o755
    assert (there / "e" / "inner").read_text() == "d/inner"


def test_a_removed_state_directory_deletes_nothing_in_the_bucket(
    host: Host, bucket: Bucket, tmp_path: Path
) -> None:
    import shutil

    session = host.directory / "s"
    session.mkdir()
    (session / "f").write_text("keep")
    host.umount()
    before = bucket.listed()
    shutil.rmtree(host.working_copy() / "s")
    host.mount()
    assert (session / "f").read_text() == "keep"
    host.umount()
    shutil.rmtree(host.state)
    host.mount()
    assert (session / "f").read_text() == "keep"
    host.umount()
    assert bucket.listed() >= before
