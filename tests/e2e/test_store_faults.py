"""The store answers wrongly, late or not at all; each time the bucket ends right (scripted, in front of a real server)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sessionfs.testing.fault_proxy import DropRequest, DropResponse, Fault, FaultProxy, Reply, TruncateBody
from sessionfs.testing.s3_servers import SeaweedServer

from .conftest import MakeHost
from .rig import Bucket, Host, wait_until

pytestmark = [pytest.mark.fuse, pytest.mark.s3, pytest.mark.slow]

MIB = 1 << 20
FOREIGN_SECONDS = 10.0
"""5 s of promised lag, and the time of a listing on a loaded machine."""


@pytest.fixture
def proxy(seaweed: SeaweedServer) -> Iterator[FaultProxy]:
    """A proxy in front of the server."""
    with FaultProxy(seaweed.endpoint) as made:
        yield made


@pytest.fixture
def host(make_host: MakeHost, proxy: FaultProxy, store_url: str) -> Host:
    """A host behind the proxy, with a session."""
    made = make_host("p", proxy.url_for(store_url))
    made.mount()
    (made.directory / "s").mkdir()
    made.wait_until_clean()
    return made


PUT_FAULTS: dict[str, list[tuple[str, Fault]]] = {
    "lost response": [("PUT", DropResponse())],
    "request lost": [("PUT", DropRequest())],
    "409": [("PUT", Reply(409, "ConditionalRequestConflict"))],
    "412 after a retry": [("PUT", DropResponse()), *[("HEAD", DropRequest())] * 3],
    "412 from nowhere": [("PUT", Reply(412, "PreconditionFailed"))],
    "503": [("PUT", Reply(503, "SlowDown"))] * 3,
    "500 after applying": [("PUT", Reply(500, "InternalError", forward=True))],
    "500 before applying": [("PUT", Reply(500, "InternalError"))],
}


@pytest.mark.parametrize("name", PUT_FAULTS)
def test_a_put_that_goes_wrong_ends_right(host: Host, proxy: FaultProxy, bucket: Bucket, name: str) -> None:
    for round_number in range(2):
        for method, fault in PUT_FAULTS[name]:
            proxy.plan(fault, method=method, text="sessions/s/f")
        body = f"right, round {round_number}".encode()
        (host.directory / "s" / "f").write_bytes(body)
        host.wait_until_clean()
        proxy.assert_all_used()
        assert bucket.read("sessions/s/f") == body
    assert not any(".conflicts/" in key for key in bucket.listed()), "our own lost write is no conflict"


@pytest.mark.parametrize("fault", [Reply(200, "InternalError"), DropResponse(), Reply(503, "SlowDown")])
def test_a_copy_that_goes_wrong_ends_right(
    host: Host, proxy: FaultProxy, bucket: Bucket, fault: Fault
) -> None:
    body = os.urandom(2 * MIB)
    (host.directory / "s" / "old").write_bytes(body)
    host.wait_until_clean()
    proxy.reset_counters()
    proxy.plan(fault, method="PUT", text="sessions/s/new")
    os.rename(host.directory / "s" / "old", host.directory / "s" / "new")
    host.wait_until_clean()
    proxy.assert_all_used()
    assert bucket.read("sessions/s/new") == body
    assert bucket.listed("sessions/s/") == {"sessions/s/", "sessions/s/new"}
    assert proxy.body_bytes_received < MIB, "a rename sends no bytes"


@pytest.mark.parametrize(
    "fault", [Reply(200, "InternalError"), DropResponse(), Reply(409, "ConditionalRequestConflict")]
)
def test_a_multipart_put_whose_completion_goes_wrong_ends_right(
    host: Host, proxy: FaultProxy, bucket: Bucket, fault: Fault
) -> None:
    body = os.urandom(20 * MIB)
    proxy.plan(fault, method="POST", text="uploadId")
    (host.directory / "s" / "large").write_bytes(body)
    host.wait_until_clean()
    proxy.assert_all_used()
    assert bucket.read("sessions/s/large") == body


def test_a_lost_delete_ends_right(host: Host, proxy: FaultProxy, bucket: Bucket) -> None:
    (host.directory / "s" / "f").write_text("x")
    host.wait_until_clean()
    proxy.plan(DropResponse(), method="DELETE", text="sessions/s/f")
    os.unlink(host.directory / "s" / "f")
    host.wait_until_clean()
    proxy.assert_all_used()
    assert "sessions/s/f" not in bucket.listed()


def test_bytes_cut_short_on_the_way_are_fetched_again(
    host: Host, proxy: FaultProxy, make_host: MakeHost
) -> None:
    body = os.urandom(300_000)
    (host.directory / "s" / "f").write_bytes(body)
    host.umount()
    second = make_host("q", host.store)
    second.mount()
    os.listdir(second.directory / "s")
    proxy.plan(TruncateBody(1000), method="GET", text="sessions/s/f", times=2)
    assert (second.directory / "s" / "f").read_bytes() == body
    proxy.assert_all_used()


def test_bytes_that_do_not_verify_are_an_error(host: Host, bucket: Bucket, make_host: MakeHost) -> None:
    (host.directory / "s" / "f").write_text("original")
    host.umount()
    second = make_host("q", host.store)
    second.mount()
    os.listdir(second.directory / "s")
    metadata = bucket.metadata("sessions/s/f")
    second.umount()
    bucket.write("sessions/s/f", b"tampered", metadata)
    third = make_host("r", host.store)
    third.mount()
    with pytest.raises(OSError, match="Input/output error"):
        (third.directory / "s" / "f").read_text()
    assert bucket.read("sessions/s/f") == b"tampered", "the bad object is kept"


def test_another_tools_object_is_kept_aside_and_never_overwritten(host: Host, bucket: Bucket) -> None:
    path = host.directory / "s" / "f"
    path.write_text("ours, first")
    host.wait_until_clean()
    bucket.write("sessions/s/f", b"theirs")
    path.write_text("ours, second")
    host.wait_until_clean()
    assert bucket.read("sessions/s/f") == b"ours, second"
    (aside,) = [key for key in bucket.listed() if key.startswith("sessions/s.conflicts/f/")]
    assert bucket.read(aside) == b"theirs"
    assert aside in host.run("conflicts", str(host.mount_point), "--json")
    assert os.getxattr(path, "user.sessionfs.state") == b"conflict"


def test_another_hosts_change_is_seen_within_five_seconds(
    host: Host, make_host: MakeHost, bucket: Bucket
) -> None:
    (host.directory / "s" / "f").write_text("one")
    host.wait_until_clean()
    reader = make_host("q", host.store)
    reader.mount()
    assert (reader.directory / "s" / "f").read_text() == "one"
    (host.directory / "s" / "f").write_text("two!")
    (host.directory / "s" / "g").write_text("new")
    host.wait_until_clean()
    wait_until(lambda: (reader.directory / "s" / "f").read_text() == "two!", FOREIGN_SECONDS)
    wait_until((reader.directory / "s" / "g").exists, FOREIGN_SECONDS)
    os.unlink(host.directory / "s" / "g")
    host.wait_until_clean()
    wait_until(lambda: not (reader.directory / "s" / "g").exists(), FOREIGN_SECONDS)
