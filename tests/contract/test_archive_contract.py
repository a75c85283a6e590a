"""Every promise of an archive's place on every store; a row more for every store that comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from sessionfs.model.errors import StoreRefusedError
from sessionfs.sessions.archive.objects import Objects
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import open_store
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.testing.contracts import archive
from sessionfs.testing.contracts.__main__ import failures
from sessionfs.testing.contracts.promise import Factory, Promise
from sessionfs.testing.gcs_server import GcsServer
from sessionfs.testing.s3_servers import MotoServer, SeaweedServer


def _open_memory(_request: pytest.FixtureRequest) -> ObjectStore:
    return MemoryStore()


def _open_file(request: pytest.FixtureRequest) -> ObjectStore:
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    return open_store(str(factory.mktemp("archive")))


def _open_moto(request: pytest.FixtureRequest) -> ObjectStore:
    server: MotoServer = request.getfixturevalue("moto_server")
    return open_store(server.fresh_bucket())


def _open_seaweed(request: pytest.FixtureRequest) -> ObjectStore:
    server: SeaweedServer = request.getfixturevalue("seaweed")
    return open_store(server.fresh_bucket())


def _open_gcs(request: pytest.FixtureRequest) -> ObjectStore:
    server: GcsServer = request.getfixturevalue("gcs_server")
    return open_store(server.fresh_bucket())


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(_open_memory, id="memory"),
        pytest.param(_open_file, id="file"),
        pytest.param(_open_moto, id="moto"),
        pytest.param(_open_gcs, id="gcs"),
        pytest.param(_open_seaweed, id="seaweedfs", marks=pytest.mark.s3),
    ],
)
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    opener: Callable[[pytest.FixtureRequest], ObjectStore] = request.param
    opened = opener(request)
    yield opened
    opened.close()


@pytest.mark.parametrize("promise", archive.PROMISES, ids=[promise.id for promise in archive.PROMISES])
async def test_a_place_keeps_its_promise(store: ObjectStore, promise: Promise[Objects]) -> None:
    # A prefix of its own is a fresh, empty place, and cheaper than a bucket.
    await promise.check(archive.objects_of(PrefixedStore(store, f"{promise.id}/", url=store.url)))


@pytest.mark.parametrize("shipped", [archive.memory_backend, archive.file_backend])
async def test_the_factories_that_are_shipped_keep_every_promise(shipped: Factory[Objects]) -> None:
    assert await failures(archive.PROMISES, shipped) == {}


class DictionaryObjects(Objects):
    """A place that believes everybody: no rule is kept."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}

    async def put(self, key: str, body: bytes, *, immutable: bool) -> None:  # noqa: ARG002 - the port's
        self.bodies[key] = body

    async def get(self, key: str) -> bytes:
        return self.bodies.get(key, b"")

    async def swap(self, key: str, body: bytes, *, old: bytes | None) -> None:  # noqa: ARG002 - the port's
        self.bodies[key] = body


async def test_a_place_without_rules_breaks_the_promises_about_them() -> None:
    @asynccontextmanager
    async def backend() -> AsyncIterator[Objects]:
        yield DictionaryObjects()

    broken = await failures(archive.PROMISES, backend)
    assert set(broken) >= {"missing", "immutable", "immutable-race", "swap", "swap-race"}
    assert set(broken) >= {"too-large", "bad-keys", "two-publishers"}
    assert {"mutable", "round-trip"}.isdisjoint(broken)


def test_a_store_that_takes_no_condition_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(StoreRefusedError):
        archive.objects_of(store.with_capabilities(replace(store.capabilities, conditional_put=False)))
