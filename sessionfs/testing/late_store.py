"""A store as one host reaches it over a bad line: a changing request may be lost, applied late, applied twice, or held in the middle of its way.

For searches that decide the fate of every request themselves (``tests/properties``): this module has neither clock nor randomness.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from sessionfs.model.errors import OutcomeUnknownError, SessionFSError, ThrottledError, UnavailableError
from sessionfs.stores.base import (
    ByteRange,
    Capabilities,
    Condition,
    IfMatch,
    ListPage,
    ObjectBody,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
)
from sessionfs.testing.stopping_store import ProcessDied

_Result = TypeVar("_Result")


class Fate(enum.Enum):
    """What becomes of a request."""

    ANSWERED = "is answered"
    LOST = "is applied, its answer is lost"
    LATE = "is applied later, its sender is told that the answer was lost"
    DROPPED = "is never applied, its sender is told that the answer was lost"
    TWICE = "is applied, answered, and applied once more later"
    REFUSED = "is refused: the store is busy"
    AWAY = "is not sent: there is no connection"
    HELD = "is held on its way, and its host with it"
    KILLS_BEFORE = "is not sent: its process dies"
    KILLS_AFTER = "is applied, and its process dies"


READ_FATES = frozenset({Fate.ANSWERED, Fate.REFUSED, Fate.AWAY})
"""What can become of a request that changes nothing."""


@dataclass(frozen=True, slots=True)
class Late:
    """A changing request that the store may still see.

    Attributes:
        shown: The request, for people.
        apply: Applies it; what it raises is told to nobody.
    """

    shown: str
    apply: Callable[[], object]

    def arrive(self) -> bool:
        """Let it arrive; gives whether its condition held."""
        try:
            self.apply()
        except SessionFSError:
            return False
        return True


class HeldRequest(BaseException):
    """A request is on its way, checked and not yet applied. Whoever runs requests catches it, and calls `apply` when the host goes on.

    Attributes:
        apply: Applies the request; gives or raises what the store does.
    """

    def __init__(self, apply: Callable[[], Token]) -> None:
        super().__init__("held")
        self.apply = apply


class LateStore(ObjectStore):
    """Another store, over a bad line.

    Args:
        inner: The store.
        name: Of the host, for people.
        decide: Gives the fate of a request by its method and key; those of `READ_FATES` for one that changes nothing.
        late: Requests that may still arrive are added here.
    """

    def __init__(
        self, inner: ObjectStore, name: str, decide: Callable[[str, str], Fate], late: list[Late]
    ) -> None:
        self.inner = inner
        self._name = name
        self._decide = decide
        self._late = late

    @property
    def url(self) -> str:
        """The store's."""
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The store's."""
        return self.inner.capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the store with these capabilities, over the same line."""
        return LateStore(self.inner.with_capabilities(capabilities), self._name, self._decide, self._late)

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Put."""
        return self._change(
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
        """Put in parts; what is late or lost is the last request of them."""
        body = [b"".join(parts)]
        before_complete()
        return self._change(
            "put_parts",
            key,
            lambda: self.inner.put_parts(
                key, body, condition=condition, metadata=metadata, before_complete=_nothing
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
        """Append; as `put_parts`."""
        body = [b"".join(tail)]
        before_complete()
        return self._change(
            "append",
            key,
            lambda: self.inner.append(key, body, base=base, metadata=metadata, before_complete=_nothing),
        )

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Get."""
        return self._read("get", key, lambda: self.inner.get(key, byte_range=byte_range, expected=expected))

    def head(self, key: str) -> ObjectStat:
        """Head."""
        return self._read("head", key, lambda: self.inner.head(key))

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """List a page."""
        return self._read(
            "list_page",
            prefix,
            lambda: self.inner.list_page(prefix, page=page, whole_segments=whole_segments, limit=limit),
        )

    def delete(self, key: str, *, condition: Condition) -> None:
        """Delete."""

        def apply() -> Token:
            self.inner.delete(key, condition=condition)
            return condition.token if isinstance(condition, IfMatch) else Token("")

        self._change("delete", key, apply)

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
            "copy",
            target,
            lambda: self.inner.copy(
                source, target, source_token=source_token, condition=condition, metadata=metadata
            ),
        )

    def refuses_wrong_checksum(self, key: str) -> bool:
        """Ask the store."""
        return self.inner.refuses_wrong_checksum(key)

    def close(self) -> None:
        """Close the store."""
        self.inner.close()

    def _read(self, method: str, key: str, request: Callable[[], _Result]) -> _Result:
        self._require_line(self._decide(method, key), key)
        return request()

    def _change(self, method: str, key: str, request: Callable[[], Token]) -> Token:
        fate = self._decide(method, key)
        self._require_line(fate, key)
        late = Late(f"{self._name}'s {method} {key}", request)
        if fate is Fate.HELD:
            raise HeldRequest(request)
        if fate is Fate.KILLS_BEFORE:
            raise ProcessDied
        if fate is Fate.LATE:
            self._late.append(late)
        if fate in {Fate.LATE, Fate.DROPPED}:
            raise OutcomeUnknownError(f"no answer about {key!r}, as planned")
        if fate is Fate.KILLS_AFTER:
            late.arrive()
            raise ProcessDied
        token = request()
        if fate is Fate.LOST:
            raise OutcomeUnknownError(f"the answer about {key!r} was lost, as planned")
        if fate is Fate.TWICE:
            self._late.append(late)
        return token

    def _require_line(self, fate: Fate, key: str) -> None:
        if fate is Fate.REFUSED:
            raise ThrottledError(f"the store is busy, as planned: {key!r}")
        if fate is Fate.AWAY:
            raise UnavailableError(f"no connection, as planned: {key!r}")


def _nothing() -> None:
    """It was asked before."""
