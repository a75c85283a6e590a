"""What a migration refuses, before it has written anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sessionfs.formats.migration import records
from sessionfs.formats.migration.records import JournalPage, MigrationRecord
from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import (
    ConflictError,
    CorruptDataError,
    NotFoundError,
    SessionAlreadyOwnedError,
    SessionFSError,
    UnavailableError,
    UnsupportedFormatError,
)
from sessionfs.model.names import session_id
from sessionfs.replication.maintenance.unfinished_migration import require_finished
from sessionfs.stores.base import ObjectStat, Token
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, FaultyStore
from tests.unit.migration.world import (
    FIRST,
    SECOND,
    World,
    beat,
    contents,
    everything,
    filled_source,
    note_owner,
    put,
)
from tests.unit.replication.maintenance.world import HandClock

HOUR_NS = 3600 * 1_000_000_000


@pytest.fixture
def world() -> World:
    return World(filled_source(), MemoryStore(HandClock()))


async def refused(world: World, error: type[SessionFSError], said: str) -> None:
    """Require that a run ends with an error, and that neither store was written."""
    before = everything(world.source), everything(world.destination)
    with pytest.raises(error, match=said):
        await world.migrate()
    assert (everything(world.source), everything(world.destination)) == before


# --- the source


async def test_a_source_whose_owner_beats_is_refused_with_the_way_out(world: World) -> None:
    note_owner(world.source, FIRST)
    beat(world.source)
    world.clock = _Later(world.source, seconds=59)
    await refused(world, SessionAlreadyOwnedError, r"session s1 .*in use by elsewhere .*sessionfs umount")


async def test_a_beat_that_only_looks_old_and_moves_is_a_life(world: World) -> None:
    note_owner(world.source, FIRST)
    beat(world.source, lease_seconds=0.02)
    world.clock = _Later(world.source, seconds=100)
    world.source = _BeatsWhenListed(world.source)
    await refused(world, SessionAlreadyOwnedError, "in use by elsewhere")
    assert world.said == ["waiting 0 s to see whether an owner of the source lives"]


async def test_a_beat_that_stands_still_is_no_life(world: World) -> None:
    note_owner(world.source, FIRST)
    beat(world.source, lease_seconds=0.02)
    world.clock = _Later(world.source, seconds=100)
    await world.migrate()
    assert contents(world.destination) == contents(world.source)


async def test_an_old_beat_is_not_waited_for(world: World) -> None:
    note_owner(world.source, FIRST)
    beat(world.source)
    world.clock = _Later(world.source, seconds=7200)
    await world.migrate()
    assert world.said == []


async def test_an_owner_without_a_beat_is_dead(world: World) -> None:
    note_owner(world.source, FIRST)
    assert (await world.migrate()).copied > 0


async def test_a_live_owner_of_another_session_does_not_stop_one_session(world: World) -> None:
    note_owner(world.source, FIRST)
    beat(world.source)
    assert (await world.migrate(SECOND)).copied > 0
    with pytest.raises(SessionAlreadyOwnedError):
        await world.plan(FIRST)


async def test_a_source_with_nothing_in_it_is_refused(world: World) -> None:
    await world.migrate()
    world.source = MemoryStore(HandClock())
    await refused(world, NotFoundError, "nothing to migrate")


async def test_a_session_that_the_source_does_not_have_is_refused(world: World) -> None:
    with pytest.raises(NotFoundError, match="no session s9"):
        await world.migrate(session_id("s9"))
    assert everything(world.destination) == {}


async def test_a_source_that_is_half_migrated_itself_is_refused(world: World) -> None:
    plan = await world.plan()
    put(world.source, "sessions/s1/late", b"x")
    with pytest.raises(ConflictError):
        await world.carry_out(plan)
    onward = World(world.destination, MemoryStore(HandClock()), url="s3://there")
    await refused(onward, ConflictError, r"holds a part of file:///source.*goes on where it stopped")


async def test_a_reader_can_tell_a_store_that_is_half_migrated_from_a_whole_one(world: World) -> None:
    require_finished(world.source)
    plan = await world.plan()
    put(world.source, "sessions/s1/late", b"x")
    with pytest.raises(ConflictError):
        await world.carry_out(plan)
    with pytest.raises(ConflictError, match="holds a part of"):
        require_finished(world.destination)
    away = FaultyStore(world.destination)
    away.plan("get", FailBefore(UnavailableError("away")))
    require_finished(away)
    await world.migrate()
    require_finished(world.destination)


# --- the destination


@pytest.mark.parametrize(
    "key",
    [
        "sessions/other/a",
        "sessions/s1/a",
        "sessions.json",
        "eval/r/x",
        "archive/sessions/x/latest",
        "readme.txt",
        "hosts/h.json",
        "sessions/s1.owner/owner.json",
        "migration/0000000001.json",
    ],
)
async def test_a_destination_with_anything_in_it_is_refused(world: World, key: str) -> None:
    put(world.destination, key, b"theirs")
    await refused(world, ConflictError, "is not empty: it has " + key)


async def test_scratch_of_a_probe_does_not_matter(world: World) -> None:
    put(world.destination, "probe/abc", b"scratch")
    assert (await world.migrate()).copied > 0


async def test_a_destination_of_another_source_is_refused(world: World) -> None:
    await world.migrate()
    world.url = "file:///elsewhere"
    await refused(world, ConflictError, "was migrated from file:///source, not from file:///elsewhere")


@pytest.mark.parametrize(
    "change",
    [
        lambda store: put(store, "sessions/s1/a", b"newer"),
        lambda store: put(store, "sessions/s1/a", b"OTHER"),
        lambda store: put(store, "sessions/s1/new", b""),
        lambda store: put(store, "sessions/new/a", b""),
        lambda store: put(store, "sessions/s1.owner/owner.json", b"{}"),
        lambda store: put(store, "hosts/h.json", b"{}"),
        lambda store: put(store, "sessions.json", b"{}"),
    ],
)
async def test_a_destination_that_was_used_since_is_refused(
    world: World, change: Callable[[MemoryStore], object]
) -> None:
    await world.migrate()
    assert isinstance(world.destination, MemoryStore)
    change(world.destination)
    await refused(world, ConflictError, "was changed since it was migrated to")


async def test_another_migration_at_the_same_time_ends_one_of_them(world: World) -> None:
    plan = await world.plan()
    await world.migrate()
    with pytest.raises(ConflictError, match="changed by another migration"):
        await world.carry_out(plan)
    assert contents(world.destination) == contents(world.source)
    assert world.record().state == "complete"


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"{", CorruptDataError),
        (b"{}", CorruptDataError),
        (b'{"format":2}', UnsupportedFormatError),
        (b'{"format":1,"source":3}', CorruptDataError),
    ],
)
@pytest.mark.parametrize("key", [records.RECORD_KEY, records.page_key(1)])
async def test_a_journal_that_cannot_be_read_is_refused(
    world: World, key: str, raw: bytes, error: type[SessionFSError]
) -> None:
    await world.migrate()
    if key != records.RECORD_KEY and b"source" in raw:
        raw = b'{"format":1,"entries":[[1]]}'
    put(world.destination, key, raw)
    await refused(world, error, key)


def test_pages_and_records_come_back_as_they_were() -> None:
    record = MigrationRecord(source="s", source_id="i", state="partial", objects=3)
    assert records.decode_record(records.encode_record(record), "k") == record
    page = JournalPage(intents=(records.Intent("k", 3),))
    assert records.decode_page(records.encode_page(page), "k") == page
    assert records.page_number(records.page_key(7)) == 7
    assert records.page_number("migration/x.json") is None
    with pytest.raises(CorruptDataError, match="k cannot be"):
        records.decode_page(records.encode_page(page)[:-5], "k")


class _Later(SystemClock):
    """This host's clock, so many seconds after the newest beat of a store."""

    def __init__(self, store: object, *, seconds: float) -> None:
        super().__init__()
        assert isinstance(store, MemoryStore)
        self._now_ns = store.head(keys.beat_key("h" * 32)).modified_ns + int(seconds * 1e9)

    def wall_ns(self) -> int:
        return self._now_ns


class _BeatsWhenListed(FaultyStore):
    """Its owner beats once more after the listing."""

    def head(self, key: str) -> ObjectStat:
        found = super().head(key)
        if key.startswith(keys.HOSTS_PREFIX):
            return ObjectStat(key, found.size_bytes, Token("moved"), found.modified_ns, found.metadata)
        return found
