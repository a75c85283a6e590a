"""Blobs: bytes under their own sum, ``blobs/<aa>/<sha256>.bin``, with a description beside, ``.meta``.

Invariants:

* A blob is in the place, as durable as the place makes it (``SessionFiles.sync``), when `put` returns; the disk of this host only keeps copies, and
  what leaves it stays in the place.
* Equal bytes are one blob, and putting them again is success.
* What is given has the sum that was asked for, and a put that found the blob there has read it: one that was damaged is put right.
* A place that does not answer fails the put and nothing else: it begins no outage, and no later write is refused for it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import msgspec
import trio

from sessionfs.formats import versioned_json
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import AlreadyExistsError, CorruptDataError, InvalidRequestError, NotFoundError
from sessionfs.sessions.workspace.blob_cache import BlobCache
from sessionfs.sessions.workspace.observation.observed_files import ObservedFiles

DIRECTORY = "blobs"
FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_INLINE_BYTES = 1 << 20


class BlobDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What ``.meta`` says.

    Attributes:
        size: Length, bytes.
        content_type: Media type.
        created_at: When it was first put, as ``2026-01-31T23:59:59.123456Z``.
        name: What the first who put it called it, "" for nothing.
        format: Of this record.
    """

    size: int
    content_type: str
    created_at: str
    name: str = ""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """What a put did.

    Attributes:
        sha256: The blob's name from now on.
        size_bytes: Length.
        is_new: Whether nobody had put these bytes before.
    """

    sha256: str
    size_bytes: int
    is_new: bool


class Blobs:
    """The blobs of a workspace.

    Args:
        files: Where they are.
        clock: When.
        cache: Copies on this host; None for none.
    """

    def __init__(self, files: ObservedFiles, clock: Clock, cache: BlobCache | None) -> None:
        self._files = files
        self._clock = clock
        self._cache = cache

    async def put(
        self, body: bytes, *, content_type: str = "application/octet-stream", name: str = ""
    ) -> StoredBlob:
        """Store bytes.

        Args:
            body: The bytes.
            content_type: Media type.
            name: What a person calls them.

        Raises:
            UnavailableError: The place did not answer; put it again.
            AlreadyExistsError: The shared root was published: nothing is added to it.
            HandleClosedError: The workspace is closed.
        """
        with self._files.changing():
            return await self._put(body, content_type, name)

    async def _put(self, body: bytes, content_type: str, name: str) -> StoredBlob:
        self._files.require_changeable()
        sha256 = await _sum(body)
        is_new = await self._store(_path(sha256), sha256, body)
        described = BlobDescription(
            size=len(body), content_type=content_type, created_at=utc_text(self._clock.wall_ns()), name=name
        )
        try:
            meta = versioned_json.encode(described)
            await self._files.write(_path(sha256, "meta"), meta, is_new=True, is_blob=True)
        except AlreadyExistsError:
            pass  # the description of who came first stays
        await self._files.sync(_path(sha256), is_blob=True)
        await self._files.sync(_path(sha256, "meta"), is_blob=True)
        if self._cache is not None:
            await self._cache.put(sha256, body)
        return StoredBlob(sha256, len(body), is_new)

    async def get(self, sha256: str) -> bytes:
        """Give a blob, from this host's disk when it is there.

        Args:
            sha256: 64 hexadecimal digits, lower case.

        Raises:
            InvalidRequestError: That is no sum.
            NotFoundError: There is no such blob.
            CorruptDataError: The place has other bytes under this name.
        """
        path = _path(sha256)
        self._files.require_open()
        body = await self._cache.get(sha256) if self._cache is not None else None
        if body is not None:
            return body
        body = await self._files.read(path, is_blob=True)
        if await _sum(body) != sha256:
            raise CorruptDataError(f"{path} has other bytes than its name says", remedy="put the blob again")
        if self._cache is not None:
            await self._cache.put(sha256, body)
        return body

    async def describe(self, sha256: str) -> BlobDescription:
        """Give a blob's description.

        Raises:
            InvalidRequestError, NotFoundError: As `get`.
            UnsupportedFormatError: It was written by a later version.
            CorruptDataError: It cannot be read.
        """
        path = _path(sha256, "meta")
        raw = await self._files.read(path, is_blob=True)
        versioned_json.decode_format(raw, path, supported=FORMAT)
        return versioned_json.decode(raw, BlobDescription, path)

    async def exists(self, sha256: str) -> bool:
        """Whether the place has a blob."""
        try:
            await self._files.stat(_path(sha256), is_blob=True)
        except NotFoundError:
            return False
        return True

    async def list(self) -> list[str]:
        """Give the sums of all blobs, sorted."""
        paths = [stat.path for stat in await self._files.list(DIRECTORY)]
        sums = (path.rpartition("/")[2].removesuffix(".bin") for path in paths if path.endswith(".bin"))
        return sorted(found for found in sums if _SHA256.fullmatch(found))

    async def _store(self, path: str, sha256: str, body: bytes) -> bool:
        try:
            await self._files.write(path, body, is_new=True, is_blob=True)
        except AlreadyExistsError:
            if not await self._is_whole(path, sha256, len(body)):
                # Damaged by somebody: these are the bytes that belong there.
                await self._files.write(path, body, is_blob=True)
            return False
        return True

    async def _is_whole(self, path: str, sha256: str, size_bytes: int) -> bool:
        try:
            stat = await self._files.stat(path, is_blob=True)
            if stat.size_bytes != size_bytes:
                return False
            return await _sum(await self._files.read(path, is_blob=True)) == sha256
        except (CorruptDataError, NotFoundError):
            return False


def _path(sha256: str, suffix: str = "bin") -> str:
    if not _SHA256.fullmatch(sha256):
        raise InvalidRequestError(f"{sha256[:80]!r} is no SHA-256 in lower case hexadecimal digits")
    return f"{DIRECTORY}/{sha256[:2]}/{sha256}.{suffix}"


async def _sum(body: bytes) -> str:
    if len(body) <= _INLINE_BYTES:
        return hashlib.sha256(body).hexdigest()
    return await trio.to_thread.run_sync(lambda: hashlib.sha256(body).hexdigest())
