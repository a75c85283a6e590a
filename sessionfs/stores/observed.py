"""A store that tells somebody about every request: its kind, duration, bytes and error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sessionfs.model.clock import Clock
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


class OnRequest(Protocol):
    """Called after each call of the port, from the thread that made it."""

    def __call__(
        self, kind: str, seconds: float, bytes_sent: int, bytes_received: int, error_name: str
    ) -> None:
        """Take note of a request.

        Args:
            kind: The port's method: ``put``, ``get``...
            seconds: How long it took; of a ``get``, until its body was closed or read.
            bytes_sent: Bytes of bodies sent.
            bytes_received: Bytes of bodies received.
            error_name: Name of the error's class, "" for success.
        """


@dataclass(slots=True)
class _Count:
    sent: int = 0
    received: int = 0

    def of_sent(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            self.sent += len(part)
            yield part


class ObservedStore(ObjectStore):
    """Another store, observed.

    Args:
        inner: The store.
        clock: Measures durations.
        on_request: Told about every call; must not raise.
    """

    def __init__(self, inner: ObjectStore, *, clock: Clock, on_request: OnRequest) -> None:
        self._inner = inner
        self._clock = clock
        self._on_request = on_request

    @property
    def url(self) -> str:
        """The store's."""
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The store's."""
        return self._inner.capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the store with these capabilities, observed by the same."""
        return ObservedStore(
            self._inner.with_capabilities(capabilities), clock=self._clock, on_request=self._on_request
        )

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Put, observed."""

        def call(count: _Count) -> Token:
            count.sent = len(body)
            return self._inner.put(key, body, condition=condition, metadata=metadata)

        return self._observe("put", call)

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Put in parts, observed."""

        def call(count: _Count) -> Token:
            return self._inner.put_parts(
                key,
                count.of_sent(parts),
                condition=condition,
                metadata=metadata,
                before_complete=before_complete,
            )

        return self._observe("put_parts", call)

    def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Append, observed."""

        def call(count: _Count) -> Token:
            return self._inner.append(
                key, count.of_sent(tail), base=base, metadata=metadata, before_complete=before_complete
            )

        return self._observe("append", call)

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Get, observed until its body was read or closed."""
        started = self._clock.elapsed_seconds()
        try:
            body = self._inner.get(key, byte_range=byte_range, expected=expected)
        except Exception as error:
            self._tell("get", started, _Count(), type(error).__name__)
            raise
        return _ObservedBody(
            body, lambda received, error_name: self._tell("get", started, _Count(0, received), error_name)
        )

    def head(self, key: str) -> ObjectStat:
        """Head, observed."""
        return self._observe("head", lambda _count: self._inner.head(key))

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """List a page, observed."""
        return self._observe(
            "list",
            lambda _count: self._inner.list_page(
                prefix, page=page, whole_segments=whole_segments, limit=limit
            ),
        )

    def delete(self, key: str, *, condition: Condition) -> None:
        """Delete, observed."""
        self._observe("delete", lambda _count: self._inner.delete(key, condition=condition))

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """Copy, observed."""
        return self._observe(
            "copy",
            lambda _count: self._inner.copy(
                source, target, source_token=source_token, condition=condition, metadata=metadata
            ),
        )

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Ask the store."""
        return self._inner.refuses_wrong_checksum(key)

    def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
        """List uploads, observed."""
        return self._observe("list_uploads", lambda _count: self._inner.uploads_under_way(prefix))

    def abort_upload(self, upload: UploadUnderWay) -> None:
        """Give up an upload, observed."""
        self._observe("abort_upload", lambda _count: self._inner.abort_upload(upload))

    def close(self) -> None:
        """Close the store."""
        self._inner.close()

    def _observe(self, kind: str, call: Callable[[_Count], _Result]) -> _Result:
        started = self._clock.elapsed_seconds()
        count = _Count()
        error_name = ""
        try:
            return call(count)
        except BaseException as error:
            error_name = type(error).__name__
            raise
        finally:
            self._tell(kind, started, count, error_name)

    def _tell(self, kind: str, started: float, count: _Count, error_name: str) -> None:
        seconds = self._clock.elapsed_seconds() - started
        self._on_request(kind, seconds, count.sent, count.received, error_name)


class _ObservedBody(ObjectBody):
    def __init__(self, inner: ObjectBody, tell: Callable[[int, str], None]) -> None:
        self.stat = inner.stat
        self._inner = inner
        self._tell: Callable[[int, str], None] | None = tell
        self._received = 0

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        try:
            for chunk in self._inner.chunks(size_bytes):
                self._received += len(chunk)
                yield chunk
        except Exception as error:
            self._report(type(error).__name__)
            raise
        self._report("")

    def close(self) -> None:
        self._inner.close()
        self._report("")

    def _report(self, error_name: str) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self._received, error_name)
