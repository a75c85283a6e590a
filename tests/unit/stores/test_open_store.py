"""Store URLs: what opens, what is refused, and how a store is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionfs.model.errors import BucketNotFoundError, LocalDiskError, StoreUrlError
from sessionfs.stores.memory import MemoryStore
from sessionfs.stores.open_store import default_store_url, known_schemes, open_store, store_id
from sessionfs.stores.store_urls import canonical_url, parse_file_url, parse_s3_url


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}", "{}/", "FILE://{}"])
def test_directory_opens_in_every_spelling_under_one_name(form: str, tmp_path: Path) -> None:
    directory = tmp_path / "the store"
    url = form.format(directory)
    assert open_store(url).url == f"file://{tmp_path}/the%20store"
    assert store_id(url) == store_id(str(directory))
    assert canonical_url(url) == f"file://{tmp_path}/the%20store"


def test_symbolic_link_is_the_directory_it_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert store_id(str(tmp_path / "link")) == store_id(str(tmp_path / "real"))


def test_missing_directory_is_made_but_not_a_missing_tree(tmp_path: Path) -> None:
    open_store(str(tmp_path / "new"))
    assert (tmp_path / "new").is_dir()
    with pytest.raises(BucketNotFoundError, match="does not exist"):
        open_store(str(tmp_path / "no" / "such" / "tree"))
    assert not (tmp_path / "no").exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BucketNotFoundError):
        open_store(str(tmp_path / "file"))


def test_default_store_is_made_when_it_is_first_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    url = default_store_url()
    assert url == f"file://{tmp_path}/data/sessionfs/store"
    assert not (tmp_path / "data").exists()
    open_store(url)
    assert (tmp_path / "data/sessionfs/store").is_dir()
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_store_url() == f"file://{tmp_path}/home/.local/share/sessionfs/store"
    (tmp_path / "blocked").write_bytes(b"")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "blocked"))
    with pytest.raises(LocalDiskError, match="default store"):
        open_store(default_store_url())


def test_memory_store_is_never_named() -> None:
    with pytest.raises(StoreUrlError, match="loses everything"):
        open_store("memory:")
    assert isinstance(open_store("memory:", allow_memory=True), MemoryStore)
    with pytest.raises(StoreUrlError):
        open_store("memory:name", allow_memory=True)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s4://bucket", "did you mean s3:"),
        ("fil:///x", "did you mean file:"),
        ("zzzzzz://x", "known: file, gs, memory, s3"),
    ],
)
def test_unknown_scheme_names_the_nearest(url: str, hint: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store(url)
    assert caught.value.remedy.startswith(hint)


def test_known_schemes_hold_the_built_in_ones() -> None:
    assert {"file", "gs", "memory", "s3"} <= set(known_schemes())


def test_s3_url_is_taken_apart() -> None:
    location = parse_s3_url("s3://my.bucket/a/b%20c/?endpoint=HTTP://Host:80/&region=eu-west-1")
    assert (location.bucket, location.prefix) == ("my.bucket", "a/b c/")
    assert (location.endpoint, location.region) == ("http://host", "eu-west-1")
    assert location.url == "s3://my.bucket/a/b c?endpoint=http://host&region=eu-west-1"
    assert parse_s3_url(location.url) == location
    assert parse_s3_url("s3://bucket").url == "s3://bucket"
    assert parse_s3_url("s3://bucket?endpoint=http://[::1]:9000").endpoint == "http://[::1]:9000"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:bucket",
        "s3:///prefix",
        "s3://b",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "s3://bucket/a%00b",
        "s3://bucket?nonsense=1",
        "s3://bucket?region=a&region=b",
        "s3://bucket?region=a/b",
        "s3://bucket?endpoint=host:9000",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=http://host:port",
        "s3://bucket#part",
        "s3://bucket/\n",
        "s3://[bucket",
        "file://host/dir",
        "file://",
        "file:///dir?x=1",
        "",
    ],
)
def test_malformed_url_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIDEXAMPLE:very-secret@bucket",
        "s3://very-secret@bucket/prefix",
        "s3://bucket?endpoint=https://AKIDEXAMPLE:very-secret@host",
        "s3://bucket?secret_access_key=very-secret",
        "s3://bucket?token=very-secret&endpoint=http://host",
        "s4://AKIDEXAMPLE:very-secret@bucket",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store(url)
    assert "very-secret" not in str(caught.value)
    assert "AKIDEXAMPLE" not in str(caught.value)
    if url.startswith("s3"):
        assert "SESSIONFS_ACCESS_KEY_ID" in caught.value.remedy


def test_store_id_is_short_readable_and_its_own() -> None:
    url = "s3://bucket/team/agents?endpoint=http://127.0.0.1:8333&region=eu-west-1"
    name = store_id(url)
    assert name.startswith("s3-bucket-team-agents-")
    assert len(name.rpartition("-")[2]) == 8
    assert name == store_id("s3://bucket/team/agents/?endpoint=http://127.0.0.1:8333")
    others = {
        store_id("s3://bucket/team/agents"),
        store_id("s3://bucket/team?endpoint=http://127.0.0.1:8333"),
        store_id("s3://bucket/team-agents?endpoint=http://127.0.0.1:8333"),
    }
    assert len(others | {name}) == 4
    assert len(os.fsencode(store_id("/" + "long/" * 100))) <= 80
    assert "/" not in store_id("/" + "long/" * 100)


def test_home_directory_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_file_url("~/store") == f"{tmp_path}/store"
