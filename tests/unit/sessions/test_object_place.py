"""Sessions straight in the bucket: which there are, the index, and who may write."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    ConflictError,
    InvalidRequestError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
)
from sessionfs.model.names import session_id
from sessionfs.model.roots import named_unit
from sessionfs.sessions.object_place import INDEX_KEY, ObjectPlace, open_object_place
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore, LostResponse

from .test_object_changes import LateStore

SESSION = session_id("s")


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def place(store: FaultyStore) -> AsyncIterator[ObjectPlace]:
    async with open_object_place(store, SystemClock()) as opened:
        yield opened


def keys_of(store: FaultyStore) -> list[str]:
    return sorted(stat.key for page in store.inner.list_all("") for stat in page.objects)


async def test_sessions_are_those_that_have_a_file_and_shared_roots_are_none(place: ObjectPlace) -> None:
    for name in ("b", "a", "plugins/p"):
        await place.files(named_unit(name)).write("f", b"x")
    assert await place.list_sessions() == ["a", "b"]
    assert await place.files(named_unit("plugins/p")).read("f") == b"x"


async def test_a_removed_session_leaves_nothing_and_may_be_removed_again(
    place: ObjectPlace, store: FaultyStore
) -> None:
    await place.files(SESSION).write("d/e/f", b"x")
    await place.files(session_id("other")).write("f", b"x")
    await place.remove_session(SESSION)
    await place.remove_session(SESSION)
    assert [key for key in keys_of(store) if key.startswith("sessions/s/")] == []
    assert await place.list_sessions() == ["other"]
    await place.files(SESSION).write("d/g", b"y")
    assert keys_of(store)[-3:] == ["sessions/s/", "sessions/s/d/", "sessions/s/d/g"]


async def test_the_index_is_one_object(place: ObjectPlace, store: FaultyStore) -> None:
    assert await place.read_index() is None
    await place.write_index(b'{"a": 1}')
    store.plan("put", LostResponse())
    await place.write_index(b'{"a": 2}')
    store.assert_all_used()
    assert await place.read_index() == b'{"a": 2}'
    assert keys_of(store) == [INDEX_KEY]


async def test_an_index_that_arrives_late_replaces_no_later_one() -> None:
    store = LateStore(INDEX_KEY)
    async with open_object_place(store, SystemClock()) as place:
        await place.write_index(b"{}")
        await place.write_index(b'{"a": 1}')
        with pytest.raises(ConflictError):
            store.late[0]()
        assert await place.read_index() == b'{"a": 1}'


async def test_an_index_is_set_aside_under_a_stamp_that_only_moves_forward(
    place: ObjectPlace, store: FaultyStore
) -> None:
    assert await place.set_index_aside(100) is None
    names = []
    for stamp_seconds in (100, 100, 50, 300):
        await place.write_index(b"{%d" % stamp_seconds)
        names.append(await place.set_index_aside(stamp_seconds))
        assert await place.read_index() is None
    assert names == [f"sessions.json.corrupt-{stamp}" for stamp in (100, 101, 102, 300)]
    assert keys_of(store) == sorted(f"sessions.json.corrupt-{stamp}" for stamp in (100, 101, 102, 300))


async def test_of_two_places_one_owns_a_session_until_it_lets_go(
    place: ObjectPlace, store: FaultyStore
) -> None:
    await place.claim(SESSION)
    await place.claim(SESSION)
    assert place.owns(SESSION)
    async with open_object_place(store, SystemClock()) as other:
        with pytest.raises(SessionAlreadyOwnedError):
            await other.claim(SESSION)
        assert not other.owns(SESSION)
        await place.release(SESSION)
        await place.release(SESSION)
        await other.claim(SESSION)
        assert other.owns(SESSION)
        with pytest.raises(SessionAlreadyOwnedError):
            await place.claim(SESSION)
    # A place that was closed holds nothing.
    await place.claim(SESSION)


async def test_whoever_lost_a_session_that_it_claimed_writes_nothing_into_it(
    place: ObjectPlace, store: FaultyStore
) -> None:
    await place.claim(SESSION)
    await place.files(SESSION).write("f", b"mine")
    async with open_object_place(store, SystemClock()) as other:
        await other.claim(SESSION, force=True)
        await other.files(SESSION).write("f", b"theirs")
        with pytest.raises(ConflictError):
            await place.release(SESSION)
        await place.files(session_id("unclaimed")).write("f", b"as any tool")
    assert store.inner.head(keys.owner_key(SESSION)).size_bytes


async def test_a_claim_that_lapsed_is_no_permission(place: ObjectPlace, store: FaultyStore) -> None:
    await place.claim(SESSION)
    place._ownership._ownership.lose(SESSION, holder="other", reason="taken over")
    assert not place.owns(SESSION)
    for call in (place.files(SESSION).write("f", b"x"), place.files(SESSION).append("f", b"x")):
        with pytest.raises(OwnershipLostError):
            await call
    assert "sessions/s/f" not in keys_of(store)


async def test_the_bucket_itself_makes_no_generation(place: ObjectPlace) -> None:
    with pytest.raises(InvalidRequestError, match="mirrored"):
        await place.commit(SESSION, "test")


async def test_a_foreign_key_beside_the_index_is_no_stamp(place: ObjectPlace, store: FaultyStore) -> None:
    for name in (f"{INDEX_KEY}.corrupt-x", "other"):
        store.inner.put(name, b"", condition=Unconditional(), metadata=ObjectMetadata())
    await place.write_index(b"{")
    assert await place.set_index_aside(7) == f"{INDEX_KEY}.corrupt-7"
