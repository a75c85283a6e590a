# ruff: noqa: ARG002 - stores that deviate ignore what they are given
"""The probe: what it finds on stores that deviate, and which it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreRefusedError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.stores.base import (
    Capabilities,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStat,
    Token,
    Unconditional,
)
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.stores.probe import ProbeResult, probe
from sessionfs.testing.faulty_store import FailBefore, FaultyStore

CLOCK = SystemClock()


class OddStore(MemoryStore):
    """A memory store that deviates; `with_capabilities` keeps the deviation."""

    def with_capabilities(self, capabilities: Capabilities) -> OddStore:
        other = type(self)()
        other._contents = self._contents
        other._capabilities = capabilities
        return other


class IgnoresIfAbsent(OddStore):
    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if isinstance(condition, IfAbsent):
            condition = Unconditional()
        return super().put(key, body, condition=condition, metadata=metadata)


class IgnoresIfMatch(OddStore):
    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if isinstance(condition, IfMatch):
            condition = Unconditional()
        return super().put(key, body, condition=condition, metadata=metadata)


class HasNoIfMatch(OddStore):
    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if isinstance(condition, IfMatch):
            raise InvalidRequestError("501 NotImplemented")
        return super().put(key, body, condition=condition, metadata=metadata)


class LooksThenPuts(OddStore):
    """Right one after the other, wrong in a race, as OpenStack Swift 2.38."""

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        with self._contents.lock:
            self._require(key, condition)
        if not isinstance(condition, Unconditional):
            threading.Event().wait(0.01)
        return super().put(key, body, condition=Unconditional(), metadata=metadata)


class WantsUnquoted(OddStore):
    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if isinstance(condition, IfMatch) and self.capabilities.etag_spelling == "quoted":
            raise PreconditionFailedError("no such spelling")
        return super().put(key, body, condition=condition, metadata=metadata)


class IgnoresTheRest(OddStore):
    """Conditions count on put only; metadata of markers is dropped; nothing can be appended."""

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        return super().put(
            key, body, condition=condition, metadata=ObjectMetadata() if key.endswith("/") else metadata
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
        return super().put_parts(
            key, parts, condition=Unconditional(), metadata=metadata, before_complete=before_complete
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
        raise InvalidRequestError("501 NotImplemented")

    def delete(self, key: str, *, condition: Condition) -> None:
        super().delete(key, condition=Unconditional())

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        token = self.head(source).token
        return super().copy(source, target, source_token=token, condition=Unconditional(), metadata=metadata)


class LosesWrites(OddStore):
    def _store(self, key: str, body: bytes, metadata: ObjectMetadata) -> Token:
        return super()._store(key, b"", metadata)


class HourAhead(OddStore):
    def head(self, key: str) -> ObjectStat:
        stat = super().head(key)
        return replace(stat, modified_ns=stat.modified_ns + 3600 * 10**9)


class HalfLost(OddStore):
    """Every other conditional put answers nothing, though it counts."""

    calls = 0

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        token = super().put(key, body, condition=condition, metadata=metadata)
        if "race" in key and not isinstance(condition, Unconditional):
            raise OutcomeUnknownError("lost")
        return token


def left(store: MemoryStore) -> list[str]:
    return [stat.key for page in store.list_all("") for stat in page.objects]


def test_store_that_does_everything_is_found_to() -> None:
    store = MemoryStore()
    result = probe(store, CLOCK)
    assert result.capabilities == store.capabilities
    assert result.quirks == ("does not verify checksums",)
    assert result.probed_at.endswith("Z")
    assert left(store) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (IgnoresIfAbsent, "ignores If-None-Match"),
        (IgnoresIfMatch, "ignores If-Match"),
        (HasNoIfMatch, "refuses If-Match"),
        (LooksThenPuts, "racing conditional puts won"),
    ],
)
def test_store_without_conditional_put_is_refused_unless_for_a_single_host(
    kind: type[OddStore], text: str
) -> None:
    store = kind()
    with pytest.raises(StoreRefusedError, match=text) as caught:
        probe(store, CLOCK)
    assert "--single-host" in caught.value.remedy
    assert "\n" not in str(caught.value)
    assert left(store) == []
    result = probe(store, CLOCK, single_host=True)
    assert not result.capabilities.conditional_put
    assert "accepted for a single host" in result.quirks[0]
    assert left(store) == []


def test_store_that_loses_bytes_is_refused_in_any_case() -> None:
    with pytest.raises(StoreRefusedError, match="other bytes"):
        probe(LosesWrites(), CLOCK, single_host=True)


def test_spelling_of_etags_that_works_is_found() -> None:
    result = probe(WantsUnquoted(), CLOCK)
    assert result.capabilities.etag_spelling == "unquoted"
    assert "wants If-Match with the ETag unquoted" in result.quirks


def test_missing_capabilities_are_found_one_by_one() -> None:
    store = IgnoresTheRest()
    found = probe(store, CLOCK).capabilities
    assert found == replace(
        store.capabilities,
        conditional_delete=False,
        conditional_copy=False,
        copy_source_match=False,
        conditional_complete=False,
        append_by_copy=False,
        marker_metadata=False,
    )
    assert left(store) == []


def test_racers_whose_answers_are_lost_are_no_second_winner() -> None:
    assert probe(HalfLost(), CLOCK).capabilities.conditional_put


def test_difference_of_clocks_is_a_quirk() -> None:
    assert any("+36" in quirk or "+3599" in quirk for quirk in probe(HourAhead(), CLOCK).quirks)


def test_store_that_does_not_answer_is_unavailable_not_refused() -> None:
    store = FaultyStore(MemoryStore())
    store.plan("put", FailBefore(UnavailableError("down")))
    with pytest.raises(UnavailableError):
        probe(store, CLOCK)
    store.assert_all_used()


def test_probe_stays_below_a_prefix() -> None:
    whole = MemoryStore()
    seen: set[str] = set()

    class Watched(FaultyStore):
        def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
            seen.add(key)
            return super().put(key, body, condition=condition, metadata=metadata)

        def with_capabilities(self, capabilities: Capabilities) -> Watched:
            return Watched(self.inner.with_capabilities(capabilities))

    probe(PrefixedStore(Watched(whole), "team/a/", url="memory:"), CLOCK)
    assert seen
    assert all(key.startswith("team/a/probe/") for key in seen)


def test_result_is_kept_as_json() -> None:
    result = ProbeResult(Capabilities(etag_spelling="unquoted", conditional_copy=False), ("a quirk",), "then")
    assert ProbeResult.from_json(result.to_json()) == result
    with pytest.raises(UnsupportedFormatError):
        ProbeResult.from_json(b'{"format": 2}')
    for damaged in (b"", b"{", b'{"format": 1}', b'{"format": 1, "capabilities": {"etag_spelling": "odd"}}'):
        with pytest.raises(CorruptDataError):
            ProbeResult.from_json(damaged)
