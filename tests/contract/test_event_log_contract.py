"""Every promise of event logs on every place; a row more for every place that comes."""

from __future__ import annotations

from functools import partial

import pytest

from sessionfs.sessions.event_log import stored_log
from sessionfs.stores.open_store import open_store
from sessionfs.stores.prefixed import PrefixedStore
from sessionfs.testing.contracts import event_log
from sessionfs.testing.contracts.__main__ import failures
from sessionfs.testing.contracts.event_log import TwoPlaces
from sessionfs.testing.contracts.promise import Factory, Promise
from sessionfs.testing.gcs_server import GcsServer
from sessionfs.testing.s3_servers import MotoServer, SeaweedServer


@pytest.fixture(params=["memory", "file", "moto", "gcs", pytest.param("seaweedfs", marks=pytest.mark.s3)])
def factory(request: pytest.FixtureRequest) -> Factory[TwoPlaces]:
    """Gives two hosts on a fresh, empty place."""
    if request.param in {"memory", "file"}:
        return {"memory": event_log.memory_backend, "file": event_log.file_backend}[request.param]
    url: str = request.getfixturevalue(f"{request.param}_url")
    # A prefix of its own is a fresh, empty place, and cheaper than a bucket.
    return partial(event_log.two_places, PrefixedStore(open_store(url), f"{request.node.name}/", url=url))


@pytest.fixture(scope="module")
def seaweedfs_url(seaweed: SeaweedServer) -> str:
    return seaweed.fresh_bucket()


@pytest.fixture(scope="module")
def moto_url(moto_server: MotoServer) -> str:
    return moto_server.fresh_bucket()


@pytest.fixture(scope="module")
def gcs_url(gcs_server: GcsServer) -> str:
    return gcs_server.fresh_bucket()


@pytest.mark.parametrize("promise", event_log.PROMISES, ids=[promise.id for promise in event_log.PROMISES])
async def test_a_place_keeps_its_promise(factory: Factory[TwoPlaces], promise: Promise[TwoPlaces]) -> None:
    async with factory() as places:
        await promise.check(places)


async def test_the_suite_sees_a_reader_that_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = stored_log.StoredLog.refresh

    async def refresh_anew(log: stored_log.StoredLog) -> None:
        log.__init__(log._files, log._found)  # type: ignore[misc]
        await refresh(log)

    monkeypatch.setattr(stored_log.StoredLog, "refresh", refresh_anew)
    promises = tuple(one for one in event_log.PROMISES if one.id in {"flush", "never-back"})
    assert set(await failures(promises, event_log.memory_backend)) == {"never-back"}


def test_the_ids_of_the_promises_are_unique() -> None:
    assert len({promise.id for promise in event_log.PROMISES}) == len(event_log.PROMISES)
