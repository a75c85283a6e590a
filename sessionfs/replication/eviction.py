"""Keeps the working copy below its limit: clean files leave this disk, least recently used first, and stay in the bucket.

Rules:

* Nothing is deleted in the bucket, and what is not certainly there stays here: a file leaves only after a HEAD, made for
  it just now, has shown the very object that the journal knows.
* What is owed, under way, written, open, excluded, linked twice or changed without a record stays. The daemon has the last
  word: it knows who has a file open, and asks the kernel who may still write it.
* The uploader does not touch a key while its file leaves.
* Only after activity, like the sweep: an idle mount does nothing.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio

from sessionfs.formats import extended_attributes
from sessionfs.formats.link_messages import (
    Evict,
)
from sessionfs.model import keys
from sessionfs.model.errors import SessionFSError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, TrioStore, write_id_of
from sessionfs.replication.uploads.attempts import known_object
from sessionfs.replication.uploads.working_files import WorkingFiles, identity_of
from sessionfs.stores.base import ObjectStat
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_log = structlog.get_logger("sessionfs.eviction")

_TARGET_PERCENT = 90
_LEAST_FREE_PERCENT = 5
_FREE_AFTERWARDS_PERCENT = 6
_CONCURRENT = 8
_SLICE_FILES = 100
_SPARE_FACTOR = 2
"""Some of those chosen stay, because the daemon or the bucket objects: others must stand by."""
_BLOCK_BYTES = 512
_OWN_PREFIX = "user.sessionfs."

Identity = tuple[int, int, int]
DiskSpace = Callable[[str], tuple[int, int]]
"""Gives the free and all bytes of a path's disk."""


class EvictionGate(Protocol):
    """The daemon, which decides."""

    async def evict(self, request: Evict) -> bool:
        """Remove a clean file's bytes if nothing uses them."""


class KeyHolder(Protocol):
    """The uploader, which must not touch a key meanwhile."""

    def hold(self, key: str) -> bool:
        """Keep a key from being touched; False when it is under way."""

    def release(self, key: str) -> None:
        """Let it be touched again."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A clean file that may leave.

    Attributes:
        number: The file.
        path: Its path, session first.
        size_bytes: What it takes on the disk.
        identity: As the bucket has it.
        used_ns: When it was last read, and changed.
        known: Its object.
    """

    number: int
    path: bytes
    size_bytes: int
    identity: Identity
    used_ns: tuple[int, int]
    known: KnownObject


def disk_space(path: str) -> tuple[int, int]:
    """Give the free and all bytes of the disk that holds a path."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class Evictor:
    """Evicts clean files.

    Args:
        journal: What is clean.
        store: Is asked before a file leaves.
        layout: Where the working copy is.
        settings: The limit, and how often to look.
        exclusions: Names that the bucket never has.
        daemon: Removes the bytes.
        uploader: Leaves held keys alone.
        space: How full the disk is.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        settings: ReplicationSettings,
        exclusions: Exclusions,
        *,
        daemon: EvictionGate,
        uploader: KeyHolder,
        space: DiskSpace = disk_space,
    ) -> None:
        self._journal = journal
        self._store = store
        self._layout = layout
        self._settings = settings
        self._exclusions = exclusions
        self._daemon = daemon
        self._uploader = uploader
        self._space = space
        self._files = WorkingFiles(layout)
        self._activity = trio.Event()

    def note_activity(self) -> None:
        """Let the next look happen: something was written, fetched or uploaded."""
        self._activity.set()

    async def run(self) -> None:
        """Look after activity, at most every ``sweep_interval_seconds``; once more after the last."""
        while self._settings.cache_limit_bytes:
            await self._activity.wait()
            await trio.sleep(self._settings.sweep_interval_seconds)
            self._activity = trio.Event()
            try:
                await self.relieve()
            except SessionFSError as problem:
                _log.warning("nothing was evicted", problem=str(problem))

    async def relieve(self) -> int:
        """Evict until the working copy is below 90 percent of its limit, and its disk is not nearly full.

        Returns:
            Bytes that left this disk.

        Raises:
            SessionFSError: The store could not confirm a file; those evicted before have left.
        """
        excess_bytes = await self._excess_bytes()
        if excess_bytes <= 0:
            return 0
        freed = _Freed(excess_bytes)
        candidates = await self._candidates(excess_bytes * _SPARE_FACTOR)

        async def one(candidate: _Candidate) -> None:
            freed.settle(candidate.size_bytes, left=await self._evict(candidate))

        try:
            await for_each(freed.choose(candidates), one, limit=_CONCURRENT)
        finally:
            if freed.files:
                _log.info("evicted", files=freed.files, bytes=freed.done_bytes)
        return freed.done_bytes

    # --- how much

    async def _excess_bytes(self) -> int:
        limit = self._settings.cache_limit_bytes
        used = await trio.to_thread.run_sync(_used_bytes, self._layout.sessions)
        excess = used - limit * _TARGET_PERCENT // 100 if limit and used > limit else 0
        free, total = self._space(self._layout.root)
        if free * 100 < total * _LEAST_FREE_PERCENT:
            excess = max(excess, total * _FREE_AFTERWARDS_PERCENT // 100 - free)
        return excess

    # --- which

    async def _candidates(self, wanted_bytes: int) -> list[_Candidate]:
        """Choose clean files, least recently used first, that together have so many bytes; no more are remembered."""
        heap: list[tuple[int, int, int, _Candidate]] = []
        chosen_bytes = 0
        after = 0
        while rows := self._journal.clean_files(after, _SLICE_FILES):
            after = rows[-1][0]
            for number, _identity in rows:
                found = self._candidate(number)
                if found is None:
                    continue
                used_ns, changed_ns = found.used_ns
                heapq.heappush(heap, (-used_ns, -changed_ns, number, found))
                chosen_bytes += found.size_bytes
                while chosen_bytes - heap[0][3].size_bytes >= wanted_bytes:
                    chosen_bytes -= heapq.heappop(heap)[3].size_bytes
            await trio.lowlevel.checkpoint()
        return sorted((row[3] for row in heap), key=lambda found: found.used_ns)

    def _candidate(self, number: int) -> _Candidate | None:
        """Describe a file as it is now; None when it must stay."""
        node = self._journal.node(number)
        places = self._journal.paths_of(number)
        if node is None or not node.present or node.writers or len(places) != 1 or not node.sha256:
            return None
        session, path = places[0]
        key = keys.live_key(session, path, is_directory=False)
        if key is None or self._exclusions.match(path):
            return None
        known = self._journal.object(key)
        if known is None or known.number != number or known.sha256 != node.sha256:
            return None
        if self._journal.work(key) is not None or self._journal.attempts(key):
            return None
        try:
            status = self._files.status(session, path)
        except OSError:
            return None
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            return None
        if identity_of(status) != node.clean_identity or not status.st_blocks:
            return None
        return _Candidate(
            number=number,
            path=session.encode() + b"/" + path,
            size_bytes=status.st_blocks * _BLOCK_BYTES,
            identity=node.clean_identity,
            used_ns=(status.st_atime_ns, status.st_mtime_ns),
            known=known,
        )

    # --- one file

    async def _evict(self, candidate: _Candidate) -> bool:
        """Let one file leave, if it still may."""
        key = candidate.known.key
        if not self._uploader.hold(key):
            return False
        try:
            if not await self._is_in_bucket(candidate.known):
                return False
            now = self._candidate(candidate.number)
            if now is None or (now.path, now.identity, now.known) != (
                candidate.path, candidate.identity, candidate.known,
            ):  # fmt: skip
                return False
            try:
                xattrs = _read_xattrs(os.path.join(os.fsencode(self._layout.sessions), candidate.path))
            except OSError:
                return False
            # While the bytes are not here, the journal alone knows them.
            self._journal.update_node(candidate.number, xattrs=extended_attributes.pack(xattrs))
            sha256 = candidate.known.sha256
            by_blocks = self._journal.can_come_by_blocks(sha256, candidate.known.size_bytes)
            return await self._daemon.evict(
                Evict(
                    candidate.number,
                    *candidate.identity,
                    path=candidate.path,
                    blocks_of=sha256 if by_blocks else "",
                )
            )
        finally:
            self._uploader.release(key)

    async def _is_in_bucket(self, known: KnownObject) -> bool:
        """Ask whether the object is still the one known: else the bytes here may be the last of their kind."""
        found = await self._store.head(known.key, tries=READ_TRIES)
        return (
            found is not None
            and found.token == known.token
            and found.size_bytes == known.size_bytes
            and (write_id_of(found) == known.write_id or (not known.write_id and _has_sum(found, known)))
        )


def _has_sum(found: ObjectStat, known: KnownObject) -> bool:
    """Whether an object says of itself that it has the bytes that a manifest names; a manifest does not tell who wrote it."""
    return known.sha256 != "" and known_object(found, known.key, 0).sha256 == known.sha256


class _Freed:
    """Counts what left and what is about to, so that no more is chosen than must leave."""

    def __init__(self, wanted_bytes: int) -> None:
        self._wanted_bytes = wanted_bytes
        self._open_bytes = 0
        self.done_bytes = 0
        self.files = 0

    def choose(self, candidates: list[_Candidate]) -> Iterator[_Candidate]:
        for candidate in candidates:
            if self.done_bytes + self._open_bytes >= self._wanted_bytes:
                return
            self._open_bytes += candidate.size_bytes
            yield candidate

    def settle(self, size_bytes: int, *, left: bool) -> None:
        self._open_bytes -= size_bytes
        if left:
            self.done_bytes += size_bytes
            self.files += 1


def _used_bytes(root: str) -> int:
    """Sum up what the regular files below a directory take; what vanishes meanwhile takes nothing."""
    total = 0
    linked: set[int] = set()
    waiting = [root]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode) or (status.st_nlink > 1 and status.st_ino in linked):
                continue
            if status.st_nlink > 1:
                linked.add(status.st_ino)
            total += status.st_blocks * _BLOCK_BYTES
    return total


def _read_xattrs(path: bytes) -> dict[bytes, bytes]:
    return {
        os.fsencode(name): os.getxattr(path, name, follow_symlinks=False)
        for name in os.listxattr(path, follow_symlinks=False)
        if not name.startswith(_OWN_PREFIX)
    }
