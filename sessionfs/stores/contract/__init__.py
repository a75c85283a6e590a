"""What every store promises, as data: an id, a sentence and a check for each; no store can override one.

The tests run promise by promise on every store; ``sessionfs doctor STORE --contract`` runs the same on anybody's bucket, below
``probe/<random>/``, and removes what it made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sessionfs.model.clock import Clock
from sessionfs.model.errors import SessionFSError
from sessionfs.model.keys import PROBE_PREFIX
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.contract.changing import CHANGING
from sessionfs.stores.contract.promise import Promise, Scratch
from sessionfs.stores.contract.putting import PUTTING
from sessionfs.stores.contract.reading import READING
from sessionfs.stores.probe import remove_scratch

__all__ = ["KNOWN_DEVIATIONS", "PROMISES", "Outcome", "Promise", "check", "run"]

PROMISES: tuple[Promise, ...] = (*PUTTING, *READING, *CHANGING)

KNOWN_DEVIATIONS: Mapping[tuple[str, str], str] = {
    ("seaweedfs", "list-children-singly"): (
        "SeaweedFS 4.48 ends a listing with delimiter and MaxKeys=1 after the marker; nothing of ours asks for such pages"
    ),
}
"""(server, promise id): why this server breaks this promise even with its probed capabilities."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one promise on one store.

    Attributes:
        promise: The promise.
        error: Why it is broken, "" when it holds.
    """

    promise: Promise
    error: str

    @property
    def holds(self) -> bool:
        """Whether it holds."""
        return not self.error


def check(promise: Promise, store: ObjectStore, clock: Clock) -> None:
    """Check one promise in a scratch space of its own, and tidy up.

    Args:
        promise: The promise.
        store: The store, with the capabilities a probe found.
        clock: Names the scratch space.

    Raises:
        StoreRefusedError: The promise is broken.
        SessionFSError: The store failed in a way that no promise speaks of.
    """
    scratch = Scratch(store, f"{PROBE_PREFIX}{clock.unique_id()}/")
    try:
        promise.check(scratch)
    finally:
        remove_scratch(store, scratch.prefix)


def run(store: ObjectStore, clock: Clock) -> Iterator[Outcome]:
    """Check every promise, one after the other.

    Args:
        store: The store, with the capabilities a probe found.
        clock: Names the scratch spaces.
    """
    for promise in PROMISES:
        try:
            check(promise, store, clock)
        except SessionFSError as error:
            yield Outcome(promise, str(error))
        else:
            yield Outcome(promise, "")
