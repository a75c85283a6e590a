"""The files of a session with an event for every change of them, also for those that others make: through a mount, or with another tool.

How it is known what changed:

* For each file there is what was last seen: its revision, and sums of its bytes (`fingerprint`).
* Before a change of ours the file is looked at; what others did to it meanwhile is announced first. An append is sent on condition that the file
  is still the one that was seen.
* `find_foreign_changes` compares the place's listing with what was last seen. A file that grew is read, and is an append only when the sums of its
  first bytes are the old ones. What stands there while it is being written is compared again next time.
* Where a rewrite begins is exact for files up to `KNOWN_FILE_BYTES` whose bytes were seen lately; for others it is where the first piece that
  differs begins, which is never too far.
* A file that is gone and one that is new with the same bytes are a rename.
* A file that changed and cannot be read is told as a rewrite, and bars nothing else; a place that does not answer is an error.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass

import structlog
import trio

from sessionfs.model.errors import (
    AccessError,
    AlreadyExistsError,
    CorruptDataError,
    HandleClosedError,
    LocalDiskError,
    NotFoundError,
    PreconditionFailedError,
    SessionFSError,
)
from sessionfs.sessions.port import FileStat, SessionFiles
from sessionfs.sessions.workspace.observation import events
from sessionfs.sessions.workspace.observation.change_gate import ChangeGate
from sessionfs.sessions.workspace.observation.event_history import EventHistory, KeptFile
from sessionfs.sessions.workspace.observation.fingerprint import (
    Comparison,
    Fingerprint,
    KnownBytes,
    common_prefix_bytes,
)
from sessionfs.sessions.workspace.observation.path_locks import PathLocks
from sessionfs.sessions.workspace.observation.storage_health import StorageHealth
from sessionfs.sessions.workspace.observation.vanished_files import VanishedFiles

KNOWN_FILE_BYTES = 256 << 10
_KNOWN_BYTES = 8 << 20
_READ_BYTES = 4 << 20
_INLINE_BYTES = 1 << 20
"""More is summed in a thread."""
_APPEND_ATTEMPTS = 8
_log = structlog.get_logger("sessionfs.workspace")


@dataclass(slots=True)
class _Seen:
    """What was last seen of a file."""

    stat: FileStat
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class _Examined:
    """A file as it was read now, against what it was.

    Attributes:
        seen: What it is.
        offset: So many first bytes are the same.
        is_same: Length and bytes are the same.
    """

    seen: _Seen
    offset: int
    is_same: bool


class ObservedFiles:
    """The files of one session, watched.

    Args:
        files: The files.
        health: Told how requests end; refuses writes.
        history: Told what changed.
    """

    def __init__(self, files: SessionFiles, health: StorageHealth, history: EventHistory) -> None:
        self._files = files
        self._health = health
        self._history = history
        self._locks = PathLocks()
        self._gate = ChangeGate()
        self._finding = trio.Lock()
        self._seen: dict[str, _Seen] = {}
        self._known = KnownBytes(_KNOWN_BYTES, KNOWN_FILE_BYTES)
        self._is_closed = False
        self._refusal = ""

    def close(self) -> None:
        """Refuse everything from now on."""
        self._is_closed = True
        self._gate.end()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be in a change of several parts: whoever ends it waits for all of them.

        Raises:
            HandleClosedError: It is closed, abandoned, or being closed.
            AlreadyExistsError: It is being published.
        """
        self.require_open()
        with self._gate.change():
            yield

    def shut(self, refusal: Callable[[], SessionFSError]) -> AbstractAsyncContextManager[None]:
        """Refuse changes of other tasks for the length of a block, which begins when those under way have ended.

        Args:
            refusal: What is raised for whoever comes meanwhile.
        """
        return self._gate.shut(refusal)

    def require_open(self) -> None:
        """Go on while the workspace is open.

        Raises:
            HandleClosedError: It is closed or abandoned.
        """
        if self._is_closed:
            raise HandleClosedError("the workspace is closed", remedy="recall the session")

    def refuse_changes(self, reason: str) -> None:
        """Refuse changes from now on, as of something that is there for good."""
        self._refusal = reason

    def require_changeable(self) -> None:
        """Go on while changes are taken.

        Raises:
            HandleClosedError: It is closed or abandoned.
            AlreadyExistsError: What it is, is there for good.
        """
        self.require_open()
        if self._refusal:
            raise AlreadyExistsError(self._refusal)

    # --- reads

    async def stat(self, path: str, *, is_blob: bool = False) -> FileStat:
        """As ``SessionFiles.stat``."""
        with self._asked(is_blob=is_blob):
            return await self._files.stat(path)

    async def read(
        self, path: str, start: int = 0, end: int | None = None, *, is_blob: bool = False
    ) -> bytes:
        """As ``SessionFiles.read``."""
        with self._asked(is_blob=is_blob):
            return await self._files.read(path, start, end)

    async def list(self, below: str = "") -> list[FileStat]:
        """As ``SessionFiles.list``."""
        with self._asked():
            return await self._files.list(below)

    async def sync(self, path: str = "", *, is_blob: bool = False) -> None:
        """As ``SessionFiles.sync``."""
        with self._asked(is_blob=is_blob):
            await self._files.sync(path)

    # --- changes of ours

    async def write(
        self,
        path: str,
        body: bytes,
        *,
        is_private: bool = False,
        is_new: bool = False,
        base: FileStat | None = None,
        is_blob: bool = False,
        is_forced: bool = False,
    ) -> FileStat:
        """As ``SessionFiles.write``; a blob, and what is forced, is sent also while writes are refused."""
        fingerprint = await _summed(body)
        async with self._turn_at(path, is_forced=is_blob or is_forced):
            if not is_new:
                await self._catch_up(path, is_blob=is_blob)
            with self._asked(is_blob=is_blob):
                stat = await self._files.write(path, body, is_private=is_private, is_new=is_new, base=base)
            before = self._seen.get(path)
            if is_new and before is not None:
                self._announce_deleted(path, _length(before), is_foreign=True)
                before = None
            offset = await self._same_beginning(path, before, body)
            self._note(path, _Seen(stat, fingerprint), offset, _length(before))
            self._known.put(path, body)
            return stat

    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        """As ``SessionFiles.append``; to a file that was named it is sent once, and to no other."""
        async with self._turn_at(path):
            if base is not None:
                return await self._append_to(base, path, tail, is_synced=is_synced)
            return await self._append(path, tail, is_synced=is_synced)

    async def remove(self, path: str) -> None:
        """As ``SessionFiles.remove``."""
        async with self._turn_at(path):
            await self._catch_up(path)
            with self._asked():
                await self._files.remove(path)
            before = self._seen.get(path)
            if before is not None:
                self._announce_deleted(path, _length(before), is_foreign=False)

    async def rename(self, path: str, new: str) -> None:
        """As ``SessionFiles.rename``."""
        async with self._turn_at(path, new):
            if path == new:
                await self.stat(path)
                return
            await self._catch_up(path)
            with self._asked():
                await self._files.rename(path, new)
                stat = await self._files.stat(new)
            before = self._seen.get(path)
            if before is None:
                # It came right before it was renamed.
                await self._look(new, stat)
                return
            self._announce_renamed(path, new, _Seen(stat, before.fingerprint), is_foreign=False)
            if stat.size_bytes != before.fingerprint.size_bytes:
                await self._look(new, stat)

    # --- changes of others

    async def begin(self, kept: dict[str, KeptFile] | None, *, sum_bytes: int) -> None:
        """Take what is there as seen, or what an earlier workspace saw.

        Args:
            kept: What an earlier workspace saw, None when nobody did.
            sum_bytes: Read so many bytes, of the smallest files first, to know them; a file that is not known shows its first change as a rewrite.

        Raises:
            UnavailableError: The place did not answer.
        """
        if kept is not None:
            for path, file in kept.items():
                fingerprint = Fingerprint(file.pieces)
                stat = FileStat(path, fingerprint.size_bytes, file.modified_ns, file.revision)
                self._seen[path] = _Seen(stat, fingerprint)
            return
        for stat in sorted(await self.list(), key=lambda one: one.size_bytes):
            sum_bytes -= stat.size_bytes
            self._seen[stat.path] = _Seen(stat, Fingerprint.unknown(stat.size_bytes))
            if sum_bytes >= 0:
                try:
                    self._seen[stat.path] = (await self._examine(stat.path, stat, Fingerprint())).seen
                except NotFoundError:
                    del self._seen[stat.path]

    async def find_foreign_changes(self) -> None:
        """Announce everything that others did since it was last looked; costs a listing, and the bytes of the files that changed.

        Raises:
            UnavailableError: The place did not answer; what was found until then was announced.
        """
        async with self._finding:
            listed = {stat.path: stat for stat in await self.list()}
            vanished = VanishedFiles()
            try:
                for path in [path for path in self._seen if path not in listed]:
                    await self._find_vanished(path, vanished)
                    await self._history.reserve(len(vanished))
                for path, stat in listed.items():
                    seen = self._seen.get(path)
                    if seen is None or seen.stat.revision != stat.revision:
                        async with self._locks.held(path):
                            await self._catch_up(path, vanished, listed=stat)
                        await self._history.reserve(len(vanished))
            finally:
                for path, length in vanished:
                    self._announce_deleted(path, length, is_foreign=True)
        await self._history.reserve()

    def kept_files(self) -> dict[str, KeptFile]:
        """Give what was seen of each file, for a restart."""
        return {
            path: KeptFile(seen.stat.modified_ns, seen.stat.revision, seen.fingerprint.dump())
            for path, seen in self._seen.items()
        }

    # --- how

    @contextmanager
    def _asked(self, *, is_blob: bool = False) -> Iterator[None]:
        self.require_open()
        with self._health.watched(is_blob=is_blob):
            yield

    @asynccontextmanager
    async def _turn_at(self, *paths: str, is_forced: bool = False) -> AsyncIterator[None]:
        """Be in a change of paths; numbers for the next events are reserved behind it."""
        with self.changing():
            await self._require_writable(paths[0], is_forced=is_forced)
            async with self._locks.held(*paths):
                yield
            await self._history.reserve()

    async def _require_writable(self, path: str, *, is_forced: bool = False) -> None:
        self.require_changeable()
        if is_forced:
            return

        async def probe() -> None:
            try:
                await self.stat(path)
            except NotFoundError:
                return

        await self._health.require_writable(probe)

    async def _append(self, path: str, tail: bytes, *, is_synced: bool) -> FileStat:
        for attempt in range(_APPEND_ATTEMPTS):
            if path not in self._seen or attempt:
                await self._catch_up(path)
            before = self._seen.get(path)
            is_last = attempt == _APPEND_ATTEMPTS - 1
            try:
                with self._asked():
                    base = before.stat if before is not None and not is_last else None
                    stat = await self._files.append(path, tail, base=base, is_synced=is_synced)
            except PreconditionFailedError:
                continue
            await self._note_growth(path, before, tail, stat, is_exact=before is None or base is not None)
            return stat
        raise PreconditionFailedError(f"{path!r} is changed all the time by others")

    async def _append_to(self, base: FileStat, path: str, tail: bytes, *, is_synced: bool) -> FileStat:
        before = self._seen.get(path)
        if before is None or before.stat.revision != base.revision:
            await self._catch_up(path)
            before = self._seen.get(path)
            if before is None or before.stat.revision != base.revision:
                raise PreconditionFailedError(f"{path!r} was changed by others")
        with self._asked():
            stat = await self._files.append(path, tail, base=base, is_synced=is_synced)
        await self._note_growth(path, before, tail, stat, is_exact=True)
        return stat

    async def _note_growth(
        self, path: str, before: _Seen | None, tail: bytes, stat: FileStat, *, is_exact: bool
    ) -> None:
        """Announce an append of ours.

        Args:
            path: The file.
            before: What was seen of it; None when it was not there.
            tail: What was added.
            stat: What it is now.
            is_exact: Nobody wrote between, if the lengths say so as well.
        """
        length = _length(before)
        if stat.size_bytes != (length or 0) + len(tail) or not is_exact:
            # Others wrote right before: both changes are found in what is there now.
            await self._look(path, stat, is_foreign=False)
            return
        fingerprint = before.fingerprint if before is not None else Fingerprint()
        await _extend(fingerprint, tail)
        self._note(path, _Seen(stat, fingerprint), length or 0, length)
        if before is None:
            self._known.put(path, tail)
        else:
            self._known.append(path, tail)

    async def _catch_up(
        self,
        path: str,
        vanished: VanishedFiles | None = None,
        *,
        listed: FileStat | None = None,
        is_blob: bool = False,
    ) -> None:
        """Announce what others did to a file whose path is held; one that may only be listed is what was listed."""
        seen = self._seen.get(path)
        try:
            stat = await self.stat(path, is_blob=is_blob)
        except NotFoundError:
            if seen is not None:
                self._announce_deleted(path, _length(seen), is_foreign=True)
            return
        except AccessError:
            if listed is None:
                raise
            stat = listed
        if seen is None or seen.stat.revision != stat.revision:
            await self._look(path, stat, vanished)

    async def _look(
        self, path: str, stat: FileStat, vanished: VanishedFiles | None = None, *, is_foreign: bool = True
    ) -> None:
        """Read a file that changed, and announce how."""
        before = self._seen.get(path)
        gone = vanished if vanished is not None and before is None else VanishedFiles()
        try:
            was = before.fingerprint if before is not None else gone.to_compare(stat.size_bytes)
            examined = await self._examine(path, stat, was)
        except NotFoundError:
            if before is not None:
                self._announce_deleted(path, _length(before), is_foreign=True)
            return
        old_path = ""
        if before is None:
            old_path = gone.take(examined.seen.fingerprint, is_same=examined.is_same)
        if old_path:
            self._announce_renamed(old_path, path, examined.seen, is_foreign=is_foreign)
            return
        offset = examined.offset if before is not None else 0
        self._note(path, examined.seen, offset, _length(before), is_foreign=is_foreign)

    async def _examine(self, path: str, stat: FileStat, before: Fingerprint) -> _Examined:
        """Read a file, as far as it was long when it was described; nothing is known of the bytes of one that cannot be read."""
        try:
            return await self._compare(path, stat, before)
        except (CorruptDataError, AccessError, LocalDiskError, OSError) as problem:
            if not _is_of_one_file(problem):
                raise
            _log.warning(
                "a file cannot be read, its change is told as a rewrite", path=path, problem=str(problem)
            )
            self._known.forget(path)
            return _Examined(_Seen(stat, Fingerprint.unknown(stat.size_bytes)), 0, is_same=False)

    async def _compare(self, path: str, stat: FileStat, before: Fingerprint) -> _Examined:
        comparison = Comparison(before)
        kept: bytes | None = b""
        position = 0
        while position < stat.size_bytes:
            end = min(stat.size_bytes, position + _READ_BYTES)
            chunk = await self.read(path, position, end)
            if not chunk:
                break
            await _feed(comparison, chunk)
            position += len(chunk)
            kept = chunk if position == len(chunk) and position <= KNOWN_FILE_BYTES else None
        # It may have grown or changed under the reading: then its revision is another one next time, and these sums tell.
        found = FileStat(path, position, stat.modified_ns, stat.revision)
        offset = comparison.same_bytes
        known = self._known.forget(path)
        if kept is not None:
            if known is not None and offset < before.size_bytes:
                offset = max(offset, common_prefix_bytes(known, kept))
            self._known.put(path, kept)
        is_same = before.size_bytes == position == comparison.same_bytes
        return _Examined(_Seen(found, comparison.now), offset, is_same)

    async def _find_vanished(self, path: str, vanished: VanishedFiles) -> None:
        async with self._locks.held(path):
            seen = self._seen.get(path)
            if seen is None:
                return
            try:
                await self.stat(path)
            except NotFoundError:
                vanished.add(path, seen.fingerprint)
                del self._seen[path]
                self._known.forget(path)
            else:
                await self._catch_up(path)

    async def _same_beginning(self, path: str, before: _Seen | None, body: bytes) -> int:
        """Say how many first bytes of a new body the file had."""
        if before is None:
            return 0
        known = self._known.get(path)
        if known is not None:
            return common_prefix_bytes(known, body)
        comparison = Comparison(before.fingerprint)
        await _feed(comparison, body)
        return comparison.same_bytes

    def _note(
        self, path: str, seen: _Seen, offset: int, old_bytes: int | None, *, is_foreign: bool = False
    ) -> None:
        self._seen[path] = seen
        self._history.add(
            events.FILE_CREATED if old_bytes is None else events.FILE_UPDATED,
            path=path, size=seen.stat.size_bytes, offset=offset,
            bytes_added=seen.stat.size_bytes - (old_bytes or 0), is_foreign=is_foreign,
        )  # fmt: skip

    def _announce_deleted(self, path: str, old_bytes: int | None, *, is_foreign: bool) -> None:
        self._seen.pop(path, None)
        self._known.forget(path)
        self._history.add(
            events.FILE_DELETED, path=path, bytes_added=-(old_bytes or 0), is_foreign=is_foreign
        )

    def _announce_renamed(self, old_path: str, path: str, seen: _Seen, *, is_foreign: bool) -> None:
        self._seen.pop(old_path, None)
        self._seen[path] = seen
        known = self._known.forget(old_path)
        if known is not None:
            self._known.put(path, known)
        self._history.add(
            events.FILE_RENAMED, path=path, old_path=old_path, size=seen.stat.size_bytes,
            offset=seen.stat.size_bytes, is_foreign=is_foreign,
        )  # fmt: skip


def _is_of_one_file(problem: Exception) -> bool:
    if isinstance(problem, LocalDiskError):
        return problem.errno_number == errno.EIO
    return not isinstance(problem, OSError) or problem.errno == errno.EIO


def _length(seen: _Seen | None) -> int | None:
    return None if seen is None else seen.fingerprint.size_bytes


async def _summed(body: bytes) -> Fingerprint:
    if len(body) <= _INLINE_BYTES:
        return Fingerprint.of(body)
    return await trio.to_thread.run_sync(Fingerprint.of, body)


async def _extend(fingerprint: Fingerprint, tail: bytes) -> None:
    await _in_pieces(fingerprint.extend, tail)


async def _feed(comparison: Comparison, chunk: bytes) -> None:
    await _in_pieces(comparison.feed, chunk)


async def _in_pieces(take: Callable[[bytes], None], body: bytes) -> None:
    """Sum bytes; the event loop is not held up by many."""
    if len(body) <= _INLINE_BYTES:
        take(body)
    else:
        await trio.to_thread.run_sync(take, body)
