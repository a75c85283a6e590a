"""What every change passes: ownership, the lease, strict; and what the replication process itself does."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.errors import SessionAlreadyOwnedError, UnavailableError
from sessionfs.working_copy.layout import ROOT_NUMBER
from tests.unit.filesystem.conftest import ME, Rig, Somebody, answer

Rigs = Callable[..., Rig]
Change = Callable[[Rig, int, int], Any]


async def errno_given(result: Callable[[], Any]) -> int:
    """Run a call; gives its errno, 0 for none."""
    try:
        await answer(result())
    except OSError as problem:
        return problem.errno or 0
    return 0


def claims(rig: Rig) -> list[str]:
    return [str(argument) for name, argument in rig.remote.take_calls() if name == "claim"]


async def bucket(rig: Rig) -> tuple[int, int]:
    """Put a session with a file and a directory into the bucket; gives the numbers of root and file."""
    root = rig.remote.add_session("s")
    number = rig.remote.add_file(root, b"a", b"body")
    rig.remote.add_directory(root, b"d")
    await rig.look(b"s", b"a")
    await rig.look(b"s", b"d")
    rig.remote.take_calls()
    return root, number


CHANGES: dict[str, Change] = {
    "create": lambda rig, root, _: rig.core.create(root, b"n", 0o644, os.O_RDWR | os.O_EXCL, ME),
    "mkdir": lambda rig, root, _: rig.core.mkdir(root, b"n", 0o755, ME),
    "mknod": lambda rig, root, _: rig.core.mknod(root, b"n", 0o100644, 0, ME),
    "symlink": lambda rig, root, _: rig.core.symlink(root, b"n", b"a", ME),
    "link": lambda rig, root, number: rig.core.link(number, root, b"n", ME),
    "unlink": lambda rig, root, _: rig.core.unlink(root, b"a", ME),
    "rmdir": lambda rig, root, _: rig.core.rmdir(root, b"d", ME),
    "rename": lambda rig, root, _: rig.core.rename(root, b"a", root, b"n", 0, ME),
    "chmod": lambda rig, _, number: rig.core.setattr(number, ME, mode=0o600),
    "truncate": lambda rig, _, number: rig.core.setattr(number, ME, size=2),
    "setxattr": lambda rig, _, number: rig.core.setxattr(number, b"user.x", b"1", ME),
    "open for writing": lambda rig, _, number: rig.core.open(number, os.O_WRONLY, ME),
    "open with O_TRUNC": lambda rig, _, number: rig.core.open(number, os.O_RDONLY | os.O_TRUNC, ME),
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())


@every_change
async def test_the_first_change_claims_and_the_next_does_not(rig: Rig, change: Change) -> None:
    root, number = await bucket(rig)
    result = change(rig, root, number)
    assert isinstance(result, Awaitable)
    await result
    assert claims(rig) == ["s"]
    await answer(rig.core.mkdir(root, b"another", 0o755, ME))
    assert claims(rig) == []


@every_change
async def test_a_session_of_another_host_refuses_every_change(rig: Rig, change: Change) -> None:
    root, number = await bucket(rig)
    rig.remote.claim_error = SessionAlreadyOwnedError("s is owned", holder="host b")
    before = rig.operations()
    with pytest.raises(SessionAlreadyOwnedError):
        await answer(change(rig, root, number))
    assert rig.operations() == before
    assert await rig.names(root) == [b"a", b"d"]
    assert await rig.read(number) == b"body"


@every_change
async def test_a_tree_of_the_past_refuses_every_change_without_a_claim(rig: Rig, change: Change) -> None:
    root = rig.remote.add_session("s", foreign=False)
    rig.remote.roots["s"] = msgspec.structs.replace(rig.remote.roots["s"], read_only=True)
    number = rig.remote.add_file(root, b"a", b"body")
    rig.remote.add_directory(root, b"d")
    await rig.look(b"s", b"a")
    assert await errno_given(lambda: change(rig, root, number)) == errno.EROFS
    assert claims(rig) == []
    assert await rig.read(number) == b"body"
    assert await errno_given(lambda: rig.core.access(number, 2, ME)) == errno.EROFS


@every_change
async def test_no_change_passes_when_the_lease_is_over(rig: Rig, change: Change) -> None:
    root, number = await bucket(rig)
    await answer(rig.core.setattr(number, ME, mtime_ns=1, atime_ns=1))
    rig.lease.deadline_seconds = 0.0
    rig.core._sessions.sessions[b"s"].writable_until_seconds = 0.0
    assert await errno_given(lambda: change(rig, root, number)) == errno.EROFS
    rig.lease.is_outage = True
    assert await errno_given(lambda: change(rig, root, number)) == 0


async def test_reading_never_claims(rig: Rig) -> None:
    root, number = await bucket(rig)
    assert await rig.read(number) == b"body"
    await rig.names(root)
    rig.core.getattr(number)
    assert claims(rig) == []


async def test_a_change_that_is_refused_anyway_does_not_claim(rig: Rig) -> None:
    root, number = await bucket(rig)
    stranger = Somebody(54321, 54321)
    assert await errno_given(lambda: rig.core.open(number, os.O_WRONLY, stranger)) == errno.EACCES
    assert await errno_given(lambda: rig.core.mkdir(root, b"x", 0o755, stranger)) == errno.EACCES
    assert await errno_given(lambda: rig.core.unlink(root, b"none", ME)) == errno.ENOENT
    assert claims(rig) == []


async def test_the_lease_is_looked_at_again_when_it_seems_over(rig: Rig) -> None:
    root = await rig.session()
    opened, _ = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    session = rig.core._sessions.sessions[b"s"]
    for deadline_seconds, expected in ((0.0, errno.EROFS), (1e12, 0)):
        session.writable_until_seconds = 0.0
        rig.lease.deadline_seconds = deadline_seconds
        assert await errno_given(lambda: rig.core.write(opened.handle, 0, b"x")) == expected
    assert session.writable_until_seconds == 1e12
    rig.lease.deadline_seconds = 0.0
    assert rig.core.write(opened.handle, 1, b"y") == 1


@pytest.mark.parametrize(("policy", "expected"), [("degrade", 0), ("strict", errno.EROFS)])
async def test_an_outage_past_the_lease_stops_programs_only_under_strict(
    rigs: Rigs, policy: str, expected: int
) -> None:
    rig = rigs(policy=policy)
    root = await rig.session()
    opened, shown = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    rig.core._sessions.sessions[b"s"].writable_until_seconds = 0.0
    rig.lease.deadline_seconds, rig.lease.is_outage = 0.0, True
    assert await errno_given(lambda: rig.core.write(opened.handle, 0, b"x")) == expected
    assert await errno_given(lambda: rig.core.mkdir(root, b"d", 0o755, ME)) == expected
    assert await errno_given(lambda: rig.core.setattr(shown.number, ME, size=0)) == expected


async def test_strict_refuses_opens_for_writing_until_a_commit_succeeds(rigs: Rigs) -> None:
    rig = rigs(policy="strict")
    root = await rig.session()
    number = await rig.file(root, b"a", b"body")
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    rig.core.note_session_state(SessionState("s", owned=True, commit_problem="the store said no"))
    assert await errno_given(lambda: rig.core.open(number, os.O_WRONLY, ME)) == errno.EIO
    assert await errno_given(lambda: rig.core.create(root, b"b", 0o644, os.O_RDWR, ME)) == errno.EIO
    assert await rig.names(root) == [b"a"]
    assert rig.core.write(opened.handle, 0, b"BODY") == 4
    assert await rig.read(number) == b"BODY"
    rig.core.note_session_state(SessionState("s", owned=True))
    assert await errno_given(lambda: rig.core.open(number, os.O_WRONLY, ME)) == 0


async def test_degrade_goes_on_after_a_failed_commit(rig: Rig) -> None:
    root = await rig.session()
    number = await rig.file(root, b"a", b"body")
    rig.core.note_session_state(SessionState("s", owned=True, commit_problem="the store said no"))
    assert await errno_given(lambda: rig.core.open(number, os.O_WRONLY, ME)) == 0


async def test_a_lost_session_refuses_open_handles_and_the_next_change_claims_again(rig: Rig) -> None:
    root = await rig.session()
    opened, shown = await answer(rig.core.create(root, b"a", 0o644, os.O_RDWR, ME))
    rig.remote.take_calls()
    rig.core.note_session_state(SessionState("s", owned=False, holder="host b"))
    assert await errno_given(lambda: rig.core.write(opened.handle, 0, b"x")) == errno.EROFS
    assert (
        await errno_given(lambda: rig.core.setattr(shown.number, ME, size=0, handle=opened.handle))
        == errno.EROFS
    )
    assert claims(rig) == []
    rig.remote.claim_error = SessionAlreadyOwnedError("s is owned", holder="host b")
    with pytest.raises(SessionAlreadyOwnedError):
        await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    rig.remote.claim_error = None
    await answer(rig.core.mkdir(root, b"d", 0o755, ME))
    assert rig.core.write(opened.handle, 0, b"x") == 1


# --- the replication process itself


def its_thread() -> Somebody:
    """Give a caller that is another thread of this process."""
    number: list[int] = []
    done = threading.Event()

    def run() -> None:
        number.append(threading.get_native_id())
        done.wait(60)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not number:
        pass
    return Somebody(os.geteuid(), os.getegid(), number[0])


async def test_what_the_replication_process_opens_counts_as_no_change(rigs: Rigs) -> None:
    rig = rigs(policy="strict")
    root, _ = await bucket(rig)
    rig.core.set_exempt_pid(os.getpid())
    rig.remote.claim_error = SessionAlreadyOwnedError("s is owned", holder="host b")
    rig.core.block_writers("the mount is being ended")
    caller = its_thread()
    opened, shown = await answer(rig.core.create(root, b"x.db-shm", 0o644, os.O_RDWR, caller))
    assert rig.core.write(opened.handle, 0, b"index") == 5
    assert (await answer(rig.core.setattr(shown.number, caller, size=3, handle=opened.handle))).size == 3
    rig.core.release(opened.handle)
    again = await answer(rig.core.open(shown.number, os.O_RDWR, caller))
    assert rig.core.status_counters()["writers"] == 0
    rig.core.release(again.handle)
    # The name is in the tree, so the journal must know it; nothing tells of a writer or of written bytes.
    assert rig.operations()[-1] == "CREATE"
    assert claims(rig) == []
    assert await errno_given(lambda: rig.core.create(root, b"y", 0o644, os.O_RDWR, ME)) == errno.EROFS


async def test_a_session_made_while_the_store_is_away_is_presumed_ours(rig: Rig) -> None:
    rig.remote.error = UnavailableError("away")
    root = await rig.session(b"fresh")
    rig.remote.take_calls()
    await rig.file(root, b"a", b"x")
    assert claims(rig) == []


async def test_a_session_that_another_host_made_first_is_taken_away_again(rig: Rig) -> None:
    rig.remote.claim_error = SessionAlreadyOwnedError("s is owned", holder="host b")
    with pytest.raises(SessionAlreadyOwnedError):
        await rig.session(b"s")
    assert os.listdir(rig.layout.sessions) == []
    assert rig.operations() == ["MKDIR", "RMDIR"]
    assert rig.core.status_counters()["sessions"] == 0
    assert rig.core.status_counters()["inodes"] == 1
    rig.remote.claim_error = None
    root = await rig.session(b"s")
    await rig.file(root, b"a")


async def test_a_session_is_claimed_before_it_is_removed(rig: Rig) -> None:
    root = rig.remote.add_session("s")
    await rig.look(b"s")
    assert await rig.names(root) == []
    rig.remote.claim_error = SessionAlreadyOwnedError("s is owned", holder="host b")
    with pytest.raises(SessionAlreadyOwnedError):
        await answer(rig.core.rmdir(ROOT_NUMBER, b"s", ME))
    rig.remote.claim_error = None
    await answer(rig.core.rmdir(ROOT_NUMBER, b"s", ME))
    assert os.listdir(rig.layout.sessions) == []


async def test_of_another_user_nobody_asks_whether_he_is_the_replication_process(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs()
    rig.core.set_exempt_pid(os.getpid())
    asked: list[str] = []

    def exists(path: str) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr(os.path, "exists", exists)
    volume = rig.core._volume
    assert not volume.is_exempt(Somebody(os.geteuid() + 1, os.getegid(), os.getpid()))
    assert asked == []
    assert volume.is_exempt(Somebody(os.geteuid(), os.getegid(), os.getpid()))
    assert asked == []
    assert not volume.is_exempt(Somebody(os.geteuid(), os.getegid(), 1))
    assert asked == [f"/proc/{os.getpid()}/task/1"]
