"""One daemon per state directory."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from sessionfs.daemon.state_lock import StateLock, read_holder, wait_for_lock
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import LocalDiskError, StateLockedError

CLOCK = SystemClock()


def test_a_second_daemon_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = StateLock(path, mount_point="/mnt/one two", clock=CLOCK)
    with pytest.raises(StateLockedError) as refused:
        StateLock(path, mount_point="/mnt/other", clock=CLOCK)
    assert refused.value.pid == os.getpid()
    assert "/mnt/one two" in refused.value.message
    assert "sessionfs umount /mnt/one two" in refused.value.remedy
    first.release()
    StateLock(path, mount_point="/mnt/other", clock=CLOCK).release()


def test_the_first_word_of_the_lock_file_is_the_pid(tmp_path: Path) -> None:
    lock = StateLock(str(tmp_path / "lock"), mount_point="/mnt", clock=CLOCK)
    assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())
    lock.release()
    assert read_holder(str(tmp_path / "lock")) is None


def test_a_holder_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = StateLock(path, mount_point="/mnt", clock=CLOCK)
    first.ending()
    timer = threading.Timer(0.2, first.release)
    timer.start()
    started = time.monotonic()
    StateLock(path, mount_point="/mnt", clock=CLOCK, patience_seconds=10).release()
    assert 0.1 < time.monotonic() - started < 5
    timer.join()


def test_a_holder_that_never_ends_is_an_error_in_the_end(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = StateLock(path, mount_point="/mnt", clock=CLOCK)
    first.ending()
    with pytest.raises(StateLockedError):
        StateLock(path, mount_point="/mnt", clock=CLOCK, patience_seconds=0.1)
    first.release()


def test_a_lock_of_a_process_that_died_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    child = os.fork()
    if child == 0:
        StateLock(path, mount_point="/mnt", clock=CLOCK)
        os._exit(0)
    os.waitpid(child, 0)
    assert read_holder(path) is not None
    StateLock(path, mount_point="/mnt", clock=CLOCK).release()


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalDiskError, match="missing/lock"):
        StateLock(str(tmp_path / "missing" / "lock"), mount_point="/mnt", clock=CLOCK)


def test_a_successor_waits_for_a_dying_predecessor(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = wait_for_lock(path, seconds=1, clock=CLOCK)
    with pytest.raises(StateLockedError):
        wait_for_lock(path, seconds=0.05, clock=CLOCK)
    timer = threading.Timer(0.1, os.close, (first,))
    timer.start()
    os.close(wait_for_lock(path, seconds=5, clock=CLOCK))
    timer.join()


def test_a_lock_that_cannot_be_noted_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(LocalDiskError, match="No space left"):
            StateLock(str(tmp_path / "lock"), mount_point="", clock=SystemClock())
    lock = StateLock(str(tmp_path / "lock"), mount_point="", clock=SystemClock())
    # As a process that was forked off has it.
    forked = os.dup(lock._descriptor)
    lock.release()
    StateLock(str(tmp_path / "lock"), mount_point="", clock=SystemClock()).release()
    os.close(forked)
