"""Parts of the mirrored place by themselves: errors, revisions, claims of doors, and what is known of ownership."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from sessionfs.daemon.doors.file_states import file_stat, later_than, mode_of
from sessionfs.daemon.doors.mirrored import open_mirrored
from sessionfs.daemon.doors.refusals import refusal
from sessionfs.daemon.doors.ruling import Ruling, steadily
from sessionfs.daemon.doors.through_mount.mount_point import MountPoint
from sessionfs.daemon.doors.through_mount.session_claims import SessionClaims
from sessionfs.daemon.launch.command import module_environment
from sessionfs.daemon.replication_child import ReplicationChild
from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.daemon.state_lock import StateLock
from sessionfs.formats.link_messages import AnyMessage
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    HandleClosedError,
    InternalError,
    InvalidRequestError,
    LocalDiskError,
    NotFoundError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    StateLockedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.stores.store_urls import store_id
from sessionfs.working_copy.intent_log import IntentLog
from tests.unit.daemon.test_replication_child import REQUEST, WAITS_FOR_EOF, started_child

S = SessionId("s1")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, NotFoundError),
        (errno.EEXIST, AlreadyExistsError),
        (errno.EROFS, OwnershipLostError),
        (errno.EIO, UnavailableError),
        (errno.ENOTCONN, UnavailableError),
        (errno.EACCES, AccessError),
        (errno.ENAMETOOLONG, InvalidRequestError),
        (errno.ENOTDIR, ConflictError),
        (errno.ENOSPC, LocalDiskError),
    ],
)
def test_an_error_of_the_system_is_one_of_ours(number: int, kind: type[Exception]) -> None:
    error = refusal(OSError(number, os.strerror(number)), SessionId("%eval%run7"), "a/b")
    assert type(error) is kind
    if number != errno.ENOTCONN:
        assert "'a/b' of session eval/run7" in error.message
    if isinstance(error, LocalDiskError):
        assert error.errno_number == errno.ENOSPC


def test_bytes_of_the_same_length_in_the_same_tick_get_a_later_time() -> None:
    before = file_stat("f", size_bytes=4, modified_ns=100, number=7)
    assert later_than(100, 4, before) == 101
    assert later_than(100, 5, before) == later_than(100, 4, None) == 100
    assert later_than(200, 4, before) == 200


def test_a_replaced_file_keeps_its_mode_and_a_private_one_is_its_owners() -> None:
    assert mode_of(None, is_private=False) == 0o644
    assert mode_of(stat.S_IFREG | 0o4755, is_private=False) == 0o755
    assert mode_of(stat.S_IFREG | 0o644, is_private=True) == 0o600


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    program = (
        "import sys; from sessionfs.daemon.doors.through_mount.session_claims import SessionClaims\n"
        "SessionClaims(sys.argv[1]).take('s1'); print('taken', flush=True); sys.stdin.read()"
    )
    claims = SessionClaims(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=module_environment(os.environ),
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"taken\n"
        with pytest.raises(SessionAlreadyOwnedError) as refused:
            claims.take(S)
        assert refused.value.holder == f"process {other.pid}"
        assert not claims.holds(S)
        other.kill()
    assert claims.take(S)
    assert not claims.take(S)
    assert (claims.give_up(S), claims.give_up(S)) == (True, False)


def test_a_claim_that_the_disk_refuses_is_its_error(tmp_path: Path) -> None:
    (tmp_path / "claims").write_bytes(b"in the way")
    with pytest.raises(LocalDiskError):
        SessionClaims(str(tmp_path)).take(S)


def test_a_full_disk_keeps_nobody_from_claiming_and_a_fork_keeps_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    claims, others = SessionClaims(str(tmp_path)), SessionClaims(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert claims.take(S)
    # As a process that was forked off has it.
    forked = os.dup(claims._held[S])
    assert claims.give_up(S)
    assert others.take(S)
    os.close(forked)
    others.close()


async def _nothing(_session: SessionId) -> None:
    """Nothing is left to sweep, nothing to claim."""


async def test_only_a_claimed_session_is_lost_until_it_is_claimed_again() -> None:
    ruling = Ruling(_nothing, _nothing)
    ruling.note_changed(S)
    assert (ruling.is_ours(S), ruling.owns(S)) == (True, False)
    ruling.note_lost(S)
    assert not ruling.is_ours(S)
    await ruling.before_change(S)
    ruling.note_claimed(S)
    ruling.note_lost(S)
    with pytest.raises(OwnershipLostError):
        await ruling.before_change(S)
    ruling.note_changed(S)  # one that was under way when the notice came
    assert not ruling.is_ours(S)
    ruling.note_claimed(S)
    assert ruling.owns(S)
    await ruling.before_change(S)
    ruling.note_released(S)
    assert not ruling.owns(S)
    ruling.close()
    with pytest.raises(HandleClosedError):
        await ruling.before_change(S)


async def test_a_change_that_finds_the_session_given_up_claims_it_and_begins_again() -> None:
    claims: list[SessionId] = []
    refusals = [errno.EROFS, errno.EROFS, 0]

    async def claim(session: SessionId) -> None:
        claims.append(session)

    async def change() -> int:
        number = refusals.pop(0)
        if number:
            raise OSError(number, "no")
        return 7

    assert await Ruling(_nothing, claim).changed(S, change) == 7
    assert claims == [S, S]
    refusals.extend([errno.ENOSPC])
    with pytest.raises(OSError, match="no"):
        await Ruling(_nothing, claim).changed(S, change)
    refusals.extend([errno.EROFS] * 9)
    with pytest.raises(OSError, match="no"):
        await Ruling(_nothing, claim).changed(S, change)
    assert len(claims) < 9


async def test_a_claimed_session_that_another_host_has_is_lost_and_any_other_is_owned() -> None:
    async def refuse(_session: SessionId) -> None:
        raise SessionAlreadyOwnedError("s1 is owned by far", holder="far")

    async def change() -> None:
        raise OSError(errno.EROFS, "no")

    ruling = Ruling(_nothing, refuse)
    with pytest.raises(SessionAlreadyOwnedError):
        await ruling.changed(S, change)
    ruling.note_claimed(S)
    with pytest.raises(OwnershipLostError, match="owned by far") as lost:
        await ruling.changed(S, change)
    assert lost.value.holder == "far"
    assert not ruling.owns(S)


async def test_a_session_is_swept_once_before_its_first_change() -> None:
    swept: list[SessionId] = []
    going_on = trio.Event()

    async def sweep(session: SessionId) -> None:
        await going_on.wait()
        swept.append(session)

    ruling = Ruling(sweep, _nothing)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ruling.before_change, S)
        await trio.testing.wait_all_tasks_blocked()
        going_on.set()
    await ruling.before_change(S)
    assert swept == [S]


async def test_what_passes_is_tried_again_a_few_times_and_the_rest_is_told(autojump_clock: object) -> None:
    tries: list[int] = []

    async def fail(times: int, error: Exception) -> None:
        tries.append(1)
        if len(tries) <= times:
            raise error

    await steadily(lambda: fail(2, UnavailableError("claimed anew")))
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(UnavailableError):
        await steadily(lambda: fail(9, UnavailableError("away")))
    tries.clear()
    with pytest.raises(ConflictError):
        await steadily(lambda: fail(9, ConflictError("open for writing")))
    assert len(tries) == 1


async def test_a_keeper_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    clock = SystemClock()
    log = IntentLog(str(tmp_path / "intent.log"), boot_id="boot", clock=clock)
    client = ReplicationClient(log, timeout_seconds=5)
    child = started_child(WAITS_FOR_EOF)

    async def refuse(_message: AnyMessage) -> AnyMessage:
        raise InternalError("nothing is asked")

    keeper = ReplicationChild(REQUEST, client=client, handler=refuse, clock=clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run, child)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert child.process.returncode is not None
    log.close()


def test_a_directory_that_is_no_mount_of_the_daemon_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")
    with pytest.raises(UnavailableError, match="is gone"):
        MountPoint(str(tmp_path), path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with pytest.raises(UnavailableError, match="is gone"):
            MountPoint(str(tmp_path), path)


async def test_a_mount_that_never_answers_is_named_in_the_end(tmp_path: Path, autojump_clock: object) -> None:
    (tmp_path / "store").mkdir()
    root = tmp_path / "state" / store_id(str(tmp_path / "store"))
    root.mkdir(parents=True)
    lock = StateLock(str(root / "lock"), mount_point="/mnt/silent", clock=SystemClock())
    with pytest.raises(StateLockedError, match=r"mounted on /mnt/silent") as refused:
        async with open_mirrored(str(tmp_path / "store"), state_directory=str(tmp_path / "state")):
            pytest.fail("it was opened beside the mount")
    assert refused.value.pid == os.getpid()
    lock.release()
