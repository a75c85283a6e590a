"""Sessions through a live mount of the same state directory. The mount owns them, commits them and brings away what is owed, now and later."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from sessionfs.daemon.control.protocol import usable_socket_path
from sessionfs.daemon.doors.bucket_index import BucketIndex
from sessionfs.daemon.doors.file_states import is_here
from sessionfs.daemon.doors.refusals import mount_gone, refusal
from sessionfs.daemon.doors.ruling import Ruling, steadily
from sessionfs.daemon.doors.through_mount.mount_files import MountFiles
from sessionfs.daemon.doors.through_mount.mount_point import MountPoint
from sessionfs.daemon.doors.through_mount.session_claims import SessionClaims
from sessionfs.daemon.doors.unit_paths import unit_path
from sessionfs.daemon.mount_request import MountRequest
from sessionfs.model import names, roots
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    InvalidSessionIdError,
    NotFoundError,
    SessionAlreadyOwnedError,
    SessionFSError,
)
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import SessionPlace
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.open_below import parent_directory

_REMOVE_TRIES = 3


class MountPlace(SessionPlace):
    """A live mount. Opened by `open_mount_place`.

    Args:
        mount: The mount.
        layout: Its state directory.
        index: The bucket's index.
        clock: Names of files that are being written.
    """

    def __init__(self, mount: MountPoint, *, layout: StateLayout, index: BucketIndex, clock: Clock) -> None:
        self._mount = mount
        self._layout = layout
        self._index = index
        self._clock = clock
        self._claims = SessionClaims(layout.root)
        self._ruling = Ruling(self._sweep, self._ask_to_claim)
        self._files: dict[SessionId, MountFiles] = {}

    @property
    def mount_point(self) -> str:
        """Where the mount is."""
        return self._mount.path

    def files(self, session: SessionId) -> MountFiles:
        """Give the files of a session."""
        if session not in self._files:
            self._files[session] = MountFiles(
                session, self._mount, layout=self._layout, clock=self._clock, ruling=self._ruling
            )
        return self._files[session]

    async def list_sessions(self) -> list[SessionId]:
        """Name the sessions that have a file, here or in the bucket."""
        self._require_mount()
        # The answer knows every operation so far, sessions that were removed just now among them; a list alone may not.
        await self._mount.call("status")
        listed = await trio.to_thread.run_sync(self._listed)
        return [session for session in listed if await self._has_file(session)]

    async def _has_file(self, session: SessionId) -> bool:
        """Look into one that is here, or was removed here; any other is listed for the objects that it has in the bucket."""
        if not self._ruling.was_removed(session):
            here = await trio.to_thread.run_sync(is_here, self._layout, session)
            if not here:
                return True
        return bool(await self.files(session).list())

    def _listed(self) -> list[SessionId]:
        with self._mount.root() as root:
            listed = sorted(os.listdir(root))
        found: list[SessionId] = []
        for name in listed:
            with suppress(InvalidSessionIdError):
                found.append(names.session_id(name))
        return found

    async def remove_session(self, session: SessionId) -> None:
        """Remove everything of a session."""
        self._ruling.note_removed(session)
        try:
            await self._ruling.changed(session, partial(trio.to_thread.run_sync, self._remove, session))
        except OSError as problem:
            raise refusal(problem, session) from problem

    def _remove(self, session: SessionId) -> None:
        parts = unit_path(session)
        for attempt in range(1, _REMOVE_TRIES + 1):
            try:
                with (
                    self._mount.root() as root,
                    parent_directory(root, os.fsdecode(parts[0]), b"/".join(parts[1:])) as (directory, name),
                ):
                    shutil.rmtree(os.fsdecode(name), dir_fd=directory)
                # What has the name from now on is another session.
                return
            except FileNotFoundError:
                return
            except OSError as problem:
                if problem.errno != errno.ENOTEMPTY or attempt == _REMOVE_TRIES:
                    raise

    async def read_index(self) -> bytes | None:
        """Read ``sessions.json`` in the bucket."""
        self._require_mount()
        return await self._index.read()

    async def write_index(self, body: bytes) -> None:
        """Replace ``sessions.json`` in the bucket."""
        self._require_mount()
        await self._index.write(body)

    async def set_index_aside(self, stamp_seconds: int) -> str | None:
        """Rename ``sessions.json`` in the bucket."""
        self._require_mount()
        return await self._index.set_aside(stamp_seconds)

    async def claim(self, session: SessionId, *, force: bool = False) -> None:
        """Own a session, among the doors of this host and, through the mount, among the hosts; one that is not there yet is made.

        Raises:
            SessionAlreadyOwnedError: Another door of this host, or another host, has it. A door's claim is not taken by force.
        """
        self._require_mount()
        is_new = await trio.to_thread.run_sync(self._claims.take, session)
        try:
            await trio.to_thread.run_sync(self._make, session)
            await self._ask_to_claim(session, force=force)
        except BaseException as problem:
            if is_new:
                self._claims.give_up(session)
            if isinstance(problem, OSError):
                raise refusal(problem, session) from problem
            raise
        self._ruling.note_claimed(session)

    async def _ask_to_claim(self, session: SessionId, *, force: bool = False) -> None:
        await self._mount.call("claim", session=roots.shown_id(session), force=force)

    def _make(self, session: SessionId) -> None:
        self.files(session).make_root()

    async def release(self, session: SessionId) -> None:
        """Let other doors, and by a last commit other hosts, own a session. While another door of the mount has claimed it, the mount keeps it.

        Raises:
            ConflictError: A program of this host has a file of it open for writing.
        """
        self._ruling.require_open()
        if self._ruling.is_ours(session):
            with suppress(NotFoundError, SessionAlreadyOwnedError):
                # Of what was only changed and never claimed too: no door may claim it before the mount has let go.
                is_new = await trio.to_thread.run_sync(self._claims.take, session)
                try:
                    await steadily(partial(self._mount.call, "release", session=roots.shown_id(session)))
                except BaseException:
                    if is_new:
                        self._claims.give_up(session)
                    raise
        self._claims.give_up(session)
        self._ruling.note_released(session)

    def owns(self, session: SessionId) -> bool:
        """Whether a session was claimed, and not lost since as far as a door of the mount can know."""
        return self._ruling.owns(session) and self._mount.is_alive()

    async def commit(self, session: SessionId, trigger: str) -> int:
        """Let the mount make a generation."""
        self._require_mount()
        found = await self._mount.call("snapshot", session=roots.shown_id(session), trigger=trigger)
        return int(found["generation"])

    def close(self) -> None:
        """Let go of the mount; its sessions stay the mount's."""
        self._ruling.close()
        self._claims.close()
        self._mount.close()

    def _require_mount(self) -> None:
        self._ruling.require_open()
        if not self._mount.is_alive():
            raise mount_gone(self._mount.path)

    async def _sweep(self, session: SessionId) -> None:
        # Of a session that is another's nothing can be removed; the change that comes next says so.
        with suppress(OSError, SessionFSError):
            await trio.to_thread.run_sync(self.files(session).sweep)


@asynccontextmanager
async def open_mount_place(
    request: MountRequest, mount_point: str, *, clock: Clock
) -> AsyncIterator[MountPlace]:
    """Go through a live mount.

    Args:
        request: The store and the state directory.
        mount_point: Absolute path of the mount.
        clock: Time and randomness.

    Raises:
        UnavailableError: It is gone.
    """
    layout = StateLayout(request.state_root)
    socket_path = usable_socket_path(layout.control_socket)
    mount = await trio.to_thread.run_sync(partial(MountPoint, mount_point, socket_path))
    index = BucketIndex(request.store_url, layout=layout, settings=request.settings.replication, clock=clock)
    place = MountPlace(mount, layout=layout, index=index, clock=clock)
    try:
        yield place
    finally:
        place.close()
        index.close()
