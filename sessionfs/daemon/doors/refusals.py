"""From the operating system's errors to ours, as a door raises them: which file of which session, and what to do."""

from __future__ import annotations

import errno

from sessionfs.model import roots
from sessionfs.model.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    InvalidRequestError,
    LocalDiskError,
    NotFoundError,
    OwnershipLostError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId

GONE = frozenset({errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.ESHUTDOWN})
"""What the kernel says of a mount whose daemon has ended."""

_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EXDEV, errno.EPERM})
_KINDS: dict[int, tuple[type[SessionFSError], str, str]] = {
    errno.ENOENT: (NotFoundError, "is not there", ""),
    errno.ESTALE: (NotFoundError, "is not there", ""),
    errno.EEXIST: (AlreadyExistsError, "is there already", ""),
    errno.EROFS: (
        OwnershipLostError, "may not be changed here now", "claim the session again, and look at what is there",
    ),
    errno.EIO: (UnavailableError, "cannot be had now: the store did not answer in time", "see: sessionfs status"),
    errno.EACCES: (AccessError, "may not be used by this user", ""),
    errno.ENAMETOOLONG: (InvalidRequestError, "has too long a name", ""),
    errno.EINVAL: (InvalidRequestError, "can have no such name", ""),
}  # fmt: skip
"""Class, what is said, and the remedy."""


def shown(session: SessionId, path: str = "") -> str:
    """Name a file of a session, or a session, for people."""
    whole = f"session {roots.shown_id(session)}"
    return f"{path!r} of {whole}" if path else whole


def refusal(problem: OSError, session: SessionId, path: str = "") -> SessionFSError:
    """Give our error for the operating system's.

    Args:
        problem: What a call raised.
        session: The session that it was about.
        path: The file, "" for the session itself.
    """
    number, what = problem.errno or errno.EIO, shown(session, path)
    if number in GONE:
        return mount_gone()
    if number in _KINDS:
        kind, said, remedy = _KINDS[number]
        return kind(f"{what} {said}", remedy=remedy)
    if number in _IN_THE_WAY:
        return ConflictError(f"{what}: something is in the way ({problem.strerror})")
    return LocalDiskError(f"{what}: {problem.strerror}", errno_number=number)


def mount_gone(mount_point: str = "") -> UnavailableError:
    """Give the error of a door whose mount is no more."""
    where = f" on {mount_point}" if mount_point else ""
    return UnavailableError(
        f"the mount{where} that this door went through is gone", remedy="open the door again"
    )
