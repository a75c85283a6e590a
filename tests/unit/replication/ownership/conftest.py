"""Two machines over one bucket; every planned fault must happen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.stores.base import ObjectStore
from sessionfs.stores.memory import MemoryStore

from .machines import Bucket, Machine


@pytest.fixture
def store() -> ObjectStore:
    return MemoryStore()


@pytest.fixture
def bucket(store: ObjectStore) -> Bucket:
    return Bucket(store)


@pytest.fixture
def a(tmp_path: Path, store: ObjectStore) -> Iterator[Machine]:
    machine = Machine(tmp_path / "a", "a", store)
    yield machine
    machine.close()
    machine.store.assert_all_used()


@pytest.fixture
def b(tmp_path: Path, store: ObjectStore) -> Iterator[Machine]:
    machine = Machine(tmp_path / "b", "b", store, hours_ahead=1)
    yield machine
    machine.close()
    machine.store.assert_all_used()
