"""What a machine must offer before anything can be mounted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sessionfs.daemon.checks.environment import FuseEnvironment
from sessionfs.model.errors import MountError

SOMEBODY = 1000


def test_a_missing_device_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(MountError, match=r"/fuse is missing.*modprobe fuse.*--device /dev/fuse"):
        FuseEnvironment(device=str(tmp_path / "fuse")).check_device()


def test_a_device_without_a_driver_is_a_missing_one(tmp_path: Path) -> None:
    device = tmp_path / "fuse"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(10, 250))
    except PermissionError:
        device = tmp_path / "file" / "below"
        (tmp_path / "file").touch()
    with pytest.raises(MountError, match="is missing"):
        FuseEnvironment(device=str(device)).check_device()


def test_a_device_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(MountError, match=r"cannot be opened: Is a directory.*10:229"):
        FuseEnvironment(device=str(tmp_path)).check_device()


def test_a_device_that_opens_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "fuse").touch()
    FuseEnvironment(device=str(tmp_path / "fuse")).check_device()


def test_an_ordinary_user_needs_fusermount_and_root_does_not() -> None:
    with pytest.raises(MountError, match=r"no-such-program is missing.*apt-get install fuse3"):
        FuseEnvironment(fusermount="no-such-program", uid=SOMEBODY).check_fusermount()
    FuseEnvironment(fusermount="no-such-program", uid=0).check_fusermount()


@pytest.mark.parametrize(
    ("content", "allowed"),
    [("user_allow_other\n", True), ("# user_allow_other\n", False), ("", False), (None, False)],
)
def test_allow_other_of_an_ordinary_user_needs_its_line(
    tmp_path: Path, content: str | None, allowed: bool
) -> None:
    configuration = tmp_path / "fuse.conf"
    if content is not None:
        configuration.write_text(content)
    environment = FuseEnvironment(configuration=str(configuration), uid=SOMEBODY)
    assert environment.allows_others() is allowed
    if allowed:
        environment.check_allow_other()
    else:
        with pytest.raises(MountError, match="user_allow_other"):
            environment.check_allow_other()
    FuseEnvironment(configuration=str(configuration), uid=0).check_allow_other()
