"""Clean files leave the working copy; their names and attributes stay."""

from __future__ import annotations

import os
import stat

from sessionfs.filesystem.hydration.placing import reached
from sessionfs.filesystem.inodes import Node
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.link_messages import Evict
from sessionfs.working_copy.writers import has_writer


class Eviction:
    """Evicts what the replication process names.

    Args:
        volume: The mount.
        loading: Takes bytes away.
        sessions: Sessions by name.
    """

    def __init__(self, volume: Volume, loading: Loading, sessions: SessionsRoot) -> None:
        self._volume = volume
        self._loading = loading
        self._sessions = sessions
        self._table = volume.table

    def evict(self, message: Evict, path: bytes = b"") -> bool:
        """Remove a clean file's bytes from the working copy.

        Args:
            message: The file, and how it was when the bucket had its bytes.
            path: Its path below the sessions, session first; needed when the kernel does not know the file.

        Returns:
            False when it is open, written, changed, or not found.
        """
        try:
            known = self._table.by_number.get(message.number)
            if known is not None:
                return self._evict(known, message)
            if b"/" not in path:
                return False
            session = self._sessions.sessions.get(path.partition(b"/")[0])
            with reached(self._table, session.number if session else 0, path) as (parent, name):
                if parent.number and parent.loaded and self._table.find(parent, name)[0] != message.number:
                    return False
                node = Node(message.number, stat.S_IFREG, parent.session)
                node.places.append((parent, name))
                return self._evict(node, message)
        except OSError:
            return False

    def _evict(self, node: Node, message: Evict) -> bool:
        if node.handles or node.entry is not None or not node.places or node.kind != stat.S_IFREG:
            return False
        if node.number in self._volume.frozen:
            return False  # a commit needs its bytes
        status = self._table.status(node)
        same = (message.size_bytes, message.mtime_ns, message.ctime_ns) == (
            status.st_size, status.st_mtime_ns, status.st_ctime_ns,
        )  # fmt: skip
        if not same or not stat.S_ISREG(status.st_mode):
            return False
        if status.st_nlink != len(node.places) or self._is_written(node):
            return False
        self._loading.evict(node, status, blocks_of=message.blocks_of)
        return True

    def _is_written(self, node: Node) -> bool:
        directory, name = self._table.location(node)
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            return True
        try:
            return has_writer(descriptor)
        finally:
            os.close(descriptor)
