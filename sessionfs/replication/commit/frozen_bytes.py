"""The bytes of a changing file as they were at a commit's cut: measured, and stored by their content when no live object has them.

The daemon keeps them: in the file itself while programs only append, else in ``staging/``. Where they are is asked before and after they are read,
because the file may change in between.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import trio

from sessionfs.formats.block_sums import BlockSums
from sessionfs.formats.commit_messages import FrozenAt, FrozenFile, FrozenImage
from sessionfs.formats.link_messages import FIRST_REMOTE_NUMBER
from sessionfs.formats.object_metadata import FileAttributes, Provenance, encode
from sessionfs.model import keys, names
from sessionfs.model.clock import Clock
from sessionfs.model.errors import LocalDiskError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.commit.noting import Noted
from sessionfs.replication.trio_store import Landed, TrioStore
from sessionfs.replication.uploads.working_files import WorkingFiles, identity_of
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.working_copy.journal_tree import Node
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_CHUNK_BYTES = 1 << 20
_TRIES = 5
_PAUSE_SECONDS = 0.02
_DISK_THREADS = 4

Result = TypeVar("Result")
AskFrozen = Callable[[FrozenImage], Awaitable[FrozenAt]]


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes at the cut.

    Attributes:
        size_bytes: How many.
        sha256: Of them.
        blocks: Sums of their blocks.
    """

    size_bytes: int
    sha256: str
    blocks: tuple[str, ...] = ()


class MovingFileError(Exception):
    """The bytes of the cut could not be had: the file went on changing below the daemon."""


class FrozenBytes:
    """Reads and stores bytes of one commit's cut.

    Args:
        journal: Where a file is now.
        store: Where bytes go.
        files: The working copy.
        layout: Where staged copies are.
        clock: Names of attempts.
        settings: How long a single body may be.
        ask: Asks the daemon where frozen bytes are.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        files: WorkingFiles,
        layout: StateLayout,
        clock: Clock,
        settings: ReplicationSettings,
        ask: AskFrozen,
    ) -> None:
        self._journal = journal
        self._store = store
        self._files = files
        self._layout = layout
        self._clock = clock
        self._settings = settings
        self._ask = ask
        self._threads = trio.CapacityLimiter(_DISK_THREADS)

    async def measure(self, session: SessionId, commit: str, noted: Noted, frozen: FrozenFile) -> Measured:
        """Give length and sum of a file's bytes at the cut.

        Raises:
            MovingFileError: They are lost.
            OSError: This host's disk refused.
        """
        node = self._journal.node(noted.node.number) or noted.node
        identity = (frozen.size_bytes, frozen.mtime_ns, frozen.ctime_ns)
        if node.sha256 and node.clean_identity == identity and not frozen.writers:
            return Measured(frozen.size_bytes, node.sha256, self._journal.blocks(node.sha256))
        if frozen.size_bytes == 0:
            return Measured(0, hashlib.sha256().hexdigest())

        async def read(descriptor: int) -> Measured:
            return await trio.to_thread.run_sync(
                _measure, descriptor, frozen.size_bytes, limiter=self._threads
            )

        return await self._with_bytes(session, commit, noted, read)

    async def is_prefix_of_file(self, commit: str, noted: Noted) -> bool:
        """Whether the file itself still begins with the bytes of the cut."""
        place = await self._ask(FrozenImage(commit, noted.node.number))
        return not place.staged and not place.is_lost

    async def store_by_content(
        self, session: SessionId, commit: str, noted: Noted, measured: Measured, epoch: int
    ) -> int:
        """Bring the bytes of the cut to the key of their content.

        Returns:
            Bytes sent.

        Raises:
            MovingFileError: They are lost.
            SessionFSError: The store refused or did not answer.
            OSError: This host's disk refused.
        """

        async def put(descriptor: int) -> int:
            return await self.put_content(session, noted.node, descriptor, measured, epoch)

        return await self._with_bytes(session, commit, noted, put)

    async def store_as_it_is(self, session: SessionId, noted: Noted, epoch: int) -> tuple[Measured, int]:
        """Bring a file's present bytes to the key of their content, unless they are there.

        Returns:
            The bytes, and how many were sent.

        Raises:
            MovingFileError: It changed meanwhile.
            SessionFSError: The store refused or did not answer.
        """
        try:
            descriptor = self._files.open(session, noted.path)
        except OSError:
            raise MovingFileError(names.display(noted.path)) from None
        try:
            before = os.fstat(descriptor)
            measured = await trio.to_thread.run_sync(
                _measure, descriptor, before.st_size, limiter=self._threads
            )
            sent = 0
            if self._journal.object(keys.content_key(session, measured.sha256)) is None:
                sent = await self.put_content(session, noted.node, descriptor, measured, epoch)
            if identity_of(os.fstat(descriptor)) != identity_of(before):
                raise MovingFileError(names.display(noted.path))
        except _CutShortError:
            raise MovingFileError(names.display(noted.path)) from None
        finally:
            os.close(descriptor)
        return measured, sent

    async def put_content(
        self, session: SessionId, node: Node, descriptor: int, measured: Measured, epoch: int
    ) -> int:
        """Put the first bytes of a file under the key of their content, whoever wrote that before: it is the same bytes."""
        key = keys.content_key(session, measured.sha256)
        write_id = self._clock.unique_id()
        attributes = FileAttributes(node.mode, node.uid, node.gid, node.mtime_ns)
        metadata = ObjectMetadata(
            encode(attributes, Provenance(measured.sha256, write_id, epoch, self._clock.unique_id()))
        )
        parts = _Parts(descriptor, measured, self._settings.part_bytes)
        if measured.size_bytes <= self._settings.part_bytes:
            body = await trio.to_thread.run_sync(parts.whole, limiter=self._threads)
            outcome = await self._store.put(key, body, condition=Unconditional(), metadata=metadata)
        else:
            outcome = await self._store.put_parts(
                key, iter(parts), condition=Unconditional(), metadata=metadata, before_complete=parts.check
            )
        if not isinstance(outcome, Landed):
            raise UnavailableError(f"{key!r} was sent, and not seen to arrive", remedy="commit again")
        self._journal.put_object(
            KnownObject(
                key, node.number, outcome.token, write_id, measured.sha256, measured.size_bytes,
                node.mode, node.uid, node.gid, node.mtime_ns, "", epoch,
            )
        )  # fmt: skip
        return measured.size_bytes

    async def _with_bytes(
        self, session: SessionId, commit: str, noted: Noted, use: Callable[[int], Awaitable[Result]]
    ) -> Result:
        """Use a descriptor of the bytes; again when they moved to staging meanwhile."""
        number = noted.node.number
        for _ in range(_TRIES):
            place = await self._ask(FrozenImage(commit, number))
            if place.is_lost:
                break
            descriptor = self._open(session, noted, place)
            if descriptor < 0:
                # A rename of a moment ago: the log tells where it is now.
                await trio.sleep(_PAUSE_SECONDS)
                continue
            try:
                result = await use(descriptor)
            except _CutShortError:
                await trio.sleep(_PAUSE_SECONDS)
                continue
            finally:
                os.close(descriptor)
            after = await self._ask(FrozenImage(commit, number))
            if after.staged == place.staged and not after.is_lost:
                return result
        raise MovingFileError(names.display(noted.path))

    def _open(self, session: SessionId, noted: Noted, place: FrozenAt) -> int:
        if place.staged:
            return os.open(os.path.join(self._layout.staging, place.staged), os.O_RDONLY | os.O_CLOEXEC)
        for there, path in [(session, noted.path), *self._journal.paths_of(noted.node.number)]:
            try:
                descriptor = self._files.open(there, path)
            except OSError:
                continue
            status = os.fstat(descriptor)
            is_own = (
                noted.node.number >= FIRST_REMOTE_NUMBER
                or noted.node.reserved
                or status.st_ino == noted.node.number
            )
            if is_own:
                return descriptor
            os.close(descriptor)
        return -1


class _CutShortError(Exception):
    """The file is shorter than the cut says, or has other bytes."""


@dataclass(slots=True)
class _Parts:
    """The first bytes of a file, checked against their sum as they are given."""

    descriptor: int
    measured: Measured
    part_bytes: int
    is_right: bool = False

    def __iter__(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for offset in range(0, self.measured.size_bytes, self.part_bytes):
            wanted = min(self.part_bytes, self.measured.size_bytes - offset)
            part = _read_exactly(self.descriptor, wanted, offset)
            digest.update(part)
            yield part
        self.is_right = digest.hexdigest() == self.measured.sha256

    def check(self) -> None:
        if not self.is_right:
            raise _CutShortError

    def whole(self) -> bytes:
        body = b"".join(self)
        self.check()
        return body


def _measure(descriptor: int, size_bytes: int) -> Measured:
    digest, sums = hashlib.sha256(), BlockSums(size_bytes)
    for offset in range(0, size_bytes, _CHUNK_BYTES):
        chunk = _read_exactly(descriptor, min(_CHUNK_BYTES, size_bytes - offset), offset)
        digest.update(chunk)
        sums.update(chunk)
    return Measured(size_bytes, digest.hexdigest(), sums.finish())


def _read_exactly(descriptor: int, size_bytes: int, offset: int) -> bytes:
    pieces: list[bytes] = []
    while size_bytes:
        try:
            piece = os.pread(descriptor, size_bytes, offset)
        except OSError as problem:
            raise LocalDiskError(
                f"cannot read: {problem.strerror}", errno_number=problem.errno or 0
            ) from None
        if not piece:
            raise _CutShortError
        pieces.append(piece)
        offset += len(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)
