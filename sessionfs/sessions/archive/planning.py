"""What a checkpoint sends, decided before anything is sent: pure.

Invariants:

* A file that continues what the newest checkpoint has keeps its generation: its complete blocks are up, as that checkpoint is complete.
* A new or rewritten file gets a generation of its own; one that an unfinished publication began for this path is taken up, and each of its
  blocks is looked at before it is believed to be there.
* The tail of a file that did not change stays where it is.
* The manifest is whole, and small enough, before the first object is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sessionfs.formats.archive import records as archive_records
from sessionfs.formats.archive.records import ArchivedFile, BegunFile, ManifestRecord
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import TooLargeError
from sessionfs.sessions.archive.objects import MAX_OBJECT_BYTES
from sessionfs.sessions.archive.source_files import Source, Summed


@dataclass(frozen=True, slots=True)
class NewBlock:
    """A complete block that the newest checkpoint does not have.

    Attributes:
        source: The file.
        generation: Its generation.
        index: Which block, from 0.
        sha256: Of its bytes when the file was summed.
        may_be_there: An earlier publication may have sent it.
    """

    source: Source
    generation: str
    index: int
    sha256: bytes
    may_be_there: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A checkpoint that is to be made.

    Attributes:
        manifest: The checkpoint.
        manifest_body: Its bytes.
        blocks: To be sent.
        tails: To be sent: generation and bytes.
        begun: What to remember before the first block is sent.
    """

    manifest: ManifestRecord
    manifest_body: bytes
    blocks: tuple[NewBlock, ...]
    tails: tuple[tuple[str, bytes], ...]
    begun: tuple[BegunFile, ...]


class Planner:
    """Makes the plan of one checkpoint.

    Args:
        session: The session.
        base: The newest checkpoint; None for none.
        begun: What earlier publications may have sent since.
        refused: Generations under which other bytes were found: not to be used for what is new.
        clock: Gives ids and the time.
    """

    def __init__(
        self,
        session: str,
        base: ManifestRecord | None,
        begun: Sequence[BegunFile],
        refused: Collection[str],
        clock: Clock,
    ) -> None:
        self._session = session
        self._base = base
        self._begun = {file.path: file for file in begun}
        self._refused = refused
        self._clock = clock
        self._taken = {file.generation for file in base.files} if base else set()

    def plan(self, summed: Sequence[Summed]) -> Plan | None:
        """Decide what to send for files; None when the newest checkpoint has exactly these.

        Raises:
            TooLargeError: The manifest would be longer than an object may be.
        """
        number = self._base.number + 1 if self._base else 1
        checkpoint = f"{number:010d}-{self._clock.unique_id()}"
        files: list[ArchivedFile] = []
        blocks: list[NewBlock] = []
        tails: list[tuple[str, bytes]] = []
        for content in summed:
            file = self._entry(content, checkpoint)
            files.append(file)
            if content.is_unchanged:
                continue
            blocks += self._blocks(content, file.generation)
            if content.tail:
                tails.append((file.generation, content.tail))
        if self._base is not None and tuple(files) == self._base.files:
            return None
        manifest = ManifestRecord(
            session=self._session,
            checkpoint=checkpoint,
            number=number,
            previous=self._base.checkpoint if self._base else "",
            files=tuple(files),
            created_at=utc_text(self._clock.wall_ns()),
        )
        body = archive_records.encode(manifest)
        if len(body) > MAX_OBJECT_BYTES:
            raise TooLargeError(
                f"the manifest would have {len(body)} bytes, at most {MAX_OBJECT_BYTES} are kept",
                remedy="archive fewer or shorter files",
            )
        return Plan(manifest, body, tuple(blocks), tuple(tails), _begun(blocks))

    def _entry(self, content: Summed, checkpoint: str) -> ArchivedFile:
        known, source = content.continues, content.source
        tail_checkpoint = checkpoint if content.tail else ""
        return ArchivedFile(
            path=source.path,
            size=source.size_bytes,
            generation=known.generation if known else self._new_generation(source.path),
            sha256=content.sha256,
            block_crcs=content.block_crcs,
            tail_checkpoint=known.tail_checkpoint if known and content.is_unchanged else tail_checkpoint,
            is_private=source.is_private,
        )

    def _new_generation(self, path: str) -> str:
        begun = self._begun.get(path)
        if begun is None or begun.generation in self._taken or begun.generation in self._refused:
            return self._clock.unique_id()
        self._taken.add(begun.generation)
        return begun.generation

    def _blocks(self, content: Summed, generation: str) -> list[NewBlock]:
        begun = self._begun.get(content.source.path)
        looked_at = begun.blocks if begun and begun.generation == generation else 0
        first = content.continues.blocks if content.continues else 0
        return [
            NewBlock(content.source, generation, index, sha256, index < looked_at)
            for index, sha256 in enumerate(content.new_block_sums, first)
        ]


def _begun(blocks: Sequence[NewBlock]) -> tuple[BegunFile, ...]:
    last = {block.source.path: block for block in blocks}
    return tuple(
        BegunFile(path=path, generation=block.generation, blocks=block.index + 1)
        for path, block in last.items()
    )
