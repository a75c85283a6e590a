"""Brings the bytes that a generation names to this host: whole and equal to their sha256, or not at all."""

from __future__ import annotations

import hashlib
import os

import trio

from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import names
from sessionfs.model.errors import (
    CorruptDataError,
    LocalDiskError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import NewerGenerations
from sessionfs.replication.hydration.named_content import (
    EMPTY_SHA256,
    NamedContent,
    Source,
)
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ByteRange, Token

_MOST_NAMED = 3


class VerifiedBytes:
    """Downloads what entries name.

    Args:
        store: The bucket.
    """

    def __init__(self, store: TrioStore) -> None:
        self._store = store
        self._content = NamedContent(store)

    async def write(
        self, session: SessionId, entry: ManifestEntry, newer: NewerGenerations | None, descriptor: int
    ) -> str:
        """Write an entry's bytes into an empty file.

        Args:
            session: The session.
            entry: A file, or a link whose object has its target.
            newer: The generations after the entry's.
            descriptor: Open for writing.

        Returns:
            Their sha256: the entry's, or what it is when the entry has none.

        Raises:
            CorruptDataError: No object has these bytes; the message says what was found. The file's content is anything then.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: Nothing is known.
        """
        if not entry.size_bytes and entry.sha256 == EMPTY_SHA256:
            return entry.sha256
        wrong: list[str] = []
        async for source in self._content.candidates(session, entry, newer):
            try:
                found = await self._take(source, descriptor)
            except (ObjectNotFoundError, PreconditionFailedError):
                continue
            if found == entry.sha256 or not entry.sha256:
                return found
            wrong.append(source.key)
        where = f"; other bytes are in {', '.join(wrong[:_MOST_NAMED])}" if wrong else ""
        raise CorruptDataError(
            f"the bytes of {session}/{names.display(entry.path)} (sha256 {entry.sha256[:12]}..., {entry.size_bytes} bytes)"
            f" are in no object{where}",
            remedy=f"'sessionfs verify STORE' says which generations of {session} are intact",
        )

    async def _take(self, source: Source, descriptor: int) -> str:
        try:
            os.ftruncate(descriptor, 0)
            if not source.size_bytes:
                return EMPTY_SHA256
            got = await self._store.download(
                source.key,
                descriptor,
                byte_range=ByteRange(0, source.size_bytes),
                expected=Token(source.token) if source.token else None,
                tries=READ_TRIES,
            )
        except OSError as problem:
            raise disk_error(f"cannot write the bytes of {source.key}", problem) from None
        return got.sha256

    async def read(self, session: SessionId, entry: ManifestEntry, newer: NewerGenerations | None) -> bytes:
        """Read an entry's bytes into memory; for small ones. Raises as `write`."""
        descriptor = os.memfd_create("sessionfs-bytes")
        try:
            await self.write(session, entry, newer, descriptor)
            size_bytes = os.fstat(descriptor).st_size
            return await trio.to_thread.run_sync(os.pread, descriptor, size_bytes, 0)
        finally:
            os.close(descriptor)


def sha256_of_bytes(raw: bytes) -> str:
    """The sum of bytes in memory."""
    return hashlib.sha256(raw).hexdigest()


def disk_error(what: str, problem: OSError) -> LocalDiskError:
    """The disk's refusal as an error of ours."""
    return LocalDiskError(f"{what}: {problem.strerror}", errno_number=problem.errno or 0)
