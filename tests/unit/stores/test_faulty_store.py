"""The store with planned faults does what was planned, and says what was not used."""

from __future__ import annotations

import pytest

from sessionfs.model.errors import ObjectNotFoundError, OutcomeUnknownError, ThrottledError, UnavailableError
from sessionfs.stores.base import IfAbsent, ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import (
    Delay,
    FailBefore,
    FaultyStore,
    Interfere,
    LostResponse,
    Pass,
    Truncate,
)

PLAIN = ObjectMetadata()


def test_planned_faults_happen_in_order() -> None:
    store = FaultyStore(MemoryStore())
    store.plan("put", Pass(), FailBefore(ThrottledError("slow down")), LostResponse(), Delay(0.001))
    store.put("a", b"1", condition=IfAbsent(), metadata=PLAIN)
    with pytest.raises(ThrottledError):
        store.put("b", b"1", condition=IfAbsent(), metadata=PLAIN)
    with pytest.raises(ObjectNotFoundError):
        store.head("b")
    with pytest.raises(OutcomeUnknownError):
        store.put("c", b"1", condition=IfAbsent(), metadata=PLAIN)
    assert store.head("c").size_bytes == 1
    store.put("d", b"1", condition=IfAbsent(), metadata=PLAIN)
    store.put("e", b"1", condition=IfAbsent(), metadata=PLAIN)
    store.assert_all_used()
    assert [key for method, key in store.calls if method == "put"] == ["a", "b", "c", "d", "e"]


def test_fault_that_was_not_used_fails_the_test() -> None:
    store = FaultyStore(MemoryStore())
    store.plan("delete", LostResponse())
    with pytest.raises(AssertionError, match="delete"):
        store.assert_all_used()
    with pytest.raises(ValueError, match="no method"):
        store.plan("remove", Pass())


def test_cut_body_is_an_error_after_its_bytes() -> None:
    store = FaultyStore(MemoryStore())
    store.put("a", b"0123456789", condition=IfAbsent(), metadata=PLAIN)
    for after in (0, 4, 10):
        store.plan("get", Truncate(after))
        received: list[bytes] = []
        with store.get("a", byte_range=None, expected=None) as body, pytest.raises(UnavailableError):
            received.extend(body.chunks(3))
        assert b"".join(received) == b"0123456789"[:after]


def test_somebody_else_may_come_first() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    store.plan(
        "head", Interfere(lambda: inner.put("a", b"theirs", condition=Unconditional(), metadata=PLAIN))
    )
    assert store.head("a").size_bytes == 6
    store.assert_all_used()
