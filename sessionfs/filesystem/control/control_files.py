"""The hidden ``.sessionfs`` of each session: never listed in the session, never uploaded, with nothing behind it on disk.

``status``
    How the session stands, as JSON.
``snapshot``
    A written line names a trigger and commits; the write returns after the commit, with the commit's errno. Nothing happens when the file is
    closed, because shells duplicate and close a descriptor before they write. Reading gives the last result.
``generations/<n>/``, ``conflicts/``, ``unnamed/``
    Read-only trees (see ``read_only_trees``).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Awaitable
from typing import Any

import msgspec

from sessionfs.filesystem.control.commits import Commits
from sessionfs.filesystem.control.read_only_trees import ReadOnlyTrees
from sessionfs.filesystem.inodes import ControlNode, Directory, Node, Session, failure
from sessionfs.filesystem.permissions import WRITE, Caller
from sessionfs.filesystem.volume import SHORT_TIMEOUT_SECONDS, Attributes, Volume
from sessionfs.model import roots

STATUS = b"status"
SNAPSHOT = b"snapshot"
GENERATIONS = b"generations"
MAX_TRIGGER_CHARACTERS = 64
DEFAULT_TRIGGER = "file"
_TREES = (b"conflicts", b"unnamed")
_NAMES = (STATUS, SNAPSHOT, GENERATIONS, *_TREES)
_GENERATION = re.compile(rb"[1-9][0-9]{0,9}")
_MAX_PENDING_BYTES = 4096
_DIRECTORY_MODE = stat.S_IFDIR | 0o555
_FILE_MODES = {STATUS: stat.S_IFREG | 0o444, SNAPSHOT: stat.S_IFREG | 0o644}


class ControlFiles:
    """Answers the calls about them.

    Args:
        volume: The mount.
        trees: Opens the read-only trees.
        commits: Commits.
    """

    def __init__(self, volume: Volume, trees: ReadOnlyTrees, commits: Commits) -> None:
        self._volume = volume
        self._trees = trees
        self.commits = commits
        self._table = volume.table
        self._numbers: dict[tuple[str, bytes], int] = {}

    # --- finding

    def directory(self, parent: Directory) -> Attributes:
        """Find ``.sessionfs`` in a session's root.

        Raises:
            OSError: ENOENT in a tree of the past.
        """
        session = parent.session
        if session is None or session.read_only:
            raise failure(errno.ENOENT)
        return self._known(session, b"", stat.S_IFDIR)

    def lookup(self, parent: Node, name: bytes) -> Attributes | Awaitable[Attributes]:
        """Find a name below ``.sessionfs``; the kernel knows it once more afterwards.

        Raises:
            OSError: ENOENT, when that is certain.
            SessionFSError: The store could not say.
        """
        session = parent.session
        if not isinstance(parent, ControlNode) or session is None:
            raise failure(errno.ENOENT)
        if parent.path == GENERATIONS and _GENERATION.fullmatch(name):
            return self._tree(session, f"g{name.decode()}", lasting=True, otherwise=None)
        if parent.path or name not in _NAMES:
            raise failure(errno.ENOENT)
        if name in _TREES:
            return self._tree(session, name.decode(), lasting=False, otherwise=name)
        return self._known(session, name, stat.S_IFDIR if name == GENERATIONS else stat.S_IFREG)

    async def _tree(
        self, session: Session, tree: str, *, lasting: bool, otherwise: bytes | None
    ) -> Attributes:
        found = await self._trees.open(session, tree, lasting=lasting)
        if found is not None:
            return found
        if otherwise is None:
            raise failure(errno.ENOENT)
        return self._known(session, otherwise, stat.S_IFDIR)  # nothing is kept there: an empty directory

    def _known(self, session: Session, path: bytes, kind: int) -> Attributes:
        number = self._numbers.get((session.id, path))
        if number is None:
            number = self._numbers[session.id, path] = self._table.virtual_number()
        node = self._table.by_number.get(number)
        if node is None or node.session is not session:
            node = self._table.by_number[number] = ControlNode(number, kind, session, path)
        node.lookups += 1
        return self.attributes(node)

    def names(self, node: Node) -> list[bytes] | Awaitable[list[bytes]]:
        """List a directory of ours.

        Raises:
            SessionFSError: The store could not say.
        """
        if not isinstance(node, ControlNode) or node.session is None:
            return []
        if node.path == GENERATIONS:
            return self._generations(node.session)
        return [] if node.path else list(_NAMES)

    async def _generations(self, session: Session) -> list[bytes]:
        return [b"%d" % number for number in await self._volume.remote.list_generations(session.id)]

    def listed(self, parent: Node, name: bytes) -> Attributes:
        """Describe a name in a listing; a tree that was never opened gets a number for the listing only."""
        session = parent.session
        if isinstance(parent, ControlNode) and session is not None:
            if parent.path or name in _TREES:
                tree = self._trees.listed(session, f"g{name.decode()}" if parent.path else name.decode())
                if tree is not None:
                    return tree
            else:
                shown = self._known(session, name, stat.S_IFDIR if name == GENERATIONS else stat.S_IFREG)
                self._table.by_number[shown.number].lookups -= 1
                return shown
        return Attributes(self._table.virtual_number(), _DIRECTORY_MODE, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)

    def adopt(self, number: int) -> None:
        """Note that the kernel took a listed name."""
        node = self._table.by_number.get(number)
        if node is not None:
            node.lookups += 1

    # --- attributes

    def attributes(self, node: Node) -> Attributes:
        """Describe something of ours; a file's length is known only when it is read."""
        path = node.path if isinstance(node, ControlNode) else b""
        mode = _FILE_MODES.get(path, _DIRECTORY_MODE)
        uid, gid = self._owner(node.session)
        now = self._volume.clock.wall_ns()
        links, timeout = (2 if node.kind == stat.S_IFDIR else 1), SHORT_TIMEOUT_SECONDS
        return Attributes(node.number, mode, links, uid, gid, 0, 0, 0, now, now, now, timeout, timeout)

    def _owner(self, session: Session | None) -> tuple[int, int]:
        """Whoever owns the session's root may commit it."""
        root = self._table.by_number.get(session.number) if session is not None else None
        if root is None:
            return os.geteuid(), os.getegid()
        shown = self._volume.attributes(root)
        return shown.uid, shown.gid

    def resize(self, node: Node, *, is_only_size: bool) -> Attributes:
        """Take a truncation of ``snapshot``, which changes nothing.

        Raises:
            OSError: EPERM for anything else.
        """
        if not isinstance(node, ControlNode) or node.path != SNAPSHOT or not is_only_size:
            raise failure(errno.EPERM)
        return self.attributes(node)

    # --- bytes

    async def open(self, node: Node, flags: int, caller: Caller) -> bytes:
        """Give what a file of ours says now.

        Raises:
            OSError: EISDIR; EACCES for writing anything but ``snapshot``, and for who may not write that; EROFS; ESTALE.
            SessionFSError: The replication process did not answer.
        """
        session = node.session
        if node.kind == stat.S_IFDIR:
            raise failure(errno.EISDIR)
        if not isinstance(node, ControlNode) or session is None:
            raise failure(errno.ESTALE)
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            if node.path != SNAPSHOT:
                raise failure(errno.EACCES)
            self._volume.require_changes()
            if caller.uid:
                self._volume.permissions.require(caller, self.attributes(node), WRITE)
            node.pending = b""
        if node.path == SNAPSHOT:
            return self.commits.last(session)
        status = msgspec.json.decode(
            await self._volume.remote.session_status(session.id), type=dict[str, Any]
        )
        status["id"] = roots.shown_id(session.id)
        status["commit_problem"] = roots.readable(session.commit_problem)
        return msgspec.json.format(msgspec.json.encode(status)) + b"\n"

    async def write(self, node: Node, data: bytes) -> int:
        """Take what is written to ``snapshot``; a newline commits before this returns.

        Several lines in one write are one commit, named by the last of them.

        Raises:
            OSError: EBADF for any other file; EINVAL for a line without end.
            SessionFSError: The commit failed.
        """
        if not isinstance(node, ControlNode) or node.path != SNAPSHOT or node.session is None:
            raise failure(errno.EBADF)
        lines = (node.pending + data).split(b"\n")
        node.pending = lines.pop()
        if len(node.pending) > _MAX_PENDING_BYTES:
            node.pending = b""
            raise failure(errno.EINVAL)
        if lines:
            await self.commits.commit(node.session, trigger_of(lines[-1]))
        return len(data)


def trigger_of(line: bytes) -> str:
    """Give the trigger that a line names: printable characters, at most 64 of them."""
    text = line.decode("utf-8", "replace").strip()
    shown = "".join(character for character in text if character.isprintable())
    return shown[:MAX_TRIGGER_CHARACTERS].strip() or DEFAULT_TRIGGER
