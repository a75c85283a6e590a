"""What PostgreSQL's errors mean, in words of ours.

Nothing that the driver or the server said is repeated: a mistyped connection string has pieces of a password in the host's place, and their texts
quote it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg

from sessionfs.model.errors import (
    AccessError,
    CorruptDataError,
    InternalError,
    SessionFSError,
    UnavailableError,
)

_PLAIN_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}|/[A-Za-z0-9./_-]{1,253}")
_PLAIN_PORT = re.compile(r"[0-9]{1,5}")

# A connection that is not made gives no SQLSTATE, only the server's text.
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied",
    "is not permitted to log in",
)
_READ_ONLY = "25006"
_NOT_OURS = ("42P01", "42703", "42804", "42883", "42P10")
_LATER = ("08", "40", "53", "55", "57", "58")
_REFUSED = ("28", "3D", "42501")
_LOST = ("08", "57P", _READ_ONLY)


def shown_server(parameters: Mapping[str, Any]) -> str:
    """Name a server as errors do: its host and port as far as they are plain, never a user or a password."""
    host = str(parameters.get("host") or parameters.get("hostaddr") or "")
    port = str(parameters.get("port") or "")
    # An at sign that was not written as %40 shifts all parts: then the host, or the port, is none.
    is_shifted = any("@" in str(parameters.get(name)) for name in ("host", "hostaddr", "port", "dbname"))
    if is_shifted or not _PLAIN_HOST.fullmatch(host):
        return "the session index (PostgreSQL)"
    return f"the session index (PostgreSQL at {host}{f':{port}' if _PLAIN_PORT.fullmatch(port) else ''})"


def of_connecting(problem: psycopg.Error, server: str) -> SessionFSError:
    """Give our error for a connection that was not made."""
    said = str(problem)
    if any(refusal in said for refusal in _REFUSALS):
        return AccessError(
            f"{server} refused the connection", remedy="look at the user, the password and the database"
        )
    return UnavailableError(f"{server} cannot be reached", remedy="try again")


def of_statement(problem: psycopg.Error, server: str) -> SessionFSError:
    """Give our error for a statement that failed."""
    state = problem.sqlstate or ""
    if state == _READ_ONLY:
        return UnavailableError(f"{server} is read-only now", remedy="try again, or name the primary server")
    if state.startswith(_REFUSED):
        return AccessError(f"{server} does not permit this ({state})", remedy="look at the user's privileges")
    if state in _NOT_OURS:
        return CorruptDataError(
            f"{server} has tables that are not the index's ({state})", remedy="name another schema"
        )
    if not state or state.startswith(_LATER):
        return UnavailableError(
            f"{server} did not answer{f' ({state})' if state else ''}", remedy="try again"
        )
    return InternalError(f"{server} failed ({state})")


def is_lost(problem: psycopg.Error) -> bool:
    """Say whether the connection is of no use any more."""
    return problem.sqlstate is None or problem.sqlstate.startswith(_LOST)
