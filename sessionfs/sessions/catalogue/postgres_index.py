"""The shared index in PostgreSQL (extra ``postgres``).

Invariants:

* Every statement names the tenant; the only one that reads another's row reads whose it is, to refuse.
* A put is one transaction that locks the session's row: of several puts of one session the newest stays, whichever comes last.
"""

from __future__ import annotations

from typing import Self

from psycopg import sql

from sessionfs.model.errors import ForbiddenError, NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.sessions.catalogue.port import SessionIndex
from sessionfs.sessions.catalogue.postgres_connection import PostgresConnection, PostgresSettings
from sessionfs.sessions.catalogue.postgres_schema import SESSIONS_TABLE, Connection
from sessionfs.sessions.catalogue.record import (
    DEFAULT_PAGE,
    Records,
    SessionRecord,
    checked,
    checked_id,
    checked_page,
    checked_tenant,
    from_row,
    to_row,
)

_SELECT = """
SELECT id, tenant, created_at_ms, updated_at_ms, status, title, labels::text, metadata, checkpoint, revision FROM {sessions}
"""
_OF_TENANT = _SELECT + " WHERE tenant = %s AND id = %s"
_PAGE_OF_TENANT = _SELECT + " WHERE tenant = %s AND id > %s ORDER BY id LIMIT %s"
_TENANT_OF = "SELECT tenant FROM {sessions} WHERE id = %s"
# The row is locked even when it is left as it is, so what is read behind this is what it met.
_PUT = """
INSERT INTO {sessions} AS stored
    (id, tenant, created_at_ms, updated_at_ms, status, title, labels, metadata, checkpoint, revision)
VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb, %s, %s, %s)
ON CONFLICT (id) DO UPDATE SET
    created_at_ms = excluded.created_at_ms, updated_at_ms = excluded.updated_at_ms, status = excluded.status,
    title = excluded.title, labels = excluded.labels, metadata = excluded.metadata, checkpoint = excluded.checkpoint,
    revision = excluded.revision
WHERE stored.tenant = excluded.tenant
    AND (stored.revision, stored.updated_at_ms) <= (excluded.revision, excluded.updated_at_ms)
RETURNING 1
"""


class PostgresIndex(SessionIndex):
    """An index that hosts share through a PostgreSQL server."""

    def __init__(self, connection: PostgresConnection, schema: str) -> None:
        self._connection = connection
        self._sessions = sql.Identifier(schema, SESSIONS_TABLE)

    @classmethod
    async def open(cls, settings: PostgresSettings) -> Self:
        """Connect, and make the tables when they are missing; several hosts may do so at once.

        Args:
            settings: Where it is.

        Raises:
            UnavailableError: The server cannot be reached.
            AccessError: The server refuses this user.
            UnsupportedFormatError: A newer version made the tables; nothing is changed.
            CorruptDataError: There are tables of these names that are not the index's.
            StoreRefusedError: The database's encoding is not UTF-8.
        """
        connection = PostgresConnection(settings)
        try:
            await connection.run(lambda _: None)
        except BaseException:
            await connection.close()
            raise
        return cls(connection, settings.schema)

    async def put(self, record: SessionRecord) -> bool:
        """Show a record to the other hosts (see `SessionIndex.put`)."""
        wanted = checked(record, least_revision=1)

        def put(connection: Connection) -> bool:
            with connection.transaction():
                if connection.execute(self._statement(_PUT), to_row(wanted)).fetchone() is not None:
                    return True
                met = connection.execute(self._statement(_TENANT_OF), (wanted.id,)).fetchone()
                if met is None or met[0] != wanted.tenant:
                    raise ForbiddenError(f"session {wanted.id!r} is not for tenant {wanted.tenant!r}")
                return False

        return await self._connection.run(put)

    async def get(self, tenant: str, session: SessionId) -> SessionRecord:
        """Give a session's record (see `SessionLookup.get`)."""
        rows = await self._rows(_OF_TENANT, (checked_tenant(tenant), checked_id(session)))
        if not rows:
            raise NotFoundError(f"tenant {tenant!r} has no session {session!r} in the index")
        return rows[0]

    async def list(self, tenant: str, after: str = "", limit: int = DEFAULT_PAGE) -> Records:
        """List a tenant's sessions (see `SessionLookup.list`)."""
        return await self._rows(_PAGE_OF_TENANT, (checked_tenant(tenant), *checked_page(after, limit)))

    async def close(self) -> None:
        """Disconnect (see `SessionLookup.close`)."""
        await self._connection.close()

    def _statement(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(sessions=self._sessions)

    async def _rows(self, text: str, values: tuple[object, ...]) -> Records:
        statement = self._statement(text)
        rows = await self._connection.run(lambda link: link.execute(statement, values).fetchall())
        return [from_row(row) for row in rows]
