"""A promise as data, and the scratch space its check works in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from sessionfs.model.errors import (
    ConflictError,
    OutcomeUnknownError,
    SessionFSError,
    StoreRefusedError,
    UnavailableError,
)
from sessionfs.stores.base import (
    ByteRange,
    Condition,
    IfAbsent,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
)

RACERS = 16

_Error = TypeVar("_Error", bound=SessionFSError)


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that every store does.

    Attributes:
        id: Short name, kept for ever.
        sentence: What is promised.
        check: Tries it; raises when it is broken.
    """

    id: str
    sentence: str
    check: Callable[[Scratch], None] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Scratch:
    """A store and a prefix that belongs to one check.

    Attributes:
        store: The store.
        prefix: Ends in ``/``; nothing is below it at first.
    """

    store: ObjectStore
    prefix: str

    def key(self, name: str) -> str:
        """Give the key of a scratch object."""
        return self.prefix + name

    def put(
        self,
        name: str,
        body: bytes = b"",
        condition: Condition | None = None,
        metadata: ObjectMetadata | None = None,
    ) -> Token:
        """Put a scratch object, as a new one unless told otherwise."""
        return self.store.put(
            self.key(name),
            body,
            condition=condition or IfAbsent(),
            metadata=metadata or ObjectMetadata(),
        )

    def put_parts(
        self,
        name: str,
        *parts: bytes,
        condition: Condition | None = None,
        before_complete: Callable[[], None] | None = None,
    ) -> Token:
        """Put a scratch object in parts."""
        return self.store.put_parts(
            self.key(name),
            iter(parts),
            condition=condition or IfAbsent(),
            metadata=ObjectMetadata({"mode": "0100644"}),
            before_complete=before_complete or go_on,
        )

    def body(self, name: str, byte_range: ByteRange | None = None, expected: Token | None = None) -> bytes:
        """Read a scratch object."""
        with self.store.get(self.key(name), byte_range=byte_range, expected=expected) as body:
            return body.read()

    def head(self, name: str) -> ObjectStat:
        """Describe a scratch object."""
        return self.store.head(self.key(name))

    def names(self, prefix: str = "") -> list[str]:
        """List all scratch objects below a prefix, sorted."""
        start = len(self.prefix)
        pages = self.store.list_all(self.key(prefix))
        return sorted(stat.key[start:] for page in pages for stat in page.objects)

    def race(self, name: str, condition: Condition) -> None:
        """Let racers put the same key under one condition; exactly one may win, and its bytes stay."""
        start = threading.Barrier(RACERS)

        def racer(number: int) -> str:
            start.wait()
            try:
                self.put(name, b"racer %d" % number, condition)
            except ConflictError:
                return "lost"
            except (OutcomeUnknownError, UnavailableError):
                return "unknown"
            return "won"

        with ThreadPoolExecutor(RACERS) as threads:
            results = list(threads.map(racer, range(RACERS)))
        winners = [number for number, result in enumerate(results) if result == "won"]
        require(len(winners) == 1, f"{len(winners)} of {RACERS} racers won: {results}")
        require(self.body(name) == b"racer %d" % winners[0], "the bytes are not the winner's")


def go_on() -> None:
    """Let an upload complete."""


def require(holds: bool, otherwise: str) -> None:
    """Go on when a promise holds.

    Raises:
        StoreRefusedError: It does not.
    """
    if not holds:
        raise StoreRefusedError(f"promise broken: {otherwise}")


def require_error(kind: type[_Error], request: Callable[[], object], doing: str) -> _Error:
    """Require that a request fails in a certain way, and give the error.

    Raises:
        StoreRefusedError: It succeeds, or fails in another way.
    """
    try:
        request()
    except kind as error:
        return error
    except SessionFSError as error:
        raise StoreRefusedError(
            f"promise broken: {doing} raises {type(error).__name__}, not {kind.__name__}: {error}"
        ) from error
    raise StoreRefusedError(f"promise broken: {doing} succeeds, {kind.__name__} is due")


def pattern(size_bytes: int, seed: int = 0) -> bytes:
    """Give bytes that differ at every offset a test looks at."""
    block = bytes((index * 7 + seed) % 251 for index in range(251 * 16))
    return (block * (size_bytes // len(block) + 1))[:size_bytes]
