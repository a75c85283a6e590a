"""A command owns a session as a host does, and leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.formats import ownership
from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import NotFoundError, SessionAlreadyOwnedError
from sessionfs.model.names import session_id
from sessionfs.replication.maintenance.collecting.garbage import Garbage
from sessionfs.replication.maintenance.command_ownership import command_ownership
from sessionfs.replication.maintenance.fork import Fork
from sessionfs.replication.maintenance.holding import holding
from sessionfs.replication.maintenance.in_place import InPlaceRestoration
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.world import SETTINGS, Author, S, all_objects, hydrate, tree_of

CLOCK = SystemClock()


def store_of(memory: MemoryStore) -> TrioStore:
    return TrioStore(memory, CLOCK, SETTINGS)


def record_of(memory: MemoryStore, session: str = "s") -> ownership.OwnerRecord:
    key = keys.owner_key(session_id(session))
    return ownership.decode_owner(all_objects(memory)[key], key)


async def test_restore_fork_and_gc_own_their_session_and_release_it(
    author: Author, memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = tree_of(author.commit({b"f": b"1"}), author)
    author.commit({b"f": b"2"})
    store = store_of(memory)
    async with command_ownership(store, SETTINGS, CLOCK, host="here") as owner:
        await InPlaceRestoration(store, owner, CLOCK, SETTINGS).restore(S, 1)
        assert record_of(memory).state == "released"
        await Fork(store, owner, CLOCK, SETTINGS).fork(S, session_id("new"))
        await Garbage(store, owner, CLOCK, SETTINGS).collect(S)
    assert await hydrate(memory) == (3, first)
    assert await hydrate(memory, session_id("new")) == (1, first)
    assert (record_of(memory, "new").epoch, record_of(memory, "new").state) == (1, "released")
    assert record_of(memory).state == "released"
    assert not [key for key in all_objects(memory) if key.startswith(("hosts/", "probe/"))]
    assert os.listdir(tmp_path) == []


async def test_a_session_that_another_command_works_on_is_refused_until_it_is_done(
    author: Author, memory: MemoryStore
) -> None:
    author.commit({b"f": b"1"})
    author.commit({b"f": b"2"})
    store, other = store_of(memory), store_of(memory)
    async with (
        command_ownership(store, SETTINGS, CLOCK, host="one") as one,
        command_ownership(other, SETTINGS, CLOCK, host="two") as two,
    ):
        restoration = InPlaceRestoration(other, two, CLOCK, SETTINGS)
        async with holding(one, S):
            with pytest.raises(SessionAlreadyOwnedError, match="one"):
                await restoration.restore(S, 1)
        assert (await restoration.restore(S, 1)).generation == 3


async def test_work_that_failed_releases_too(author: Author, memory: MemoryStore) -> None:
    author.commit({b"f": b"1"})
    author.commit({b"f": b"2"})
    store = store_of(memory)
    async with command_ownership(store, SETTINGS, CLOCK, host="here") as owner:
        for _ in range(2):
            with pytest.raises(NotFoundError, match="of the work"):
                async with holding(owner, S):
                    raise NotFoundError("of the work")
        assert record_of(memory).state == "released"


async def test_a_holder_that_gives_no_sign_of_life_is_waited_for(author: Author, memory: MemoryStore) -> None:
    """A command that was killed leaves its session held: the next run must not be refused for ever."""
    author.commit({b"f": b"1"})
    record = ownership.OwnerRecord(session="s", holder="dead", epoch=40, beat=keys.beat_key("dead"))
    memory.put(
        keys.owner_key(S), ownership.encode(record), condition=Unconditional(), metadata=ObjectMetadata()
    )
    quick = msgspec.structs.replace(SETTINGS, lease_seconds=0.4, beat_interval_seconds=0.1)
    heard: list[str] = []
    store = store_of(memory)
    async with command_ownership(store, quick, CLOCK, host="here", on_wait=heard.append) as owner:
        with trio.fail_after(10):
            claim = await owner.claim(S)
        assert claim.epoch == 41
    assert heard
    assert "dead" in heard[0]


async def test_a_holder_that_lives_is_not_waited_for(author: Author, memory: MemoryStore) -> None:
    author.commit({b"f": b"1"})
    quick = msgspec.structs.replace(SETTINGS, lease_seconds=5.0, beat_interval_seconds=0.1)
    heard: list[str] = []
    async with (
        command_ownership(store_of(memory), quick, CLOCK, host="one") as one,
        command_ownership(store_of(memory), quick, CLOCK, host="two", on_wait=heard.append) as two,
    ):
        await one.claim(S)
        began = trio.current_time()
        with pytest.raises(SessionAlreadyOwnedError):
            await two.claim(S)
        assert trio.current_time() - began < 2.0
        assert len(heard) == 1
