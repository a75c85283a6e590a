"""What ``sessionfs mount`` makes of its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sessionfs.cli.main import main
from sessionfs.cli.mount_commands import mount_cmd
from sessionfs.daemon.checks import requests
from sessionfs.daemon.mount_request import MountRequest


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MountRequest]:
    """Requests that would have been mounted."""
    made: list[MountRequest] = []

    def note(request: MountRequest, *, foreground: bool) -> int:
        made.append(request)
        return int(foreground)

    monkeypatch.setattr(mount_cmd, "run_request", note)
    monkeypatch.setattr(requests, "check_request", lambda _request, _environment: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SESSIONFS_CONFIG", raising=False)
    return made


def mount(*options: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["mount", *options, "/store", "/mnt"])
    assert result.exit_code == code, result.output
    return result.stderr


@pytest.mark.parametrize(
    ("at", "read_only"), [("auto", False), ("live", False), ("committed", False), ("7", True)]
)
@pytest.mark.parametrize("by", ["flag", "option", "environment"])
def test_a_mount_of_a_generation_is_read_only(
    asked: list[MountRequest], monkeypatch: pytest.MonkeyPatch, at: str, read_only: bool, by: str
) -> None:
    if by == "environment":
        monkeypatch.setenv("SESSIONFS_AT", at)
    mount(*{"flag": ["--at", at], "option": ["-o", f"at={at}"], "environment": []}[by])
    settings = asked[0].settings
    assert (settings.replication.at, settings.filesystem.read_only) == (at, read_only)


@pytest.mark.parametrize("at", ["0", "-1", "yesterday", "1.5", ""])
def test_a_generation_that_is_none_is_named(asked: list[MountRequest], at: str) -> None:
    assert "--at" in mount("--at", at, code=2)
    assert asked == []


def test_every_new_setting_is_an_option(asked: list[MountRequest]) -> None:
    mount("--prefetch", "-o", "turn_globs=*.jsonl,policy=strict,lease_seconds=30,snapshot_interval_seconds=0")
    settings = asked[0].settings
    assert settings.filesystem.prefetch
    assert settings.filesystem.turn_globs == ("*.jsonl",)
    assert settings.filesystem.policy == "strict"
    assert (settings.replication.lease_seconds, settings.replication.snapshot_interval_seconds) == (30, 0)
