"""Bytes of a file that stood still while they were read.

Steps for a file: open; when somebody may write it, ``fdatasync`` (a store through a mapping moves no time before its page was written back); stat;
read and hash; stat again. Equal stats mean that nothing changed, unless the last change is younger than the clock's tick: then it is looked at
again a little later.

A file that the daemon writes for programs is read between two grants instead: when nothing below its end was rewritten
between them, the bytes up to the first grant's length stood still, and that length is where a write ended. So a log can be
imaged while it grows.

SQLite databases: ``sqlite_image``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import trio

from sessionfs.formats.block_sums import BlockSums
from sessionfs.formats.link_messages import (
    ImageGrant,
)
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model.clock import Clock
from sessionfs.model.errors import SessionFSError
from sessionfs.replication.uploads.sqlite_image import DatabaseImages, Deferred
from sessionfs.replication.uploads.working_files import (
    SQLITE_MAGIC,
    Identity,
    WorkingFiles,
    attributes_of,
    identity_of,
)
from sessionfs.working_copy.writers import has_writer

TRIES = 5
SMALL_BODY_BYTES = 256 << 10
"""A body up to this length is kept from the reading that hashes it."""

_CHUNK_BYTES = 1 << 20
_TICK_NS = 20_000_000
_TICK_SECONDS = 0.025
_DISK_THREADS = 4


class ImageGate(Protocol):
    """The daemon's word on a file that it writes for programs."""

    async def begin_image(self, number: int) -> ImageGrant:
        """Say how the file stands between two writes."""

    async def end_image(self, number: int) -> ImageGrant:
        """Say so again, after it was read."""


@dataclass(slots=True)
class Image:
    """Bytes that stood still. Close it.

    Attributes:
        descriptor: Where they are read again when they are sent; the hash says whether they are still the same.
        size_bytes: How many, from the file's start.
        sha256: Of them.
        attributes: The file's.
        identity: The working copy's file as it stood when it had exactly these bytes; None when it never had (a database's image, a file
            that goes on growing).
        body: The bytes themselves, when they are few.
        prefix: Hash of the first `prefix_bytes`, to be continued; None when the file is shorter.
        prefix_bytes: As asked for.
        inode: Of the working copy's file.
        watched: The working copy's file, when `descriptor` is another.
        seen: Its identity before it was read.
        blocks: Sums of its blocks, empty when they were not taken or it is one block.
        is_outdated: The file is known to have changed since the image was taken.
    """

    descriptor: int
    size_bytes: int
    sha256: str
    attributes: FileAttributes
    identity: Identity | None
    inode: int
    seen: Identity
    body: bytes | None = None
    prefix: hashlib._Hash | None = None
    prefix_bytes: int = 0
    watched: int = field(default=-1)
    blocks: tuple[str, ...] = ()
    is_outdated: bool = False

    def changed_since(self) -> bool:
        """Whether the file has moved on since the image was taken."""
        if self.is_outdated:
            return True
        now = identity_of(os.fstat(self.watched if self.watched >= 0 else self.descriptor))
        return now != self.seen or (self.watched < 0 and self.size_bytes != now[0])

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        if self.watched >= 0:
            os.close(self.watched)


@dataclass(frozen=True, slots=True)
class Known:
    """What is already known of a file's bytes.

    Attributes:
        number: Its inode number, for the gate.
        writers: Descriptors that may write, as the log tells.
        identity: The file when it had `sha256`.
        sha256: "" when unknown.
        prefix_bytes: Length of the bytes whose hash is wanted too, 0 for none.
    """

    number: int
    writers: int
    identity: Identity
    sha256: str
    prefix_bytes: int = 0


class StableImages:
    """Takes images.

    Args:
        files: The working copy.
        databases: Images of SQLite databases.
        clock: Tells a change of this very tick.
        gate: The daemon; None when there is none.
    """

    def __init__(
        self, files: WorkingFiles, databases: DatabaseImages, clock: Clock, gate: ImageGate | None
    ) -> None:
        self._files = files
        self._databases = databases
        self._clock = clock
        self._gate = gate
        self._threads = trio.CapacityLimiter(_DISK_THREADS)
        self._locks: dict[int, trio.Lock] = {}

    async def take(self, session: str, path: bytes, known: Known) -> Image | Deferred:
        """Take an image of a regular file.

        Returns:
            The image, or why there is none now.

        Raises:
            OSError: The file is not there or cannot be read.
        """
        reason = "it is being written"
        waited_for: Identity | None = None
        for _ in range(TRIES):
            found: Image | Identity | Deferred | None = None
            if known.writers:
                async with self._alone(known.number):
                    found = await self._granted(session, path, known)
            if found is None:
                quiet = partial(self._quiet, session, path, known, waited_for)
                found = await trio.to_thread.run_sync(quiet, limiter=self._threads)
            if isinstance(found, Image | Deferred):
                return found
            waited_for = found
            await trio.sleep(_TICK_SECONDS)
        return Deferred(reason)

    @asynccontextmanager
    async def _alone(self, number: int) -> AsyncIterator[None]:
        """One image of an inode at a time: the daemon counts its rewrites for one, and it may have several keys."""
        lock = self._locks.setdefault(number, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(number, None)

    async def _granted(self, session: str, path: bytes, known: Known) -> Image | Identity | None:
        """Read a file that the daemon writes between two grants; None when the daemon has no word on it, or it is a database."""
        if self._gate is None:
            return None
        try:
            before = await self._gate.begin_image(known.number)
        except SessionFSError:
            return None
        image: Image | Identity | None = None
        after = None
        try:
            image = await trio.to_thread.run_sync(
                self._up_to, session, path, known, before.size_bytes, limiter=self._threads
            )
        finally:
            with trio.CancelScope(shield=True), contextlib.suppress(SessionFSError):
                after = await self._gate.end_image(known.number)
        if not isinstance(image, Image):
            return image
        if after is None:
            image.close()
            return None
        if after.rewrites != before.rewrites:
            image.close()
            return image.seen
        return image

    def _up_to(self, session: str, path: bytes, known: Known, size_bytes: int) -> Image | Identity | None:
        descriptor = self._files.open(session, path)
        image = None
        try:
            status = os.fstat(descriptor)
            seen = identity_of(status)
            if not stat.S_ISREG(status.st_mode) or status.st_size < size_bytes:
                return seen
            if os.pread(descriptor, len(SQLITE_MAGIC), 0) == SQLITE_MAGIC:
                return None
            image = _read(descriptor, status, size_bytes, known.prefix_bytes)
            if image is None:
                return seen
            # A write within the clock's tick after this moves no time: then these bytes have no identity.
            young = abs(self._clock.wall_ns() - status.st_ctime_ns) < _TICK_NS
            if young or status.st_size != size_bytes or identity_of(os.fstat(descriptor)) != seen:
                image.identity = None
            return image
        finally:
            if image is None:
                os.close(descriptor)

    def _quiet(
        self, session: str, path: bytes, known: Known, waited_for: Identity | None
    ) -> Image | Identity | Deferred:
        """Read a file that should stand still.

        Args:
            session: The session.
            path: Path inside it.
            known: What is known of it.
            waited_for: The identity seen at the last try, a tick ago.

        Returns:
            The image; or the identity seen when it moved, or may have within the clock's tick.
        """
        descriptor = self._files.open(session, path)
        keep = False
        try:
            written = has_writer(descriptor)
            first = os.fstat(descriptor)
            if not stat.S_ISREG(first.st_mode):
                return identity_of(first)
            if written:
                os.fdatasync(descriptor)
            status = os.fstat(descriptor)
            seen = identity_of(status)
            young = abs(self._clock.wall_ns() - status.st_ctime_ns) < _TICK_NS
            if seen != identity_of(first) or (young and waited_for != seen):
                return seen
            if os.pread(descriptor, len(SQLITE_MAGIC), 0) == SQLITE_MAGIC:
                image = self._database(session, path, descriptor, status, known, written=written)
            else:
                image = _image(descriptor, status, known, written=written)
            if isinstance(image, Deferred):
                return image
            if image is None or (image.watched < 0 and identity_of(os.fstat(descriptor)) != seen):
                return seen
            keep = True
            return image
        finally:
            if not keep:
                os.close(descriptor)

    def _database(
        self,
        session: str,
        path: bytes,
        descriptor: int,
        status: os.stat_result,
        known: Known,
        *,
        written: bool,
    ) -> Image | Deferred | None:
        """Let SQLite take the image; a database at rest is its own image."""
        made = self._databases.take(session, path, descriptor, in_use=written or known.writers > 0)
        if isinstance(made, Deferred):
            return made
        if made is None:
            return _image(descriptor, status, known, written=written)
        image = image_of_database(made, descriptor, status, known)
        return image if image is not None else Deferred("the database's image was cut short")


def image_of_database(made: int, raw: int, status: os.stat_result, known: Known) -> Image | None:
    """Give the image that SQLite made of a database.

    Args:
        made: The image's file; closed when the answer is None.
        raw: The database, to see whether it changes.
        status: Of the database, before the image was made.
        known: What is known of it.
    """
    image = _read(made, os.fstat(made), os.fstat(made).st_size, known.prefix_bytes)
    if image is None:
        os.close(made)
        return None
    image.attributes = attributes_of(status)
    image.identity = None
    image.inode = status.st_ino
    image.seen = identity_of(status)
    image.watched = raw
    return image


def measure_image(descriptor: int) -> tuple[int, str, tuple[str, ...]]:
    """Give length, sha256 and block sums of a file that stands still.

    Raises:
        OSError: It was cut short.
    """
    status = os.fstat(descriptor)
    image = _read(descriptor, status, status.st_size, 0)
    if image is None:
        raise OSError(errno.EIO, "the image was cut short")
    return image.size_bytes, image.sha256, image.blocks


def read_exactly(descriptor: int, size_bytes: int, offset: int) -> bytes:
    """Read a range; shorter only at the file's end."""
    pieces: list[bytes] = []
    while size_bytes > 0:
        piece = os.pread(descriptor, size_bytes, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size_bytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _image(descriptor: int, status: os.stat_result, known: Known, *, written: bool) -> Image | None:
    """Give the image of a file: the one hashed before, or read now."""
    seen = identity_of(status)
    # A mapping may have changed bytes without a change of time where the disk is memory (tmpfs).
    if written or not known.sha256 or seen != known.identity:
        return _read(descriptor, status, status.st_size, known.prefix_bytes)
    return Image(descriptor, status.st_size, known.sha256, attributes_of(status), seen, status.st_ino, seen)


def _read(descriptor: int, status: os.stat_result, size_bytes: int, prefix_bytes: int) -> Image | None:
    """Hash the first bytes of a file; None when it is shorter."""
    digest = hashlib.sha256()
    sums = BlockSums(size_bytes)
    prefix = None
    body: bytes | None = b"" if size_bytes == 0 else None
    offset = 0
    while offset < size_bytes:
        end = min(size_bytes, offset + _CHUNK_BYTES)
        if offset < prefix_bytes < end:
            end = prefix_bytes
        chunk = read_exactly(descriptor, end - offset, offset)
        if len(chunk) < end - offset:
            return None
        digest.update(chunk)
        sums.update(chunk)
        offset = end
        if offset == prefix_bytes:
            prefix = digest.copy()
        if size_bytes <= SMALL_BODY_BYTES:
            body = (body or b"") + chunk
    seen = identity_of(status)
    return Image(
        descriptor=descriptor,
        size_bytes=size_bytes,
        sha256=digest.hexdigest(),
        attributes=attributes_of(status),
        identity=seen,
        inode=status.st_ino,
        seen=seen,
        body=body,
        prefix=prefix,
        prefix_bytes=prefix_bytes,
        blocks=sums.finish(),
    )
