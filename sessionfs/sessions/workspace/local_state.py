"""What this host keeps of a workspace beside its place: ``<local directory>/<id>/`` with ``blobs/``, ``events.json`` and ``ended.json``.

Invariants:

* One open workspace at a time uses it; its lock, ``.sessionfs/<id>.lock`` (no id is ``.sessionfs``), is held as long.
* ``ended.json`` is there exactly while no workspace is open and the last one ended: only then retention may remove the directory. An opening that
  is refused changes nothing of that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

import msgspec
import trio

from sessionfs.formats import versioned_json
from sessionfs.model import names
from sessionfs.model.errors import CorruptDataError, LocalDiskError, StateLockedError, UnsupportedFormatError

ENDED = "ended.json"
EVENTS = "events.json"
BLOBS = "blobs"
FORMAT = 1


class _Ended(msgspec.Struct, frozen=True):
    ended_ns: int
    format: int = FORMAT


class LocalState:
    """This host's directory of one workspace.

    Args:
        root: The local directory, which may serve many workspaces.
        unit: The session or shared root.
    """

    def __init__(self, root: str, unit: str) -> None:
        self._root = root
        self._unit = unit
        self.directory = os.path.join(root, unit)
        self._lock: int | None = None
        self._forgotten: bytes | None = None

    @property
    def is_open(self) -> bool:
        """Whether this workspace has the directory."""
        return self._lock is not None

    @property
    def events_file(self) -> str:
        """Where events are kept."""
        return os.path.join(self.directory, EVENTS)

    @property
    def blobs_directory(self) -> str:
        """Where copies of blobs are kept."""
        return os.path.join(self.directory, BLOBS)

    async def open(self) -> None:
        """Take the directory, made when it is missing.

        Raises:
            StateLockedError: Another workspace uses it, or retention is removing it.
            LocalDiskError: The disk refused.
        """
        with local_disk(self.directory):
            await trio.to_thread.run_sync(self._open)

    def _open(self) -> None:
        lock = try_lock(self._root, self._unit)
        if lock is None:
            raise StateLockedError(
                f"{self.directory} is used by another workspace", pid=0, remedy="use another local directory"
            )
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    async def forget_end(self) -> None:
        """The session goes on: its age counts no longer.

        Raises:
            LocalDiskError: The disk refused.
        """
        with local_disk(self.directory):
            self._forgotten = await trio.to_thread.run_sync(_taken, os.path.join(self.directory, ENDED))

    async def restore_end(self) -> None:
        """It was not opened after all: its age counts as before.

        Raises:
            LocalDiskError: The disk refused.
        """
        if self._forgotten is not None:
            with local_disk(self.directory):
                await trio.to_thread.run_sync(_write, os.path.join(self.directory, ENDED), self._forgotten)

    async def note_end(self, ended_ns: int) -> None:
        """The session ended: from now on its age counts.

        Raises:
            LocalDiskError: The disk refused.
        """
        body = versioned_json.encode(_Ended(ended_ns))
        with local_disk(self.directory):
            await trio.to_thread.run_sync(_write, os.path.join(self.directory, ENDED), body)

    def close(self) -> None:
        """Let others use the directory; repeating it changes nothing."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def local_disk(path: str) -> Iterator[None]:
    """Raise what the operating system says about this host's disk as our error.

    Raises:
        LocalDiskError: The disk refused; names the path.
    """
    try:
        yield
    except OSError as problem:
        named = problem.filename if isinstance(problem.filename, str) else path
        raise LocalDiskError(
            f"{named}: {problem.strerror or problem}", errno_number=problem.errno or errno.EIO
        ) from problem


def try_lock(root: str, unit: str) -> int | None:
    """Take the lock of a workspace's directory.

    Args:
        root: The local directory.
        unit: The session or shared root.

    Returns:
        A descriptor whose end is the lock's end; None when somebody holds it.

    Raises:
        OSError: The disk refused.
    """
    locks = os.path.join(root, names.CONTROL_DIRECTORY.decode())
    os.makedirs(locks, mode=0o700, exist_ok=True)
    file = os.path.join(locks, f"{unit}.lock")
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(descriptor)
        if problem.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return None
        raise
    return descriptor


def ended_ns(directory: str) -> int | None:
    """Say when the last workspace of a directory ended; None when it did not, or that cannot be read."""
    file = os.path.join(directory, ENDED)
    try:
        with open(file, "rb") as source:
            raw = source.read()
        versioned_json.decode_format(raw, file, supported=FORMAT)
        return versioned_json.decode(raw, _Ended, file).ended_ns
    except (OSError, CorruptDataError, UnsupportedFormatError):
        return None


def _taken(file: str) -> bytes | None:
    """Remove a file, and give its bytes; None when there is none."""
    try:
        with open(file, "rb") as source:
            body = source.read()
        os.unlink(file)
    except FileNotFoundError:
        return None
    return body


def _write(file: str, body: bytes) -> None:
    temporary = f"{file}.tmp"
    with open(temporary, "wb") as target:
        target.write(body)
    os.replace(temporary, file)
