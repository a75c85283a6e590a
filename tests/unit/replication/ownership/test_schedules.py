"""Two machines, in any order, with faults, deaths, restarts and time that passes for one of them only.

Each schedule is drawn from its number. In all of them: no two acquisitions have one epoch; epochs and generations of the chain never go down; a
generation that was acknowledged stays in it; a machine that beats on time is never robbed.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.formats import ownership
from sessionfs.formats.manifest import Manifest
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import PreconditionFailedError, SessionFSError, UnavailableError
from sessionfs.stores.base import Condition, ObjectMetadata, Token
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FailBefore, Fault, LostResponse, Pass

from .machines import LEASE_SECONDS, SESSION, Killed, Machine

SCHEDULES = 60
STEPS = 40


class History(MemoryStore):
    """Keeps every record and every manifest there ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[OwnerRecord] = []
        self.chain: list[Manifest] = []

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        token = super().put(key, body, condition=condition, metadata=metadata)
        if key == keys.owner_key(SESSION):
            self.records.append(ownership.decode_owner(body, key))
        if key == keys.manifest_key(SESSION):
            self.chain.append(manifests.decode(body, key))
        return token

    def check(self) -> None:
        held = [record.epoch for record in self.records if record.state == "held"]
        assert held == sorted(set(held)), "two acquisitions have one epoch"
        epochs = [manifest.epoch for manifest in self.chain]
        assert epochs == sorted(epochs), "an older owner wrote into the chain after the fence of a later one"
        generations = [manifest.generation for manifest in self.chain]
        assert generations == sorted(generations), "a generation is gone"
        commits = [manifest for manifest in self.chain if manifest.trigger != "claim"]
        assert all(manifest.previous < manifest.generation for manifest in commits if manifest.generation)


class Schedule:
    """One schedule.

    Args:
        directory: Where the machines are.
        seed: Its number.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.history = History()
        self.machines = [Machine(directory / name, name, self.history) for name in ("a", "b")]
        self.acknowledged: list[int] = []
        self.acquisitions = 0
        for machine in self.machines:
            machine.make()

    async def run(self) -> None:
        for _ in range(STEPS):
            machine = self.random.choice(self.machines)
            action = self.random.choice(self.actions())
            self._plan_faults(machine)
            try:
                await action(machine)
            except (SessionFSError, Killed):
                pass
            except BaseExceptionGroup as group:
                assert group.split((SessionFSError, Killed))[1] is None  # noqa: PT017 - a group has no match
            if machine.store.has_killed:
                machine.start()
            machine.store.forget_plans()
            self.history.check()
        self.acquisitions = sum(record.state == "held" for record in self.history.records)

    def close(self) -> None:
        for machine in self.machines:
            machine.close()

    def actions(self) -> list[Callable[[Machine], Awaitable[None]]]:
        often = [self.claim, self.commit, self.beat, self.wait]
        return [*often, *often, self.wait_long, self.release, self.restart, self.settle, self.force]

    async def claim(self, machine: Machine) -> None:
        await machine.own()

    async def force(self, machine: Machine) -> None:
        await machine.own(force=True)

    async def commit(self, machine: Machine) -> None:
        if not machine.owner.may_change(SESSION):
            return
        try:
            if machine.commit():
                self.acknowledged.append(machine.row().generation)
            else:
                machine.owner.lose(SESSION, holder="", reason="fenced")
        except PreconditionFailedError:
            # The number is taken: a real commit skips it.
            return

    async def beat(self, machine: Machine) -> None:
        await machine.owner.pulse()

    async def settle(self, machine: Machine) -> None:
        await machine.owner.settle()
        if machine.owner.owns(SESSION):
            machine.owner.note_caught_up(SESSION)

    async def wait(self, machine: Machine) -> None:
        machine.pass_time(self.random.uniform(0, LEASE_SECONDS / 4))

    async def wait_long(self, machine: Machine) -> None:
        machine.pass_time(LEASE_SECONDS * 1.5)

    async def release(self, machine: Machine) -> None:
        await machine.owner.release(SESSION)

    async def restart(self, machine: Machine) -> None:
        machine.start()
        await machine.owner.resume()
        await self.settle(machine)

    def _plan_faults(self, machine: Machine) -> None:
        drawn = self.random.random()
        if drawn < 0.1:
            machine.kill_at(self.random.randint(1, 6), after=self.random.random() < 0.5)
        elif drawn < 0.3:
            fault: Fault = (
                LostResponse() if self.random.random() < 0.5 else FailBefore(UnavailableError("away"))
            )
            method = self.random.choice(["put", "put", "get"])
            machine.store.plan(method, *(Pass() for _ in range(self.random.randint(0, 3))), fault)
            if self.random.random() < 0.3:
                machine.store.plan("head", FailBefore(UnavailableError("away")))


@pytest.mark.parametrize("seed", range(SCHEDULES))
async def test_no_schedule_makes_two_owners_of_one_epoch(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, seed)
    try:
        await schedule.run()
        numbers = [manifest.generation for manifest in schedule.history.chain]
        assert set(schedule.acknowledged) <= set(numbers)
        assert len(schedule.acknowledged) == len(set(schedule.acknowledged)), "one number twice"
        assert schedule.acquisitions, "this schedule shows nothing"
    finally:
        schedule.close()


async def test_an_owner_that_beats_on_time_is_never_robbed(tmp_path: Path) -> None:
    """Whatever the other machine tries, and however its clock runs."""
    schedule = Schedule(tmp_path, 1)
    owner, other = schedule.machines
    await owner.own()
    for _ in range(100):
        owner.pass_time(schedule.random.uniform(5, 11))
        await owner.owner.pulse()
        other.pass_time(schedule.random.uniform(0, LEASE_SECONDS - 1))
        with pytest.raises(SessionFSError):
            await other.owner.claim(SESSION)
        assert owner.owner.may_change(SESSION)
    assert owner.commit()
    schedule.close()
