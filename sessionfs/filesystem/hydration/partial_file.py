"""One large file of which some blocks are here: which ones, who reads it, and in what order. No file is touched here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sessionfs.formats.link_message import Entry
from sessionfs.formats.manifest import BLOCK_BYTES

if TYPE_CHECKING:
    from sessionfs.filesystem.data import Handle

CONCURRENT_BLOCKS = 4


class Progress:
    """How one reader moves through a file.

    Attributes:
        block: The block it was in last.
        run: How many blocks it has touched one after the other.
    """

    __slots__ = ("block", "run")

    def __init__(self) -> None:
        self.block = -2
        self.run = 0

    def enters(self, block: int) -> bool:
        """Note a read; say whether it is in another block than the last one.

        Reads of one program may arrive a little out of order: one in the block before changes nothing.
        """
        if self.block - 1 <= block <= self.block and self.run:
            return False
        self.run = self.run + 1 if block == self.block + 1 and self.run else 1
        self.block = block
        return True


class PartialFile:
    """Blocks of one content.

    Attributes:
        number: The file whose content it is, or was.
        sha256: Of the content.
        size_bytes: Its length.
        name: The file's name in staging.
        path: Its path there.
        missing: Blocks that are not here.
        readers: Handles that read it.
        waiting: How many wait for all of it.
        rests: How often the last of them went.
        is_filling: Whether the rest is being brought behind a reader.
        is_detached: Whether the file means other bytes by now, and only readers keep this.
        is_given_up: Whether bringing all of it was tried in vain before its last name went.
        successor: How the bucket describes other bytes that the file has by now, shown when the last reader has gone.
        shown: How the file was described when `successor` came.
        limit: Lets few blocks come at once.
    """

    __slots__ = (
        "is_detached", "is_filling", "is_given_up", "limit", "missing", "name", "number", "path", "readers", "rests",
        "sha256", "shown", "size_bytes", "successor", "waiting",
    )  # fmt: skip

    def __init__(self, number: int, sha256: str, size_bytes: int, *, name: str, path: str) -> None:
        self.number = number
        self.sha256 = sha256
        self.size_bytes = size_bytes
        self.name = name
        self.path = path
        self.missing = set(range(-(-size_bytes // BLOCK_BYTES)))
        self.readers: dict[Handle, Progress] = {}
        self.waiting = 0
        self.rests = 0
        self.is_filling = False
        self.is_detached = False
        self.is_given_up = False
        self.successor: Entry | None = None
        self.shown: Entry | None = None
        self.limit = trio.Semaphore(CONCURRENT_BLOCKS)

    @property
    def is_used(self) -> bool:
        """Whether anybody reads it or waits for it."""
        return bool(self.readers) or self.waiting > 0

    def blocks(self, offset: int, length: int) -> range:
        """Blocks that a read touches; none behind the end."""
        end = min(offset + length, self.size_bytes)
        return range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)) if offset < end else range(0)

    def from_here(self, block: int) -> list[int]:
        """Give the missing blocks, those from one on first."""
        missing = sorted(self.missing)
        return [one for one in missing if one >= block] + [one for one in missing if one < block]
