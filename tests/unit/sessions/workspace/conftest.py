"""The places that workspaces are tried on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.port import SessionPlace
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import open_store
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.stores.probe import probe
from sessionfs.testing.s3_servers import SeaweedServer

from .world import Heard, MemoryPlace


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture(scope="session")
def seaweed_part(seaweed: SeaweedServer) -> Iterator[Callable[[], ObjectStore]]:
    """Gives an empty part of a bucket of a real server, which is opened and probed once."""
    opened = open_store(seaweed.fresh_bucket())
    probed = opened.with_capabilities(probe(opened, SystemClock()).capabilities)
    numbers = itertools.count()
    yield lambda: PrefixedStore(probed, f"part {next(numbers)}/", url=probed.url)
    probed.close()


@pytest.fixture(params=["dictionary", "memory", "file", pytest.param("seaweed", marks=pytest.mark.s3)])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionPlace]:
    """A place with nothing in it."""
    store: ObjectStore
    if request.param == "dictionary":
        yield MemoryPlace()
        return
    if request.param == "memory":
        store = MemoryStore()
    elif request.param == "file":
        (tmp_path / "store").mkdir()
        store = LocalDirectoryStore(str(tmp_path / "store"))
    else:
        part: Callable[[], ObjectStore] = request.getfixturevalue("seaweed_part")
        store = part()
    async with open_object_place(store, SystemClock()) as opened:
        yield opened
