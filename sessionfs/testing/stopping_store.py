"""A store at which a process dies: at one of its calls, before or after it was applied; every call after that finds it dead.

For tests that run something once to count its steps, then once for each step, stopping there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

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
)

_Result = TypeVar("_Result")


class ProcessDied(BaseException):
    """The process that made the call is dead."""


class _Life:
    """How far a process came."""

    def __init__(self) -> None:
        self.steps = 0
        self.is_dead = False
        self.stop_at = -1
        self.is_applied = False
        self._lock = threading.Lock()

    def step(self) -> tuple[bool, bool]:
        """Count a step; whether the process lives on, and whether this very step ended it."""
        with self._lock:
            if self.is_dead:
                return False, False
            here, self.steps = self.steps, self.steps + 1
            self.is_dead = here == self.stop_at
            return not self.is_dead, self.is_dead


class StoppingStore(ObjectStore):
    """Another store, until a process dies at it.

    Args:
        inner: The store.
        changes_only: Whether only calls that change something are steps.
    """

    def __init__(self, inner: ObjectStore, *, changes_only: bool = False) -> None:
        self.inner = inner
        self._changes_only = changes_only
        self._life = _Life()

    @property
    def steps(self) -> int:
        """Calls that were steps so far."""
        return self._life.steps

    @property
    def is_dead(self) -> bool:
        """Whether the process has died."""
        return self._life.is_dead

    def stop_at(self, step: int, *, is_applied: bool) -> None:
        """Let the process die at a step from now on.

        Args:
            step: Counted from 0, from now on.
            is_applied: Whether the store still does what it was asked for.
        """
        self._life.steps, self._life.stop_at, self._life.is_applied = 0, step, is_applied

    def step(self) -> bool:
        """Count a step of another kind (the disk's, say) and say whether the process may go on."""
        return self._life.step()[0]

    @property
    def url(self) -> str:
        """The store's."""
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The store's."""
        return self.inner.capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the store with these capabilities, for the same process."""
        other = StoppingStore(self.inner.with_capabilities(capabilities), changes_only=self._changes_only)
        other._life = self._life
        return other

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Put."""
        return self._change(lambda: self.inner.put(key, body, condition=condition, metadata=metadata))

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Put in parts."""
        return self._change(
            lambda: self.inner.put_parts(
                key, parts, condition=condition, metadata=metadata, before_complete=before_complete
            )
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
        """Append."""
        return self._change(
            lambda: self.inner.append(
                key, tail, base=base, metadata=metadata, before_complete=before_complete
            )
        )

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Get."""
        return self._read(lambda: self.inner.get(key, byte_range=byte_range, expected=expected))

    def head(self, key: str) -> ObjectStat:
        """Head."""
        return self._read(lambda: self.inner.head(key))

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """List a page."""
        return self._read(
            lambda: self.inner.list_page(prefix, page=page, whole_segments=whole_segments, limit=limit)
        )

    def delete(self, key: str, *, condition: Condition) -> None:
        """Delete."""
        self._change(lambda: self.inner.delete(key, condition=condition))

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """Copy."""
        return self._change(
            lambda: self.inner.copy(
                source, target, source_token=source_token, condition=condition, metadata=metadata
            )
        )

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Ask the store."""
        return self.inner.refuses_wrong_checksum(key)

    def close(self) -> None:
        """Close the store."""
        self.inner.close()

    def _read(self, request: Callable[[], _Result]) -> _Result:
        if self._changes_only:
            if self.is_dead:
                raise ProcessDied
            return request()
        return self._change(request)

    def _change(self, request: Callable[[], _Result]) -> _Result:
        lives, is_last = self._life.step()
        if lives:
            return request()
        if is_last and self._life.is_applied:
            request()
        raise ProcessDied
