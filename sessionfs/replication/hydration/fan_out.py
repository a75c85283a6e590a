"""Many small waits at once, bounded, with one error out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from sessionfs.model.errors import SessionFSError

Item = TypeVar("Item")


async def for_each(items: Iterable[Item], action: Callable[[Item], Awaitable[None]], *, limit: int) -> None:
    """Run an action for every item, at most `limit` at once, in the order of the items.

    Raises:
        SessionFSError: The first that an action raised; those under way are finished, no further one is started.
    """
    waiting = iter(items)
    failures: list[SessionFSError] = []

    async def work() -> None:
        for item in waiting:
            if failures:
                return
            try:
                await action(item)
            except SessionFSError as error:
                failures.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(limit):
            nursery.start_soon(work)
    if failures:
        raise failures[0]
