"""Bad input to the real command: one line that names the thing and the remedy, the documented exit code, nothing changed."""

from __future__ import annotations

import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sessionfs.testing.s3_servers import CREDENTIALS, SeaweedServer

from .conftest import MakeHost
from .rig import Host, wait_until

pytestmark = pytest.mark.fuse

SKEWED = (
    403,
    "RequestTimeTooSkewed",
    "The difference between the request time and the current time is too large.",
)
MOVED = (301, "PermanentRedirect", "The bucket you are attempting to access must be addressed elsewhere.")
IGNORING = (200, "", "")


def picture(directory: Path) -> dict[str, bytes]:
    """Everything below a directory, to see that nothing has changed."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in sorted(directory.rglob("*"))
    }


def refused(host: Host, *arguments: str, code: int, said: tuple[str, ...]) -> None:
    """Run a command that must fail with one line and change nothing."""
    before = picture(host.base)
    done = host.finished(*arguments)
    assert done.returncode == code, done.stdout + done.stderr + host.log_tail()
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("sessionfs: ")
    for part in said:
        assert part in lines[0]
    assert done.stdout == ""
    assert picture(host.base) == before
    for secret in (*CREDENTIALS.values(), "not-the-secret"):
        assert secret not in done.stderr


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Host]:
    """A host with a store in a directory, nothing mounted."""
    (tmp_path / "store").mkdir()
    host = Host(f"file://{tmp_path}/store", tmp_path / "host")
    yield host
    host.clean_up()


@contextmanager
def answering(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Iterator[str]:
    """A server that gives every request the same answer; gives its address."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - the server's names

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def s3_host(tmp_path: Path) -> Iterator[MakeHost]:
    """Makes a host of a store on S3, with the test servers' credentials."""
    made: list[Host] = []

    def make(url: str, **environment: str) -> Host:
        made.append(Host(url, tmp_path / "host", {**CREDENTIALS, **environment}))
        return made[-1]

    yield make
    for host in made:
        host.clean_up()


def mount(host: Host, *flags: str) -> tuple[str, ...]:
    return ("mount", host.store, str(host.mount_point), *flags)


# --- what the command itself can see


def test_an_unknown_setting_is_answered_with_the_nearest_one(local: Host) -> None:
    local.environment["SESSIONFS_UPLOAD_DELAY"] = "1"
    refused(
        local, *mount(local), code=2, said=("SESSIONFS_UPLOAD_DELAY", "did you mean upload_delay_seconds?")
    )


def test_a_setting_out_of_range_is_named_with_its_range(local: Host) -> None:
    local.environment["SESSIONFS_CONCURRENT_UPLOADS"] = "0"
    refused(local, *mount(local), code=2, said=("SESSIONFS_CONCURRENT_UPLOADS", ">= 1"))


def test_an_unknown_option_is_a_usage_error(local: Host) -> None:
    refused(local, *mount(local, "--fast"), code=2, said=("--fast", "--help"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s33://bucket", ("unknown scheme 's33'", "did you mean s3:")),
        ("s3://", ("no bucket name", "s3://BUCKET")),
        ("s3://bucket?secret_key=not-the-secret", ("secret_key", "SESSIONFS_SECRET_ACCESS_KEY")),
        ("s3://bucket?endpoint=127.0.0.1:1", ("endpoint", "http")),
        ("memory:", ("memory store", "file:///")),
    ],
)
def test_a_url_that_names_no_store_is_a_usage_error(local: Host, url: str, said: tuple[str, ...]) -> None:
    refused(local, "mount", url, str(local.mount_point), code=2, said=said)


def test_a_mount_point_that_is_missing_is_named(local: Host) -> None:
    missing = str(local.base / "missing")
    refused(local, "mount", local.store, missing, code=1, said=(missing, "does not exist", "mkdir -p"))


def test_a_mount_point_that_is_not_empty_is_named(local: Host) -> None:
    (local.mount_point / "file").write_text("mine")
    refused(local, *mount(local), code=1, said=(str(local.mount_point), "not empty"))


def test_a_mount_point_that_is_a_file_is_named(local: Host) -> None:
    file = local.base / "file"
    file.write_text("mine")
    refused(local, "mount", local.store, str(file), code=1, said=(str(file), "is no directory"))


def test_a_mount_over_its_own_store_is_refused(local: Host, tmp_path: Path) -> None:
    refused(
        local, "mount", local.store, f"{tmp_path}/store", code=1, said=("the store", "inside one another")
    )


def test_commands_about_a_directory_that_is_no_mount_say_so(local: Host) -> None:
    for command in ("status", "umount", "retry", "conflicts", "events"):
        refused(local, command, str(local.mount_point), code=1, said=("is in no sessionfs mount",))


@pytest.mark.parametrize("how", ["missing", "forbidden"])
def test_a_machine_without_its_fuse_device_is_told_how_to_get_it(local: Host, how: str) -> None:
    # In a mount namespace of its own: an empty directory, or a file nobody may open, instead of the device.
    prepare = {
        "missing": "mount -t tmpfs none /dev",
        "forbidden": f"touch {local.base}/dev && mount --bind {local.base}/dev /dev/fuse && mount -o remount,ro,bind /dev/fuse",
    }[how]
    said = {"missing": "/dev/fuse is missing", "forbidden": "/dev/fuse cannot be opened"}[how]
    command = " ".join([sys.executable, "-m", "sessionfs", "mount", local.store, str(local.mount_point)])
    done = subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", f"{prepare} && exec {command}"],
        env=local.full_environment(),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"sessionfs: {said}")
    assert done.stderr.count("\n") == 1
    assert "as root" in done.stderr
    assert not local.state.exists()


# --- what is there already


def test_a_second_mount_on_the_same_place_names_the_first(local: Host) -> None:
    local.mount()
    done = local.finished(*mount(local))
    assert done.returncode == 1
    assert f"{local.mount_point} is already mounted" in done.stderr
    assert done.stderr.count("\n") == 1
    local.umount()


def test_a_state_directory_in_use_is_named_with_the_process(local: Host) -> None:
    local.mount()
    daemon, _replication = local.remember_pids()
    second = local.base / "second"
    second.mkdir()
    done = local.finished("mount", local.store, str(second))
    assert done.returncode == 1
    assert f"is in use by process {daemon}, mounted on {local.mount_point}" in done.stderr
    assert f"sessionfs umount {local.mount_point}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(second.iterdir()) == []
    local.umount()


def test_a_dead_mount_is_named_by_every_command_and_cleared_by_the_next_mount(local: Host) -> None:
    local.mount()
    (local.directory / "s").mkdir()
    (local.directory / "s/file").write_text("kept")
    local.kill(local.remember_pids()[0])
    for command in ("status", "umount", "ls"):
        done = local.finished(command, str(local.mount_point))
        assert done.returncode == 1
        assert "the daemon of the mount" in done.stderr
        assert "sessionfs mount' again" in done.stderr
        assert done.stderr.count("\n") == 1
    local.mount()
    assert (local.directory / "s/file").read_text() == "kept"
    local.umount()


def test_a_mount_in_use_is_not_taken_away_and_goes_on(local: Host) -> None:
    local.mount()
    (local.directory / "s").mkdir()
    with subprocess.Popen(["sleep", "100"], cwd=local.directory / "s") as user:
        try:
            done = local.finished("umount", str(local.mount_point))
            assert done.returncode == 1
            assert f"in use by sleep ({user.pid})" in done.stderr
            (local.directory / "s/file").write_text("still writable")
        finally:
            user.send_signal(signal.SIGKILL)
    local.umount()


# --- what the store says


@pytest.mark.s3
def test_a_wrong_secret_is_refused(s3_host: MakeHost, seaweed: SeaweedServer) -> None:
    host = s3_host(seaweed.fresh_bucket(), SESSIONFS_SECRET_ACCESS_KEY="not-the-secret")
    refused(host, *mount(host), code=3, said=("SESSIONFS_SECRET_ACCESS_KEY",))


@pytest.mark.s3
def test_a_missing_bucket_is_named(s3_host: MakeHost, seaweed: SeaweedServer) -> None:
    host = s3_host(f"s3://no-such-bucket?endpoint={seaweed.endpoint}&region=us-east-1")
    refused(host, *mount(host), code=3, said=("no-such-bucket",))


def test_no_credentials_are_named_with_their_variables(tmp_path: Path) -> None:
    host = Host(
        "s3://bucket?endpoint=http://127.0.0.1:1", tmp_path / "host", {"AWS_EC2_METADATA_DISABLED": "true"}
    )
    refused(host, *mount(host), code=3, said=("no credentials", "SESSIONFS_ACCESS_KEY_ID"))


def test_an_endpoint_where_nobody_listens_is_named(s3_host: MakeHost) -> None:
    host = s3_host("s3://bucket?endpoint=http://127.0.0.1:1&region=us-east-1")
    refused(host, *mount(host), code=3, said=("127.0.0.1:1",))


def test_clock_skew_is_told_apart_from_a_wrong_secret(s3_host: MakeHost) -> None:
    with answering(*SKEWED) as endpoint:
        host = s3_host(f"s3://bucket?endpoint={endpoint}&region=us-east-1")
        refused(host, *mount(host), code=3, said=("clock",))


def test_a_bucket_of_another_region_names_the_region(s3_host: MakeHost) -> None:
    with answering(*MOVED, headers={"x-amz-bucket-region": "eu-central-1"}) as endpoint:
        host = s3_host(f"s3://bucket?endpoint={endpoint}&region=us-east-1")
        refused(host, *mount(host), code=3, said=("region", "eu-central-1"))


@pytest.mark.s3
def test_a_store_that_knows_its_mount_but_does_not_answer_is_mounted_with_a_warning(
    s3_host: MakeHost, seaweed: SeaweedServer
) -> None:
    host = s3_host(seaweed.fresh_bucket())
    host.mount()
    (host.directory / "s").mkdir()
    (host.directory / "given up").mkdir()
    host.run("release", str(host.directory / "given up"))
    host.wait_until_clean()
    # Killed, it never gave the session up: it may write it without an answer.
    host.die()
    before = seaweed.endpoint
    seaweed.stop()
    try:
        done = host.finished(*mount(host))
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("sessionfs: warning: the store does not answer")
        assert done.stderr.count("\n") == 1
        host.remember_pids()
        (host.directory / "s/file").write_text("waits")
        with pytest.raises(OSError, match="Input/output error"):
            (host.directory / "given up/file").write_text("another host may have it")
        output = host.finished("umount", str(host.mount_point), "--timeout", "0.5")
        assert output.returncode == 4
        assert "s/file" in output.stderr
    finally:
        seaweed.start()
    assert seaweed.endpoint == before
    wait_until(lambda: host.finished(*mount(host)).returncode == 0, 30)
    host.umount()
