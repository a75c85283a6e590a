"""What is checked of a request before any place is asked."""

from __future__ import annotations

import os

from sessionfs.daemon.doors.file_states import is_temporary
from sessionfs.model.errors import InvalidRequestError
from sessionfs.sessions.port import checked_path


def own_path(path: str) -> str:
    """Check a path of a file; it is given back.

    Raises:
        InvalidRequestError: As `checked_path`; or it has a name that this place keeps for files that are being written.
    """
    if is_temporary(os.fsencode(checked_path(path))):
        raise InvalidRequestError(f"path {path!r} has a name that sessionfs keeps for itself")
    return path


def checked_range(path: str, start: int, end: int | None) -> tuple[int, int | None]:
    """Check a range of bytes; it is given back.

    Raises:
        InvalidRequestError: A negative position.
    """
    if start < 0 or (end is not None and end < 0):
        raise InvalidRequestError(f"range {start}..{end} of {path!r} is negative")
    return start, end
