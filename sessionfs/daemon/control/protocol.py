"""One JSON object per line. Version 1.

A request: ``{"id": 1, "op": "drain", ...}`` with the operation's arguments beside. Its answer: any number of
``{"id": 1, "progress": {...}}`` or ``{"id": 1, "event": {...}}``, then one ``{"id": 1, "result": {...}}`` or
``{"id": 1, "error": {"kind", "message", "remedy"}}``. The first reply on a connection carries ``"protocol": 1`` and
``"version"``. Unknown operations get the error kind ``InvalidRequestError``; unknown arguments are ignored.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile

import msgspec

from sessionfs.model import errors
from sessionfs.model.errors import (
    InternalError,
    LocalDiskError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
    SessionFSError,
)

PROTOCOL_VERSION = 1
MAX_LINE_BYTES = 4 << 20

_SUN_PATH_BYTES = 107
"""Longest path of a Unix socket. Source: unix(7), sun_path."""


class Request(msgspec.Struct, frozen=True):
    """A request of any operation; arguments an operation does not have are ignored.

    Attributes:
        op: status, drain, shutdown, retry, conflicts, resolve, events, snapshot, claim or release.
        id: Repeated in every reply.
        timeout: Seconds a drain or shutdown may take; None for as long as it needs.
        abandon: Leave what is owed behind.
        force: Detach the mount although something uses it; claim a session whose holder may still live.
        after: Events after this number.
        limit: At most so many events.
        follow: Go on with events as they happen.
        session: The session of a snapshot, claim or release.
        trigger: Why a snapshot is made, for people; "" for a command.
        key: Where the bytes of a conflict are.
        take: ``theirs`` or ``ours``: how a conflict ends.
    """

    op: str
    id: int = 0
    timeout: float | None = None
    abandon: bool = False
    force: bool = False
    after: int = 0
    limit: int = 1000
    follow: bool = False
    session: str = ""
    trigger: str = ""
    key: str = ""
    take: str = ""


class ErrorBody(msgspec.Struct, frozen=True):
    """An error in a reply.

    Attributes:
        kind: Name of the error's class.
        message: One line.
        remedy: What to do, or "".
        holder: Of an error about ownership.
    """

    kind: str
    message: str
    remedy: str = ""
    holder: str = ""


NOTHING = msgspec.Raw()
"""The absent body; compared by identity."""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of an answer; exactly one of the four bodies is set.

    Attributes:
        id: Of the request.
        protocol: In the first reply of a connection.
        version: Of the program, in the first reply of a connection.
        progress: Something has moved.
        event: One event.
        result: The end of the answer.
        error: The end of the answer.
    """

    id: int
    protocol: int = 0
    version: str = ""
    progress: msgspec.Raw = NOTHING
    event: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    error: ErrorBody | None = None


class Progress(msgspec.Struct, frozen=True):
    """How a drain stands.

    Attributes:
        owed_files: Still to be uploaded.
        owed_bytes: Still to be uploaded.
        degraded: Why nothing moves, "" when it does.
    """

    owed_files: int
    owed_bytes: int
    degraded: str = ""


class DrainResult(msgspec.Struct, frozen=True):
    """How a drain or a shutdown ended.

    Attributes:
        owed_files: Left behind.
        owed_bytes: Left behind.
        left: The first 25 paths left behind.
        degraded: Why, "" when the store answers.
    """

    owed_files: int
    owed_bytes: int
    left: list[str]
    degraded: str = ""


def usable_socket_path(path: str) -> str:
    """Give a path short enough for a Unix socket: the wanted one, or one in a private short directory.

    Args:
        path: The wanted path.

    Raises:
        LocalDiskError: The short directory belongs to somebody else.
    """
    if len(os.fsencode(path)) <= _SUN_PATH_BYTES:
        return path
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not base or len(os.fsencode(base)) > _SUN_PATH_BYTES - 50:
        base = tempfile.gettempdir() if len(tempfile.gettempdir()) < _SUN_PATH_BYTES - 50 else "/tmp"  # noqa: S108 - made private below
    directory = os.path.join(base, f"sessionfs-{os.geteuid()}")
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError as problem:
        raise LocalDiskError(
            f"cannot make {directory}: {problem.strerror}", errno_number=problem.errno or 0
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise LocalDiskError(
            f"{directory} is not private to this user",
            errno_number=0,
            remedy="remove it, or use a shorter state directory",
        )
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(directory, f"{digest}.sock")


def revived_error(kind: str, message: str, remedy: str, holder: str = "") -> SessionFSError:
    """Give the error that another process described, of its own class; of its further fields only the holder is sent."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, SessionAlreadyOwnedError | OwnershipLostError):
        return found(message, holder=holder, remedy=remedy)
    if not (isinstance(found, type) and issubclass(found, SessionFSError)):
        found = InternalError
    error = found.__new__(found, message)
    SessionFSError.__init__(error, message, remedy=remedy)
    return error
