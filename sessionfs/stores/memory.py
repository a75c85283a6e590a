"""A store in this process's memory: for tests, and the plainest statement of what every store does."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import ObjectNotFoundError, PreconditionFailedError, StoreUrlError
from sessionfs.stores.base import (
    ByteRange,
    Capabilities,
    Condition,
    IfAbsent,
    IfMatch,
    ListPage,
    ObjectBody,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
)
from sessionfs.stores.request_checks import (
    check_copy,
    check_delete_condition,
    check_key,
    check_limit,
    check_parts_key,
    check_prefix,
    check_put,
    condition_text,
)

_CAPABILITIES = Capabilities(marker_metadata=True, minimum_part_bytes=1, maximum_put_bytes=1 << 40)


def open_url(url: str, *, max_connections: int = 32) -> ObjectStore:
    """Open ``memory:``, a new empty store each time.

    Raises:
        StoreUrlError: The URL says more than ``memory:``.
    """
    del max_connections
    if url not in {"memory:", "memory://"}:
        raise StoreUrlError(f"{url!r} is no memory store", remedy="write memory:")
    return MemoryStore()


@dataclass(frozen=True, slots=True)
class _Stored:
    body: bytes
    stat: ObjectStat


@dataclass(slots=True)
class _Contents:
    objects: dict[str, _Stored] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))


class MemoryStore(ObjectStore):
    """Objects in a dictionary under a lock.

    Args:
        clock: Gives the times of change; the system's when None.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._contents = _Contents()
        self._capabilities = _CAPABILITIES

    @property
    def url(self) -> str:
        """Always ``memory:``."""
        return "memory:"

    @property
    def capabilities(self) -> Capabilities:
        """Everything, unless told otherwise."""
        return self._capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give a store over the same objects."""
        other = MemoryStore(self._clock)
        other._contents = self._contents
        other._capabilities = capabilities
        return other

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Set one entry."""
        check_put(key, len(body), metadata, self._capabilities)
        with self._contents.lock:
            self._require(key, condition)
            return self._store(key, bytes(body), metadata)

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Join the parts, then set one entry."""
        check_parts_key(key, metadata, self._capabilities)
        body = b"".join(parts)
        before_complete()
        return self.put(key, body, condition=condition, metadata=metadata)

    def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Join the object and the tail, then set one entry."""
        check_parts_key(key, metadata, self._capabilities)
        condition = IfMatch(base.token)
        with self._contents.lock:
            self._require(key, condition)
            head = self._contents.objects[key].body
        body = b"".join([head, *tail])
        before_complete()
        return self.put(key, body, condition=condition, metadata=metadata)

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Give the bytes of one entry."""
        check_key(key, self._capabilities)
        with self._contents.lock:
            stored = self._find(key)
        if expected is not None and stored.stat.token != expected:
            raise PreconditionFailedError(f"{key!r} {condition_text(IfMatch(expected))}")
        body = stored.body if byte_range is None else stored.body[byte_range.start : byte_range.end]
        return _MemoryBody(replace(stored.stat), body)

    def head(self, key: str) -> ObjectStat:
        """Describe one entry."""
        check_key(key, self._capabilities)
        with self._contents.lock:
            return self._find(key).stat

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """List in order; the page's name is the last entry before it."""
        check_prefix(prefix, self._capabilities)
        check_limit(limit)
        with self._contents.lock:
            found = {
                key: stored.stat for key, stored in self._contents.objects.items() if key.startswith(prefix)
            }
        names = sorted({_entry(key, prefix) for key in found} if whole_segments else found)
        start = 0 if page is None else bisect.bisect_right(names, page)
        shown = names[start : start + limit]
        common = [name for name in shown if whole_segments and name != prefix and name.endswith("/")]
        objects = [found[name] for name in shown if name not in set(common)]
        more = shown[-1] if start + limit < len(names) else None
        return ListPage(tuple(replace(stat, metadata=None) for stat in objects), tuple(common), more)

    def delete(self, key: str, *, condition: Condition) -> None:
        """Remove one entry."""
        check_key(key, self._capabilities)
        check_delete_condition(condition)
        with self._contents.lock:
            self._require(key, condition)
            self._contents.objects.pop(key, None)

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """Set one entry to another's bytes."""
        check_copy(source, target, metadata, self._capabilities)
        with self._contents.lock:
            stored = self._find(source)
            if stored.stat.token != source_token:
                raise PreconditionFailedError(f"{source!r} {condition_text(IfMatch(source_token))}")
            self._require(target, condition)
            return self._store(target, stored.body, metadata)

    def _find(self, key: str) -> _Stored:
        stored = self._contents.objects.get(key)
        if stored is None:
            raise ObjectNotFoundError(f"no object {key!r}")
        return stored

    def _require(self, key: str, condition: Condition) -> None:
        stored = self._contents.objects.get(key)
        absent = isinstance(condition, IfAbsent) and stored is not None
        moved = isinstance(condition, IfMatch) and (stored is None or stored.stat.token != condition.token)
        if absent or moved:
            raise PreconditionFailedError(f"{key!r} {condition_text(condition)}")

    def _store(self, key: str, body: bytes, metadata: ObjectMetadata) -> Token:
        token = Token(f"m{next(self._contents.numbers)}")
        kept = replace(metadata, user=dict(metadata.user))
        stat = ObjectStat(key, len(body), token, self._clock.wall_ns(), kept)
        self._contents.objects[key] = _Stored(body, stat)
        return token


class _MemoryBody(ObjectBody):
    def __init__(self, stat: ObjectStat, body: bytes) -> None:
        self.stat = stat
        self._body = body

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        for start in range(0, len(self._body), size_bytes):
            yield self._body[start : start + size_bytes]


def _entry(key: str, prefix: str) -> str:
    child, slash, _ = key[len(prefix) :].partition("/")
    return prefix + child + slash
