"""Large files that are read before they are here: a read waits only for the blocks it touches.

One sparse file in staging for each such file, shared by everybody who reads it. A block is shown when the replication process has verified it.

* A reader that goes through two blocks in a row gets the next two in advance; after four, the rest follows while somebody reads.
* When all blocks are here the file gets its place in the working copy, as one that was fetched whole; open handles stay as they are, because it
  is the same file. Whoever needs the whole file (a write, a link's attribute, a prefetch) brings the missing blocks in the same way.
* Who reads keeps what he opened: another host's newer bytes are shown when the last reader has gone. What cannot be had any more is ESTALE, what
  is damaged EIO; never short, never zeros.
* What nobody uses leaves staging after ``fetch_timeout_seconds``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import trio

from sessionfs.filesystem.hydration.partial_file import CONCURRENT_BLOCKS, PartialFile, Progress
from sessionfs.filesystem.inodes import Node, failure
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.link_message import Entry
from sessionfs.model.errors import ObjectNotFoundError, SessionFSError

if TYPE_CHECKING:
    from sessionfs.filesystem.data import Handle

_log = structlog.get_logger(__name__)

_AHEAD_RUN = 2
_AHEAD_BLOCKS = 2
_FILL_RUN = 4
_FILLERS = CONCURRENT_BLOCKS - 1
"""One place stays free for a read that is somewhere else."""
_LEAST_FREE_PERCENT = 10
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

Place = Callable[[Node, Entry, str, Entry], None]
"""Gives a file in staging its place: file, how it must look, its path, how it was described when that was asked."""


class PartialFiles:
    """All of a mount.

    Args:
        volume: The mount.
        once: Does something that waits, once at a time, as ``Loading.once``.
        place: Moves a whole file into the working copy.
        bring: Brings a whole file, as ``Loading.bring``.
    """

    def __init__(
        self,
        volume: Volume,
        *,
        once: Callable[..., Awaitable[None]],
        place: Place,
        bring: Callable[[Node], Awaitable[None]],
    ) -> None:
        self._volume = volume
        self._once = once
        self._place = place
        self._bring = bring
        self._files: dict[int, PartialFile] = {}
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Bring blocks in advance and remove what nobody uses, until `stop`; without it both are left out."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None

    def stop(self) -> None:
        """Let `run` return."""
        self._nursery = None
        self._scope.cancel()

    # --- readers

    def open(self, node: Node) -> tuple[PartialFile, int] | None:
        """Open a file for reading before its bytes are here; None when it can only come whole.

        Returns:
            Its blocks, and a descriptor of the file in staging.

        Raises:
            OSError: The disk refused.
        """
        entry = node.entry
        if entry is None or not entry.blocks_of or not node.places:
            return None
        partial = self._of(node, entry)
        descriptor = os.open(partial.path, _READ_FLAGS)
        if not partial.missing:
            self._spawn(self._settle, partial)
        return partial, descriptor

    def add(self, handle: Handle, partial: PartialFile) -> None:
        """Note that a handle reads a file's blocks."""
        handle.partial = partial
        partial.readers[handle] = Progress()

    def read(self, number: int, handle: Handle, offset: int, length: int) -> bytes | Awaitable[bytes]:
        """Read through a handle whose file is not all here; waits for the blocks that the read touches.

        Args:
            number: The handle's.
            handle: The handle.
            offset: First byte.
            length: How many.

        Raises:
            OSError: ESTALE when the bytes are nowhere any more because the file was replaced; what ``pread(2)`` gives.
            SessionFSError: Why they cannot be had.
        """
        partial = handle.partial
        if partial is None:
            return os.pread(handle.descriptor, length, offset)
        wanted = partial.blocks(offset, length)
        if wanted and partial.missing:
            self._look_ahead(partial, partial.readers[handle], wanted[-1])
        if partial.missing.isdisjoint(wanted):
            return os.pread(handle.descriptor, length, offset)
        return self._read_later(partial, wanted, number, offset, length)

    async def _read_later(
        self, partial: PartialFile, wanted: range, number: int, offset: int, length: int
    ) -> bytes:
        problem: OSError | SessionFSError | None = None
        try:
            await self._bring_blocks(partial, wanted)
        except (OSError, SessionFSError) as error:
            problem = error
        handle = self._volume.handles.get(number)
        if handle is None:
            raise failure(errno.EBADF)
        # A handle that reads another file by now (all of it came, or it was cut to nothing) does not need the blocks.
        if problem is not None and handle.partial is partial:
            if not isinstance(problem, ObjectNotFoundError):
                raise problem
            _log.warning("read.stale", number=partial.number, reason=problem.message)
            raise failure(errno.ESTALE)
        return os.pread(handle.descriptor, length, offset)

    def closed(self, handle: Handle) -> None:
        """Note that a handle is closed."""
        partial, handle.partial = handle.partial, None
        if partial is None:
            return
        del partial.readers[handle]
        if not partial.readers and partial.successor is not None:
            node = self._volume.table.by_number.get(partial.number)
            if node is not None and not partial.is_detached:
                self._succeed(node, partial)
        self._rest(partial)

    # --- the whole file

    async def complete(self, node: Node) -> bool:
        """Bring the missing blocks of a file and give it its place.

        Returns:
            False when it can only come whole, or has other bytes by now.

        Raises:
            OSError: The disk refused.
            SessionFSError: Why a block cannot be had.
        """
        before = self._files.get(node.number)
        if before is not None and before.successor is not None:
            self._succeed(node, before)
        entry = node.entry
        if entry is None or not entry.blocks_of:
            return entry is None
        partial = self._of(node, entry)
        partial.waiting += 1
        try:
            await self._bring_blocks(partial, sorted(partial.missing))
            if not self._is_current(node, partial):
                return True
            # After a power cut a file that is shorter than it was would count as changed here.
            await trio.to_thread.run_sync(_sync, partial.path)
            described = node.entry
            found = await self._volume.remote.finish_blocks(node.number, partial.name, partial.sha256)
            if described is not None and self._is_current(node, partial):
                self._place(node, found, partial.path, described)
                self._placed(partial)
        except ObjectNotFoundError as problem:
            _log.info("blocks.outdated", number=node.number, reason=problem.message)
            return False
        finally:
            partial.waiting -= 1
            self._rest(partial)
        return True

    def is_read(self, node: Node) -> bool:
        """Say whether programs read a file of which they would lose the rest with its last name."""
        partial = self._files.get(node.number)
        if partial is None or partial.is_given_up or not partial.readers:
            return False
        return node.entry is not None and node.entry.nlink <= 1

    def give_up(self, node: Node) -> None:
        """Note that the rest of a file cannot be had before its last name goes: its readers will be told."""
        partial = self._files.get(node.number)
        if partial is not None:
            partial.is_given_up = True

    # --- the file means other bytes

    def keeps(self, node: Node, entry: Entry) -> bool:
        """Say whether a file must go on being shown as it is: its bytes are other ones by now, and it is being read.

        Args:
            node: The file.
            entry: How the bucket describes it now; shown when the last reader has gone.
        """
        partial = self._files.get(node.number)
        if partial is None:
            return False
        if entry.blocks_of == partial.sha256:
            partial.successor = None
            return False
        if not partial.readers:
            self._detach(partial)
            return False
        partial.successor, partial.shown = entry, node.entry
        return True

    def replaced(self, node: Node) -> None:
        """Note that other bytes of the bucket took a file's place; who reads the old ones goes on."""
        partial = self._files.get(node.number)
        if partial is not None:
            self._detach(partial)

    def cut(self, node: Node, place: bytes) -> None:
        """Note that a file was cut to nothing here: who reads it reads the file that it is now.

        Args:
            node: The file.
            place: A path of the empty file, which we may read.
        """
        partial = self._files.get(node.number)
        if partial is None:
            return
        for handle in list(partial.readers):
            with contextlib.suppress(OSError):  # then this reader keeps the old bytes
                descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(descriptor, handle.descriptor, inheritable=False)
                os.close(descriptor)
                handle.partial = None
                del partial.readers[handle]
        self._detach(partial)

    def _succeed(self, node: Node, partial: PartialFile) -> None:
        """Show the newer bytes that a file has."""
        successor, entry = partial.successor, node.entry
        if successor is not None and entry is not None:
            if entry is not partial.shown:  # attributes were changed here meanwhile
                successor = msgspec.structs.replace(
                    entry, size_bytes=successor.size_bytes, blocks_of=successor.blocks_of
                )
            node.entry = successor
            node.drop_cache = True
            self._volume.notifier.invalidate_inode(node.number)
        self._detach(partial)

    def _is_current(self, node: Node, partial: PartialFile) -> bool:
        if self._files.get(node.number) is not partial or not node.places:
            return False
        return node.entry is not None and node.entry.blocks_of == partial.sha256

    # --- blocks

    def _look_ahead(self, partial: PartialFile, progress: Progress, block: int) -> None:
        if not progress.enters(block) or partial.is_filling or partial.is_detached:
            return
        if progress.run >= _FILL_RUN:
            partial.is_filling = True
            self._spawn(self._fill, partial, block)
        elif progress.run >= _AHEAD_RUN:
            for ahead in range(block + 1, block + 1 + _AHEAD_BLOCKS):
                if ahead in partial.missing:
                    self._spawn(self._bring_ahead, partial, ahead)

    async def _bring_ahead(self, partial: PartialFile, block: int) -> None:
        # A block that does not come is an error of whoever reads it.
        with contextlib.suppress(OSError, SessionFSError):
            await self._bring_block(partial, block)

    async def _fill(self, partial: PartialFile, block: int) -> None:
        """Bring what is missing, from a block on, while somebody reads and the disk has room."""
        waiting = iter(partial.from_here(block))

        async def some() -> None:
            for one in waiting:
                if not partial.readers or not self._has_room():
                    return
                try:
                    await self._bring_block(partial, one)
                except (OSError, SessionFSError):
                    return  # whoever reads it is told

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(_FILLERS):
                    nursery.start_soon(some)
        finally:
            partial.is_filling = False

    def _has_room(self) -> bool:
        disk = os.statvfs(self._volume.layout.staging)
        return disk.f_bavail * 100 >= disk.f_blocks * _LEAST_FREE_PERCENT

    async def _bring_blocks(self, partial: PartialFile, blocks: Iterable[int]) -> None:
        """Bring blocks, a few at once; of several errors the first is raised, when those under way have ended."""
        missing = [block for block in blocks if block in partial.missing]
        waiting = iter(missing)
        problems: list[OSError | SessionFSError] = []

        async def some() -> None:
            for block in waiting:
                if problems or (partial.is_detached and not partial.readers):
                    return
                try:
                    await self._bring_block(partial, block)
                except (OSError, SessionFSError) as problem:
                    problems.append(problem)

        async with trio.open_nursery() as nursery:
            for _ in range(min(CONCURRENT_BLOCKS, len(missing))):
                nursery.start_soon(some)
        if problems:
            raise problems[0]

    async def _bring_block(self, partial: PartialFile, block: int) -> None:
        if block in partial.missing:
            key = ("block", f"{partial.name} {block}")
            # How long nothing may come is watched where the bytes arrive.
            await self._once(key, lambda: self._fetch(partial, block), limited=False)

    async def _fetch(self, partial: PartialFile, block: int) -> None:
        async with partial.limit:
            await self._volume.remote.fetch_block(partial.number, block, partial.name, partial.sha256)
        partial.missing.discard(block)
        if not partial.missing and not partial.waiting:
            self._spawn(self._settle, partial)

    async def _settle(self, partial: PartialFile) -> None:
        """Give a file whose blocks are all here its place, or leave it to the next who opens it."""
        node = self._volume.table.by_number.get(partial.number)
        if node is None or self._files.get(partial.number) is not partial or partial.successor is not None:
            return
        try:
            await self._bring(node)
        except (OSError, SessionFSError) as problem:
            _log.warning("blocks.not_placed", number=partial.number, reason=str(problem))

    def _spawn(self, call: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(call, *arguments)

    # --- files in staging

    def _of(self, node: Node, entry: Entry) -> PartialFile:
        """Give the blocks of a file's content, making a file for them."""
        partial = self._files.get(node.number)
        if partial is not None and partial.sha256 == entry.blocks_of:
            return partial
        name = f"partial-{self._volume.clock.unique_id()}"
        path = os.path.join(self._volume.layout.staging, name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, entry.size_bytes)
        finally:
            os.close(descriptor)
        if partial is not None:
            self._detach(partial)
        made = PartialFile(node.number, entry.blocks_of, entry.size_bytes, name=name, path=path)
        self._files[node.number] = made
        return made

    def _placed(self, partial: PartialFile) -> None:
        """Note that the file in staging is the file in the working copy now."""
        del self._files[partial.number]
        for handle in partial.readers:
            handle.partial = None
        partial.readers.clear()

    def _detach(self, partial: PartialFile) -> None:
        """Leave old bytes to their readers."""
        del self._files[partial.number]
        partial.is_detached = True
        partial.successor = None
        if partial.readers:
            self._volume.notifier.invalidate_inode(partial.number)
        self._rest(partial)

    def _rest(self, partial: PartialFile) -> None:
        """Remove what nobody uses: at once what nobody can open again, else after a while."""
        is_placed = self._files.get(partial.number) is not partial and not partial.is_detached
        if partial.is_used or is_placed:
            return
        if partial.is_detached or self._nursery is None:
            self._remove(partial)
            return
        partial.rests += 1
        self._spawn(self._expire, partial, partial.rests)

    async def _expire(self, partial: PartialFile, rests: int) -> None:
        await trio.sleep(self._volume.settings.fetch_timeout_seconds)
        if partial.rests == rests and not partial.is_used and self._files.get(partial.number) is partial:
            self._remove(partial)

    def _remove(self, partial: PartialFile) -> None:
        if self._files.get(partial.number) is partial:
            del self._files[partial.number]
        with contextlib.suppress(OSError):
            os.unlink(partial.path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
