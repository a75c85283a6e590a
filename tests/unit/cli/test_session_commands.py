"""Commands about one session, against a daemon that only answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sessionfs.cli.main import main
from sessionfs.cli.mount_commands.snapshot_cmd import JSON_KEYS
from sessionfs.daemon.checks import mount_points
from sessionfs.daemon.checks.mount_points import MountEntry
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.formats.link_messages import Conflict
from sessionfs.formats.object_metadata import FileAttributes, Provenance, encode
from sessionfs.model.errors import ConflictError, SessionAlreadyOwnedError
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata
from sessionfs.stores.local_directory import LocalDirectoryStore
from tests.unit.daemon.fake_mount import SNAPSHOT, FakeMount, listening

STAMP = "20260131T235959.123456Z"


@pytest.fixture
def mount(tmp_path: Path) -> FakeMount:
    made = FakeMount(conflicts_kept=[])
    made.status_body["store"] = f"file://{tmp_path}/store"
    return made


@pytest.fixture
def place(mount: FakeMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that stands for a mount, served by a thread."""
    (tmp_path / "store").mkdir()
    path = tmp_path / "mnt"
    (path / "s").mkdir(parents=True)
    entry = MountEntry(str(path), "fuse.sessionfs", "file:///store")
    monkeypatch.setattr(mount_points, "mount_table", lambda: [MountEntry("/", "ext4", "/dev/vda"), entry])
    with listening(mount, tmp_path) as socket:
        monkeypatch.setattr(mount_points, "control_socket_of", lambda _mount_point: socket)
        yield path


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


# --- snapshot, claim, release


def test_a_snapshot_says_what_was_committed_and_what_it_cost(mount: FakeMount, place: Path) -> None:
    assert run("snapshot", place / "s").stdout == (
        "s: generation 12, 1007 objects, 91 MiB; sent 10 objects, 1 MiB in 13 requests, 1.25 s, "
        "programs waited 12.5 ms\n"
    )
    assert mount.asked == [("snapshot", {"session": "s", "trigger": "command"})]


def test_a_snapshot_as_json_is_the_marker_and_three_figures(place: Path) -> None:
    body = json.loads(run("snapshot", place / "s" / "deep" / "file", "--json").stdout)
    assert body == {key: SNAPSHOT[key] for key in JSON_KEYS}
    marker = set(CommitMarker.__struct_fields__) - {"format"}
    assert set(JSON_KEYS) == marker | {"duration_seconds", "barrier_seconds", "requests"}


def test_a_snapshot_of_nothing_new_says_so(mount: FakeMount, place: Path) -> None:
    mount.snapshot_body["is_unchanged"] = True
    assert run("snapshot", place / "s").stdout == "s: generation 12, nothing had changed\n"


def test_a_snapshot_names_files_that_moved(mount: FakeMount, place: Path) -> None:
    mount.snapshot_body["moving"] = ["a.log", "b\nc"]
    assert "without a pause: a.log, b c" in run("snapshot", place / "s").stderr


def test_a_session_is_named_from_inside_it(
    mount: FakeMount, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "s" / "deep").mkdir()
    monkeypatch.chdir(place / "s" / "deep")
    run("snapshot", ".")
    assert mount.asked == [("snapshot", {"session": "s", "trigger": "command"})]


@pytest.mark.parametrize("command", ["snapshot", "claim", "release"])
def test_a_mount_is_no_session(place: Path, command: str) -> None:
    assert f"is a mount, not a session (name one: {place}/ID)" in run(command, place, code=2).stderr
    assert "is in no sessionfs mount" in run(command, "/etc", code=1).stderr


@pytest.mark.parametrize(("arguments", "force"), [([], False), (["--force"], True)])
def test_a_claim_takes_over_by_force_only_when_told(
    mount: FakeMount, place: Path, arguments: list[str], force: bool
) -> None:
    result = run("claim", place / "s", *arguments)
    assert mount.asked == [("claim", {"session": "s", "force": force})]
    assert result.stdout == "s is owned by this host\n"
    assert ("warning" in result.stderr) is force


def test_a_claim_of_anothers_session_exits_5_and_names_the_holder(mount: FakeMount, place: Path) -> None:
    mount.error = SessionAlreadyOwnedError("s is owned by far since noon", holder="far", remedy="wait")
    assert run("claim", place / "s", code=5).stderr == "sessionfs: s is owned by far since noon (wait)\n"


def test_a_release_says_when_it_is_done_and_why_it_is_not(mount: FakeMount, place: Path) -> None:
    assert run("release", place / "s").stdout == "s is released\n"
    mount.error = ConflictError("s is being written: a", remedy="close it")
    assert run("release", place / "s", code=1).stderr == "sessionfs: s is being written: a (close it)\n"


@pytest.mark.parametrize(
    ("inside", "named"),
    [
        (".sessionfs/eval/run7", "eval/run7"),
        (".sessionfs/plugins/x/deep/file", "plugins/x"),
        (".sessionfs/agents/a/plugins/p/f", "agents/a/plugins/p"),
        ("eval/run7", "eval"),
    ],
)
def test_a_shared_root_is_named_by_its_directory(
    mount: FakeMount, place: Path, inside: str, named: str
) -> None:
    run("claim", place / inside)
    assert mount.asked[-1] == ("claim", {"session": named, "force": False})


@pytest.mark.parametrize(
    "inside", [".sessionfs", ".sessionfs/eval", ".sessionfs/agents/a/plugins", ".sessionfs/x/y"]
)
def test_what_is_above_the_shared_roots_is_none(mount: FakeMount, place: Path, inside: str) -> None:
    assert "is no shared root" in run("claim", place / inside, code=2).stderr
    assert mount.asked == []


# --- conflicts


def keep(
    mount: FakeMount,
    tmp_path: Path,
    path: str,
    body: bytes,
    *,
    mode: int = 0o100640,
    base: str = "sessions/s",
) -> str:
    """Keep bytes aside in the store; gives their key."""
    key = f"{base}.conflicts/{path}/{STAMP}-far"
    store = LocalDirectoryStore(str(tmp_path / "store"))
    user = encode(FileAttributes(mode, 0, 0, 1), Provenance())
    store.put(key, body, condition=IfAbsent(), metadata=ObjectMetadata(user=user))
    store.close()
    session = base.removeprefix("sessions/")
    mount.conflicts_kept.append(Conflict(session, path, key, "2026-01-31T00:00:00Z", "far"))
    return key


def test_conflicts_name_the_object_that_holds_the_other_bytes(
    mount: FakeMount, place: Path, tmp_path: Path
) -> None:
    assert run("conflicts", place).stdout == "no conflicts\n"
    key = keep(mount, tmp_path, "a.txt", b"theirs")
    assert key in run("conflicts", place).stdout.replace("\n", "")
    assert json.loads(run("conflicts", place, "--json").stdout)[0]["holder"] == "far"


@pytest.mark.parametrize("how", ["object", "path", "place"])
def test_the_bytes_kept_aside_are_shown(mount: FakeMount, place: Path, tmp_path: Path, how: str) -> None:
    key = keep(mount, tmp_path, "d/a.txt", b"the\x00irs")
    named = {"object": key, "path": "s/d/a.txt", "place": place / "s" / "d" / "a.txt"}[how]
    assert run("conflicts", place, "--show", named).stdout_bytes == b"the\x00irs"
    run("conflicts", place, "--show", named, "--output", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"the\x00irs"
    assert not [name for name, _ in mount.asked if name == "resolve"]


def test_theirs_become_the_files_content_and_then_the_conflict_ends(
    mount: FakeMount, place: Path, tmp_path: Path
) -> None:
    key = keep(mount, tmp_path, "a.txt", b"theirs")
    (place / "s" / "a.txt").write_bytes(b"ours")
    (place / "s" / "a.txt").chmod(0o604)
    inode = (place / "s" / "a.txt").stat().st_ino
    run("conflicts", place, "--take", "theirs", "s/a.txt")
    after = (place / "s" / "a.txt").stat()
    assert (place / "s" / "a.txt").read_bytes() == b"theirs"
    assert (after.st_mode & 0o777, after.st_ino == inode) == (0o604, False)
    assert os.listdir(place / "s") == ["a.txt"]
    assert mount.asked[-1] == ("resolve", {"key": key})


def test_conflicts_of_a_shared_root_are_named_as_those_of_sessions(
    mount: FakeMount, place: Path, tmp_path: Path
) -> None:
    keep(mount, tmp_path, "a.txt", b"theirs", base="eval/run7")
    root = place / ".sessionfs" / "eval" / "run7"
    root.mkdir(parents=True)
    for named in ("eval/run7/a.txt", root / "a.txt"):
        (root / "a.txt").write_bytes(b"ours")
        run("conflicts", place, "--take", "theirs", named)
        assert (root / "a.txt").read_bytes() == b"theirs"


def test_theirs_of_a_file_that_is_gone_are_made_again(mount: FakeMount, place: Path, tmp_path: Path) -> None:
    keep(mount, tmp_path, "gone/%FFa.txt", b"theirs")
    keep(mount, tmp_path, "link", b"target", mode=0o120777)
    run("conflicts", place, "--take", "theirs", "s/gone/%FFa.txt")
    made = os.path.join(os.fsencode(place), b"s", b"gone", b"\xffa.txt")
    assert os.stat(made).st_mode & 0o777 == 0o640
    run("conflicts", place, "--take", "theirs", "s/link")
    assert os.readlink(place / "s" / "link") == "target"


def test_ours_stay_and_the_conflict_ends(mount: FakeMount, place: Path, tmp_path: Path) -> None:
    key = keep(mount, tmp_path, "a.txt", b"theirs")
    (place / "s" / "a.txt").write_bytes(b"ours")
    run("conflicts", place, "--take", "ours", key)
    assert (place / "s" / "a.txt").read_bytes() == b"ours"
    assert mount.asked[-1] == ("resolve", {"key": key})


def test_theirs_that_cannot_be_had_change_nothing(mount: FakeMount, place: Path, tmp_path: Path) -> None:
    key = keep(mount, tmp_path, "a.txt", b"theirs")
    store = LocalDirectoryStore(str(tmp_path / "store"))
    store.delete(key, condition=IfMatch(store.head(key).token))
    store.close()
    (place / "s" / "a.txt").write_bytes(b"ours")
    run("conflicts", place, "--take", "theirs", key, code=1)
    assert os.listdir(place / "s") == ["a.txt"]
    assert (place / "s" / "a.txt").read_bytes() == b"ours"
    assert not [name for name, _ in mount.asked if name == "resolve"]


def test_a_conflict_must_be_known_and_told_apart(mount: FakeMount, place: Path, tmp_path: Path) -> None:
    key = keep(mount, tmp_path, "a.txt", b"theirs")
    assert (
        "no conflict has the object or path s/b.txt"
        in run("conflicts", place, "--show", "s/b.txt", code=1).stderr
    )
    other = f"{key}2"
    mount.conflicts_kept.append(Conflict("s", "a.txt", other, "2026-01-31T00:00:00Z", "far2"))
    assert other in run("conflicts", place, "--show", "s/a.txt", code=2).stderr
    root = f"sessions/s.conflicts/_root/{STAMP}-far"
    mount.conflicts_kept.append(Conflict("s", "", root, "2026-01-31T00:00:00Z", "far"))
    assert "does not say which file" in run("conflicts", place, "--take", "theirs", root, code=2).stderr
