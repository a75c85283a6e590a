"""The parts of a mount that need the kernel engine, put together; imported late, because that import takes time."""

from __future__ import annotations

import os
from collections.abc import Callable

import trio

from sessionfs.daemon.checks.mount_points import current_mount_point, mounted_at
from sessionfs.daemon.control.protocol import usable_socket_path
from sessionfs.daemon.control.server import ControlServer
from sessionfs.daemon.core_assembly import CoreAssembly
from sessionfs.daemon.mount_request import MountRequest, ReplicationRequest
from sessionfs.daemon.replication_child import Child
from sessionfs.daemon.running_mount import RunningMount, serve_replication
from sessionfs.daemon.shutdown import Shutdown
from sessionfs.daemon.state_lock import StateLock
from sessionfs.filesystem.engine_pyfuse3 import Pyfuse3Engine
from sessionfs.model.clock import Clock
from sessionfs.model.errors import MountError
from sessionfs.working_copy.layout import StateLayout

_ANSWER_SECONDS = 20.0


class Composition:
    """Makes every component of a mount and runs them.

    Args:
        request: What to mount.
        layout: The state directory, locked.
        clock: Time and randomness.
        boot_id: Of this boot.
        options: Of the mount.
        restart_request: For replication processes after the first.
    """

    def __init__(
        self,
        request: MountRequest,
        *,
        layout: StateLayout,
        clock: Clock,
        boot_id: str,
        options: frozenset[str],
        restart_request: ReplicationRequest,
    ) -> None:
        self._request = request
        self._layout = layout
        self._options = options
        self._restart_request = restart_request
        self._parts = CoreAssembly(layout, clock=clock, boot_id=boot_id)

    async def run(
        self, child: Child, degraded: str, ready: Callable[[tuple[str, ...]], None], lock: StateLock
    ) -> int:
        """Mount and serve until the mount is gone and what was owed is away.

        Args:
            child: The started replication process.
            degraded: Why the store cannot be used now, or "".
            ready: Called with warnings when the mount answers.
            lock: Told when the mount is gone.

        Returns:
            The exit code of the process.
        """
        settings = self._request.settings.filesystem
        client = self._parts.client(settings)
        socket_path = usable_socket_path(self._layout.control_socket)
        core = self._parts.core(client, settings, control_socket=socket_path)
        keeper = self._parts.keeper(core, client, self._restart_request)
        warnings = (f"the store does not answer, and uploads wait: {degraded}",) if degraded else ()
        mount_point = self._request.mount_point
        device_before = os.stat(mount_point).st_dev
        engine = Pyfuse3Engine()
        engine.mount(core, mount_point, set(self._options))
        mounted = mounted_at(mount_point)
        device = mounted.device if mounted else ""
        shutdown = Shutdown(
            core,
            client,
            mount_point=lambda: current_mount_point(mount_point, device),
            on_unmounted=lock.ending,
            pending_turns=core.session_requests.pending_turns,
        )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_replication, keeper, client, child)
                mount = RunningMount(
                    self._request,
                    engine=engine,
                    engine_name="pyfuse3",
                    client=client,
                    child=keeper,
                    shutdown=shutdown,
                    sessions=core.session_requests,
                )
                server = ControlServer(socket_path, mount)
                await server.open()

                async def report() -> None:
                    await wait_until_mounted(mount_point, device_before, self._layout.daemon_log)
                    ready(warnings)

                nursery.start_soon(report)
                nursery.start_soon(core.run_background)
                code = await mount.run(server)
                core.stop_background()
                return code
        finally:
            engine.close()
            core.close()
            self._parts.close()


async def wait_until_mounted(mount_point: str, device_before: int, log_path: str) -> None:
    """Return when the mount answers.

    Args:
        mount_point: Absolute path.
        device_before: ``st_dev`` of the directory below the mount.
        log_path: For the error.

    Raises:
        MountError: It does not within 20 seconds.
    """
    problem = ""
    with trio.move_on_after(_ANSWER_SECONDS):
        try:
            found = await trio.to_thread.run_sync(os.stat, mount_point, abandon_on_cancel=True)
        except OSError as error:
            problem = f": {error.strerror}"
        else:
            if found.st_dev != device_before:
                return
    raise MountError(f"the mount on {mount_point} does not answer{problem}", remedy=f"see {log_path}")
