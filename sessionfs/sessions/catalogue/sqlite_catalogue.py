"""The authoritative catalogue in a SQLite file.

Invariants:

* One connection, one call at a time; a call is one transaction in a thread, and its thread ends before the caller goes on, cancelled or not. So a
  cancelled call changed everything or nothing, and nothing of it happens later.
* A change begins by taking the file's only write lock: what it read inside is true until it is committed.
* Waiting for another process's change happens in the event loop and can be cancelled.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Self, TypeVar

import trio

from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AlreadyExistsError,
    ForbiddenError,
    HandleClosedError,
    NotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.catalogue import sqlite_schema
from sessionfs.sessions.catalogue.port import Catalogue
from sessionfs.sessions.catalogue.record import (
    COLUMNS,
    DEFAULT_PAGE,
    Records,
    SessionRecord,
    checked,
    checked_id,
    checked_page,
    checked_tenant,
    from_row,
    next_revision,
    to_row,
)

_PAUSE_SECONDS = 0.01

_SELECT = f"SELECT {COLUMNS} FROM sessions"  # noqa: S608 - put together from literals of ours
_BY_ID = f"{_SELECT} WHERE id = ?"
_OF_TENANT = f"{_SELECT} WHERE tenant = ? AND id = ?"
_PAGE_OF_TENANT = f"{_SELECT} WHERE tenant = ? AND id > ? ORDER BY id LIMIT ?"
_PAGE_OF_ALL = f"{_SELECT} WHERE id > ? ORDER BY id LIMIT ?"
_INSERT = (
    f"INSERT INTO sessions ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - as above
    " ON CONFLICT (id) DO NOTHING"
)
_UPDATE = (
    "UPDATE sessions SET created_at_ms = ?, updated_at_ms = ?, status = ?, title = ?, labels = ?, metadata = ?,"
    " checkpoint = ?, revision = ? WHERE id = ? AND tenant = ?"
)

Result = TypeVar("Result")


class SqliteCatalogue(Catalogue):
    """A catalogue of this host; several processes may have it open."""

    def __init__(
        self, path: str, connection: sqlite3.Connection, clock: Clock, busy_timeout_seconds: float
    ) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = connection
        self._clock = clock
        self._busy_timeout_seconds = busy_timeout_seconds
        self._turn = trio.Lock()
        # Threads of its own: requests of stores that hang must not keep the catalogue from its disk.
        self._thread = trio.CapacityLimiter(1)

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], clock: Clock, *, busy_timeout_seconds: float = 10.0
    ) -> Self:
        """Open a catalogue, making it (readable by its owner only) when there is none.

        Args:
            path: The file, on a local disk; the directory above it exists.
            clock: Times of creation and change.
            busy_timeout_seconds: How long a call waits for another process's change, above 0.

        Raises:
            UnsupportedFormatError: A newer version made it; nothing is changed.
            CorruptDataError: It is no catalogue; nothing is changed.
            LocalDiskError: The disk refused.
            UnavailableError: Another process did not let go of it in time.
        """
        place = _absolute(path)
        connection = await _patiently(
            lambda: sqlite_schema.open_catalogue(place), place, busy_timeout_seconds, None
        )
        return cls(place, connection, clock, busy_timeout_seconds)

    async def create(self, record: SessionRecord) -> SessionRecord:
        """Note a new session (see `Catalogue.create`)."""
        draft = checked(record, least_revision=0)
        now_ms = self._now_ms()
        created_at_ms = draft.created_at_ms or now_ms
        made = replace(
            draft, created_at_ms=created_at_ms, updated_at_ms=max(now_ms, created_at_ms), revision=1
        )

        def insert(connection: sqlite3.Connection) -> SessionRecord:
            if connection.execute(_INSERT, to_row(made)).rowcount == 0:
                raise AlreadyExistsError(f"session {made.id!r} exists already", remedy="choose another id")
            return made

        return await self._change(insert)

    async def save(self, record: SessionRecord) -> SessionRecord:
        """Replace a record with one that was made from it (see `Catalogue.save`)."""
        wanted = checked(record, least_revision=1)
        now_ms = self._now_ms()

        def update(connection: sqlite3.Connection) -> SessionRecord:
            row = connection.execute(_OF_TENANT, (wanted.tenant, wanted.id)).fetchone()
            if row is None:
                raise _not_found(wanted.tenant, wanted.id)
            stored = from_row(row)
            if stored.revision != wanted.revision:
                raise PreconditionFailedError(
                    f"session {wanted.id!r} is at revision {stored.revision}, not {wanted.revision}",
                    remedy="read it again",
                )
            return _replaced(
                connection,
                replace(
                    wanted,
                    created_at_ms=stored.created_at_ms,
                    updated_at_ms=max(now_ms, stored.updated_at_ms),
                    revision=next_revision(stored.revision),
                ),
            )

        return await self._change(update)

    async def import_(self, record: SessionRecord) -> SessionRecord:
        """Take over a record of another catalogue (see `Catalogue.import_`)."""
        wanted = checked(record, least_revision=1)

        def take_over(connection: sqlite3.Connection) -> SessionRecord:
            row = connection.execute(_BY_ID, (wanted.id,)).fetchone()
            if row is None:
                connection.execute(_INSERT, to_row(wanted))
                return wanted
            stored = from_row(row)
            if stored.tenant != wanted.tenant:
                raise ForbiddenError(f"session {wanted.id!r} is not for tenant {wanted.tenant!r}")
            is_same = replace(stored, revision=wanted.revision) == wanted
            if is_same and stored.revision >= wanted.revision:
                return stored
            revision = max(wanted.revision, next_revision(stored.revision))
            return _replaced(connection, replace(wanted, revision=revision))

        return await self._change(take_over)

    async def get(self, tenant: str, session: SessionId) -> SessionRecord:
        """Give a session's record (see `SessionLookup.get`)."""
        key = (checked_tenant(tenant), checked_id(session))
        rows = await self._rows(_OF_TENANT, key)
        if not rows:
            raise _not_found(tenant, session)
        return rows[0]

    async def list(self, tenant: str, after: str = "", limit: int = DEFAULT_PAGE) -> Records:
        """List a tenant's sessions (see `SessionLookup.list`)."""
        return await self._rows(_PAGE_OF_TENANT, (checked_tenant(tenant), *checked_page(after, limit)))

    async def scan(self, after: str = "", limit: int = DEFAULT_PAGE) -> Records:
        """List the sessions of all tenants (see `Catalogue.scan`)."""
        return await self._rows(_PAGE_OF_ALL, checked_page(after, limit))

    async def close(self) -> None:
        """Let go of the file (see `SessionLookup.close`)."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                connection, self._connection = self._connection, None
                if connection is not None:
                    await trio.to_thread.run_sync(connection.close, limiter=self._thread)

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000

    async def _rows(self, statement: str, values: tuple[object, ...]) -> Records:
        rows = await self._run(lambda connection: connection.execute(statement, values).fetchall())
        return [from_row(row) for row in rows]

    async def _change(self, change: Callable[[sqlite3.Connection], Result]) -> Result:
        def transaction(connection: sqlite3.Connection) -> Result:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = change(connection)
                connection.execute("COMMIT")
            except BaseException:
                connection.rollback()
                raise
            return result

        return await self._run(transaction)

    async def _run(self, call: Callable[[sqlite3.Connection], Result]) -> Result:
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise HandleClosedError(f"the catalogue {self._path} is closed", remedy="open it again")
            return await _patiently(
                lambda: call(connection), self._path, self._busy_timeout_seconds, self._thread
            )


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)


async def _patiently(
    call: Callable[[], Result],
    path: str,
    busy_timeout_seconds: float,
    thread: trio.CapacityLimiter | None,
) -> Result:
    with trio.move_on_after(busy_timeout_seconds):
        while True:
            try:
                return await trio.to_thread.run_sync(call, limiter=thread)
            except sqlite3.Error as problem:
                if not sqlite_schema.is_busy(problem):
                    raise sqlite_schema.translated(problem, path) from None
            await trio.sleep(_PAUSE_SECONDS)
    raise UnavailableError(
        f"the catalogue {path} is being changed by another process since {busy_timeout_seconds:g} s",
        remedy="try again",
    )


def _replaced(connection: sqlite3.Connection, record: SessionRecord) -> SessionRecord:
    session, tenant, *values = to_row(record)
    connection.execute(_UPDATE, (*values, session, tenant))
    return record


def _not_found(tenant: str, session: str) -> NotFoundError:
    return NotFoundError(f"tenant {tenant!r} has no session {session!r}")
