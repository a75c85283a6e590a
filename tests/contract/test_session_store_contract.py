"""Every promise of a session store on every backend; what one is known to break is one row of one table.

Another backend is one more row of `FACTORIES`.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.sessions.object_place import open_object_place
from sessionfs.sessions.store import open_session_store
from sessionfs.sessions.store.place_session_store import PlaceSessionStore
from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import open_store
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.stores.probe import probe
from sessionfs.testing.contracts.promise import Promise
from sessionfs.testing.contracts.session_store import PROMISES, Backend
from sessionfs.testing.gcs_server import GcsServer
from sessionfs.testing.s3_servers import MotoServer, SeaweedServer
from tests.unit.sessions.dictionary_store import DictionaryStore

Stores = tuple[SessionStore, SessionStore]
Fresh = AbstractAsyncContextManager[Stores]

KNOWN_DEVIATIONS: dict[tuple[str, str], str] = {}
"""(backend, promise) -> why it does not hold there."""


@asynccontextmanager
async def _dictionary(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    store = DictionaryStore()
    yield store, store


@asynccontextmanager
async def _over(store: ObjectStore) -> AsyncIterator[Stores]:
    """Two hosts over one bucket."""
    clock = SystemClock()
    async with open_object_place(store, clock) as first, open_object_place(store, clock) as second:
        yield PlaceSessionStore(first, clock), PlaceSessionStore(second, clock)


def _memory(request: pytest.FixtureRequest) -> Fresh:
    return _over(MemoryStore())


@asynccontextmanager
async def _directory(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    path = str(request.getfixturevalue("tmp_path"))
    async with open_session_store(path) as first, open_session_store(path) as second:
        yield first, second


def _on_server(name: str) -> Callable[[pytest.FixtureRequest], Fresh]:
    return lambda request: _over(request.getfixturevalue("fresh_part")(name))


FACTORIES: dict[str, Callable[[pytest.FixtureRequest], Fresh]] = {
    "dictionary": _dictionary,
    "memory": _memory,
    "file": _directory,
    "moto": _on_server("moto_server"),
    "seaweedfs": _on_server("seaweed"),
    "gcs": _on_server("gcs_server"),
}
_NEED_A_SERVER = ("seaweedfs",)


@pytest.fixture(scope="module")
def fresh_part(request: pytest.FixtureRequest) -> Iterator[Callable[[str], ObjectStore]]:
    """Gives an empty part of a bucket of a server, which is opened and probed once."""
    buckets: dict[str, ObjectStore] = {}
    numbers = itertools.count()

    def fresh(name: str) -> ObjectStore:
        if name not in buckets:
            server: MotoServer | SeaweedServer | GcsServer = request.getfixturevalue(name)
            opened = open_store(server.fresh_bucket())
            buckets[name] = opened.with_capabilities(probe(opened, SystemClock()).capabilities)
        return PrefixedStore(buckets[name], f"part {next(numbers)}/", url=buckets[name].url)

    yield fresh
    for store in buckets.values():
        store.close()


@pytest.mark.parametrize("promise", PROMISES, ids=[promise.id for promise in PROMISES])
@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=[pytest.mark.s3] if name in _NEED_A_SERVER else []) for name in FACTORIES],
)
async def test_session_store_keeps_its_promise(
    backend: str,
    promise: Promise[Backend],
    request: pytest.FixtureRequest,
    fresh_part: Callable[[str], ObjectStore],
) -> None:
    async with FACTORIES[backend](request) as stores:
        if (backend, promise.id) not in KNOWN_DEVIATIONS:
            await promise.check(stores)
            return
        # A deviation that is gone must leave the table.
        with pytest.raises(Exception):  # noqa: B017, PT011 - however it fails
            await promise.check(stores)


def test_promise_ids_are_unique_and_deviations_name_promises() -> None:
    ids = [promise.id for promise in PROMISES]
    assert len(set(ids)) == len(ids)
    assert {promise for _, promise in KNOWN_DEVIATIONS} <= set(ids)
