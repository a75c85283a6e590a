"""The gate that changes go through: shut when a workspace ends or is published, with nothing under way behind it.

A task that is in a change may go on to its parts while the gate is shut, and so may the task that shut it; nobody else begins one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from sessionfs.model.errors import SessionFSError


class ChangeGate:
    """Counts the changes that are under way."""

    def __init__(self) -> None:
        self._under_way: dict[trio.lowlevel.Task, int] = {}
        self._turn = trio.Lock()
        self._waiting = trio.lowlevel.ParkingLot()
        self._shut_by: trio.lowlevel.Task | None = None
        self._refusal: Callable[[], SessionFSError] | None = None
        self._is_ended = False

    def end(self) -> None:
        """Nobody is waited for any more."""
        self._is_ended = True
        self._waiting.unpark_all()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Be in a change, or in a part of one.

        Raises:
            SessionFSError: The gate is shut; as whoever shut it says.
        """
        task = trio.lowlevel.current_task()
        if self._refusal is not None and task is not self._shut_by and task not in self._under_way:
            raise self._refusal()
        self._under_way[task] = self._under_way.get(task, 0) + 1
        try:
            yield
        finally:
            self._under_way[task] -= 1
            if not self._under_way[task]:
                del self._under_way[task]
                if not self._under_way:
                    self._waiting.unpark_all()

    @asynccontextmanager
    async def shut(self, refusal: Callable[[], SessionFSError]) -> AsyncIterator[None]:
        """Refuse changes, and go on when those that were under way have ended; one at a time. The gate is open again behind the block.

        Args:
            refusal: What is raised for whoever comes meanwhile.
        """
        async with self._turn:
            self._shut_by, self._refusal = trio.lowlevel.current_task(), refusal
            try:
                while self._under_way and not self._is_ended:
                    await self._waiting.park()
                yield
            finally:
                self._shut_by = self._refusal = None
