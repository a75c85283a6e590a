"""All of a session's bytes: before it is shown (``eager``), or behind it, in the background (``prefetch``).

Both bring files the way an open does, each once: a program that wants one of them meanwhile joins the wait for it. Files that say what the others
are (``index.json``, ``session.json``) come when all others are here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

import structlog
import trio

from sessionfs.filesystem.inodes import Directory, Node
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.link_message import Entry
from sessionfs.model.errors import SessionFSError

_log = structlog.get_logger(__name__)

_EAGER_FILES = 16
_PREFETCHED_FILES = 4
_LEAST_FREE_PERCENT = 10

_INDEX_NAMES = frozenset({b"index.json", b"session.json"})

_File = tuple[int, Directory, bytes, int]
"""Length, directory, name, number."""


class WholeSessions:
    """Brings whole sessions.

    Args:
        volume: The mount.
        loading: Brings names and bytes.
    """

    def __init__(self, volume: Volume, loading: Loading) -> None:
        self._volume = volume
        self._loading = loading
        self._table = volume.table
        self._send, self._receive = trio.open_memory_channel[Directory](100)
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Prefetch one session after the other, until `stop`."""
        with self._scope:
            async for root in self._receive:
                try:
                    await self._prefetch(root)
                except (OSError, SessionFSError) as problem:
                    _log.warning("prefetch.ended", reason=str(problem))
                finally:
                    self._table.forget(root.number, 1)

    def stop(self) -> None:
        """Let `run` return."""
        self._scope.cancel()

    def prefetch_later(self, root: Directory) -> None:
        """Let a session's files be fetched in the background; with very many sessions waiting, not this one's."""
        try:
            self._send.send_nowait(root)
        except trio.WouldBlock:
            return
        root.lookups += 1

    async def bring(self, root: Directory) -> None:
        """Fetch every file of a session.

        Raises:
            OSError, SessionFSError: The first that could not be had; those under way are finished.
        """
        held: list[Node] = []
        try:
            for files in _index_last(await self._absent_files(root, held)):
                await self._bring(files, _EAGER_FILES)
        finally:
            self._let_go(held)

    async def _prefetch(self, root: Directory) -> None:
        held: list[Node] = []
        try:
            files = await self._absent_files(root, held)
            files.sort(key=lambda file: file[0])
            for part in _index_last(files):
                await self._bring(part, _PREFETCHED_FILES, room=True)
        finally:
            self._let_go(held)

    # --- which

    async def _absent_files(self, root: Directory, held: list[Node]) -> list[_File]:
        """Walk a session; directories are held, so that their files can be reached."""
        files: list[_File] = []
        numbers: set[int] = set()
        waiting = [root]
        while waiting:
            directory = waiting.pop()
            await self._loading.ready(directory)
            for name, override in directory.overrides.items():
                if not isinstance(override, Entry) or not stat.S_ISREG(override.mode):
                    continue
                if override.number not in numbers:
                    numbers.add(override.number)
                    files.append((override.size_bytes, directory, name, override.number))
            for below in self._directories(directory):
                below.lookups += 1
                held.append(below)
                waiting.append(below)
        return files

    def _directories(self, directory: Directory) -> Iterator[Directory]:
        table = self._table
        with os.scandir(table.open_listing(directory)) as entries:
            names = [os.fsencode(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in names:
            if not table.hides(directory, name):
                node = table.obtain(directory, name, table.find(directory, name))
                if isinstance(node, Directory):
                    yield node

    def _let_go(self, held: list[Node]) -> None:
        for node in reversed(held):
            self._table.forget(node.number, 1)

    # --- their bytes

    async def _bring(self, files: list[_File], limit: int, *, room: bool = False) -> None:
        problems: list[OSError | SessionFSError] = []
        waiting = iter(files)

        async def some() -> None:
            for _, directory, name, number in waiting:
                if problems or (room and not self._has_room()):
                    return
                try:
                    await self._bring_one(directory, name, number)
                except (OSError, SessionFSError) as problem:
                    problems.append(problem)

        async with trio.open_nursery() as nursery:
            for _ in range(limit):
                nursery.start_soon(some)
        if problems:
            raise problems[0]

    async def _bring_one(self, directory: Directory, name: bytes, number: int) -> None:
        table = self._table
        try:
            found = table.find(directory, name)
        except OSError:
            return  # removed meanwhile
        if found[0] != number:
            return
        node = table.obtain(directory, name, found)
        node.lookups += 1
        try:
            await self._loading.bring(node)
        except OSError as problem:
            if problem.errno != errno.ESTALE:
                raise
        finally:
            table.forget(number, 1)

    def _has_room(self) -> bool:
        disk = os.statvfs(self._volume.layout.staging)
        return disk.f_bavail * 100 >= disk.f_blocks * _LEAST_FREE_PERCENT


def _index_last(files: list[_File]) -> tuple[list[_File], list[_File]]:
    """Part files into those that come first and those that say what the others are."""
    first = [file for file in files if file[2] not in _INDEX_NAMES]
    return first, [file for file in files if file[2] in _INDEX_NAMES]
