"""What a catalogue promises: the authoritative one of a host, and the index that hosts share.

Rules that hold for both:

* Each call names a tenant and sees that tenant's sessions only; another tenant's session is, to a reader, not there. Only `Catalogue.scan`, for the
  host itself, sees all.
* A request is checked before any database is asked; what is refused changed nothing.
* A change happens whole or not at all, also when the call is cancelled or the process dies.
* Listings ascend by id (UTF-8 bytes); a page that is shorter than its limit is the last.
* Use from tasks of one event loop; each call waits for its turn. What was closed raises `HandleClosedError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from sessionfs.model.names import SessionId
from sessionfs.sessions.catalogue.record import DEFAULT_PAGE, Records, SessionRecord


class SessionLookup(ABC):
    """What can be read of a tenant's sessions. Use as an asynchronous context manager, or `close` it."""

    @abstractmethod
    async def get(self, tenant: str, session: SessionId) -> SessionRecord:
        """Give a session's record.

        Args:
            tenant: Whose it is.
            session: The session.

        Raises:
            NotFoundError: This tenant has no such session, and that is certain.
            InvalidRequestError: Either can be none.
        """

    @abstractmethod
    async def list(self, tenant: str, after: str = "", limit: int = DEFAULT_PAGE) -> Records:
        """List a tenant's sessions by ascending id.

        Args:
            tenant: Whose.
            after: Only ids behind this one, which need not exist; "" for all.
            limit: At most so many, 1 to 1000.

        Raises:
            InvalidRequestError: The tenant or the id can be none, or the limit is out of range.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of the database; waits for the call under way. Repeating it changes nothing; it is not cancelled."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


class Catalogue(SessionLookup):
    """The authoritative catalogue: what it says exists, exists."""

    @abstractmethod
    async def create(self, record: SessionRecord) -> SessionRecord:
        """Note a new session.

        Args:
            record: A draft: its revision is 0. `created_at_ms` is now when it is 0.

        Returns:
            The record as it was stored, with revision 1.

        Raises:
            AlreadyExistsError: The id is taken, by whichever tenant; nothing was changed.
            InvalidRequestError: The record breaks a limit.
        """

    @abstractmethod
    async def save(self, record: SessionRecord) -> SessionRecord:
        """Replace a session's record with one that was made from it; never makes a session.

        Args:
            record: What was read, with other values; its revision is the one that was read. The time of creation stays as it is.

        Returns:
            The record as it was stored, with the next revision.

        Raises:
            NotFoundError: This tenant has no such session.
            PreconditionFailedError: It was changed since it was read; nothing was changed now.
            InvalidRequestError: The record breaks a limit.
        """

    @abstractmethod
    async def import_(self, record: SessionRecord) -> SessionRecord:
        """Take over a record of another catalogue as it is, or replace what is here with it; once more changes nothing.

        Args:
            record: A record that exists: its revision is at least 1.

        Returns:
            The record as it is now stored: its revision is higher than what it replaced, so that no save from before succeeds.

        Raises:
            ForbiddenError: The session is another tenant's; it was left as it is.
            InvalidRequestError: The record breaks a limit.
        """

    @abstractmethod
    async def scan(self, after: str = "", limit: int = DEFAULT_PAGE) -> Records:
        """List the sessions of all tenants by ascending id. For the host only: never for a caller that acts for a tenant.

        Args:
            after: As for `list`.
            limit: As for `list`.

        Raises:
            InvalidRequestError: As for `list`.
        """


class SessionIndex(SessionLookup):
    """The index that hosts share: written after a checkpoint is published, so it may lag behind the catalogues; never used for locking."""

    @abstractmethod
    async def put(self, record: SessionRecord) -> bool:
        """Show a record to the other hosts. Repeating it is safe.

        Args:
            record: A record that exists: its revision is at least 1.

        Returns:
            Whether the index shows it now; False when it has a newer one (by revision, then by time of change), which stays.

        Raises:
            ForbiddenError: The session is another tenant's; it was left as it is.
            UnavailableError: The index did not answer; try again.
            InvalidRequestError: The record breaks a limit.
        """
