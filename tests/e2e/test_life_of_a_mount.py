"""How a mount begins and ends, whoever ends it: by command, by signal, from outside, in the foreground, from fstab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from .rig import Host, alive, wait_until

pytestmark = pytest.mark.fuse


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with a store in a directory, nothing mounted."""
    made = Host(f"file://{tmp_path}/store", tmp_path / "host")
    yield made
    made.clean_up()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Where the store has the file that `work` writes."""
    return tmp_path / "store/sessions/s/file"


def work(host: Host, text: str = "kept") -> None:
    session = host.directory / "s"
    session.mkdir(exist_ok=True)
    (session / "file").write_text(text)


def restarted(host: Host, before: int) -> bool:
    return host.status()["replication_pid"] not in {None, before}


def gone(host: Host, *pids: int) -> None:
    wait_until(lambda: not any(alive(pid) for pid in pids), 20)
    assert not os.path.ismount(host.mount_point)


def test_umount_returns_when_everything_is_stored_and_the_processes_are_gone(
    host: Host, stored: Path
) -> None:
    host.mount()
    pids = host.remember_pids()
    work(host)
    host.umount()
    assert stored.read_text() == "kept"
    gone(host, *pids)


def test_sigterm_brings_everything_away_and_unmounts(host: Host, stored: Path) -> None:
    host.mount()
    pids = host.remember_pids()
    work(host)
    os.kill(pids[0], signal.SIGTERM)
    gone(host, *pids)
    assert stored.read_text() == "kept"


def test_sigterm_of_every_process_at_once_loses_nothing(host: Host, stored: Path) -> None:
    # As a service's end does it: to all processes of the group.
    host.mount()
    pids = host.remember_pids()
    work(host)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    gone(host, *pids)
    assert stored.read_text() == "kept"


def test_a_mount_taken_away_from_outside_is_stored_and_can_be_mounted_again_at_once(
    host: Host, stored: Path
) -> None:
    host.mount()
    pids = host.remember_pids()
    work(host)
    command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    subprocess.run([*command, str(host.mount_point)], check=True)
    host.mount()
    assert stored.read_text() == "kept"
    assert not alive(pids[0])
    assert (host.directory / "s/file").read_text() == "kept"
    host.umount()


def test_in_the_foreground_ctrl_c_unmounts(host: Host, stored: Path) -> None:
    command = [sys.executable, "-m", "sessionfs", "mount", "--foreground", host.store, str(host.mount_point)]
    with subprocess.Popen(command, env=host.full_environment(), cwd="/", stderr=subprocess.PIPE) as process:
        wait_until(lambda: os.path.ismount(host.mount_point), 20)
        work(host)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert stored.read_text() == "kept"
    assert not os.path.ismount(host.mount_point)


def test_the_death_of_the_replication_process_is_not_noticed_by_programs(host: Host, stored: Path) -> None:
    host.mount()
    work(host)
    for text in ("one", "two"):
        before = host.remember_pids()[1]
        os.kill(before, signal.SIGKILL)
        work(host, text)
        wait_until(partial(restarted, host, before), 20)
    host.umount()
    assert stored.read_text() == "two"


def test_force_detaches_a_mount_in_use(host: Host, stored: Path) -> None:
    host.mount()
    pids = host.remember_pids()
    work(host)
    with subprocess.Popen(["sleep", "100"], cwd=host.directory / "s") as user:
        try:
            host.umount("--force")
            gone(host, *pids)
        finally:
            user.kill()
    assert stored.read_text() == "kept"


def test_a_mount_whose_directory_was_moved_is_still_unmounted(
    host: Host, tmp_path: Path, stored: Path
) -> None:
    host.mount_point = tmp_path / "place/mount"
    host.mount_point.mkdir(parents=True)
    host.mount()
    pids = host.remember_pids()
    work(host)
    (tmp_path / "place").rename(tmp_path / "moved")
    host.mount_point = tmp_path / "moved/mount"
    host.umount()
    gone(host, *pids)
    assert stored.read_text() == "kept"


def test_a_line_of_fstab_mounts(host: Host) -> None:
    command = [sys.executable, "-m", "sessionfs.cli.fstab_mount", host.store, str(host.mount_point)]
    options = [
        "-o",
        "rw,noatime,_netdev,nofail,user,x-systemd.automount,upload_delay_seconds=0.5,suid",
    ]
    for flags in (["-sf"], ["-v"]):
        subprocess.run([*command, *flags, *options], env=host.full_environment(), cwd="/", check=True)
        assert os.path.ismount(host.mount_point) is ("-v" in flags)
    host.remember_pids()
    work(host)
    host.umount()


def test_an_eager_mount_has_the_whole_session_once_it_is_shown(host: Host, tmp_path: Path) -> None:
    host.mount()
    work(host, "first")
    host.umount()
    other = Host(host.store, tmp_path / "other")
    try:
        other.mount("--eager")
        os.listdir(other.directory / "s")
        (tmp_path / "store").rename(tmp_path / "away")
        assert (other.directory / "s/file").read_text() == "first"
        (tmp_path / "away").rename(tmp_path / "store")
        other.umount()
    finally:
        other.clean_up()


def test_a_socket_path_too_long_for_the_kernel_is_made_short(host: Host, tmp_path: Path) -> None:
    host.state = tmp_path / ("long" * 30)
    host.mount()
    work(host)
    host.umount()


def test_options_that_the_kernel_refuses_are_one_line_and_keep_the_log(host: Host) -> None:
    done = host.finished("mount", "-o", "max_read=131072", host.store, str(host.mount_point))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "see " in done.stderr
    assert "daemon.log" in done.stderr
    assert not os.path.ismount(host.mount_point)
    assert host.log_tail()
