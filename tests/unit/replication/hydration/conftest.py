"""A bucket that fails as planned, and two hosts of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore

from .hosts import Host, StepClock


@pytest.fixture
def store() -> Iterator[FaultyStore]:
    faulty = FaultyStore(MemoryStore(StepClock()))
    yield faulty
    faulty.assert_all_used()


@pytest.fixture
def host(tmp_path: Path, store: FaultyStore) -> Iterator[Host]:
    made = Host(tmp_path / "a", store)
    yield made
    made.journal.close()


@pytest.fixture
def other(tmp_path: Path, store: FaultyStore) -> Iterator[Host]:
    made = Host(tmp_path / "b", store)
    yield made
    made.journal.close()
