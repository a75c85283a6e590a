"""What a workspace and a shared root share: one owner, its files, events, blobs, generations, and how it ends.

Order at the end: new changes are refused and those under way waited for, what others changed is announced, the last words of whoever it is are
written, the final generation is made (or everything is made durable where the place makes none), the place lets others own it, and the handle is
closed. When a step fails the handle is open again: `close` may be repeated, `abandon` gives up.

A session has one open handle in a program, as it has one owner among programs: to a place a claim of what it holds already is success, it does not
tell two handles apart.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from weakref import WeakKeyDictionary

import trio

from sessionfs.model import roots
from sessionfs.model.errors import (
    HandleClosedError,
    InvalidRequestError,
    NotFoundError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat, SessionPlace, checked_path
from sessionfs.sessions.workspace.blob_cache import BlobCache
from sessionfs.sessions.workspace.blobs import Blobs
from sessionfs.sessions.workspace.directory import HasRealPaths
from sessionfs.sessions.workspace.local_state import LocalState
from sessionfs.sessions.workspace.observation import events
from sessionfs.sessions.workspace.observation.event_history import Changes, EventHistory
from sessionfs.sessions.workspace.observation.observed_files import ObservedFiles
from sessionfs.sessions.workspace.observation.storage_health import HasTrouble, StorageHealth
from sessionfs.sessions.workspace.options import STRICT, WorkspaceOptions

FAILED = "failed"
ENDED = "ended"
_MAX_TRIGGER_CHARACTERS = 100
_open: WeakKeyDictionary[SessionPlace, set[SessionId]] = WeakKeyDictionary()
"""What has a handle, by place."""
_opening = threading.Lock()
"""Places of several event loops are in one dictionary."""


class OwnedUnit:
    """A session or shared root that this program owns. Safe to use from several tasks of one event loop.

    Args:
        place: Where it is.
        unit: Which.
        options: How it works.
    """

    def __init__(self, place: SessionPlace, unit: SessionId, options: WorkspaceOptions) -> None:
        self._place = place
        self._unit = unit
        self._options = options
        self._clock = options.clock
        shown = roots.shown_id(unit)
        self._local = LocalState(options.local_directory, unit) if options.local_directory else None
        self._history = EventHistory(
            shown, self._clock, limit=options.event_limit, subscriber=options.subscriber,
            file=self._local.events_file if self._local else "",
        )  # fmt: skip
        self._health = StorageHealth(
            shown, self._history, self._clock,
            is_strict=options.policy == STRICT, probe_seconds=options.probe_seconds,
            trouble=_trouble_of(place),
        )  # fmt: skip
        self._files = ObservedFiles(place.files(unit), self._health, self._history)
        cache = None
        if self._local is not None and options.blob_cache_bytes:
            cache = BlobCache(self._local.blobs_directory, options.blob_cache_bytes, self._clock.unique_id())
        self._blobs = Blobs(self._files, self._clock, cache)
        self._ending = trio.Lock()
        self._is_closed = False

    @property
    def id(self) -> str:
        """The session or shared root, as people write it."""
        return roots.shown_id(self._unit)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or abandoned."""
        return self._is_closed

    @property
    def degraded_reason(self) -> str:
        """Why the place does not answer; "" while it does."""
        return self._health.reason

    # --- files

    async def write_file(
        self, path: str, body: bytes, *, is_private: bool = False, is_new: bool = False
    ) -> FileStat:
        """Replace a file, or make it.

        Args:
            path: Relative to the session.
            body: All of its bytes.
            is_private: Nobody but the owner may read it where it lies on a disk (0600).
            is_new: Only when there is none.

        Raises:
            AlreadyExistsError: `is_new`, and there is one; or the root was published.
            InvalidRequestError: A bad path, or no bytes.
            UnavailableError: The place did not answer, or writes are refused until it does.
            OwnershipLostError: Another host owns it now.
            HandleClosedError: It is closed.
        """
        path, body = checked_path(path), _checked_bytes(body)
        return await self._files.write(path, body, is_private=is_private, is_new=is_new)

    async def read_file(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a part of a file, cut to its length.

        Raises:
            NotFoundError: There is none.
            InvalidRequestError: A bad path, or a range that is negative.
            HandleClosedError: It is closed.
        """
        if start < 0 or (end is not None and end < 0):
            raise InvalidRequestError(f"range {start}..{end} of {path!r} is negative")
        return await self._files.read(checked_path(path), start, end)

    async def append_file(self, path: str, tail: bytes, *, is_synced: bool = False) -> FileStat:
        """Add to a file, which is made when it is missing.

        Args:
            path: The file.
            tail: What to add.
            is_synced: Return only when it would survive a power cut.

        Raises:
            InvalidRequestError, UnavailableError, OwnershipLostError, HandleClosedError: As `write_file`.
        """
        return await self._files.append(checked_path(path), _checked_bytes(tail), is_synced=is_synced)

    async def remove_file(self, path: str) -> None:
        """Remove a file; one that is gone is success. Raises as `write_file`."""
        await self._files.remove(checked_path(path))

    async def rename_file(self, path: str, new: str) -> None:
        """Give a file another path, replacing what is there. Raises as `write_file`.

        Raises:
            NotFoundError: There is none.
        """
        await self._files.rename(checked_path(path), checked_path(new))

    async def list_files(self, below: str = "") -> list[str]:
        """List the files at and below a directory, recursively, sorted; "" for all."""
        return [stat.path for stat in await self._files.list(checked_path(below) if below else "")]

    async def stat_file(self, path: str) -> FileStat:
        """Describe a file.

        Raises:
            NotFoundError: There is none.
        """
        return await self._files.stat(checked_path(path))

    async def file_exists(self, path: str) -> bool:
        """Whether there is such a file."""
        try:
            await self._files.stat(checked_path(path))
        except NotFoundError:
            return False
        return True

    def blobs(self) -> Blobs:
        """Give its blobs."""
        return self._blobs

    def real_path(self, path: str) -> str | None:
        """Give the path on this host of a file or directory; None when the place has no real paths."""
        files = self._place.files(self._unit)
        return files.real_path(path) if isinstance(files, HasRealPaths) else None

    # --- changes

    async def changes(self, since: int = 0) -> Changes:
        """Look for changes that others made, and give all events behind a number.

        Args:
            since: The last number that is known, 0 for all.

        Raises:
            InvalidRequestError: `since` is negative.
            UnavailableError: The place did not answer.
            HandleClosedError: It is closed.
        """
        if since < 0:
            raise InvalidRequestError(f"event number {since} is negative")
        await self._files.find_foreign_changes()
        return self._history.since(since)

    async def watch(self, poll_seconds: float) -> None:
        """Look for changes that others made, again and again, until it is closed or the task is cancelled.

        Args:
            poll_seconds: Between two looks, above 0. A place that does not answer is asked again then.

        Raises:
            InvalidRequestError: `poll_seconds` is not above 0.
        """
        if not 0 < poll_seconds < math.inf:
            raise InvalidRequestError(f"{poll_seconds} seconds are no time between two looks")
        while not self._is_closed:
            try:
                await self._files.find_foreign_changes()
            except UnavailableError:
                pass  # that is an event of its own
            except HandleClosedError:
                if not self.is_closed:
                    raise
                return
            await trio.sleep(poll_seconds)

    # --- generations and the end

    async def snapshot(self, trigger: str = "snapshot") -> int:
        """Make a generation of it as it is now, and give its number.

        Args:
            trigger: Why, for people: one line of at most 100 characters.

        Raises:
            InvalidRequestError: The place makes no generations, or no such trigger.
            UnavailableError: The place did not answer.
            HandleClosedError: It is closed.
        """
        if not trigger.isprintable() or not 0 < len(trigger) <= _MAX_TRIGGER_CHARACTERS:
            raise InvalidRequestError(f"trigger {trigger[:80]!r} is no line of 1 to 100 characters")
        with self._files.changing():
            if self._place.makes_generations:
                return await self._commit(trigger)
            return await self._place.commit(self._unit, trigger)

    async def _commit(self, trigger: str) -> int:
        began = self._clock.elapsed_seconds()
        details: dict[str, str | int | float | bool] = {"trigger": trigger, "ok": False}
        try:
            with self._health.watched():
                generation = await self._place.commit(self._unit, trigger)
            details |= {"ok": True, "generation": generation}
        except SessionFSError as problem:
            details["problem"] = problem.message
            raise
        finally:
            details["duration"] = round(self._clock.elapsed_seconds() - began, 3)
            self._history.add(events.SNAPSHOT_RESULT, details=details)
        return generation

    async def close(self, status: str = ENDED) -> None:
        """Make the final generation and let others own it; repeating it changes nothing.

        Changes that are under way are waited for; new ones are refused from now on, or until it fails.

        Args:
            status: How a session ended; a shared root has none.

        Raises:
            UnavailableError: The place did not answer; close it again, or abandon it.
            HandleClosedError: It was abandoned meanwhile.
            OwnershipLostError: Another host owns it; abandon it.
        """
        async with self._ending:
            if self._is_closed:
                return
            try:
                async with self._files.shut(self._being_closed):
                    await self._files.find_foreign_changes()
                    await self._say_end(status)
                    if self._place.makes_generations:
                        await self.snapshot("close")
                    else:
                        await self._files.sync()
                    self._files.require_open()
                    await self._place.release(self._unit)
                    self._is_closed = True
                    self._files.close()
                await self._leave_local(ended=True)
            finally:
                if self._is_closed:
                    _give_back(self._place, self._unit)

    async def abandon(self) -> None:
        """Give up: no last words, no generation, nobody is waited for; repeating it changes nothing.

        What the place did not store yet stays owed there. The place owns it until it is opened and closed again, or the place itself is closed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._files.close()
        try:
            with trio.CancelScope(shield=True):
                await self._leave_local(ended=False)
        finally:
            # A close that is under way may still let go what another handle would hold by then.
            if not self._ending.locked():
                _give_back(self._place, self._unit)

    # --- how

    async def _begin(self) -> None:
        """Own it, and take what is there as seen; what fails leaves nothing claimed."""
        _take(self._place, self._unit)
        try:
            await self._begin_alone()
        except BaseException:
            _give_back(self._place, self._unit)
            raise

    async def _begin_alone(self) -> None:
        if self._local is not None:
            await self._local.open()
        was_owned = self._place.owns(self._unit)
        try:
            kept = await self._history.load()
            await self._history.reserve()
            with self._health.watched():
                await self._place.claim(self._unit)
            if self._local is not None:
                await self._local.forget_end()
            if not was_owned:
                self._history.add(events.OWNER_ACQUIRED)
            await self._files.begin(kept, sum_bytes=self._options.sum_bytes)
            await self._establish()
            if self._local is not None:
                await self._history.save(self._files.kept_files)
            if kept is not None:
                await self._files.find_foreign_changes()
        except BaseException:
            self._is_closed = True
            self._files.close()
            try:
                with trio.move_on_after(self._options.close_seconds, shield=True), suppress(SessionFSError):
                    if not was_owned:
                        await self._place.release(self._unit)
                    if self._local is not None:
                        await self._local.restore_end()
            finally:
                if self._local is not None:
                    self._local.close()
            raise

    @asynccontextmanager
    async def _lifetime(self) -> AsyncIterator[None]:
        """Begin, and end whichever way the block is left."""
        await self._begin()
        try:
            yield
        except BaseException as problem:
            with trio.move_on_after(self._options.close_seconds, shield=True):
                try:
                    await self.close(FAILED)
                except SessionFSError as also:
                    problem.add_note(f"{self.id} could not be closed: {also}")
            raise
        else:
            await self.close()
        finally:
            await self.abandon()

    def _being_closed(self) -> HandleClosedError:
        return HandleClosedError(f"{self.id} is being closed", remedy="recall it")

    async def _establish(self) -> None:
        """Make what belongs to it, once it is owned."""

    async def _say_end(self, status: str) -> None:
        """Write the last words."""

    async def _leave_local(self, *, ended: bool) -> None:
        if self._local is None or not self._local.is_open:
            return
        try:
            await self._history.save(self._files.kept_files)
            if ended:
                await self._local.note_end(self._clock.wall_ns())
        finally:
            self._local.close()


def _take(place: SessionPlace, unit: SessionId) -> None:
    with _opening:
        units = _open.setdefault(place, set())
        if unit in units:
            raise SessionAlreadyOwnedError(
                f"session {roots.shown_id(unit)} is open in this program",
                holder="this program",
                remedy="use that handle, or close it first",
            )
        units.add(unit)


def _give_back(place: SessionPlace, unit: SessionId) -> None:
    with _opening:
        _open.get(place, set()).discard(unit)


def _trouble_of(place: SessionPlace) -> Callable[[], str]:
    if isinstance(place, HasTrouble):
        troubled: HasTrouble = place
        return lambda: troubled.trouble
    return lambda: ""


def _checked_bytes(body: bytes) -> bytes:
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidRequestError(f"a file's bytes are wanted, not {type(body).__name__}")
    return bytes(body)
