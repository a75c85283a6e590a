"""Which log a session has, found without reading it: the header, and what the place says of the raw file.

The newest format wins over what it was migrated from, which stays where it was. A header whose log has no byte is the rest of a session that never
materialised: there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sessionfs.formats.events import header as headers
from sessionfs.formats.events.event import FORMAT
from sessionfs.formats.events.header import Header
from sessionfs.formats.events.older import OLDER_PATHS
from sessionfs.model import names
from sessionfs.model.errors import CorruptDataError, NotFoundError, UnsupportedFormatError
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import FileStat


class Asked(Protocol):
    """What is asked of a session's files here; `SessionFiles` answers it."""

    @property
    def session(self) -> SessionId:
        """Whose files."""

    async def stat(self, path: str) -> FileStat:
        """As `SessionFiles.stat`."""

    async def read(self, path: str, start: int, end: int) -> bytes:
        """As `SessionFiles.read`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A log.

    Attributes:
        version: Its format.
        header: None for the older formats, which have none.
        stat: Its raw file.
    """

    version: int
    header: Header | None
    stat: FileStat


@dataclass(frozen=True, slots=True)
class LogStat:
    """What is known of a session's log without reading it.

    Attributes:
        id: The session.
        version: Its format; 0 when `problem` hides it.
        header: None for the older formats, and when there is a problem.
        size_bytes: Length of the raw file.
        modified_ns: When it was last written, nanoseconds since the epoch.
        revision: Opaque; another one when the log has other bytes. Who owns the session does not move it.
        problem: Why the header cannot be used, "" when it can.
    """

    id: SessionId
    version: int
    header: Header | None
    size_bytes: int
    modified_ns: int
    revision: str
    problem: str = ""


async def find(files: Asked) -> Found:
    """Find a session's log; no byte of it is read.

    Raises:
        NotFoundError: There is none.
        UnsupportedFormatError: Its header has a newer format; the error names the raw file.
        CorruptDataError: Its header cannot be read.
    """
    header = await _header(files)
    if header is not None:
        stat = await _stat(files, header.log_path)
        if stat is not None and stat.size_bytes:
            return Found(FORMAT, header, stat)
    for version, path in sorted(OLDER_PATHS.items(), reverse=True):
        stat = await _stat(files, path)
        if stat is not None and stat.size_bytes:
            return Found(version, None, stat)
    raise NotFoundError(f"session {files.session} has no event log")


async def describe(files: Asked) -> LogStat:
    """Describe a session's log.

    Raises:
        As `find`.
    """
    found = await find(files)
    stat = found.stat
    session = names.session_id(files.session)
    return LogStat(session, found.version, found.header, stat.size_bytes, stat.modified_ns, stat.revision)


async def describe_any(files: Asked) -> LogStat | None:
    """Describe a session's log for a list: what cannot be used is an entry too; None when there is none."""
    try:
        return await describe(files)
    except NotFoundError:
        return None
    except UnsupportedFormatError as problem:
        return LogStat(files.session, problem.found, None, 0, 0, "", str(problem))
    except CorruptDataError as problem:
        return LogStat(files.session, 0, None, 0, 0, "", str(problem))


async def _stat(files: Asked, path: str) -> FileStat | None:
    try:
        return await files.stat(path)
    except NotFoundError:
        return None


async def _header(files: Asked) -> Header | None:
    try:
        # One byte more than it may have, so that a longer file is seen and not read.
        raw = await files.read(headers.HEADER_PATH, 0, headers.MAX_HEADER_BYTES + 1)
    except NotFoundError:
        return None
    if len(raw) > headers.MAX_HEADER_BYTES:
        raise CorruptDataError(
            f"{files.session}/{headers.HEADER_PATH} is longer than {headers.MAX_HEADER_BYTES} bytes"
        )
    return headers.decode(raw, files.session)
