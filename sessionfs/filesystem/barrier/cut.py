"""A commit's barrier: how a session's changing files stand, and the position of the log that is its cut, noted between two operations.

Changing is what the journal says is owed, what the log speaks of since the journal read it, and what is open for writing. Everything
runs without a wait: no program sees or makes half of it. What cannot be followed from here is not guessed: the commit asks again.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

import structlog

from sessionfs.filesystem.barrier.freezing import Freezing, Frozen
from sessionfs.filesystem.hydration.placing import reached
from sessionfs.filesystem.inodes import Node, Session
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.commit_messages import Barrier, BarrierHeld, FrozenFile
from sessionfs.model.errors import LocalDiskError
from sessionfs.working_copy.exclusions import side_file_of

_log = structlog.get_logger(__name__)

_OWN_PREFIX = "user.sessionfs."
_KINDS = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})
_FILES = frozenset({stat.S_IFREG})
_DATABASE = b"SQLite format 3\x00"


class _Standing(NamedTuple):
    """Where a file is, and how it stands."""

    place: bytes
    status: os.stat_result
    writers: int


class Cut:
    """Answers `Barrier`.

    Args:
        volume: The mount.
        freezing: Keeps the bytes.
    """

    def __init__(self, volume: Volume, freezing: Freezing) -> None:
        self._volume = volume
        self._freezing = freezing
        self._table = volume.table

    def hold(self, message: Barrier, session: Session | None) -> BarrierHeld:
        """Note how changing files stand, and keep their bytes until the commit is over.

        Args:
            message: What the journal knows.
            session: The session; None when nobody used it since the mount.

        Raises:
            LocalDiskError: The log cannot be written: its end is not known to be whole.
        """
        clock = self._volume.clock
        began = clock.elapsed_seconds()
        try:
            self._volume.settle_records()
        except OSError as problem:
            reason = problem.strerror or "unknown"
            raise LocalDiskError(
                f"the intent log cannot be written: {reason}", errno_number=problem.errno or 0
            ) from None
        self._freezing.thaw_session(message.session)
        frozen: list[FrozenFile] = []
        numbers = self._changing(message, session)
        if numbers is not None:
            unkept = frozenset(message.unkept)
            for number in numbers:
                described = self._freeze(message, session, number, keep=number not in unkept)
                if described is not None:
                    frozen.append(described)
        pause_seconds = clock.elapsed_seconds() - began
        return BarrierHeld(self._volume.log.position, frozen, pause_seconds, is_behind=numbers is None)

    def _changing(self, message: Barrier, session: Session | None) -> list[int] | None:
        """Give the numbers of what may change; None when it cannot be told."""
        recent, known = self._volume.recent, self._table.by_number
        if recent.directory_moved > message.log_position:
            return None
        numbers = dict.fromkeys(message.numbers)
        # Directories and links are described when they are asked for: their bytes are their attributes.
        for number in recent.after(message.log_position):
            if number in numbers:
                continue
            node = known.get(number)
            if node is None:
                return None
            if node.session is session and not self._is_side_file(node):
                numbers[number] = None
        writers = {handle.node for handle in self._volume.handles.values() if handle.node.writers}
        for node in writers:
            if node.session is not session:
                continue
            if self._is_side_file(node):
                # What SQLite writes there from here on is not in the cut either.
                node.next_note_seconds = 0.0
            elif node.number not in numbers:
                numbers[node.number] = None
        return list(numbers)

    def _is_side_file(self, node: Node) -> bool:
        """Whether a file is what SQLite keeps beside a database: it never leaves this host."""
        if not node.places:
            return False
        parent, name = node.places[0]
        database = side_file_of(name)
        if database is None:
            return False
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(database, flags, dir_fd=self._table.descriptor(parent))
        except OSError:
            return False
        try:
            return os.pread(descriptor, len(_DATABASE), 0) == _DATABASE
        finally:
            os.close(descriptor)

    # --- one file

    def _freeze(
        self, message: Barrier, session: Session | None, number: int, *, keep: bool
    ) -> FrozenFile | None:
        """Describe what is on disk and keep a file's bytes; None for what is not there, no manifest has, or is of another session."""
        node = self._table.by_number.get(number)
        try:
            if node is None:
                return self._freeze_unknown(message, session, number, keep=keep)
            kinds = _KINDS if number in message.paths else _FILES
            if node.session is not session or node.kind not in kinds or node.entry is not None:
                return None
            if not node.places:
                return None
            standing = _Standing(self._volume.xattr_path(node), self._table.status(node), node.writers)
            # What is written from here on is not in the cut: the log must tell of it again.
            node.next_note_seconds = 0.0
            return self._keep(message, number, standing, keep=keep)
        except OSError as problem:
            _log.warning("barrier.not_noted", number=number, reason=problem.strerror)
            return None

    def _freeze_unknown(
        self, message: Barrier, session: Session | None, number: int, *, keep: bool
    ) -> FrozenFile | None:
        path = message.paths.get(number)
        if not path:
            return None
        whole = message.session.encode() + b"/" + path
        with reached(self._table, session.number if session else 0, whole) as (parent, name):
            if parent.number and parent.loaded and self._table.find(parent, name)[0] != number:
                return None
            descriptor = self._table.descriptor(parent)
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_IFMT(status.st_mode) not in _KINDS:
                return None
            standing = _Standing(b"/proc/self/fd/%d/%s" % (descriptor, name), status, 0)
            return self._keep(message, number, standing, keep=keep)

    def _keep(self, message: Barrier, number: int, standing: _Standing, *, keep: bool) -> FrozenFile:
        status = standing.status
        described = FrozenFile(
            number=number, mode=status.st_mode, uid=status.st_uid, gid=status.st_gid, size_bytes=status.st_size,
            mtime_ns=status.st_mtime_ns, ctime_ns=status.st_ctime_ns, writers=standing.writers,
            xattrs=_xattrs(standing.place),
        )  # fmt: skip
        if not keep or not stat.S_ISREG(status.st_mode):
            return described
        frozen = Frozen(message.commit, message.session, number, status.st_size)
        self._freezing.add(frozen)
        if status.st_size > self._volume.settings.freeze_copy_bytes:
            self._freezing.copy_now(frozen, standing.place)
        return described


def _xattrs(place: bytes) -> dict[bytes, bytes]:
    """Give the attributes that a manifest keeps."""
    found: dict[bytes, bytes] = {}
    for name in os.listxattr(place, follow_symlinks=False):
        if name.startswith("user.") and not name.startswith(_OWN_PREFIX):
            found[os.fsencode(name)] = os.getxattr(place, name, follow_symlinks=False)
    return found
