"""One schedule under way: its steps, and what is judged after each and at the end.

After every step: no generation number has two contents, no epoch or generation goes back, every acknowledged commit is in the chain (or was
collected) and reads byte for byte what its host showed at its cut. At the end, when everything is repaired: one host can own and commit, everything
drains, the newest generation is what its host shows, and all bytes that a program wrote and no program replaced are somewhere.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from sessionfs.model.errors import SessionFSError
from sessionfs.model.names import SessionId
from sessionfs.replication.maintenance.collecting.garbage import Garbage
from sessionfs.replication.maintenance.command_ownership import command_ownership
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.testing.late_store import Fate, Late
from sessionfs.working_copy.layout import ROOT_NUMBER

from .bucket import PREFIX, SESSION, BrokenPromise, Bucket, ServerClock, Tree
from .hosts import ME, SETTINGS, Cut, Host, HostClock, answer
from .programs import PATHS, Programs, Truth
from .schedule import Schedule, Step

_HOUR_NS = 3_600_000_000_000
_END_SECONDS = 3000.0


class Run:
    """One schedule under way."""

    def __init__(self, schedule: Schedule, directory: str, say: Callable[[str], None]) -> None:
        self.schedule = schedule
        self.random = random.Random(schedule.seed + 1)
        self.say = say
        base_ns = time.time_ns()
        self.bucket = Bucket(ServerClock(base_ns + 5 * _HOUR_NS))
        self.late: list[Late] = []
        self.truth = Truth()
        self.cuts: dict[int, list[tuple[int, bytes, Cut]]] = {}
        self.told: dict[int, set[int]] = {number: set() for number in range(schedule.hosts)}
        self.faults: list[list[tuple[Fate, int]]] = [[] for _ in range(schedule.hosts)]
        self.is_away = [False] * schedule.hosts
        self.is_over = False
        self.repaired = trio.Event()
        self._command_clock = HostClock("e", base_ns, schedule.seed)
        self._command_store = TrioStore(self.bucket, self._command_clock, SETTINGS)
        self.hosts = [self._host(number, directory, base_ns) for number in range(schedule.hosts)]
        self.bucket.highest_epoch = lambda: max(host.epoch() for host in self.hosts)
        self.programs = [Programs(host, self.truth) for host in self.hosts]

    def _host(self, number: int, directory: str, base_ns: int) -> Host:
        def fate(method: str, key: str) -> Fate:
            return self._fate(number, method, key)

        def on_number(generation: int, body: bytes, cut: Cut) -> None:
            self.cuts.setdefault(generation, []).append((number, body, cut))

        return Host(
            os.path.join(directory, "ABC"[number]), "abc"[number], self.bucket,
            base_ns=base_ns + (number + 1) * _HOUR_NS, seed=self.schedule.seed * 3 + number, fate=fate, late=self.late,
            on_number=on_number, recovery=self.schedule.recovery,
        )  # fmt: skip

    def _fate(self, number: int, method: str, key: str) -> Fate:
        is_read = method in {"get", "head", "list_page"}
        if self.is_away[number]:
            return Fate.AWAY
        planned = self.faults[number]
        if is_read or not planned:
            return Fate.ANSWERED
        fate, left = planned[0]
        if left > 0:
            planned[0] = (fate, left - 1)
            return Fate.ANSWERED
        planned.pop(0)
        self.say(f"    {'ABC'[number]}'s {method} {key} {fate.value}")
        return fate

    # --- the whole

    async def run(self) -> None:
        """Run it, and judge it.

        Raises:
            BrokenPromise: One does not hold.
        """
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            try:
                await self._begin()
                for step in self.schedule.steps:
                    self.say(f"{trio.current_time():9.3f} {step}")
                    await self._take(step)
                    self._judge_quickly()
                await self._finish()
            finally:
                self.is_over = True
                with trio.CancelScope(shield=True):
                    for host in self.hosts:
                        await host.end()
                nursery.cancel_scope.cancel()

    async def _begin(self) -> None:
        for number, host in enumerate(self.hosts):
            host.boot(self.nursery)
            self.nursery.start_soon(self._keep, number)
        first = self.hosts[0]
        await answer(first.core.mkdir(ROOT_NUMBER, SESSION.encode(), 0o755, ME))
        root = await first.directory(b"")
        await answer(first.core.mkdir(root, b"d", 0o755, ME))
        for path in PATHS[:3]:
            await self.programs[0].do(self.programs[0].write, path, 120)
        if self.random.random() < 0.8:
            await first.core.session_requests.commit(SESSION, "test")

    async def _take(self, step: Step) -> None:
        ended = trio.Event()

        async def run() -> None:
            try:
                await self._step(step)
            finally:
                ended.set()

        self.nursery.start_soon(run)
        patience_seconds = 1000.0 if step.kind == "sleep" else step.patience_seconds or 0.0001
        with trio.move_on_after(patience_seconds):
            await ended.wait()

    async def _step(self, step: Step) -> None:
        host, programs = self.hosts[step.host], self.programs[step.host]
        if step.kind in {"write", "append", "remove", "move", "hold", "go_on", "let_go"}:
            if host.is_up and not host.is_paused:
                await programs.do(getattr(programs, step.kind), *step.arguments)
            return
        await getattr(self, step.kind)(step.host, *step.arguments)

    # --- steps

    async def _request(self, number: int, call: Callable[[], Any]) -> Any:
        host = self.hosts[number]
        if not host.is_up or host.is_paused:
            return None
        try:
            return await host.run_program(call)
        except (SessionFSError, OSError) as problem:
            self.say(f"    {'ABC'[number]}: {problem}")
            return None

    async def look(self, number: int) -> None:
        """A program lists the session."""
        host = self.hosts[number]

        async def call() -> None:
            for path in (b"", b"d"):
                handle = await answer(host.core.opendir(await host.directory(path), ME))
                list(await answer(host.core.readdir(handle, 0)))
                host.core.releasedir(handle)

        await self._request(number, call)

    async def commit(self, number: int) -> None:
        """A person commits."""
        report = await self._request(number, self._commit_of(number))
        if report is not None and not report.is_unchanged:
            self.say(f"    {'ABC'[number]} committed {report.generation} {report.moving}")
            self.told[number].add(report.generation)

    def _commit_of(self, number: int) -> Callable[[], Any]:
        requests = self.hosts[number].core.session_requests
        return lambda: requests.commit(SESSION, "test")

    async def claim(self, number: int) -> None:
        """A person claims."""
        requests = self.hosts[number].core.session_requests
        await self._request(number, lambda: requests.claim(SESSION, force=False))

    async def force(self, number: int) -> None:
        """A person takes over."""
        requests = self.hosts[number].core.session_requests
        await self._request(number, lambda: requests.claim(SESSION, force=True))

    async def release(self, number: int) -> None:
        """A person gives up."""
        requests = self.hosts[number].core.session_requests
        await self._request(number, lambda: requests.release(SESSION))

    async def drain(self, number: int) -> None:
        """A person waits for uploads."""
        await self._request(number, lambda: self.hosts[number].client.drain(10.0))

    async def kill(self, number: int, seconds: float) -> None:
        """Everything of ours on a machine is killed; the page cache stays. Later it is started again."""
        self._collect(number)
        await self.hosts[number].kill()
        await self._wait(seconds)
        await self._start(number)

    async def kill_replication(self, number: int) -> None:
        """The replication process is killed."""
        host = self.hosts[number]
        if host.is_up and not host.is_paused:
            self._collect(number)
            host.kill_replication()

    async def _start(self, number: int) -> None:
        """What is not running is started again."""
        host = self.hosts[number]
        process = host.process
        if process is not None and process.is_dead:
            await process.ended.wait()
        if host.process is not process:
            return
        if not host.is_up:
            host.boot(self.nursery)
        elif process is not None and process.is_dead:
            host.client.detach("killed")
            host.start_replication(self.nursery)

    async def _keep(self, number: int) -> None:
        """As a daemon does, start a replication process when the one before died."""
        host = self.hosts[number]
        while not self.is_over:
            await trio.sleep(0.7)
            if host.is_up and host.process is not None and host.process.ended.is_set():
                await self._start(number)

    async def _wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.repaired.wait()

    async def pause(self, number: int, seconds: float) -> None:
        """The machine sleeps, and wakes."""
        self.hosts[number].pause()
        await self._wait(seconds)
        self.hosts[number].resume()

    async def sleep(self, _number: int, seconds: float) -> None:
        """Time passes."""
        await trio.sleep(seconds)

    async def away(self, number: int, seconds: float) -> None:
        """The line is cut, and repaired."""
        self.is_away[number] = True
        await self._wait(seconds)
        self.is_away[number] = False

    async def fault(self, number: int, fate: Fate, after: int) -> None:
        """Something will happen to a changing request soon."""
        self.faults[number].append((fate, after))

    async def foreign(self, _number: int, path: bytes) -> None:
        """Another tool writes an object, where there is none: what it overwrites nobody can keep."""
        key = f"{PREFIX}/{path.decode()}"
        if self.bucket.body(key) is not None:
            return
        body = self.truth.fresh("tool", 60)
        self.bucket.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())
        self.truth.wrote(body, f"tool {path.decode()}")

    async def arrive(self, _number: int, which: float) -> None:
        """A late request arrives."""
        if self.late:
            late = self.late.pop(int(which * len(self.late)))
            self.say(f"    late: {late.shown}: {late.arrive()}")

    async def collect(self, number: int) -> None:
        """A person collects garbage, after a day in which nothing was late by more than it."""
        if any(host.is_paused for host in self.hosts):
            return
        self.late.clear()
        self.bucket.server_clock.base_ns += 25 * _HOUR_NS
        await self.release(number)
        try:
            async with command_ownership(
                self._command_store, SETTINGS, self._command_clock, host="command"
            ) as exclusive:
                garbage = Garbage(self._command_store, exclusive, self._command_clock, SETTINGS)
                done = await garbage.collect(SessionId(SESSION))
                self.say(
                    f"    collected: {done.retired} retired, {done.removed} removed, {done.expired} expired"
                )
        except SessionFSError as problem:
            self.say(f"    not collected: {problem}")

    # --- the end

    async def _finish(self) -> None:
        self.say(f"{trio.current_time():9.3f} everything is repaired")
        self.repaired.set()
        for number, host in enumerate(self.hosts):
            self.faults[number].clear()
            self.is_away[number] = False
            host.is_held_for = ()
            host.resume()
        await trio.sleep(1.0)
        for number in range(len(self.hosts)):
            self._collect(number)
            await self._start(number)
        while self.late:
            late = self.late.pop(self.random.randrange(len(self.late)))
            if self.random.random() < 0.5:
                self.say(f"    late: {late.shown}: {late.arrive()}")
            await trio.sleep(self.random.choice((0.0, 0.1, 10.0)))
        for programs in self.programs:
            await programs.let_go()
        await trio.sleep(150.0)
        last = self.random.randrange(len(self.hosts))
        with trio.move_on_after(_END_SECONDS) as scope:
            await self._settle(last)
        if scope.cancelled_caught:
            raise BrokenPromise(
                f"it hangs: {[(host.name, host.is_owner(), host.owes()) for host in self.hosts]}"
            )
        for number in range(len(self.hosts)):
            self._collect(number)
        self._judge_quickly()
        self._judge_end(self.hosts[last])

    async def _settle(self, last: int) -> None:
        """Let one host own, commit, and everything drain."""
        host = self.hosts[last]
        while True:
            await self.force(last)
            for one, programs in zip(self.hosts, self.programs, strict=True):
                for key in one.forlorn():
                    # What the message says that a person can do.
                    path = key.removeprefix(f"{PREFIX}/").encode()
                    await programs.do(programs.remove, path)
            await self.commit(last)
            await trio.sleep(20.0)
            if host.is_owner() and not any(one.owes() for one in self.hosts):
                # What was only taken over is no change of its own: the next commit of one must have it.
                await self.programs[last].do(self.programs[last].write, b"end", 3)
                is_committed = await self._request(last, self._commit_of(last)) is not None
                if is_committed and not (host.owes() or host.forlorn() or self._has_changed(host)):
                    return

    def _has_changed(self, host: Host) -> bool:
        row = host.service._journal.session(SESSION)
        return row is None or row.changed

    def _collect(self, number: int) -> None:
        """Note what a host was told, before its journal goes back."""
        host = self.hosts[number]
        if host.is_serving:
            self.told[number] |= set(host.acknowledged())

    # --- judging

    def _judge_quickly(self) -> None:
        if self.bucket.broken:
            raise BrokenPromise(self.bucket.broken)
        for number in range(len(self.hosts)):
            self._collect(number)
        told = {generation for generations in self.told.values() for generation in generations}
        if not told:
            return
        committed = set(self.bucket.committed())
        missing = told - committed - self.bucket.collected
        if missing:
            raise BrokenPromise(f"acknowledged, and not in the chain {sorted(committed)}: {sorted(missing)}")
        for generation in told & committed:
            self._judge_generation(generation)

    def _judge_generation(self, generation: int) -> None:
        body = self.bucket.body(f"{PREFIX}.manifest/{generation:010d}.json")
        cut = next((cut for _, sent, cut in self.cuts[generation] if sent == body), None)
        if cut is None:
            raise BrokenPromise(f"generation {generation} is nobody's")
        tree = self.bucket.read_generation(generation)
        for path, wanted in cut.tree.items():
            self._compare(generation, path, tree.get(path, b"nothing"), wanted)
        # What another tool puts at the moment of a cut may be in the generation or not.
        tools = {path for path, body in tree.items() if body is not None and body.startswith(b"tool")}
        if cut.is_exact and tree.keys() - tools != cut.tree.keys() - tools:
            raise BrokenPromise(
                f"generation {generation} has {sorted(tree)}, at its cut there was {sorted(cut.tree)}"
            )

    def _compare(self, generation: int, path: bytes, found: bytes | None, wanted: bytes | None) -> None:
        if wanted is not None and wanted.startswith(b"sha256:"):
            same = found is not None and hashlib.sha256(found).hexdigest().encode() == wanted[7:]
            same = same or wanted == b"sha256:"
        else:
            same = found == wanted
        if not same:
            raise BrokenPromise(
                f"generation {generation} has {_short(found)} at {path.decode()}, at its cut that was {_short(wanted)}"
            )

    def _judge_end(self, host: Host) -> None:
        generation = self.bucket.newest()["generation"]
        newest = self.bucket.read_generation(generation)
        live = self.bucket.live()
        tree = host.tree()
        # What another tool put is taken over; it alone is no reason for a commit.
        others = {path for path, body in live.items() if body is not None and body.startswith(b"tool")}
        if newest.keys() - others != tree.keys() - others:
            raise BrokenPromise(f"the last commit has {sorted(newest)}, its host shows {sorted(tree)}")
        for path in tree.keys() - others:
            self._compare(generation, path, newest[path], tree[path])
        self._judge_bytes(live)

    def _judge_bytes(self, live: Tree) -> None:
        """No bytes vanish silently."""
        kept = self.bucket.kept_aside() | {body for body in live.values() if body is not None}
        for generation in self.bucket.committed():
            with suppress(BrokenPromise):
                kept |= {
                    body for body in self.bucket.read_generation(generation).values() if body is not None
                }
        for body, where in self.truth.needed().items():
            if body not in kept:
                raise BrokenPromise(f"{_short(body)} of {where} vanished")


def _short(body: bytes | None) -> str:
    if body is None:
        return "a directory"
    heads = b" ".join(part[:8] for part in body.split(b"\n"))
    return f"{heads.decode('utf-8', 'replace')!r}[{len(body)}]"
