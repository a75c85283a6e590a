"""Sends one attempt: a copy, an append, a put, or a put in parts.

What is sent was announced by its sha256, so a file that moved between hashing and sending never becomes an object: a private body is hashed
again before it is put, parts are hashed as they are sent and compared before the upload is completed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import Outcome, TrioStore
from sessionfs.replication.uploads.content_source import Append, Copy, Way
from sessionfs.replication.uploads.stable_image import Image, read_exactly
from sessionfs.stores.base import Condition, ObjectMetadata, ObjectStat, Token

_MOST_PARTS = 9_000
_MIB = 1 << 20
_PIECE_BYTES = _MIB
_READING_THREADS = 4


class ImageChangedError(Exception):
    """The file is no longer what was announced; nothing appeared."""


class NotPermittedError(ImageChangedError):
    """This host may not change the session any more; nothing appeared."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What an attempt did.

    Attributes:
        outcome: How it ended.
        how: ``put``, ``parts``, ``append`` or ``copy``.
        sent_bytes: Bytes that left this host.
    """

    outcome: Outcome
    how: str
    sent_bytes: int


@dataclass(slots=True)
class _Tail:
    """Bytes from a position to an image's end, hashed as they are given."""

    image: Image
    start: int
    piece_bytes: int
    is_permitted: Callable[[], bool]
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def pieces(self) -> Iterator[bytes]:
        offset = self.start
        while offset < self.image.size_bytes:
            wanted = min(self.piece_bytes, self.image.size_bytes - offset)
            piece = read_exactly(self.image.descriptor, wanted, offset)
            if len(piece) != wanted:
                raise ImageChangedError
            self.digest.update(piece)
            offset += wanted
            yield piece

    def check(self) -> None:
        if self.digest.hexdigest() != self.image.sha256:
            raise ImageChangedError
        if not self.is_permitted():
            raise NotPermittedError


class ByteBudget:
    """A bound on the bytes that all uploads together hold in memory. Borrowed first come, first served.

    Args:
        limit_bytes: All that can be borrowed at once. A larger wish is cut to it, so that it is served alone.

    Attributes:
        most_bytes: The most that was borrowed at once.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = max(1, limit_bytes)
        self._taken_bytes = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()
        self.most_bytes = 0

    @asynccontextmanager
    async def borrow(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold a number of bytes inside the block."""
        wish = min(size_bytes, self._limit_bytes)
        if self._waiting or self._taken_bytes + wish > self._limit_bytes:
            await self._queue(wish)
        else:
            self._take(wish)
        try:
            yield
        finally:
            self._taken_bytes -= wish
            self._serve()

    async def _queue(self, wish: int) -> None:
        served = trio.Event()
        place = (wish, served)
        self._waiting.append(place)
        try:
            await served.wait()
        except trio.Cancelled:
            if served.is_set():
                self._taken_bytes -= wish
            else:
                self._waiting.remove(place)
            self._serve()
            raise

    def _take(self, wish: int) -> None:
        self._taken_bytes += wish
        self.most_bytes = max(self.most_bytes, self._taken_bytes)

    def _serve(self) -> None:
        while self._waiting and self._taken_bytes + self._waiting[0][0] <= self._limit_bytes:
            wish, served = self._waiting.popleft()
            self._take(wish)
            served.set()


class Sender:
    """Sends attempts.

    Args:
        store: The bucket.
        settings: Length of a part, and of all buffers together.
    """

    def __init__(self, store: TrioStore, settings: ReplicationSettings) -> None:
        self._store = store
        self._settings = settings
        self._threads = trio.CapacityLimiter(_READING_THREADS)
        self.budget = ByteBudget(settings.upload_memory_bytes)

    async def send(
        self,
        way: Way,
        key: str,
        image: Image | bytes | None,
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        is_permitted: Callable[[], bool] = lambda: True,
    ) -> Sent:
        """Send one attempt.

        Args:
            way: What to send.
            key: Where to.
            image: The bytes, or the file that has them; None when only a copy is possible.
            condition: On the key.
            metadata: The new object's.
            is_permitted: Asked again when all parts of a long object were sent and before it appears; called in a thread.

        Raises:
            ImageChangedError: The file moved on, or the permission is gone; nothing appeared.
            SessionFSError: As ``TrioStore.put``.
        """
        if isinstance(way, Copy):
            outcome = await self._store.copy(
                way.source.key,
                key,
                source_token=Token(way.source.token),
                condition=condition,
                metadata=metadata,
            )
            return Sent(outcome, "copy", 0)
        if isinstance(image, bytes):
            return Sent(
                await self._store.put(key, image, condition=condition, metadata=metadata), "put", len(image)
            )
        if image is None:
            raise ImageChangedError
        if isinstance(way, Append):
            return await self._append(way, key, image, metadata, is_permitted)
        if image.body is not None:
            return await self._put(key, image.body, condition, metadata)
        if image.size_bytes <= self._single_bytes():
            async with self.budget.borrow(image.size_bytes):
                body = await trio.to_thread.run_sync(_private_body, image, limiter=self._threads)
                return await self._put(key, body, condition, metadata)
        return await self._put_parts(key, image, condition, metadata, is_permitted)

    def _single_bytes(self) -> int:
        """Longest body that is put in one request."""
        capabilities = self._store.capabilities
        if capabilities.conditional_complete:
            return min(self._settings.part_bytes, capabilities.maximum_put_bytes)
        # Only a single put has a condition there: as much as memory allows goes that way.
        most = max(self._settings.part_bytes, self._settings.upload_memory_bytes // 2)
        return min(most, capabilities.maximum_put_bytes)

    async def _put(self, key: str, body: bytes, condition: Condition, metadata: ObjectMetadata) -> Sent:
        outcome = await self._store.put(key, body, condition=condition, metadata=metadata)
        return Sent(outcome, "put", len(body))

    async def _put_parts(
        self,
        key: str,
        image: Image,
        condition: Condition,
        metadata: ObjectMetadata,
        is_permitted: Callable[[], bool],
    ) -> Sent:
        part_bytes = max(
            self._settings.part_bytes,
            self._store.capabilities.minimum_part_bytes,
            -(-image.size_bytes // _MOST_PARTS // _MIB) * _MIB,
        )
        tail = _Tail(image, 0, part_bytes, is_permitted)
        # One part is on its way while the next is read.
        async with self.budget.borrow(2 * part_bytes):
            outcome = await self._store.put_parts(
                key, tail.pieces(), condition=condition, metadata=metadata, before_complete=tail.check
            )
        return Sent(outcome, "parts", image.size_bytes)

    async def _append(
        self, way: Append, key: str, image: Image, metadata: ObjectMetadata, is_permitted: Callable[[], bool]
    ) -> Sent:
        base = way.base
        if image.prefix is None:
            raise ImageChangedError
        tail = _Tail(image, base.size_bytes, _PIECE_BYTES, is_permitted, image.prefix.copy())
        stat = ObjectStat(base.key, base.size_bytes, Token(base.token), modified_ns=0)
        async with self.budget.borrow(min(image.size_bytes - base.size_bytes, 2 * self._settings.part_bytes)):
            outcome = await self._store.append(
                key, tail.pieces(), base=stat, metadata=metadata, before_complete=tail.check
            )
        return Sent(outcome, "append", image.size_bytes - base.size_bytes)


def _private_body(image: Image) -> bytes:
    body = read_exactly(image.descriptor, image.size_bytes, 0)
    if hashlib.sha256(body).hexdigest() != image.sha256:
        raise ImageChangedError
    return body
