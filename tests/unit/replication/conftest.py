"""A bucket, and the host that made the session in it, for tests of sessions as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.commit.control_world import ControlWorld


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def a(tmp_path: Path, store: MemoryStore) -> ControlWorld:
    """The host that made the session."""
    made = ControlWorld(tmp_path / "a", store)
    made.write(b"f", b"of a")
    return made
