"""Opening a ``gs:`` URL: what is taken apart, what is refused, and whose credentials are used."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import google.auth
import pytest
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials

from sessionfs.model.errors import (
    AccessError,
    OutcomeUnknownError,
    SessionFSError,
    StoreUrlError,
    UnavailableError,
)
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.gcs import connection
from sessionfs.stores.gcs.errors import Request, classify
from sessionfs.stores.open_store import open_store, store_id
from sessionfs.stores.store_urls import canonical_url, parse_gs_url
from sessionfs.testing.fault_proxy import DropRequest, DropResponse, FaultProxy
from sessionfs.testing.gcs_server import GcsServer

PLAIN = ObjectMetadata()
NOT_INSTALLED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "google.cloud.storage" or name == "google.auth":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from sessionfs.model.errors import StoreUrlError
from sessionfs.stores.open_store import open_store
try:
    open_store("gs://bucket?endpoint=http://127.0.0.1:1")
except StoreUrlError as error:
    print(error.message, error.remedy, sep="|")
"""


def test_gs_url_is_taken_apart() -> None:
    location = parse_gs_url("gs://my.bucket/a/b%20c/?endpoint=HTTP://Host:80/")
    assert (location.bucket, location.prefix, location.endpoint) == ("my.bucket", "a/b c/", "http://host")
    assert location.url == "gs://my.bucket/a/b c?endpoint=http://host"
    assert parse_gs_url(location.url) == location
    assert canonical_url("gs://bucket/x/") == "gs://bucket/x"
    assert store_id("gs://bucket/x/") == store_id("gs://bucket/x")
    assert store_id("gs://bucket/x").startswith("gs-bucket-x-")
    assert store_id("gs://bucket/x") != store_id("s3://bucket/x")


@pytest.mark.parametrize(
    "url",
    [
        "gs://",
        "gs:bucket",
        "gs:///prefix",
        "gs://b",
        "gs://bucket/a//b",
        "gs://bucket/../x",
        "gs://bucket?region=eu",
        "gs://bucket?endpoint=host:9000",
        "gs://bucket?endpoint=http://user:word@host",
        "gs://user:word@bucket",
        "gs://bucket#x",
        "gs://bucket?key=word",
    ],
)
def test_malformed_gs_url_is_refused_before_anything_is_imported(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store(url)
    assert "word" not in f"{caught.value.message} {caught.value.remedy}".replace("password", "")
    assert "SESSIONFS_SECRET" not in caught.value.remedy or "endpoint" in url


def test_missing_extra_names_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED], capture_output=True, text=True, check=True, timeout=60
    )
    message, _, remedy = done.stdout.strip().partition("|")
    assert "google-cloud-storage" in message
    assert remedy == "pip install 'sessionfs[gcs]'"


def test_missing_credentials_are_an_access_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", os.path.join(tmp_path, "missing.json"))
    for url in ("gs://bucket", "gs://bucket?endpoint=https://127.0.0.1:1"):
        with pytest.raises(AccessError) as caught:
            open_store(url)
        assert "gcloud auth application-default login" in caught.value.remedy


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"type": "impersonated_service_account"}'])
def test_credentials_of_another_form_are_an_access_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(AccessError) as caught:
        open_store("gs://bucket")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.remedy


def test_credentials_that_are_a_directory_are_an_access_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))
    with pytest.raises(AccessError, match="cannot be read") as caught:
        open_store("gs://bucket")
    assert "name a readable file of credentials" in caught.value.remedy


def test_credentials_that_may_not_be_read_are_an_access_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    # Raised by hand: a test that runs as root may read everything.
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "credentials.json")

    monkeypatch.setattr(google.auth, "default", refuse)
    with pytest.raises(AccessError, match=r"credentials\.json") as caught:
        open_store("gs://bucket")
    assert "name a readable file of credentials" in caught.value.remedy


def _opened_with(monkeypatch: pytest.MonkeyPatch, url: str) -> connection.GcsConnection:
    class Credentials(AnonymousCredentials):  # type: ignore[misc,unused-ignore]
        pass

    monkeypatch.setattr(google.auth, "default", lambda **_: (Credentials(), "project"))  # type: ignore[no-untyped-call]
    return connection.connect(parse_gs_url(url), max_connections=3)


@pytest.mark.parametrize(
    ("url", "endpoint", "is_anonymous"),
    [
        ("gs://bucket", "https://storage.googleapis.com", False),
        ("gs://bucket?endpoint=https://storage.example", "https://storage.example", False),
        ("gs://bucket?endpoint=http://127.0.0.1:1", "http://127.0.0.1:1", True),
    ],
)
def test_only_a_plain_http_endpoint_is_used_without_credentials(
    monkeypatch: pytest.MonkeyPatch, url: str, endpoint: str, *, is_anonymous: bool
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:2")
    opened = _opened_with(monkeypatch, url)
    assert opened.client.api_endpoint == opened.endpoint == endpoint
    assert (type(opened.client._credentials) is AnonymousCredentials) == is_anonymous
    opened.close()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


CALLS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.put("key", b"1", condition=Unconditional(), metadata=PLAIN),
    lambda store: store.head("key"),
    lambda store: store.get("key", byte_range=None, expected=None),
    lambda store: store.list_page("", page=None, whole_segments=False),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_server_that_is_not_there_leaves_nothing_unknown(
    host: str, call: Callable[[ObjectStore], object]
) -> None:
    store = open_store(f"gs://bucket?endpoint=http://{host}:{_free_port()}")
    with pytest.raises(UnavailableError, match="cannot be reached"):
        call(store)
    store.close()


def test_lost_response_is_unknown_and_sent_once(gcs_server: GcsServer) -> None:
    url = gcs_server.fresh_bucket()
    behind = open_store(url)
    with FaultProxy(gcs_server.endpoint) as proxy:
        store = open_store(proxy.url_for(url))
        proxy.plan(DropResponse(), method="POST")
        with pytest.raises(OutcomeUnknownError):
            store.put("applied", b"1", condition=Unconditional(), metadata=PLAIN)
        proxy.plan(DropRequest(), method="POST")
        with pytest.raises(OutcomeUnknownError):
            store.put("not", b"1", condition=Unconditional(), metadata=PLAIN)
        proxy.plan(DropRequest(), method="GET")
        with pytest.raises(UnavailableError):
            store.head("applied")
        proxy.assert_all_used()
        assert proxy.methods == {"POST": 2, "GET": 1}
        store.close()
    assert [stat.key for page in behind.list_all("") for stat in page.objects] == ["applied"]
    behind.close()


def test_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (connection.CONNECT_TIMEOUT_SECONDS, connection.READ_TIMEOUT_SECONDS) == (5, 20)
    monkeypatch.setattr(connection, "_TIMEOUT", (5.0, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = open_store(f"gs://bucket?endpoint=http://127.0.0.1:{silent.getsockname()[1]}")
        for call, wanted in zip(CALLS, (OutcomeUnknownError, *[UnavailableError] * 3), strict=True):
            with pytest.raises(wanted):
                call(store)
        store.close()


@pytest.mark.parametrize(
    ("kind", "details", "wanted"),
    [
        (auth.DefaultCredentialsError, {}, AccessError),
        (auth.RefreshError, {}, AccessError),
        (auth.RefreshError, {"retryable": True}, UnavailableError),
        (auth.TransportError, {}, UnavailableError),
    ],
)
def test_problem_with_an_access_token_means_that_nothing_was_sent(
    kind: Callable[..., Exception], details: dict[str, bool], wanted: type[SessionFSError]
) -> None:
    found = classify(kind("no token", **details), Request("put", "bucket", "key", "changing"))
    assert type(found) is wanted
