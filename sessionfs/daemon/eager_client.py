"""Whole sessions at once, for ``--eager``.

A session's first use waits until every byte of it is in the staging directory, verified; one file that cannot be
had fails that use, and leaves nothing there. Each file moves into the working copy when a program first opens it,
which then needs no store.
"""

from __future__ import annotations

import contextlib
import os
import stat

import trio

from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.formats.link_messages import Fetched, SessionFound, SessionRefreshed
from sessionfs.model.errors import SessionFSError
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import StateLayout

_CONCURRENT_FETCHES = 16


class _Visit:
    """A session whose files are coming, or have come."""

    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.error: SessionFSError | None = None


class EagerClient(ReplicationClient):
    """A `ReplicationClient` that brings a session's files before it says what it found.

    Args:
        log: As for `ReplicationClient`.
        layout: Where files are staged, and where the working copy's directories are.
        timeout_seconds: As for `ReplicationClient`.
    """

    def __init__(self, log: IntentLog, *, layout: StateLayout, timeout_seconds: float) -> None:
        super().__init__(log, timeout_seconds=timeout_seconds)
        self._layout = layout
        self._staged: dict[int, Fetched] = {}
        self._visits: dict[str, _Visit] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """As `ReplicationClient.run`; sessions are brought by tasks of it."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await super().run()

    async def open_session(self, session: str) -> SessionFound:
        """Say what is known of a session, once all of it is here.

        Whoever asks may give up: the files go on coming, and the next one who asks waits for the rest.
        """
        found = await super().open_session(session)
        if not found.exists or found.root is None or self._nursery is None:
            return found
        visit = self._visits.get(session)
        if visit is None:
            visit = self._visits[session] = _Visit()
            self._nursery.start_soon(self._visit, session, found.root.number, visit)
        await visit.ended.wait()
        if visit.error is not None:
            raise visit.error
        return found

    async def _visit(self, session: str, root: int, visit: _Visit) -> None:
        path = os.path.join(os.fsencode(self._layout.sessions), os.fsencode(session))
        try:
            await self._bring(await self._absent_files(root, path))
        except SessionFSError as error:
            visit.error = error
            del self._visits[session]  # the next one who asks tries again
        finally:
            visit.ended.set()

    async def refresh_session(self, session: str) -> SessionRefreshed:
        """Compare a foreign session with the bucket; what has changed there is fetched anew when it is opened."""
        changes = await super().refresh_session(session)
        for number in changes.files:
            self._discard(self._staged.pop(number, None))
        return changes

    async def fetch(self, number: int) -> Fetched:
        """Give a file that is staged already, else bring it."""
        staged = self._staged.pop(number, None)
        if staged is not None:
            return staged
        return await super().fetch(number)

    async def _absent_files(self, root: int, path: bytes) -> list[int]:
        """Walk a session: what the bucket has and this disk has not, below directories of either."""
        files: list[int] = []
        waiting: list[tuple[int, bytes]] = [(root, path)]
        while waiting:
            number, path = waiting.pop()
            directories = _directories_on_disk(path)
            for entry in (await self.list_children(number)).entries:
                if stat.S_ISDIR(entry.mode):
                    directories[entry.name] = entry.number
                elif stat.S_ISREG(entry.mode) and not entry.present:
                    files.append(entry.number)
            waiting += [(inner, os.path.join(path, name)) for name, inner in directories.items()]
        return files

    async def _bring(self, files: list[int]) -> None:
        """Stage files, all or none.

        Raises:
            SessionFSError: Of the first that cannot be had.
        """
        staged: dict[int, Fetched] = {}
        failures: list[SessionFSError] = []
        waiting = iter(dict.fromkeys(files))

        async def some() -> None:
            for number in waiting:
                if failures:
                    return
                try:
                    staged[number] = await super(EagerClient, self).fetch(number)
                except SessionFSError as error:
                    failures.append(error)

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(_CONCURRENT_FETCHES):
                    nursery.start_soon(some)
            if failures:
                raise failures[0]
        except BaseException:
            for fetched in staged.values():
                self._discard(fetched)
            raise
        self._staged.update(staged)

    def _discard(self, fetched: Fetched | None) -> None:
        if fetched is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(fetched))

    def _path(self, fetched: Fetched) -> str:
        return os.path.join(self._layout.staging, fetched.staged)


def _directories_on_disk(path: bytes) -> dict[bytes, int]:
    """Give the directories that are here, by name; a directory's number is its inode's."""
    try:
        with os.scandir(path) as entries:
            return {entry.name: entry.inode() for entry in entries if entry.is_dir(follow_symlinks=False)}
    except FileNotFoundError:
        return {}
