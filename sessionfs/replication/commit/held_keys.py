"""Keys that no upload touches for a moment."""

from __future__ import annotations

import trio

from sessionfs.replication.uploader import Uploader

_TRIES = 40
_PAUSE_SECONDS = 0.025


class BusyError(Exception):
    """A key is under way all the time."""


class HeldKey:
    """Keeps a key from being touched inside an ``async with`` block.

    Args:
        uploader: Leaves it alone.
        key: The key.

    Raises:
        BusyError: On entering: it is under way all the time.
    """

    def __init__(self, uploader: Uploader, key: str) -> None:
        self._uploader = uploader
        self._key = key

    async def __aenter__(self) -> None:
        for _ in range(_TRIES):
            if self._uploader.hold(self._key):
                return
            await trio.sleep(_PAUSE_SECONDS)
        raise BusyError

    async def __aexit__(self, *_: object) -> None:
        self._uploader.release(self._key)
