"""A start that fails leaves nothing behind, and one that succeeds keeps everything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionfs.daemon.bootstrap import _run, empty_directory, fuse_options, state_directory
from sessionfs.daemon.checks.environment import FuseEnvironment
from sessionfs.daemon.checks.requests import check_request
from sessionfs.daemon.mount_request import MountRequest, state_base
from sessionfs.model.errors import AccessError, InternalError, MountError, SettingsError, StoreUrlError
from sessionfs.model.settings import FilesystemSettings, Settings
from sessionfs.working_copy.layout import StateLayout


def request(tmp_path: Path, *, store: str = "", settings: Settings | None = None) -> MountRequest:
    (tmp_path / "mount").mkdir(exist_ok=True)
    return MountRequest(
        store_url=store or f"file://{tmp_path}/store",
        mount_point=str(tmp_path / "mount"),
        state_root=str(tmp_path / "state" / "id"),
        settings=settings or Settings(),
        fuse_options=("max_read=4096",),
    )


def fail_after_making(layout: StateLayout, *, also: str = "", error: Exception | None = None) -> None:
    with state_directory(layout) as _keep:
        Path(layout.lock).touch()
        Path(layout.daemon_log).write_text("{}")
        if also:
            Path(layout.root, also).write_text("work")
        raise error or AccessError("no")


def test_a_state_directory_that_a_failed_start_made_is_removed(tmp_path: Path) -> None:
    with pytest.raises(AccessError):
        fail_after_making(StateLayout(str(tmp_path / "a" / "b" / "id")))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [MountError("no"), InternalError("no"), KeyError("no")])
def test_the_log_of_a_mount_that_failed_can_be_read(tmp_path: Path, error: Exception) -> None:
    layout = StateLayout(str(tmp_path / "id"))
    with pytest.raises(type(error)):
        fail_after_making(layout, error=error)
    assert os.path.exists(layout.daemon_log)


@pytest.mark.parametrize("work", ["sessions/file", "staging/file", "surprise"])
def test_anything_that_may_be_work_is_kept(tmp_path: Path, work: str) -> None:
    with pytest.raises(AccessError):
        fail_after_making(StateLayout(str(tmp_path / "id")), also=work)
    assert (tmp_path / "id" / work).read_text() == "work"


def test_a_state_directory_that_was_there_before_is_kept(tmp_path: Path) -> None:
    layout = StateLayout(str(tmp_path / "id"))
    layout.create()
    with pytest.raises(AccessError):
        fail_after_making(layout)
    assert os.path.exists(layout.lock)


def test_a_start_that_succeeded_keeps_its_directory_whatever_comes(tmp_path: Path) -> None:
    layout = StateLayout(str(tmp_path / "id"))

    def end_badly_later() -> None:
        with state_directory(layout) as keep:
            keep()
            raise MountError("later")

    with pytest.raises(MountError):
        end_badly_later()
    assert os.path.isdir(layout.sessions)


def test_staging_is_emptied_with_everything_in_it(tmp_path: Path) -> None:
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/etc")
    empty_directory(str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert os.path.isdir("/etc")


def test_the_mount_names_its_store_and_its_options(tmp_path: Path) -> None:
    settings = Settings(filesystem=FilesystemSettings(read_only=True, allow_other=True))
    assert fuse_options(request(tmp_path, store="s3://bucket/a,b", settings=settings)) == {
        "fsname=s3://bucket/a%2Cb",
        "subtype=sessionfs",
        "max_read=4096",
        "ro",
        "allow_other",
    }


class Failing:
    """A composition whose nursery fails."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = errors

    async def run(self, *_arguments: object) -> int:
        raise ExceptionGroup("nursery", [ExceptionGroup("inner", [*self.errors])])


def test_an_error_of_ours_leaves_the_loop_alone_and_a_fault_in_its_group() -> None:
    with pytest.raises(MountError, match="does not answer"):
        _run(Failing(MountError("does not answer")), None, "", None, None)  # type: ignore[arg-type]
    with pytest.raises(ExceptionGroup):
        _run(Failing(MountError("x"), KeyError("y")), None, "", None, None)  # type: ignore[arg-type]


def test_a_request_is_checked_without_changing_anything(tmp_path: Path) -> None:
    (tmp_path / "fuse").touch()
    good = FuseEnvironment(device=str(tmp_path / "fuse"), uid=0)
    check_request(request(tmp_path), good)
    with pytest.raises(MountError, match="is missing"):
        check_request(request(tmp_path), FuseEnvironment(device=str(tmp_path / "none")))
    with pytest.raises(StoreUrlError, match="unknown scheme 'gopher'"):
        check_request(request(tmp_path, store="gopher://x"), good)
    ruled = Settings(filesystem=FilesystemSettings(turn_pattern="("))
    with pytest.raises(SettingsError, match=r"turn_pattern '\(' is no regular expression"):
        check_request(request(tmp_path, settings=ruled), good)
    with pytest.raises(MountError, match="inside one another"):
        check_request(request(tmp_path, store=f"file://{tmp_path}/mount/store"), good)
    (tmp_path / "mount" / "file").touch()
    with pytest.raises(MountError, match="not empty"):
        check_request(request(tmp_path), good)
    assert sorted(os.listdir(tmp_path)) == ["fuse", "mount"]


def test_where_the_state_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_base("/srv/state/", {}) == "/srv/state"
    assert state_base("~/state", {}) == f"{tmp_path}/state"
    assert state_base("", {"XDG_STATE_HOME": "/x"}) == "/x/sessionfs"
    assert state_base("", {"XDG_STATE_HOME": "relative"}) == f"{tmp_path}/.local/state/sessionfs"
    with pytest.raises(SettingsError, match="is no absolute path"):
        state_base("relative", {})
