"""Turns at paths: whoever changes or examines a file holds its path, and holds nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio


class PathLocks:
    """One lock for each path that somebody holds or waits for."""

    def __init__(self) -> None:
        self._locks: dict[str, trio.Lock] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def held(self, *paths: str) -> AsyncIterator[None]:
        """Hold paths; several are taken in one order by everybody."""
        async with AsyncExitStack() as stack:
            for path in sorted(set(paths)):
                await stack.enter_async_context(self._one(path))
            yield

    @asynccontextmanager
    async def _one(self, path: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(path, trio.Lock())
        self._users[path] = self._users.get(path, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path], self._locks[path]
