"""Where things are in a state directory, one per store and host.

::

lock            flock by the daemon
replication.lock   flock by the replication process
intent.log      operations, before they are applied
journal.db      what is owed and what the bucket is known to hold; written by the replication process only
sessions/       the working copy: real files, real modes, real times
staging/        fetched files and frozen images, before they get their place; emptied at start
trash/          unlinked while open, gone at the last close; emptied at start
evicted/        empty files that keep the inode numbers of evicted files
lease           how long this host surely owns its sessions; a few bytes that both processes map
control.sock    the command line's door to the daemon
daemon.log      what the background processes say
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sessionfs.model.errors import LocalDiskError

ROOT_NUMBER = 1
"""Inode number of the mount's root, which holds the sessions."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Paths of one state directory.

    Attributes:
        root: Absolute path of the directory.
    """

    root: str

    @property
    def lock(self) -> str:
        """Locked by the daemon."""
        return os.path.join(self.root, "lock")

    @property
    def replication_lock(self) -> str:
        """Locked by the replication process."""
        return os.path.join(self.root, "replication.lock")

    @property
    def intent_log(self) -> str:
        """The intent log."""
        return os.path.join(self.root, "intent.log")

    @property
    def journal(self) -> str:
        """The upload journal."""
        return os.path.join(self.root, "journal.db")

    @property
    def sessions(self) -> str:
        """The working copy."""
        return os.path.join(self.root, "sessions")

    @property
    def staging(self) -> str:
        """Fetched files and frozen images."""
        return os.path.join(self.root, "staging")

    @property
    def trash(self) -> str:
        """Unlinked while open."""
        return os.path.join(self.root, "trash")

    @property
    def evicted(self) -> str:
        """Empty files that keep the inode numbers of evicted files from being given to new ones; never emptied."""
        return os.path.join(self.root, "evicted")

    @property
    def lease(self) -> str:
        """Until when this host surely owns its sessions (``lease_page``)."""
        return os.path.join(self.root, "lease")

    @property
    def control_socket(self) -> str:
        """The daemon's socket."""
        return os.path.join(self.root, "control.sock")

    @property
    def daemon_log(self) -> str:
        """What the background processes say."""
        return os.path.join(self.root, "daemon.log")

    def create(self) -> None:
        """Make the directories, readable by their owner only.

        Raises:
            LocalDiskError: The disk refused.
        """
        try:
            for directory in (self.root, self.sessions, self.staging, self.trash, self.evicted):
                os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as problem:
            raise LocalDiskError(
                f"cannot make the state directory {self.root}: {problem.strerror}",
                errno_number=problem.errno or 0,
                remedy="set SESSIONFS_STATE_DIR to a directory you may write",
            ) from None
