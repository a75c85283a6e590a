"""Every call of an observed store is told once, with its bytes."""

from __future__ import annotations

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import ObjectNotFoundError, PreconditionFailedError, UnavailableError
from sessionfs.stores import contract
from sessionfs.stores.base import IfAbsent, ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.observed import ObservedStore
from sessionfs.testing.faulty_store import FaultyStore, Truncate

PLAIN = ObjectMetadata()
CLOCK = SystemClock()


class Notes:
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int, str]] = []

    def __call__(
        self, kind: str, seconds: float, bytes_sent: int, bytes_received: int, error_name: str
    ) -> None:
        assert 0 <= seconds < 60
        self.told.append((kind, bytes_sent, bytes_received, error_name))


def test_requests_are_told_with_their_bytes_and_errors() -> None:
    notes = Notes()
    faulty = FaultyStore(MemoryStore())
    store = ObservedStore(faulty, clock=CLOCK, on_request=notes)
    token = store.put("a", b"12345", condition=IfAbsent(), metadata=PLAIN)
    with pytest.raises(PreconditionFailedError):
        store.put("a", b"123", condition=IfAbsent(), metadata=PLAIN)
    store.append("a", [b"67", b"8"], base=store.head("a"), metadata=PLAIN, before_complete=lambda: None)
    with store.get("a", byte_range=None, expected=None) as body:
        assert body.read() == b"12345678"
    with store.get("a", byte_range=None, expected=None) as body:
        next(iter(body.chunks(3)))
    faulty.plan("get", Truncate(4))
    with store.get("a", byte_range=None, expected=None) as body, pytest.raises(UnavailableError):
        body.read()
    with pytest.raises(ObjectNotFoundError):
        store.get("missing", byte_range=None, expected=None)
    with pytest.raises(PreconditionFailedError):
        store.copy("a", "b", source_token=token, condition=IfAbsent(), metadata=PLAIN)
    store.put_parts(
        "c", [b"12", b"3"], condition=Unconditional(), metadata=PLAIN, before_complete=lambda: None
    )
    store.list_page("", page=None, whole_segments=False)
    store.delete("c", condition=Unconditional())
    assert notes.told == [
        ("put", 5, 0, ""),
        ("put", 3, 0, "PreconditionFailedError"),
        ("head", 0, 0, ""),
        ("append", 3, 0, ""),
        ("get", 0, 8, ""),
        ("get", 0, 3, ""),
        ("get", 0, 4, "UnavailableError"),
        ("get", 0, 0, "ObjectNotFoundError"),
        ("copy", 0, 0, "PreconditionFailedError"),
        ("put_parts", 3, 0, ""),
        ("list", 0, 0, ""),
        ("delete", 0, 0, ""),
    ]


@pytest.mark.parametrize("promise", contract.PROMISES, ids=[promise.id for promise in contract.PROMISES])
def test_wrappers_keep_every_promise(promise: contract.Promise) -> None:
    wrapped = ObservedStore(FaultyStore(MemoryStore()), clock=CLOCK, on_request=Notes())
    contract.check(promise, wrapped.with_capabilities(wrapped.capabilities), CLOCK)
