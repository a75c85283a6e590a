"""Messages by which a large file comes block by block, in any order, into one sparse file of the daemon's in staging.

A block is `BLOCK_BYTES` long, the last one shorter. The daemon makes the file, as long as the whole content; the replication process writes blocks
into it and answers when one verified. Until then the daemon shows nothing of it.
"""

from __future__ import annotations

from sessionfs.formats.link_message import Entry, Message


class FetchBlock(Message, frozen=True):
    """Write one verified block of a content into a file in staging. Reply: `BlockFetched`.

    Attributes:
        number: The file whose content it is.
        block: Which block, from 0.
        partial: Name below the staging directory; the file there is as long as the content.
        sha256: Of the whole content: the file may have another one by now.
        log_position: Operations the answer must know.
    """

    number: int
    block: int
    partial: str
    sha256: str
    log_position: int


class BlockFetched(Message, frozen=True):
    """Reply to `FetchBlock`: the block is there, and verified."""


class FinishBlocks(Message, frozen=True):
    """Bring a file in staging that has all its blocks to the disk, and say how it must look. Reply: `BlocksFinished`.

    Attributes:
        number: As in `FetchBlock`.
        partial: As there.
        sha256: As there; refused when the file has another content by now.
        log_position: Operations the answer must know.
    """

    number: int
    partial: str
    sha256: str
    log_position: int


class BlocksFinished(Message, frozen=True):
    """Reply to `FinishBlocks`.

    Attributes:
        entry: Attributes the file must have in the working copy.
    """

    entry: Entry
