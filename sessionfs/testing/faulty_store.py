"""A store that fails as planned: faults are queued per method, and each must be used."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sessionfs.model.errors import OutcomeUnknownError, SessionFSError, UnavailableError
from sessionfs.stores.base import (
    ByteRange,
    Capabilities,
    Condition,
    ListPage,
    ObjectBody,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
    UploadUnderWay,
)

_Result = TypeVar("_Result")

METHODS = (
    "put",
    "put_parts",
    "append",
    "get",
    "head",
    "list_page",
    "delete",
    "copy",
    "list_uploads",
    "abort_upload",
)


@dataclass(frozen=True, slots=True)
class Pass:
    """Nothing happens to this call."""


@dataclass(frozen=True, slots=True)
class FailBefore:
    """The call fails and nothing reaches the store."""

    error: SessionFSError


@dataclass(frozen=True, slots=True)
class LostResponse:
    """The store does it, the caller never learns."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The call reaches the store later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Truncate:
    """The body of a get ends after this many bytes, with an error."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Interfere:
    """Something else happens right before the call reaches the store: another host, for instance."""

    action: Callable[[], object]


Fault = Pass | FailBefore | LostResponse | Delay | Truncate | Interfere


class FaultyStore(ObjectStore):
    """Another store, with planned faults.

    Args:
        inner: The store.

    Attributes:
        calls: Every call that was made: (method, key).
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str]] = []
        self._planned: dict[str, deque[Fault]] = defaultdict(deque)
        self._lock = threading.Lock()

    def plan(self, method: str, *faults: Fault) -> None:
        """Queue faults for the next calls of a method; calls beyond the queue pass."""
        if method not in METHODS:
            raise ValueError(f"the port has no method {method!r}")
        with self._lock:
            self._planned[method].extend(faults)

    def assert_all_used(self) -> None:
        """Fail when a planned fault never happened."""
        left = {method: list(faults) for method, faults in self._planned.items() if faults}
        if left:
            raise AssertionError(f"planned faults that were not used: {left}")

    @property
    def url(self) -> str:
        """The store's."""
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The store's."""
        return self.inner.capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the store with these capabilities, sharing plan and record."""
        other = FaultyStore(self.inner.with_capabilities(capabilities))
        other.calls, other._planned, other._lock = self.calls, self._planned, self._lock
        return other

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Put, or the planned fault."""
        return self._call(
            "put", key, lambda: self.inner.put(key, body, condition=condition, metadata=metadata)
        )

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Put in parts, or the planned fault."""
        return self._call(
            "put_parts",
            key,
            lambda: self.inner.put_parts(
                key, parts, condition=condition, metadata=metadata, before_complete=before_complete
            ),
        )

    def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Append, or the planned fault."""
        return self._call(
            "append",
            key,
            lambda: self.inner.append(
                key, tail, base=base, metadata=metadata, before_complete=before_complete
            ),
        )

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Get, or the planned fault."""
        fault = self._next("get", key)
        body = self._apply(fault, lambda: self.inner.get(key, byte_range=byte_range, expected=expected), key)
        return _TruncatedBody(body, fault.after_bytes) if isinstance(fault, Truncate) else body

    def head(self, key: str) -> ObjectStat:
        """Head, or the planned fault."""
        return self._call("head", key, lambda: self.inner.head(key))

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """List a page, or the planned fault."""
        return self._call(
            "list_page",
            prefix,
            lambda: self.inner.list_page(prefix, page=page, whole_segments=whole_segments, limit=limit),
        )

    def delete(self, key: str, *, condition: Condition) -> None:
        """Delete, or the planned fault."""
        self._call("delete", key, lambda: self.inner.delete(key, condition=condition))

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """Copy, or the planned fault."""
        return self._call(
            "copy",
            target,
            lambda: self.inner.copy(
                source, target, source_token=source_token, condition=condition, metadata=metadata
            ),
        )

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Ask the store."""
        return self.inner.refuses_wrong_checksum(key)

    def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
        """List uploads, or the planned fault."""
        return self._call("list_uploads", prefix, lambda: self.inner.uploads_under_way(prefix))

    def abort_upload(self, upload: UploadUnderWay) -> None:
        """Give up an upload, or the planned fault."""
        self._call("abort_upload", upload.key, lambda: self.inner.abort_upload(upload))

    def close(self) -> None:
        """Close the store."""
        self.inner.close()

    def _call(self, method: str, key: str, request: Callable[[], _Result]) -> _Result:
        return self._apply(self._next(method, key), request, key)

    def _next(self, method: str, key: str) -> Fault:
        with self._lock:
            self.calls.append((method, key))
            planned = self._planned[method]
            return planned.popleft() if planned else Pass()

    def _apply(self, fault: Fault, request: Callable[[], _Result], key: str) -> _Result:
        if isinstance(fault, FailBefore):
            raise fault.error
        if isinstance(fault, Delay):
            time.sleep(fault.seconds)
        if isinstance(fault, Interfere):
            fault.action()
        result = request()
        if isinstance(fault, LostResponse):
            raise OutcomeUnknownError(f"the response about {key!r} was lost, as planned")
        return result


class _TruncatedBody(ObjectBody):
    def __init__(self, inner: ObjectBody, after_bytes: int) -> None:
        self.stat = inner.stat
        self._inner = inner
        self._left = after_bytes

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        for chunk in self._inner.chunks(size_bytes):
            if len(chunk) >= self._left:
                yield chunk[: self._left]
                break
            self._left -= len(chunk)
            yield chunk
        raise UnavailableError(f"the body of {self.stat.key!r} was cut, as planned")

    def close(self) -> None:
        self._inner.close()
