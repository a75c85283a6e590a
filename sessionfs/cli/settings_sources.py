"""Where settings and store names come from: flags, environment, ``sessionfs.toml``, ``session-store.json``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

from sessionfs.cli.store_choice import configured_store, url_of_file
from sessionfs.model.errors import SettingsError
from sessionfs.model.settings import Settings, resolve
from sessionfs.stores.store_urls import canonical_url

_FILE_NAME = "sessionfs.toml"


def load_settings(*, flags: Mapping[str, Any], config: str | None = None) -> Settings:
    """Merge flags, environment, file and defaults.

    Args:
        flags: Values by name, None for those not given.
        config: The file named by ``--config``.

    Raises:
        SettingsError: A file that cannot be read, an unknown name, a value out of range.
    """
    path = _settings_file(config)
    content = _read_toml(path) if path else {}
    return resolve(flags=flags, environment=os.environ, file=content, file_name=path or _FILE_NAME)


def store_url(named: str | None, settings: Settings) -> str:
    """Give the canonical URL of the store: named, else of the settings, else of the user's ``session-store.json``, else the embedded default.

    Args:
        named: A URL, a directory, or a file of the form of ``session-store.json``.
        settings: Resolved.

    Raises:
        StoreUrlError: It names no store.
        SettingsError: The file cannot be read.
    """
    if not named:
        return configured_store(settings).url
    if named.endswith(".json") and not os.path.isdir(named):
        return url_of_file(os.path.abspath(named))
    return canonical_url(named)


def _settings_file(config: str | None) -> str:
    named = config or os.environ.get("SESSIONFS_CONFIG")
    if named:
        return named
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(base, "sessionfs", _FILE_NAME)
    return path if os.path.exists(path) else ""


def _read_toml(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as problem:
        raise SettingsError(f"cannot read the settings file {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"{path} is no TOML: {problem}") from None
