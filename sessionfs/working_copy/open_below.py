"""Paths of the working copy, opened component by component: none is too long, no symlink is followed, and a mode keeps out only programs."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTABLE = stat.S_IRUSR | stat.S_IXUSR
_LISTING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def parent_directory(root: str, session: str, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Open the directory that holds the last component of a path.

    Args:
        root: The directory of the sessions.
        session: The session.
        path: Path inside it, empty for its root.

    Yields:
        A descriptor for ``dir_fd``, and the last component.

    Raises:
        OSError: A directory above is missing, or is none.
    """
    *above, name = [session.encode(), *(path.split(b"/") if path else [])]
    directory = os.open(root, _PATH)
    try:
        for component in above:
            with _readable(directory):
                below = os.open(component, _PATH, dir_fd=directory)
            os.close(directory)
            directory = below
        with _readable(directory):
            yield directory, name
    finally:
        os.close(directory)


@contextmanager
def short_path(root: str, session: str, path: bytes) -> Iterator[bytes]:
    """Give a path that the kernel takes whatever the length of the real one, while the block lasts.

    Args:
        root: The directory of the sessions.
        session: The session.
        path: Path inside it, empty for its root.

    Raises:
        OSError: As `parent_directory`.
    """
    with parent_directory(root, session, path) as (directory, name):
        yield b"/proc/self/fd/%d/%s" % (directory, name)


def describe(root: str, session: str, path: bytes) -> os.stat_result | None:
    """Describe a path, a symlink as itself; None when nothing can be seen there."""
    whole = os.path.join(os.fsencode(root), session.encode(), path) if path else os.path.join(root, session)
    try:
        return os.lstat(whole)
    except FileNotFoundError:
        return None
    except OSError:
        try:
            with parent_directory(root, session, path) as (directory, name):
                return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return None


def list_directory(root: str, session: str, path: bytes) -> list[tuple[bytes, os.stat_result]]:
    """Give the names in a directory with what they are.

    Raises:
        OSError: It is gone, or the disk cannot read it.
    """
    with parent_directory(root, session, path) as (above, name):
        handle = os.open(name, _PATH, dir_fd=above)
    try:
        with _readable(handle), _opened(handle) as descriptor:
            found: list[tuple[bytes, os.stat_result]] = []
            for entry in os.scandir(descriptor):
                inner = os.fsencode(entry.name)
                found.append((inner, os.stat(inner, dir_fd=descriptor, follow_symlinks=False)))
            return found
    finally:
        os.close(handle)


@contextmanager
def _opened(handle: int) -> Iterator[int]:
    descriptor = os.open(f"/proc/self/fd/{handle}", _LISTING & ~os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _readable(handle: int) -> Iterator[None]:
    """Let a directory of ours whose mode forbids reading be read: without root the mode must give way for a moment."""
    user = os.geteuid()
    status = os.fstat(handle) if user else None
    if status is None or status.st_uid != user or status.st_mode & _LISTABLE == _LISTABLE:
        yield
        return
    mode = stat.S_IMODE(status.st_mode)
    through = f"/proc/self/fd/{handle}"
    os.chmod(through, mode | _LISTABLE)
    try:
        yield
    finally:
        os.chmod(through, mode)
