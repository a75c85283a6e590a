"""Images of SQLite databases.

Three ways, by what lies beside the database and who has it open:

* Nobody may write it and no side file holds anything: the file is its own image, byte for byte.
* Somebody may write it: SQLite's online backup through the mount, where the programs' locks hold. ``mode=ro`` and no checkpoint,
  so that imaging changes nothing.
* Nobody may write it, but a side file was left behind (a program died): database and side files are copied to
  staging and SQLite recovers the copy.

Every image of the last two passes ``quick_check`` and stands alone. Bytes that SQLite does not take for a database are the program's own: they are
imaged like any file's.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import urllib.parse
from dataclasses import dataclass
from functools import partial

from sessionfs.model.clock import Clock
from sessionfs.model.roots import mount_path
from sessionfs.replication.uploads.working_files import Identity, WorkingFiles, identity_of
from sessionfs.working_copy.exclusions import side_file_of
from sessionfs.working_copy.layout import StateLayout

LOCK_SECONDS = 5.0
_BYTES_PER_SECOND = 50 << 20
_PAGES_A_STEP = 1024
_RECOVERED_SUFFIXES = (b"-wal", b"-journal")
_COPY_BYTES = 64 << 20
_RAW = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY = 0xFF


@dataclass(frozen=True, slots=True)
class Deferred:
    """No image now.

    Attributes:
        reason: Why, for a person.
    """

    reason: str


class _TooSlowError(Exception):
    """The backup did not end in its time."""


def database_path_of(path: bytes) -> bytes | None:
    """Path of the database whose content changes with a file; None when the path is no journal's or write-ahead log's.

    The shared index (``-shm``) is left out: readers change it too, so an image would owe the next one for ever.
    """
    directory, slash, name = path.rpartition(b"/")
    if not name.endswith(_RECOVERED_SUFFIXES):
        return None
    base = side_file_of(name)
    return directory + slash + base if base is not None else None


class DatabaseImages:
    """Takes images of databases. Blocks: call it in a thread.

    Args:
        files: The working copy.
        layout: Where images are built.
        clock: Names and deadlines.
        mount_point: Where programs reach the working copy; "" when it is not mounted.
    """

    def __init__(self, files: WorkingFiles, layout: StateLayout, clock: Clock, mount_point: str) -> None:
        self._files = files
        self._layout = layout
        self._clock = clock
        self._mount_point = mount_point

    def take(self, session: str, path: bytes, descriptor: int, *, in_use: bool) -> int | Deferred | None:
        """Take an image of a database.

        Args:
            session: Its session.
            path: Path inside it.
            descriptor: The database, open for reading.
            in_use: Whether somebody may write it.

        Returns:
            A descriptor of the image, to be closed; None when the file itself is the image; or why there is none now.

        Raises:
            OSError: This host's disk refused.
        """
        before = self._sides(session, path)
        if not in_use and not any(identity[0] for identity in before.values()):
            return None
        target = os.path.join(self._layout.staging, f"sqlite-{self._clock.unique_id()}")
        try:
            return self._build(session, path, descriptor, before, target, in_use=in_use)
        finally:
            _remove_database(target)

    def _build(
        self,
        session: str,
        path: bytes,
        descriptor: int,
        before: dict[bytes, Identity],
        target: str,
        *,
        in_use: bool,
    ) -> int | Deferred | None:
        try:
            through_mount = in_use and self._back_up(session, path, target, os.fstat(descriptor).st_size)
            if not through_mount:
                unmoved = self._copy(session, path, descriptor, before, target)
                if not unmoved:
                    return Deferred("the database is being written")
                _recover(target)
            if not _passes_check(target):
                return None
        except _TooSlowError:
            return Deferred("the database did not stand still long enough to be copied")
        except sqlite3.Error as problem:
            code = getattr(problem, "sqlite_errorcode", 0) & _PRIMARY
            if code in _RAW:
                return None
            return Deferred(f"SQLite could not copy the database: {problem}")
        return os.open(target, os.O_RDONLY | os.O_CLOEXEC)

    def _sides(self, session: str, path: bytes) -> dict[bytes, Identity]:
        found: dict[bytes, Identity] = {}
        for suffix in _RECOVERED_SUFFIXES:
            status = self._files.status(session, path + suffix)
            if status is not None and stat.S_ISREG(status.st_mode):
                found[suffix] = identity_of(status)
        return found

    def pin(self, session: str, path: bytes) -> sqlite3.Connection | None:
        """Begin a read transaction on a database through the mount: what it shows stands still until it is closed.

        Returns:
            The connection, usable from any thread, one at a time; None when the database cannot be reached there.

        Raises:
            sqlite3.Error: SQLite refuses: it is no database, or locked for too long.
        """
        if not self._mount_point:
            return None
        whole = os.path.join(os.fsencode(self._mount_point), mount_path(session).encode(), path)
        uri = f"file:{urllib.parse.quote_from_bytes(whole)}?mode=ro"
        source = None
        try:
            source = sqlite3.connect(
                uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False
            )
            source.execute("PRAGMA wal_autocheckpoint = 0")
            # Pinned: a writer between two steps of the backup would send it back to its beginning.
            source.execute("BEGIN")
            source.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        except sqlite3.Error as problem:
            if source is not None:
                source.close()
            if isinstance(problem, sqlite3.OperationalError) and _is_unreachable(problem):
                return None
            raise
        return source

    def copy_pinned(self, source: sqlite3.Connection, size_bytes: int) -> int:
        """Copy what a pinned transaction shows into a file that stands alone, and end the transaction.

        Args:
            source: From `pin`.
            size_bytes: About how long it is: it says how much time the copy may take.

        Returns:
            A descriptor of the image, to be closed; the file has no name.

        Raises:
            sqlite3.Error: SQLite could not copy it, or the copy is damaged.
            OSError: This host's disk refused.
        """
        target = os.path.join(self._layout.staging, f"sqlite-{self._clock.unique_id()}")
        try:
            self._copy_pages(source, target, size_bytes)
            if not _passes_check(target):
                raise sqlite3.DatabaseError("the copy does not pass quick_check")
            return os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        except _TooSlowError:
            raise sqlite3.OperationalError("it did not stand still long enough to be copied") from None
        finally:
            _remove_database(target)

    def _back_up(self, session: str, path: bytes, target: str, size_bytes: int) -> bool:
        """Copy through the mount; False when the database cannot be reached there."""
        source = self.pin(session, path)
        if source is None:
            return False
        try:
            self._copy_pages(source, target, size_bytes)
        except sqlite3.OperationalError as problem:
            if _is_unreachable(problem):
                return False
            raise
        return True

    def _copy_pages(self, source: sqlite3.Connection, target: str, size_bytes: int) -> None:
        deadline = self._clock.elapsed_seconds() + 2 * LOCK_SECONDS + size_bytes / _BYTES_PER_SECOND
        try:
            image = sqlite3.connect(target, isolation_level=None)
            try:
                image.execute("PRAGMA synchronous = OFF")
                source.backup(
                    image, pages=_PAGES_A_STEP, progress=partial(self._check_deadline, deadline), sleep=0.05
                )
            finally:
                image.close()
            source.execute("ROLLBACK")
        finally:
            source.close()

    def _check_deadline(self, deadline: float, _status: int, _remaining: int, _total: int) -> None:
        if self._clock.elapsed_seconds() > deadline:
            raise _TooSlowError

    def _copy(
        self, session: str, path: bytes, descriptor: int, before: dict[bytes, Identity], target: str
    ) -> bool:
        """Copy database and side files to staging; False when one of them moved meanwhile."""
        whole = identity_of(os.fstat(descriptor))
        _copy_file(descriptor, target)
        for suffix in before:
            side = self._files.open(session, path + suffix)
            try:
                _copy_file(side, target + suffix.decode())
            finally:
                os.close(side)
        return identity_of(os.fstat(descriptor)) == whole and self._sides(session, path) == before


def _remove_database(path: str) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        if os.path.lexists(path + suffix):
            os.unlink(path + suffix)


def _is_unreachable(problem: sqlite3.OperationalError) -> bool:
    return getattr(problem, "sqlite_errorcode", 0) & _PRIMARY == sqlite3.SQLITE_CANTOPEN


def _recover(path: str) -> None:
    """Let SQLite bring side files into a copy of ours, so that it stands alone."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    finally:
        connection.close()


def _passes_check(path: str) -> bool:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    finally:
        connection.close()


def _copy_file(source: int, target: str) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        offset = 0
        while copied := os.sendfile(descriptor, source, offset, _COPY_BYTES):
            offset += copied
    finally:
        os.close(descriptor)
