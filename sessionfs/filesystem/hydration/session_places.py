"""Root directories of sessions in the working copy, those of read-only trees (``<id>%g3``) included."""

from __future__ import annotations

import os
import stat

from sessionfs.filesystem.inodes import Directory, Node, Session
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import Entry


class SessionPlaces:
    """Makes and finds them.

    Args:
        volume: The mount.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._table = volume.table

    def make(self, name: bytes, root: Entry) -> bool:
        """Make the root directory of a session that the bucket describes, unless it is there.

        Returns:
            Whether it was not there.

        Raises:
            OSError: The disk refused.
        """
        descriptor = self._table.sessions_descriptor
        try:
            os.mkdir(name, 0o700, dir_fd=descriptor)
        except FileExistsError:
            return False
        if self._volume.as_root:
            os.chown(name, root.uid, root.gid, dir_fd=descriptor)
        os.chmod(name, stat.S_IMODE(root.mode), dir_fd=descriptor)
        os.utime(name, ns=(root.mtime_ns, root.mtime_ns), dir_fd=descriptor)
        self._volume.note(Operation.MATERIALISED, root.number)
        return True

    def directory(self, session: Session) -> Node:
        """Give the inode of a session's root, making it known.

        Raises:
            OSError: It is not on disk.
        """
        node = self._table.by_number.get(session.number)
        if node is None:
            # st_ino may be another number: the session's counts.
            status = os.stat(session.name, dir_fd=self._table.sessions_descriptor, follow_symlinks=False)
            node = self._table.obtain(self._table.root, session.name, (session.number, status, None))
            node.session = session
        return node

    def loaded_again(self, session: Session) -> None:
        """Let the journal be asked again for every directory of a session."""
        for node in self._table.by_number.values():
            if node.session is session and isinstance(node, Directory):
                self._table.unload(node)
