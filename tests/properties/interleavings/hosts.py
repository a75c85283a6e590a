"""Hosts of a search: each is the whole product on a state directory, the Core and the replication service on one loop, without processes between.

What only a search needs: every thread's work is done on the loop after a random pause (so that a seed says everything), a host can be paused or
killed in the middle of any request, and the journal of a killed process is as it was at that moment.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import trio

from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.daemon.replication_requests import RequestsOfReplication
from sessionfs.filesystem.core import Core
from sessionfs.formats import link_messages as messages
from sessionfs.formats.commit_messages import Barrier, BarrierHeld, FrozenAt, FrozenImage, Thaw
from sessionfs.formats.link_messages import ImageGrant
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model import clock as clocks
from sessionfs.model.errors import SessionFSError, UnavailableError
from sessionfs.model.settings import FilesystemSettings, ReplicationSettings
from sessionfs.replication.service import ReplicationService
from sessionfs.stores.base import ObjectStore
from sessionfs.testing.late_store import Fate, HeldRequest, Late, LateStore
from sessionfs.testing.stopping_store import ProcessDied
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.lease_page import LeasePage

from .bucket import SESSION, Tree

SETTINGS = ReplicationSettings(
    upload_delay_seconds=0.2,
    max_upload_delay_seconds=1.0,
    retry_minimum_seconds=0.1,
    retry_maximum_seconds=5.0,
    access_retry_seconds=5.0,
    copy_minimum_bytes=200,
    append_minimum_bytes=200,
    concurrent_uploads=4,
    snapshot_interval_seconds=0,
    sweep_interval_seconds=3600.0,
    keep_generations=2,
)
_JOURNAL_FILES = ("journal.db", "journal.db-wal")
_BOOT = "0" * 36
_NOWHERE = "are neither on this disk nor in the bucket any more"


@dataclass(frozen=True)
class Somebody:
    uid: int
    gid: int
    pid: int = 0


ME = Somebody(os.geteuid(), os.getegid())


async def answer(result: Any) -> Any:
    """Wait if the call has to."""
    return await result if isawaitable(result) else result


class HostClock:
    """A host's: an hour ahead of the disk's times, further for each host; runs with the loop."""

    def __init__(self, name: str, base_ns: int, seed: int) -> None:
        self._name = name
        self._base_ns = base_ns
        self._ids = 0
        self._random = random.Random(seed)

    def wall_ns(self) -> int:
        return self._base_ns + int(trio.current_time() * 1e9)

    def elapsed_seconds(self) -> float:
        return trio.current_time() + 1000.0

    def jitter(self) -> float:
        return self._random.random()

    def unique_id(self) -> str:
        self._ids += 1
        return f"{self._name}{self._ids:031x}"


# --- threads


_running: ContextVar[Process | None] = ContextVar("running", default=None)


async def _run_sync(
    call: Callable[..., Any],
    *arguments: Any,
    thread_name: str | None = None,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> Any:
    """What a thread does, on the loop."""
    del thread_name
    process = _running.get()
    if process is None:
        await trio.lowlevel.checkpoint()
        return call(*arguments)
    borrower = object()
    if limiter is not None:
        await limiter.acquire_on_behalf_of(borrower)
    try:
        with trio.CancelScope(shield=not abandon_on_cancel):
            return await process.do(lambda: call(*arguments))
    finally:
        if limiter is not None:
            limiter.release_on_behalf_of(borrower)


def _nothing() -> None:
    """No thread is cancelled."""


@contextmanager
def one_loop(seed: int) -> Iterator[None]:
    """Let nothing but a seed decide what comes next."""
    core: Any = trio._core._run  # there is no public way to a fixed order of tasks
    loop: Any = trio
    before = (trio.to_thread.run_sync, trio.from_thread.check_cancelled, core._ALLOW_DETERMINISTIC_SCHEDULING)
    umask = os.umask(0)
    loop.to_thread.run_sync, loop.from_thread.check_cancelled = _run_sync, _nothing
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(seed)
    try:
        yield
    finally:
        loop.to_thread.run_sync, loop.from_thread.check_cancelled = before[:2]
        core._ALLOW_DETERMINISTIC_SCHEDULING = before[2]
        os.umask(umask)


# --- one process


class Process:
    """A replication process: from its start to its death."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.is_dead = False
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        self.nursery: trio.Nursery | None = None

    async def do(self, call: Callable[[], Any]) -> Any:
        """Run a thread's work: later, unless the host is paused or the process dies."""
        await self._pass_time()
        try:
            result = call()
        except ProcessDied:
            self.host.kill_replication()
            raise
        except HeldRequest as held:
            await self.host.hold()
            await self._pass_time()
            result = held.apply()
        await self._pass_time()
        return result

    async def _pass_time(self) -> None:
        self._require_life()
        for _ in range(self.host.random.randrange(3)):
            await trio.lowlevel.checkpoint()
        if self.host.random.random() < 0.3:
            await trio.sleep(self.host.random.choice((0.001, 0.01, 0.1)))
        while not self.host.goes_on.is_set() and not self.is_dead:
            await self.host.goes_on.wait()
        self._require_life()

    def _require_life(self) -> None:
        if self.is_dead:
            raise ProcessDied


class DirectLink:
    """The link between a daemon and its replication process, without bytes in between; see ``replication/link.py``."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._has_ended = False

    @property
    def closed(self) -> bool:
        return self._has_ended or self._process.is_dead

    def end(self) -> None:
        """The process has ended."""
        self._has_ended = True

    async def ask(self, message: Any, _kind: type) -> Any:
        """Send a request."""
        found: list[Any] = []
        ended = trio.Event()

        async def run() -> None:
            _running.set(self._process)
            try:
                found.append(await self._process.host.service.handle(message))
            except SessionFSError as problem:
                found.append(problem)
            finally:
                ended.set()

        if self.closed or self._process.nursery is None:
            raise UnavailableError("the replication process has ended")
        self._process.nursery.start_soon(run)
        await ended.wait()
        if not found:
            raise UnavailableError("the replication process has ended")
        if isinstance(found[0], SessionFSError):
            raise found[0]
        return found[0]

    async def call(self, message: Any) -> Any:
        """Send a request."""
        return await self.ask(message, object)

    def notify(self, message: Any) -> None:
        """Send a notice."""
        if isinstance(message, messages.LogGrew) and not self.closed:
            self._process.host.service._log.note_growth()


class Daemon:
    """The daemon as one process sees it; a dead one sees nothing, and changes nothing."""

    def __init__(self, process: Process, requests: RequestsOfReplication) -> None:
        self._process = process
        self._requests = requests

    async def _ask(self, message: Any) -> Any:
        self._process._require_life()
        return await self._requests.handle(message)

    async def begin_image(self, number: int) -> ImageGrant:
        return await self._ask(messages.BeginImage(number))  # type: ignore[no-any-return]

    async def end_image(self, number: int) -> ImageGrant:
        return await self._ask(messages.EndImage(number))  # type: ignore[no-any-return]

    async def evict(self, request: messages.Evict) -> bool:
        return bool((await self._ask(request)).done)

    async def barrier(self, request: Barrier) -> BarrierHeld:
        held = await self._ask(request)
        self._process.host.note_cut(held)
        return held  # type: ignore[no-any-return]

    async def frozen_image(self, request: FrozenImage) -> FrozenAt:
        return await self._ask(request)  # type: ignore[no-any-return]

    async def thaw(self, request: Thaw) -> None:
        await self._ask(request)

    def session_state(self, state: SessionState) -> None:
        if not self._process.is_dead:
            self._process.host.core.note_session_state(state)

    def log_consumed(self, position: int) -> None:
        if not self._process.is_dead:
            self._process.host.core.note_log_consumed(position)
            self._process.host.log.cut(position)


# --- one host


@dataclass(frozen=True)
class Cut:
    """What a host showed to programs when a commit took its cut.

    Attributes:
        tree: Bytes by path; of a file whose bytes are not here, ``b"sha256:..."``.
        is_exact: Whether every operation was in the journal already; else what is not on the disk is uncertain.
    """

    tree: Tree
    is_exact: bool


class Host:
    """One machine.

    Attributes:
        cuts: The last cut, and the one of each generation that was sent, by its bytes.
        goes_on: Set while the machine is not paused.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        bucket: ObjectStore,
        *,
        base_ns: int,
        seed: int,
        fate: Callable[[str, str], Fate],
        late: list[Late],
        on_number: Callable[[int, bytes, Cut], None],
        recovery: str,
    ) -> None:
        self.name = name
        self.random = random.Random(seed)
        self.clock = HostClock(name, base_ns, seed)
        self.layout = StateLayout(directory)
        self.layout.create()
        self.settings = ReplicationSettings(
            **{
                **{field: getattr(SETTINGS, field) for field in SETTINGS.__struct_fields__},
                "recovery": recovery,
            }
        )
        self.bucket = bucket
        self.store = _CommitWatch(LateStore(bucket, name, fate, late), self)
        self.on_number = on_number
        self.goes_on = trio.Event()
        self.goes_on.set()
        self.cut = Cut({}, is_exact=False)
        self.process: Process | None = None
        self._scopes: set[trio.CancelScope] = set()
        self.is_up = False
        self.is_held_for: tuple[float, ...] = (1.0, 20.0, 80.0, 150.0)

    # --- life

    def boot(self, nursery: trio.Nursery) -> None:
        """Start the daemon and its replication process."""
        for directory in (self.layout.staging, self.layout.trash):
            for entry in os.scandir(directory):
                os.unlink(entry.path)
        self.log = IntentLog(self.layout.intent_log, boot_id=_BOOT, clock=self.clock)
        self.client = ReplicationClient(self.log, timeout_seconds=30.0, staging=self.layout.staging)
        self.page = LeasePage.open(self.layout.lease, clocks.boot_id())
        self.core = Core(
            layout=self.layout, log=self.log, remote=self.client, settings=FilesystemSettings(), clock=self.clock,
            control_socket="/control", groups=lambda _pid: (), lease=self.page,
        )  # fmt: skip
        self.is_up = True
        nursery.start_soon(self._run_client, self.client)
        self.start_replication(nursery)

    async def _run_client(self, client: ReplicationClient) -> None:
        with self._until_killed():
            await client.run()

    def start_replication(self, nursery: trio.Nursery) -> None:
        """Start a replication process on what the one before left."""
        self.process = process = Process(self)
        daemon = Daemon(process, RequestsOfReplication(self.core, self.log))
        self.service = ReplicationService(
            self.store, self.layout, self.settings, clock=self.clock, mount_point="", daemon=daemon
        )
        nursery.start_soon(self._serve, process, self.service)

    async def _serve(self, process: Process, service: ReplicationService) -> None:
        _running.set(process)
        link = DirectLink(process)
        try:
            with process.scope:
                async with trio.open_nursery() as nursery:
                    process.nursery = nursery
                    await nursery.start(service.run)
                    self.client.attach(link)  # type: ignore[arg-type]
                    await trio.sleep_forever()
        except BaseException:
            if not process.is_dead:
                raise
        finally:
            link.end()
            process.nursery = None
            service.close()
            if process.is_dead:
                self._take_killed_journal()
            process.ended.set()

    def kill_replication(self) -> None:
        """Kill the replication process, now."""
        process = self.process
        if process is None or process.is_dead:
            return
        for name in _JOURNAL_FILES:
            path = os.path.join(self.layout.root, name)
            if os.path.exists(path):
                shutil.copyfile(path, path + ".killed")
        process.is_dead = True
        process.scope.cancel()

    def _take_killed_journal(self) -> None:
        for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
            path = os.path.join(self.layout.root, name)
            if os.path.exists(path):
                os.unlink(path)
            if os.path.exists(path + ".killed"):
                os.rename(path + ".killed", path)

    async def kill(self) -> None:
        """Kill everything on this machine that is ours, programs too."""
        if not self.is_up:
            return
        self.is_up = False
        self.kill_replication()
        for scope in self._scopes:
            scope.cancel()
        log, core, page = self.log, self.core, self.page
        os.close(log._descriptor)
        log._descriptor = -1
        for handle in core._volume.handles.values():
            if handle.descriptor >= 0:
                os.close(handle.descriptor)
        core._volume.handles.clear()
        core._volume.table.close()
        self.goes_on.set()
        if self.process is not None:
            await self.process.ended.wait()
        page.close()

    async def end(self) -> None:
        """The search is over."""
        await self.kill()

    def pause(self) -> None:
        """Stop the machine: nothing of it goes on."""
        if self.goes_on.is_set():
            self.goes_on = trio.Event()

    async def hold(self) -> None:
        """Stop the machine for a while."""
        self.pause()
        with trio.move_on_after(self.random.choice(self.is_held_for or (0.0,))):
            await self.goes_on.wait()
        self.resume()

    def resume(self) -> None:
        """Let it go on."""
        self.goes_on.set()

    @property
    def is_serving(self) -> bool:
        return self.is_up and self.process is not None and not self.process.is_dead

    @property
    def is_paused(self) -> bool:
        return not self.goes_on.is_set()

    # --- what it shows

    def disk(self, path: bytes = b"") -> bytes:
        return os.path.join(os.fsencode(self.layout.sessions), SESSION.encode(), path).rstrip(b"/")

    def tree(self) -> Tree:
        """What programs see, as the journal knows it: bytes, or the sum of what is not on this disk."""
        journal = self.service._journal
        row = journal.session(SESSION)
        found: Tree = {}
        if row is None:
            return found
        for path, node in journal.tree(row.root):
            if not path:
                continue
            if stat.S_ISDIR(node.mode):
                found[path] = None
            elif node.present and os.path.lexists(self.disk(path)):
                with open(self.disk(path), "rb") as file:
                    found[path] = file.read()
            else:
                found[path] = b"sha256:" + node.sha256.encode()
        return found

    def on_disk(self) -> Tree:
        """Files on this disk."""
        found: Tree = {}
        root = self.disk()
        for directory, _, files in os.walk(root):
            for name in files:
                whole = os.path.join(directory, name)
                with open(whole, "rb") as file:
                    found[os.path.relpath(whole, root)] = file.read()
        return found

    def note_cut(self, held: BarrierHeld) -> None:
        """A commit takes its cut."""
        is_exact = held.log_position == self.service._log.position
        self.cut = Cut(self.tree() if is_exact else self.on_disk(), is_exact=is_exact)

    def owes(self) -> list[str]:
        """Keys that are owed, without `forlorn`."""
        rows = self.service._journal.all_work()
        return [f"{row.key}: {row.state} {row.reason}" for row in rows if row.key not in self.forlorn()]

    def forlorn(self) -> set[str]:
        """Keys of files that are only known by their sum: whoever wrote them replaced them himself before anybody else had read them."""
        rows = self.service._journal.all_work()
        return {row.key for row in rows if row.state == "stuck" and _NOWHERE in row.reason}

    def is_owner(self) -> bool:
        """Whether it thinks so."""
        return self.service._ownership.owns(SESSION)

    def epoch(self) -> int:
        """Of its ownership; 0 for none."""
        return self.service._ownership.epoch(SESSION) if self.is_serving else 0

    def acknowledged(self) -> list[int]:
        """Generations that this host was told, or told, are committed."""
        events = self.service._journal.events(0, 10_000)
        return [
            int(event.fields["generation"])
            for event in events
            if event.name == "session.snapshot.result" and event.fields.get("ok")
        ]

    # --- programs

    @contextmanager
    def _until_killed(self) -> Iterator[None]:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)

    async def run_program(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Run something that a program, or a person, does; None when the machine died meanwhile."""
        found: list[Any] = []
        with self._until_killed():
            found.append(await call())
        return found[0] if found else None

    async def directory(self, path: bytes) -> int:
        """Number of a directory.

        Raises:
            OSError: There is none.
        """
        number = ROOT_NUMBER
        for name in (SESSION.encode(), *[part for part in path.split(b"/") if part]):
            shown = await answer(self.core.lookup(number, name, ME))
            if shown.number == 0:
                raise FileNotFoundError(2, "no such name", name)
            number = shown.number
        return int(number)

    def read_now(self, path: bytes) -> bytes | None:
        """Bytes of a file on this disk; None when it is not here."""
        with suppress(OSError), open(self.disk(path), "rb") as file:
            return file.read()
        return None


class _CommitWatch(LateStore):
    """Notes with which cut a host writes which generation."""

    def __init__(self, line: LateStore, host: Host) -> None:
        super().__init__(line.inner, host.name, line._decide, line._late)
        self._host = host

    def put(self, key: str, body: bytes, **named: Any) -> Any:
        prefix = f"sessions/{SESSION}.manifest/"
        number = key.removeprefix(prefix).removesuffix(".json")
        if key.startswith(prefix) and number.isdigit():
            cut, forlorn = self._host.cut, {key.partition("/s/")[2].encode() for key in self._host.forlorn()}
            tree = {path: shown for path, shown in cut.tree.items() if path not in forlorn}
            self._host.on_number(int(number), body, Cut(tree, cut.is_exact and not forlorn))
        return super().put(key, body, **named)
