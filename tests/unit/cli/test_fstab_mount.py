"""What mount(8) passes, and what is left of it for sessionfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.cli import fstab_mount
from sessionfs.cli.fstab_mount import MountCall, parse
from sessionfs.cli.mount_commands.mount_cmd import split_options


def test_a_line_of_fstab_becomes_settings_and_options() -> None:
    call = parse(
        [
            "s3://bucket",
            "/srv/s",
            "-sv",
            "-o",
            "rw,noatime,nofail,_netdev,user,x-systemd.automount,comment=x,allow_other,upload_delay_seconds=2,max_read=4096",
        ]
    )
    assert call == MountCall(
        "s3://bucket", "/srv/s", "allow_other,upload_delay_seconds=2,max_read=4096", fake=False
    )
    assert split_options(call.options) == (
        {"allow_other": True, "upload_delay_seconds": "2"},
        ("max_read=4096",),
    )


@pytest.mark.parametrize("flags", [["-f"], ["-sfnv"], ["-v", "-f"]])
def test_a_fake_mount_is_told_apart(flags: list[str]) -> None:
    assert parse(["s", "d", *flags]).fake


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("ro", {"read_only": True}),
        ("default_permissions", {"default_permissions": True}),
        ("single_host", {"single_host": True}),
        ("fsync=bucket", {"fsync": "bucket"}),
        ("defaults,sync", {}),
    ],
)
def test_options_that_are_settings(option: str, settings: dict[str, object]) -> None:
    assert split_options(",".join(fstab_mount.translate(option.split(",")))) == (settings, ())


def test_the_type_and_the_namespace_of_mount_are_accepted() -> None:
    assert parse(["-t", "fuse.sessionfs", "-N", "1", "s", "d", "-oro"]) == MountCall(
        "s", "d", "ro", fake=False
    )


@pytest.mark.parametrize("arguments", [[], ["s"], ["s", "d", "e"], ["s", "d", "-x"], ["s", "d", "-o"]])
def test_anything_else_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert fstab_mount.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_error_is_one_line_with_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fstab_mount.main([str(tmp_path), str(tmp_path / "d"), "-o", "upload_delay_seconds=x"]) == 2
    assert capsys.readouterr().err.startswith("sessionfs: --upload-delay-seconds: ")
