"""The command line's side of the control socket; blocking."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any, Self

import msgspec

from sessionfs.daemon.control.protocol import NOTHING, Reply, Request, revived_error
from sessionfs.model.errors import MountError, SessionFSError

_decoder = msgspec.json.Decoder(Reply)


def _ignore(_body: dict[str, Any]) -> None:
    """Nobody watches."""


class ControlClient:
    """One connection to a daemon. Use as a context manager.

    Args:
        path: Of the socket.
        mount_point: For messages.

    Raises:
        MountError: Nobody listens.
    """

    def __init__(self, path: str, *, mount_point: str) -> None:
        self._mount_point = mount_point
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except PermissionError:
            self._socket.close()
            raise MountError(
                f"the daemon of {mount_point} belongs to another user", remedy="run this as that user"
            ) from None
        except OSError as problem:
            self._socket.close()
            raise MountError(
                f"the daemon of {mount_point} does not listen on {path}: {problem.strerror}",
                remedy="'sessionfs mount' again, or take the mount away: fusermount3 -u " + mount_point,
            ) from None
        self._file = self._socket.makefile("rb")
        self._identifier = 0

    def call(self, op: str, *, progress: Callable[[dict[str, Any]], None] = _ignore, **arguments: Any) -> Any:
        """Ask, and give the result.

        Args:
            op: The operation.
            progress: Called with every progress body.
            arguments: Fields of `Request`.

        Raises:
            SessionFSError: The daemon's error, or that it went away.
        """
        for reply in self._replies(op, arguments):
            if reply.progress is not NOTHING:
                progress(msgspec.json.decode(reply.progress))
            if reply.result is not NOTHING:
                return msgspec.json.decode(reply.result)
        raise self._gone()

    def events(self, **arguments: Any) -> Iterator[bytes]:
        """Give each event's JSON text as it comes.

        Raises:
            SessionFSError: The daemon's error, or that it went away.
        """
        for reply in self._replies("events", arguments):
            if reply.event is not NOTHING:
                yield bytes(reply.event)
            if reply.result is not NOTHING:
                return
        raise self._gone()

    def wait_until_gone(self, *, seconds: float) -> None:
        """Return when the daemon has ended, or after so long."""
        self._socket.settimeout(seconds)
        with contextlib.suppress(OSError):
            while self._file.readline():
                pass

    def hang_up(self) -> None:
        """Let a call that waits in another thread end with an error; what it asked for is cancelled. `close` still has to be called."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up; what was asked for is cancelled."""
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _replies(self, op: str, arguments: dict[str, Any]) -> Iterator[Reply]:
        self._identifier += 1
        request = Request(op=op, id=self._identifier, **arguments)
        with contextlib.suppress(BrokenPipeError):
            self._socket.sendall(msgspec.json.encode(request) + b"\n")
        while True:
            try:
                line = self._file.readline()
            except ConnectionError:
                return
            if not line:
                return
            reply = _decoder.decode(line)
            if reply.id != self._identifier and reply.error is None:
                continue
            if reply.error is not None:
                body = reply.error
                raise revived_error(body.kind, body.message, body.remedy, body.holder)
            yield reply

    def _gone(self) -> SessionFSError:
        return MountError(
            f"the daemon of {self._mount_point} has ended", remedy="its last words are in daemon.log"
        )
