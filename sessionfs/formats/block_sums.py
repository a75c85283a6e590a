"""Sums of a long content's blocks, taken while it is read: pure."""

from __future__ import annotations

import hashlib

from sessionfs.formats.manifest import BLOCK_BYTES


class BlockSums:
    """Takes one sha256 for each `BLOCK_BYTES`.

    Args:
        size_bytes: Length of the whole content; one that is no longer than a block has no block sums.
    """

    def __init__(self, size_bytes: int) -> None:
        self._is_wanted = size_bytes > BLOCK_BYTES
        self._digest = hashlib.sha256()
        self._filled_bytes = 0
        self._sums: list[str] = []

    def update(self, chunk: bytes) -> None:
        """Take the next bytes, any number of them."""
        if not self._is_wanted:
            return
        view = memoryview(chunk)
        while view:
            part = view[: BLOCK_BYTES - self._filled_bytes]
            self._digest.update(part)
            self._filled_bytes += len(part)
            view = view[len(part) :]
            if self._filled_bytes == BLOCK_BYTES:
                self._end_block()

    def finish(self) -> tuple[str, ...]:
        """Give the sums, empty when none are wanted."""
        if self._is_wanted and self._filled_bytes:
            self._end_block()
        return tuple(self._sums)

    def _end_block(self) -> None:
        self._sums.append(self._digest.hexdigest())
        self._digest = hashlib.sha256()
        self._filled_bytes = 0
