"""Every promise of a catalogue on every catalogue, and of a shared index on every index; none has a known deviation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.names import SessionId
from sessionfs.sessions.catalogue.port import Catalogue, SessionIndex
from sessionfs.sessions.catalogue.postgres_connection import PostgresSettings
from sessionfs.sessions.catalogue.postgres_index import PostgresIndex
from sessionfs.sessions.catalogue.record import Records, SessionRecord
from sessionfs.sessions.catalogue.sqlite_catalogue import SqliteCatalogue
from sessionfs.testing.contracts.__main__ import failures
from sessionfs.testing.contracts.catalogue import INDEX_PROMISES, PROMISES
from sessionfs.testing.contracts.promise import Promise
from sessionfs.testing.postgres_server import PostgresServer


@pytest.mark.parametrize("promise", PROMISES, ids=[promise.id for promise in PROMISES])
async def test_the_sqlite_catalogue_keeps_its_promise(promise: Promise[Catalogue], tmp_path: Path) -> None:
    async with await SqliteCatalogue.open(tmp_path / "catalogue.db", SystemClock()) as catalogue:
        await promise.check(catalogue)


@pytest.mark.postgres
@pytest.mark.parametrize("promise", INDEX_PROMISES, ids=[promise.id for promise in INDEX_PROMISES])
async def test_the_postgres_index_keeps_its_promise(
    promise: Promise[SessionIndex], postgres_server: PostgresServer
) -> None:
    settings = PostgresSettings(postgres_server.url(), schema=postgres_server.fresh_schema())
    async with await PostgresIndex.open(settings) as index:
        await promise.check(index)


@pytest.mark.parametrize("suite", [PROMISES, INDEX_PROMISES], ids=["catalogue", "index"])
def test_promise_ids_are_unique(suite: tuple[Promise[Any], ...]) -> None:
    ids = [promise.id for promise in suite]
    assert len(set(ids)) == len(ids)


async def test_a_catalogue_that_forgets_whose_a_session_is_breaks_the_promises_of_tenancy(
    tmp_path: Path,
) -> None:
    class Careless(SqliteCatalogue):
        async def get(self, tenant: str, session: SessionId) -> SessionRecord:
            everything = {one.id: one for one in await self.scan("", 1000)}
            return everything.get(session) or await super().get(tenant, session)

        async def list(self, tenant: str, after: str = "", limit: int = 100) -> Records:
            await super().list(tenant, after, limit)
            return await self.scan(after, limit)

    numbers = iter(range(1000))

    @asynccontextmanager
    async def careless() -> AsyncIterator[Catalogue]:
        async with await Careless.open(tmp_path / f"{next(numbers)}.db", SystemClock()) as catalogue:
            yield catalogue

    broken = await failures(PROMISES, careless)
    assert "tenants-apart" in broken
    assert "create-twice" not in broken
