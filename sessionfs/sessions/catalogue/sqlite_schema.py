"""Tables of the authoritative catalogue, and what SQLite's errors mean.

One file, write-ahead logging, every commit on the disk when it returns. The application id says that a file is a catalogue, ``user_version`` which.
Both are read before anything is changed: a newer catalogue and another program's database are left as they are.
"""

from __future__ import annotations

import errno
import os
import sqlite3

from sessionfs.model.errors import (
    CorruptDataError,
    InternalError,
    LocalDiskError,
    SessionFSError,
    StoreRefusedError,
    UnsupportedFormatError,
)

VERSION = 1
APPLICATION_ID = 0x53664361
"""``SfCa``."""

_STATEMENT_WAIT_SECONDS = 0.2
"""So long a thread waits for another process's change; whoever called goes on waiting, and can be cancelled."""

_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY NOT NULL,
    tenant TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    status TEXT NOT NULL,
    title TEXT NOT NULL,
    labels TEXT NOT NULL,
    metadata BLOB NOT NULL,
    checkpoint TEXT NOT NULL,
    revision INTEGER NOT NULL
);
CREATE INDEX sessions_by_tenant ON sessions (tenant, id);
"""

_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.ENOENT,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_AUTH: errno.EACCES,
    sqlite3.SQLITE_IOERR: errno.EIO,
}


def open_catalogue(path: str) -> sqlite3.Connection:
    """Open a catalogue, making it when there is none; several processes may do so at once.

    Args:
        path: The database file; the directory above it exists.

    Returns:
        A connection (autocommit; transactions are explicit) that any thread may use, one at a time.

    Raises:
        UnsupportedFormatError: A newer version made it; nothing is changed.
        CorruptDataError: It is no catalogue; nothing is changed.
        StoreRefusedError: The disk cannot keep it.
        sqlite3.Error: What `translated` and `is_busy` tell apart.
    """
    is_new = not os.path.exists(path)
    connection = sqlite3.connect(
        path, timeout=_STATEMENT_WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        # Before there is anything in it; the log files take the database's mode.
        if is_new and os.path.exists(path):
            os.chmod(path, 0o600)
        is_empty = _check(connection, path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreRefusedError(
                f"the catalogue {path} is on a disk without write-ahead logging", remedy="use a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        if is_empty:
            _make(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def is_busy(problem: sqlite3.Error) -> bool:
    """Say whether another process's change is in the way, and nothing else."""
    return _primary_code(problem) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def translated(problem: sqlite3.Error, path: str) -> SessionFSError:
    """Give our error for one of SQLite's."""
    code = _primary_code(problem)
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return CorruptDataError(
            f"the catalogue {path} cannot be read: {problem}", remedy="restore it from a copy"
        )
    if code in _ERRNO:
        return LocalDiskError(
            f"the catalogue {path} cannot be used: {problem}",
            errno_number=_ERRNO[code],
            remedy="look at the disk, the directory and its permissions",
        )
    return InternalError(f"the catalogue {path}: {problem}")


def _primary_code(problem: sqlite3.Error) -> int:
    code: int = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _check(connection: sqlite3.Connection, path: str) -> bool:
    """Refuse what is no catalogue of ours; gives whether nothing is in the file yet."""
    connection.execute("BEGIN")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.execute("COMMIT")
    if (version, application, tables) == (0, 0, 0):
        return True
    if application != APPLICATION_ID or version < 1:
        raise CorruptDataError(f"{path} is no catalogue", remedy="name another file")
    if version > VERSION:
        raise UnsupportedFormatError(f"the catalogue {path}", found=version, supported=VERSION)
    return False


def _make(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    # Another process may have been first, and newer.
    if version > VERSION:
        raise UnsupportedFormatError(f"the catalogue {path}", found=version, supported=VERSION)
