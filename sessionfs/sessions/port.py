"""What every door asks of the place where sessions live: read, write, append, list, remove, rename; and who may write.

Rules that hold for every place:

* A file is written whole or not at all; an append adds all of its bytes or none, as far as a reader is shown.
* A path is checked before any place is called (`checked_path`): relative, ``/``-separated, each component a name that a mount takes.
* `NotFoundError` is only raised when it is certain; a place that did not answer raises `UnavailableError`.
* What returned is as durable as the place makes it: in the bucket for a bucket, on the disk after `sync` for a working copy.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from sessionfs.model import names
from sessionfs.model.errors import InvalidRequestError
from sessionfs.model.names import SessionId

MAX_PATH_BYTES = 900
"""So long a path has a key of its own in every store, whatever the session's id."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What is known of a file without its bytes.

    Attributes:
        path: Relative to the session.
        size_bytes: Length.
        modified_ns: Time of the last change, nanoseconds since the epoch; its precision is the place's.
        revision: Opaque; another one when the bytes are others, equal as long as nobody wrote.
    """

    path: str
    size_bytes: int
    modified_ns: int
    revision: str


class SessionFiles(ABC):
    """The files of one session, or of one shared root. Safe to use from several tasks."""

    @property
    @abstractmethod
    def session(self) -> SessionId:
        """Whose files."""

    @abstractmethod
    async def stat(self, path: str) -> FileStat:
        """Describe a file.

        Raises:
            NotFoundError: There is none.
        """

    @abstractmethod
    async def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a part of a file, cut to its length.

        Args:
            path: The file.
            start: First byte, from 0.
            end: Behind the last byte; None for the file's end.

        Raises:
            NotFoundError: There is none.
        """

    @abstractmethod
    async def write(
        self,
        path: str,
        body: bytes,
        *,
        is_private: bool = False,
        is_new: bool = False,
        base: FileStat | None = None,
    ) -> FileStat:
        """Replace a file, or make it, with the directories above it.

        Args:
            path: The file.
            body: All of its bytes.
            is_private: Nobody but the owner may read it where it lies on a disk (0600).
            is_new: Only when there is none.
            base: Only when the file is still this one.

        Raises:
            AlreadyExistsError: `is_new`, and there is one.
            PreconditionFailedError: It is not `base` any more.
        """

    @abstractmethod
    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        """Add to a file, which is made when it is missing. Another writer's bytes are never lost.

        Args:
            path: The file.
            tail: What to add; a writer of lines ends each with a newline.
            base: Only when the file is still this one, None for whatever is there by then.
            is_synced: Return only when it is as durable as after `sync`; cheaper than both calls.

        Raises:
            PreconditionFailedError: It is not `base` any more.
        """

    @abstractmethod
    async def list(self, below: str = "") -> list[FileStat]:
        """List the files at and below a directory, recursively, sorted by path (UTF-8 bytes).

        Args:
            below: The directory, "" for the session. One that does not exist has no files.
        """

    @abstractmethod
    async def remove(self, path: str) -> None:
        """Remove a file; one that is gone is success."""

    @abstractmethod
    async def rename(self, path: str, new: str) -> None:
        """Give a file another path, replacing what is there: a crash leaves both, or the new one, never neither.

        Raises:
            NotFoundError: There is none.
        """

    @abstractmethod
    async def sync(self, path: str = "") -> None:
        """Return when a file (all, for "") would survive a power cut, and in a place with ``fsync = bucket`` is in the bucket."""


class SessionPlace(ABC):
    """Where sessions live: a bucket, a directory, a working copy, a mount."""

    @abstractmethod
    def files(self, session: SessionId) -> SessionFiles:
        """Give the files of a session, which need not exist yet. Asks nobody."""

    @abstractmethod
    async def list_sessions(self) -> list[SessionId]:
        """Name the sessions that have a file, sorted."""

    @abstractmethod
    async def remove_session(self, session: SessionId) -> None:
        """Remove all files of a session; one that is gone is success."""

    @abstractmethod
    async def read_index(self) -> bytes | None:
        """Read ``sessions.json``; None when there is none."""

    @abstractmethod
    async def write_index(self, body: bytes) -> None:
        """Replace ``sessions.json``."""

    @abstractmethod
    async def set_index_aside(self, stamp_seconds: int) -> str | None:
        """Rename ``sessions.json`` to ``sessions.json.corrupt-<stamp>``; the stamp only moves forward.

        Args:
            stamp_seconds: Seconds since the epoch; a later one is taken when the name is taken.

        Returns:
            The new name; None when there was no index.
        """

    @abstractmethod
    async def claim(self, session: SessionId, *, force: bool = False) -> None:
        """Become the one who may write a session; one that is held already is success.

        Raises:
            SessionAlreadyOwnedError: Another process or host holds it.
        """

    @abstractmethod
    async def release(self, session: SessionId) -> None:
        """Let others own it; one that is not held is success."""

    @abstractmethod
    def owns(self, session: SessionId) -> bool:
        """Whether this place holds the session, as far as it knows."""

    @property
    def makes_generations(self) -> bool:
        """Whether `commit` makes generations here."""
        return True

    @abstractmethod
    async def commit(self, session: SessionId, trigger: str) -> int:
        """Make a generation of a session as it is now.

        Args:
            session: The session.
            trigger: Why, for people.

        Returns:
            Its number.

        Raises:
            InvalidRequestError: This place makes none (`makes_generations`).
        """


def checked_path(path: str) -> str:
    """Check a path of a file in a session; it is given back.

    Raises:
        InvalidRequestError: No file name, empty, absolute, with a drive, a backslash, NUL, an empty, ``.`` or ``..`` component, too long.
    """
    shown = repr(path if len(path) <= 80 else path[:77] + "...")  # noqa: PLR2004 - a line's width
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidRequestError(f"path {shown} has a character that no file name has") from None
    if not path or path.startswith("/") or path.endswith("/"):
        raise InvalidRequestError(f"path {shown} is no relative path of a file")
    if "\\" in path or "\0" in path or (len(path) > 1 and path[1] == ":" and path[0].isalpha()):
        raise InvalidRequestError(f"path {shown} has a drive, a backslash or a NUL")
    components = [os.fsencode(part) for part in path.split("/")]
    if any(part in {b"", b".", b".."} for part in components):
        raise InvalidRequestError(f"path {shown} has an empty, '.' or '..' component")
    if components[0] == names.CONTROL_DIRECTORY:
        raise InvalidRequestError(f"path {shown} is in the control directory of a mount")
    if (
        any(len(part) > names.MAX_NAME_BYTES for part in components)
        or len(os.fsencode(path)) > MAX_PATH_BYTES
    ):
        raise InvalidRequestError(f"path {shown} is too long")
    return path
