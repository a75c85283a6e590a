"""``.sessionfs`` through the kernel: commits by shells and programs, the end-of-turn rule, trees of the past."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import threading

import pytest

from sessionfs.model.errors import UnavailableError
from sessionfs.testing.fake_remote import FakeRemote
from tests.filesystem.conftest import Mounter
from tests.filesystem.mounting import Mounted, Rig

pytestmark = pytest.mark.fuse

END = '{"seq": 4, "type": "turn.completed"}\n'


def commits(rig: Rig) -> list[tuple[str, str, bool]]:
    return list(rig[1].commits)


def fail_commits(rig: Rig, message: str) -> None:
    rig[1].commit_error = UnavailableError(message) if message else None


def problems(rig: Rig) -> dict[str, str]:
    return rig[0].session_requests.problems()


def a_session_with_a_past(remote: FakeRemote) -> None:
    root = remote.add_session("s", foreign=False)
    remote.add_file(root, b"a.txt", b"as it is now")
    past = remote.add_session("s%g7", foreign=False)
    deep = remote.add_directory(remote.add_directory(past, b"d"), b"e")
    remote.add_file(deep, b"a.txt", b"as it was")
    remote.add_symlink(past, b"link", b"d/e/a.txt")
    remote.generations["s"] = [7]


def shell(command: str, *, program: str = "sh") -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, "-c", command], capture_output=True, text=True, check=False)


@pytest.fixture
def snapshot(mounter: Mounter) -> tuple[Mounted, str]:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    return mounted, mounted.at("s", ".sessionfs", "snapshot")


@pytest.mark.parametrize("program", ["sh", "bash"])
def test_an_echo_commits_exactly_once_before_it_returns(snapshot: tuple[Mounted, str], program: str) -> None:
    mounted, path = snapshot
    done = shell(f"echo turn > {path}", program=program)
    assert (done.returncode, done.stderr) == (0, "")
    assert mounted.ask(commits) == [("s", "turn", False)]
    assert shell(f"echo again >> {path}", program=program).returncode == 0
    assert mounted.ask(commits) == [("s", "turn", False), ("s", "again", False)]


def test_duplicated_descriptors_that_are_closed_commit_nothing(snapshot: tuple[Mounted, str]) -> None:
    mounted, path = snapshot
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    for _ in range(3):
        os.close(os.dup(descriptor))
    assert mounted.ask(commits) == []
    os.write(descriptor, b"turn\n")
    assert mounted.ask(commits) == [("s", "turn", False)]
    os.fsync(descriptor)
    os.close(descriptor)
    assert len(mounted.ask(commits)) == 1


def test_the_result_can_be_read(snapshot: tuple[Mounted, str]) -> None:
    _, path = snapshot
    assert shell(f"cat {path}").stdout == "{}\n"
    shell(f"echo turn > {path}")
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["generation"] == 1


def test_a_commit_that_fails_is_an_error_of_the_write(snapshot: tuple[Mounted, str]) -> None:
    mounted, path = snapshot
    mounted.ask(fail_commits, "no route")
    descriptor = os.open(path, os.O_WRONLY)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.write(descriptor, b"turn\n")
    os.close(descriptor)
    assert shell(f"echo turn > {path}").returncode != 0
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["problem"] == "no route"


def test_python_writes_it_like_any_file(snapshot: tuple[Mounted, str]) -> None:
    mounted, path = snapshot
    with open(path, "w", encoding="utf-8") as file:
        print("from python", file=file)
    assert mounted.ask(commits) == [("s", "from python", False)]
    os.truncate(path, 0)
    assert len(mounted.ask(commits)) == 1


def test_the_control_directory_is_hidden_and_can_be_walked(snapshot: tuple[Mounted, str]) -> None:
    mounted, _ = snapshot
    assert os.listdir(mounted.at("s")) == []
    walked = sorted(
        name for _, below, files in os.walk(mounted.at("s", ".sessionfs")) for name in below + files
    )
    assert walked == ["conflicts", "generations", "snapshot", "status", "unnamed"]
    with os.scandir(mounted.at("s", ".sessionfs")) as entries:
        kinds = {entry.name: entry.is_dir() for entry in entries}
    assert kinds["generations"]
    assert not kinds["snapshot"]
    assert stat.S_IMODE(os.stat(mounted.at("s", ".sessionfs", "snapshot")).st_mode) == 0o644


def test_a_generation_is_an_ordinary_read_only_tree(mounter: Mounter) -> None:
    mounted, _ = mounter(prepare=a_session_with_a_past)
    past = mounted.at("s", ".sessionfs", "generations", "7")
    assert os.listdir(mounted.at("s", ".sessionfs", "generations")) == ["7"]
    assert shell(f"cat {past}/d/e/a.txt {past}/link").stdout == "as it was" * 2
    assert shell(f"cat {mounted.at('s')}/a.txt").stdout == "as it is now"
    assert sorted(os.listdir(past)) == ["d", "link"]
    assert shell(f"cd {past}/d/e && pwd -P && ls ../..").stdout == f"{past}/d/e\nd\nlink\n"
    attempts = (
        f"echo x > {past}/new",
        f"echo x >> {past}/d/e/a.txt",
        f": > {past}/d/e/a.txt",
        f"rm -f {past}/d/e/a.txt",
        f"rm -rf {past}/d",
        f"mv {past}/link {past}/other",
        f"chmod 777 {past}/d",
        f"ln -s x {past}/y",
        f"mkdir {past}/z",
        f"touch -d 2001-01-01 {past}/d/e/a.txt",
        f"mv {past} {mounted.at('s')}/stolen",
        f"rmdir {past}",
    )
    for attempt in attempts:
        assert shell(attempt).returncode != 0, attempt
    assert shell(f"cat {past}/d/e/a.txt").stdout == "as it was"
    with pytest.raises(FileNotFoundError):
        os.stat(mounted.at("s", ".sessionfs", "generations", "8"))


def test_a_copy_of_a_generation_is_an_ordinary_tree(mounter: Mounter) -> None:
    mounted, _ = mounter(prepare=a_session_with_a_past)
    done = shell(f"cp -a {mounted.at('s')}/.sessionfs/generations/7 {mounted.at('s')}/restored")
    assert (done.returncode, done.stderr) == (0, "")
    copied = mounted.at("s", "restored")
    assert shell(f"cat {copied}/link").stdout == "as it was"
    shell(f"echo x > {copied}/new")
    assert sorted(os.listdir(copied)) == ["d", "link", "new"]


def test_an_end_of_turn_is_committed_when_its_write_returns(
    mounter: Mounter,
) -> None:
    mounted, _ = mounter(turn_globs=("history.jsonl",))
    os.mkdir(mounted.at("s"))
    with open(mounted.at("s", "history.jsonl"), "a", buffering=1, encoding="utf-8") as log:
        log.write('{"seq": 3, "type": "step"}\n')
        assert mounted.ask(commits) == []
        log.write(END)
        assert mounted.ask(commits) == [("s", "turn", True)]
        mounted.ask(fail_commits, "no route")
        log.write(END)
        log.write('{"seq": 5, "type": "step"}\n')
    assert mounted.ask(problems) == {"s": "no route"}
    with open(mounted.at("s", "other.jsonl"), "a", encoding="utf-8") as other:
        other.write(END)
    assert len(mounted.ask(commits)) == 1


def test_others_go_on_while_one_commits(mounter: Mounter) -> None:
    mounted, _ = mounter()
    os.mkdir(mounted.at("s"))
    mounted.ask(hold_commits)
    writer = threading.Thread(target=shell, args=(f"echo turn > {mounted.at('s')}/.sessionfs/snapshot",))
    writer.start()
    try:
        while not mounted.ask(asked_to_commit):
            assert writer.is_alive()
        with open(mounted.at("s", "a"), "w", encoding="utf-8") as file:
            file.write("meanwhile")
        assert os.listdir(mounted.at("s")) == ["a"]
        assert mounted.ask(commits) == []
    finally:
        mounted.ask(let_commits_go)
        writer.join()
    assert mounted.ask(commits) == [("s", "turn", False)]


def asked_to_commit(rig: Rig) -> bool:
    return ("commit", "s") in rig[1].calls


def hold_commits(rig: Rig) -> None:
    rig[1].hold_commits()


def let_commits_go(rig: Rig) -> None:
    rig[1].let_commits_go()
