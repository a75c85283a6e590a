"""Runs a Core with the pyfuse3 engine and a `FakeRemote` in a child process, and lets a test reach into it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import trio

from sessionfs.filesystem.core import Core
from sessionfs.filesystem.engine_pyfuse3 import Pyfuse3Engine
from sessionfs.model.clock import SystemClock
from sessionfs.model.settings import FilesystemSettings
from sessionfs.testing.fake_remote import FakeRemote
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import StateLayout

Rig = tuple[Core, FakeRemote]
READY_SECONDS = 20.0


class Mounted:
    """A mount under test.

    Attributes:
        path: The mount point.
        layout: Its state directory.
    """

    def __init__(self, path: str, layout: StateLayout, process: Any, link: Connection) -> None:
        self.path = path
        self.layout = layout
        self.process = process
        self._link = link
        self._ended = False

    def at(self, *names: str) -> str:
        """Give a path in the mount."""
        return os.path.join(self.path, *names)

    def ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a module-level function in the child with its Core and FakeRemote first."""
        self._link.send((call, arguments, named))
        ok, answer = self._link.recv()
        if not ok:
            raise RuntimeError(answer)
        return answer

    def remote(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the child's FakeRemote."""
        return self.ask(_call_remote, method, *arguments, **named)

    def unmount(self) -> None:
        """End the mount, lazily, and the child."""
        if self._ended:
            return
        self._ended = True
        if self.process.is_alive():
            with contextlib.suppress(OSError):
                self._link.send(None)
            self.process.join(10)
        subprocess.run(["fusermount3", "-u", "-z", self.path], check=False, capture_output=True)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        self._link.close()


def _call_remote(rig: Rig, method: str, *arguments: Any, **named: Any) -> Any:
    return getattr(rig[1], method)(*arguments, **named)


def start(
    state: str, mount_point: str, settings: FilesystemSettings, prepare: Callable[[FakeRemote], Any] | None,
    options: set[str] | None = None,
) -> tuple[Mounted, Any]:  # fmt: skip
    """Mount; gives the mount and what `prepare` gave."""
    layout = StateLayout(state)
    layout.create()
    os.makedirs(mount_point, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_child, args=(state, mount_point, settings, prepare, options or set(), theirs)
    )
    process.start()
    theirs.close()
    if not ours.poll(READY_SECONDS):
        process.kill()
        raise RuntimeError("the mount did not come up")
    prepared = ours.recv()
    mounted = Mounted(mount_point, layout, process, ours)
    deadline = time.monotonic() + READY_SECONDS
    while not os.path.ismount(mount_point):
        if time.monotonic() > deadline:
            raise RuntimeError("the mount does not answer")
        time.sleep(0.01)
    return mounted, prepared


def _child(
    state: str, mount_point: str, settings: FilesystemSettings, prepare: Callable[[FakeRemote], Any] | None,
    options: set[str], link: Connection,
) -> None:  # fmt: skip
    layout = StateLayout(state)
    clock = SystemClock()
    log = IntentLog(layout.intent_log, boot_id="0" * 36, clock=clock)
    remote = FakeRemote(layout)
    prepared = prepare(remote) if prepare is not None else None
    core = Core(
        layout=layout,
        log=log,
        remote=remote,
        settings=settings,
        clock=clock,
        control_socket=layout.control_socket,
    )
    engine = Pyfuse3Engine()
    engine.mount(core, mount_point, {"fsname=fake:", *options})
    link.send(prepared)

    async def run() -> None:
        token = trio.lowlevel.current_trio_token()
        threading.Thread(target=_obey, args=(link, token, (core, remote), engine), daemon=True).start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(core.run_background)
            await engine.serve()
            core.stop_background()

    try:
        trio.run(run)
    finally:
        engine.close()
        core.close()


def _obey(link: Connection, token: trio.lowlevel.TrioToken, rig: Rig, engine: Pyfuse3Engine) -> None:
    """Run what the test sends, on the loop."""
    while True:
        try:
            order = link.recv()
        except EOFError:
            order = None
        if order is None:
            trio.from_thread.run_sync(engine.unmount, trio_token=token)
            return
        call, arguments, named = order
        try:
            answer = trio.from_thread.run_sync(lambda: call(rig, *arguments, **named), trio_token=token)  # noqa: B023
            link.send((True, answer))
        except Exception as problem:  # noqa: BLE001 - the test reports it
            link.send((False, repr(problem)))
