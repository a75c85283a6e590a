"""Where the bytes of a generation are, cheapest first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys
from sessionfs.replication.hydration.manifest_chain import ManifestChain, NewerGenerations
from sessionfs.replication.hydration.named_content import NamedContent, Source
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.world import SETTINGS, Author, HandClock, S, sha

LIVE = "sessions/s/f"


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore(HandClock())


@pytest.fixture
def author(memory: MemoryStore) -> Author:
    return Author(memory, HandClock())


@pytest.fixture
def store(memory: MemoryStore) -> TrioStore:
    return TrioStore(memory, HandClock(), SETTINGS)


def entry_of(author: Author, body: bytes) -> ManifestEntry:
    return author.commit({b"f": body}).entries[1]


async def all_of(
    store: TrioStore, entry: ManifestEntry, newer: NewerGenerations | None = None
) -> list[Source]:
    return [source async for source in NamedContent(store).candidates(S, entry, newer)]


async def test_the_first_guess_costs_no_request(author: Author, store: TrioStore) -> None:
    entry = entry_of(author, b"abc")
    first = await anext(NamedContent(store).candidates(S, entry))
    assert first == Source(LIVE, entry.token, 3)
    assert sum(store.requests.values()) == 0


async def test_the_live_object_counts_when_its_own_sum_says_so(author: Author, store: TrioStore) -> None:
    entry = entry_of(author, b"abc")
    token = author.write(b"f", b"abc")
    assert (await all_of(store, entry))[:2] == [
        Source(LIVE, entry.token, 3),
        Source(LIVE, token, 3, is_whole=True),
    ]


async def test_a_longer_live_object_may_begin_with_the_bytes(author: Author, store: TrioStore) -> None:
    entry = entry_of(author, b"abc")
    token = author.write(b"f", b"abcdef")
    assert Source(LIVE, token, 3) in await all_of(store, entry)


async def test_another_object_of_the_same_length_is_no_source(author: Author, store: TrioStore) -> None:
    entry = entry_of(author, b"abc")
    author.write(b"f", b"xyz")
    assert [source.key for source in await all_of(store, entry)][1:] == [keys.content_key(S, sha(b"abc"))]


async def test_bytes_kept_by_their_content_and_by_an_alias_are_found(
    author: Author, memory: MemoryStore, store: TrioStore
) -> None:
    entry = entry_of(author, b"abc")
    author.write(b"f", b"abcdef")
    author.commit({b"f": b"new"})
    whole = keys.content_key(S, sha(b"abcdef"))
    assert (await all_of(store, entry))[-2:] == [
        Source(keys.content_key(S, sha(b"abc")), "", 3),
        Source(whole, "", 3),
    ]


async def test_a_broken_alias_is_no_source(author: Author, memory: MemoryStore, store: TrioStore) -> None:
    entry = entry_of(author, b"abc")
    key = keys.alias_key(S, sha(b"abc"))
    memory.put(key, b"{", condition=Unconditional(), metadata=ObjectMetadata())
    assert all(source.key != key for source in await all_of(store, entry))


async def test_newer_generations_are_read_only_when_nothing_else_has_the_bytes(
    author: Author, store: TrioStore
) -> None:
    entry = entry_of(author, b"a")
    entry_of(author, b"ab")
    entry_of(author, b"abc")
    author.commit({b"f": b"new"}, aliases=False)
    newer = NewerGenerations(ManifestChain(store), S, 1)
    found = NamedContent(store).candidates(S, entry, newer)
    before_newer = [await anext(found) for _ in range(2)]
    assert [source.key for source in before_newer] == [LIVE, LIVE] or store.requests["list"] == 0
    rest = [source async for source in found]
    assert Source(keys.content_key(S, sha(b"abc")), "", 1) in rest
    reads = store.requests["get"]
    assert [source async for source in NamedContent(store).candidates(S, entry, newer)]
    # The manifests are kept; only the aliases are asked for again.
    assert store.requests["list"] == 1
    assert store.requests["get"] - reads <= 4


async def test_a_file_that_a_newer_generation_has_shorter_is_no_source(
    author: Author, store: TrioStore
) -> None:
    entry = entry_of(author, b"abc")
    entry_of(author, b"x")
    newer = NewerGenerations(ManifestChain(store), S, 1)
    assert all(sha(b"x") not in source.key for source in await all_of(store, entry, newer))


async def test_an_entry_without_a_sum_is_the_live_object_as_it_is(author: Author, store: TrioStore) -> None:
    entry = entry_of(author, b"abc")
    token = author.write(b"f", b"anything")
    unknown = replace(entry, sha256="", size_bytes=0)
    assert await all_of(store, unknown) == [Source(LIVE, token, 8, is_whole=True)]


async def test_a_listing_spares_every_request_for_an_object_that_did_not_move(
    author: Author, store: TrioStore
) -> None:
    entry = entry_of(author, b"abc")
    listed, _ = await store.list_all("sessions/s/", whole_segments=False)
    live = {found.key: found for found in listed}
    before = sum(store.requests.values())
    found = await NamedContent(store).whole_source(S, entry, live=live)
    assert found == Source(LIVE, entry.token, 3, is_whole=True)
    assert sum(store.requests.values()) == before


async def test_only_whole_objects_are_sources_of_copies(author: Author, store: TrioStore) -> None:
    entry = entry_of(author, b"abc")
    author.write(b"f", b"abcdef")
    assert await NamedContent(store).whole_source(S, entry) is None
    author.commit({b"f": b"abcdef"})
    author.commit({b"f": b"new"})
    assert await NamedContent(store).whole_source(S, entry) is None
    second = (await ManifestChain(store).read(S, 2)).entries[1]
    found = await NamedContent(store).whole_source(S, second)
    assert found is not None
    assert (found.key, found.is_whole) == (keys.content_key(S, sha(b"abcdef")), True)
    assert found.token
    assert await NamedContent(store).whole_source(S, second, excluded=frozenset({found})) is None


async def test_a_path_without_a_key_is_looked_for_by_its_content_alone(
    store: TrioStore, author: Author
) -> None:
    path = b"/".join([b"x" * 250] * 5)
    author.commit({path: b"far"})
    entry = next(entry for entry in (await ManifestChain(store).read(S, 1)).entries if entry.path == path)
    assert await all_of(store, entry) == [Source(keys.content_key(S, sha(b"far")), "", 3)]
