"""Headers and events of tests."""

from __future__ import annotations

from collections.abc import Sequence

from sessionfs.formats.events import event as events
from sessionfs.formats.events import log_bytes
from sessionfs.formats.events.header import Encoding
from sessionfs.sessions.event_log import Event, Header

LOG = "events.jsonl.zst"


def header(session: str = "s1") -> Header:
    return Header(id=session, created_at=1)


def said(first: int, count: int = 1) -> list[Event]:
    return [
        Event(seq, seq, "message.user", data={"text": f"line {seq}"}) for seq in range(first, first + count)
    ]


def stored(some: Sequence[Event], encoding: Encoding = "zstd") -> bytes:
    """The bytes of one batch."""
    return log_bytes.encode([events.encode(event) for event in some], encoding)
