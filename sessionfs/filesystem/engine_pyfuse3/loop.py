"""A cheaper loop for pyfuse3, and the thread that tells the kernel to forget.

pyfuse3's stock loop spends three quarters of a request's cost in trio. `Reactor` stands in for the name ``trio`` inside it, as pyfuse3's own asyncio
support does:

* after a request it looks for the next one for a moment before it sleeps in trio;
* it lets trio run other tasks every `_REQUESTS_PER_TURN` requests;
* its read lock wakes another worker only when a handler is about to wait.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import select
import threading
import types
from collections.abc import Callable, Iterator

import pyfuse3
import structlog
import trio

_log = structlog.get_logger(__name__)

_REQUESTS_PER_TURN = 64
_LOOK_SECONDS = 0.0001
_MAX_SELECT_DESCRIPTOR = 1024
_NOTIFIER_END_SECONDS = 2.0


class _ReadLock:
    """Free when nobody has it; a waiting worker is woken by `Reactor.wake_another` only."""

    def __init__(self) -> None:
        self.held = False
        self.closing = False
        self.waiting = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        while self.held and not self.closing:
            await self.waiting.park()
        self.held = True

    async def __aexit__(self, *_: object) -> None:
        self.held = False


class Reactor:
    """What pyfuse3 sees as ``trio``.

    Args:
        on_end: Called, perhaps more than once, when the mount has ended.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._lock = _ReadLock()
        self._served = 0
        self._poll = select.poll()
        self._descriptor = -1

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Stand in for trio inside pyfuse3."""
        library: types.ModuleType = pyfuse3
        before = library.trio
        facade = types.ModuleType("trio_for_pyfuse3")
        facade.__dict__.update(trio.__dict__)
        facade.__dict__["Lock"] = lambda: self._lock
        facade.__dict__["lowlevel"] = types.ModuleType("trio_for_pyfuse3.lowlevel")
        facade.lowlevel.__dict__.update(trio.lowlevel.__dict__)
        facade.lowlevel.__dict__["wait_readable"] = self._wait_readable
        library.trio = facade  # type: ignore[attr-defined]
        try:
            yield
        finally:
            library.trio = before  # type: ignore[attr-defined]

    def wake_another(self) -> None:
        """Let another worker read: the calling one is about to wait."""
        if not self._lock.held:
            self._lock.waiting.unpark()

    def close(self) -> None:
        """Let every worker look whether the mount has ended."""
        self._lock.closing = True
        self._lock.waiting.unpark_all()
        self._on_end()

    async def _wait_readable(self, descriptor: int) -> None:
        if descriptor != self._descriptor:
            self._poll.register(descriptor, select.POLLIN)
            self._descriptor = descriptor
        self._served += 1
        if self._served >= _REQUESTS_PER_TURN:
            self._served = 0
            await trio.lowlevel.checkpoint()
        events = self._poll.poll(0)
        if not events and descriptor < _MAX_SELECT_DESCRIPTOR:
            select.select((descriptor,), (), (), _LOOK_SECONDS)
            events = self._poll.poll(0)
        if not events:
            self._served = 0
            try:
                await trio.lowlevel.wait_readable(descriptor)
            except BaseException:
                self.close()
                raise
            events = self._poll.poll(0)
        if events and events[0][1] & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
            self.close()


class KernelNotifier:
    """Tells the kernel to forget, from a thread of its own: the kernel may answer only after a request that is under way."""

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="kernel-notifier", daemon=True)
        self._thread.start()

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Forget a name, soon."""
        self._wanted.put((parent, name))

    def invalidate_inode(self, number: int) -> None:
        """Forget attributes and pages, soon."""
        self._wanted.put((number, b""))

    def close(self) -> None:
        """Send nothing more; a mount that ends must not be told anything."""
        self._closing = True
        self._wanted.put(None)

    def ended(self) -> bool:
        """Say whether nothing is being sent; waits a moment for it."""
        if self._thread is None:
            return True
        self._thread.join(_NOTIFIER_END_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing:
            wanted = self._wanted.get()
            if wanted is None or self._closing:
                return
            number, name = wanted
            try:
                if name:
                    pyfuse3.invalidate_entry(number, name)
                else:
                    pyfuse3.invalidate_inode(number)
            except OSError as problem:
                if problem.errno != errno.ENOENT:
                    _log.warning("kernel.not_told", number=number, reason=problem.strerror)
