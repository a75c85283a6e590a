"""One bucket and one author for each test."""

from __future__ import annotations

import pytest

from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.world import SETTINGS, Author, FencingOwner, HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def memory(clock: HandClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def author(memory: MemoryStore, clock: HandClock) -> Author:
    return Author(memory, clock)


@pytest.fixture
def store(memory: MemoryStore, clock: HandClock) -> TrioStore:
    return TrioStore(memory, clock, SETTINGS)


@pytest.fixture
def owner(store: TrioStore, clock: HandClock) -> FencingOwner:
    return FencingOwner(store, clock)
