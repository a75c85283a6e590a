"""``.sessionfs`` of the mount's root through the kernel: plugins, plugins of agents, evaluation runs."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess

import pytest

from sessionfs.formats.intent_records import Operation
from sessionfs.model.errors import SessionAlreadyOwnedError, UnavailableError
from sessionfs.testing.fake_remote import FakeRemote
from tests.filesystem.conftest import Mounter
from tests.filesystem.mounting import Mounted, Rig
from tests.filesystem.test_open_read_write import make, read
from tests.filesystem.test_rename_and_unlink import errno_of
from tests.filesystem.test_sessions import intents

pytestmark = pytest.mark.fuse


def roots_in_the_bucket(remote: FakeRemote) -> None:
    remote.add_session("eval")
    run = remote.add_session("%eval%run7", foreign=False)
    remote.add_file(run, b"score.json", b"{}")
    past = remote.add_session("%eval%run7%g3", foreign=False)
    remote.add_file(past, b"score.json", b"as it was")
    remote.generations["%eval%run7"] = [3]
    remote.add_session("%agents%a%plugins%p", foreign=False)


def go_away(rig: Rig) -> None:
    rig[1].error = UnavailableError("away")


def owned_elsewhere(rig: Rig) -> None:
    rig[1].claim_error = SessionAlreadyOwnedError("eval/run7 is owned by another host", holder="another")


def claimed(rig: Rig) -> list[object]:
    return [argument for name, argument in rig[1].calls if name == "claim"]


def commits(rig: Rig) -> list[tuple[str, str, bool]]:
    return list(rig[1].commits)


@pytest.fixture
def mounted(mounter: Mounter) -> Mounted:
    return mounter(roots_in_the_bucket)[0]


def test_shared_roots_are_found_beside_the_sessions_and_never_among_them(mounted: Mounted) -> None:
    hidden = mounted.at(".sessionfs")
    assert os.listdir(mounted.path) == ["eval"]
    assert sorted(os.listdir(hidden)) == ["agents", "eval", "plugins"]
    assert os.listdir(os.path.join(hidden, "eval")) == ["run7"]
    assert os.listdir(os.path.join(hidden, "plugins")) == []
    assert os.listdir(os.path.join(hidden, "agents")) == ["a"]
    assert os.listdir(os.path.join(hidden, "agents", "a", "plugins")) == ["p"]
    assert read(os.path.join(hidden, "eval", "run7", "score.json")) == b"{}"
    for nothing in ("%eval%run7", ".sessionfs/eval/run8", ".sessionfs/other", ".sessionfs/agents/b/plugins"):
        assert not os.path.exists(mounted.at(nothing))
    found = sorted(os.path.relpath(path, hidden) for path, _, _ in os.walk(hidden))
    assert found == [
        ".",
        "agents",
        "agents/a",
        "agents/a/plugins",
        "agents/a/plugins/p",
        "eval",
        "eval/run7",
        "plugins",
    ]


def test_a_new_root_is_claimed_and_lives_like_a_session(mounter: Mounter) -> None:
    mounted, _ = mounter()
    root = mounted.at(".sessionfs", "plugins", "x")
    os.mkdir(root, 0o750)
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o750
    make(os.path.join(root, "plugin.py"), b"pass")
    assert mounted.ask(claimed) == ["%plugins%x"]
    assert os.listdir(mounted.at(".sessionfs", "plugins")) == ["x"]
    assert json.loads(read(os.path.join(root, ".sessionfs", "status")))["id"] == "plugins/x"
    with open(os.path.join(root, ".sessionfs", "snapshot"), "wb", buffering=0) as file:
        file.write(b"mine\n")
    assert mounted.ask(commits) == [("%plugins%x", "mine", False)]
    assert json.loads(read(os.path.join(root, ".sessionfs", "snapshot")))["session"] == "plugins/x"
    made = intents(mounted)[0]
    assert (made.operation, made.name) == (Operation.MKDIR, b"%plugins%x")
    assert errno_of(os.rmdir, root) == errno.ENOTEMPTY
    shutil.rmtree(root)
    assert not os.path.exists(root)
    assert os.listdir(mounted.at(".sessionfs", "plugins")) == []


def test_names_follow_the_rules_of_session_ids(mounter: Mounter) -> None:
    mounted, _ = mounter()
    hidden = mounted.at(".sessionfs")
    for bad in ("eval/x.manifest", "eval/a%b", "eval/.sessionfs", "agents/x.owner", "plugins/" + "x" * 129):
        assert errno_of(os.mkdir, os.path.join(hidden, bad)) in {errno.EINVAL, errno.EEXIST}, bad
        assert not os.path.exists(os.path.join(hidden, bad))
    os.mkdir(os.path.join(hidden, "agents", "a"))
    for other in ("other", "agents/a/data"):
        assert errno_of(os.mkdir, os.path.join(hidden, other)) == errno.EPERM
    for there in ("", "eval", "agents/a"):
        assert errno_of(os.mkdir, os.path.join(hidden, there)) == errno.EEXIST


def test_only_roots_can_be_made_there(mounted: Mounted) -> None:
    hidden = mounted.at(".sessionfs")
    os.mkdir(mounted.at("s"))
    path = make(mounted.at("s", "a"))
    for directory in (hidden, os.path.join(hidden, "eval"), os.path.join(hidden, "agents", "a")):
        inside = os.path.join(directory, "new")
        assert errno_of(make, inside) == errno.EPERM
        assert errno_of(os.symlink, "x", inside) == errno.EPERM
        assert errno_of(os.mkfifo, inside) == errno.EPERM
        assert errno_of(os.link, path, inside) in {errno.EPERM, errno.EXDEV}
        assert errno_of(os.rename, path, inside) in {errno.EPERM, errno.EXDEV}
        assert errno_of(os.chmod, directory, 0o700) == errno.EPERM
        assert errno_of(os.setxattr, directory, "user.x", b"1") == errno.EPERM
    for fixed in ("", "eval", "plugins", "agents"):
        assert errno_of(os.rmdir, os.path.join(hidden, fixed)) == errno.EPERM
    assert (
        errno_of(os.rename, os.path.join(hidden, "eval", "run7"), os.path.join(hidden, "eval", "run8"))
        == errno.EPERM
    )


def test_nothing_moves_between_a_session_and_a_root(mounted: Mounted) -> None:
    os.mkdir(mounted.at("s"))
    path = make(mounted.at("s", "a"))
    inside = mounted.at(".sessionfs", "eval", "run7", "a")
    assert errno_of(os.rename, path, inside) == errno.EXDEV
    assert errno_of(os.link, path, inside) == errno.EXDEV
    assert errno_of(os.rename, mounted.at(".sessionfs", "eval", "run7", "score.json"), path) == errno.EXDEV


def test_generations_of_a_root_are_shown_read_only(mounted: Mounted) -> None:
    generations = mounted.at(".sessionfs", "eval", "run7", ".sessionfs", "generations")
    assert os.listdir(generations) == ["3"]
    assert read(os.path.join(generations, "3", "score.json")) == b"as it was"
    assert errno_of(make, os.path.join(generations, "3", "score.json")) == errno.EROFS
    assert not os.path.exists(os.path.join(generations, "4"))
    assert not os.path.exists(os.path.join(generations, "3", ".sessionfs"))
    assert os.listdir(mounted.at(".sessionfs", "eval")) == ["run7"]


def test_directories_of_an_agent_come_and_go_with_mkdir_and_rm(mounter: Mounter) -> None:
    mounted, _ = mounter()
    agent = mounted.at(".sessionfs", "agents", "a")
    subprocess.run(["mkdir", "-p", os.path.join(agent, "plugins", "p", "deep")], check=True)
    assert mounted.ask(claimed)[0] == "%agents%a%plugins%p"
    assert os.listdir(mounted.at(".sessionfs", "agents")) == ["a"]
    assert errno_of(os.rmdir, agent) == errno.ENOTEMPTY
    assert errno_of(os.rmdir, os.path.join(agent, "plugins")) == errno.ENOTEMPTY
    subprocess.run(["rm", "-r", agent], check=True)
    assert not os.path.exists(agent)
    assert os.listdir(mounted.at(".sessionfs", "agents")) == []
    assert errno_of(os.rmdir, agent) == errno.ENOENT


def test_a_root_of_another_host_is_read_and_not_changed(mounted: Mounted) -> None:
    mounted.ask(owned_elsewhere)
    run = mounted.at(".sessionfs", "eval", "run7")
    assert read(os.path.join(run, "score.json")) == b"{}"
    assert errno_of(make, os.path.join(run, "new")) == errno.EROFS
    assert errno_of(os.mkdir, mounted.at(".sessionfs", "eval", "run8")) == errno.EROFS
    assert os.listdir(mounted.at(".sessionfs", "eval")) == ["run7"]


def test_a_store_that_does_not_answer_is_never_a_missing_root(mounted: Mounted) -> None:
    assert read(mounted.at(".sessionfs", "eval", "run7", "score.json")) == b"{}"
    mounted.ask(go_away)
    assert errno_of(os.stat, mounted.at(".sessionfs", "plugins", "x")) == errno.EIO
    assert errno_of(os.stat, mounted.at(".sessionfs", "agents", "b")) == errno.EIO
    assert errno_of(os.listdir, mounted.at(".sessionfs", "plugins")) == errno.EIO
    assert os.listdir(mounted.at(".sessionfs", "eval")) == ["run7"]
    assert read(mounted.at(".sessionfs", "eval", "run7", "score.json")) == b"{}"


def test_a_mount_of_some_sessions_shows_every_root(mounter: Mounter) -> None:
    mounted, _ = mounter(roots_in_the_bucket, sessions=("one",))
    assert os.listdir(mounted.path) == []
    assert os.listdir(mounted.at(".sessionfs", "eval")) == ["run7"]
    os.mkdir(mounted.at(".sessionfs", "plugins", "x"))


def test_a_read_only_mount_makes_no_root(mounter: Mounter) -> None:
    mounted, _ = mounter(roots_in_the_bucket, read_only=True)
    assert errno_of(os.mkdir, mounted.at(".sessionfs", "eval", "new")) == errno.EROFS
    assert errno_of(os.mkdir, mounted.at(".sessionfs", "agents", "new")) == errno.EROFS
    assert read(mounted.at(".sessionfs", "eval", "run7", "score.json")) == b"{}"
