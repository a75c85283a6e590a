"""One connection to PostgreSQL for asynchronous callers: opened when it is needed, again after it was lost.

Invariants:

* One call at a time. What a call does to the database is one transaction.
* A call that is cancelled, or that takes too long, is ended at the server first, and its thread ends before the caller goes on; so nothing of it
  happens later. The connection is not used again: the request to end it may still be on its way to the server.
* No secret is in an error, a representation or a log.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from sessionfs.model.errors import HandleClosedError, SettingsError, UnavailableError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as _problem:
    raise ImportError("the shared index needs psycopg: pip install 'sessionfs[postgres]'") from _problem

from sessionfs.sessions.catalogue import postgres_errors, postgres_schema
from sessionfs.sessions.catalogue.postgres_schema import Connection

_MOST_SECONDS = 3600
_GRACE_SECONDS = 5.0
"""Behind the server's own limit; only a server that hangs, or a network that swallows, needs it."""
_STOP_SECONDS = 2
_CONNECTING_THREADS = 4
"""More than one, because a connection that was given up while its host's name was looked up keeps its thread until that ends."""

_DEFAULT_PARAMETERS = {
    "application_name": "sessionfs",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """Where the shared index is.

    Attributes:
        url: A connection string of libpq (``postgresql://user@host/database``); a password is better kept in ``PGPASSWORD`` or ``~/.pgpass``.
        schema: The schema with its tables; made when it is missing.
        connect_timeout_seconds: For each host that is tried, 2 (libpq's least) to 3600.
        statement_timeout_seconds: How long the server may work on one statement, 0.001 to 3600.

    Raises:
        SettingsError: One of them is out of range, or the string cannot be read.
    """

    url: str = field(repr=False)
    schema: str = "sessionfs"
    connect_timeout_seconds: int = 5
    statement_timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        postgres_schema.checked_schema(self.schema)
        for name, least in (("connect_timeout_seconds", 2), ("statement_timeout_seconds", 0.001)):
            # PostgreSQL counts milliseconds, and 0 would be no limit. Nothing is within a range that is no number.
            if not least <= getattr(self, name) <= _MOST_SECONDS:
                raise SettingsError(f"{name} is not within {least} to {_MOST_SECONDS}")
        self.parameters()

    def parameters(self) -> dict[str, Any]:
        """Give the connection's parameters, secrets included.

        Raises:
            SettingsError: The string cannot be read.
        """
        try:
            given = conninfo_to_dict(self.url)
        except psycopg.Error:
            raise SettingsError(
                "the connection string of the session index cannot be read",
                remedy="write postgresql://user@host:port/database, with special characters as %XX",
            ) from None
        fixed = {"connect_timeout": str(self.connect_timeout_seconds), "client_encoding": "UTF8"}
        return _DEFAULT_PARAMETERS | given | fixed


class PostgresConnection:
    """A connection that comes back.

    Args:
        settings: Where to.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._server = postgres_errors.shown_server(settings.parameters())
        self._limit_seconds = settings.statement_timeout_seconds + _GRACE_SECONDS
        self._turn = trio.Lock()
        self._connecting = trio.CapacityLimiter(_CONNECTING_THREADS)
        self._calling = trio.CapacityLimiter(1)
        self._link: _Link | None = None
        self._is_closed = False

    async def run(self, work: Callable[[Connection], Result]) -> Result:
        """Run work in a thread, with the connection, which is made when there is none.

        Args:
            work: Its changes are one transaction; what it raises is raised.

        Raises:
            UnavailableError: The server cannot be reached or did not answer; the next call connects anew.
            AccessError: The server refuses this user.
            UnsupportedFormatError: The tables are of a newer version.
            HandleClosedError: This is closed.
        """
        async with self._turn:
            if self._is_closed:
                raise HandleClosedError(f"{self._server} is closed", remedy="open it again")
            if self._link is None:
                self._link = await self._connected()
                try:
                    await self._call(self._link, self._prepare)
                except BaseException:
                    self._drop()
                    raise
            return await self._call(self._link, work)

    async def close(self) -> None:
        """Disconnect, behind the call under way; repeating it changes nothing."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                self._is_closed = True
                self._drop()

    async def _connected(self) -> _Link:
        handover = _Handover()
        parameters = self._settings.parameters()

        def connect() -> None:
            handover.deliver(psycopg.connect(autocommit=True, prepare_threshold=None, **parameters))

        with trio.move_on_after(self._settings.connect_timeout_seconds + _GRACE_SECONDS):
            try:
                await trio.to_thread.run_sync(connect, abandon_on_cancel=True, limiter=self._connecting)
            except psycopg.Error as problem:
                raise postgres_errors.of_connecting(problem, self._server) from None
            except trio.Cancelled:
                handover.give_up()
                raise
        if handover.link is None:
            raise UnavailableError(f"{self._server} cannot be reached", remedy="try again")
        return handover.link

    def _prepare(self, connection: Connection) -> None:
        limit_ms = str(max(1, round(self._settings.statement_timeout_seconds * 1000)))
        connection.execute(
            "SELECT set_config('statement_timeout', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false)",
            (limit_ms, limit_ms),
        )
        postgres_schema.ensure_tables(connection, self._settings.schema)

    async def _call(self, link: _Link, work: Callable[[Connection], Result]) -> Result:
        ended = trio.Event()
        loop = trio.lowlevel.current_trio_token()

        def call() -> Result:
            try:
                return work(link.connection)
            finally:
                with contextlib.suppress(trio.RunFinishedError):
                    loop.run_sync_soon(ended.set)

        # Behind this there is a thread, so there is an end of it to wait for.
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.move_on_after(self._limit_seconds):
            try:
                return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._calling)
            except psycopg.Error as problem:
                if postgres_errors.is_lost(problem) or link.connection.closed:
                    self._drop()
                raise postgres_errors.of_statement(problem, self._server) from None
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await link.stop(ended)
                self._drop()
                raise
        raise UnavailableError(
            f"{self._server} did not answer within {self._limit_seconds:g} s", remedy="try again"
        )

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class _Link:
    """A connection, and a way to cut it off while a thread waits on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    async def stop(self, ended: trio.Event) -> None:
        """End the statement under way: ask the server, then cut the line."""
        with contextlib.suppress(psycopg.Error):
            await trio.to_thread.run_sync(lambda: self.connection.cancel_safe(timeout=_STOP_SECONDS))
        with trio.move_on_after(_STOP_SECONDS):
            await ended.wait()
        if not ended.is_set():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            with trio.move_on_after(_STOP_SECONDS):
                await ended.wait()

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()
        self.connection.close()


class _Handover:
    """Brings a connection from the thread that made it, or closes it when nobody waits any more."""

    def __init__(self) -> None:
        self.link: _Link | None = None
        self._is_given_up = False
        self._lock = threading.Lock()

    def deliver(self, connection: Connection) -> None:
        with self._lock:
            if self._is_given_up:
                connection.close()
            else:
                self.link = _Link(connection)

    def give_up(self) -> None:
        with self._lock:
            self._is_given_up = True
            if self.link is not None:
                self.link.close()
                self.link = None
