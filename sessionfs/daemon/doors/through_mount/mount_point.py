"""A live mount as a door sees it: its directory as long as it is mounted, and its control socket.

Invariants:

* Every use opens the mount's root anew and compares its device: a door never writes into the bare directory below a mount that is gone.
* A connection to the daemon is kept open: when it ends the daemon has ended, and a device of the same number is another mount's.
* Nothing of the mount is held open between two calls: the mount can be taken away while the door is open.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import trio

from sessionfs.daemon.checks.mount_points import CONTROL_ATTRIBUTE
from sessionfs.daemon.control.client import ControlClient
from sessionfs.daemon.doors.refusals import GONE, mount_gone
from sessionfs.model.errors import MountError, UnavailableError

_ROOT_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class MountPoint:
    """Where a live mount is. `close` it.

    Args:
        path: Absolute path of the mount.
        control_socket: Path of its control socket.

    Raises:
        UnavailableError: Nobody listens, or nothing is mounted there.
    """

    def __init__(self, path: str, control_socket: str) -> None:
        self.path = path
        self._control_socket = control_socket
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._line.connect(control_socket)
            self._device = os.stat(path).st_dev
            is_ours = os.fsdecode(os.getxattr(path, CONTROL_ATTRIBUTE)) == control_socket
        except OSError:
            is_ours = False
        if not is_ours:
            self._line.close()
            raise mount_gone(path)

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def is_alive(self) -> bool:
        """Say whether the daemon has not ended. Asks nobody."""
        if self._line.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        if not poll.poll(0):
            return True
        with suppress(BlockingIOError):
            try:
                return bool(self._line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
            except ConnectionError:
                return False
        return True

    @contextmanager
    def root(self) -> Iterator[str]:
        """Give a path of the mount's root that means this mount as long as the block lasts.

        Raises:
            UnavailableError: The mount is gone.
        """
        try:
            descriptor = os.open(self.path, _ROOT_FLAGS)
        except OSError:
            raise mount_gone(self.path) from None
        try:
            if os.fstat(descriptor).st_dev != self._device or not self.is_alive():
                raise mount_gone(self.path)
            yield f"/proc/self/fd/{descriptor}/."
        except OSError as problem:
            if problem.errno in GONE or not self.is_alive():
                raise mount_gone(self.path) from None
            raise
        finally:
            os.close(descriptor)

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Ask the daemon; when the caller is cancelled, what it asked for is too.

        Args:
            operation: As in ``control/protocol.py``.
            arguments: Fields of its request.

        Raises:
            UnavailableError: The mount is gone.
            SessionFSError: The daemon's error.
        """
        try:
            client = await trio.to_thread.run_sync(
                partial(ControlClient, self._control_socket, mount_point=self.path)
            )
            try:
                return await trio.to_thread.run_sync(
                    partial(_ask, client, operation, arguments), abandon_on_cancel=True
                )
            finally:
                client.hang_up()
        except MountError as problem:
            raise UnavailableError(problem.message, remedy="open the door again") from None


def _ask(client: ControlClient, operation: str, arguments: dict[str, Any]) -> Any:
    with client:
        return client.call(operation, **arguments)
