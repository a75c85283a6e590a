"""A real PostgreSQL server for tests: Debian's programs, its own process, port, socket and directory, nothing shared.

PostgreSQL does not run as root: then its processes run as the user ``postgres``, which Debian's package makes.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from sessionfs.testing.server_process import START_TIMEOUT_SECONDS, ServerProcess, free_ports

USER = "tester"
PASSWORD = "s3cret-of-tests"  # noqa: S105 - of servers that live as long as a test
DATABASE = "postgres"

_PLACES = "/usr/lib/postgresql"
_FIRST_WITH_ICU_CLUSTERS = 15
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "50",
    "dynamic_shared_memory_type": "mmap",  # nothing is left outside the directory
    "listen_addresses": "127.0.0.1",
    "lc_messages": "C",
}


def programs_path() -> str | None:
    """Give the folder of the newest PostgreSQL's programs: Debian's, else that of ``initdb`` on PATH; None when there is none."""
    found = [
        path for path in Path(_PLACES).glob("*/bin") if os.access(path / "initdb", os.X_OK) and _number(path)
    ]
    if found:
        return str(max(found, key=_number))
    on_path = shutil.which("initdb")
    return os.path.dirname(os.path.realpath(on_path)) if on_path else None


def missing_part() -> str:
    """Say what the server lacks here, "" when it can run."""
    if programs_path() is None:
        return "PostgreSQL's programs are missing (apt-get install postgresql)"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "the user postgres is missing, and PostgreSQL does not run as root"
    return ""


class PostgresServer(ServerProcess):
    """PostgreSQL on 127.0.0.1 and a socket in its directory, with passwords (SCRAM). Use as a context manager.

    Raises:
        RuntimeError: The programs are missing, or it does not start.

    Attributes:
        port: Its port on 127.0.0.1.
    """

    # Its own processes and memory go with the first; SIGKILL would leave them to notice.
    stop_signals = (signal.SIGQUIT, signal.SIGKILL)

    def __init__(self) -> None:
        missing = missing_part()
        programs = programs_path()
        if missing or programs is None:
            raise RuntimeError(missing)
        super().__init__()
        self._programs = programs
        self.port = free_ports(1)[0]
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.directory, account.pw_uid, account.pw_gid)
            self._user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def url(self, *, user: str = USER, password: str = PASSWORD, database: str = DATABASE) -> str:
        """Give a connection string."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def fresh_schema(self) -> str:
        """Give a schema's name that nobody used yet; nothing is made."""
        return f"test_{secrets.token_hex(6)}"

    def command(self) -> list[str]:
        """The server on its port and a socket in its directory."""
        return [
            os.path.join(self._programs, "postgres"),
            f"-D{self._data_path}",
            f"-p{self.port}",
            f"-k{self.directory}",
            *(f"-c{name}={value}" for name, value in _SETTINGS.items()),
        ]

    def _options(self) -> dict[str, Any]:
        return self._user

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    @property
    def _data_path(self) -> str:
        return os.path.join(self.directory, "data")

    def prepare(self) -> None:
        """Make the cluster."""
        password_path = os.path.join(self.directory, "password")
        with open(password_path, "w", encoding="ascii") as file:
            file.write(PASSWORD)
        os.chmod(password_path, 0o644)  # in a directory that only the server's user enters
        made = subprocess.run(
            [
                os.path.join(self._programs, "initdb"),
                f"--pgdata={self._data_path}",
                f"--username={USER}",
                f"--pwfile={password_path}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                *self._locale(),
                "--no-sync",
                "--no-instructions",
            ],
            capture_output=True,
            text=True,
            cwd=self.directory,
            timeout=START_TIMEOUT_SECONDS,
            check=False,
            **self._user,
        )
        os.unlink(password_path)
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr[-2000:]}")

    def _locale(self) -> list[str]:
        """Orders text as a dictionary does where that is to be had: what relies on the order of bytes is to say so itself."""
        has_dictionary_order = _number(Path(self._programs)) >= _FIRST_WITH_ICU_CLUSTERS
        icu = ["--locale-provider=icu", "--icu-locale=en"] if has_dictionary_order else []
        return ["--locale=C", *icu]

    def _answers(self) -> bool:
        import psycopg  # noqa: PLC0415 - only tests that use a server need it

        with contextlib.suppress(psycopg.OperationalError, OSError), socket.socket() as probe:
            # The driver's own wait for a closed port is longer.
            probe.settimeout(1)
            probe.connect(("127.0.0.1", self.port))
            psycopg.connect(self.url(), connect_timeout=5).close()
            return True
        return False


def _number(path: Path) -> int:
    name = path.parent.name
    return int(name) if re.fullmatch(r"[0-9]+", name) else 0
