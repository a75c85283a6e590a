"""The bytes of changing files, as they stood at a commit's barrier, until that commit is over.

Nothing is copied when a file is frozen. Its first `size_bytes` bytes stay in place while it only grows. What would change one of them waits
until they were copied to staging, then goes on; what takes the file's last name away links its inode into staging first. A copy that fails
(a full disk) is the error of the program that wanted to change them: nothing was changed.

Order of every change: look here, wait for the copy, begin again; nothing waits between the last look and the change.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import structlog
import trio

from sessionfs.filesystem.barrier.first_bytes import copy_first_bytes
from sessionfs.filesystem.inodes import Node
from sessionfs.formats.commit_messages import FrozenAt, FrozenImage

if TYPE_CHECKING:
    from sessionfs.filesystem.volume import Volume

_log = structlog.get_logger(__name__)


class Frozen:
    """A frozen file.

    Attributes:
        commit: For which commit.
        session: Its session.
        number: Its number.
        size_bytes: So many of its first bytes are kept.
        name: What its files in staging are called.
        copied: Name of their copy in staging, "" while there is none.
        linked: Name of the file's link in staging, "" while it has another name.
        is_grown: Whether something was appended.
        is_lost: Whether they could not be kept.
        copying: While they are being copied: set at its end.
    """

    __slots__ = (
        "commit", "copied", "copying", "is_grown", "is_lost", "linked", "name", "number", "session", "size_bytes",
    )  # fmt: skip

    def __init__(self, commit: str, session: str, number: int, size_bytes: int) -> None:
        self.commit = commit
        self.session = session
        self.number = number
        self.size_bytes = size_bytes
        self.name = ""
        self.copied = ""
        self.linked = ""
        self.is_grown = False
        self.is_lost = False
        self.copying: trio.Event | None = None


class Freezing:
    """Keeps them. Callers look at ``volume.frozen`` first, which is nearly always empty.

    Args:
        volume: The mount.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._frozen = volume.frozen
        self._staging = volume.layout.staging
        self._added = 0

    def add(self, frozen: Frozen) -> None:
        """Keep a file's bytes from now on."""
        self._added += 1
        frozen.name = f"frozen-{frozen.commit}-{frozen.number}-{self._added}"
        self._frozen[frozen.number] = frozen

    def copy_now(self, frozen: Frozen, place: bytes) -> None:
        """Copy a large file's bytes with everybody waiting; when that fails, whoever changes it tries again and is told.

        Args:
            frozen: The file.
            place: A path of it.
        """
        try:
            source = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                copy_first_bytes(source, self._path(frozen.name), frozen.size_bytes)
            finally:
                os.close(source)
        except OSError as problem:
            _log.warning("freeze.not_copied", number=frozen.number, reason=problem.strerror)
        else:
            frozen.copied = frozen.name

    # --- before something changes

    def must_copy(self, node: Node, start: int) -> bool:
        """Say whether bytes must be copied before those from an offset on may change; a change behind them is noted.

        Args:
            node: The file.
            start: First byte that changes.
        """
        frozen = self._frozen.get(node.number)
        if frozen is None or frozen.copied or frozen.is_lost:
            return False
        if start < frozen.size_bytes:
            return True
        frozen.is_grown = True
        return False

    async def then(self, node: Node, call: Callable[..., Any], *arguments: Any) -> Any:
        """Answer a call from its beginning once a file's bytes were copied.

        Raises:
            OSError: The copy failed (ENOSPC), or what the call raises.
        """
        await self.copy(node)
        result = call(*arguments)
        return await result if isawaitable(result) else result

    async def copy(self, node: Node) -> None:
        """Copy a frozen file's bytes, or wait for whoever does it; callers look again afterwards.

        Raises:
            OSError: The disk refused.
        """
        frozen = self._frozen.get(node.number)
        if frozen is None or frozen.copied or frozen.is_lost:
            return
        if frozen.copying is not None:
            await frozen.copying.wait()
            return
        source = self._readable(node, frozen)
        if source < 0:
            return
        frozen.copying = trio.Event()
        try:
            path = self._path(frozen.name)
            await trio.to_thread.run_sync(copy_first_bytes, source, path, frozen.size_bytes)
            self._take_copy(frozen)
        except OSError as problem:
            _log.warning("freeze.not_copied", number=frozen.number, reason=problem.strerror)
            raise
        finally:
            os.close(source)
            frozen.copying.set()
            frozen.copying = None

    def _take_copy(self, frozen: Frozen) -> None:
        if self._frozen.get(frozen.number) is not frozen:
            self._remove(frozen.name)  # the commit was over before
            return
        # A link stays as it is until the thaw: somebody may just read it, and learns afterwards that the place has changed.
        frozen.copied = frozen.name

    def _readable(self, node: Node, frozen: Frozen) -> int:
        """Give a readable descriptor of a file; -1 when its mode keeps even us out, so that no upload can read it either."""
        handles = [handle for handle in node.handles or () if handle.partial is None]
        for handle in handles:
            if fcntl.fcntl(handle.descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
                return os.dup(handle.descriptor)
        try:
            if handles:
                place = b"/proc/self/fd/%d" % handles[0].descriptor
                return os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            directory, name = self._volume.table.location(node)
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except PermissionError:
            _log.warning("freeze.not_readable", number=node.number)
            frozen.is_lost = True
            return -1

    # --- before a file's last name goes

    def hold(self, number: int, directory: int, name: bytes) -> None:
        """Keep the inode of a file that is about to lose its last name on disk.

        Args:
            number: The file.
            directory: Descriptor of the directory.
            name: Its last name there.

        Raises:
            OSError: The disk refused; the name must stay.
        """
        frozen = self._frozen.get(number)
        if frozen is None or frozen.copied or frozen.linked or frozen.is_lost:
            return
        linked = frozen.name + "-link"
        os.link(name, self._path(linked), src_dir_fd=directory, follow_symlinks=False)
        frozen.linked = linked

    def unhold(self, number: int) -> None:
        """Take `hold` back: the name stays."""
        frozen = self._frozen.get(number)
        if frozen is not None and frozen.linked:
            self._remove(frozen.linked)
            frozen.linked = ""

    # --- for the commit

    def where(self, message: FrozenImage) -> FrozenAt:
        """Say where a frozen file's bytes are now."""
        frozen = self._frozen.get(message.number)
        if frozen is None or frozen.commit != message.commit:
            return FrozenAt(is_lost=True)
        staged = frozen.copied or frozen.linked
        is_lost = frozen.is_lost or (not staged and self._is_shorter(frozen))
        return FrozenAt(staged, frozen.is_grown, is_lost)

    def _is_shorter(self, frozen: Frozen) -> bool:
        """Whether something cut the file without us; one that the kernel forgot is looked at by whoever reads it."""
        node = self._volume.table.by_number.get(frozen.number)
        if node is None:
            return False
        try:
            return node.entry is not None or self._volume.table.status(node).st_size < frozen.size_bytes
        except OSError:
            return True

    def thaw(self, commit: str) -> None:
        """Let a commit's bytes go."""
        self._drop([frozen for frozen in self._frozen.values() if frozen.commit == commit])

    def thaw_session(self, session: str) -> None:
        """Let a session's bytes go, whatever commit they were for: there is one at a time."""
        self._drop([frozen for frozen in self._frozen.values() if frozen.session == session])

    def _drop(self, over: list[Frozen]) -> None:
        for frozen in over:
            del self._frozen[frozen.number]
            for name in (frozen.copied, frozen.linked):
                if name:
                    self._remove(name)

    # --- staging

    def _path(self, name: str) -> str:
        return os.path.join(self._staging, name)

    def _remove(self, name: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(name))
        except OSError as problem:
            _log.warning("freeze.not_removed", name=name, reason=errno.errorcode.get(problem.errno or 0))
