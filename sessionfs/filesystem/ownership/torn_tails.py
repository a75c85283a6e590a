"""Lines that a host that died left unfinished at the end of a log: kept beside it, before the first append here.

Only where no living program can be in the middle of that line: the session was taken over from a host that did not end, the file came from the
bucket, and nobody opened it for writing here. Otherwise the mount never edits a file's bytes.

Order: the fragment is in a file of its own before it is cut off. Both are records of the log, like what programs do.
"""

from __future__ import annotations

import os

import structlog

from sessionfs.filesystem.inodes import Node
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import FIRST_REMOTE_NUMBER
from sessionfs.model.clock import sortable_stamp

_log = structlog.get_logger(__name__)

_SUFFIX = b".jsonl"
_BLOCK_BYTES = 64 << 10
_LONGEST_LINE_BYTES = 64 << 20
_LONGEST_NAME_BYTES = 255


class TornTails:
    """Mends logs.

    Args:
        volume: The mount.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._table = volume.table

    def concerns(self, node: Node) -> bool:
        """Say whether a file that is about to be opened for appending must be looked at first."""
        session = node.session
        return (
            session is not None
            and session.is_unclean
            and node.number >= FIRST_REMOTE_NUMBER
            and node.number not in session.written_here
            and not node.writers
            and node.entry is None
            and bool(node.places)
            and node.places[0][1].endswith(_SUFFIX)
        )

    def whole_bytes(self, node: Node) -> int:
        """Give the length up to the last newline; the whole length when what follows is too long for a line.

        Raises:
            OSError: The disk refused.
        """
        directory, name = self._table.location(node)
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            size_bytes = end = os.fstat(descriptor).st_size
            while end > 0 and size_bytes - end < _LONGEST_LINE_BYTES:
                start = max(0, end - _BLOCK_BYTES)
                found = os.pread(descriptor, end - start, start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                end = start
            return 0 if end == 0 else size_bytes
        finally:
            os.close(descriptor)

    def mend(self, node: Node, whole_bytes: int) -> None:
        """Move what follows a length into a file beside the log.

        Args:
            node: The log.
            whole_bytes: From `whole_bytes`, asked without a wait in between.

        Raises:
            OSError: The disk refused; at worst the fragment is in both places.
        """
        volume = self._volume
        directory, name = self._table.location(node)
        parent = node.places[0][0]
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            status = os.fstat(descriptor)
            fragment = os.pread(descriptor, status.st_size - whole_bytes, whole_bytes)
            ending = b".torn-" + sortable_stamp(volume.clock.wall_ns()).encode()
            torn = name[: _LONGEST_NAME_BYTES - len(ending)] + ending
            sequence = volume.begin(
                Operation.CREATE, parent=parent.number, name=torn, mode=status.st_mode, uid=status.st_uid,
                gid=status.st_gid,
            )  # fmt: skip
            try:
                number = self._keep(directory, torn, fragment, status)
            except OSError as problem:
                volume.finish(sequence, error=problem.errno or 0)
                raise
            volume.finish(sequence, number=number)
            volume.note(Operation.WRITTEN, number)
            sequence = volume.begin(Operation.TRUNCATE, number=node.number)
            try:
                os.ftruncate(descriptor, whole_bytes)
            except OSError as problem:
                volume.finish(sequence, error=problem.errno or 0)
                raise
            volume.finish(sequence, number=node.number)
        finally:
            os.close(descriptor)
        node.drop_cache = True
        volume.notifier.invalidate_inode(node.number)
        volume.notifier.invalidate_entry(parent.number, torn)
        session_id = node.session.id if node.session is not None else ""
        _log.warning("log.torn_line_kept", session_id=session_id, name=torn.decode("utf-8", "replace"))

    def _keep(self, directory: int, torn: bytes, fragment: bytes, status: os.stat_result) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(torn, flags, 0o600, dir_fd=directory)
        try:
            view = memoryview(fragment)
            while view:
                view = view[os.write(descriptor, view) :]
            if self._volume.as_root:
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, status.st_mode & 0o777)
            return os.fstat(descriptor).st_ino
        except BaseException:
            os.unlink(torn, dir_fd=directory)
            raise
        finally:
            os.close(descriptor)
