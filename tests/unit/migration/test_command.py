"""``sessionfs migrate``: which stores it means, what it prints, and when it switches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sessionfs.cli.main import main
from sessionfs.cli.store_choice import (
    as_backend,
    configured_store,
    own_store_file,
    require_apart,
    spelled_out,
)
from sessionfs.model.errors import ConflictError, InvalidRequestError, SettingsError, StoreUrlError
from sessionfs.model.settings import MountSettings, Settings
from sessionfs.stores.local_directory import LocalDirectoryStore, open_for_reading
from sessionfs.stores.store_urls import canonical_url
from tests.unit.migration.world import contents, put


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SESSIONFS_CONFIG", "SESSIONFS_STORE", "SESSIONFS_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A store in a directory."""
    directory = tmp_path / "one"
    directory.mkdir()
    store = LocalDirectoryStore(str(directory))
    put(store, "sessions/s1/a", b"12345")
    put(store, "sessions/s2/b", b"")
    put(store, "readme.txt", b"another tool's")
    put(store, "sessions.json", b"{}")
    return directory


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["migrate", *arguments], standalone_mode=False)


def found(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exception is None, result.exception
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def test_the_text_says_what_was_done_and_the_checksum(one: Path, tmp_path: Path) -> None:
    result = run("--from", str(one), "--to", str(tmp_path / "two"))
    lines = result.stdout.splitlines()
    assert lines[0] == f"migrated 3 objects (7 B) from file://{one} to file://{tmp_path}/two"
    assert lines[1] == "  3 copied (7 B), 0 there already, 0 removed there; every object verified"
    checksum = found("--from", str(one), "--to", str(tmp_path / "two"))["result"]["checksum"]
    assert lines[2:] == [f"manifest checksum: sha256:{checksum}"]
    assert "not migrated, no object of a session: readme.txt" in result.stderr


def test_a_dry_run_says_what_would_be_done(one: Path, tmp_path: Path) -> None:
    result = run("--from", str(one), "--to", str(tmp_path / "two"), "--dry-run")
    assert result.stdout.splitlines() == [
        f"would copy 3 objects (7 B) from file://{one} to file://{tmp_path}/two",
        "  0 there already, 0 to be removed there",
    ]
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("spelling", ["{}", "local:{}", "file://{}"])
def test_a_directory_has_three_spellings(one: Path, tmp_path: Path, spelling: str) -> None:
    body = found("--from", spelling.format(one), "--to", spelling.format(tmp_path / "two"))
    assert (body["source"], body["destination"]) == (f"file://{one}", f"file://{tmp_path}/two")


def test_the_configured_store_is_the_source_and_local_becomes_the_store(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "session-store.json"
    named.write_text(json.dumps({"backend": "local", "directory": "one"}))
    monkeypatch.setenv("SESSIONFS_STORE", str(named))
    (tmp_path / "data" / "sessionfs").mkdir(parents=True)
    body = found("--to", "local")
    assert body["destination"] == f"file://{tmp_path}/data/sessionfs/store"
    assert body["switched"] == str(named)
    assert "session-store.json.before" in body["way_back"]
    assert json.loads(named.read_text()) == {"backend": "local"}
    assert contents(open_for_reading(body["destination"])) == contents(open_for_reading(str(one)))


@pytest.mark.parametrize(
    ("source", "target", "more"),
    [
        ("one", "local", ()),  # another store than the configured one
        ("", "local:{}/copy", ()),  # a directory is a copy, no backend
        ("", "local", ("--session", "s1")),  # a part
        ("", "local", ("--dry-run",)),
    ],
)
def test_nothing_is_switched_unless_everything_of_the_configured_store_went_to_a_backend(
    one: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    more: tuple[str, ...],
) -> None:
    configured = tmp_path / "configured"
    configured.mkdir()
    put(LocalDirectoryStore(str(configured)), "sessions/s1/a", b"x")
    named = tmp_path / "session-store.json"
    named.write_text(json.dumps({"backend": "local", "directory": str(configured)}))
    monkeypatch.setenv("SESSIONFS_STORE", str(named))
    before = named.read_bytes()
    origin = ("--from", str(tmp_path / source)) if source else ()
    assert found("--to", target.format(tmp_path), *origin, *more)["switched"] == ""
    assert named.read_bytes() == before
    assert not Path(own_store_file()).exists()


def test_a_setting_that_names_the_store_itself_is_left_to_the_person(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONFS_STORE", str(one))
    result = run("--to", "local")
    assert f'write store = "file://{tmp_path}/data/sessionfs/store"' in result.stderr
    assert not Path(own_store_file()).exists()


def test_without_any_setting_the_file_beside_the_settings_names_the_store(tmp_path: Path) -> None:
    assert own_store_file() == str(tmp_path / "config" / "sessionfs" / "session-store.json")
    default = configured_store(Settings())
    assert default.url == f"file://{tmp_path}/data/sessionfs/store"
    Path(own_store_file()).parent.mkdir(parents=True)
    Path(own_store_file()).write_text('{"backend": "s3", "bucket": "b-1"}')
    assert configured_store(Settings()).url == "s3://b-1"
    assert configured_store(Settings()).file == default.file == own_store_file()


@pytest.mark.parametrize("raw", ["", "{", '{"backend": "ftp"}', "[]"])
def test_a_file_that_cannot_be_read_stops_with_its_path_and_is_no_empty_store(
    tmp_path: Path, raw: str
) -> None:
    Path(own_store_file()).parent.mkdir(parents=True)
    Path(own_store_file()).write_text(raw)
    with pytest.raises(SettingsError, match=r"config/sessionfs/session-store\.json"):
        configured_store(Settings())
    result = run("--to", str(tmp_path / "two"))
    assert isinstance(result.exception, SettingsError)
    assert not (tmp_path / "two").exists()


def test_a_setting_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*gone\.json"):
        configured_store(Settings(mount=MountSettings(store=str(tmp_path / "gone.json"))))


def test_only_what_a_store_file_can_name_is_a_backend(tmp_path: Path) -> None:
    assert as_backend(f"file://{tmp_path}/elsewhere") is None
    s3 = as_backend("s3://b-1/p?endpoint=http://127.0.0.1:9000")
    assert s3 is not None
    assert (s3.backend, s3.bucket, s3.prefix, s3.endpoint) == ("s3", "b-1", "p", "http://127.0.0.1:9000")
    local = as_backend(spelled_out("local"))
    assert local is not None
    assert local.backend == "local"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("file:///a", "file:///a"),
        ("file:///a", "file:///a/b"),
        ("file:///a/b", "file:///a"),
        ("s3://b-1", "s3://b-1/p"),
        ("s3://b-1/p", "s3://b-1"),
        ("s3://b-1/p?region=x", "s3://b-1/p"),
    ],
)
def test_a_store_inside_the_other_is_refused(source: str, target: str) -> None:
    with pytest.raises(InvalidRequestError):
        require_apart(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("file:///a", "file:///ab"),
        ("s3://b-1/p", "s3://b-1/pq"),
        ("s3://b-1", "s3://b-2"),
        ("s3://b-1?endpoint=http://x", "s3://b-1?endpoint=http://y"),
        ("file:///a-1", "s3://a-1"),
    ],
)
def test_stores_beside_one_another_are_apart(source: str, target: str) -> None:
    assert canonical_url(source) != canonical_url(target)
    require_apart(source, target)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--from", "{one}", "--to", "{one}"), InvalidRequestError),
        (("--from", "{one}", "--to", "{one}/below"), InvalidRequestError),
        (("--from", "{one}", "--to", "local:"), InvalidRequestError),
        (("--from", "{one}", "--to", "ftp://x"), StoreUrlError),
        (("--from", "{one}", "--to", "s3://b-1?key=hush"), StoreUrlError),
        (("--from", "{one}", "--to", "{two}", "--session", "../x"), InvalidRequestError),
    ],
)
def test_what_is_named_wrong_is_refused_and_nothing_is_made(
    one: Path, tmp_path: Path, arguments: tuple[str, ...], error: type[Exception]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = run(*(argument.format(one=one, two=tmp_path / "two") for argument in arguments))
    assert isinstance(result.exception, error)
    assert "hush" not in str(result.exception)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refusal_comes_before_the_destination_is_made_ready(one: Path, tmp_path: Path) -> None:
    two = tmp_path / "two"
    two.mkdir()
    (two / "theirs.txt").write_text("theirs")
    result = run("--from", str(one), "--to", str(two))
    assert isinstance(result.exception, ConflictError)
    assert [path.name for path in two.iterdir()] == ["theirs.txt"]


def test_a_missing_source_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    result = run("--from", str(tmp_path / "gone"), "--to", str(tmp_path / "two"))
    assert "gone does not exist" in str(result.exception)
    assert list(tmp_path.iterdir()) == []
