"""The exit code of every error; documented in docs/CONFIGURATION.md."""

from __future__ import annotations

from collections.abc import Mapping

from sessionfs.model import errors
from sessionfs.model.errors import SessionFSError

DONE = 0
FAILED = 1
USAGE = 2
STORE = 3
LEFT_BEHIND = 4
OWNED_ELSEWHERE = 5
CORRUPT = 6
UNSUPPORTED_FORMAT = 7
INTERRUPTED = 130

MEANINGS: Mapping[int, str] = {
    DONE: "done",
    FAILED: "failed",
    USAGE: "usage: an unknown command, option, setting or store URL",
    STORE: "the store refused or could not be reached",
    LEFT_BEHIND: "bytes stayed behind on this host; the next mount uploads them",
    OWNED_ELSEWHERE: "another host owns the session",
    CORRUPT: "bytes that do not verify",
    UNSUPPORTED_FORMAT: "written by a newer version",
    INTERRUPTED: "interrupted from the keyboard",
}

EXIT_CODE_BY_ERROR: Mapping[type[SessionFSError], int] = {
    errors.SessionFSError: FAILED,
    errors.InvalidRequestError: USAGE,
    errors.InvalidKeyError: USAGE,
    errors.InvalidSessionIdError: USAGE,
    errors.SettingsError: USAGE,
    errors.StoreUrlError: USAGE,
    errors.TooLargeError: FAILED,
    errors.HandleClosedError: FAILED,
    errors.ReadOnlyHandleError: FAILED,
    errors.NotFoundError: FAILED,
    errors.ObjectNotFoundError: FAILED,
    errors.BucketNotFoundError: STORE,
    errors.ConflictError: FAILED,
    errors.AlreadyExistsError: FAILED,
    errors.PreconditionFailedError: FAILED,
    errors.ConcurrentRequestError: FAILED,
    errors.StateLockedError: FAILED,
    errors.SessionAlreadyOwnedError: OWNED_ELSEWHERE,
    errors.OwnershipLostError: OWNED_ELSEWHERE,
    errors.UnavailableError: STORE,
    errors.ThrottledError: STORE,
    errors.AccessError: STORE,
    errors.ForbiddenError: FAILED,
    errors.OutcomeUnknownError: STORE,
    errors.StoreRefusedError: STORE,
    errors.CorruptDataError: CORRUPT,
    errors.UnsupportedFormatError: UNSUPPORTED_FORMAT,
    errors.LocalDiskError: FAILED,
    errors.MountError: FAILED,
    errors.LeftBehindError: LEFT_BEHIND,
    errors.InternalError: FAILED,
}


def exit_code_of(error: SessionFSError) -> int:
    """Give the exit code of an error: its own row, or its nearest ancestor's."""
    for kind in type(error).__mro__:
        if kind in EXIT_CODE_BY_ERROR:
            return EXIT_CODE_BY_ERROR[kind]
    return FAILED
