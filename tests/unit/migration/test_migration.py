"""A migration brings every byte and all metadata, in an order that shows nothing half done, and nothing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sessionfs.migration.inventory import Phase, place_of
from sessionfs.model.errors import ConflictError, CorruptDataError, InvalidKeyError
from sessionfs.stores.base import (
    ByteRange,
    Condition,
    IfAbsent,
    ObjectBody,
    ObjectMetadata,
    ObjectStore,
    Token,
    Unconditional,
)
from sessionfs.stores.local_directory import LocalDirectoryStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore
from tests.unit.migration.world import FIRST, RUN, SECOND, World, contents, everything, filled_source, put
from tests.unit.replication.maintenance.world import HandClock, hydrate


@pytest.fixture
def world() -> World:
    return World(filled_source(), MemoryStore(HandClock()))


async def test_everything_arrives_with_its_bytes_and_metadata(world: World) -> None:
    before = contents(world.source)
    result = await world.migrate()
    assert contents(world.destination) == before
    assert (result.objects, result.copied, result.removed) == (len(before), len(before), 0)
    assert result.bytes == sum(len(body) for body, _ in before.values())


async def test_notes_of_hosts_stay_behind(world: World) -> None:
    await world.migrate()
    for key in everything(world.destination):
        assert not key.startswith(("hosts/", "probe/"))
        assert ".owner/" not in key


async def test_every_generation_opens_at_the_destination(world: World) -> None:
    await world.migrate()
    for session in (FIRST, SECOND, RUN):
        for generation in (1, 2):
            wanted = await hydrate(world.source, session, generation)
            assert await hydrate(world.destination, session, generation) == wanted


async def test_the_source_is_not_written(world: World) -> None:
    before = everything(world.source)
    await world.migrate()
    assert everything(world.source) == before


async def test_a_second_run_copies_nothing_writes_nothing_and_agrees(world: World) -> None:
    first = await world.migrate()
    before = everything(world.destination)
    store = FaultyStore(world.destination)
    second = await World(world.source, store, world.clock).migrate()
    assert everything(world.destination) == before
    assert (second.copied, second.kept, second.unchanged) == (0, 0, first.objects)
    assert second.checksum == first.checksum
    assert {method for method, _ in store.calls} <= {"list_page", "get", "head"}


async def test_the_way_back_agrees_on_the_checksum(world: World, tmp_path: Path) -> None:
    first = await world.migrate()
    local = LocalDirectoryStore(str(tmp_path))
    second = await World(world.destination, local, world.clock, "s3://there").migrate()
    third = await World(local, MemoryStore(HandClock()), world.clock, "file:///back").migrate()
    assert first.checksum == second.checksum == third.checksum
    assert contents(local) == contents(world.source)


@pytest.mark.parametrize(
    "change",
    [
        lambda store: put(store, "sessions/s1/a", b"others"),
        lambda store: store.put(
            "sessions/s1/a", b"other", condition=Unconditional(), metadata=ObjectMetadata({"mode": "33188"})
        ),
        lambda store: put(store, "sessions/s1/new", b""),
        lambda store: store.delete("sessions/s1/a", condition=Unconditional()),
    ],
)
async def test_another_byte_key_or_metadata_is_another_checksum(
    world: World, change: Callable[[ObjectStore], object]
) -> None:
    first = await world.migrate()
    change(world.source)
    assert (await World(world.source, MemoryStore(HandClock())).migrate()).checksum != first.checksum


async def test_what_names_others_comes_after_them_and_the_index_last(world: World) -> None:
    store = FaultyStore(world.destination)
    await World(world.source, store, world.clock).migrate()
    order = [key for method, key in store.calls if method in {"put", "put_parts"} and place_of(key)]
    assert order[-1] == "sessions.json"
    for unit in {place[0] for key in order if (place := place_of(key)) is not None}:
        phases = [place[1] for key in order if (place := place_of(key)) is not None and place[0] == unit]
        assert phases == sorted(phases)
        assert phases[-1] >= Phase.NEWEST


async def test_a_directory_is_never_put_at_once_with_what_is_below_it(world: World) -> None:
    for number in range(8):
        put(world.source, f"sessions/s1/d/{number}/", b"")
        put(world.source, f"sessions/s1/d/{number}/file", b"x")
    done: set[str] = set()
    for unit in (await world.plan()).units:
        for batch in unit.batches():
            together = {step.source.key for step in batch}
            for key in together:
                above = {f"{key[:end]}/" for end in range(len(key) - 1) if key[end] == "/"}
                assert not above & together
                assert {marker for marker in above if marker in contents(world.source)} <= done
            done |= together
    assert done == set(contents(world.source))


async def test_the_record_is_first_copying_and_in_the_end_complete_with_the_checksum(world: World) -> None:
    store = FaultyStore(world.destination)
    states: list[str] = []
    watched = _Watched(store, lambda: states.append(world.record().state))
    result = await World(world.source, watched, world.clock).migrate()
    assert set(states) == {"copying"}
    record = world.record()
    assert (record.state, record.checksum, record.objects) == ("complete", result.checksum, result.objects)
    assert record.source == world.url


async def test_what_changed_at_the_source_is_brought_and_what_went_is_removed(world: World) -> None:
    await world.migrate()
    put(world.source, "sessions/s1/a", b"newer")
    put(world.source, "sessions/s1/d/added", b"x")
    world.source.delete("sessions/s1/empty", condition=Unconditional())
    for key in [key for key in contents(world.source) if key.startswith("sessions/s2")]:
        world.source.delete(key, condition=Unconditional())
    result = await world.migrate()
    assert contents(world.destination) == contents(world.source)
    assert result.copied == 2
    assert result.removed > 8


async def test_a_file_that_became_a_directory_arrives_in_a_directory_store(tmp_path: Path) -> None:
    world = World(MemoryStore(HandClock()), LocalDirectoryStore(str(tmp_path)))
    put(world.source, "sessions/s1/x", b"file")
    await world.migrate()
    world.source.delete("sessions/s1/x", condition=Unconditional())
    put(world.source, "sessions/s1/x/y", b"below")
    await world.migrate()
    assert contents(world.destination) == contents(world.source)


async def test_other_metadata_under_the_same_bytes_is_brought(world: World) -> None:
    await world.migrate()
    put(world.source, "archive/sessions/x/latest", b"1", content_type="text/html")
    assert (await world.migrate()).copied == 1
    assert contents(world.destination) == contents(world.source)


async def test_an_object_put_again_with_the_same_bytes_is_read_and_not_sent(world: World) -> None:
    await world.migrate()
    put(world.source, "archive/sessions/x/latest", b"1")
    result = await world.migrate()
    assert (result.copied, result.kept) == (0, 1)
    assert (await world.migrate()).kept == 0


async def test_one_session_comes_without_the_others_and_without_the_index(world: World) -> None:
    result = await world.migrate(SECOND)
    there = contents(world.destination)
    assert there == {
        key: kept for key, kept in contents(world.source).items() if key.startswith("sessions/s2")
    }
    assert result.objects == len(there)
    assert world.record().state == "partial"
    assert (await world.migrate(SECOND)).copied == 0


async def test_all_sessions_after_one_complete_the_rest(world: World) -> None:
    alone = await world.migrate(SECOND)
    result = await world.migrate()
    assert contents(world.destination) == contents(world.source)
    assert result.unchanged == alone.objects
    assert world.record().state == "complete"


async def test_a_long_object_is_streamed_and_its_parts_are_the_bytes(world: World) -> None:
    body = bytes(range(256)) * (24 << 12)  # 24 MiB: several parts
    put(world.source, "sessions/s1/long", body)
    store = FaultyStore(world.destination)
    await World(world.source, store, world.clock).migrate()
    assert ("put_parts", "sessions/s1/long") in store.calls
    found, _ = contents(world.destination)["sessions/s1/long"]
    assert hashlib.sha256(found).digest() == hashlib.sha256(body).digest()
    put(world.source, "sessions/s1/long", body)
    assert (await world.migrate()).kept == 1


async def test_damage_at_the_source_is_told_and_copied_as_it_is(world: World) -> None:
    metadata = ObjectMetadata({"sessionfs-sha256": "0" * 64})
    world.source.put("sessions/s1/a", b"rotten", condition=Unconditional(), metadata=metadata)
    result = await world.migrate()
    assert result.damaged == ("sessions/s1/a",)
    assert contents(world.destination) == contents(world.source)


async def test_bytes_that_read_back_as_others_end_the_run_before_the_index(world: World) -> None:
    liar = _Liar(world.destination, "sessions/s2/a")
    with pytest.raises(CorruptDataError, match="sessions/s2/a"):
        await World(world.source, liar, world.clock).migrate()
    assert "sessions.json" not in contents(world.destination)
    assert world.record().state == "copying"
    result = await world.migrate()
    assert contents(world.destination) == contents(world.source)
    assert result.kept > 0


async def test_metadata_that_a_store_drops_is_noticed(world: World) -> None:
    with pytest.raises(CorruptDataError, match="its metadata differ"):
        await World(world.source, _Forgetful(world.destination, user={}), world.clock).migrate()


async def test_a_content_type_that_a_store_changes_is_noticed_where_the_source_has_one(world: World) -> None:
    with pytest.raises(CorruptDataError, match="its metadata differ"):
        await World(world.source, _Forgetful(world.destination, content_type="x/y"), world.clock).migrate()


async def test_a_store_may_guess_a_content_type_and_leave_out_what_has_no_value() -> None:
    world = World(MemoryStore(HandClock()), MemoryStore(HandClock()))
    metadata = ObjectMetadata({"mode": "33188", "sessionfs-lineage": ""})
    world.source.put("sessions/s1/a", b"x", condition=IfAbsent(), metadata=metadata)
    guessing = _Forgetful(world.destination, user={"mode": "33188"}, content_type="x/y")
    there = await World(world.source, guessing, world.clock).migrate()
    back = await World(world.destination, MemoryStore(HandClock()), world.clock, "s3://there").migrate()
    assert there.checksum == back.checksum


async def test_a_source_that_changes_meanwhile_gets_no_index(world: World) -> None:
    plan = await world.plan()
    put(world.source, "sessions/s1/late", b"late")
    with pytest.raises(ConflictError, match=r"sessions/s1/late .*changed while it was migrated"):
        await world.carry_out(plan)
    assert "sessions.json" not in contents(world.destination)
    await world.migrate()
    assert contents(world.destination) == contents(world.source)


async def test_an_object_that_changes_before_it_is_read_ends_the_run(world: World) -> None:
    plan = await world.plan()
    put(world.source, "sessions/s1/a", b"moved")
    with pytest.raises(ConflictError, match=r"sessions/s1/a .*changed while it was copied"):
        await world.carry_out(plan)


async def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(world: World) -> None:
    plan = await world.plan()
    put(world.destination, "sessions/s1/a", b"theirs")
    with pytest.raises(ConflictError, match=r"sessions/s1/a .*somebody else"):
        await world.carry_out(plan)
    assert contents(world.destination)["sessions/s1/a"][0] == b"theirs"


async def test_an_object_that_somebody_else_adds_meanwhile_ends_the_run_before_the_index(
    world: World,
) -> None:
    plan = await world.plan()
    put(world.destination, "sessions/s1/theirs", b"theirs")
    with pytest.raises(ConflictError, match=r"sessions/s1/theirs .*somebody else"):
        await world.carry_out(plan)
    assert "sessions.json" not in contents(world.destination)


async def test_what_is_stale_is_not_removed_once_somebody_else_wrote_it(world: World) -> None:
    await world.migrate()
    world.source.delete("sessions/s1/empty", condition=Unconditional())
    plan = await world.plan()
    put(world.destination, "sessions/s1/empty", b"theirs")
    with pytest.raises(ConflictError, match=r"sessions/s1/empty .*somebody else"):
        await world.carry_out(plan)
    assert contents(world.destination)["sessions/s1/empty"][0] == b"theirs"


async def test_one_session_does_not_hide_that_another_is_half_there(world: World) -> None:
    with pytest.raises(CorruptDataError):
        await World(world.source, _Liar(world.destination, "sessions/s1/a"), world.clock).migrate()
    await world.migrate(SECOND)
    assert world.record().state == "copying"
    await world.migrate()
    assert world.record().state == "complete"
    assert contents(world.destination) == contents(world.source)


async def test_a_name_that_the_destination_cannot_keep_is_refused_before_anything_is_written(
    world: World, tmp_path: Path
) -> None:
    put(world.source, "sessions/s1/" + "x" * 300, b"")
    local = World(world.source, LocalDirectoryStore(str(tmp_path)), world.clock)
    with pytest.raises(InvalidKeyError, match="cannot keep"):
        await local.migrate()
    assert everything(local.destination) == {}


@pytest.mark.parametrize("below", ["sessions/s1/a/below", "sessions/s1/a/b/c", "sessions/s1/a/"])
async def test_two_names_that_a_directory_cannot_keep_at_once_are_refused(
    world: World, tmp_path: Path, below: str
) -> None:
    put(world.source, below, b"")
    local = World(world.source, LocalDirectoryStore(str(tmp_path)), world.clock)
    with pytest.raises(ConflictError, match="cannot keep 'sessions/s1/a' beside"):
        await local.migrate()
    assert everything(local.destination) == {}


class _Watched(FaultyStore):
    """Looks at the destination after each put of an object that is migrated."""

    def __init__(self, inner: ObjectStore, look: Callable[[], object]) -> None:
        super().__init__(inner)
        self._look = look

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        token = super().put(key, body, condition=condition, metadata=metadata)
        if place_of(key):
            self._look()
        return token


class _Forgetful(FaultyStore):
    """Keeps other metadata than it is given."""

    def __init__(
        self, inner: ObjectStore, *, user: dict[str, str] | None = None, content_type: str = ""
    ) -> None:
        super().__init__(inner)
        self._user = user
        self._content_type = content_type

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        kept = ObjectMetadata(
            metadata.user if self._user is None else self._user,
            self._content_type or metadata.content_type,
            metadata.content_encoding,
        )
        return super().put(key, body, condition=condition, metadata=kept if place_of(key) else metadata)


class _Liar(FaultyStore):
    """Gives other bytes of one key than it was given."""

    def __init__(self, inner: ObjectStore, key: str) -> None:
        super().__init__(inner)
        self._key = key

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        body = super().get(key, byte_range=byte_range, expected=expected)
        return _LyingBody(body) if key == self._key else body


class _LyingBody(ObjectBody):
    def __init__(self, inner: ObjectBody) -> None:
        self.stat = inner.stat
        self._inner = inner

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        for chunk in self._inner.chunks(size_bytes):
            yield bytes(byte ^ 1 for byte in chunk)
