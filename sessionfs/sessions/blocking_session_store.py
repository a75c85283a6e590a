"""The session store for programs without an event loop: every operation of ``SessionStore``, as a call that waits.

Safe to use from several threads at once. After the end of its ``with`` every call raises `HandleClosedError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sessionfs.model.settings import ReplicationSettings
from sessionfs.sessions.portal import Portal
from sessionfs.sessions.store.opening import open_session_store
from sessionfs.sessions.store.session_store import Line, SessionStore

if TYPE_CHECKING:
    from sessionfs.formats.logs.json_lines import Window
    from sessionfs.formats.store_settings import StoreSettings
    from sessionfs.model.names import SessionId
    from sessionfs.sessions.port import FileStat


class BlockingSessionStore:
    """A session store whose operations wait; each is described, with what it raises, in `SessionStore`.

    Args:
        store: The store.
        portal: Runs its operations.
    """

    def __init__(self, store: SessionStore, portal: Portal) -> None:
        self._store = store
        self._portal = portal

    def read_index(self) -> dict[str, Any]:
        """Read the index; a missing one is empty."""
        return self._portal.run(self._store.read_index)

    def write_index(self, index: dict[str, Any]) -> None:
        """Replace the index."""
        self._portal.run(self._store.write_index, index)

    def quarantine_index(self) -> str | None:
        """Set the index aside; gives the aside's name, None when there was no index."""
        return self._portal.run(self._store.quarantine_index)

    def list_sessions(self) -> list[SessionId]:
        """Name the sessions that have a file, sorted."""
        return self._portal.run(self._store.list_sessions)

    def remove_session(self, session: str) -> None:
        """Remove all files of a session."""
        self._portal.run(self._store.remove_session, session)

    def read_file(self, session: str, path: str) -> bytes:
        """Read a whole file."""
        return self._portal.run(self._store.read_file, session, path)

    def write_file(self, session: str, path: str, body: bytes) -> None:
        """Replace a file, or make it."""
        self._portal.run(self._store.write_file, session, path, body)

    def append(self, session: str, path: str, line: Line) -> None:
        """Add one line and its newline."""
        self._portal.run(self._store.append, session, path, line)

    def list_files(self, session: str) -> list[str]:
        """List the paths of all files of a session, sorted."""
        return self._portal.run(self._store.list_files, session)

    def replay(self, session: str, path: str) -> list[bytes]:
        """Give the lines of a file that say something new."""
        return self._portal.run(self._store.replay, session, path)

    def read_tail(self, session: str, path: str, budget_bytes: int) -> Window:
        """Give the last whole lines of a file."""
        return self._portal.run(self._store.read_tail, session, path, budget_bytes)

    def read_before(self, session: str, path: str, offset: int, budget_bytes: int) -> Window:
        """Give the last whole lines before an offset."""
        return self._portal.run(self._store.read_before, session, path, offset, budget_bytes)

    def stat(self, session: str, path: str) -> FileStat:
        """Describe a file."""
        return self._portal.run(self._store.stat, session, path)

    def write_private(self, session: str, path: str, body: bytes) -> None:
        """Replace a file that only the owner may read."""
        self._portal.run(self._store.write_private, session, path, body)

    def remove_file(self, session: str, path: str) -> None:
        """Remove a file."""
        self._portal.run(self._store.remove_file, session, path)

    def rename_file(self, session: str, path: str, new: str) -> None:
        """Give a file another path."""
        self._portal.run(self._store.rename_file, session, path, new)


@contextmanager
def open_blocking_session_store(
    store: str | StoreSettings | None = None,
    *,
    capabilities_file: str | None = None,
    settings: ReplicationSettings | None = None,
) -> Iterator[BlockingSessionStore]:
    """Open a session store for a program without an event loop; takes and raises what `open_session_store` does."""
    with Portal() as portal:
        opening = open_session_store(store, capabilities_file=capabilities_file, settings=settings)
        opened, leave = portal.enter(opening)
        try:
            yield BlockingSessionStore(opened, portal)
        finally:
            leave()
