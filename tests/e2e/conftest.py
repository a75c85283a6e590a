"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sessionfs.testing.s3_servers import ACCESS_KEY_ID, CREDENTIALS, SECRET_ACCESS_KEY, SeaweedServer

from .rig import FAST, Bucket, Host

MakeHost = Callable[..., Host]


@pytest.fixture(scope="session")
def shared_bucket(seaweed: SeaweedServer) -> str:
    """A bucket of a real server: a new one for each test would cost seconds."""
    return seaweed.fresh_bucket()


@pytest.fixture
def store_url(shared_bucket: str) -> str:
    """A store of this test's own: an empty prefix."""
    head, _, query = shared_bucket.partition("?")
    return f"{head}/{uuid.uuid4().hex}?{query}"


@pytest.fixture
def bucket(store_url: str) -> Bucket:
    """The same bucket, seen by another client."""
    return Bucket(store_url, ACCESS_KEY_ID, SECRET_ACCESS_KEY)


@pytest.fixture
def make_host(tmp_path: Path, store_url: str) -> Iterator[MakeHost]:
    """Makes hosts of the store; cleans them up."""
    made: list[Host] = []

    def make(name: str = "a", store: str = "", **environment: str) -> Host:
        host = Host(store or store_url, tmp_path / name, {**CREDENTIALS, **environment})
        made.append(host)
        return host

    yield make
    for host in made:
        host.clean_up()


@pytest.fixture(scope="session")
def probe_record() -> bytearray:
    """What the first of the fast hosts found that SeaweedFS can do."""
    return bytearray()


@pytest.fixture
def make_fast_host(make_host: MakeHost, probe_record: bytearray) -> MakeHost:
    """Makes hosts that take over from one another within seconds; only the first of all probes the server, which takes some."""

    def make(name: str = "a", store: str = "", **environment: str) -> Host:
        made = make_host(name, store, **(FAST | environment))
        made.probe_record = probe_record
        return made

    return make


@pytest.fixture
def host(make_host: MakeHost) -> Host:
    """One mounted host."""
    made = make_host()
    made.mount()
    return made
