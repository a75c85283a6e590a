from __future__ import annotations

import errno
import json
import os

import pytest

from sessionfs.filesystem import core as core_module
from sessionfs.formats import intent_records
from sessionfs.formats.intent_records import HEADER_BYTES, Intent, Operation
from sessionfs.testing.fake_remote import FakeRemote
from tests.filesystem.conftest import Mounter
from tests.filesystem.mounting import Mounted, Rig
from tests.filesystem.test_open_read_write import make, read
from tests.filesystem.test_rename_and_unlink import errno_of

pytestmark = pytest.mark.fuse


def intents(mounted: Mounted) -> list[Intent]:
    with open(mounted.layout.intent_log, "rb") as file:
        raw = file.read()
    records = [record for record, _ in intent_records.decode_records(raw[HEADER_BYTES:])]
    found = [record for record in records if isinstance(record, Intent)]
    return [record for record in found if record.operation != Operation.STARTED]


def block(rig: Rig) -> None:
    rig[0].block_writers("the mount ends")


def break_a_call(rig: Rig) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a fault of ours")

    rig[0].readlink = broken  # type: ignore[assignment]


def two_sessions(remote: FakeRemote) -> None:
    remote.add_session("shown")
    remote.add_session("hidden")


def test_only_sessions_live_in_the_root(shared_mount: Mounted, session: str) -> None:
    root = shared_mount.path
    assert errno_of(make, os.path.join(root, "file")) == errno.EPERM
    assert errno_of(os.symlink, "x", os.path.join(root, "link")) == errno.EPERM
    assert errno_of(os.mkdir, os.path.join(root, "bad%id")) == errno.EINVAL
    assert errno_of(os.mkdir, os.path.join(root, "x.manifest")) == errno.EINVAL
    assert errno_of(os.mkdir, session) == errno.EEXIST
    assert errno_of(os.rename, session, session + "2") == errno.EPERM
    assert os.path.basename(session) in os.listdir(root)


def test_nothing_moves_between_sessions(shared_mount: Mounted, session: str) -> None:
    other = session + "-other"
    os.mkdir(other)
    path = make(os.path.join(session, "a"))
    assert errno_of(os.rename, path, os.path.join(other, "a")) == errno.EXDEV
    assert errno_of(os.link, path, os.path.join(other, "a")) == errno.EXDEV
    os.rmdir(other)
    assert not os.path.exists(other)
    os.mkdir(other)
    os.rmdir(other)


def test_a_session_that_is_not_empty_stays(session: str) -> None:
    make(os.path.join(session, "a"))
    assert errno_of(os.rmdir, session) == errno.ENOTEMPTY
    os.unlink(os.path.join(session, "a"))
    os.rmdir(session)
    assert not os.path.exists(session)


def test_the_control_directory_is_hidden_and_gives_the_status(session: str) -> None:
    assert os.listdir(session) == []
    hidden = os.path.join(session, ".sessionfs")
    assert sorted(os.listdir(hidden)) == ["conflicts", "generations", "snapshot", "status", "unnamed"]
    status = json.loads(read(os.path.join(hidden, "status")))
    assert status == {"id": os.path.basename(session), "commit_problem": ""}
    assert errno_of(make, os.path.join(hidden, "status")) == errno.EACCES
    assert errno_of(make, os.path.join(hidden, "new")) == errno.EPERM
    assert errno_of(os.mkdir, hidden) in {errno.EPERM, errno.EEXIST}
    assert errno_of(os.rmdir, hidden) == errno.EPERM
    path = make(os.path.join(session, "a"))
    assert errno_of(os.rename, path, hidden) in {errno.EPERM, errno.EISDIR}
    os.mkdir(os.path.join(session, "below"))
    make(os.path.join(session, "below", ".sessionfs"))
    assert os.listdir(os.path.join(session, "below")) == [".sessionfs"]


def test_a_store_that_does_not_answer_is_never_a_missing_session(mounter: Mounter) -> None:
    mounted, _ = mounter(two_sessions)
    make(mounted.at("shown", "a"), b"x")
    mounted.ask(unavailable)
    assert errno_of(os.stat, mounted.at("hidden")) == errno.EIO
    assert errno_of(os.mkdir, mounted.at("hidden")) == errno.EIO
    assert read(mounted.at("shown", "a")) == b"x"


def unavailable(rig: Rig) -> None:
    from sessionfs.model.errors import UnavailableError

    rig[1].error = UnavailableError("away")


def test_only_the_sessions_of_the_settings_are_shown(mounter: Mounter) -> None:
    mounted, _ = mounter(two_sessions, sessions=("shown", "new"))
    assert os.listdir(mounted.path) == ["shown"]
    assert os.path.isdir(mounted.at("shown"))
    assert not os.path.exists(mounted.at("hidden"))
    os.mkdir(mounted.at("new"))
    assert errno_of(os.mkdir, mounted.at("third")) == errno.EPERM


def test_a_read_only_mount_refuses_every_change(mounter: Mounter) -> None:
    mounted, _ = mounter(two_sessions, read_only=True)
    session = mounted.at("shown")
    assert errno_of(os.mkdir, mounted.at("new")) == errno.EROFS
    assert errno_of(make, os.path.join(session, "a")) == errno.EROFS
    assert errno_of(os.mkdir, os.path.join(session, "d")) == errno.EROFS
    assert errno_of(os.chmod, session, 0o700) == errno.EROFS
    assert errno_of(os.setxattr, session, "user.x", b"1") == errno.EROFS
    assert {intent.operation for intent in intents(mounted)} == {Operation.MATERIALISED}


def test_blocked_writers_finish_what_they_have_open(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    descriptor = os.open(mounted.at("s", "a"), os.O_CREAT | os.O_WRONLY)
    mounted.ask(block)
    os.write(descriptor, b"last")
    os.ftruncate(descriptor, 2)
    assert errno_of(os.open, mounted.at("s", "a"), os.O_WRONLY) == errno.EROFS
    assert errno_of(os.unlink, mounted.at("s", "a")) == errno.EROFS
    os.close(descriptor)
    assert read(mounted.at("s", "a")) == b"la"


def test_every_change_has_its_intent(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    path = make(mounted.at("s", "a"), b"x")
    os.chmod(path, 0o600)
    os.link(path, mounted.at("s", "b"))
    os.rename(path, mounted.at("s", "c"))
    os.rename(mounted.at("s", "b"), mounted.at("s", "b"))
    os.truncate(mounted.at("s", "c"), 0)
    os.setxattr(mounted.at("s", "c"), "user.x", b"1")
    os.symlink("t", mounted.at("s", "l"))
    os.mkdir(mounted.at("s", "d"))
    os.rmdir(mounted.at("s", "d"))
    os.unlink(mounted.at("s", "c"))
    number = os.stat(mounted.at("s", "b")).st_ino
    found = intents(mounted)
    assert [Operation(intent.operation).name for intent in found] == [
        "MKDIR", "CREATE", "OPEN_WRITE", "WRITTEN", "RELEASE_WRITE", "SETATTR", "LINK", "RENAME", "TRUNCATE", "XATTR",
        "SYMLINK", "MKDIR", "RMDIR", "UNLINK",
    ]  # fmt: skip
    root = os.stat(mounted.at("s")).st_ino
    assert (found[0].parent, found[0].name) == (1, b"s")
    assert (found[1].parent, found[1].name) == (root, b"a")
    assert found[5].mode & 0o7777 == 0o600
    assert {intent.number for intent in found[2:10]} == {number}
    assert (found[7].parent, found[7].name, found[7].new_name) == (root, b"a", b"c")


def test_a_fault_of_ours_is_an_io_error_and_the_mount_lives(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    os.symlink("t", mounted.at("s", "l"))
    mounted.ask(break_a_call)
    assert errno_of(os.readlink, mounted.at("s", "l")) == errno.EIO
    assert read(make(mounted.at("s", "a"), b"alive")) == b"alive"


def test_the_engine_ends_when_somebody_else_unmounts(mounter: Mounter) -> None:
    import subprocess

    mounted, _ = mounter()
    subprocess.run(["fusermount3", "-u", mounted.path], check=True)
    mounted.process.join(10)
    assert mounted.process.exitcode == 0


def test_the_core_knows_nothing_of_fuse() -> None:
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(core_module))
    assert "pyfuse3" not in {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
