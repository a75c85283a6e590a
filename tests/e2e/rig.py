"""Hosts for end-to-end tests: the real command, real processes, a real mount; and the bucket seen by another client."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import zstandard
from minio import Minio
from minio.error import S3Error

from sessionfs.stores.store_urls import store_id

COMMAND_TIMEOUT_SECONDS = 240
LEASE_SECONDS = 4.0
FAST = {
    "SESSIONFS_LEASE_SECONDS": str(LEASE_SECONDS),
    "SESSIONFS_BEAT_INTERVAL_SECONDS": "0.5",
    "SESSIONFS_UPLOAD_DELAY_SECONDS": "0.2",
    "SESSIONFS_RETRY_MAXIMUM_SECONDS": "2",
    "SESSIONFS_SNAPSHOT_INTERVAL_SECONDS": "0",
}
"""Settings of hosts that take over from one another within seconds, and commit only when asked to."""


@dataclass
class Host:
    """One host: its own state directory and mount point.

    Attributes:
        store: URL of the store.
        base: Directory of the host; removed by pytest.
        environment: Added to the process's environment; PYTHONPATH goes before ours.
        launcher: Command that every process of the host is started through.
        probe_record: What is known about the server by all hosts that have this record in common; None probes it.
    """

    store: str
    base: Path
    environment: dict[str, str] = field(default_factory=dict)
    launcher: tuple[str, ...] = ()
    probe_record: bytearray | None = None

    def __post_init__(self) -> None:
        self.mount_point = self.base / "mount"
        self.state = self.base / "state"
        self.mount_point.mkdir(parents=True, exist_ok=True)
        self._pids: set[int] = set()

    @property
    def directory(self) -> Path:
        """Where sessions are, on the mount."""
        return self.mount_point

    def run(self, *arguments: str, code: int | None = 0, timeout: float = COMMAND_TIMEOUT_SECONDS) -> str:
        """Run the command; give its standard output.

        Args:
            arguments: Behind ``sessionfs``.
            code: The exit code it must have, None for any.
            timeout: In seconds.
        """
        done = self.finished(*arguments, timeout=timeout)
        shown = f"exit {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log_tail()}"
        assert code is None or done.returncode == code, shown
        return done.stdout

    def finished(
        self, *arguments: str, timeout: float = COMMAND_TIMEOUT_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run the command and give all of its result."""
        return subprocess.run(
            [*self.launcher, sys.executable, "-m", "sessionfs", *arguments],
            env=self.full_environment(),
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def full_environment(self) -> dict[str, str]:
        """The environment of the host's processes."""
        here = str(Path(__file__).resolve().parents[2])
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SESSIONFS_", "XDG_", "AWS_"))
        }
        return {
            **kept,
            "HOME": str(self.base),
            "SESSIONFS_STATE_DIR": str(self.state),
            **self.environment,
            "PYTHONPATH": ":".join(filter(None, (self.environment.get("PYTHONPATH"), here))),
        }

    def mount(self, *flags: str) -> None:
        """Mount the store."""
        record = self.state / store_id(self.store) / "capabilities.json"
        if self.probe_record and not record.exists():
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_bytes(self.probe_record)
        self.run("mount", self.store, str(self.mount_point), *flags)
        self.remember_pids()
        if self.probe_record is not None:
            self.probe_record[:] = record.read_bytes()

    def umount(self, *flags: str, code: int = 0, timeout: float = COMMAND_TIMEOUT_SECONDS) -> str:
        """Unmount; everything owed must be in the bucket when the code is 0."""
        self.remember_pids()
        output = self.run("umount", str(self.mount_point), *flags, code=code, timeout=timeout)
        assert not os.path.ismount(self.mount_point)
        return output

    def status(self) -> dict[str, Any]:
        """The mount's status."""
        found: dict[str, Any] = json.loads(self.run("status", str(self.mount_point), "--json"))
        return found

    def remember_pids(self) -> tuple[int, int]:
        """Daemon and replication process of the mount."""
        found = self.status()
        deadline = time.monotonic() + 20
        while found["replication_pid"] is None and time.monotonic() < deadline:
            time.sleep(0.1)
            found = self.status()
        daemon, replication = int(found["daemon_pid"]), int(found["replication_pid"])
        self._pids |= {daemon, replication}
        return daemon, replication

    def stop(self) -> None:
        """Let every process of this host stand still, as a machine that is paused; nothing may touch its mount meanwhile."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let them run again."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def die(self) -> None:
        """Kill every process of this host, and remove the dead mount."""
        self.kill(*self._pids)
        subprocess.run(["umount", "-l", str(self.mount_point)], capture_output=True, check=False)

    def owner(self, session: str) -> str:
        """Holder of a session as a program is told it, "" for none."""
        return os.getxattr(self.directory / session, "user.sessionfs.owner").decode()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The mount's events with a name, oldest first."""
        lines = self.run("events", str(self.mount_point), "--limit", "100000").splitlines()
        return [event for event in map(json.loads, lines) if event["name"] == name]

    def snapshot(self, session: str) -> dict[str, Any]:
        """Commit a session by the command; give its report."""
        found: dict[str, Any] = json.loads(self.run("snapshot", str(self.directory / session), "--json"))
        return found

    def conflicts(self) -> list[dict[str, Any]]:
        """Conflicts as the command lists them."""
        found: list[dict[str, Any]] = json.loads(self.run("conflicts", str(self.mount_point), "--json"))
        return found

    def session_status(self, session: str) -> dict[str, Any]:
        """One session's part of the status."""
        (found,) = [one for one in self.status()["sessions"] if one["id"] == session]
        return dict(found)

    def wait_until_clean(self, timeout: float = 120) -> None:
        """Wait until nothing is owed."""
        self.run("status", str(self.mount_point), "--wait", timeout=timeout)

    def kill(self, *pids: int) -> None:
        """Kill processes of this host and wait until they are gone."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in pids), 20)

    def log_tail(self) -> str:
        """The end of the daemon's log, for a failed assertion."""
        logs = sorted(self.state.glob("*/daemon.log"))
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)

    def working_copy(self) -> Path:
        """The directory with this host's own files."""
        (found,) = self.state.glob("*/sessions")
        return found

    def clean_up(self) -> None:
        """Leave nothing mounted and nothing running, whatever happened."""
        subprocess.run(["umount", "-l", str(self.mount_point)], capture_output=True, check=False)
        for lock in self.state.glob("*/lock"):
            text = lock.read_text().strip().split()
            if text and text[0].isdigit():
                self._pids.add(int(text[0]))
        deadline = time.monotonic() + 15
        while any(alive(pid) for pid in self._pids) and time.monotonic() < deadline:
            for pid in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs (one that nobody reaped yet does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float, step: float = 0.05) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(step)


def errno_of(action: Callable[[], object]) -> int:
    """The number of the error that a call fails with, 0 when it succeeds."""
    try:
        action()
    except OSError as problem:
        return problem.errno or -1
    return 0


@dataclass(frozen=True)
class Entry:
    """One file of a generation, as its manifest says.

    Attributes:
        path: Spelled as in its key.
        size: In bytes.
        sha256: Of its bytes.
    """

    path: str
    size: int
    sha256: str


class Bucket:
    """A bucket seen by a client that is not ours.

    Args:
        url: A store URL of an S3 server on loopback.
        access_key: Its key.
        secret_key: Its secret.
    """

    def __init__(self, url: str, access_key: str, secret_key: str) -> None:
        parts = urllib.parse.urlsplit(url)
        endpoint = urllib.parse.urlsplit(urllib.parse.parse_qs(parts.query)["endpoint"][0])
        self.name = parts.netloc
        self._prefix = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
        self.client = Minio(
            endpoint=endpoint.netloc,
            access_key=access_key,
            secret_key=secret_key,
            secure=False,
            region="us-east-1",
        )

    def listed(self, prefix: str = "") -> set[str]:
        """Every key below a prefix."""
        found = self.client.list_objects(self.name, prefix=self._prefix + prefix, recursive=True)
        return {str(item.object_name).removeprefix(self._prefix) for item in found}

    def read(self, key: str) -> bytes:
        """An object's bytes."""
        response = self.client.get_object(self.name, self._prefix + key)
        try:
            return bytes(response.read())
        finally:
            response.close()
            response.release_conn()

    def metadata(self, key: str) -> dict[str, str]:
        """An object's user metadata; a directory marker's is in its content type on servers that keep no other."""
        found = {
            name.lower(): value
            for name, value in (self.client.stat_object(self.name, self._prefix + key).metadata or {}).items()
        }
        carried = found.get("content-type", "").partition('; sessionfs="')[2].rstrip('"')
        return dict(urllib.parse.parse_qsl(carried)) | {
            name.removeprefix("x-amz-meta-"): value
            for name, value in found.items()
            if name.startswith("x-amz-meta-")
        }

    def size_or_zero(self, key: str) -> int:
        """An object's length, 0 while there is none."""
        try:
            return self.size(key)
        except S3Error:
            return 0

    def size(self, key: str) -> int:
        """An object's length."""
        return int(self.client.stat_object(self.name, self._prefix + key).size or 0)

    def manifest(self, session: str, generation: int = 0) -> dict[str, Any]:
        """A manifest's fields, read without our code; generation 0 is the newest."""
        name = f"{generation:010d}" if generation else "manifest"
        raw = self.read(f"sessions/{session}.manifest/{name}.json")
        if raw.startswith(b"\x28\xb5\x2f\xfd"):
            with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
                raw = reader.read()
        found: dict[str, Any] = json.loads(raw)
        return found

    def files_of(self, session: str, generation: int = 0) -> dict[str, Entry]:
        """Entries of a generation's regular files, by path."""
        return {
            one["path"]: Entry(one["path"], one["size"], one["sha256"])
            for one in self.manifest(session, generation)["entries"]
            if one["type"] == "file"
        }

    def numbers(self, session: str) -> list[int]:
        """Numbers of a session's generations, ascending."""
        names = (key.rpartition("/")[2] for key in self.listed(f"sessions/{session}.manifest/"))
        return sorted(int(name.removesuffix(".json")) for name in names if name[0].isdigit())

    def content(self, session: str, generation: int, path: str) -> bytes:
        """Bytes of a file of a generation, found as docs/STORAGE_FORMAT.md says, without our code.

        The live object, or what it begins with; the same by content; an alias; the same path in a newer generation, which begins with it.
        """
        wanted = self.files_of(session, generation)[path]
        candidates: list[Callable[[], bytes]] = [
            lambda: self.read(f"sessions/{session}/{path}"),
            lambda: self.by_content(session, wanted.sha256),
        ]
        for newer in self.numbers(session):
            later = self.files_of(session, newer).get(path) if newer > generation else None
            if later is not None:
                candidates.append(partial(self.by_content, session, later.sha256))
        for candidate in candidates:
            with contextlib.suppress(S3Error):
                found = candidate()[: wanted.size]
                if hashlib.sha256(found).hexdigest() == wanted.sha256:
                    return found
        raise AssertionError(f"generation {generation} of {session}: the bytes of {path} are nowhere")

    def by_content(self, session: str, sha256: str) -> bytes:
        """Bytes that are kept under their sum, or begin something that is."""
        key = f"sessions/{session}.objects/{sha256[:2]}/{sha256}"
        try:
            return self.read(key)
        except S3Error:
            alias = json.loads(self.read(f"{key}.alias"))
        return self.by_content(session, alias["of"])[: alias["size"]]

    def remove(self, key: str) -> None:
        """Delete an object, as another tool would."""
        self.client.remove_object(self.name, self._prefix + key)

    def write(self, key: str, body: bytes, metadata: dict[str, str] | None = None) -> None:
        """Put an object, as another tool would."""
        self.client.put_object(
            self.name, self._prefix + key, io.BytesIO(body), len(body), metadata=dict(metadata or {})
        )


@dataclass(frozen=True)
class Seen:
    """What a program sees of one path."""

    mode: int
    size: int
    sha256: str
    target: str
    mtime_ns: int
    uid: int
    gid: int
    xattrs: tuple[tuple[str, bytes], ...]
    link_group: tuple[bytes, ...]


def tree(root: Path, *, times: bool = True) -> dict[bytes, Seen]:
    """Everything below a directory, the directory itself included.

    Args:
        root: A directory.
        times: False leaves modification times out.
    """
    links: dict[int, list[bytes]] = {}
    statuses: list[tuple[bytes, os.stat_result]] = []
    base = os.fsencode(root)
    for path in walk(base):
        status = os.lstat(path)
        inner = path[len(base) + 1 :]
        statuses.append((inner, status))
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            links.setdefault(status.st_ino, []).append(inner)
    found: dict[bytes, Seen] = {}
    for inner, status in statuses:
        path = base + b"/" + inner if inner else base
        is_file, is_link = stat.S_ISREG(status.st_mode), stat.S_ISLNK(status.st_mode)
        found[inner] = Seen(
            mode=status.st_mode,
            size=status.st_size if is_file else 0,
            sha256=digest(path) if is_file else "",
            target=os.fsdecode(os.readlink(path)) if is_link else "",
            mtime_ns=status.st_mtime_ns if times and not is_link else 0,
            uid=status.st_uid,
            gid=status.st_gid,
            xattrs=() if is_link else tuple((n, os.getxattr(path, n)) for n in sorted(os.listxattr(path))),
            link_group=tuple(sorted(links.get(status.st_ino, []))),
        )
    return found


def walk(directory: bytes) -> Iterator[bytes]:
    """A directory and everything below it."""
    yield directory
    for entry in sorted(os.scandir(directory), key=lambda found: found.name):
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path)
        else:
            yield entry.path


def digest(path: bytes) -> str:
    """sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def differences(first: dict[bytes, Seen], second: dict[bytes, Seen]) -> list[str]:
    """What differs between two trees, as text for an assertion."""
    lines = [f"only in the first: {path!r}" for path in sorted(first.keys() - second.keys())]
    lines += [f"only in the second: {path!r}" for path in sorted(second.keys() - first.keys())]
    lines += [
        f"{path!r}: {first[path]} != {second[path]}"
        for path in sorted(first.keys() & second.keys())
        if first[path] != second[path]
    ]
    return lines


def endpoint_of(store_url: str) -> str:
    return store_url.partition("endpoint=")[2].partition("&")[0]
