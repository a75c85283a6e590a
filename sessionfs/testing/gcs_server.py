"""A GCS on loopback for tests: gcp-storage-emulator in its own process, in memory, and in front of it what it leaves out.

``endpoint`` is the whole: conditions hold there. ``bare_endpoint`` is the emulator alone, for what a store says of a server that ignores
conditions. No credentials are needed on either.
"""

from __future__ import annotations

import json
import secrets
import sys
import urllib.parse
import urllib.request
from typing import Self

from sessionfs.testing.gcs_conditions import ConditionsProxy
from sessionfs.testing.server_process import ServerProcess, free_ports

_TIMEOUT_SECONDS = 20.0


class _Emulator(ServerProcess):
    def __init__(self) -> None:
        super().__init__()
        self._port = free_ports(1)[0]
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        program = [sys.executable, "-m", "gcp_storage_emulator", "start"]
        return [*program, "--host", "127.0.0.1", "--port", str(self._port), "--no-store-on-disk", "--quiet"]


class GcsServer:
    """The emulator and its proxy. Use as a context manager.

    Attributes:
        proxy: Keeps the conditions, and a record of what was asked.
    """

    def __init__(self) -> None:
        self._emulator = _Emulator()
        self.proxy = ConditionsProxy(self._emulator.endpoint)

    def __enter__(self) -> Self:
        self._emulator.__enter__()
        self.proxy.__enter__()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.proxy.__exit__()
        self._emulator.__exit__()

    @property
    def endpoint(self) -> str:
        """URL of the whole."""
        return self.proxy.endpoint

    @property
    def bare_endpoint(self) -> str:
        """URL of the emulator alone, which ignores conditions."""
        return self._emulator.endpoint

    def fresh_bucket(self, *, bare: bool = False) -> str:
        """Make a bucket and give its store URL.

        Args:
            bare: Whether the URL names the emulator alone.
        """
        bucket = f"bucket-{secrets.token_hex(6)}"
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.bare_endpoint}/storage/v1/b?project=test",
            data=json.dumps({"name": bucket}).encode("ascii"),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):  # noqa: S310 - as above
            endpoint = self.bare_endpoint if bare else self.endpoint
        return f"gs://{bucket}?{urllib.parse.urlencode({'endpoint': endpoint}, safe=':/')}"
