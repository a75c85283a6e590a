"""Commands against a daemon that only answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sessionfs.cli.main import main
from sessionfs.cli.mount_commands.status_cmd import MOUNT_KEYS
from sessionfs.daemon.checks import mount_points
from sessionfs.daemon.checks.mount_points import MountEntry
from sessionfs.formats.link_messages import (
    Event,
)
from sessionfs.model.errors import (
    AccessError,
    CorruptDataError,
    MountError,
    SessionAlreadyOwnedError,
    UnavailableError,
    UnsupportedFormatError,
)
from tests.unit.daemon.fake_mount import STATUS, FakeMount, listening


@pytest.fixture
def mount() -> FakeMount:
    return FakeMount()


@pytest.fixture(autouse=True)
def daemon(mount: FakeMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One mount on /srv/sessions, served by a thread."""
    entry = MountEntry("/srv/sessions", "fuse.sessionfs", "s3://bucket")
    monkeypatch.setattr(mount_points, "mount_table", lambda: [MountEntry("/", "ext4", "/dev/vda"), entry])
    with listening(mount, tmp_path) as path:
        monkeypatch.setattr(mount_points, "control_socket_of", lambda _mount_point: path)
        yield


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result


def test_status_as_json_has_exactly_the_documented_names() -> None:
    body = json.loads(run("status", "/srv/sessions", "--json").stdout)
    assert tuple(body) == MOUNT_KEYS
    assert body == {key: STATUS[key] for key in MOUNT_KEYS}


def test_status_fits_on_80_columns(mount: FakeMount) -> None:
    mount.status_body["degraded"] = "the store does not answer: no route to host"
    lines = run("status", "/srv/sessions/some/file").stdout.splitlines()
    assert lines[0].startswith("/srv/sessions  s3://bucket")
    assert lines[1] == "degraded: the store does not answer: no route to host"
    assert lines[2].split() == ["session", "state", "owner", "owed", "oldest", "generation"]
    assert re.match(r"2026-01-31-refactor-the-parser +owed +here +3 files, 1\.43 MiB +2 s +12 \(", lines[3])


def test_status_of_a_mount_without_sessions_says_how_to_make_one(mount: FakeMount) -> None:
    mount.status_body["sessions"] = []
    assert "mkdir /srv/sessions/ID" in run("status").stdout


def test_status_names_sessions_whose_last_commit_failed(mount: FakeMount) -> None:
    mount.status_body["sessions"] = [{**STATUS["sessions"][0], "id": "s", "commit_problem": "no\nroute"}]
    assert "s is not committed: no route" in run("status", "/srv/sessions").stdout


def test_status_says_who_owns_a_session(mount: FakeMount) -> None:
    row = {**STATUS["sessions"][0], "owner": "far"}
    mount.status_body["sessions"] = [{**row, "id": "a", "owned_here": False}, {**row, "id": "b"}]
    lines = run("status", "/srv/sessions").stdout.splitlines()[2:]
    assert [line.split()[2] for line in lines] == ["far", "here"]


def test_status_without_a_directory_takes_the_only_mount() -> None:
    assert json.loads(run("status", "--json").stdout)["mount"] == "/srv/sessions"


def test_several_mounts_must_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [MountEntry(f"/srv/{name}", "fuse.sessionfs", "s3://bucket") for name in "ab"]
    monkeypatch.setattr(mount_points, "mount_table", lambda: entries)
    assert "2 sessionfs mounts: /srv/a, /srv/b (name one)" in run("status", code=1).stderr
    monkeypatch.setattr(mount_points, "mount_table", list)
    assert "nothing is mounted" in run("status", code=1).stderr


def test_status_waits_until_clean(mount: FakeMount) -> None:
    run("status", "/srv/sessions", "--wait", "--timeout", "3")
    assert mount.asked == [("drain", {"timeout_seconds": 3.0})]


def test_status_that_waited_in_vain_says_what_is_behind(mount: FakeMount) -> None:
    mount.left = ["s/a", "s/b"]
    result = run("status", "/srv/sessions", "--wait", "--timeout", "0", code=4)
    assert result.stderr.splitlines()[1:] == ["  s/a", "  s/b"]


def test_umount_waits_for_everything_by_default(mount: FakeMount) -> None:
    result = run("umount", "/srv/sessions")
    assert mount.asked[0] == ("shut_down", {"timeout_seconds": None, "abandon": False, "force": False})
    assert result.output == ""


def test_umount_that_leaves_bytes_behind_exits_4_and_lists_them(mount: FakeMount) -> None:
    mount.left = ["s/a"]
    result = run("umount", "/srv/sessions", "--timeout", "1.5", "--abandon", "--force", code=4)
    assert mount.asked[0] == ("shut_down", {"timeout_seconds": 1.5, "abandon": True, "force": True})
    assert "1 file (10 B) stayed behind on this host: no answer" in result.stderr
    assert result.stderr.endswith("  s/a\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MountError("busy", remedy="end it"), 1),
        (UnavailableError("no route"), 3),
        (AccessError("wrong secret"), 3),
        (SessionAlreadyOwnedError("owned", holder="x"), 5),
        (CorruptDataError("bad"), 6),
        (UnsupportedFormatError("x", found=2, supported=1), 7),
    ],
)
def test_every_error_is_one_line_with_its_documented_exit_code(
    mount: FakeMount, error: Exception, code: int
) -> None:
    mount.error = error  # type: ignore[assignment]
    result = run("retry", "/srv/sessions", code=code)
    assert result.output == f"sessionfs: {error}\n"


def test_debug_shows_where_an_error_came_from(mount: FakeMount) -> None:
    mount.error = MountError("busy")
    result = CliRunner().invoke(main, ["retry", "/srv/sessions", "--debug"])
    assert isinstance(result.exception, MountError)


def test_retry_asks_for_it(mount: FakeMount) -> None:
    run("retry", "/srv/sessions")
    assert mount.asked == [("retry", {})]


def test_events_are_one_json_object_a_line(mount: FakeMount) -> None:
    mount.events_kept = [Event(n, "session.file.created", "now", {"path": "a"}) for n in (1, 2, 3)]
    lines = run("events", "/srv/sessions", "--after", "1").stdout.splitlines()
    assert [json.loads(line)["number"] for line in lines] == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dance"], "No such command 'dance'"),
        (["status", "--colour"], "No such option"),
        (["umount"], "Missing argument 'DIR'"),
        (["umount", "/srv/sessions", "--timeout", "-1"], "Invalid value for '--timeout'"),
        (["mount", "a", "b", "c"], "unexpected argument 'c'"),
        (["conflicts", "/srv/sessions", "--output", "x"], "--output needs --show"),
        (["conflicts", "/srv/sessions", "--show", "x", "--json"], "exclude one another"),
        (["conflicts", "/srv/sessions", "--take", "both", "x"], "Invalid value for '--take'"),
        (["mount", "a", "b", "--fsync", "never"], "Invalid value for '--fsync'"),
        (["doctor", "--contract"], "--contract needs a STORE"),
    ],
)
def test_a_usage_error_is_one_line_that_names_the_help(arguments: list[str], said: str) -> None:
    result = run(*arguments, code=2)
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert "--help)" in result.stderr


def test_a_directory_in_no_mount_is_named() -> None:
    assert "sessionfs: /etc is in no sessionfs mount" in run("umount", "/etc", code=1).stderr


def test_ls_of_the_embedded_store_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SESSIONFS_CONFIG", raising=False)
    assert run("ls").stdout == f"no sessions in file://{tmp_path}/data/sessionfs/store\n"
    assert json.loads(run("ls", "--json").stdout) == []


def test_doctor_looks_at_this_machine_and_at_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "store").mkdir()
    result = CliRunner().invoke(main, ["doctor", str(tmp_path / "store"), "--json"])
    report = json.loads(result.stdout)
    assert {finding["name"] for finding in report["environment"]} >= {
        "python",
        "/dev/fuse",
        "state directory",
    }
    assert report["store"]["capabilities"]["conditional_put"] is True
    assert "conditional put" in CliRunner().invoke(main, ["doctor", str(tmp_path / "store")]).stdout


def test_doctor_of_a_store_that_is_not_there_says_so_and_exits_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONFS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("SESSIONFS_SECRET_ACCESS_KEY", "s")
    result = CliRunner().invoke(main, ["doctor", "s3://bucket?endpoint=http://127.0.0.1:1"])
    assert result.exit_code == 3
    assert result.stderr.startswith("sessionfs: ")
    assert result.stderr.count("\n") == 1


def test_the_help_names_every_command_once_below_a_heading() -> None:
    lines = run("--help").stdout.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in main.commands]
    assert sorted(named) == sorted(main.commands)
    assert {"Mounts:", "Sessions of a mount:", "Stores:"} <= set(lines)


def test_the_version_and_the_help_start_without_the_daemons_parts() -> None:
    import subprocess
    import sys

    program = (
        "import sys; from sessionfs.cli.main import main; "
        "print([name for name in ('trio', 'boto3', 'rich', 'pyfuse3', 'structlog') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
