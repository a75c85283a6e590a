"""A scripted place, and the event logs on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sessionfs.sessions.event_log import EventLog, open_event_log

from .memory_place import MemoryPlace, SharedBytes


@pytest.fixture
def place() -> MemoryPlace:
    return MemoryPlace(SharedBytes())


@pytest.fixture
async def log(place: MemoryPlace) -> AsyncIterator[EventLog]:
    async with open_event_log(place) as opened:
        yield opened
        # What a test left broken on purpose is not to be flushed.
        for handle in opened._writers.values():
            handle._pending.clear()
            handle._writer._distrusted.clear()
