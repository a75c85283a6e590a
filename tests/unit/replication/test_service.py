"""Requests of the daemon: what is held, flushed and committed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

from sessionfs.formats import link_messages as messages
from sessionfs.formats.commit_messages import CommitAll
from sessionfs.formats.intent_records import Operation
from sessionfs.model import keys, names
from sessionfs.replication.service import ReplicationService
from sessionfs.stores.base import Condition, ObjectMetadata, Token
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.layout import ROOT_NUMBER

from .test_service_start import SETTINGS, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "state")
    # Nothing is sent before somebody hurries, and deletions count together for as long.
    made.settings = msgspec.structs.replace(
        SETTINGS, upload_delay_seconds=30.0, max_upload_delay_seconds=30.0
    )
    return made


class Interrupting(MemoryStore):
    """Does something on the loop while a key is put."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        self.action: Callable[[], None] = lambda: None

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if key == self.key:
            trio.from_thread.run_sync(self.action)
        return super().put(key, body, condition=condition, metadata=metadata)


def make_files(machine: Machine, numbers: range) -> dict[str, int]:
    return {
        f"f{name}": machine.make(Operation.CREATE, machine.session, f"s/f{name}", b"x") for name in numbers
    }


def remove(machine: Machine, name: str, number: int) -> None:
    sequence = machine.log.begin(Operation.UNLINK, number=number, parent=machine.session, name=name.encode())
    os.unlink(machine.path(f"s/{name}"))
    machine.log.finish(sequence, number=number)


async def held(service: ReplicationService, machine: Machine) -> str:
    status = await service.handle(messages.GetStatus(machine.log.position))
    assert isinstance(status, messages.Status)
    return status.held


async def test_what_is_left_of_a_mass_deletion_that_was_made_again_is_not_held(machine: Machine) -> None:
    files = make_files(machine, range(300))
    await machine.drain()
    async with machine.service() as service:
        for name, number in files.items():
            remove(machine, name, number)
        assert await held(service, machine) != ""
        make_files(machine, range(260))
        assert await held(service, machine) == ""
        await service.handle(messages.Drain(machine.log.position, 5.0))
    assert len(machine.bucket()) == 261


async def test_a_confirmed_mass_deletion_is_not_held_again_by_the_next_file(machine: Machine) -> None:
    files = make_files(machine, range(300))
    await machine.drain()
    last = files.popitem()
    async with machine.service() as service:
        for name, number in files.items():
            remove(machine, name, number)
        assert await held(service, machine) != ""
        await service.handle(messages.Retry())
        remove(machine, *last)
        assert await held(service, machine) == ""
        await service.handle(messages.Drain(machine.log.position, 5.0))
    assert set(machine.bucket()) == {""}


async def test_a_confirmation_covers_deletions_that_were_not_read_from_the_log_yet(machine: Machine) -> None:
    """Whoever deletes and unmounts in one breath: the records are written, the replication process is behind."""
    files = make_files(machine, range(300))
    await machine.drain()
    async with machine.service() as service:
        for name, number in files.items():
            remove(machine, name, number)
        await service.handle(messages.Retry())
        assert await held(service, machine) == ""
        await service.handle(messages.Drain(machine.log.position, 5.0))
    assert set(machine.bucket()) == {""}


async def test_flushing_a_directory_waits_for_its_deletions(machine: Machine) -> None:
    files = make_files(machine, range(3))
    await machine.drain()
    async with machine.service() as service:
        for name, number in files.items():
            remove(machine, name, number)
        await service.handle(messages.Flush(machine.session, machine.log.position))
        assert set(machine.bucket()) == {""}


async def test_a_session_written_while_another_is_committed_stays_ours(machine: Machine) -> None:
    machine.make(Operation.CREATE, machine.session, "s/f", b"x")
    other = machine.make(Operation.MKDIR, ROOT_NUMBER, "t")
    store = Interrupting(keys.manifest_key(names.session_id("s")))
    machine.store = store
    await machine.drain()
    async with machine.service() as service:
        await service.handle(CommitAll("timer", machine.log.position))

        def write() -> None:
            machine.make(Operation.CREATE, other, "t/late", b"late")
            service._log.apply()

        machine.make(Operation.CREATE, machine.session, "s/g", b"x")
        await service.handle(messages.Drain(machine.log.position, 5.0))
        store.action = write
        await service.handle(CommitAll("timer", machine.log.position))
        found = await service.handle(messages.OpenSession("t", machine.log.position))
    assert isinstance(found, messages.SessionFound)
    assert not found.foreign


async def test_a_session_made_again_while_its_removal_is_committed_is_known(machine: Machine) -> None:
    store = Interrupting(keys.manifest_key(names.session_id("s")))
    machine.store = store
    await machine.drain()
    async with machine.service() as service:
        await service.handle(CommitAll("timer", machine.log.position))
        sequence = machine.log.begin(Operation.RMDIR, number=machine.session, parent=ROOT_NUMBER, name=b"s")
        os.rmdir(machine.path("s"))
        machine.log.finish(sequence, number=machine.session)
        await service.handle(messages.Drain(machine.log.position, 5.0))

        def make() -> None:
            # A claim of the chores' may write the manifest again.
            store.action = lambda: None
            machine.make(Operation.MKDIR, ROOT_NUMBER, "s")
            service._log.apply()

        store.action = make
        await service.handle(CommitAll("timer", machine.log.position))
        found = await service.handle(messages.OpenSession("s", machine.log.position))
        assert isinstance(found, messages.SessionFound)
        assert found.exists
