"""Where settings and the store's name come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessionfs.cli.settings_sources import load_settings, store_url
from sessionfs.model.errors import SettingsError, StoreUrlError
from sessionfs.model.settings import MountSettings, Settings


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SESSIONFS_CONFIG", "SESSIONFS_STORE", "SESSIONFS_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_without_any_file_the_defaults_hold() -> None:
    assert load_settings(flags={}) == Settings()


def test_a_flag_beats_the_environment_and_the_environment_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "s.toml"
    config.write_text("upload_delay_seconds = 3\nread_only = true\nfsync = 'bucket'\n")
    monkeypatch.setenv("SESSIONFS_UPLOAD_DELAY_SECONDS", "2")
    monkeypatch.setenv("SESSIONFS_READ_ONLY", "false")
    settings = load_settings(flags={"upload_delay_seconds": 1, "read_only": None}, config=str(config))
    assert settings.replication.upload_delay_seconds == 1
    assert settings.filesystem.read_only is False
    assert settings.filesystem.fsync == "bucket"


def test_the_users_own_file_is_found_and_the_variable_beats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "config" / "sessionfs" / "sessionfs.toml"
    own.parent.mkdir(parents=True)
    own.write_text("policy = 'strict'\n")
    assert load_settings(flags={}).filesystem.policy == "strict"
    (tmp_path / "other.toml").write_text("")
    monkeypatch.setenv("SESSIONFS_CONFIG", str(tmp_path / "other.toml"))
    assert load_settings(flags={}).filesystem.policy == "degrade"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "upload_delay = 1\n",
            r"unknown setting upload_delay in .*s\.toml \(did you mean upload_delay_seconds\?\)",
        ),
        ("upload_delay_seconds = -1\n", r"upload_delay_seconds in .*s\.toml: .*>= 0"),
        ("fsync = 'never'\n", r"fsync in .*s\.toml"),
        ("= 1\n", r"s\.toml is no TOML"),
        (None, r"cannot read the settings file .*s\.toml: No such file"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    config = tmp_path / "s.toml"
    if content is not None:
        config.write_text(content)
    with pytest.raises(SettingsError, match=said):
        load_settings(flags={}, config=str(config))


def test_the_store_is_the_named_one_else_of_the_settings_else_the_embedded_one(tmp_path: Path) -> None:
    named = Settings(mount=MountSettings(store="s3://of-settings"))
    assert store_url("s3://given", named) == "s3://given"
    assert store_url(None, named) == "s3://of-settings"
    assert store_url(None, Settings()) == f"file://{tmp_path}/data/sessionfs/store"
    assert store_url(str(tmp_path), Settings()) == f"file://{tmp_path}"


@pytest.mark.parametrize(
    ("content", "url"),
    [
        ({"backend": "local"}, "file://{}/data/sessionfs/store"),
        ({"backend": "local", "directory": "here"}, "file://{}/here"),
        ({"backend": "s3", "bucket": "bb"}, "s3://bb"),
        (
            {"backend": "s3", "bucket": "bb", "prefix": "/p/q/", "endpoint": "http://h:1", "region": "r"},
            "s3://bb/p/q?endpoint=http://h:1&region=r",
        ),
    ],
)
def test_a_store_may_be_named_by_a_file(tmp_path: Path, content: object, url: str) -> None:
    path = tmp_path / "session-store.json"
    path.write_text(json.dumps(content))
    assert store_url(str(path), Settings()) == url.format(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"backend": "gopher"}', '{"backend": "s3"}', None])
def test_a_store_file_that_names_none_is_an_error_with_its_path(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "session-store.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=r"session-store\.json"):
        store_url(str(path), Settings())


def test_a_store_file_is_checked_like_a_url(tmp_path: Path) -> None:
    path = tmp_path / "session-store.json"
    path.write_text('{"backend": "s3", "bucket": "no bucket!"}')
    with pytest.raises(StoreUrlError):
        store_url(str(path), Settings())
