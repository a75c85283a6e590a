"""Brings one object's verified bytes into the staging directory.

A file there is whole and verified, on the disk, or it is not there. Small objects come in one request; larger ones as
ranges of 8 MiB pinned to one token, a few at once, and the whole is hashed afterwards.
"""

from __future__ import annotations

import hashlib
import os

import trio

from sessionfs.model.clock import Clock
from sessionfs.model.errors import CorruptDataError, LocalDiskError
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, Downloaded, TrioStore
from sessionfs.stores.base import ByteRange, Token
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout

RANGE_BYTES = 8 << 20
CONCURRENT_RANGES = 4
_CHUNK_BYTES = 1 << 20


class ObjectFetcher:
    """Downloads objects.

    Args:
        store: The bucket.
        layout: Where staging is.
        clock: Names of staged files.
    """

    def __init__(self, store: TrioStore, layout: StateLayout, clock: Clock) -> None:
        self._store = store
        self._layout = layout
        self._clock = clock

    async def fetch(self, known: KnownObject) -> tuple[str, str]:
        """Bring an object into staging.

        Args:
            known: Key, token, length and sha256. A sha256 of "" is not compared; with a token of "" the first bytes of
                whatever is there are taken.

        Returns:
            The file's name below the staging directory, and the sha256 of its bytes.

        Raises:
            PreconditionFailedError, ObjectNotFoundError: The object is no longer the one known.
            CorruptDataError: Its bytes are not what their sha256 says; nothing is left in staging.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: The store does not give it.
        """
        name = self._clock.unique_id()
        try:
            sha256 = await self._write(name, known)
            if known.sha256 and sha256 != known.sha256:
                raise CorruptDataError(
                    f"{known.key} has other bytes than its sha256 says", remedy="put the file again"
                )
        except OSError as problem:
            self.discard(name)
            raise _disk_error(known.key, problem) from None
        except BaseException:
            self.discard(name)
            raise
        return name, sha256

    def discard(self, name: str) -> None:
        """Remove a staged file that nobody wants."""
        try:
            os.unlink(os.path.join(self._layout.staging, name))
        except FileNotFoundError:
            return

    async def _write(self, name: str, known: KnownObject) -> str:
        path = os.path.join(self._layout.staging, name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if known.size_bytes <= RANGE_BYTES:
                whole = None if known.token or not known.size_bytes else ByteRange(0, known.size_bytes)
                got = await self._download(known, descriptor, whole)
                size_bytes, sha256 = got.size_bytes, got.sha256
            else:
                size_bytes = await self._write_ranges(known, descriptor)
                sha256 = await trio.to_thread.run_sync(_hash, descriptor)
            if size_bytes != known.size_bytes:
                raise CorruptDataError(f"{known.key} has {size_bytes} bytes instead of {known.size_bytes}")
            # After a power cut a file that is shorter than it was would count as changed here.
            await trio.to_thread.run_sync(os.fdatasync, descriptor)
        finally:
            os.close(descriptor)
        return sha256

    async def _write_ranges(self, known: KnownObject, descriptor: int) -> int:
        os.ftruncate(descriptor, known.size_bytes)
        total = 0

        async def one(start: int) -> None:
            nonlocal total
            end = min(start + RANGE_BYTES, known.size_bytes)
            got = await self._download(known, descriptor, ByteRange(start, end))
            total += got.size_bytes

        await for_each(range(0, known.size_bytes, RANGE_BYTES), one, limit=CONCURRENT_RANGES)
        return total

    async def _download(
        self, known: KnownObject, descriptor: int, byte_range: ByteRange | None
    ) -> Downloaded:
        try:
            return await self._store.download(
                known.key,
                descriptor,
                byte_range=byte_range,
                expected=Token(known.token) if known.token else None,
                position=byte_range.start if byte_range else 0,
                tries=READ_TRIES,
            )
        except OSError as problem:
            raise _disk_error(known.key, problem) from None


def _disk_error(key: str, problem: OSError) -> LocalDiskError:
    return LocalDiskError(f"cannot stage {key}: {problem.strerror}", errno_number=problem.errno or 0)


def _hash(descriptor: int) -> str:
    digest = hashlib.sha256()
    offset = 0
    while chunk := os.pread(descriptor, _CHUNK_BYTES, offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest.hexdigest()
