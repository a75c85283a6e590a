"""The door to a session's log of events: one writer, readers that never go back. May import ``replication`` and below.

`open_event_log` is the asynchronous form, `BlockingEventLog` the blocking one.
"""

from __future__ import annotations

from sessionfs.formats.events.event import Event
from sessionfs.formats.events.header import Header
from sessionfs.sessions.event_log.blocking import BlockingEventLog
from sessionfs.sessions.event_log.finding import LogStat
from sessionfs.sessions.event_log.flush_error import FlushFailedError
from sessionfs.sessions.event_log.handles import LogHandle, WriteHandle
from sessionfs.sessions.event_log.service import EventLog, open_event_log
from sessionfs.sessions.event_log.settings import EventLogSettings
from sessionfs.sessions.event_log.turn_repair import interrupted_turn_closers

__all__ = [
    "BlockingEventLog",
    "Event",
    "EventLog",
    "EventLogSettings",
    "FlushFailedError",
    "Header",
    "LogHandle",
    "LogStat",
    "WriteHandle",
    "interrupted_turn_closers",
    "open_event_log",
]
