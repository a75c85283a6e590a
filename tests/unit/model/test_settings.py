"""Settings: precedence, ranges, and the nearest known name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sessionfs.model.errors import SettingsError
from sessionfs.model.settings import Settings, resolve


def merged(flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None,
           file: dict[str, Any] | None = None) -> Settings:  # fmt: skip
    return resolve(flags=flags or {}, environment=environment or {}, file=file or {})


def test_a_flag_beats_the_environment_which_beats_the_file() -> None:
    file = {"upload_delay_seconds": 3.0, "part_bytes": 6 << 20, "policy": "strict"}
    environment = {"SESSIONFS_UPLOAD_DELAY_SECONDS": "2", "SESSIONFS_PART_BYTES": str(7 << 20)}
    settings = merged({"upload_delay_seconds": 1.5, "part_bytes": None}, environment, file)
    assert settings.replication.upload_delay_seconds == 1.5
    assert settings.replication.part_bytes == 7 << 20
    assert settings.filesystem.policy == "strict"


def test_nothing_given_is_the_default() -> None:
    assert merged() == Settings()


@pytest.mark.parametrize(
    ("source", "values", "near"),
    [
        ("file", {"upload_delay_second": 1}, "upload_delay_seconds"),
        ("environment", {"SESSIONFS_STATE_DIRR": "/x"}, "state_dir"),
        ("flags", {"read_onlyy": True}, "read_only"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known(
    source: str, values: dict[str, Any], near: str
) -> None:
    with pytest.raises(SettingsError, match=near):
        merged(**{source: values})


@pytest.mark.parametrize(
    "values",
    [
        {"upload_delay_seconds": -1},
        {"concurrent_uploads": 0},
        {"fsync": "never"},
        {"part_bytes": 1},
        {"read_only": "maybe"},
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(values))):
        merged(file=values)


def test_secrets_and_test_switches_are_no_settings() -> None:
    environment = {
        "SESSIONFS_SECRET_ACCESS_KEY": "x", "SESSIONFS_REQUIRE": "fuse", "SESSIONFS_TEST_S3_URL": "s3://b", "HOME": "/",
    }  # fmt: skip
    assert merged(environment=environment) == Settings()


def test_lists_come_from_the_environment_with_commas() -> None:
    settings = merged(environment={"SESSIONFS_EXCLUDE_GLOBS": "*.tmp,build/**"})
    assert settings.replication.exclude_globs == ("*.tmp", "build/**")


def test_settings_travel_as_bytes() -> None:
    settings = merged({"allow_other": True, "sessions": ["a", "b"]})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=Settings) == settings
