"""A directory of a workspace: its files by paths below it. Where the place has real paths, a program may work there as well."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import trio

from sessionfs.model.errors import InvalidRequestError
from sessionfs.sessions.port import FileStat, checked_path
from sessionfs.sessions.workspace.local_state import local_disk

if TYPE_CHECKING:
    from sessionfs.sessions.workspace.owned_unit import OwnedUnit


@runtime_checkable
class HasRealPaths(Protocol):
    """What ``SessionFiles`` of a place with real paths have besides."""

    def real_path(self, path: str) -> str:
        """Give the path on this host of a file or directory of the session, "" for the session itself."""


class Directory:
    """Files of a workspace below a directory.

    Args:
        unit: The workspace.
        prefix: The directory.

    Attributes:
        prefix: The directory, relative to the session, without a slash at its end.
    """

    def __init__(self, unit: OwnedUnit, prefix: str) -> None:
        self._unit = unit
        self.prefix = checked_path(prefix)

    @property
    def path(self) -> str | None:
        """The directory on this host; None when the place has no real paths. What is done there is found as others' changes are."""
        return self._unit.real_path(self.prefix)

    async def make(self) -> None:
        """Make the directory where the place has real paths; elsewhere it is made with its first file.

        Raises:
            LocalDiskError: The disk refused.
        """
        path = self.path
        if path is None:
            return
        with local_disk(path):
            await trio.to_thread.run_sync(lambda: os.makedirs(path, exist_ok=True))

    async def write(self, name: str, body: bytes, *, is_private: bool = False) -> FileStat:
        """Replace a file, or make it; as ``OwnedUnit.write_file``."""
        return await self._unit.write_file(self._below(name), body, is_private=is_private)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a file; as ``OwnedUnit.read_file``."""
        return await self._unit.read_file(self._below(name), start, end)

    async def append(self, name: str, tail: bytes) -> FileStat:
        """Add to a file; as ``OwnedUnit.append_file``."""
        return await self._unit.append_file(self._below(name), tail)

    async def remove(self, name: str) -> None:
        """Remove a file; as ``OwnedUnit.remove_file``."""
        await self._unit.remove_file(self._below(name))

    async def exists(self, name: str) -> bool:
        """Whether there is such a file."""
        return await self._unit.file_exists(self._below(name))

    async def list(self) -> list[str]:
        """List the files below, by their paths below this directory, sorted."""
        return [path[len(self.prefix) + 1 :] for path in await self._unit.list_files(self.prefix)]

    def _below(self, name: str) -> str:
        # Checked alone: a name with a drive, or of a control directory, is one only at the beginning.
        return f"{self.prefix}/{checked_path(name)}"


def checked_component(name: str, what: str) -> str:
    """Check a name that is one component of a path; it is given back.

    Raises:
        InvalidRequestError: It is none.
    """
    if "/" in name:
        raise InvalidRequestError(f"{what} {name!r} contains a slash")
    return checked_path(name)
