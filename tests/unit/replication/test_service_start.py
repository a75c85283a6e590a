"""A start after something was lost: the journal, the log, the log's end, or the process in the middle of the first walk."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from sessionfs.formats import link_messages as messages
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import (
    ImageGrant,
)
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import NotFoundError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.service import ReplicationService
from sessionfs.stores.base import IfAbsent, ObjectMetadata
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.reconciliation.reconcile import Reconciliation
from tests.unit.replication.copying_freezer import CopyingFreezer

SETTINGS = ReplicationSettings(
    upload_delay_seconds=0.0, max_upload_delay_seconds=0.0, retry_minimum_seconds=0.01,
    retry_maximum_seconds=0.05,
)  # fmt: skip


class Daemon(CopyingFreezer):
    """A daemon in which nothing is open."""

    def __init__(self, layout: StateLayout, position: Callable[[], int]) -> None:
        super().__init__(layout, position)
        self.states: list[SessionState] = []

    def session_state(self, state: SessionState) -> None:
        self.states.append(state)

    async def begin_image(self, number: int) -> ImageGrant:
        raise NotFoundError(f"file {number} is not open here")

    async def end_image(self, number: int) -> ImageGrant:
        raise NotFoundError(f"file {number} is not open here")

    async def evict(self, _request: messages.Evict) -> bool:
        return False

    def log_consumed(self, _position: int) -> None:
        """Nothing is cut."""


class Machine:
    """A working copy, the log that a daemon writes, and a bucket."""

    def __init__(self, root: Path) -> None:
        self.layout = StateLayout(str(root))
        self.layout.create()
        self.store = MemoryStore()
        self.settings = SETTINGS
        self.open_log()
        self.daemon = Daemon(self.layout, lambda: self.log.position)
        self.session = self.make(Operation.MKDIR, ROOT_NUMBER, "s")

    def open_log(self) -> None:
        self.log = IntentLog(self.layout.intent_log, boot_id="b" * 36, clock=SystemClock())

    def path(self, inside: str) -> Path:
        return Path(self.layout.sessions) / inside

    def make(self, operation: Operation, parent: int, path: str, body: bytes = b"") -> int:
        name = path.rpartition("/")[2].encode()
        sequence = self.log.begin(operation, parent=parent, name=name, mode=stat.S_IFREG | 0o644)
        if operation == Operation.MKDIR:
            self.path(path).mkdir()
        else:
            self.path(path).write_bytes(body)
        number = self.path(path).lstat().st_ino
        self.log.finish(sequence, number=number)
        return number

    @asynccontextmanager
    async def service(self) -> AsyncIterator[ReplicationService]:
        made = ReplicationService(
            self.store, self.layout, self.settings, clock=SystemClock(), mount_point="", daemon=self.daemon
        )
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(made.run)
                yield made
                nursery.cancel_scope.cancel()
        finally:
            made.close()

    async def drain(self) -> None:
        """One life of the replication process, as a clean unmount sees it: nothing is owed at its end."""
        async with self.service() as service:
            with trio.fail_after(10):
                left = await service.handle(messages.Drain(self.log.position, 5.0))
        assert isinstance(left, messages.Drained)
        assert (left.owed_files, left.paths) == (0, [])

    def bucket(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for page in self.store.list_all("sessions/s/"):
            for entry in page.objects:
                with self.store.get(entry.key, byte_range=None, expected=None) as body:
                    found[entry.key.removeprefix("sessions/s/")] = body.read()
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "state")


async def test_what_is_done_after_a_lost_log_reaches_the_bucket(machine: Machine) -> None:
    for count in range(50):
        machine.make(Operation.CREATE, machine.session, f"s/before{count}", b"x")
    await machine.drain()
    machine.log.close()
    os.unlink(machine.layout.intent_log)
    machine.path("s/unrecorded").write_bytes(b"its record was lost")
    machine.open_log()
    machine.make(Operation.CREATE, machine.session, "s/after", b"new")
    await machine.drain()
    machine.make(Operation.CREATE, machine.session, "s/later", b"newer")
    await machine.drain()
    bucket = machine.bucket()
    assert (bucket["after"], bucket["later"]) == (b"new", b"newer")
    assert bucket["unrecorded"] == b"its record was lost"
    assert len(bucket) == 54


async def test_a_log_that_lost_its_end_in_a_power_cut_goes_on(machine: Machine) -> None:
    machine.make(Operation.CREATE, machine.session, "s/first", b"1")
    machine.log.close()
    kept = _read(machine.layout.intent_log)
    machine.open_log()
    for count in range(20):
        machine.make(Operation.CREATE, machine.session, f"s/f{count}", b"x")
    await machine.drain()
    machine.log.close()
    _write(machine.layout.intent_log, kept)
    machine.open_log()
    machine.make(Operation.CREATE, machine.session, "s/after", b"new")
    await machine.drain()
    assert machine.bucket()["after"] == b"new"


async def test_a_new_log_as_long_as_the_lost_one_is_not_taken_for_it(machine: Machine) -> None:
    machine.make(Operation.CREATE, machine.session, "s/first", b"1")
    await machine.drain()
    size_bytes = machine.log.position
    machine.log.close()
    os.unlink(machine.layout.intent_log)
    machine.open_log()
    number = machine.make(Operation.CREATE, machine.session, "s/after", b"new")
    while machine.log.position < size_bytes:
        machine.log.note(Operation.WRITTEN, number=number)
    await machine.drain()
    assert machine.bucket()["after"] == b"new"


async def test_a_process_that_dies_in_its_first_walk_walks_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.path("s/unrecorded").write_bytes(b"only on the disk")

    def die(_self: Reconciliation) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(Reconciliation, "run", die)
    with pytest.raises(RuntimeError):
        _service(machine).start()
    monkeypatch.undo()
    await machine.drain()
    assert machine.bucket()["unrecorded"] == b"only on the disk"


async def test_a_lost_journal_with_its_log_shows_again_what_is_only_in_the_bucket(machine: Machine) -> None:
    machine.make(Operation.CREATE, machine.session, "s/here", b"here")
    await machine.drain()
    _lose_journal(machine)
    machine.store.put("sessions/s/evicted", b"far", condition=IfAbsent(), metadata=ObjectMetadata())
    async with machine.service() as service:
        found = await service.handle(messages.OpenSession("s", machine.log.position))
        assert isinstance(found, messages.SessionFound)
        children = await service.handle(messages.ListChildren(machine.session, machine.log.position))
    assert isinstance(children, messages.Children)
    assert [entry.name for entry in children.entries] == [b"evicted"]


async def test_a_copied_state_directory_owes_what_is_changed_in_it(machine: Machine, tmp_path: Path) -> None:
    inner = machine.make(Operation.MKDIR, machine.session, "s/d")
    for name in ("a", "b", "c"):
        machine.make(Operation.CREATE, inner, f"s/d/{name}", name.encode())
    await machine.drain()
    machine.log.close()
    # The old one stays, so that every file of the copy has another number.
    os.rename(machine.layout.sessions, tmp_path / "old")
    shutil.copytree(tmp_path / "old", machine.layout.sessions, symlinks=True)
    _forget_boot(machine)
    machine.open_log()
    async with machine.service() as service:
        root = await service.handle(messages.OpenSession("s", machine.log.position))
        assert isinstance(root, messages.SessionFound)
        assert root.root is not None
        listed = await service.handle(messages.ListChildren(root.root.number, machine.log.position))
        assert isinstance(listed, messages.Children)
    numbers = {entry.name: entry.number for entry in listed.entries}
    directory = numbers.get(b"d", machine.path("s/d").lstat().st_ino)
    machine.make(Operation.CREATE, directory, "s/d/new", b"new")
    await machine.drain()
    assert machine.bucket() == {
        "": b"", "d/": b"", "d/a": b"a", "d/b": b"b", "d/c": b"c", "d/new": b"new",
    }  # fmt: skip


def _service(machine: Machine) -> ReplicationService:
    return ReplicationService(
        machine.store, machine.layout, SETTINGS, clock=SystemClock(), mount_point="", daemon=machine.daemon
    )


def _forget_boot(machine: Machine) -> None:
    service = _service(machine)
    service._journal.set_meta("boot_id", "another")
    service.close()


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _write(path: str, body: bytes) -> None:
    Path(path).write_bytes(body)


def _lose_journal(machine: Machine) -> None:
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        Path(machine.layout.root, name).unlink(missing_ok=True)
