"""Bringing the working copy to the disk, where a call on one file is not enough."""

from __future__ import annotations

import ctypes
import os

from sessionfs.model.names import SessionId
from sessionfs.working_copy.open_below import parent_directory

_libc = ctypes.CDLL(None, use_errno=True)


def sync_disk(directory: str) -> None:
    """Return when everything on the disk of a directory would survive a power cut. Source: syncfs(2).

    Raises:
        OSError: The disk refused.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)


def sync_name(sessions: str, session: SessionId, path: bytes) -> None:
    """Return when the name of a file would survive a power cut; its bytes are another call's.

    Args:
        sessions: The directory of the working copy.
        session: The session.
        path: The file.

    Raises:
        OSError: The disk refused; ENOENT when the directory is gone.
    """
    with parent_directory(sessions, session, path) as (above, _):
        descriptor = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
