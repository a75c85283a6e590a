"""Every promise on every store; what a server is known to break is one row of one table."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import StoreRefusedError
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.contract import KNOWN_DEVIATIONS, PROMISES, Promise, check, run
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import open_store
from sessionfs.stores.probe import probe
from sessionfs.testing.gcs_server import GcsServer
from sessionfs.testing.s3_servers import CREDENTIALS, MotoServer, SeaweedServer

CLOCK = SystemClock()
USERS_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name.startswith(("SESSIONFS_", "AWS_"))
}


def _needs_server(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.s3)


def _probed(url: str) -> ObjectStore:
    store = open_store(url)
    return store.with_capabilities(probe(store, CLOCK).capabilities)


@pytest.fixture(
    scope="module",
    params=[
        "memory",
        "file",
        "moto",
        "gcs",
        "gcs-fallbacks",
        _needs_server("seaweedfs"),
        _needs_server("seaweedfs-unprobed"),
        _needs_server("seaweedfs-fallbacks"),
        _needs_server("seaweedfs-prefixed"),
        *(["user"] if os.environ.get("SESSIONFS_TEST_S3_URL") else []),
    ],
)
def named_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ObjectStore]]:
    name: str = request.param
    store: ObjectStore
    if name == "memory":
        store = MemoryStore()
    elif name == "file":
        store = open_store(str(tmp_path_factory.mktemp("store")))
    elif name == "user":
        with pytest.MonkeyPatch.context() as patch:
            # The test servers' credentials are in the environment by now; this bucket wants its own.
            for credential in CREDENTIALS:
                patch.delenv(credential, raising=False)
            for variable, value in USERS_ENVIRONMENT.items():
                patch.setenv(variable, value)
            store = _probed(os.environ["SESSIONFS_TEST_S3_URL"])
    elif name == "moto":
        moto: MotoServer = request.getfixturevalue("moto_server")
        store = _probed(moto.fresh_bucket())
    elif name.startswith("gcs"):
        gcs: GcsServer = request.getfixturevalue("gcs_server")
        store = _gcs_store(name, gcs.fresh_bucket())
    else:
        seaweed: SeaweedServer = request.getfixturevalue("seaweed")
        store = _seaweed_store(name, seaweed.fresh_bucket())
    yield name, store
    assert [stat.key for page in store.list_all("probe/") for stat in page.objects] == [], "objects were left"
    store.close()


def _seaweed_store(name: str, url: str) -> ObjectStore:
    if name == "seaweedfs-prefixed":
        url = url.replace("?", "/a prefix/of two?", 1)
    if name in {"seaweedfs-unprobed", "seaweedfs-prefixed"}:
        return open_store(url)
    store = _probed(url)
    return _with_fallbacks(store) if name == "seaweedfs-fallbacks" else store


def _gcs_store(name: str, url: str) -> ObjectStore:
    store = _probed(url)
    return _with_fallbacks(store) if name == "gcs-fallbacks" else store


def _with_fallbacks(store: ObjectStore) -> ObjectStore:
    fewer = replace(
        store.capabilities,
        conditional_delete=False,
        conditional_copy=False,
        copy_source_match=False,
        conditional_complete=False,
        append_by_copy=False,
    )
    return store.with_capabilities(fewer)


@pytest.mark.parametrize("promise", PROMISES, ids=[promise.id for promise in PROMISES])
def test_store_keeps_its_promise(named_store: tuple[str, ObjectStore], promise: Promise) -> None:
    name, store = named_store
    server = name.partition("-")[0]
    if (server, promise.id) not in KNOWN_DEVIATIONS:
        check(promise, store, CLOCK)
        return
    # A deviation that is gone must leave the table.
    with pytest.raises(StoreRefusedError):
        check(promise, store, CLOCK)


def test_promise_ids_are_unique_and_deviations_name_promises() -> None:
    ids = [promise.id for promise in PROMISES]
    assert len(set(ids)) == len(ids)
    assert {promise for _, promise in KNOWN_DEVIATIONS} <= set(ids)


def test_contract_reports_a_broken_promise_and_goes_on() -> None:
    class ForgetfulStore(MemoryStore):
        def delete(self, key: str, *, condition: object) -> None:
            del key, condition

    outcomes = {outcome.promise.id: outcome for outcome in run(ForgetfulStore(), CLOCK)}
    assert len(outcomes) == len(PROMISES)
    assert not outcomes["delete"].holds
    assert outcomes["put-round-trip"].holds


@pytest.mark.parametrize("sdk", ["boto3", "botocore", "google", "requests"])
def test_opening_another_store_never_imports_an_sdk(sdk: str, tmp_path: object) -> None:
    program = (
        "import sys; from sessionfs.stores.open_store import open_store; open_store(sys.argv[1]); "
        "import sessionfs.stores.probe, sessionfs.stores.contract; "
        "sys.exit(any(name.split('.')[0] == sys.argv[2] for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path), sdk], check=True, timeout=60)
