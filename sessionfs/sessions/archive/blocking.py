"""The archive for programs that have no event loop: each call waits in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence

from sessionfs.sessions.archive.archive import Archive, Checkpoint
from sessionfs.sessions.portal import Portal


class BlockingArchive:
    """`Archive`, call by call. Safe to use from several threads.

    Args:
        archive: The archive.
        portal: Where its calls run.
    """

    def __init__(self, archive: Archive, portal: Portal) -> None:
        self._archive = archive
        self._portal = portal

    def publish(self, session: str, directory: str, paths: Sequence[str] | None = None) -> Checkpoint:
        """As `Archive.publish`."""
        return self._portal.run(self._archive.publish, session, directory, paths)

    def latest(self, session: str) -> Checkpoint | None:
        """As `Archive.latest`."""
        return self._portal.run(self._archive.latest, session)

    def restore(self, session: str, directory: str, *, checkpoint: str = "") -> Checkpoint:
        """As `Archive.restore`."""

        async def call() -> Checkpoint:
            return await self._archive.restore(session, directory, checkpoint=checkpoint)

        return self._portal.run(call)
