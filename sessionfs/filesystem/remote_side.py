"""What the Core asks of the replication process. The daemon implements it over the link; tests implement it in memory.

Every call waits; every call may raise a `SessionFSError` (``UnavailableError`` for a store that did not answer in time), which ``errno_map`` turns
into EIO, never into ENOENT.
"""

from __future__ import annotations

from typing import Protocol

from sessionfs.formats.commit_messages import Committed
from sessionfs.formats.link_message import Entry, SessionRefreshed
from sessionfs.formats.link_messages import (
    Children,
    Description,
    Fetched,
    SessionFound,
)
from sessionfs.formats.ownership_messages import Claimed


class RemoteSide(Protocol):
    """The replication process as the Core sees it. Operations logged before a call are known to its answer."""

    async def open_session(self, session: str) -> SessionFound:
        """Say what is known of a session; asks the store when the journal has not."""

    async def list_sessions(self) -> list[str]:
        """Name the sessions in the bucket; at most ``foreign_lag_seconds`` old."""

    async def list_shared_roots(self) -> list[str]:
        """Name the shared roots in the bucket; as `list_sessions`."""

    async def list_children(self, directory: int) -> Children:
        """List the names in a directory that are not present or whose number is not the working copy's."""

    async def refresh_session(self, session: str, *, known: int) -> SessionRefreshed:
        """Compare a foreign session with the bucket.

        Args:
            session: The session.
            known: The version that was heard last.
        """

    async def fetch(self, number: int) -> Fetched:
        """Bring a remote file's verified bytes into staging."""

    async def fetch_block(self, number: int, block: int, partial: str, sha256: str) -> None:
        """Write one verified block of a content into a file in staging.

        Args:
            number: The file whose content it is.
            block: Which, from 0.
            partial: Name below staging of a file that is as long as the content.
            sha256: Of the whole content.

        Raises:
            ObjectNotFoundError: The content is nowhere any more, and the file has another, or is gone.
            CorruptDataError: No object has this block as its sum says.
        """

    async def finish_blocks(self, number: int, partial: str, sha256: str) -> Entry:
        """Bring a file in staging that has all its blocks to the disk, and say how it must look in the working copy.

        Raises:
            ObjectNotFoundError: The file has another content by now, or is gone.
        """

    async def flush(self, number: int) -> None:
        """Return when the file's bytes (a directory: its own entries) are in the bucket."""

    async def describe(self, number: int) -> Description:
        """Say how a file stands."""

    async def claim(self, session: str, *, known: int, force: bool = False) -> Claimed:
        """Become the owner of a session before its first change; of one that is owned already, say what is still old here.

        Raises:
            SessionAlreadyOwnedError: Another host owns it.
        """

    async def commit(self, session: str, trigger: str, *, is_turn: bool = False) -> Committed:
        """Commit a session; returns when the generation is in the bucket."""

    async def release(self, session: str) -> None:
        """Give a session up after a last commit; returns when the record says so."""

    async def list_generations(self, session: str) -> list[int]:
        """Number the generations of a session that can be shown, ascending."""

    async def session_status(self, session: str) -> bytes:
        """Give the JSON text of ``.sessionfs/status``."""
