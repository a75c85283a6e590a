"""The one error tree of sessionfs.

Branches say what a caller must do, not where the error came from::

    SessionFSError
    ├── InvalidRequestError        correct the request: it can never succeed as it is
    │   ├── InvalidKeyError
    │   ├── InvalidSessionIdError
    │   ├── SettingsError
    │   ├── StoreUrlError
    │   ├── TooLargeError
    │   ├── HandleClosedError
    │   └── ReadOnlyHandleError
    ├── NotFoundError              the thing does not exist, and that is certain
    │   ├── ObjectNotFoundError
    │   └── BucketNotFoundError
    ├── ConflictError              somebody else changed or holds it: read again, then decide
    │   ├── AlreadyExistsError
    │   ├── PreconditionFailedError
    │   ├── ConcurrentRequestError
    │   ├── StateLockedError
    │   ├── SessionAlreadyOwnedError
    │   └── OwnershipLostError
    ├── UnavailableError           try again later; nothing is known to have changed
    │   └── ThrottledError
    ├── AccessError                credentials, permissions, region: a person must act
    │   └── ForbiddenError
    ├── OutcomeUnknownError        the request may have been applied: look before repeating
    ├── StoreRefusedError          the store cannot keep our promises
    ├── CorruptDataError           bytes that do not verify
    ├── UnsupportedFormatError     written by a newer version: nothing is changed
    ├── LocalDiskError             this host's disk: full, read-only, failing
    ├── MountError                 the mount cannot be made or removed
    ├── LeftBehindError            bytes that did not reach the bucket in the time given
    └── InternalError              a fault of ours

Two tables give them numbers: ``filesystem/errno_map.py`` and ``cli/exit_codes.py``; a test walks this tree and
requires a row in both.
"""

from __future__ import annotations


class SessionFSError(Exception):
    """Root of every error that sessionfs raises on purpose.

    Args:
        message: One line that names the thing.
        remedy: What a person can do about it, or "" when the message says it all.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class InvalidRequestError(SessionFSError):
    """The request can never succeed as it is."""


class InvalidKeyError(InvalidRequestError):
    """A key or prefix that breaks the key rules of ``model/keys.py``."""


class InvalidSessionIdError(InvalidRequestError):
    """A session id that breaks the rules of ``model/names.py``."""


class SettingsError(InvalidRequestError):
    """An unknown setting, or one whose value is out of range."""


class StoreUrlError(InvalidRequestError):
    """A store URL that names no store."""


class TooLargeError(InvalidRequestError):
    """Something is longer, or there are more of it, than may be."""


class HandleClosedError(InvalidRequestError):
    """A handle was used after it was closed."""


class ReadOnlyHandleError(InvalidRequestError):
    """A handle that was opened for reading was asked to write."""


class NotFoundError(SessionFSError):
    """The thing does not exist, and the answer is certain."""


class ObjectNotFoundError(NotFoundError):
    """No object under this key (at this token)."""


class BucketNotFoundError(NotFoundError):
    """The bucket itself does not exist."""


class ConflictError(SessionFSError):
    """Somebody else changed or holds the thing."""


class AlreadyExistsError(ConflictError):
    """There is one of this name already; it was left as it is."""


class PreconditionFailedError(ConflictError):
    """The condition of a conditional request did not hold; nothing was changed by this request."""


class ConcurrentRequestError(ConflictError):
    """The store saw another request on the same key at the same time (409): read, then retry."""


class StateLockedError(ConflictError):
    """Another daemon uses this state directory.

    Args:
        message: One line that names the directory.
        pid: The process that holds it, 0 when unknown.
        remedy: What a person can do.
    """

    def __init__(self, message: str, *, pid: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.pid = pid


class SessionAlreadyOwnedError(ConflictError):
    """Another host may write this session; this one may not.

    Args:
        message: One line that names the session.
        holder: Who owns it.
        remedy: What a person can do.
        remaining_seconds: How long the holder must still give no sign of life before it may be taken over; 0 when unknown.
    """

    def __init__(
        self, message: str, *, holder: str, remedy: str = "", remaining_seconds: float = 0.0
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.holder = holder
        self.remaining_seconds = remaining_seconds


class OwnershipLostError(ConflictError):
    """This host owned the session and no longer does; nothing was written.

    Args:
        message: One line that names the session.
        holder: Who owns it now, "" when unknown.
        remedy: What a person can do.
        object_epoch: The later epoch of an object, when that alone is the proof; else 0.
    """

    def __init__(self, message: str, *, holder: str = "", remedy: str = "", object_epoch: int = 0) -> None:
        super().__init__(message, remedy=remedy)
        self.holder = holder
        self.object_epoch = object_epoch


class UnavailableError(SessionFSError):
    """The store did not answer, or answered that it cannot now."""


class ThrottledError(UnavailableError):
    """The store asked us to slow down (429, 503 SlowDown)."""


class AccessError(SessionFSError):
    """Credentials, permissions, region or clock skew: retrying alone will not help."""


class ForbiddenError(AccessError):
    """The thing is another tenant's; whether it exists is not said."""


class OutcomeUnknownError(SessionFSError):
    """The request may or may not have been applied."""


class StoreRefusedError(SessionFSError):
    """The store lacks something that a promise needs."""


class CorruptDataError(SessionFSError):
    """Bytes that do not match their checksum, or a record that cannot be read."""


class UnsupportedFormatError(SessionFSError):
    """A record of a newer format.

    Args:
        name: The key or file.
        found: The version in it.
        supported: The newest version this program reads.
    """

    def __init__(self, name: str, *, found: int, supported: int) -> None:
        super().__init__(
            f"{name} has format {found}, this version reads up to {supported}",
            remedy="use a newer sessionfs",
        )
        self.name = name
        self.found = found
        self.supported = supported


class LocalDiskError(SessionFSError):
    """The local disk refused.

    Args:
        message: One line that names the path.
        errno_number: The operating system's number.
        remedy: What a person can do.
    """

    def __init__(self, message: str, *, errno_number: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.errno_number = errno_number


class MountError(SessionFSError):
    """A mount that cannot be made, reached or removed."""


class LeftBehindError(SessionFSError):
    """Bytes that did not reach the bucket in the time given.

    Args:
        message: One line with the count.
        paths: The paths that are still owed, as shown to a person.
        remedy: What a person can do.
    """

    def __init__(self, message: str, *, paths: tuple[str, ...], remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.paths = paths


class InternalError(SessionFSError):
    """A fault of ours: an invariant that does not hold."""
