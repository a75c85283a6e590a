"""One holder per state directory, a daemon or a Python door: a flock that says who holds it, as ``PID PHASE MOUNT_POINT``."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from typing import Literal

from sessionfs.model.clock import Clock
from sessionfs.model.errors import LocalDiskError, StateLockedError


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a state directory.

    Attributes:
        pid: The process.
        mount_point: Where it mounts, "" for a Python door, which has no mount.
        phase: ``running``, or ``ending`` once the mount is gone.
    """

    pid: int
    mount_point: str
    phase: str


class StateLock:
    """A held lock; ends with the process at the latest.

    Args:
        path: The lock file, made when missing.
        mount_point: Where this process mounts, "" for nowhere.
        clock: Measures the waiting.
        patience_seconds: How long to wait for a holder that is ending.

    Raises:
        StateLockedError: Another process holds it.
        LocalDiskError: The file cannot be opened.
    """

    def __init__(self, path: str, *, mount_point: str, clock: Clock, patience_seconds: float = 15.0) -> None:
        self._mount_point = mount_point
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise LocalDiskError(
                f"cannot open {path}: {problem.strerror}",
                errno_number=problem.errno or 0,
                remedy="set SESSIONFS_STATE_DIR to a directory you may write",
            ) from None
        deadline = clock.elapsed_seconds() + patience_seconds
        while not _try_lock(self._descriptor):
            holder = read_holder(path)
            if holder is not None and holder.phase == "ending" and clock.elapsed_seconds() < deadline:
                time.sleep(0.05)
                continue
            os.close(self._descriptor)
            raise _locked(os.path.dirname(path), holder)
        try:
            self._write("running")
        except OSError as problem:
            os.close(self._descriptor)
            raise LocalDiskError(
                f"cannot write {path}: {problem.strerror}", errno_number=problem.errno or 0
            ) from None

    def ending(self) -> None:
        """Say that the mount is gone and only the rest is brought away."""
        self._write("ending")

    def release(self) -> None:
        """Let the directory go."""
        os.ftruncate(self._descriptor, 0)
        # A process that was forked off meanwhile has the descriptor too.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def _write(self, phase: Literal["running", "ending"]) -> None:
        raw = b"%d %s %s\n" % (os.getpid(), phase.encode(), os.fsencode(self._mount_point))
        # Written over, then cut: a reader never finds it empty.
        os.pwrite(self._descriptor, raw, 0)
        os.ftruncate(self._descriptor, len(raw))


def read_holder(path: str) -> Holder | None:
    """Read who holds (or held) a lock file; None when it does not say."""
    try:
        with open(path, "rb") as file:
            pid, phase, mount_point = file.read().rstrip(b"\n").split(b" ", 2)
            return Holder(int(pid), os.fsdecode(mount_point), phase.decode())
    except (OSError, ValueError):
        return None


def wait_for_lock(path: str, *, seconds: float, clock: Clock) -> int:
    """Lock a file, waiting for a predecessor that is dying.

    Returns:
        The descriptor that holds the lock.

    Raises:
        StateLockedError: Somebody still holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = clock.elapsed_seconds() + seconds
    while not _try_lock(descriptor):
        if clock.elapsed_seconds() > deadline:
            os.close(descriptor)
            raise _locked(os.path.dirname(path), None)
        time.sleep(0.02)
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _locked(root: str, holder: Holder | None) -> StateLockedError:
    if holder is None:
        return StateLockedError(f"state directory {root} is in use by another process", pid=0)
    if not holder.mount_point:
        return StateLockedError(
            f"state directory {root} is in use by a Python door in process {holder.pid}",
            pid=holder.pid,
            remedy="close it there, or mount the store and open the doors through the mount",
        )
    return StateLockedError(
        f"state directory {root} is in use by process {holder.pid}, mounted on {holder.mount_point}",
        pid=holder.pid,
        remedy=f"use that mount, or end it: sessionfs umount {holder.mount_point}",
    )
