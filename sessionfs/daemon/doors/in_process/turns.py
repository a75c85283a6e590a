"""Whose turn it is to append to a file, among the tasks of one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Turns:
    """One lock for each path that somebody wants."""

    def __init__(self) -> None:
        self._locks: dict[str, trio.Lock] = {}

    @asynccontextmanager
    async def of(self, path: str) -> AsyncIterator[None]:
        """Let nobody else have the path's turn while the block lasts."""
        lock = self._locks.setdefault(path, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(path, None)
