"""What is PostgreSQL's own: the connection, its loss, credentials, versions, several hosts."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
import trio

from sessionfs.model.errors import (
    AccessError,
    CorruptDataError,
    SessionFSError,
    SettingsError,
    StoreRefusedError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.model.names import session_id
from sessionfs.sessions.catalogue import postgres_connection
from sessionfs.sessions.catalogue.postgres_connection import PostgresSettings
from sessionfs.sessions.catalogue.postgres_index import PostgresIndex
from sessionfs.testing.contracts.catalogue import ACME, example
from sessionfs.testing.postgres_server import PASSWORD, USER, PostgresServer

pytestmark = pytest.mark.postgres

S1 = session_id("s1")
FIRST = example(revision=1)


@pytest.fixture
def settings(postgres_server: PostgresServer) -> PostgresSettings:
    return PostgresSettings(postgres_server.url(), schema=postgres_server.fresh_schema())


@pytest.fixture
def admin(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        yield connection


def _run(
    admin: psycopg.Connection[tuple[object, ...]], statement: str, settings: PostgresSettings | None = None
) -> list[tuple[object, ...]]:
    cursor = admin.execute((statement.format(schema=settings.schema) if settings else statement).encode())
    return cursor.fetchall() if cursor.description else []


def _whole_text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


async def test_hosts_that_start_at_once_make_the_tables_once(settings: PostgresSettings) -> None:
    opened: list[PostgresIndex] = []

    async def start() -> None:
        opened.append(await PostgresIndex.open(settings))

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(start)
    assert await opened[0].put(FIRST)
    assert [await index.get(ACME, S1) for index in opened] == [FIRST] * 8
    for index in opened:
        await index.close()


async def test_tables_of_a_newer_version_are_refused_and_left_as_they_are(
    settings: PostgresSettings, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    async with await PostgresIndex.open(settings) as index:
        await index.put(FIRST)
    before = _run(admin, "TABLE {schema}.catalogue_sessions", settings)
    _run(admin, "UPDATE {schema}.catalogue_format SET version = 2", settings)
    with pytest.raises(UnsupportedFormatError) as refusal:
        await PostgresIndex.open(settings)
    assert (refusal.value.found, refusal.value.supported) == (2, 1)
    assert _run(admin, "TABLE {schema}.catalogue_sessions", settings) == before
    _run(admin, "DELETE FROM {schema}.catalogue_format", settings)
    with pytest.raises(CorruptDataError):
        await PostgresIndex.open(settings)


async def test_a_version_that_became_newer_is_seen_by_the_next_connection(
    settings: PostgresSettings, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    async with await PostgresIndex.open(settings) as index:
        _run(admin, "UPDATE {schema}.catalogue_format SET version = 2", settings)
        _cut_connections(admin)
        with pytest.raises(UnavailableError):
            await index.put(FIRST)
        with pytest.raises(UnsupportedFormatError):
            await index.put(FIRST)


async def test_other_tables_of_these_names_are_named_as_such(
    settings: PostgresSettings, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    async with await PostgresIndex.open(settings) as index:
        _run(admin, f"ALTER TABLE {settings.schema}.catalogue_sessions DROP COLUMN title")
        with pytest.raises(CorruptDataError):
            await index.get(ACME, S1)


async def test_a_user_that_may_only_read_and_write_uses_tables_that_are_there(
    settings: PostgresSettings,
    admin: psycopg.Connection[tuple[object, ...]],
    postgres_server: PostgresServer,
) -> None:
    user = f"user_{settings.schema}"
    _run(admin, f"CREATE ROLE {user} LOGIN PASSWORD 'narrow'")
    narrow = PostgresSettings(postgres_server.url(user=user, password="narrow"), schema=settings.schema)
    with pytest.raises(AccessError, match="42501"):
        await PostgresIndex.open(narrow)
    async with await PostgresIndex.open(settings) as index:
        await index.put(FIRST)
    _run(admin, f"GRANT USAGE ON SCHEMA {settings.schema} TO {user}")
    _run(admin, f"GRANT SELECT ON ALL TABLES IN SCHEMA {settings.schema} TO {user}")
    async with await PostgresIndex.open(narrow) as index:
        assert await index.get(ACME, S1) == FIRST
        with pytest.raises(AccessError, match="42501"):
            await index.put(example(revision=2))
        _run(admin, f"GRANT INSERT, UPDATE ON {settings.schema}.catalogue_sessions TO {user}")
        assert await index.put(example(revision=2))


async def test_a_user_that_may_make_tables_makes_them_in_a_schema_that_is_there(
    settings: PostgresSettings,
    admin: psycopg.Connection[tuple[object, ...]],
    postgres_server: PostgresServer,
) -> None:
    user = f"maker_{settings.schema}"
    _run(admin, f"CREATE ROLE {user} LOGIN PASSWORD 'narrow'")
    _run(admin, f"CREATE SCHEMA {settings.schema} AUTHORIZATION {user}")
    narrow = PostgresSettings(postgres_server.url(user=user, password="narrow"), schema=settings.schema)
    async with await PostgresIndex.open(narrow) as index:
        assert await index.put(FIRST)


async def test_a_server_that_became_read_only_is_connected_to_anew(
    settings: PostgresSettings,
    admin: psycopg.Connection[tuple[object, ...]],
    postgres_server: PostgresServer,
) -> None:
    user = f"standby_{settings.schema}"
    _run(admin, f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD 'narrow'")
    async with await PostgresIndex.open(settings) as index:
        await index.put(FIRST)
    _run(admin, f"ALTER ROLE {user} SET default_transaction_read_only = on")
    place = PostgresSettings(postgres_server.url(user=user, password="narrow"), schema=settings.schema)
    async with await PostgresIndex.open(place) as index:
        assert await index.get(ACME, S1) == FIRST
        with pytest.raises(UnavailableError, match="read-only"):
            await index.put(example(revision=2))
        _run(admin, f"ALTER ROLE {user} SET default_transaction_read_only = off")
        assert await index.put(example(revision=2))


async def test_a_database_of_another_encoding_is_refused(
    admin: psycopg.Connection[tuple[object, ...]], postgres_server: PostgresServer
) -> None:
    name = postgres_server.fresh_schema()
    _run(admin, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(StoreRefusedError, match="LATIN1"):
        await PostgresIndex.open(PostgresSettings(postgres_server.url(database=name)))


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://{user}:wr0ng-pa55@127.0.0.1:{port}/postgres", AccessError),
        ("postgresql://nobody:wr0ng-pa55@127.0.0.1:{port}/postgres", AccessError),
        ("postgresql://{user}:{password}@127.0.0.1:{port}/wr0ng-pa55", AccessError),
        ("postgresql://{user}:x@wr0ng-pa55@127.0.0.1:{port}/postgres", UnavailableError),
        ("postgresql://{user}:wr0ng-pa55@127.0.0.1:1/postgres", UnavailableError),
        ("host=127.0.0.1 port={port} user={user} password=two wr0ng-pa55", SettingsError),
        ("postgresql://{user}:x/wr0ng-pa55@127.0.0.1/postgres", SessionFSError),
        ("postgresql://{user}:%zzwr0ng-pa55@127.0.0.1/postgres", SettingsError),
    ],
)
async def test_no_error_tells_a_password(
    url: str, kind: type[SessionFSError], postgres_server: PostgresServer
) -> None:
    written = url.format(user=USER, password=PASSWORD, port=postgres_server.port)
    with pytest.raises(kind) as refusal:
        await PostgresIndex.open(PostgresSettings(written))
    told = _whole_text(refusal.value)
    assert "pa55" not in told
    assert PASSWORD not in told
    assert USER not in told


def test_settings_do_not_show_their_connection_string(settings: PostgresSettings) -> None:
    assert PASSWORD not in repr(settings)
    assert PASSWORD not in str(settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": 'x"; DROP SCHEMA public; --'},
        {"schema": ""},
        {"schema": "pg_catalog"},
        {"schema": "Upper"},
        {"schema": "x" * 64},
        {"connect_timeout_seconds": 1},
        {"statement_timeout_seconds": 0.0},
        {"statement_timeout_seconds": float("nan")},
        {"statement_timeout_seconds": float("inf")},
        {"connect_timeout_seconds": 10_000_000_000},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        PostgresSettings("postgresql://127.0.0.1/postgres", **wrong)  # type: ignore[arg-type]


def _cut_connections(admin: psycopg.Connection[tuple[object, ...]]) -> None:
    """Returns when the server's processes are gone."""
    _run(
        admin,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'sessionfs' AND pid <> pg_backend_pid()",
    )


async def test_a_connection_that_was_lost_is_reported_and_made_again(
    settings: PostgresSettings, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    async with await PostgresIndex.open(settings) as index:
        await index.put(FIRST)
        _cut_connections(admin)
        with pytest.raises(UnavailableError) as refusal:
            await index.get(ACME, S1)
        assert PASSWORD not in _whole_text(refusal.value)
        assert await index.get(ACME, S1) == FIRST


async def test_a_server_that_stops_and_starts_is_used_again() -> None:
    with PostgresServer() as server:
        settings = PostgresSettings(server.url())
        async with await PostgresIndex.open(settings) as index:
            await index.put(FIRST)
            server.stop()
            for _ in range(2):
                with pytest.raises(UnavailableError):
                    await index.get(ACME, S1)
            with pytest.raises(UnavailableError):
                await PostgresIndex.open(settings)
            server.start()
            assert await index.get(ACME, S1) == FIRST
        pid, directory = server.pid, server.directory
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert os.path.basename(directory) not in os.listdir(os.path.dirname(directory))


async def test_a_statement_that_takes_too_long_is_ended(
    settings: PostgresSettings, admin: psycopg.Connection[tuple[object, ...]], postgres_server: PostgresServer
) -> None:
    quick = PostgresSettings(postgres_server.url(), schema=settings.schema, statement_timeout_seconds=0.2)
    async with await PostgresIndex.open(quick) as index:
        await index.put(FIRST)
        with admin.transaction():
            _run(admin, "SELECT 1 FROM {schema}.catalogue_sessions FOR UPDATE", settings)
            with pytest.raises(UnavailableError, match="57014"):
                await index.put(example(revision=2))
        assert await index.get(ACME, S1) == FIRST
        assert await index.put(example(revision=2))


async def _wait_until(admin: psycopg.Connection[tuple[object, ...]], condition: str, count: int) -> int:
    """Wait until so many of the index's connections are in a condition; gives the first one's process, 0 for none."""
    while True:
        _run(admin, "SELECT pg_stat_clear_snapshot()")
        found = _run(
            admin,
            f"SELECT pid FROM pg_stat_activity WHERE application_name = 'sessionfs' AND {condition}",  # noqa: S608
        )
        if len(found) == count:
            return int(str(found[0][0])) if found else 0
        await trio.sleep(0.01)


async def test_a_put_that_is_cancelled_while_it_waits_never_happens(
    settings: PostgresSettings, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    patient = replace(settings, statement_timeout_seconds=3600)
    async with await PostgresIndex.open(patient) as index:
        await index.put(FIRST)
        with admin.transaction():
            _run(admin, "SELECT 1 FROM {schema}.catalogue_sessions FOR UPDATE", settings)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(index.put, example(revision=2))
                await _wait_until(admin, "wait_event_type = 'Lock'", 1)
                nursery.cancel_scope.cancel()
            # Before the lock is free: the server does not go on waiting for nobody.
            with trio.fail_after(30):
                await _wait_until(admin, "true", 0)
        assert await index.get(ACME, S1) == FIRST
        assert await index.put(example(revision=2))


@pytest.mark.parametrize("turns", range(8))
async def test_a_call_that_is_cancelled_returns_at_once(settings: PostgresSettings, turns: int) -> None:
    async with await PostgresIndex.open(settings) as index:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(index.list, ACME)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < postgres_connection._STOP_SECONDS


async def test_a_server_that_hangs_does_not_hang_its_caller(
    postgres_server: PostgresServer,
    admin: psycopg.Connection[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_connection, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(postgres_connection, "_STOP_SECONDS", 0.5)
    settings = PostgresSettings(
        postgres_server.url(), schema=postgres_server.fresh_schema(), statement_timeout_seconds=0.3
    )
    async with await PostgresIndex.open(settings) as index:
        await index.put(FIRST)
        pid = await _wait_until(admin, "state = 'idle'", 1)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(UnavailableError, match="did not answer within"):
                await index.get(ACME, S1)
            assert await index.get(ACME, S1) == FIRST, "the next call has a connection of its own"
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_connection_that_is_cancelled_while_it_is_made_is_closed(
    settings: PostgresSettings, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    for turns in (0, 1, 2, 5, 20, 100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(PostgresIndex.open, settings)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    await _wait_until(admin, "true", 0)
    async with await PostgresIndex.open(settings) as index:
        assert await index.put(FIRST)
