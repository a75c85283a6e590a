"""Stable images for uploads: how a file stands between two writes, and whether what was read meanwhile stood still."""

from __future__ import annotations

from sessionfs.filesystem.inodes import Node
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.link_messages import ImageGrant
from sessionfs.model.errors import NotFoundError
from sessionfs.working_copy.exclusions import SQLITE_SIDE_SUFFIXES


class Images:
    """Gives grants to the replication process.

    Args:
        volume: The mount.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._table = volume.table

    def begin_image(self, number: int) -> ImageGrant:
        """Say how a file stands between two writes, and count changes below its end from now on.

        Raises:
            NotFoundError: The kernel does not know the file, so nobody has it open: its own stat tells.
        """
        grant = self._grant(number)
        self._volume.images.setdefault(number, 0)
        # Whatever is written from here on is not in the image: it must be told of again.
        for written in self._written_for(number):
            written.next_note_seconds = 0.0
        return grant

    def end_image(self, number: int) -> ImageGrant:
        """Say how it stands now, and stop counting.

        Raises:
            NotFoundError: The kernel has forgotten the file since, and changes may have gone uncounted.
        """
        try:
            return self._grant(number)
        finally:
            self._volume.images.pop(number, None)

    def _written_for(self, number: int) -> list[Node]:
        """The file, and what SQLite writes beside it instead of into it."""
        node = self._table.by_number.get(number)
        if node is None:
            return []
        found = [node]
        for parent, name in node.places:
            for suffix in SQLITE_SIDE_SUFFIXES:
                try:
                    side = self._table.by_number.get(self._table.find(parent, name + suffix)[0])
                except OSError:
                    continue
                found += [side] if side is not None else []
        return found

    def _grant(self, number: int) -> ImageGrant:
        node = self._table.by_number.get(number)
        if node is None or node.entry is not None:
            raise NotFoundError(f"file {number} is not open here")
        try:
            size_bytes = self._table.status(node).st_size
        except OSError:
            raise NotFoundError(f"file {number} is not here any more") from None
        return ImageGrant(size_bytes, self._volume.images.get(number, 0), node.writers)
