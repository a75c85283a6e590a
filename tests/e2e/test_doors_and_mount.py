"""A Python door of a state directory on which a mount runs goes through that mount: both show the same, and the bucket has it under plain keys."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minio.error import S3Error

from sessionfs.daemon.doors.in_process.core_place import CorePlace
from sessionfs.daemon.doors.mirrored import open_mirrored
from sessionfs.daemon.doors.through_mount.mount_place import MountPlace
from sessionfs.model.errors import (
    ConflictError,
    HandleClosedError,
    NotFoundError,
    SessionAlreadyOwnedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.portal import Portal
from sessionfs.stores.store_urls import store_id
from sessionfs.testing.s3_servers import ACCESS_KEY_ID, CREDENTIALS, SECRET_ACCESS_KEY
from tests.unit.daemon.doors.behaviour import EVERY, Stage

from .conftest import MakeHost
from .rig import FAST, Bucket, Host, alive, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3]

S = SessionId("s1")
SOON_SECONDS = 20
"""Seconds, and the time of a loaded machine."""


@dataclass
class Mounted:
    """A mounted host with two doors open.

    Attributes:
        host: The host.
        portal: Runs the doors.
        first: One door.
        second: Another one.
        bucket: Another client of the store.
    """

    host: Host
    portal: Portal
    first: SessionPlace
    second: SessionPlace
    bucket: Bucket

    def enter(self) -> tuple[SessionPlace, Callable[[], None]]:
        """Open a door; gives it and its end."""
        return self.portal.enter(open_mirrored(self.host.store, state_directory=str(self.host.state)))


@pytest.fixture(scope="module")
def mounted(
    shared_bucket: str, probe_record: bytearray, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mounted]:
    head, _, query = shared_bucket.partition("?")
    url = f"{head}/{uuid.uuid4().hex}?{query}"
    quick = {**CREDENTIALS, **FAST, "SESSIONFS_FOREIGN_LAG_SECONDS": "1"}
    host = Host(url, tmp_path_factory.mktemp("doors"), quick, probe_record=probe_record)
    try:
        host.mount()
        with Portal() as portal:
            opening = [open_mirrored(url, state_directory=str(host.state)) for _ in range(2)]
            (first, leave_first), (second, leave_second) = map(portal.enter, opening)
            yield Mounted(host, portal, first, second, Bucket(url, ACCESS_KEY_ID, SECRET_ACCESS_KEY))
            leave_first()
            leave_second()
        host.umount()
    finally:
        host.clean_up()


_numbers = itertools.count()


@EVERY
def test_through_a_mount(behaviour: Callable[[Stage], Awaitable[None]], mounted: Mounted) -> None:
    session = SessionId(f"b{next(_numbers)}")
    stage = Stage(mounted.first, mounted.second, session, mounted.host.working_copy())
    mounted.portal.run(behaviour, stage)


def test_door_and_mount_show_the_same_at_once_and_the_bucket_soon(mounted: Mounted) -> None:
    assert isinstance(mounted.first, MountPlace)
    assert mounted.first.mount_point == str(mounted.host.mount_point)
    run, files, there = mounted.portal.run, mounted.first.files(S), mounted.host.directory / S
    run(files.write, "d/ü.txt", b"by the door\n")
    assert (there / "d" / "ü.txt").read_bytes() == b"by the door\n"
    with (there / "d" / "ü.txt").open("ab") as file:
        file.write(b"by a program\n")
    assert run(files.read, "d/ü.txt") == b"by the door\nby a program\n"
    run(files.append, "d/ü.txt", b"by the door again\n")
    whole = b"by the door\nby a program\nby the door again\n"
    wait_until(lambda: mounted.bucket.size_or_zero(f"sessions/{S}/d/ü.txt") == len(whole), SOON_SECONDS)
    assert mounted.bucket.read(f"sessions/{S}/d/ü.txt") == whole
    generation = run(mounted.first.commit, S, "door")
    assert mounted.bucket.manifest(S)["generation"] == generation
    assert mounted.bucket.manifest(S)["trigger"] == "door"


def test_no_link_is_followed(mounted: Mounted, tmp_path: Path) -> None:
    session = SessionId("links")
    run, files, there = mounted.portal.run, mounted.first.files(session), mounted.host.directory / "links"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"not ours")
    run(files.write, "f", b"ours")
    (there / "file").symlink_to(outside / "f")
    (there / "directory").symlink_to(outside)
    for path in ("file", "directory/f"):
        with pytest.raises(NotFoundError):
            run(files.read, path)
        with pytest.raises(ConflictError):
            run(files.append, path, b"never")
    for change in (lambda: files.write("directory/g", b""), lambda: files.rename("f", "directory/g")):
        with pytest.raises(ConflictError):
            run(change)
    assert [one.path for one in run(files.list)] == ["f"]
    run(files.write, "file", b"a file of its own")
    run(mounted.first.remove_session, session)
    assert (outside / "f").read_bytes() == b"not ours"
    assert os.listdir(outside) == ["f"]


def test_one_door_of_a_host_owns_a_session_until_it_lets_go(mounted: Mounted) -> None:
    run, session = mounted.portal.run, SessionId("claimed")
    run(mounted.first.claim, session)
    for force in (False, True):
        with pytest.raises(SessionAlreadyOwnedError, match=f"process {os.getpid()}") as refused:
            run(lambda force=force: mounted.second.claim(session, force=force))
        assert refused.value.holder == f"process {os.getpid()}"
    assert (mounted.first.owns(session), mounted.second.owns(session)) == (True, False)
    run(mounted.first.release, session)
    run(mounted.second.claim, session)
    third, leave = mounted.enter()
    with pytest.raises(SessionAlreadyOwnedError):
        run(third.claim, session)
    run(mounted.second.release, session)
    run(third.claim, session)
    leave()
    run(mounted.second.claim, session)
    assert mounted.host.owner(session)


def test_a_door_is_told_who_owns_a_session(mounted: Mounted, tmp_path: Path) -> None:
    session = SessionId("theirs")
    other = Host(
        mounted.host.store, tmp_path, mounted.host.environment, probe_record=mounted.host.probe_record
    )
    try:
        other.mount()
        (other.directory / session).mkdir()
        (other.directory / session / "f").write_bytes(b"theirs")
        other.wait_until_clean()
        files = mounted.first.files(session)
        assert mounted.portal.run(files.read, "f") == b"theirs"
        for change in (lambda: files.write("f", b"never"), lambda: mounted.first.claim(session)):
            with pytest.raises(SessionAlreadyOwnedError) as refused:
                mounted.portal.run(change)
            assert refused.value.holder
        assert not mounted.first.owns(session)
        other.umount()
        mounted.portal.run(files.append, "f", b" and ours")
        assert mounted.portal.run(files.read, "f") == b"theirs and ours"
    finally:
        other.clean_up()


@pytest.fixture
def local_host(make_host: MakeHost, tmp_path: Path) -> Host:
    """A host whose store is a directory."""
    (tmp_path / "store").mkdir()
    return make_host(store=f"file://{tmp_path}/store", **FAST)


@contextmanager
def door(portal: Portal, store: str, state: Path) -> Iterator[SessionPlace]:
    """Open the mirrored place while the block lasts."""
    place, leave = portal.enter(open_mirrored(store, state_directory=str(state)))
    try:
        yield place
    finally:
        leave()


def test_a_door_whose_mount_is_gone_says_so_and_writes_nothing_below_it(local_host: Host) -> None:
    host = local_host
    host.mount()
    with Portal() as portal:
        with door(portal, host.store, host.state) as place:
            files = place.files(S)
            portal.run(files.write, "f", b"1")
            host.umount()
            for call, arguments in (
                (files.read, ("f",)),
                (files.write, ("f", b"2")),
                (place.list_sessions, ()),
                (place.claim, (S,)),
                (place.commit, (S, "test")),
                (place.read_index, ()),
            ):
                with pytest.raises(UnavailableError, match=r"gone.*open the door again"):
                    portal.run(call, *arguments)
            assert not place.owns(S)
            assert os.listdir(host.mount_point) == []
            # Another mount of the same place is not the one that this door went through.
            host.mount()
            with pytest.raises(UnavailableError):
                portal.run(files.write, "f", b"3")
        with pytest.raises(HandleClosedError):
            portal.run(files.read, "f")
    assert (host.directory / S / "f").read_bytes() == b"1"


def test_after_a_killed_mount_a_door_has_everything_and_no_mount_beside_it(local_host: Host) -> None:
    host = local_host
    host.mount()
    with Portal() as portal:
        with door(portal, host.store, host.state) as place:
            portal.run(place.files(S).write, "f", b"12")
            host.kill(*host.remember_pids())
            with pytest.raises(UnavailableError):
                portal.run(place.files(S).read, "f")
        subprocess.run(["umount", "-l", str(host.mount_point)], check=True)
        with door(portal, host.store, host.state) as alone:
            assert isinstance(alone, CorePlace)
            assert portal.run(alone.files(S).read, "f") == b"12"
            refused = host.finished("mount", host.store, str(host.mount_point))
            assert refused.returncode != 0
            assert f"process {os.getpid()}" in refused.stderr
    host.mount()
    assert (host.directory / S / "f").read_bytes() == b"12"


WRITER = """
import os, sys, trio
from sessionfs.daemon.doors.mirrored import open_mirrored

async def main():
    async with open_mirrored(sys.argv[1], state_directory=sys.argv[2]) as place:
        files = place.files("s1")
        for number in range(1_000_000):
            await files.append("log.jsonl", b'{"seq": %d, "filler": "%s"}\\n' % (number, b"x" * (number % 5000)))
            await files.write("newest", b"%d" % number * 1000)
            os.write(1, b"%d\\n" % number)

trio.run(main)
"""


def killed_program(store: str, state: Path) -> tuple[int, int]:
    """Run a program until it has written for a while, and kill it; gives the last number that it was told, and the pid of its child."""
    command = [sys.executable, "-c", WRITER, store, str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        told = next(number for number in map(int, program.stdout) if number == 300)
        tasks = Path(f"/proc/{program.pid}/task").glob("*/children")
        (child,) = [int(pid) for children in tasks for pid in children.read_text().split()]
        os.kill(program.pid, signal.SIGKILL)
        told = max([told, *map(int, program.stdout.read().splitlines())])
    return told, child


def test_what_a_killed_program_was_told_is_there_and_reaches_the_bucket(
    mounted: Mounted, bucket: Bucket, store_url: str, tmp_path: Path
) -> None:
    # What the server can do is known already: the probe takes seconds.
    record = tmp_path / store_id(store_url) / "capabilities.json"
    record.parent.mkdir()
    record.write_bytes(mounted.host.probe_record or b"")
    told, child = killed_program(store_url, tmp_path)
    wait_until(lambda: not alive(child), SOON_SECONDS)
    (root,) = tmp_path.glob("*/sessions/s1")
    (root / ".sessionfs-new-left").write_bytes(b"half of a file")
    with Portal() as portal, door(portal, store_url, tmp_path) as place:
        files = place.files(S)
        raw = portal.run(files.read, "log.jsonl")
        lines = raw.splitlines()
        assert len(lines) > told
        assert all(line.startswith(b'{"seq": %d,' % number) for number, line in enumerate(lines))
        newest = portal.run(files.read, "newest")
        assert newest in {b"%d" % number * 1000 for number in range(told, len(lines))}
        wait_until(lambda: bucket.size_or_zero("sessions/s1/log.jsonl") == len(raw), SOON_SECONDS)
        portal.run(files.append, "log.jsonl", b"more\n")
        assert not [name for name in os.listdir(root) if name.startswith(".sessionfs-new-")]
    assert bucket.read("sessions/s1/log.jsonl") == raw + b"more\n"
    assert bucket.listed("sessions/s1/") == {"sessions/s1/", "sessions/s1/log.jsonl", "sessions/s1/newest"}


# --- random operations, by a program, by a door, and by another client of the bucket

EXAMPLES = int(os.environ.get("SESSIONFS_TEST_AGREEMENT_EXAMPLES", "4"))
STEPS = int(os.environ.get("SESSIONFS_TEST_AGREEMENT_STEPS", "7"))
PATHS = st.sampled_from(["a", "b.log", "d/c", "d/e/f", "ü %"])
BODIES = st.binary(max_size=40) | st.sampled_from([b"x" * 70_000, b"line\n" * 300])
WHO = st.sampled_from(["program", "door"])
STEP = st.one_of(
    st.tuples(st.just("write"), WHO, PATHS, BODIES),
    st.tuples(st.just("append"), WHO, PATHS, BODIES),
    st.tuples(st.just("rename"), WHO, PATHS, PATHS),
    st.tuples(st.just("remove"), WHO, PATHS, st.none()),
    st.tuples(st.just("write"), st.just("client"), PATHS, BODIES),
    st.tuples(st.just("remove"), st.just("client"), PATHS, st.none()),
)
Model = dict[str, bytes]


class Agreement:
    """Two sessions and what must be in them: one that this host writes, and one that only another client of the bucket does."""

    def __init__(self, mounted: Mounted) -> None:
        self.mounted = mounted
        name = uuid.uuid4().hex[:12]
        self.ours, self.theirs = SessionId(f"ours-{name}"), SessionId(f"theirs-{name}")
        self.models: dict[SessionId, Model] = {self.ours: {}, self.theirs: {}}
        self.change(("write", "client", "first", b"theirs"))
        self.change(("write", "program", "first", b"ours"))

    def change(self, step: tuple[str, str, str, str | bytes | None]) -> None:
        """Let somebody do something, and do the same to the model; what is refused must be refused by both."""
        what, who, path, more = step
        model = self.models[self.theirs if who == "client" else self.ours]
        try:
            {"program": self._by_program, "door": self._by_door, "client": self._by_client}[who](
                what, path, more
            )
        except (FileNotFoundError, NotFoundError):
            assert path not in model
            assert what in {"rename", "remove"}
            return
        if what == "write":
            model[path] = _bytes(more)
        elif what == "append":
            model[path] = model.get(path, b"") + _bytes(more)
        elif what == "rename":
            assert path in model
            model[str(more)] = model.pop(path)
        else:
            model.pop(path, None)

    def _by_program(self, what: str, path: str, more: str | bytes | None) -> None:
        top = self.mounted.host.directory / self.ours
        if what in {"write", "append"}:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            with (top / path).open("wb" if what == "write" else "ab") as file:
                file.write(_bytes(more))
        elif what == "rename":
            (top / path).stat()
            (top / str(more)).parent.mkdir(parents=True, exist_ok=True)
            (top / path).rename(top / str(more))
        else:
            (top / path).unlink()

    def _by_door(self, what: str, path: str, more: str | bytes | None) -> None:
        files = self.mounted.first.files(self.ours)
        if what == "remove":
            self.mounted.portal.run(files.remove, path)
        elif what == "rename":
            self.mounted.portal.run(files.rename, path, str(more))
        else:
            call = files.write if what == "write" else files.append
            self.mounted.portal.run(call, path, _bytes(more))

    def _by_client(self, what: str, path: str, more: str | bytes | None) -> None:
        key = f"sessions/{self.theirs}/{key_of(path)}"
        if what == "write":
            self.mounted.bucket.write(key, _bytes(more))
        else:
            self.mounted.bucket.remove(key)

    def compare(self) -> None:
        """What this host wrote is shown to both at once, and in the bucket soon; what another client wrote is shown to both soon."""
        ours, theirs = self.models[self.ours], self.models[self.theirs]
        assert self.by_program(self.ours) == ours
        assert self.by_door(self.ours) == ours
        settle(lambda: self.by_client(self.ours), ours)
        settle(lambda: self.by_program(self.theirs), theirs)
        settle(lambda: self.by_door(self.theirs), theirs)
        assert self.by_client(self.theirs) == theirs

    def by_program(self, session: SessionId) -> Model:
        top, found = self.mounted.host.directory / session, {}
        for where, _, names in os.walk(top):
            for name in names:
                path = Path(where, name)
                with suppress(FileNotFoundError):
                    found[path.relative_to(top).as_posix()] = path.read_bytes()
        return found

    def by_door(self, session: SessionId) -> Model:
        files, found = self.mounted.second.files(session), {}
        for one in self.mounted.portal.run(files.list):
            with suppress(NotFoundError):
                found[one.path] = self.mounted.portal.run(files.read, one.path)
        return found

    def by_client(self, session: SessionId) -> Model:
        prefix, found = f"sessions/{session}/", {}
        for key in self.mounted.bucket.listed(prefix):
            if not key.endswith("/"):
                with suppress(S3Error):
                    found[key.removeprefix(prefix).replace("%25", "%")] = self.mounted.bucket.read(key)
        return found


def _bytes(more: str | bytes | None) -> bytes:
    assert isinstance(more, bytes)
    return more


def key_of(path: str) -> str:
    return path.replace("%", "%25")


def settle(look: Callable[[], Model], wanted: Model) -> None:
    """Wait until everything that is wanted is shown, and nothing else."""
    shown: Model = {}

    def is_as_wanted() -> bool:
        nonlocal shown
        shown = look()
        return shown == wanted

    try:
        wait_until(is_as_wanted, SOON_SECONDS)
    except AssertionError:
        assert shown == wanted
        raise


@settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEP, min_size=STEPS, max_size=STEPS))
def test_a_program_a_door_and_another_client_agree_after_every_step(
    mounted: Mounted, steps: list[tuple[str, str, str, str | bytes | None]]
) -> None:
    agreement = Agreement(mounted)
    agreement.compare()
    for step in steps:
        agreement.change(step)
        agreement.compare()
