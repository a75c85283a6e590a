"""A catalogue and an index against dictionaries: any sequence of requests has the same answers and leaves the same records."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    AlreadyExistsError,
    ForbiddenError,
    NotFoundError,
    PreconditionFailedError,
    SessionFSError,
)
from sessionfs.model.names import SessionId, session_id
from sessionfs.sessions.catalogue.blocking import BlockingCatalogue, BlockingIndex
from sessionfs.sessions.catalogue.postgres_connection import PostgresSettings
from sessionfs.sessions.catalogue.postgres_index import PostgresIndex
from sessionfs.sessions.catalogue.record import Records, SessionRecord
from sessionfs.sessions.catalogue.sqlite_catalogue import SqliteCatalogue
from sessionfs.testing.postgres_server import PostgresServer

IDS = [session_id(text) for text in ("a", "B", "é", "a'b", "\U0001f600")]
TENANTS = ["acme", "'; --", "日本"]
LINES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=8)

RECORDS = st.builds(
    SessionRecord,
    tenant=st.sampled_from(TENANTS),
    id=st.sampled_from(IDS),
    created_at_ms=st.integers(1, 5),
    updated_at_ms=st.integers(1, 5),
    status=LINES,
    title=LINES,
    labels=st.dictionaries(LINES.filter(bool), LINES, max_size=3),
    metadata=st.binary(max_size=8),
    checkpoint=LINES,
    revision=st.integers(1, 6),
)
PAGES = st.tuples(st.just("list"), st.sampled_from(TENANTS), st.sampled_from(["", *IDS]), st.integers(1, 4))
GETS = st.tuples(st.just("get"), st.sampled_from(TENANTS), st.sampled_from(IDS))


def _records(kind: str) -> st.SearchStrategy[tuple[str, SessionRecord]]:
    return st.tuples(st.just(kind), RECORDS)


def _answer(call: Callable[[], object]) -> object:
    try:
        return call()
    except SessionFSError as error:
        return type(error)


@dataclass
class Model:
    """What both are: records by id. Times of change are the database's to choose: 0 here where they are now."""

    records: dict[str, SessionRecord] = field(default_factory=dict)

    def get(self, tenant: str, session: SessionId) -> SessionRecord:
        found = self.records.get(session)
        if found is None or found.tenant != tenant:
            raise NotFoundError(session)
        return found

    def list(self, tenant: str, after: str, limit: int) -> Records:
        own = [one for one in self.records.values() if one.tenant == tenant and one.id > after]
        return sorted(own, key=lambda one: one.id.encode())[:limit]

    def scan(self, after: str, limit: int) -> Records:
        found = [one for one in self.records.values() if one.id > after]
        return sorted(found, key=lambda one: one.id.encode())[:limit]

    def create(self, record: SessionRecord) -> SessionRecord:
        if record.id in self.records:
            raise AlreadyExistsError(record.id)
        self.records[record.id] = replace(record, revision=1, updated_at_ms=0)
        return self.records[record.id]

    def save(self, record: SessionRecord) -> SessionRecord:
        found = self.get(record.tenant, record.id)
        if found.revision != record.revision:
            raise PreconditionFailedError(record.id)
        self.records[record.id] = replace(
            record, created_at_ms=found.created_at_ms, revision=found.revision + 1, updated_at_ms=0
        )
        return self.records[record.id]

    def import_(self, record: SessionRecord) -> SessionRecord:
        found = self.records.get(record.id)
        if found and found.tenant != record.tenant:
            raise ForbiddenError(record.id)
        if found and (
            found.revision >= record.revision and record == replace(found, revision=record.revision)
        ):
            return found
        revision = max(record.revision, found.revision + 1 if found else 0)
        self.records[record.id] = replace(record, revision=revision)
        return self.records[record.id]

    def put(self, record: SessionRecord) -> bool:
        found = self.records.get(record.id)
        if found and found.tenant != record.tenant:
            raise ForbiddenError(record.id)
        age = (record.revision, record.updated_at_ms)
        if found and age < (found.revision, found.updated_at_ms):
            return False
        self.records[record.id] = record
        return True


def _without_now(answer: object) -> object:
    """Times of change that are the clock's are all later than those that were given."""
    if isinstance(answer, list):
        return [_without_now(one) for one in answer]
    if isinstance(answer, SessionRecord) and answer.updated_at_ms > 5:
        return replace(answer, updated_at_ms=0)
    return answer


CATALOGUE_REQUESTS = st.one_of(
    PAGES,
    GETS,
    st.tuples(st.just("scan"), st.sampled_from(["", *IDS]), st.integers(1, 4)),
    _records("create").map(lambda request: ("create", replace(request[1], revision=0))),
    _records("save"),
    _records("save"),
    _records("import_"),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(CATALOGUE_REQUESTS, min_size=10, max_size=50))
def test_the_sqlite_catalogue_answers_as_a_dictionary(requests: list[tuple[object, ...]]) -> None:
    directory = tempfile.mkdtemp()
    try:
        with BlockingCatalogue(lambda: SqliteCatalogue.open(f"{directory}/c.db", SystemClock())) as catalogue:
            model = Model()
            for name, *arguments in requests:
                request = getattr(catalogue, str(name))
                expected = _answer(lambda: getattr(model, str(name))(*arguments))  # noqa: B023 - called at once
                found = _answer(lambda: request(*arguments))  # noqa: B023 - as above
                assert _without_now(found) == _without_now(expected), (name, arguments)
            assert _without_now(catalogue.scan("", 1000)) == model.scan("", 1000)
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def index(postgres_server: PostgresServer) -> Iterator[BlockingIndex]:
    place = PostgresSettings(postgres_server.url(), schema=postgres_server.fresh_schema())
    with BlockingIndex(lambda: PostgresIndex.open(place)) as opened:
        yield opened


EXAMPLES = iter(range(1_000_000))


@pytest.mark.postgres
@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(PAGES, GETS, _records("put"), _records("put")), min_size=10, max_size=50))
def test_the_postgres_index_answers_as_a_dictionary(
    index: BlockingIndex, requests: list[tuple[object, ...]]
) -> None:
    # Each example has ids and tenants of its own: all share one table.
    number = next(EXAMPLES)

    def own(argument: object) -> object:
        if isinstance(argument, SessionRecord):
            return replace(
                argument, tenant=f"{number} {argument.tenant}", id=SessionId(f"{number} {argument.id}")
            )
        return f"{number} {argument}" if isinstance(argument, str) and argument else argument

    model = Model()
    for name, *arguments in requests:
        mine = [own(argument) for argument in arguments]
        expected = _answer(lambda: getattr(model, str(name))(*mine))  # noqa: B023 - called at once
        found = _answer(lambda: getattr(index, str(name))(*mine))  # noqa: B023 - as above
        assert found == expected, (name, mine)
    for tenant in TENANTS:
        everything = index.list(f"{number} {tenant}", "", 1000)
        assert everything == model.list(f"{number} {tenant}", "", 1000)
