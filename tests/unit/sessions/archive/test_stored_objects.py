"""The archive's objects in a store: lost answers, repetitions, and what other tools put there."""

from __future__ import annotations

import pytest

from sessionfs.model.errors import (
    AccessError,
    AlreadyExistsError,
    ConcurrentRequestError,
    CorruptDataError,
    OutcomeUnknownError,
    PreconditionFailedError,
    SessionFSError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.sessions.archive.archive_keys import session_segment
from sessionfs.sessions.archive.objects import MAX_OBJECT_BYTES, PREFIX
from sessionfs.sessions.archive.stored_objects import TRIES, StoredObjects
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore, Interfere, LostResponse, Truncate

from .archive_world import objects_in


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def objects(store: FaultyStore) -> StoredObjects:
    return objects_in(store)


def _by_hand(store: FaultyStore, key: str, body: bytes) -> None:
    store.inner.put(PREFIX + key, body, condition=Unconditional(), metadata=ObjectMetadata())


def _lose() -> None:
    raise OutcomeUnknownError("lost before it arrived, as planned")


async def test_everything_is_below_the_prefix_of_the_archive(
    store: FaultyStore, objects: StoredObjects
) -> None:
    await objects.put("a/b", b"x", immutable=True)
    await objects.swap("c", b"x", old=None)
    assert {key for _, key in store.calls} == {"archive/a/b", "archive/c"}


@pytest.mark.parametrize("fault", [LostResponse(), Interfere(_lose)])
async def test_a_put_whose_answer_is_lost_succeeds_whether_it_arrived_or_not(
    store: FaultyStore, objects: StoredObjects, fault: LostResponse | Interfere
) -> None:
    for is_immutable in (True, False):
        store.plan("put", fault)
        await objects.put(f"k{is_immutable}", b"x", immutable=is_immutable)
        assert await objects.get(f"k{is_immutable}") == b"x"
    store.assert_all_used()


@pytest.mark.parametrize("fault", [LostResponse(), Interfere(_lose)])
async def test_a_swap_whose_answer_is_lost_succeeds_whether_it_arrived_or_not(
    store: FaultyStore, objects: StoredObjects, fault: LostResponse | Interfere
) -> None:
    old: bytes | None = None
    for body in (b"1", b"2"):
        store.plan("put", fault)
        await objects.swap("p", body, old=old)
        assert await objects.get("p") == body
        old = body
    store.assert_all_used()


async def test_a_put_that_arrives_late_and_its_repetition_are_one(
    store: FaultyStore, objects: StoredObjects
) -> None:
    def arrive() -> None:
        # The repetition finds what the first attempt left, with the first attempt's bytes.
        _by_hand(store, "k", b"x")

    store.plan("put", Interfere(_lose), Interfere(arrive))
    await objects.put("k", b"x", immutable=True)
    store.assert_all_used()


@pytest.mark.parametrize(
    "error", [UnavailableError("down"), ThrottledError("slow down"), ConcurrentRequestError("409")]
)
async def test_a_passing_error_is_retried_and_a_lasting_one_raised(
    store: FaultyStore, objects: StoredObjects, error: SessionFSError
) -> None:
    store.plan("put", *[FailBefore(error)] * (TRIES - 1))
    await objects.put("k", b"x", immutable=True)
    store.plan("put", *[FailBefore(error)] * TRIES)
    with pytest.raises(type(error)):
        await objects.put("other", b"x", immutable=True)
    store.assert_all_used()
    assert len([method for method, _ in store.calls if method == "put"]) == 2 * TRIES


async def test_what_time_does_not_mend_is_asked_once(store: FaultyStore, objects: StoredObjects) -> None:
    store.plan("put", FailBefore(AccessError("no")))
    with pytest.raises(AccessError):
        await objects.put("k", b"x", immutable=True)
    assert [method for method, _ in store.calls] == ["put"]


async def test_a_body_that_ends_early_is_read_again(store: FaultyStore, objects: StoredObjects) -> None:
    await objects.put("k", b"hello", immutable=True)
    store.plan("get", Truncate(2))
    assert await objects.get("k") == b"hello"
    store.assert_all_used()


async def test_an_object_that_cannot_be_asked_for_is_not_missing(
    store: FaultyStore, objects: StoredObjects
) -> None:
    store.plan("get", *[FailBefore(UnavailableError("down"))] * TRIES)
    with pytest.raises(UnavailableError):
        await objects.get("k")


async def test_an_object_of_another_tool_that_is_too_long_is_no_object_of_ours(
    store: FaultyStore, objects: StoredObjects
) -> None:
    _by_hand(store, "k", bytes(MAX_OBJECT_BYTES + 5))
    with pytest.raises(CorruptDataError):
        await objects.get("k")
    with pytest.raises(AlreadyExistsError):
        await objects.put("k", bytes(MAX_OBJECT_BYTES), immutable=True)


async def test_bytes_that_another_tool_put_are_the_same_bytes(
    store: FaultyStore, objects: StoredObjects
) -> None:
    _by_hand(store, "k", b"x")
    await objects.put("k", b"x", immutable=True)
    with pytest.raises(AlreadyExistsError):
        await objects.put("k", b"y", immutable=True)


async def test_an_object_that_changes_between_the_look_and_the_swap_is_not_swapped(
    store: FaultyStore, objects: StoredObjects
) -> None:
    await objects.put("p", b"1", immutable=False)
    store.plan("put", Interfere(lambda: _by_hand(store, "p", b"other")))
    with pytest.raises(PreconditionFailedError):
        await objects.swap("p", b"2", old=b"1")
    assert await objects.get("p") == b"other"


@pytest.mark.parametrize(
    ("session", "segment"),
    [
        ("s1", "s1"),
        ("A.b_c-d", "A.b_c-d"),
        ("a b", "a%20b"),
        ("\u00fc", "%C3%BC"),
        ("x" * 128, "x" * 128),
    ],
)
def test_a_session_is_spelled_with_characters_that_every_key_may_have(session: str, segment: str) -> None:
    assert session_segment(session) == segment


def test_sessions_with_long_spellings_have_short_segments_of_their_own() -> None:
    segments = {session_segment(character * 42) for character in "\u6f22\u5b57\u3042"}
    assert len(segments) == 3
    assert all(len(segment) <= 255 for segment in segments)
