"""``session-store.json``: which store, or an error that names the file."""

from __future__ import annotations

import pytest

from sessionfs.formats.store_settings import StoreSettings, decode, encode, of_url
from sessionfs.model.errors import SettingsError
from sessionfs.stores.store_urls import canonical_url

NAME = "/etc/x/session-store.json"
DEFAULT = "file:///home/me/store"


@pytest.mark.parametrize(
    ("raw", "url"),
    [
        (b'{"backend": "local"}', ""),
        (b'{"backend": "local", "directory": "/srv/s t"}', "file:///srv/s%20t"),
        (b'{"backend": "local", "directory": "beside"}', "file:///etc/x/beside"),
        (b'{"backend": "s3", "bucket": "b-1"}', "s3://b-1"),
        (
            b'{"backend":"s3","endpoint":"http://127.0.0.1:9000","bucket":"b-1","prefix":"/a/b/","region":"r"}',
            "s3://b-1/a/b?endpoint=http://127.0.0.1:9000&region=r",
        ),
        (b'{"backend": "s3", "bucket": "b-1", "endpoint": null, "prefix": null, "region": null}', "s3://b-1"),
        (b'{"backend": "s3", "bucket": "b-1", "comment": "ours"}', "s3://b-1"),
        (b'{"backend": "gcs", "bucket": "b-1", "prefix": "p", "region": "r"}', "gs://b-1/p"),
    ],
)
def test_a_file_names_a_store(raw: bytes, url: str) -> None:
    assert decode(raw, NAME).url() == url


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"backend": "ftp"}',
        b'{"backend": "s3"}',
        b'{"backend": "s3", "bucket": ""}',
        b'{"backend": "s3", "bucket": 3}',
        b'{"backend": "s3", "bucket": "a/b"}',
        b'{"backend": "gcs", "prefix": "p"}',
        b"[" * 100_000,
        b'\xff{"backend": "local"}',
    ],
)
def test_a_file_that_names_no_store_is_an_error_with_its_path(raw: bytes) -> None:
    with pytest.raises(SettingsError, match=r"/etc/x/session-store\.json"):
        decode(raw, NAME)


def test_a_secret_in_the_file_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match="secret_access_key") as caught:
        decode(b'{"backend": "s3", "bucket": "b-1", "secret_access_key": "hush"}', NAME)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://b-1",
        "s3://b-1/a/b?endpoint=http://127.0.0.1:9000&region=us-east-1",
        "s3://b-1/with space%23and%3F?region=us-east-1",
        "gs://b-1/p?endpoint=http://127.0.0.1:9023",
    ],
)
def test_what_is_written_for_a_url_names_that_url_again(url: str) -> None:
    settings = of_url(canonical_url(url), default_url=DEFAULT)
    assert settings is not None
    again = decode(encode(settings), NAME)
    assert again == settings
    assert again.url() == url


def test_the_default_directory_is_local_and_another_directory_is_no_backend() -> None:
    assert of_url(DEFAULT, default_url=DEFAULT) == StoreSettings(backend="local")
    assert encode(StoreSettings(backend="local")) == b'{\n  "backend": "local"\n}\n'
    assert of_url("file:///srv/copy", default_url=DEFAULT) is None
    assert of_url("other://x", default_url=DEFAULT) is None
