"""The S3 store without a server: requests it refuses itself, credentials, ranges."""

from __future__ import annotations

import itertools

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import AccessError, UnavailableError
from sessionfs.stores.base import IfAbsent, ObjectMetadata
from sessionfs.stores.open_store import open_store
from sessionfs.stores.s3.connection import connect
from sessionfs.stores.s3.folders import marker_metadata, plain_metadata
from sessionfs.stores.s3.multipart import copy_ranges, regroup
from sessionfs.stores.s3.reading import page_of
from sessionfs.stores.store_urls import parse_s3_url

MIB = 1 << 20
LOCATION = parse_s3_url("s3://bucket?endpoint=http://127.0.0.1:1")


@pytest.mark.parametrize(
    "size", [1, 5 * MIB, 64 * MIB, 64 * MIB + 1, 70 * MIB, 1024 * MIB, 1024 * MIB + 1, 5000 * MIB + 3]
)
def test_copy_ranges_cover_the_object_and_none_is_too_small(size: int) -> None:
    ranges = copy_ranges(size, 5 * MIB)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == size
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(ranges))
    assert len(ranges) == 1 or all(end - start >= 5 * MIB for start, end in ranges)
    assert all(end - start <= 261 * MIB for start, end in ranges)


def test_regrouping_keeps_the_bytes_and_the_smallest_part() -> None:
    chunks = [b"a" * 3, b"", b"b" * 4, b"c" * 11, b"d"]
    parts = list(regroup(chunks, 5))
    assert b"".join(parts) == b"".join(chunks)
    assert all(len(part) >= 5 for part in parts[:-1])
    assert list(regroup([], 5)) == []


def test_marker_metadata_survives_in_the_content_type() -> None:
    metadata = ObjectMetadata(
        {"mode": "040755", "odd": 'a=b&c;"d" %e', "empty": ""}, "application/x-directory"
    )
    carried = marker_metadata(metadata)
    assert plain_metadata(ObjectMetadata({}, carried.content_type)) == metadata
    assert plain_metadata(metadata) == metadata
    assert marker_metadata(ObjectMetadata()) == ObjectMetadata()


def test_own_credentials_come_first_and_must_be_whole() -> None:
    clock = SystemClock()
    both = {"SESSIONFS_ACCESS_KEY_ID": "id", "SESSIONFS_SECRET_ACCESS_KEY": "secret"}
    found = connect(LOCATION, max_connections=1, clock=clock, environment=both)
    assert found.client._get_credentials().access_key == "id"
    for name, value in both.items():
        with pytest.raises(AccessError, match="is not set") as caught:
            connect(LOCATION, max_connections=1, clock=clock, environment={name: value})
        assert "secret" not in str(caught.value).replace("SECRET", "")
    found.client.close()


def test_usual_aws_chain_is_asked_without_own_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    with pytest.raises(AccessError, match="no credentials") as caught:
        connect(LOCATION, max_connections=1, clock=SystemClock(), environment={})
    assert "SESSIONFS_ACCESS_KEY_ID" in caught.value.remedy
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "chain")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    found = connect(LOCATION, max_connections=1, clock=SystemClock(), environment={})
    assert found.client._get_credentials().access_key == "chain"
    found.client.close()
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(AccessError, match="no-such-profile"):
        connect(LOCATION, max_connections=1, clock=SystemClock(), environment={})


def test_server_that_refuses_connections_is_unavailable(s3_credentials: None) -> None:
    store = open_store("s3://bucket?endpoint=http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        store.put("key", b"", condition=IfAbsent(), metadata=ObjectMetadata())
    store.close()


def test_address_that_does_not_exist_is_unavailable(s3_credentials: None) -> None:
    store = open_store("s3://bucket?endpoint=http://no-such-host.invalid")
    with pytest.raises(UnavailableError):
        store.head("key")
    store.close()


def test_listing_that_breaks_off_is_no_complete_listing() -> None:
    with pytest.raises(UnavailableError, match="breaks off"):
        page_of({"IsTruncated": True, "Contents": []}, "a/")
