"""What is at a mount point, read from the kernel's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.daemon.checks import mount_points
from sessionfs.daemon.checks.mount_points import (
    MountEntry,
    check_apart,
    check_free,
    control_socket_of,
    current_mount_point,
    mount_of,
    mount_source,
    mount_table,
    mounted_at,
)
from sessionfs.daemon.checks.unmount import busy_error, users_of
from sessionfs.model.errors import MountError

TABLE = r"""22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
40 22 0:40 / /srv/a\040b rw,nosuid shared:7 master:2 - fuse.sessionfs s3://bucket/p\134q rw,user_id=0
41 40 0:41 / /srv/a\040b/inner rw - tmpfs tmpfs rw
42 22 0:42 / /srv/twice rw - tmpfs tmpfs rw
43 22 0:43 / /srv/twice rw - fuse.sessionfs file:///x rw
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    monkeypatch.setattr(mount_points, "mount_table", lambda: mount_table(str(path)))


def test_the_table_is_read_with_its_escapes(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    entries = mount_table(str(tmp_path / "mountinfo"))
    assert entries[2] == MountEntry("/srv/a b", "fuse.sessionfs", "s3://bucket/p\\q", "0:40")
    assert mount_table()


def test_the_mount_of_a_path_is_the_innermost_one(table: None) -> None:
    found = mount_of("/srv/a b/session/file")
    assert found is not None
    assert found.mount_point == "/srv/a b"
    assert mount_of("/srv/a b/inner/file") is None
    assert mount_of("/srv/a bc") is None
    assert mount_of("/srv") is None


def test_of_two_mounts_on_one_directory_the_newest_counts(table: None) -> None:
    found = mounted_at("/srv/twice")
    assert found is not None
    assert found.filesystem == "fuse.sessionfs"
    assert mounted_at("/srv/once") is None
    assert [entry.mount_point for entry in mount_points.our_mounts()] == ["/srv/a b", "/srv/twice"]


def test_a_mount_is_found_again_when_a_directory_above_it_was_renamed(table: None) -> None:
    assert current_mount_point("/srv/old/b", "0:40") == "/srv/a b"
    assert current_mount_point("/srv/a b", "0:40") == "/srv/a b"
    assert current_mount_point("/srv/a b", "0:99") == "/srv/a b"


def test_a_mount_point_must_be_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MountError, match=r"is not empty \(1 names\)"):
        check_free(str(tmp_path), "file:///x")
    with pytest.raises(MountError, match="is no directory"):
        check_free(str(tmp_path / "file"), "file:///x")
    with pytest.raises(MountError, match=r"does not exist \(make it: mkdir -p .*/missing\)"):
        check_free(str(tmp_path / "missing"), "file:///x")
    (tmp_path / "empty").mkdir()
    check_free(str(tmp_path / "empty"), "file:///x")


@pytest.mark.parametrize(
    ("mount_point", "directory", "apart"),
    [
        ("/a", "/a", False),
        ("/a", "/a/b", False),
        ("/a/b", "/a", False),
        ("/a", "/ab", True),
        ("/a/b", "/a/c", True),
    ],
)
def test_a_mount_never_hides_what_it_lives_on(mount_point: str, directory: str, apart: bool) -> None:
    if apart:
        check_apart(mount_point, named="the store", directory=directory)
    else:
        with pytest.raises(MountError, match="inside one another"):
            check_apart(mount_point, named="the store", directory=directory)


def test_a_directory_that_is_no_mount_has_no_control_socket(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="is no sessionfs mount"):
        control_socket_of(str(tmp_path))


def test_a_store_url_with_a_comma_survives_the_options() -> None:
    assert mount_source("file:///a,b\\c") == "file:///a%2Cb%5Cc"


def test_who_uses_a_directory_is_named(tmp_path: Path) -> None:
    import subprocess

    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as process:
        try:
            assert users_of(str(tmp_path)) == [f"sleep ({process.pid})"]
            assert f"in use by sleep ({process.pid})" in busy_error(str(tmp_path)).message
        finally:
            process.kill()
    assert users_of(str(tmp_path)) == []
