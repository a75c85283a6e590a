"""The hidden ``.sessionfs`` of the mount's root: directories that belong to no session (``model/roots.py``).

``plugins/<plugin>/``, ``agents/<agent>/plugins/<plugin>/`` and ``eval/<run>/`` are owned, committed and hydrated as sessions are: from the last
component on, everything here is the sessions' own code. The directories above them have nothing behind them, on disk or in the bucket. Those of
``SHAPES`` are always there; one of an agent is there when a shared root is below it, or when it was made or seen in this mount and not removed
since.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable

from sessionfs.filesystem.inodes import ControlNode, Node, failure
from sessionfs.filesystem.permissions import SEARCH, WRITE, Caller
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Attributes, Volume
from sessionfs.model import roots
from sessionfs.model.errors import InvalidSessionIdError, UnavailableError
from sessionfs.model.names import SessionId

_Path = tuple[str, ...]


class SharedRoots:
    """Answers the calls about those directories.

    Args:
        volume: The mount.
        sessions: Finds, makes and removes what is owned.
    """

    def __init__(self, volume: Volume, sessions: SessionsRoot) -> None:
        self._volume = volume
        self._sessions = sessions
        self._table = volume.table
        self._numbers: dict[_Path, int] = {}
        self._known_agents: set[_Path] = set()

    @staticmethod
    def has(node: Node | None) -> bool:
        """Say whether an inode is one of these directories."""
        return node.__class__ is ControlNode and node is not None and node.session is None

    # --- finding

    def top(self) -> Attributes:
        """Find ``.sessionfs`` in the mount's root; the kernel knows it once more afterwards."""
        return self._known(())

    def lookup(self, node: Node, name: bytes) -> Attributes | Awaitable[Attributes]:
        """Find a name; the kernel knows it once more afterwards, unless the number is 0.

        Raises:
            SessionFSError: The store could not say.
        """
        path = _below(node, name)
        if path is None:
            return self._volume.absent(self._table.root)
        unit = _unit(path)
        if unit is not None:
            return self._sessions.lookup_unit(unit.encode())
        if len(path) == 1 or path in self._known_agents:
            return self._known(path)
        return self._look_for(path)

    async def _look_for(self, path: _Path) -> Attributes:
        if not await self._roots_below(path):
            return self._volume.absent(self._table.root)
        self._note_agent(path)
        return self._known(path)

    def _note_agent(self, path: _Path) -> None:
        self._known_agents.update(path[:length] for length in range(2, len(path) + 1))

    def _known(self, path: _Path) -> Attributes:
        number = self._numbers.get(path)
        if number is None:
            number = self._numbers[path] = self._table.virtual_number()
        node = self._table.by_number.get(number)
        if node is None:
            node = self._table.by_number[number] = ControlNode(
                number, stat.S_IFDIR, None, "/".join(path).encode()
            )
        node.lookups += 1
        return self.attributes(node)

    async def _roots_below(self, path: _Path) -> list[_Path]:
        """Name the shared roots below a directory, here and in the bucket; only those here while the store does not answer.

        Raises:
            SessionFSError: The store did not answer, and there is none here.
        """
        here = {name for name in os.listdir(self._volume.layout.sessions) if roots.is_shared_root(name)}
        problem: UnavailableError | None = None
        try:
            here.update(await self._volume.remote.list_shared_roots())
        except UnavailableError as error:
            problem = error
        every = (tuple(roots.shown_id(identifier).split("/")) for identifier in here)
        found = [one for one in every if one[: len(path)] == path]
        if problem is not None and not found:
            raise problem
        return found

    async def names(self, node: Node) -> list[bytes]:
        """List a directory.

        Raises:
            SessionFSError: The store could not say, and nothing is known here.
        """
        path = _path(node)
        if not path:
            return [kind.encode() for kind in roots.SHAPES]
        known = [agent for agent in self._known_agents if agent[:-1] == path]
        try:
            known += await self._roots_below(path)
        except UnavailableError:
            if not known:
                raise
        return [name.encode() for name in sorted({one[len(path)] for one in known})]

    def listed(self, node: Node, name: bytes) -> Attributes:
        """Describe a name in a listing; what was never opened gets a number for the listing only."""
        path = _below(node, name)
        unit = _unit(path) if path is not None else None
        if unit is not None or path is None:
            return self._sessions.listed(unit.encode() if unit is not None else b"")
        shown = self._known(path)
        self._table.by_number[shown.number].lookups -= 1
        return shown

    def attributes(self, node: Node) -> Attributes:
        """Describe a directory: whoever may make sessions may make shared roots."""
        shown = self._volume.attributes(self._table.root)
        shown.number, shown.nlink = node.number, 2
        shown.entry_timeout = self._volume.name_timeout(self._table.root)
        return shown

    # --- making and removing

    async def make(self, node: Node, name: bytes, mode: int, caller: Caller) -> Attributes:
        """Make a shared root, or a directory above one.

        Raises:
            OSError: EROFS, EPERM where no shared root can be, EINVAL for a bad name, EEXIST, EACCES.
            SessionFSError: Another host owns it.
        """
        self._volume.require_changes()
        path = _below(node, name)
        if path is None:
            raise failure(errno.EPERM if _is_fixed(_path(node)) else errno.EINVAL)
        unit = _unit(path)
        if unit is not None:
            shown = await self._sessions.make_unit(unit, mode, caller)
            self._note_agent(path[:-1])
            return shown
        if len(path) == 1 or path in self._known_agents:
            raise failure(errno.EEXIST)
        self._volume.require(caller, self._table.root, WRITE | SEARCH)
        self._note_agent(path)
        return self._known(path)

    async def remove(self, node: Node, name: bytes, caller: Caller) -> None:
        """Remove an empty shared root, or an empty directory above one.

        Raises:
            OSError: EROFS, EPERM, ENOENT, ENOTEMPTY, EACCES.
            SessionFSError: The store could not say what is in it.
        """
        path = _below(node, name)
        unit = _unit(path) if path is not None else None
        if unit is not None:
            waiting = self._sessions.remove_unit(unit.encode(), caller)
            if waiting is not None:
                await waiting
            return
        self._volume.require_changes()
        if path is None or path not in self._known_agents:
            raise failure(errno.EPERM if path is not None and len(path) == 1 else errno.ENOENT)
        self._volume.require(caller, self._table.root, WRITE | SEARCH)
        if await self._roots_below(path) or any(
            one[: len(path)] == path and one != path for one in self._known_agents
        ):
            raise failure(errno.ENOTEMPTY)
        self._known_agents.discard(path)


def _path(node: Node) -> _Path:
    text = node.path.decode() if isinstance(node, ControlNode) else ""
    return tuple(text.split("/")) if text else ()


def _is_fixed(path: _Path) -> bool:
    """Whether the names in a directory are not for people to choose."""
    return not path or bool(roots.SHAPES[path[0]][len(path)])


def _below(node: Node, name: bytes) -> _Path | None:
    """The path of a name in a directory; None when nothing can have it."""
    path = _path(node)
    try:
        component = name.decode("utf-8")
        return roots.checked_path((*path, component))
    except (UnicodeDecodeError, InvalidSessionIdError):
        return None


def _unit(path: _Path) -> SessionId | None:
    """The shared root that a path is; None for a directory above one."""
    if not path or len(path) < len(roots.SHAPES[path[0]]):
        return None
    return roots.named_unit("/".join(path))
