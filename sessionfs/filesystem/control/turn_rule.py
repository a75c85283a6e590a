"""The end-of-turn rule: a line that says a turn is over commits the session before its write returns.

Files are chosen by `FilesystemSettings.turn_globs` (on the path inside the session, when they are opened for writing), lines by ``turn_pattern``.
The line may be written in pieces; it counts when its newline is there. A line of more than 1 MiB never ends a turn.

The write itself has succeeded when the commit begins: its bytes are in the working copy and are uploaded in any case. So a commit that fails
does not fail the write, neither under ``degrade`` nor under ``strict``: the write returns its length. Under ``strict`` the next open for
writing in the session is EIO, until a commit succeeds.
"""

from __future__ import annotations

import contextlib
import os
import re

from sessionfs.filesystem.control.commits import Commits
from sessionfs.filesystem.inodes import InodeTable, Node
from sessionfs.model.errors import SessionFSError, SettingsError
from sessionfs.model.settings import FilesystemSettings
from sessionfs.working_copy.exclusions import Exclusions

MAX_LINE_BYTES = 1 << 20
TRIGGER = "turn"
_LOOK_BYTES = 64 << 10


class TurnWatch:
    """The unfinished line of a file that the rule is for.

    Attributes:
        end: Where the last write ended.
        line: What was written since the last newline.
        is_too_long: Whether that was more than a line may have.
    """

    __slots__ = ("end", "is_too_long", "line")

    def __init__(self) -> None:
        self.end = 0
        self.line = bytearray()
        self.is_too_long = False

    def restart(self, line: bytes | None) -> None:
        """Begin anew behind an unfinished line; None when it is too long to be known."""
        self.is_too_long = line is None
        self.line[:] = line or b""

    def extend(self, data: bytes) -> None:
        """Add to the unfinished line."""
        self.is_too_long = self.is_too_long or len(self.line) + len(data) > MAX_LINE_BYTES
        if self.is_too_long:
            self.line.clear()
        else:
            self.line += data


class TurnRule:
    """Finds the ends of turns.

    Args:
        settings: Which files, which lines.
        table: Gives the paths of files.
        commits: Commits.

    Raises:
        SettingsError: ``turn_pattern`` is no regular expression.
    """

    def __init__(self, settings: FilesystemSettings, table: InodeTable, commits: Commits) -> None:
        self._pattern = compiled(settings.turn_pattern)
        self._globs = Exclusions(settings.turn_globs)
        self._table = table
        self._commits = commits
        self.has_files = bool(settings.turn_globs)

    def watch(self, node: Node) -> None:
        """Note that a file was opened for writing."""
        if node.turn is None and self._globs.match(self._table.path_in_session(node)):
            node.turn = TurnWatch()

    def ends(self, node: Node, start: int, data: bytes) -> bool:
        """Look at what was just written to a watched file; say whether it ends a turn.

        Args:
            node: The file.
            start: Where the bytes are.
            data: Those that were written.
        """
        watch = node.turn
        if watch is None:
            return False
        if start != watch.end:
            watch.restart(self._line_before(node, start))
        watch.end = start + len(data)
        last = data.rfind(b"\n")
        if last < 0:
            watch.extend(data)
            return False
        first = data.find(b"\n")
        watch.extend(data[:first])
        line, is_too_long = bytes(watch.line), watch.is_too_long
        watch.restart(b"")
        watch.extend(data[last + 1 :])
        if not is_too_long and self._pattern.search(line):
            return True
        return any(self._matches(line) for line in data[first + 1 : last].split(b"\n"))

    def _matches(self, line: bytes) -> bool:
        return len(line) <= MAX_LINE_BYTES and self._pattern.search(line) is not None

    def _line_before(self, node: Node, start: int) -> bytes | None:
        """Read the unfinished line that ends at an offset; None when it is too long, or cannot be read."""
        if not start:
            return b""
        found = b""
        with contextlib.suppress(OSError):
            directory, name = self._table.location(node)
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                while start and len(found) <= MAX_LINE_BYTES:
                    length = min(start, _LOOK_BYTES)
                    start -= length
                    found = os.pread(descriptor, length, start) + found
                    newline = found.rfind(b"\n")
                    if newline >= 0:
                        return found[newline + 1 :]
            finally:
                os.close(descriptor)
            return found if not start else None
        return None

    async def commit(self, node: Node) -> None:
        """Commit the session of a file that ended a turn; a failure is noted and not raised."""
        if node.session is not None:
            # Commits notes it: under strict the next open for writing is refused.
            with contextlib.suppress(SessionFSError):
                await self._commits.commit(node.session, TRIGGER, is_turn=True)


def compiled(pattern: str) -> re.Pattern[bytes]:
    """Give the pattern for lines.

    Raises:
        SettingsError: It is no regular expression.
    """
    try:
        return re.compile(pattern.encode())
    except re.error as problem:
        raise SettingsError(f"turn_pattern is no regular expression: {problem}") from None
