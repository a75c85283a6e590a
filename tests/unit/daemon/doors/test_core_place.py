"""The mirrored place without a mount: it does what a place does, and it begins and ends in order."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

from sessionfs.daemon.doors.in_process import core_place
from sessionfs.daemon.doors.in_process.core_place import CorePlace
from sessionfs.daemon.doors.mirrored import open_mirrored
from sessionfs.daemon.doors.through_mount.mount_place import MountPlace
from sessionfs.model.errors import (
    ConflictError,
    HandleClosedError,
    LeftBehindError,
    NotFoundError,
    OwnershipLostError,
    PreconditionFailedError,
    SessionAlreadyOwnedError,
    SettingsError,
    StateLockedError,
    StoreUrlError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import FilesystemSettings, ReplicationSettings, Settings
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.portal import Portal
from sessionfs.stores.store_urls import store_id
from tests.unit.daemon.fake_mount import until

from .behaviour import EVERY, Stage

S = SessionId("s1")
QUICK = ReplicationSettings(
    upload_delay_seconds=0.1,
    beat_interval_seconds=0.2,
    lease_seconds=2.0,
    retry_maximum_seconds=0.5,
    access_retry_seconds=0.5,
)


class Host:
    """A store in a directory, and a state directory."""

    def __init__(self, base: Path, state: str = "state") -> None:
        self.store = base / "store"
        self.store.mkdir(exist_ok=True)
        self.url = f"file://{self.store}"
        self.state = base / state

    @property
    def root(self) -> Path:
        return self.state / store_id(self.url)

    @property
    def working_copy(self) -> Path:
        return self.root / "sessions"

    def open(
        self, *, settings: Settings | None = None, close_seconds: float = 20
    ) -> AbstractAsyncContextManager[CorePlace | MountPlace]:
        chosen = settings or Settings(replication=QUICK)
        return open_mirrored(
            self.url, state_directory=str(self.state), settings=chosen, close_seconds=close_seconds
        )

    def stored(self, path: str) -> bytes | None:
        """An object's bytes."""
        try:
            return (self.store / "sessions" / path).read_bytes()
        except FileNotFoundError:
            return None


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def children() -> set[int]:
    """Processes that this one has started and that still run."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


# --- what every place does

_numbers = itertools.count()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Portal, SessionPlace, Host]]:
    host = Host(tmp_path_factory.mktemp("host"))
    with Portal() as portal:
        place, leave = portal.enter(host.open())
        yield portal, place, host
        leave()


@EVERY
def test_without_a_mount(
    behaviour: Callable[[Stage], Awaitable[None]], opened: tuple[Portal, SessionPlace, Host]
) -> None:
    portal, place, host = opened
    portal.run(behaviour, Stage(place, place, SessionId(f"s{next(_numbers)}"), host.working_copy))


# --- begin and end


async def test_what_is_written_reaches_the_bucket_while_the_place_is_open(host: Host) -> None:
    async with host.open() as place:
        files = place.files(S)
        await files.write("a/b.txt", b"hello")
        await until(lambda: host.stored("s1/a/b.txt") == b"hello")
        await files.append("a/b.txt", b" world")
        await files.rename("a/b.txt", "c")
        await until(lambda: host.stored("s1/c") == b"hello world" and host.stored("s1/a/b.txt") is None)
        await files.remove("c")
        await until(lambda: host.stored("s1/c") is None)


async def test_the_end_brings_everything_away_and_leaves_nothing_running(host: Host) -> None:
    before, umask = children(), os.umask(0o027)
    try:
        async with host.open(settings=Settings()) as place:
            await place.files(S).write("d/f", b"x" * 100_000)
            (child,) = children() - before
            assert host.stored("s1/d/f") is None
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(umask)
    assert host.stored("s1/d/f") == b"x" * 100_000
    assert host.stored("s1.manifest/0000000001.json") is not None
    assert child not in children()
    assert (host.root / "lock").read_bytes() == b""
    assert (host.working_copy / "s1/d/f").stat().st_mode & 0o777 == 0o640
    async with host.open() as again:
        assert await again.files(S).read("d/f") == b"x" * 100_000


async def test_a_second_door_of_the_same_state_directory_is_refused_with_the_process(host: Host) -> None:
    async with host.open() as place:
        with pytest.raises(StateLockedError, match="Python door") as refused:
            async with host.open():
                pytest.fail("two doors have one working copy")
        assert refused.value.pid == os.getpid()
        await place.files(S).write("f", b"still works")
    async with host.open() as again:
        assert await again.files(S).read("f") == b"still works"


async def test_nothing_is_done_after_the_end(host: Host) -> None:
    async with host.open() as place:
        await place.files(S).write("f", b"x")
    for call in (
        place.files(S).read("f"),
        place.files(S).write("f", b"y"),
        place.list_sessions(),
        place.remove_session(S),
        place.claim(S),
        place.release(S),
        place.commit(S, "test"),
        place.read_index(),
        place.write_index(b"{}"),
        place.set_index_aside(1),
    ):
        with pytest.raises(HandleClosedError):
            await call
    assert host.stored("s1/f") == b"x"


async def test_an_error_of_the_program_comes_out_as_it_is_and_nothing_is_lost(host: Host) -> None:
    async def fail() -> None:
        async with host.open() as place:
            await place.files(S).write("f", b"x")
            await place.files(S).read("missing")

    with pytest.raises(NotFoundError, match="missing"):
        await fail()
    assert host.stored("s1/f") == b"x"


async def test_a_cancelled_program_ends_in_order(host: Host) -> None:
    before = children()
    with trio.CancelScope() as scope:
        async with host.open() as place:
            await place.files(S).write("f", b"x")
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert host.stored("s1/f") == b"x"
    assert children() == before
    assert (host.root / "lock").read_bytes() == b""


async def test_an_end_that_fails_in_the_middle_does_not_keep_the_program(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_arguments: object) -> None:
        raise RuntimeError("in the middle of the end")

    before = children()
    monkeypatch.setattr(core_place, "_end", fail)
    with trio.fail_after(60), pytest.raises(BaseExceptionGroup) as raised:
        async with host.open() as place:
            await place.files(S).write("f", b"x")
    assert raised.value.subgroup(RuntimeError) is not None
    assert children() == before
    monkeypatch.undo()
    async with host.open() as again:
        assert await again.files(S).read("f") == b"x"


async def test_of_two_writes_over_the_same_bytes_one_is_refused(host: Host) -> None:
    async with host.open() as place:
        files = place.files(S)
        base = await files.write("f", b"0")
        outcomes: list[str] = []

        async def write(body: bytes) -> None:
            try:
                await files.write("f", body, base=base)
            except PreconditionFailedError:
                outcomes.append("refused")
            else:
                outcomes.append("written")

        async with trio.open_nursery() as nursery:
            for body in (b"1" * 300_000, b"2" * 300_000):
                nursery.start_soon(write, body)
        assert sorted(outcomes) == ["refused", "written"]


async def test_a_replication_process_that_dies_is_started_again(host: Host) -> None:
    before = children()
    async with host.open() as place:
        await place.files(S).write("f", b"1")
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
        await until(lambda: children() - before - {child})
        await place.files(S).write("g", b"2")
        await until(lambda: host.stored("s1/g") == b"2" and host.stored("s1/f") == b"1")
    assert children() == before


async def test_bytes_that_stay_behind_are_named_and_brought_away_by_the_next_opening(host: Host) -> None:
    away = host.store.with_name("away")

    async def lose_the_store() -> None:
        async with host.open(close_seconds=1) as place:
            await place.files(S).write("f", b"x")
            await place.files(S).sync("f")
            await place.commit(S, "test")
            host.store.rename(away)
            await place.files(S).append("f", b"y")

    with pytest.raises(LeftBehindError, match="not reached the bucket") as left:
        await lose_the_store()
    assert any("f" in path for path in left.value.paths)
    away.rename(host.store)
    assert host.stored("s1/f") == b"x"
    async with host.open() as again:
        assert await again.files(S).read("f") == b"xy"
        await until(lambda: host.stored("s1/f") == b"xy")


async def test_a_session_that_was_lost_takes_no_change_until_it_is_claimed_again(tmp_path: Path) -> None:
    one, two = Host(tmp_path), Host(tmp_path, "other")
    async with one.open() as first, two.open() as second:
        await first.claim(S)
        await first.files(S).write("f", b"first")
        await until(lambda: one.stored("s1/f") == b"first")
        with pytest.raises(SessionAlreadyOwnedError):
            await second.files(S).write("f", b"never")
        assert not second.owns(S)
        await second.claim(S, force=True)
        await second.files(S).append("f", b" second")
        # Who lost a session learns it when an upload finds a later owner's object.
        await until(lambda: one.stored("s1/f") == b"first second")
        await first.files(S).append("f", b" kept aside")
        await until(lambda: not first.owns(S))
        for change in (first.files(S).write("f", b"never"), first.remove_session(S)):
            with pytest.raises(OwnershipLostError):
                await change
        await second.release(S)
        assert await second.files(S).read("f") == b"first second"
        await first.claim(S)
        await first.files(S).append("f", b" third")
        assert await first.files(S).read("f") == b"first second third"
    assert one.stored("s1/f") == b"first second third"


# --- what is refused


async def test_a_place_that_is_opened_read_only_takes_no_change(host: Host) -> None:
    async with host.open() as place:
        await place.files(S).write("f", b"x")
    async with host.open(settings=Settings(filesystem=FilesystemSettings(read_only=True))) as place:
        for change in (place.files(S).write("f", b""), place.remove_session(S), place.claim(S)):
            with pytest.raises(ConflictError):
                await change
        assert await place.files(S).read("f") == b"x"


@pytest.mark.parametrize(
    ("url", "state", "settings", "error"),
    [
        ("gopher://x", "", Settings(), StoreUrlError),
        ("", "relative", Settings(), SettingsError),
        ("", "", Settings(replication=ReplicationSettings(at="7")), SettingsError),
        ("", "", Settings(filesystem=FilesystemSettings(turn_pattern="(")), SettingsError),
        ("file:///no/such/place", "", Settings(), NotFoundError),
    ],
)
async def test_a_bad_request_leaves_nothing_behind(
    url: str, state: str, settings: Settings, error: type[Exception], host: Host
) -> None:
    before = children()
    with pytest.raises(error):
        async with open_mirrored(
            url or host.url, state_directory=state or str(host.state), settings=settings
        ):
            pytest.fail("it was opened")
    assert not host.state.exists()
    assert children() == before
