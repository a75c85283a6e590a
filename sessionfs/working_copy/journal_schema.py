"""Tables of the upload journal.

One writer: the replication process. The daemon never opens it. Losing it loses no file (``working_copy/reconciliation/reconcile.py``).

* ``names`` is the tree as the intent log tells it: (directory number, name) to number.
* ``nodes`` has one row per inode, so that a hard-linked file is one body under several keys. Attributes here count only
  while ``present`` is 0 (no bytes on this disk); otherwise the working copy has them. ``clean_*`` is the identity of the bytes that
  ``sha256`` is of.
* ``objects`` is what the bucket is known to hold, by key. ``named`` says that the newest generation, or a commit under way, names this
  content: it is copied aside before it goes. ``prefixes`` has the shorter contents of the same key that generations name.
* ``blocks`` has the sums of the 8 MiB blocks of long contents, 32 bytes each, by the sum of the whole.
* ``work`` is the keys whose object may differ from the tree. A row says *look at this key*, not what to do: what is wanted
  is read from the tree when the key's turn comes, so any order of crashes and repetitions ends in the same bucket.
* ``bases`` is the objects that requests of the last hour were to replace, by token and write id: one that arrives late, or twice, still finds
  such an object, or brings it back.
* ``attempts`` is the puts that were sent and whose outcome is not known, or was settled as not landed within the last hour.
"""

from __future__ import annotations

import os
import sqlite3

from sessionfs.model.errors import CorruptDataError, UnsupportedFormatError

VERSION = 2

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    root INTEGER NOT NULL,
    known INTEGER NOT NULL DEFAULT 0,
    written INTEGER NOT NULL DEFAULT 0,
    changed INTEGER NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    manifest_token TEXT NOT NULL DEFAULT '',
    committed_at TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0,
    owner_state TEXT NOT NULL DEFAULT '',
    owner_token TEXT NOT NULL DEFAULT '',
    holder TEXT NOT NULL DEFAULT '',
    recovery TEXT NOT NULL DEFAULT '',
    turn INTEGER NOT NULL DEFAULT 0,
    tree_of INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE nodes (
    number INTEGER PRIMARY KEY,
    mode INTEGER NOT NULL,
    uid INTEGER NOT NULL DEFAULT 0,
    gid INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    mtime_ns INTEGER NOT NULL DEFAULT 0,
    present INTEGER NOT NULL DEFAULT 1,
    reserved INTEGER NOT NULL DEFAULT 0,
    target BLOB NOT NULL DEFAULT x'',
    xattrs BLOB NOT NULL DEFAULT x'',
    writers INTEGER NOT NULL DEFAULT 0,
    sha256 TEXT NOT NULL DEFAULT '',
    clean_size INTEGER NOT NULL DEFAULT -1,
    clean_mtime_ns INTEGER NOT NULL DEFAULT 0,
    clean_ctime_ns INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE names (
    parent INTEGER NOT NULL, name BLOB NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX names_by_number ON names (number);
CREATE TABLE objects (
    key TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    token TEXT NOT NULL,
    write_id TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    lineage TEXT NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    named INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX objects_by_number ON objects (number);
CREATE INDEX objects_by_sha256 ON objects (sha256);
CREATE TABLE prefixes (
    key TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL, proven INTEGER NOT NULL,
    PRIMARY KEY (key, sha256, size)
) WITHOUT ROWID;
CREATE TABLE blocks (sha256 TEXT PRIMARY KEY, hashes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE work (
    key TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    first_owed_ns INTEGER NOT NULL,
    changed_ns INTEGER NOT NULL,
    not_before_ns INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0,
    held INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'owed',
    reason TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX work_by_age ON work (held, first_owed_ns);
CREATE INDEX work_by_session ON work (session);
CREATE TABLE attempts (
    write_id TEXT PRIMARY KEY, key TEXT NOT NULL, sent_ns INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX attempts_by_key ON attempts (key);
CREATE TABLE bases (
    key TEXT NOT NULL, token TEXT NOT NULL, write_id TEXT NOT NULL, sent_ns INTEGER NOT NULL, PRIMARY KEY (key, token)
) WITHOUT ROWID;
CREATE TABLE conflicts (
    key TEXT PRIMARY KEY, session TEXT NOT NULL, path BLOB NOT NULL, live_key TEXT NOT NULL,
    kept_at TEXT NOT NULL, holder TEXT NOT NULL, reason TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, at TEXT NOT NULL, fields TEXT NOT NULL);
"""

_FROM_VERSION_1 = """
ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN owner_state TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN owner_token TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN holder TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN recovery TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN tree_of INTEGER NOT NULL DEFAULT 0;
ALTER TABLE objects ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE objects ADD COLUMN named INTEGER NOT NULL DEFAULT 1;
ALTER TABLE conflicts ADD COLUMN reason TEXT NOT NULL DEFAULT '';
CREATE TABLE prefixes (
    key TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL, proven INTEGER NOT NULL,
    PRIMARY KEY (key, sha256, size)
) WITHOUT ROWID;
CREATE TABLE blocks (sha256 TEXT PRIMARY KEY, hashes BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX work_by_session ON work (session);
CREATE TABLE bases (
    key TEXT NOT NULL, token TEXT NOT NULL, write_id TEXT NOT NULL, sent_ns INTEGER NOT NULL, PRIMARY KEY (key, token)
) WITHOUT ROWID;
"""
# Any object of version 1 may be named by the newest manifest: too many copies are better than one too few.


def open_journal(path: str) -> tuple[sqlite3.Connection, bool]:
    """Open the journal, making it when it is missing.

    Args:
        path: The database file.

    Returns:
        The connection (autocommit; transactions are explicit) and whether it was made new.

    Raises:
        UnsupportedFormatError: A newer version made it; nothing is changed.
        CorruptDataError: It is no journal.
    """
    fresh = not os.path.exists(path) or os.path.getsize(path) == 0
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cache_size = -4096")
        if fresh:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == 1:
            connection.executescript(f"BEGIN; {_FROM_VERSION_1} PRAGMA user_version = {VERSION}; COMMIT;")
            found = VERSION
    except sqlite3.DatabaseError as problem:
        connection.close()
        raise CorruptDataError(
            f"the upload journal {path} cannot be read: {problem}",
            remedy="move it away: it is rebuilt from the working copy and the bucket",
        ) from None
    if found > VERSION:
        connection.close()
        raise UnsupportedFormatError(path, found=found, supported=VERSION)
    os.chmod(path, 0o600)
    return connection, fresh
