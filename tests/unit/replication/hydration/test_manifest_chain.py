"""The chain of generations, as it is read."""

from __future__ import annotations

import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, NotFoundError
from sessionfs.replication.hydration.manifest_chain import ManifestChain, abandoned
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.world import SETTINGS, Author, HandClock, S


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(HandClock())


@pytest.fixture
def author(memory: MemoryStore) -> Author:
    return Author(memory, HandClock())


@pytest.fixture
def chain(memory: MemoryStore) -> ManifestChain:
    return ManifestChain(TrioStore(memory, HandClock(), SETTINGS))


def put(memory: MemoryStore, key: str, manifest: Manifest | None) -> None:
    raw = manifests.encode(manifest)[0] if manifest is not None else b"{"
    memory.put(key, raw, condition=Unconditional(), metadata=ObjectMetadata())


async def test_every_generation_is_listed_with_its_state(
    author: Author, memory: MemoryStore, chain: ManifestChain
) -> None:
    for number in (1, 2, 5, 6):
        author.number = number - 1
        author.commit({b"f": b"%d" % number})
    put(memory, keys.generation_key(S, 5), Manifest(S, 5, previous=2))
    put(memory, keys.generation_key(S, 3), Manifest(S, 3, previous=2))
    put(memory, keys.generation_key(S, 7), Manifest(S, 7, previous=6))
    put(memory, keys.generation_key(S, 2), None)
    memory.copy(
        keys.generation_key(S, 1),
        keys.retired_key(S, 1),
        source_token=memory.head(keys.generation_key(S, 1)).token,
        condition=Unconditional(),
        metadata=ObjectMetadata(),
    )
    memory.delete(keys.generation_key(S, 1), condition=Unconditional())
    assert [(one.number, one.state) for one in await chain.generations(S)] == [
        (1, "retired"),
        (2, "unreadable"),
        (3, "unfinished"),
        (5, "kept"),
        (6, "newest"),
        (7, "unfinished"),
    ]


async def test_a_session_without_manifests_has_no_generations(chain: ManifestChain) -> None:
    assert await chain.generations(S) == []
    assert await chain.newest(S) is None


async def test_the_newest_generation_is_read_from_either_of_its_two_objects(
    author: Author, memory: MemoryStore, chain: ManifestChain
) -> None:
    wanted = author.commit({b"f": b"1"})
    put(memory, keys.generation_key(S, 1), None)
    assert await chain.read(S, 1) == wanted
    memory.delete(keys.generation_key(S, 1), condition=Unconditional())
    assert await chain.read(S, 1) == wanted
    put(memory, keys.manifest_key(S), None)
    with pytest.raises(CorruptDataError, match=r"manifest\.json"):
        await chain.newest(S)
    # It may have been the one: that is not known.
    with pytest.raises(CorruptDataError, match=r"manifest\.json"):
        await chain.read(S, 1)


async def test_a_generation_that_is_nowhere_is_not_found(author: Author, chain: ManifestChain) -> None:
    author.commit({b"f": b"1"})
    with pytest.raises(NotFoundError, match="no generation 4"):
        await chain.read(S, 4)


async def test_a_past_generation_that_cannot_be_read_is_named(
    author: Author, memory: MemoryStore, chain: ManifestChain
) -> None:
    author.commit({b"f": b"1"})
    author.commit({b"f": b"2"})
    put(memory, keys.generation_key(S, 1), None)
    with pytest.raises(CorruptDataError, match=r"s\.manifest/0000000001\.json"):
        await chain.read(S, 1)


@pytest.mark.parametrize("manifest", [Manifest("other", 1), Manifest(S, 9)])
async def test_a_manifest_in_the_wrong_place_is_refused(
    manifest: Manifest, author: Author, memory: MemoryStore, chain: ManifestChain
) -> None:
    author.commit({b"f": b"1"})
    author.commit({b"f": b"2"})
    put(memory, keys.generation_key(S, 1), manifest)
    with pytest.raises(CorruptDataError, match=r"is (a|the) manifest of"):
        await chain.read(S, 1)


def test_numbers_that_the_chain_leaves_out_were_never_committed() -> None:
    found = {
        number: Manifest(S, number, previous=previous)
        for number, previous in {1: 0, 2: 1, 3: 1, 6: 3}.items()
    }
    newest = Manifest(S, 8, previous=6)
    assert abandoned(found, newest) == {2}
    assert abandoned({**found, 7: Manifest(S, 7, previous=6)}, newest) == {2, 7}
    # Where the chain is broken nothing below is called unfinished.
    del found[3]
    assert abandoned(found, newest) == frozenset()
    assert abandoned({1: Manifest(S, 1)}, Manifest(S, 2, format=0)) == frozenset()
