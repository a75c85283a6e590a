"""The Core: every filesystem call as a plain method, knowing nothing of FUSE libraries.

A call takes inode numbers, names as bytes and the caller, and gives a small record or raises `OSError` (or one of our errors, which
``errno_map`` translates). A call that must wait gives an awaitable instead; nine of ten do not, and are atomic on the daemon's one thread.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable

import trio

from sessionfs.filesystem.attributes import AttributeCalls
from sessionfs.filesystem.barrier.cut import Cut
from sessionfs.filesystem.barrier.images import Images
from sessionfs.filesystem.control.commits import Commits
from sessionfs.filesystem.control.control_files import ControlFiles
from sessionfs.filesystem.control.read_only_trees import ReadOnlyTrees
from sessionfs.filesystem.control.session_requests import SessionRequests
from sessionfs.filesystem.control.shared_roots import SharedRoots
from sessionfs.filesystem.control.turn_rule import TurnRule
from sessionfs.filesystem.data import Data
from sessionfs.filesystem.hydration.eviction import Eviction
from sessionfs.filesystem.hydration.session_places import SessionPlaces
from sessionfs.filesystem.hydration.whole_sessions import WholeSessions
from sessionfs.filesystem.inodes import Session
from sessionfs.filesystem.links import Links
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.namespace import Namespace
from sessionfs.filesystem.permissions import Groups, supplementary_groups
from sessionfs.filesystem.remote_side import RemoteSide
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Lease, Notifier, Volume
from sessionfs.formats.commit_messages import Barrier, BarrierHeld, Thaw
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.clock import Clock
from sessionfs.model.settings import FilesystemSettings
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import StateLayout


class Core:
    """One mount's filesystem.

    The process's umask is set to 0: modes come from the callers.

    Args:
        layout: The state directory, already made.
        log: The intent log.
        remote: The replication process.
        settings: How the mount answers.
        clock: Time.
        control_socket: Path shown in ``user.sessionfs.control`` of the mount's root.
        groups: Gives the supplementary groups of a process.
        lease: Until when the sessions owned here may be changed; None for ever.
    """

    def __init__(
        self, *, layout: StateLayout, log: IntentLog, remote: RemoteSide, settings: FilesystemSettings, clock: Clock,
        control_socket: str, groups: Groups = supplementary_groups, lease: Lease | None = None,
    ) -> None:  # fmt: skip
        os.umask(0)
        self.settings = settings
        self._volume = volume = Volume(layout, log, remote, settings, clock, groups, lease)
        self._loading = loading = Loading(volume)
        self._whole = WholeSessions(volume, loading)
        commits = Commits(remote, loading.claim)
        places = SessionPlaces(volume)
        control = ControlFiles(volume, ReadOnlyTrees(volume, loading, places), commits)
        self._sessions = sessions = SessionsRoot(volume, loading, self._whole, places, control)
        self._data = Data(volume, loading, sessions, TurnRule(settings, volume.table, commits))
        shared = SharedRoots(volume, sessions)
        self._names = Namespace(volume, loading, sessions, shared, self._data)
        self._bind_names(self._names, Links(volume, loading, sessions, shared))
        self._bind_attributes(AttributeCalls(volume, loading, sessions, shared, self._data, control_socket))
        self._bind_data(self._data)
        self.session_requests = SessionRequests(volume, sessions, commits, loading)
        self._bind_requests(Images(volume), Eviction(volume, loading, sessions))
        self._cut = Cut(volume, loading.freezing)

    def _bind_names(self, names: Namespace, links: Links) -> None:
        # Bound here and not wrapped: a wrapper would cost every call a frame.
        self.lookup = names.lookup
        self.forget = self._volume.table.forget
        self.readlink = names.readlink
        self.create = names.create
        self.mkdir = names.mkdir
        self.mknod = names.mknod
        self.symlink = names.symlink
        self.opendir = names.opendir
        self.readdir = names.readdir
        self.adopt = names.adopt
        self.releasedir = names.releasedir
        self.link = links.link
        self.unlink = links.unlink
        self.rmdir = links.rmdir
        self.rename = links.rename

    def _bind_attributes(self, attributes: AttributeCalls) -> None:
        self.getattr = attributes.getattr
        self.setattr = attributes.setattr
        self.access = attributes.access
        self.statfs = attributes.statfs
        self.lacks_capability = attributes.lacks_capability
        self.getxattr = attributes.getxattr
        self.listxattr = attributes.listxattr
        self.setxattr = attributes.setxattr
        self.removexattr = attributes.removexattr

    def _bind_data(self, data: Data) -> None:
        self.open = data.open
        self.read = data.read
        self.write = data.write
        self.release = data.release
        self.fsync = data.fsync

    def _bind_requests(self, images: Images, eviction: Eviction) -> None:
        self.begin_image = images.begin_image
        self.end_image = images.end_image
        self.evict = eviction.evict
        self.frozen_image = self._loading.freezing.where
        self.note_log_consumed = self._volume.recent.consume

    def fsyncdir(self, handle: int) -> Awaitable[None]:
        """Bring a directory's names to the disk, and with ``fsync = bucket`` to the bucket."""
        return self._data.fsync_directory(self._names.listing_node(handle))

    async def run_background(self) -> None:
        """Do what nobody waits for, until `stop_background`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._whole.run)
            nursery.start_soon(self._loading.partials.run)

    def stop_background(self) -> None:
        """Let `run_background` return."""
        self._whole.stop()
        self._loading.partials.stop()

    # --- for the replication process

    def barrier(self, message: Barrier) -> BarrierHeld:
        """Note how a session's changing files stand, between two operations, and keep those bytes until `thaw`.

        Raises:
            LocalDiskError: The log cannot be written.
        """
        return self._cut.hold(message, self._session(message.session))

    def thaw(self, message: Thaw) -> None:
        """Let a commit's bytes go."""
        self._loading.freezing.thaw(message.commit)

    def note_session_state(self, state: SessionState) -> None:
        """Take a notice about a session's owner and its commits; one that nobody used here has nothing to be told."""
        session = self._session(state.session)
        if session is not None:
            self._loading.claims.note_state(session, state)

    def set_exempt_pid(self, pid: int) -> None:
        """Say which process is the replication process: what it opens through the mount counts as no change; 0 for none."""
        self._volume.exempt_pid = pid

    def _session(self, identifier: str) -> Session | None:
        return self._sessions.sessions.get(identifier.encode())

    # --- the mount's own life

    def set_notifier(self, notifier: Notifier) -> None:
        """Say how the kernel is told to forget."""
        self._volume.notifier = notifier

    def block_writers(self, reason: str) -> None:
        """Refuse changes and opens for writing with EROFS from now on; open handles may still write."""
        self._volume.refusal = reason

    def allow_writers(self) -> None:
        """Take `block_writers` back, unless the mount is read-only."""
        self._volume.refusal = "the mount is read-only" if self.settings.read_only else ""

    def status_counters(self) -> dict[str, int]:
        """Give cheap counts for metrics."""
        table = self._volume.table
        return {
            "inodes": len(table.by_number),
            "handles": len(self._volume.handles),
            "writers": self._data.open_writers,
            "directory_descriptors": len(table.open_descriptors),
            "waits": self._loading.waits,
            "sessions": len(self._sessions.sessions),
        }

    def close(self) -> None:
        """Release every handle and descriptor, after the engine has ended."""
        for handle in list(self._volume.handles):
            self._data.release(handle)
        self._volume.table.close()
