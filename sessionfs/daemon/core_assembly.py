"""The Core of a state directory with what it needs of its process; a mount puts a kernel engine before it, a Python door calls it."""

from __future__ import annotations

from collections.abc import Callable

from sessionfs.daemon.mount_request import ReplicationRequest
from sessionfs.daemon.replication_child import Child, ReplicationChild, start_child
from sessionfs.daemon.replication_client import ReplicationClient
from sessionfs.daemon.replication_requests import RequestsOfReplication
from sessionfs.filesystem.core import Core
from sessionfs.formats.link_messages import AnyMessage
from sessionfs.model.clock import Clock
from sessionfs.model.settings import FilesystemSettings
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.lease_page import LeasePage


class CoreAssembly:
    """The parts, made once.

    Args:
        layout: The state directory, locked.
        clock: Time and randomness.
        boot_id: Of this boot.

    Attributes:
        log: The intent log.
    """

    def __init__(self, layout: StateLayout, *, clock: Clock, boot_id: str) -> None:
        self._layout = layout
        self._clock = clock
        self.log = IntentLog(layout.intent_log, boot_id=boot_id, clock=clock)
        self._lease = LeasePage.open(layout.lease, boot_id)

    def client(self, settings: FilesystemSettings) -> ReplicationClient:
        """Make what asks the replication process."""
        return ReplicationClient(
            self.log, timeout_seconds=settings.fetch_timeout_seconds, staging=self._layout.staging
        )

    def core(self, client: ReplicationClient, settings: FilesystemSettings, *, control_socket: str) -> Core:
        """Make the Core; sets the process's umask to 0.

        Args:
            client: Asks the replication process.
            settings: How it answers.
            control_socket: As for `Core`.
        """
        return Core(
            layout=self._layout,
            log=self.log,
            remote=client,
            settings=settings,
            clock=self._clock,
            control_socket=control_socket,
            lease=self._lease,
        )

    def keeper(
        self,
        core: Core,
        client: ReplicationClient,
        request: ReplicationRequest,
        *,
        start: Callable[[ReplicationRequest], Child] = start_child,
        watch: Callable[[AnyMessage], None] = lambda _message: None,
    ) -> ReplicationChild:
        """Make what keeps a replication process running.

        Args:
            core: Answers its requests.
            client: Told of every link.
            request: For processes after the first.
            start: Starts one.
            watch: Shown every message of the process before it is answered.
        """
        requests = RequestsOfReplication(core, self.log)

        async def handle(message: AnyMessage) -> AnyMessage:
            watch(message)
            return await requests.handle(message)

        return ReplicationChild(
            request,
            client=client,
            handler=handle,
            clock=self._clock,
            start=start,
            on_process=core.set_exempt_pid,
        )

    def close(self) -> None:
        """Close the log and the lease, after the Core."""
        self.log.close()
        self._lease.close()
