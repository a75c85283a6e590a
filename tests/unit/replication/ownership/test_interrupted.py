"""A claim, a take-over and a release, ended at every store call, before and after the store did it; then somebody goes on.

Whatever was interrupted: at most one host owns the session, every acquisition has an epoch of its own, and the chain has what was committed.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sessionfs.formats import ownership
from sessionfs.formats.manifest import Manifest
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import SessionAlreadyOwnedError
from sessionfs.replication.ownership.notes import OwnershipNotes
from sessionfs.stores.base import Condition, IfAbsent, ObjectMetadata, Token
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import Interfere, Pass

from .machines import LEASE_SECONDS, SESSION, Killed, Machine


class Remembering(MemoryStore):
    """Keeps every ownership record there ever was."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[ownership.OwnerRecord] = []

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        token = super().put(key, body, condition=condition, metadata=metadata)
        if key == keys.owner_key(SESSION):
            self.records.append(ownership.decode_owner(body, key))
        return token


@dataclass
class Scene:
    """Two machines and their bucket, before what is interrupted."""

    store: Remembering
    a: Machine
    b: Machine

    def pass_time(self, seconds: float) -> None:
        self.a.pass_time(seconds)
        self.b.pass_time(seconds)

    def check(self) -> None:
        held = [record.epoch for record in self.store.records if record.state == "held"]
        assert held == sorted(set(held)), "two acquisitions have one epoch"
        assert self.a.owner.may_change(SESSION) + self.b.owner.may_change(SESSION) <= 1


async def new(scene: Scene) -> int:
    """Nobody had the session."""
    scene.a.make()
    return 0


async def committed(scene: Scene) -> int:
    """The machine itself had it, committed and released it."""
    scene.a.make()
    await scene.a.own()
    assert scene.a.commit()
    await scene.a.owner.release(SESSION)
    scene.a.start()
    return 1


async def released(scene: Scene) -> int:
    """Another machine had it, committed and released it."""
    scene.b.make()
    await scene.b.own()
    assert scene.b.commit()
    await scene.b.owner.release(SESSION)
    scene.a.hydrate()
    return 1


async def held(scene: Scene) -> int:
    """The machine's last process had it when it died."""
    scene.a.make()
    await scene.a.own()
    assert scene.a.commit()
    scene.a.start()
    return 1


async def abandoned(scene: Scene) -> int:
    """Another machine had it when it died, a lease ago."""
    scene.b.make()
    await scene.b.own()
    assert scene.b.commit()
    scene.a.hydrate()
    with pytest.raises(SessionAlreadyOwnedError):
        await scene.a.owner.claim(SESSION)
    scene.pass_time(LEASE_SECONDS)
    return 1


async def claim(machine: Machine) -> None:
    await machine.own()


async def resume(machine: Machine) -> None:
    await machine.owner.resume()


async def claim_and_release(machine: Machine) -> None:
    await machine.own()
    await machine.owner.release(SESSION)


Before = Callable[[Scene], Awaitable[int]]
Action = Callable[[Machine], Awaitable[None]]
CASES: list[tuple[Before, Action]] = [
    (new, claim),
    (committed, claim),
    (released, claim),
    (held, claim),
    (held, resume),
    (abandoned, claim),
    (committed, claim_and_release),
    (released, claim_and_release),
]


async def begin(directory: Path, before: Before) -> tuple[Scene, int]:
    os.mkdir(directory)
    store = Remembering()
    scene = Scene(store, Machine(directory / "a", "a", store), Machine(directory / "b", "b", store))
    return scene, await before(scene)


async def interrupt(machine: Machine, action: Action, call: int, *, after: bool) -> None:
    machine.kill_at(call, after=after)
    try:
        await action(machine)
    except Killed:
        pass
    except BaseExceptionGroup as group:
        assert group.split(Killed)[1] is None  # noqa: PT017 - a group has no match
    else:
        raise AssertionError("it was not interrupted")
    machine.start()


async def every_step(tmp_path: Path, before: Before, action: Action) -> list[tuple[Scene, int, str]]:
    """Give the scene after each interruption."""
    scene, _ = await begin(tmp_path / "whole", before)
    with scene.a.counting() as calls:
        await action(scene.a)
    assert len(calls) >= 4
    scenes: list[tuple[Scene, int, str]] = []
    for call in range(1, len(calls) + 1):
        for after in (False, True):
            scene, generation = await begin(tmp_path / f"{call}{'after' if after else 'before'}", before)
            await interrupt(scene.a, action, call, after=after)
            scene.check()
            scenes.append((scene, generation, f"{calls[call - 1]} {after=}"))
    return scenes


def case_name(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize(("before", "action"), CASES, ids=case_name)
async def test_the_same_machine_goes_on_at_once(tmp_path: Path, before: Before, action: Action) -> None:
    for scene, generation, where in await every_step(tmp_path, before, action):
        machine = scene.a
        if before is abandoned and scene.store.records[-1].holder[0] == "b":
            # Nothing had landed: a taker that starts again begins its wait anew.
            with pytest.raises(SessionAlreadyOwnedError):
                await machine.owner.claim(SESSION)
            machine.pass_time(LEASE_SECONDS)
        await machine.owner.resume()
        got = await machine.own()
        scene.check()
        assert machine.owner.may_change(SESSION), where
        assert got.is_presumed is False
        assert machine.row().generation == generation, where
        assert machine.commit(), where
        manifest = machine.bucket.manifest()
        assert manifest is not None
        assert (manifest.generation, manifest.previous) == (generation + 1, generation), where
        machine.close()
        scene.b.close()


@pytest.mark.parametrize(("before", "action"), CASES, ids=case_name)
async def test_another_machine_goes_on_after_a_lease(tmp_path: Path, before: Before, action: Action) -> None:
    for scene, generation, where in await every_step(tmp_path, before, action):
        other = scene.b
        other.start()
        other.journal.remove_session(SESSION)
        other.hydrate()
        try:
            await other.own()
        except SessionAlreadyOwnedError:
            other.pass_time(LEASE_SECONDS)
            await other.own()
        scene.check()
        assert other.owner.may_change(SESSION), where
        assert other.row().generation == generation, where
        assert other.commit(), where
        # The interrupted one comes back: it finds that it owns nothing, and commits nothing.
        await scene.a.owner.resume()
        with pytest.raises(SessionAlreadyOwnedError):
            await scene.a.owner.claim(SESSION)
        assert not scene.a.commit(), where
        scene.check()
        other.close()
        scene.a.close()


async def test_a_restart_at_any_step_has_no_news_when_nobody_else_was_there(tmp_path: Path) -> None:
    """Else what is owed would be kept aside as a conflict, although nobody contradicts it."""
    for before, action in ((new, claim), (committed, claim), (held, claim), (held, resume)):
        place = tmp_path / f"{case_name(before)}{case_name(action)}"
        os.mkdir(place)
        for scene, _, where in await every_step(place, before, action):
            got = await scene.a.owner.claim(SESSION)
            assert not got.is_news, where
            scene.a.close()
            scene.b.close()


async def test_a_restart_at_any_step_has_news_when_somebody_else_was_there(tmp_path: Path) -> None:
    for before in (released, abandoned):
        place = tmp_path / case_name(before)
        os.mkdir(place)
        for scene, _, where in await every_step(place, before, claim):
            scene.a.pass_time(LEASE_SECONDS)
            try:
                got = await scene.a.owner.claim(SESSION)
            except SessionAlreadyOwnedError:
                scene.a.pass_time(LEASE_SECONDS)
                got = await scene.a.owner.claim(SESSION)
            assert got.is_news, where
            scene.a.close()
            scene.b.close()


async def test_a_record_of_a_dead_process_that_arrives_late_locks_nobody_out(a: Machine) -> None:
    """Its put was sent, the process died, and it lands between the next one's look and its put."""
    a.make()
    dead = a.owner.holder
    a.kill_at(4, after=False)
    with pytest.raises(Killed):
        await a.owner.claim(SESSION)
    a.start()
    assert a.bucket.record() is None
    (write_id,) = OwnershipNotes(a.journal).claims(SESSION)

    def arrives() -> None:
        body = ownership.encode(OwnerRecord(session=SESSION, holder=dead, epoch=1))
        metadata = ObjectMetadata({"sessionfs-write": write_id})
        a.bucket.store.put(keys.owner_key(SESSION), body, condition=IfAbsent(), metadata=metadata)

    a.store.plan("put", Pass(), Interfere(arrives))
    claim = await a.owner.claim(SESSION)
    assert (claim.epoch, claim.is_news) == (2, False)
    assert a.owner.may_change(SESSION)


async def test_a_fence_of_a_dead_process_that_arrives_late_is_fenced_again(a: Machine) -> None:
    a.make()
    dead = a.owner.holder
    a.kill_at(5, after=False)
    with pytest.raises(Killed):
        await a.owner.claim(SESSION)
    a.start()
    late = Manifest(SESSION, 0, epoch=1, holder=dead)
    a.store.plan("put", Pass(), Pass(), Interfere(lambda: a.bucket.put_manifest(late)))
    claim = await a.owner.claim(SESSION)
    manifest = a.bucket.manifest()
    assert manifest is not None
    assert (manifest.epoch, claim.epoch, claim.is_news) == (2, 2, False)


async def test_an_own_commit_whose_answer_was_lost_to_a_crash_is_no_news(a: Machine) -> None:
    a.make()
    await a.own()
    before = a.row().manifest_token
    assert a.commit()
    a.journal.update_session(SESSION, manifest_token=before, generation=0)
    a.start()
    claim = await a.owner.claim(SESSION)
    assert not claim.is_news
    assert a.row().generation == 1
    assert a.commit()
