"""The errno of every error of ours: the only table of its kind. A test walks the error tree and requires a row for each class."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from sessionfs.model import errors
from sessionfs.model.errors import LocalDiskError, SessionFSError

ERRNO_BY_ERROR: Mapping[type[SessionFSError], int] = {
    errors.SessionFSError: errno.EIO,
    errors.InvalidRequestError: errno.EINVAL,
    errors.InvalidKeyError: errno.EINVAL,
    errors.InvalidSessionIdError: errno.EINVAL,
    errors.SettingsError: errno.EINVAL,
    errors.StoreUrlError: errno.EINVAL,
    errors.TooLargeError: errno.EFBIG,
    errors.HandleClosedError: errno.EBADF,
    errors.ReadOnlyHandleError: errno.EBADF,
    errors.NotFoundError: errno.ENOENT,
    errors.ObjectNotFoundError: errno.EIO,  # the tree names it: its bytes are lost, not its name
    errors.BucketNotFoundError: errno.EIO,  # as above: says nothing about the name
    errors.ConflictError: errno.EAGAIN,
    errors.AlreadyExistsError: errno.EEXIST,
    errors.PreconditionFailedError: errno.EIO,
    errors.ConcurrentRequestError: errno.EIO,
    errors.StateLockedError: errno.EBUSY,
    errors.SessionAlreadyOwnedError: errno.EROFS,
    errors.OwnershipLostError: errno.EROFS,
    errors.UnavailableError: errno.EIO,
    errors.ThrottledError: errno.EIO,
    errors.AccessError: errno.EIO,
    errors.ForbiddenError: errno.EACCES,
    errors.OutcomeUnknownError: errno.EIO,
    errors.StoreRefusedError: errno.EIO,
    errors.CorruptDataError: errno.EIO,
    errors.UnsupportedFormatError: errno.EIO,
    errors.LocalDiskError: errno.EIO,
    errors.MountError: errno.EIO,
    errors.LeftBehindError: errno.EIO,
    errors.InternalError: errno.EIO,
}
"""What a program sees; the reason is in the log and in ``user.sessionfs.reason``."""


def errno_of(error: BaseException) -> int:
    """Give the errno a program gets for an exception.

    Args:
        error: Anything a handler raised.

    Returns:
        The operating system's own number for an `OSError` and for a `LocalDiskError` that carries one, the table's for our errors,
        EIO for everything else.
    """
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    if isinstance(error, LocalDiskError) and error.errno_number > 0:
        return error.errno_number
    for kind in type(error).__mro__:
        number = ERRNO_BY_ERROR.get(kind)
        if number is not None:
            return number
    return errno.EIO
