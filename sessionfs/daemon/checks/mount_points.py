"""What is at a mount point now.

A path of a mount whose daemon is gone or stuck is touched only from a thread that may be left behind.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from dataclasses import dataclass

from sessionfs.model.errors import MountError

FILESYSTEM_TYPE = "fuse.sessionfs"
CONTROL_ATTRIBUTE = "user.sessionfs.control"
"""Extended attribute of the mount's root: the path of the control socket."""

_OCTAL = re.compile(r"\\([0-7]{3})")
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of the kernel's mount table.

    Attributes:
        mount_point: Absolute path.
        filesystem: As ``fuse.sessionfs``.
        source: For ours, the store's URL.
        device: Its number, which no other mount of the moment has, as ``0:53``.
    """

    mount_point: str
    filesystem: str
    source: str
    device: str = ""


def mount_table(path: str = "/proc/self/mountinfo") -> list[MountEntry]:
    """Read the kernel's mount table, in mounting order."""
    entries = []
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            device, place = left.split(" ")[2], left.split(" ")[4]
            kind, source = right.split(" ")[:2]
            entries.append(MountEntry(_unescape(place), kind, _unescape(source), device))
    return entries


def mount_source(store_url: str) -> str:
    """Give a store's URL as the mount table shows it: libfuse cuts its options at commas."""
    return store_url.replace("\\", "%5C").replace(",", "%2C")


def our_mounts() -> list[MountEntry]:
    """Give the sessionfs mounts that this process can see."""
    return [entry for entry in mount_table() if entry.filesystem == FILESYSTEM_TYPE]


def mounted_at(mount_point: str) -> MountEntry | None:
    """Give what is mounted exactly there, the newest when there are several."""
    found = [entry for entry in mount_table() if entry.mount_point == mount_point]
    return found[-1] if found else None


def current_mount_point(mount_point: str, device: str) -> str:
    """Give where a mount is now: a directory above it may have been renamed. Unchanged when it is nowhere.

    Args:
        mount_point: Where it was made.
        device: Its number.
    """
    places = [entry.mount_point for entry in mount_table() if entry.device == device]
    return mount_point if mount_point in places or not places else places[-1]


def mount_of(path: str) -> MountEntry | None:
    """Give the sessionfs mount that a path is in, without touching the path.

    Args:
        path: Absolute, symlinks outside the mount resolved.
    """
    best: MountEntry | None = None
    for entry in mount_table():
        inside = path == entry.mount_point or path.startswith(entry.mount_point.rstrip("/") + "/")
        if inside and (best is None or len(entry.mount_point) >= len(best.mount_point)):
            best = entry
    return best if best is not None and best.filesystem == FILESYSTEM_TYPE else None


def control_socket_of(mount_point: str) -> str:
    """Ask a mount for its control socket.

    Raises:
        MountError: It is no live sessionfs mount: its daemon is gone, or does not answer.
    """
    result: list[str | OSError] = []

    def ask() -> None:
        try:
            result.append(os.fsdecode(os.getxattr(mount_point, CONTROL_ATTRIBUTE)))
        except OSError as problem:
            result.append(problem)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if not result:
        raise MountError(
            f"the mount on {mount_point} does not answer",
            remedy=f"see its daemon.log; to give it up: fusermount3 -u -z {mount_point}",
        )
    answer = result[0]
    if isinstance(answer, str):
        return answer
    if answer.errno in {errno.ENOTCONN, errno.ECONNABORTED}:
        raise MountError(
            f"the daemon of the mount on {mount_point} is gone; what was written is kept on this disk",
            remedy=f"'sessionfs mount' again, or fusermount3 -u {mount_point}",
        )
    raise MountError(f"{mount_point} is no sessionfs mount", remedy="sessionfs mount [STORE] DIR makes one")


def is_stale(mount_point: str) -> bool:
    """Say whether a mount's daemon is gone. One that is only slow is not."""
    result: list[bool] = []

    def ask() -> None:
        try:
            os.statvfs(mount_point)  # never answered from a cache, as stat would be
        except OSError as problem:
            result.append(problem.errno in {errno.ENOTCONN, errno.ECONNABORTED})
        else:
            result.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return bool(result and result[0])


def check_free(mount_point: str, store_url: str) -> None:
    """Require an empty directory without a mount; a stale sessionfs mount there is accepted.

    Args:
        mount_point: Absolute path.
        store_url: The store to be mounted, for the message.

    Raises:
        MountError: Anything else is there.
    """
    entry = mounted_at(mount_point)
    if entry is not None and is_stale(mount_point):
        if entry.filesystem != FILESYSTEM_TYPE:
            raise MountError(
                f"{mount_point} is a dead mount of another filesystem ({entry.filesystem})",
                remedy=f"take it away: fusermount3 -u {mount_point}",
            )
        return
    if entry is not None and entry.filesystem == FILESYSTEM_TYPE:
        control_socket_of(mount_point)
        already = (
            "already mounted here"
            if entry.source == mount_source(store_url)
            else f"a mount of {entry.source}"
        )
        raise MountError(
            f"{mount_point} is {already}",
            remedy=f"look: sessionfs status {mount_point}; end it: sessionfs umount {mount_point}",
        )
    try:
        names = os.listdir(mount_point)
    except FileNotFoundError:
        raise MountError(
            f"mount point {mount_point} does not exist", remedy=f"make it: mkdir -p {mount_point}"
        ) from None
    except NotADirectoryError:
        raise MountError(
            f"mount point {mount_point} is no directory", remedy="name an empty directory"
        ) from None
    except OSError as problem:
        raise MountError(f"mount point {mount_point}: {problem.strerror}") from None
    if names:
        raise MountError(
            f"mount point {mount_point} is not empty ({len(names)} names)", remedy="name an empty directory"
        )


def check_apart(mount_point: str, *, named: str, directory: str) -> None:
    """Refuse a mount that would hide what it lives on, or show itself.

    Args:
        mount_point: Absolute path.
        named: What the other directory is.
        directory: Absolute path of the store's or the state's directory.

    Raises:
        MountError: One is inside the other.
    """
    common = os.path.commonpath((mount_point, directory))
    if common in {mount_point, directory}:
        raise MountError(
            f"mount point {mount_point} and {named} {directory} are inside one another",
            remedy="name another mount point",
        )


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)
