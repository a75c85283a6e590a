"""What a writer does to a log before it appends: see the invariants of `service`."""

from __future__ import annotations

from collections.abc import Sequence

from sessionfs.formats.events import event as events
from sessionfs.formats.events.event import FORMAT
from sessionfs.sessions.event_log.log_writer import LogWriter
from sessionfs.sessions.event_log.stored_log import StoredLog


async def make_whole(log: StoredLog, writer: LogWriter) -> None:
    """Migrate, recover and close what is open, in one write; a log that is whole is left alone.

    Args:
        log: What was read; it is then what is stored.
        writer: Of the newest format, knowing the whole part of the raw file, if that has this format.

    Raises:
        SessionFSError: The place refused; what was there is there.
    """
    missing = list(log.rest.recovered)
    log.add(missing)
    closers = [events.encode(one) for one in log.closers()]
    if log.version < FORMAT:
        # All of it is new to the newest format.
        await store_all(writer, [*log.lines, *closers])
    elif log.rest.is_torn:
        await writer.replace_torn([*missing, *closers])
    else:
        await store_all(writer, closers)
    log.add(closers)


async def store_all(writer: LogWriter, lines: Sequence[bytes]) -> None:
    """Store lines that nobody waits to add to.

    Raises:
        SessionFSError: The place refused; the first of them may be stored.
    """
    left = lines
    while left:
        left = left[await writer.store(left) :]
