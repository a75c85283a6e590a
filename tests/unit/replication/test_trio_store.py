"""The store behind threads: lost responses, repeated reads, downloads."""

from __future__ import annotations

import hashlib
import os
import threading
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    ConcurrentRequestError,
    CorruptDataError,
    OutcomeUnknownError,
    OwnershipLostError,
    SessionFSError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.retry_policy import Kind, backoff_seconds, classify
from sessionfs.replication.trio_store import Landed, Moved, NotLanded, SourceMoved, TrioStore
from sessionfs.replication.uploads.sending import ByteBudget
from sessionfs.stores.base import ByteRange, IfAbsent, IfMatch, ObjectMetadata, Token, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, Interfere, LostResponse, Truncate

SETTINGS = ReplicationSettings(retry_minimum_seconds=0, retry_maximum_seconds=0, concurrent_uploads=2)


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def store(faulty: FaultyStore) -> TrioStore:
    return TrioStore(faulty, SystemClock(), SETTINGS)


def ours(write_id: str = "w1") -> ObjectMetadata:
    return ObjectMetadata({"sessionfs-write": write_id})


def _lose() -> None:
    raise OutcomeUnknownError("lost")


async def test_a_lost_put_is_settled_by_its_write_id(store: TrioStore, faulty: FaultyStore) -> None:
    faulty.plan("put", LostResponse(), Interfere(_lose))
    landed = await store.put("a", b"x", condition=IfAbsent(), metadata=ours("w1"))
    assert isinstance(landed, Landed)
    assert landed.token == faulty.inner.head("a").token
    assert await store.put("a", b"y", condition=IfMatch(landed.token), metadata=ours("w2")) == NotLanded()


async def test_a_failed_condition_gives_what_was_found(store: TrioStore, faulty: FaultyStore) -> None:
    faulty.inner.put("a", b"theirs", condition=Unconditional(), metadata=ours("them"))
    moved = await store.put("a", b"x", condition=IfAbsent(), metadata=ours())
    assert moved == Moved(faulty.inner.head("a"))
    assert await store.put("b", b"x", condition=IfMatch(Token("t")), metadata=ours()) == Moved(None)


async def test_a_lost_put_that_somebody_overtook_is_moved(store: TrioStore, faulty: FaultyStore) -> None:
    def overtake() -> None:
        faulty.inner.put("a", b"theirs", condition=Unconditional(), metadata=ours("them"))
        _lose()

    faulty.plan("put", Interfere(overtake))
    moved = await store.put("a", b"x", condition=IfAbsent(), metadata=ours())
    assert isinstance(moved, Moved)


async def test_an_outcome_that_cannot_be_looked_up_stays_unknown(
    store: TrioStore, faulty: FaultyStore
) -> None:
    faulty.plan("put", LostResponse())
    faulty.plan("head", *[FailBefore(UnavailableError("away"))] * 5)
    with pytest.raises(OutcomeUnknownError):
        await store.put("a", b"x", condition=IfAbsent(), metadata=ours())
    faulty.assert_all_used()


async def test_a_copy_tells_its_source_from_its_target(store: TrioStore, faulty: FaultyStore) -> None:
    token = faulty.inner.put("a", b"x", condition=IfAbsent(), metadata=ours("a"))

    async def copy(source_token: Token, *, source: str = "a") -> object:
        return await store.copy(
            source, "b", source_token=source_token, condition=IfAbsent(), metadata=ours("c")
        )

    assert await copy(Token("old")) == SourceMoved()
    assert await copy(token, source="gone") == SourceMoved()
    assert isinstance(await copy(token), Landed)
    faulty.inner.delete("b", condition=Unconditional())
    faulty.inner.put("b", b"theirs", condition=IfAbsent(), metadata=ours("them"))
    assert isinstance(await copy(token), Moved)


async def test_deleting_what_is_gone_is_done(store: TrioStore, faulty: FaultyStore) -> None:
    assert isinstance(await store.delete("a", condition=IfMatch(Token("t"))), Landed)
    token = faulty.inner.put("a", b"x", condition=IfAbsent(), metadata=ours())
    faulty.plan("delete", LostResponse())
    assert isinstance(await store.delete("a", condition=IfMatch(token)), Landed)
    token = faulty.inner.put("a", b"x", condition=IfAbsent(), metadata=ours())
    faulty.plan("delete", Interfere(_lose))
    assert await store.delete("a", condition=IfMatch(token)) == NotLanded()
    assert isinstance(await store.delete("a", condition=IfMatch(Token("t"))), Moved)


async def test_a_read_is_repeated_as_often_as_its_caller_says(store: TrioStore, faulty: FaultyStore) -> None:
    faulty.inner.put("a", b"body", condition=IfAbsent(), metadata=ours())
    faulty.plan("get", Truncate(2), FailBefore(ThrottledError("slow down")))
    assert await store.read("a", tries=3) == b"body"
    faulty.plan("get", Truncate(2))
    with pytest.raises(UnavailableError):
        await store.read("a")
    faulty.plan("head", FailBefore(AccessError("403")))
    with pytest.raises(AccessError):
        await store.head("a", tries=3)
    assert await store.head("gone") is None
    assert store.requests["get"] == 4


async def test_a_download_that_broke_off_starts_again(
    store: TrioStore, faulty: FaultyStore, tmp_path: Path
) -> None:
    body = os.urandom(3000)
    token = faulty.inner.put("a", body, condition=IfAbsent(), metadata=ours())
    faulty.plan("get", Truncate(1000))
    file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    found = await store.download("a", file, expected=token, tries=2)
    assert (found.size_bytes, found.sha256) == (3000, hashlib.sha256(body).hexdigest())
    assert os.pread(file, 9999, 0) == body
    part = await store.download("a", file, byte_range=ByteRange(10, 20), expected=token, position=5000)
    assert (part.size_bytes, os.pread(file, 99, 5000)) == (10, body[10:20])
    os.close(file)


async def test_lists_follow_every_page(store: TrioStore, faulty: FaultyStore) -> None:
    for number in range(1005):
        faulty.inner.put(f"d/{number}", b"", condition=IfAbsent(), metadata=ours())
    objects, prefixes = await store.list_all("d/", whole_segments=False)
    assert (len(objects), prefixes) == (1005, [])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnavailableError(""), Kind.OUTAGE),
        (OutcomeUnknownError(""), Kind.OUTAGE),
        (ThrottledError(""), Kind.BUSY),
        (ConcurrentRequestError(""), Kind.BUSY),
        (AccessError(""), Kind.ACCESS),
        (BucketNotFoundError(""), Kind.ACCESS),
        (CorruptDataError(""), Kind.PERMANENT),
    ],
)
def test_every_error_says_what_it_asks_for(error: SessionFSError, kind: Kind) -> None:
    assert classify(error) is kind


def test_backoff_doubles_to_its_limit_with_full_jitter() -> None:
    class Highest(SystemClock):
        def jitter(self) -> float:
            return 1.0

    settings = ReplicationSettings()
    waits = [backoff_seconds(tries, settings, Highest()) for tries in (1, 2, 3, 7, 8, 10_000)]
    assert waits == [0.5, 1.0, 2.0, 32.0, 60.0, 60.0]
    assert all(0 <= backoff_seconds(3, settings, SystemClock()) < 2 for _ in range(100))


async def test_borrowed_bytes_are_served_in_order_and_given_back_when_cancelled() -> None:
    budget = ByteBudget(10)
    order: list[str] = []

    async def borrow(name: str, size_bytes: int) -> None:
        async with budget.borrow(size_bytes):
            order.append(name)

    async with trio.open_nursery() as nursery:
        async with budget.borrow(6):
            nursery.start_soon(borrow, "large", 100)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(borrow, "small", 1)
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
            with trio.move_on_after(0.01):
                await borrow("late", 5)
        await trio.testing.wait_all_tasks_blocked()
    assert order == ["large", "small"]
    assert budget.most_bytes == 10


async def test_an_urgent_request_waits_behind_no_upload(store: TrioStore, faulty: FaultyStore) -> None:
    """Two uploads fill every thread that uploads have."""
    let_go = threading.Event()
    faulty.plan("put", Interfere(let_go.wait), Interfere(let_go.wait))
    async with trio.open_nursery() as nursery:
        for key in ("a", "b"):
            nursery.start_soon(partial(store.put, key, b"x", condition=IfAbsent(), metadata=ours(key)))
        with trio.fail_after(10):
            while len(faulty.calls) < SETTINGS.concurrent_uploads:  # noqa: ASYNC110 - threads tell nobody
                await trio.sleep(0.001)
            landed = await store.put("c", b"x", condition=IfAbsent(), metadata=ours("c"), urgent=True)
        let_go.set()
    assert isinstance(landed, Landed)


async def test_a_lost_urgent_put_is_looked_up_once(store: TrioStore, faulty: FaultyStore) -> None:
    faulty.plan("put", LostResponse())
    faulty.plan("head", FailBefore(UnavailableError("away")))
    with pytest.raises(OutcomeUnknownError):
        await store.put("a", b"x", condition=IfAbsent(), metadata=ours(), urgent=True)
    assert [call for call in faulty.calls if call[0] == "head"] == [("head", "a")]


async def test_the_guard_refuses_a_change_before_it_is_sent(store: TrioStore, faulty: FaultyStore) -> None:
    store.guard = _refuse
    with pytest.raises(OwnershipLostError):
        await store.put("a", b"x", condition=IfAbsent(), metadata=ours())
    with pytest.raises(OwnershipLostError):
        await store.delete("a", condition=IfMatch(Token("t")))
    assert await store.head("a") is None
    assert faulty.calls == [("head", "a")]


async def test_the_guard_is_asked_again_before_a_long_object_appears(
    store: TrioStore, faulty: FaultyStore
) -> None:
    asked: list[str] = []

    def guard(key: str) -> None:
        asked.append(key)
        if len(asked) == 2:
            _refuse(key)

    store.guard = guard
    with pytest.raises(OwnershipLostError):
        await store.put_parts(
            "a", [b"x"], condition=IfAbsent(), metadata=ours(), before_complete=lambda: None
        )
    assert asked == ["a", "a"]
    assert await store.head("a") is None


def _refuse(key: str) -> None:
    raise OwnershipLostError(f"{key} may not be changed")
