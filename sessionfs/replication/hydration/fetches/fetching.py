"""Brings one object's verified bytes into the staging directory.

A file there is whole and verified, on the disk, or it is not there. Small objects come in one request; larger ones as
ranges of 8 MiB pinned to one token, a few at once. When the sums of its blocks are known, each range is verified as it arrives, so that a bad
one is found at once; else the whole is hashed afterwards.
"""

from __future__ import annotations

import hashlib
import os

import trio

from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.model.clock import Clock
from sessionfs.model.errors import CorruptDataError, LocalDiskError
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, Downloaded, TrioStore
from sessionfs.stores.base import ByteRange, Token
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout

RANGE_BYTES = BLOCK_BYTES
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

    async def fetch(
        self, known: KnownObject, *, blocks: tuple[str, ...] = (), is_prefix: bool = False
    ) -> tuple[str, str]:
        """Bring an object, or its first bytes, into staging.

        Args:
            known: Key, token, length and sha256. A sha256 of "" is not compared; with a token of "" the first bytes of
                whatever is there are taken.
            blocks: Sums of the blocks of what has this sha256, empty when they are not known.
            is_prefix: The object may be longer than the length wanted.

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
            sha256 = await self._write(name, known, blocks, is_prefix=is_prefix or not known.token)
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

    def empty(self) -> tuple[str, str]:
        """Stage a file without bytes; as `fetch`."""
        name = self._clock.unique_id()
        path = os.path.join(self._layout.staging, name)
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as problem:
            raise _disk_error("an empty file", problem) from None
        return name, hashlib.sha256().hexdigest()

    def discard(self, name: str) -> None:
        """Remove a staged file that nobody wants."""
        try:
            os.unlink(os.path.join(self._layout.staging, name))
        except FileNotFoundError:
            return

    async def _write(self, name: str, known: KnownObject, blocks: tuple[str, ...], *, is_prefix: bool) -> str:
        path = os.path.join(self._layout.staging, name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if known.size_bytes <= RANGE_BYTES:
                part = ByteRange(0, known.size_bytes) if is_prefix and known.size_bytes else None
                got = await self._download(known, descriptor, part)
                size_bytes, sha256 = got.size_bytes, got.sha256
            else:
                has_sums = known.sha256 != "" and len(blocks) == -(-known.size_bytes // RANGE_BYTES)
                size_bytes = await self._write_ranges(known, descriptor, blocks if has_sums else ())
                sha256 = known.sha256 if has_sums else await trio.to_thread.run_sync(_hash, descriptor)
            if size_bytes != known.size_bytes:
                raise CorruptDataError(f"{known.key} has {size_bytes} bytes instead of {known.size_bytes}")
            # After a power cut a file that is shorter than it was would count as changed here.
            await trio.to_thread.run_sync(os.fdatasync, descriptor)
        finally:
            os.close(descriptor)
        return sha256

    async def _write_ranges(self, known: KnownObject, descriptor: int, blocks: tuple[str, ...]) -> int:
        os.ftruncate(descriptor, known.size_bytes)
        total = 0

        async def one(start: int) -> None:
            nonlocal total
            end = min(start + RANGE_BYTES, known.size_bytes)
            got = await self._download(known, descriptor, ByteRange(start, end))
            if blocks and got.sha256 != blocks[start // RANGE_BYTES]:
                raise CorruptDataError(
                    f"{known.key} has other bytes from {start} to {end} than its sums say",
                    remedy="put the file again",
                )
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
