"""A comparison of a session that is held here shows a later owner: the ownership ends, and only then what he wrote is taken over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from sessionfs.formats import link_messages as messages
from sessionfs.formats import manifest as manifests
from sessionfs.formats import ownership
from sessionfs.formats.commit_messages import CommitAll
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import SessionRefreshed
from sessionfs.formats.manifest import Manifest
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import OwnershipLostError
from sessionfs.model.names import session_id
from sessionfs.replication.service import ReplicationService
from sessionfs.stores.base import ObjectMetadata, ObjectStat, ObjectStore, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore, Interfere
from tests.unit.replication.test_service_start import Machine

from .hosts import PREFIX, SESSION, Host, body_of
from .named_bytes import fence, put_of_epoch, read

KEY = PREFIX + "f"
NAMED = b"named"


def newest(store: ObjectStore) -> Manifest:
    key = keys.manifest_key(SESSION)
    return manifests.decode(read(store, key), key)


def state(host: Host) -> list[object]:
    """What the journal says of the session and the file."""
    journal, file = host.journal, host.number(b"f")
    return [
        journal.session(SESSION), journal.object(KEY), journal.is_named(KEY), journal.prefixes(KEY),
        journal.node(file), journal.names_of(file), journal.all_work(),
    ]  # fmt: skip


@pytest.fixture
def held(host: Host) -> Host:
    """This host committed with epoch 4, and holds the session; the bytes are in the bucket alone."""
    host.make(b"")
    file = host.make(b"f", NAMED)
    host.upload()
    host.commit(epoch=4)
    host.journal.name_settled(PREFIX)
    host.journal.update_session(SESSION, owner_state="held", epoch=4)
    host.evict([file])
    return host


def later_manifest(store: ObjectStore) -> None:
    """Another host claimed the session, and wrote nothing yet but something that only a listing shows."""
    fence(store, newest(store), 5)
    put_of_epoch(store, "f", b"of an owner before", 3)


def later_object(store: ObjectStore) -> None:
    """Another host's object is seen, and its manifest was not."""
    put_of_epoch(store, "f", b"of a later owner", 5)


@pytest.mark.parametrize("interfere", [later_manifest, later_object])
async def test_a_later_owner_ends_the_comparison_of_a_held_session_before_anything_is_changed(
    held: Host, store: ObjectStore, interfere: Callable[[ObjectStore], None]
) -> None:
    interfere(store)
    before = state(held)
    for _ in range(2):
        with pytest.raises(OwnershipLostError, match="epoch 5"):
            await held.hydrator.refresh_session(SESSION)
        assert state(held) == before
    assert held.events == []


async def test_the_fence_says_who_holds_the_session_now(held: Host, store: ObjectStore) -> None:
    later_manifest(store)
    with pytest.raises(OwnershipLostError) as caught:
        await held.hydrator.refresh_session(SESSION)
    assert caught.value.holder == "taker"


@pytest.mark.parametrize("interfere", [later_manifest, later_object])
async def test_what_a_later_owner_wrote_is_taken_over_once_the_session_is_his(
    held: Host, store: ObjectStore, interfere: Callable[[ObjectStore], None]
) -> None:
    interfere(store)
    held.journal.update_session(SESSION, owner_state="lost")
    found = await held.hydrator.refresh_session(SESSION)
    assert found.foreign
    assert body_of(held, await held.hydrator.fetch(held.number(b"f"))) == read(store, KEY)


@pytest.mark.parametrize("epoch", [0, 3, 4])
async def test_objects_of_no_later_owner_are_taken_over_by_a_held_session(
    held: Host, store: ObjectStore, epoch: int
) -> None:
    put_of_epoch(store, "f", b"changed", epoch)
    assert not (await held.hydrator.refresh_session(SESSION)).foreign
    assert body_of(held, await held.hydrator.fetch(held.number(b"f"))) == b"changed"


@pytest.mark.parametrize("method", ["head", "list_page"])
async def test_a_claim_of_ours_that_comes_before_the_listing_is_reckoned_with(
    held: Host, store: FaultyStore, method: str
) -> None:
    """The manifest is asked for with `head`, and the fence of our own claim is found there."""

    def claim() -> None:
        fence(store.inner, newest(store.inner), 5)
        put_of_epoch(store.inner, "f", b"of this host", 5)
        held.journal.update_session(SESSION, epoch=5)

    store.plan(method, Interfere(lambda: trio.from_thread.run_sync(claim)))
    await held.hydrator.refresh_session(SESSION)
    known = held.journal.object(KEY)
    assert known is not None
    assert known.epoch == 5


# --- the service


class DescribingStore(MemoryStore):
    """Does something on the loop, once, when an object is asked about.

    Attributes:
        action: What.
    """

    action: Callable[[], None] | None = None

    def head(self, key: str) -> ObjectStat:
        if key == KEY and self.action is not None:
            action, self.action = self.action, None
            trio.from_thread.run_sync(action)
        return super().head(key)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "state")
    made.store = DescribingStore()
    made.make(Operation.CREATE, made.session, "s/f", NAMED)
    return made


async def commit(service: ReplicationService, machine: Machine) -> int:
    """Upload and commit; gives the epoch with which it was done."""
    await service.handle(messages.Drain(machine.log.position, 5.0))
    await service.handle(CommitAll("timer", machine.log.position))
    assert service._ownership.owns(SESSION)
    return service._ownership.epoch(SESSION)


async def refresh(service: ReplicationService, machine: Machine) -> SessionRefreshed:
    with trio.fail_after(10):
        found = await service.handle(messages.RefreshSession(SESSION, machine.log.position))
    assert isinstance(found, SessionRefreshed)
    return found


def losses(service: ReplicationService) -> list[object]:
    events = service._journal.events(0, 10_000)
    return [event.fields["holder"] for event in events if event.name == "session.owner.lost"]


async def test_the_service_loses_the_session_and_answers_what_its_later_owner_changed(
    machine: Machine,
) -> None:
    async with machine.service() as service:
        epoch = await commit(service, machine)
        fence(machine.store, newest(machine.store), epoch + 1)
        put_of_epoch(machine.store, "f", b"of a later owner", epoch + 1)
        found = await refresh(service, machine)
        assert found.foreign
        assert found.files == [service._journal.resolve(SESSION, b"f")]
        assert losses(service) == ["taker"]
        assert not service._ownership.owns(SESSION)
        told = [(state.owned, state.holder) for state in machine.daemon.states]
        assert (False, "taker") in told
        assert not told[-1][0]
        assert (await refresh(service, machine)).foreign
        assert losses(service) == ["taker"]
    assert machine.bucket()["f"] == b"of a later owner"


async def test_the_same_when_only_an_object_and_the_record_show_him(machine: Machine) -> None:
    async with machine.service() as service:
        epoch = await commit(service, machine)
        record = OwnerRecord(session=SESSION, holder="b" * 32, epoch=epoch + 1)
        machine.store.put(
            keys.owner_key(SESSION),
            ownership.encode(record),
            condition=Unconditional(),
            metadata=ObjectMetadata(),
        )
        put_of_epoch(machine.store, "f", b"of a later owner", epoch + 1)
        assert (await refresh(service, machine)).foreign
        assert losses(service) == [""]


async def test_an_object_that_a_tool_copied_from_another_session_ends_no_ownership(machine: Machine) -> None:
    """It carries the epoch of that session."""
    async with machine.service() as service:
        epoch = await commit(service, machine)
        put_of_epoch(machine.store, "f", b"of another session", epoch + 9)
        for _ in range(2):
            assert not (await refresh(service, machine)).foreign
        assert losses(service) == []
        assert service._ownership.owns(SESSION)
        assert service._ownership.latest_epoch(SESSION) == epoch + 9
        machine.make(Operation.CREATE, machine.session, "s/g", b"more")
        await service.handle(messages.Drain(machine.log.position, 5.0))
        await service.handle(CommitAll("timer", machine.log.position))
        assert losses(service) == []
        assert newest(machine.store).generation == 2


async def test_the_first_use_of_a_session_finds_its_later_owner_too(machine: Machine) -> None:
    async with machine.service() as service:
        epoch = await commit(service, machine)
        service._journal.update_session(SESSION, known=True)
        service._refreshed.discard(SESSION)
        fence(machine.store, newest(machine.store), epoch + 1)
        opened = await service.handle(messages.OpenSession(SESSION, machine.log.position))
        assert isinstance(opened, messages.SessionFound)
        assert not opened.owned
        assert opened.foreign
        assert losses(service) == ["taker"]


async def test_a_claim_of_ours_that_comes_during_the_comparison_is_not_lost(machine: Machine) -> None:
    store = machine.store
    assert isinstance(store, DescribingStore)
    async with machine.service() as service:
        epoch = await commit(service, machine)
        put_of_epoch(store, "f", b"of this host, after it claimed again", epoch + 1)
        store.action = lambda: service._journal.update_session(session_id(SESSION), epoch=epoch + 1)
        assert not (await refresh(service, machine)).foreign
        row = service._journal.session(SESSION)
        assert row is not None
        assert row.epoch == epoch + 1
        assert losses(service) == []
        assert service._ownership.owns(SESSION)
