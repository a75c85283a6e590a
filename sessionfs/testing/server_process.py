"""Servers for tests: their own processes, ports and directories on loopback, nothing shared, killed by their own process ids."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from typing import Any, Self

START_TIMEOUT_SECONDS = 60.0
_STOP_TIMEOUT_SECONDS = 20.0


def free_ports(count: int) -> list[int]:
    """Give ports of 127.0.0.1 that were free a moment ago, below the range from which outgoing connections take theirs."""
    found: list[int] = []
    while len(found) < count:
        port = 10240 + secrets.randbelow(20000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


class ServerProcess:
    """A server in its own process group, with a directory of its own. Use as a context manager.

    Attributes:
        directory: Everything that it writes.
        endpoint: Its URL, for servers of HTTP.
    """

    endpoint: str
    stop_signals: Sequence[int] = (signal.SIGKILL,)
    """Sent one after the other, as long as it lives."""

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="sessionfs-server-")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The server's process, 0 while it is stopped."""
        return self._process.pid if self._process else 0

    def prepare(self) -> None:
        """Make what the server needs before its first start."""

    def command(self) -> list[str]:
        """The command that runs the server."""
        raise AssertionError("each server has its command")

    def start(self) -> None:
        """Start it, and wait until it answers; after `stop`, on the same ports with the same data."""
        if self._process is not None:
            return
        # The child gets the log's descriptor; ours is not needed once it runs.
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self._environment(),
                start_new_session=True,
                **self._options(),
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Kill the server's own processes; its data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in self.stop_signals:
            self._signal(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_SECONDS)
                return
        raise RuntimeError(f"the test server {process.pid} does not end")

    @property
    def log_path(self) -> str:
        """The file with what the server printed."""
        return os.path.join(self.directory, "server.log")

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _options(self) -> dict[str, Any]:
        """More arguments of ``subprocess.Popen``."""
        return {}

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.05)
        with open(self.log_path, "rb") as log:
            tail = log.read()[-2000:].decode("utf-8", "replace")
        self.stop()
        raise RuntimeError(f"the test server did not start: {tail}")

    def _answers(self) -> bool:
        return http_get(self.endpoint)[0] in {200, 403}


def http_get(url: str, path: str = "/") -> tuple[int, bytes]:
    """Ask a server once; status 0 when it does not answer."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
