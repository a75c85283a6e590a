"""What the archive asks of the place where its objects are: put, get, swap.

Rules that hold for every place (``testing/contracts/archive.py`` has each as a promise with a check):

* An object appears whole or not at all, whenever a call dies or is cancelled.
* An object that was put as immutable never holds other bytes.
* A key is checked before any place is asked (`checked_key`), and no body is longer than `MAX_OBJECT_BYTES`.
* That an object is missing is `FileNotFoundError`, and only raised when it is certain; every other error is a `SessionFSError`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from sessionfs.model import keys
from sessionfs.model.errors import InvalidKeyError, TooLargeError

MAX_OBJECT_BYTES = 2 << 20
PREFIX = "archive/"
"""Where the archive's keys live in a bucket: nothing else has keys below it."""
MAX_KEY_BYTES = keys.MAX_KEY_BYTES - len(PREFIX)

_SEGMENT = re.compile(r"[A-Za-z0-9._%-]{1,255}")


class Objects(ABC):
    """Small objects by key. Safe to use from several tasks."""

    @abstractmethod
    async def put(self, key: str, body: bytes, *, immutable: bool) -> None:
        """Store an object. Storing the same bytes again is success, also when an earlier answer was lost.

        Args:
            key: The key.
            body: At most `MAX_OBJECT_BYTES`.
            immutable: Never replace other bytes; else whatever is there is replaced.

        Raises:
            AlreadyExistsError: `immutable`, and other bytes are there.
            InvalidKeyError, TooLargeError: Nothing was asked.
        """

    @abstractmethod
    async def get(self, key: str) -> bytes:
        """Read an object.

        Raises:
            FileNotFoundError: There is none.
            CorruptDataError: It is longer than any of ours.
            InvalidKeyError: Nothing was asked.
        """

    @abstractmethod
    async def swap(self, key: str, body: bytes, *, old: bytes | None) -> None:
        """Replace an object only when it still is what the caller read: of several at once exactly one wins.

        Args:
            key: Of an object that is not immutable.
            body: The new bytes, at most `MAX_OBJECT_BYTES`. That they are there already is success.
            old: The bytes that were read, None for a missing object.

        Raises:
            PreconditionFailedError: It holds other bytes; nothing was changed.
            InvalidKeyError, TooLargeError: Nothing was asked.
        """


def checked_key(key: str) -> str:
    """Check a key; it is given back.

    Raises:
        InvalidKeyError: It is not ``/``-separated segments of ``A-Z a-z 0-9 . _ % -``, or one is empty, ``.``, ``..`` or longer than
            255 bytes, or the key is too long.
    """
    segments = key.split("/")
    if len(key) > MAX_KEY_BYTES:
        raise InvalidKeyError(f"key {key[:60]!r}... is longer than {MAX_KEY_BYTES} bytes")
    if any(segment in {".", ".."} or not _SEGMENT.fullmatch(segment) for segment in segments):
        raise InvalidKeyError(f"key {key!r} has a segment that no object of an archive has")
    return key


def checked_body(key: str, body: bytes) -> bytes:
    """Check a body; it is given back.

    Raises:
        TooLargeError: It is longer than `MAX_OBJECT_BYTES`.
    """
    if len(body) > MAX_OBJECT_BYTES:
        raise TooLargeError(f"{key!r} would have {len(body)} bytes, at most {MAX_OBJECT_BYTES} are kept")
    return body
