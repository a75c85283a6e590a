"""The catalogue and the index for programs without an event loop: each method hands its call to a thread that has one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

from sessionfs.model.names import SessionId
from sessionfs.sessions.catalogue.port import Catalogue, SessionIndex, SessionLookup
from sessionfs.sessions.catalogue.record import DEFAULT_PAGE, Records, SessionRecord
from sessionfs.sessions.portal import Portal

Door = TypeVar("Door", bound=SessionLookup)


class BlockingLookup(Generic[Door]):
    """What both forms share. Use as a context manager, or `close` it; safe to use from several threads.

    Args:
        opening: Opens the asynchronous form.
        portal: Where calls run; None for a thread of its own, which ends at `close`.
    """

    def __init__(self, opening: Callable[[], Awaitable[Door]], portal: Portal | None = None) -> None:
        self._portal = portal or Portal()
        self._is_portal_ours = portal is None
        self._is_closed = False
        try:
            self._door = self._portal.run(opening)
        except BaseException:
            self._close_portal()
            raise

    def get(self, tenant: str, session: SessionId) -> SessionRecord:
        """Give a session's record (see `SessionLookup.get`)."""
        return self._portal.run(self._door.get, tenant, session)

    def list(self, tenant: str, after: str = "", limit: int = DEFAULT_PAGE) -> Records:
        """List a tenant's sessions (see `SessionLookup.list`)."""
        return self._portal.run(self._door.list, tenant, after, limit)

    def close(self) -> None:
        """Let go of the database (see `SessionLookup.close`)."""
        if not self._is_closed:
            self._is_closed = True
            self._portal.run(self._door.close)
            self._close_portal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _close_portal(self) -> None:
        if self._is_portal_ours:
            self._portal.close()


class BlockingCatalogue(BlockingLookup[Catalogue]):
    """An authoritative catalogue, as ``BlockingCatalogue(lambda: SqliteCatalogue.open(path, clock))``."""

    def create(self, record: SessionRecord) -> SessionRecord:
        """Note a new session (see `Catalogue.create`)."""
        return self._portal.run(self._door.create, record)

    def save(self, record: SessionRecord) -> SessionRecord:
        """Replace a record with one that was made from it (see `Catalogue.save`)."""
        return self._portal.run(self._door.save, record)

    def import_(self, record: SessionRecord) -> SessionRecord:
        """Take over a record of another catalogue (see `Catalogue.import_`)."""
        return self._portal.run(self._door.import_, record)

    def scan(self, after: str = "", limit: int = DEFAULT_PAGE) -> Records:
        """List the sessions of all tenants (see `Catalogue.scan`)."""
        return self._portal.run(self._door.scan, after, limit)


class BlockingIndex(BlockingLookup[SessionIndex]):
    """A shared index, as ``BlockingIndex(lambda: PostgresIndex.open(settings))``."""

    def put(self, record: SessionRecord) -> bool:
        """Show a record to the other hosts (see `SessionIndex.put`)."""
        return self._portal.run(self._door.put, record)
