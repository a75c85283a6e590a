"""Tables of the shared index.

They live in a schema of their own with one row that says which version they have. It is read on every new connection: tables of a newer version
are left as they are. Whoever comes first makes the tables, under an advisory lock, in one transaction; a user that may not make any can use those
that are there.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg import sql

from sessionfs.model.errors import CorruptDataError, SettingsError, StoreRefusedError, UnsupportedFormatError

VERSION = 1
FORMAT_TABLE = "catalogue_format"
SESSIONS_TABLE = "catalogue_sessions"

_MAKING_LOCK = 0x5366_4361
"""Of PostgreSQL's advisory locks; held while tables are made."""
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_MAKE_FORMAT = """
CREATE TABLE {format} (is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only), version integer NOT NULL)
"""
# The collation "C" orders by bytes, as SQLite and Python do, whatever the database's own is.
_MAKE_SESSIONS = """
CREATE TABLE {sessions} (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    created_at_ms bigint NOT NULL,
    updated_at_ms bigint NOT NULL,
    status text NOT NULL,
    title text NOT NULL,
    labels jsonb NOT NULL,
    metadata bytea NOT NULL,
    checkpoint text NOT NULL,
    revision bigint NOT NULL
)
"""

Connection = psycopg.Connection[tuple[Any, ...]]


def checked_schema(name: str) -> str:
    """Check a schema's name; it is given back.

    Raises:
        SettingsError: It is not 1 to 63 lower case letters, digits and ``_``, or begins with a digit or ``pg_``.
    """
    if not _PLAIN_NAME.fullmatch(name) or name.startswith("pg_"):
        raise SettingsError(f"schema {name!r} is no name of lower case letters, digits and '_'")
    return name


def ensure_tables(connection: Connection, schema: str) -> None:
    """Make the tables when they are missing; refuse those of a newer version.

    Args:
        connection: Autocommit.
        schema: Its name was checked.

    Raises:
        UnsupportedFormatError: A newer version made them; nothing is changed.
        CorruptDataError: They say no version.
        StoreRefusedError: The database's encoding is not UTF-8.
        psycopg.Error: The server refused.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreRefusedError(
            f"the index's database has the encoding {encoding}", remedy="use one with UTF8"
        )
    found = _version(connection, schema)
    if found is None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING_LOCK,))
            found = _version(connection, schema)
            if found is None:
                found = _make(connection, schema)
    if found > VERSION:
        raise UnsupportedFormatError(f"the session index (schema {schema})", found=found, supported=VERSION)


def _version(connection: Connection, schema: str) -> int | None:
    """Give the version of the tables, None when there are none."""
    # By the statement's own snapshot: name lookups are cached, and behind a lock they may be from before it was waited for.
    there = connection.execute(
        "SELECT 1 FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = %s AND relname = %s",
        (schema, FORMAT_TABLE),
    )
    if there.fetchone() is None:
        return None
    read = sql.SQL("SELECT version FROM {format}").format(format=sql.Identifier(schema, FORMAT_TABLE))
    versions = connection.execute(read).fetchall()
    if len(versions) != 1 or versions[0][0] < 1:
        raise CorruptDataError(f"the session index (schema {schema}) does not say its version")
    found: int = versions[0][0]
    return found


def _make(connection: Connection, schema: str) -> int:
    there = connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,))
    names = {
        "schema": sql.Identifier(schema),
        "format": sql.Identifier(schema, FORMAT_TABLE),
        "sessions": sql.Identifier(schema, SESSIONS_TABLE),
    }
    # To make a schema "if it does not exist" needs the privilege even when it does.
    if there.fetchone() is None:
        connection.execute(sql.SQL("CREATE SCHEMA {schema}").format(**names))
    connection.execute(sql.SQL(_MAKE_FORMAT).format(**names))
    connection.execute(sql.SQL(_MAKE_SESSIONS).format(**names))
    connection.execute(sql.SQL("CREATE INDEX ON {sessions} (tenant, id)").format(**names))
    connection.execute(sql.SQL("INSERT INTO {format} (version) VALUES (%s)").format(**names), (VERSION,))
    return VERSION
