"""Brings one block of a large file, verified by its own sum, into a sparse file that the daemon has made in staging.

Order of a block: the object that gave the last one, the objects that the journal knows, then every place where the content may be
(``named_content``). Each is only a guess: the block's sum decides, so that an object which has grown since still serves. A place that is gone,
moved or damaged is passed over; when none is left nothing is given.

Invariants:

* Requests for one block at the same time share one download: nothing writes to a block that was reported.
* A content is what it was when its first block was asked for. A file that has another one by now goes on being read while the old bytes are
  anywhere; then the reader is told (`ObjectNotFoundError`), which is not damage.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, replace

import trio

from sessionfs.formats.link_message import Entry
from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.model.errors import (
    CorruptDataError,
    LocalDiskError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.replication.hydration.fetches.content_fetch import ContentFetcher, Named, Tried
from sessionfs.replication.hydration.fetches.file_fetch import FileFetch
from sessionfs.replication.hydration.named_content import Source
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ByteRange, Token
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_REMEMBERED = 64
_ABSENT = "is not there"
_MOVED = "is another object by now"


@dataclass(frozen=True, slots=True)
class _Content:
    """What is being read into one file in staging.

    Attributes:
        named: The content, with the sums of its blocks.
        objects: Objects of the journal that may have it, the best first.
        is_present: Whether the file still has this content.
    """

    named: Named
    objects: tuple[KnownObject, ...]
    is_present: bool = True


class _Flight:
    """A block under way, for everybody who asks for it."""

    __slots__ = ("error", "landed")

    def __init__(self) -> None:
        self.landed = trio.Event()
        self.error: SessionFSError | None = UnavailableError("the fetch was cancelled", remedy="try again")


class BlockFetch:
    """Fetches blocks.

    Args:
        journal: Knows the sums of blocks.
        store: The bucket.
        layout: Where staging is.
        files: Knows what a file's bytes are; is told of damage.
        content: Finds bytes by their content.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        *,
        files: FileFetch,
        content: ContentFetcher,
    ) -> None:
        self._journal = journal
        self._store = store
        self._layout = layout
        self._files = files
        self._content = content
        self._flights: dict[tuple[str, int], _Flight] = {}
        self._contents: OrderedDict[str, _Content] = OrderedDict()
        self._sources: dict[str, Source] = {}

    async def fetch(self, number: int, block: int, *, partial: str, sha256: str) -> None:
        """Write one verified block into a file in staging.

        Args:
            number: The file whose content it is.
            block: Which, from 0.
            partial: Name of a file in staging that is as long as the content.
            sha256: Of the whole content.

        Raises:
            ObjectNotFoundError: The file has another content by now, or is gone, and this one is nowhere any more.
            CorruptDataError: No place has the block as its sum says; it names the file, and what was tried.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: The store does not give it.
        """
        flight = self._flights.get((partial, block))
        if flight is not None:
            await flight.landed.wait()
            if flight.error is not None:
                raise flight.error
            return
        flight = self._flights[partial, block] = _Flight()
        try:
            await self._fetch(number, block, partial, sha256)
            flight.error = None
        except SessionFSError as error:
            flight.error = error
            raise
        finally:
            del self._flights[partial, block]
            flight.landed.set()

    def finish(self, number: int, *, partial: str, sha256: str) -> Entry:
        """Say how a file must look whose blocks are all in staging.

        Raises:
            ObjectNotFoundError: It has another content by now, or is gone.
        """
        node = self._journal.node(number)
        if node is None or not self._journal.names_of(number) or node.present or node.sha256 != sha256:
            raise ObjectNotFoundError(f"file {number} has other bytes by now")
        self._files.note_had(number)
        self._forget(partial)
        return self._files.described(number)

    # --- one block

    async def _fetch(self, number: int, block: int, partial: str, sha256: str) -> None:
        content = await self._content_of(number, partial, sha256)
        descriptor = self._open(partial)
        try:
            if os.fstat(descriptor).st_size != content.named.entry.size_bytes:
                raise ObjectNotFoundError(f"{content.named.shown} has another length by now")
            tried: Tried = {}
            if await self._try_all(content, block, (partial, descriptor), tried):
                return
        finally:
            os.close(descriptor)
        raise await self._lost(number, content, sha256, tried)

    async def _content_of(self, number: int, partial: str, sha256: str) -> _Content:
        """What is read into a file; remembered, because the journal forgets a content that nothing has any more."""
        remembered = self._contents.get(partial)
        try:
            wanted = await self._files.wanted(number)
        except ObjectNotFoundError:
            if remembered is None:
                raise
            return replace(remembered, is_present=False)
        entry = wanted.named.entry
        if entry.sha256 != sha256:
            if remembered is None:
                raise ObjectNotFoundError(f"{wanted.named.shown} has other bytes by now")
            return replace(remembered, is_present=False)
        if not entry.blocks:
            entry = replace(entry, blocks=self._journal.blocks(sha256))
        if len(entry.blocks) != -(-entry.size_bytes // BLOCK_BYTES):
            raise ObjectNotFoundError(f"the blocks of {wanted.named.shown} have no sums")
        content = _Content(replace(wanted.named, entry=entry), tuple(wanted.objects))
        self._contents[partial] = content
        self._contents.move_to_end(partial)
        while len(self._contents) > _REMEMBERED:
            self._forget(next(iter(self._contents)))
        return content

    async def _try_all(self, content: _Content, block: int, target: tuple[str, int], tried: Tried) -> bool:
        for source in self._known_sources(content, target[0]):
            if await self._try(content, block, target, source, tried):
                return True
        for anew in (False, True):
            async for source in self._content.places(content.named, anew=anew):
                if await self._try(content, block, target, source, tried):
                    return True
        return False

    def _known_sources(self, content: _Content, partial: str) -> list[Source]:
        size_bytes = content.named.entry.size_bytes
        last = self._sources.get(partial)
        known = [
            Source(one.key, one.token, size_bytes)
            for one in content.objects
            if one.token and one.size_bytes >= size_bytes
        ]
        return [last, *known] if last is not None else known

    async def _try(
        self, content: _Content, block: int, target: tuple[str, int], source: Source, tried: Tried
    ) -> bool:
        """Write a block from one place; False when it is not there as its sum says, which is noted."""
        if (source.key, source.token) in tried:
            return False
        partial, descriptor = target
        start = block * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, content.named.entry.size_bytes)
        try:
            got = await self._store.download(
                source.key,
                descriptor,
                byte_range=ByteRange(start, end),
                expected=Token(source.token) if source.token else None,
                position=start,
                tries=READ_TRIES,
            )
        except ObjectNotFoundError:
            tried[source.key, source.token] = _ABSENT
        except PreconditionFailedError:
            tried[source.key, source.token] = _MOVED
        except OSError as problem:
            raise _disk_error(partial, problem) from None
        else:
            if got.sha256 == content.named.entry.blocks[block]:
                self._sources[partial] = source
                return True
            tried[source.key, source.token] = f"has other bytes from {start} to {end} than its sums say"
            self._note_corrupt(content, source, tried)
        self._sources.pop(partial, None)
        return False

    def _note_corrupt(self, content: _Content, source: Source, tried: Tried) -> None:
        """Announce an object that says of itself that it has the whole content, and has not."""
        named = content.named.entry
        for known in content.objects:
            if (known.key, known.token, known.sha256) == (source.key, source.token, named.sha256):
                why = f"{known.key} {tried[source.key, source.token]}"
                self._files.note_corrupt(known, CorruptDataError(why, remedy="put the file again"))

    async def _lost(self, number: int, content: _Content, sha256: str, tried: Tried) -> SessionFSError:
        """Give the error of a block that is nowhere; a file that was replaced meanwhile is no damage."""
        for known in content.objects if content.is_present else ():
            if tried.get((known.key, known.token)) in {_ABSENT, _MOVED}:
                await self._files.follow(number, known)
        node = self._journal.node(number)
        if not content.is_present or node is None or node.sha256 != sha256:
            return ObjectNotFoundError(f"{content.named.shown} was replaced while it was read")
        problem = await self._content.lost(content.named, tried)
        self._files.note_lost(number, problem)
        return problem

    # --- the file in staging

    def _open(self, partial: str) -> int:
        path = os.path.join(self._layout.staging, partial)
        try:
            return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as problem:
            self._forget(partial)
            raise _disk_error(partial, problem) from None

    def _forget(self, partial: str) -> None:
        self._contents.pop(partial, None)
        self._sources.pop(partial, None)


def _disk_error(partial: str, problem: OSError) -> LocalDiskError:
    return LocalDiskError(
        f"cannot write staging/{partial}: {problem.strerror}", errno_number=problem.errno or 0
    )
