"""Names and files of a Core, for a door that calls it in its own process; it stands where the kernel does in a mount.

Every lookup is given back but one for each directory: the Core keeps what it knows of a directory as long as somebody knows the directory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any, NamedTuple

from sessionfs.daemon.doors.file_states import DIRECTORY_MODE, is_temporary
from sessionfs.daemon.doors.unit_paths import unit_path
from sessionfs.filesystem.core import Core
from sessionfs.filesystem.inodes import failure
from sessionfs.filesystem.volume import Attributes
from sessionfs.model import roots
from sessionfs.model.names import SessionId
from sessionfs.working_copy.layout import ROOT_NUMBER


class ThisProcess(NamedTuple):
    """The caller of every call."""

    uid: int
    gid: int
    pid: int


class Entry(NamedTuple):
    """A name in a directory."""

    name: bytes
    shown: Attributes


async def answer(result: Any) -> Any:
    """Wait for a call's answer if it is not there yet."""
    return await result if isawaitable(result) else result


class CoreTree:
    """Walks a Core.

    Args:
        core: The Core.
        umask: Of the process, as it was before the Core was made.
    """

    def __init__(self, core: Core, *, umask: int) -> None:
        self.core = core
        self.caller = ThisProcess(os.geteuid(), os.getegid(), os.getpid())
        self.umask = umask
        self._known: set[int] = set()

    # --- directories

    async def directory(self, path: Sequence[bytes], *, make: bool = False) -> int:
        """Give the number of a directory.

        Args:
            path: Its components from the mount's root.
            make: Make what is missing.

        Raises:
            OSError: ENOENT, ENOTDIR, and what making it gives.
            SessionFSError: The store could not say.
        """
        number = ROOT_NUMBER
        for name in path:
            shown = await answer(self.core.lookup(number, name, self.caller))
            if not shown.number and make:
                shown = await self._made(number, name)
            if not shown.number:
                raise failure(errno.ENOENT)
            if not stat.S_ISDIR(shown.mode):
                self.core.forget(shown.number, 1)
                raise failure(errno.ENOTDIR)
            self._know(shown.number)
            number = shown.number
        return number

    async def _made(self, parent: int, name: bytes) -> Attributes:
        try:
            made: Attributes = await answer(
                self.core.mkdir(parent, name, DIRECTORY_MODE & ~self.umask, self.caller)
            )
        except FileExistsError:
            # Another task was faster.
            made = await answer(self.core.lookup(parent, name, self.caller))
        return made

    def _know(self, number: int) -> None:
        if number in self._known:
            self.core.forget(number, 1)
        self._known.add(number)

    def _unknow(self, number: int) -> None:
        if number in self._known:
            self._known.discard(number)
            self.core.forget(number, 1)

    # --- files

    @asynccontextmanager
    async def found(self, parent: int, name: bytes) -> AsyncIterator[Attributes | None]:
        """Find a file while the block lasts; None when there is nothing, a directory or a link are given as they are.

        Raises:
            SessionFSError: The store could not say.
        """
        shown = await answer(self.core.lookup(parent, name, self.caller))
        if shown.number and stat.S_ISDIR(shown.mode):
            self._know(shown.number)
        is_held = shown.number and shown.number not in self._known
        try:
            yield shown if shown.number else None
        finally:
            if is_held:
                self.core.forget(shown.number, 1)

    async def entries(self, directory: int) -> list[Entry]:
        """List a directory."""
        handle = await answer(self.core.opendir(directory, self.caller))
        try:
            listed = list(await answer(self.core.readdir(handle, 0)))
        finally:
            self.core.releasedir(handle)
        return [Entry(name, shown) for name, shown, *_ in listed if name not in {b".", b".."}]

    # --- whole trees

    async def files(
        self, path: Sequence[bytes], *, only_first: bool = False
    ) -> list[tuple[bytes, Attributes]]:
        """List the regular files below a directory, with their paths below it; one that goes meanwhile is left out.

        Args:
            path: The directory.
            only_first: Stop at the first file.

        Raises:
            OSError: ENOENT, ENOTDIR.
            SessionFSError: The store could not say.
        """
        found: list[tuple[bytes, Attributes]] = []
        is_root = roots.of_mount_path(os.fsdecode(b"/".join(path[:-1]))) is None
        pending = [b""]
        while pending and not (only_first and found):
            below = pending.pop()
            try:
                number = await self.directory([*path, *below.split(b"/")] if below else path)
                entries = await self.entries(number)
            except (FileNotFoundError, NotADirectoryError):
                if not below:
                    raise
                continue
            for name, shown in entries:
                whole = below + b"/" + name if below else name
                if stat.S_ISDIR(shown.mode):
                    pending.append(whole)
                elif stat.S_ISREG(shown.mode) and not (is_root and not below and is_temporary(name)):
                    found.append((whole, shown))
        return found

    async def has_file(self, session: SessionId) -> bool:
        """Say whether a session has a regular file."""
        try:
            return bool(await self.files(unit_path(session), only_first=True))
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def remove_tree(self, path: Sequence[bytes]) -> None:
        """Remove a directory with everything in it; one that is not there is success.

        Raises:
            OSError: What the calls give; ENOTEMPTY when something is made in it all the time.
            SessionFSError: The session is another host's.
        """
        *above, name = path
        try:
            number = await self.directory(path)
            for entry in await self.entries(number):
                if stat.S_ISDIR(entry.shown.mode):
                    await self.remove_tree([*path, entry.name])
                else:
                    await answer(self.core.unlink(number, entry.name, self.caller))
            await answer(self.core.rmdir(await self.directory(above), name, self.caller))
        except FileNotFoundError:
            return
        self._unknow(number)

    async def remove_temporaries(self, session: SessionId) -> None:
        """Remove what a program that was killed has left in a session's root; there must be no other writer."""
        root = await self.directory(unit_path(session))
        for entry in await self.entries(root):
            if is_temporary(entry.name) and stat.S_ISREG(entry.shown.mode):
                await answer(self.core.unlink(root, entry.name, self.caller))
