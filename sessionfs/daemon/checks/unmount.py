"""How a mount is taken away, and who is in the way."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess

from sessionfs.daemon.checks.mount_points import FILESYSTEM_TYPE, is_stale, mounted_at
from sessionfs.model.errors import MountError

_DETACH = 2


def clear_stale(mount_point: str) -> bool:
    """Take away a sessionfs mount whose daemon is gone; say whether there was one.

    Raises:
        MountError: It cannot be taken away.
    """
    entry = mounted_at(mount_point)
    if entry is None or entry.filesystem != FILESYSTEM_TYPE or not is_stale(mount_point):
        return False
    return unmount(mount_point, lazily=True)


def unmount(mount_point: str, *, lazily: bool) -> bool:
    """Take the newest mount there away, as root by the system call, else by ``fusermount3``.

    Blocks while the kernel looks at the mount: never call it in the thread that answers the kernel.

    Args:
        mount_point: Absolute path.
        lazily: Also while something uses it: it leaves the tree now, and ends with its last user.

    Returns:
        False when something uses it and it is still there.

    Raises:
        MountError: It may not be taken away.
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(mount_point), _DETACH if lazily else 0) == 0:
            return True
        problem = ctypes.get_errno()
        if problem == errno.EBUSY:
            return False
        if problem == errno.EINVAL and mounted_at(mount_point) is None:
            return True
        raise MountError(f"cannot unmount {mount_point}: {os.strerror(problem)}")
    command = ["fusermount3", "-u", *(["-z"] if lazily else []), "--", mount_point]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError:
        raise MountError("fusermount3 is missing", remedy="install the package fuse3") from None
    if done.returncode == 0 or mounted_at(mount_point) is None:
        return True
    if "busy" in done.stderr.lower():
        return False
    raise MountError(f"cannot unmount {mount_point}: {done.stderr.strip() or done.returncode}")


def users_of(mount_point: str, *, limit: int = 3) -> list[str]:
    """Name processes with something of the mount open, as ``bash (1234)``: those this user may look at."""
    found: list[str] = []
    prefix = mount_point.rstrip("/") + "/"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        if any(target == mount_point or target.startswith(prefix) for target in _open_paths(pid)):
            found.append(f"{_command_of(pid)} ({pid})")
            if len(found) == limit:
                break
    return found


def busy_error(mount_point: str) -> MountError:
    """Give the error of a mount that something uses; names a few of the users."""
    users = users_of(mount_point)
    by = f" by {', '.join(users)}" if users else ""
    return MountError(
        f"{mount_point} is in use{by}", remedy="end what uses it, or --force to detach it anyway"
    )


def _open_paths(pid: str) -> list[str]:
    paths = []
    links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root"]
    try:
        links += [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []
    for link in links:
        try:
            paths.append(os.readlink(link))
        except OSError:
            continue
    return paths


def _command_of(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"
