"""Which store is the configured one, where that is written down, and what ``sessionfs migrate`` calls a store.

Without a setting ``store`` the file ``session-store.json`` beside the user's ``sessionfs.toml`` names the store; without that file it is the
embedded default. A setting ``store`` that names such a file is that file's store; one that names a URL is no file's.
"""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionfs.formats.store_settings import FILE_NAME, StoreSettings, decode, of_url
from sessionfs.model.errors import InvalidRequestError, SettingsError
from sessionfs.stores.store_urls import canonical_url, file_url

if TYPE_CHECKING:
    from sessionfs.model.settings import Settings

LOCAL = "local"
_LOCAL_PREFIX = "local:"


@dataclass(frozen=True, slots=True)
class Configured:
    """The store that commands use when none is named.

    Attributes:
        url: Its canonical URL.
        file: The ``session-store.json`` that says so, or would; "" when a setting names the store itself.
    """

    url: str
    file: str


def own_store_file() -> str:
    """Give the path of the user's ``session-store.json``, which need not exist: beside the default ``sessionfs.toml``."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "sessionfs", FILE_NAME)


def url_of_file(path: str) -> str:
    """Give the canonical URL of the store that a ``session-store.json`` names.

    Raises:
        SettingsError: It cannot be read, or names no store; the message has its path.
    """
    from sessionfs.stores.open_store import default_store_url  # noqa: PLC0415 - not needed for --help

    try:
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as problem:
        raise SettingsError(f"cannot read {path}: {problem.strerror}") from None
    url = decode(raw, path).url()
    return canonical_url(url) if url else default_store_url()


def configured_store(settings: Settings) -> Configured:
    """Say which store is the configured one.

    Raises:
        SettingsError: A file that names it cannot be read.
        StoreUrlError: The setting names no store.
    """
    from sessionfs.stores.open_store import default_store_url  # noqa: PLC0415

    named = settings.mount.store
    if named.endswith(".json") and not os.path.isdir(named):
        path = os.path.abspath(os.path.expanduser(named))
        return Configured(url_of_file(path), path)
    if named:
        return Configured(canonical_url(named), "")
    path = own_store_file()
    return Configured(url_of_file(path) if os.path.lexists(path) else default_store_url(), path)


def spelled_out(named: str) -> str:
    """Give a URL for ``local`` and ``local:DIR``; any other name is given back.

    Raises:
        InvalidRequestError: ``local:`` without a directory.
    """
    from sessionfs.stores.open_store import default_store_url  # noqa: PLC0415

    if named == LOCAL:
        return default_store_url()
    if not named.startswith(_LOCAL_PREFIX):
        return named
    directory = named.removeprefix(_LOCAL_PREFIX)
    if not directory:
        raise InvalidRequestError(f"{named!r} names no directory", remedy="write local:DIR, or local")
    return file_url(os.path.realpath(os.path.expanduser(directory)))


def as_backend(url: str) -> StoreSettings | None:
    """Give what a ``session-store.json`` says of a store; None for one that is no backend of such a file, as a directory that was named."""
    from sessionfs.stores.open_store import default_store_url  # noqa: PLC0415

    return of_url(url, default_url=canonical_url(default_store_url()))


def require_apart(source: str, destination: str) -> None:
    """Require that neither store is, or is inside, the other.

    Args:
        source: Canonical URL.
        destination: Canonical URL.

    Raises:
        InvalidRequestError: It is.
    """
    place, path = _position(source)
    other, other_path = _position(destination)
    if place != other:
        return
    if path == other_path:
        raise InvalidRequestError(
            f"{destination} is the source itself", remedy="name another store with --to"
        )
    if other_path.startswith(path) or path.startswith(other_path):
        raise InvalidRequestError(
            f"of {source} and {destination} one is inside the other",
            remedy="name a destination beside the source",
        )


def _position(url: str) -> tuple[tuple[str, str, str], str]:
    """Give the server and bucket of a URL, and the path in it, which ends in a slash."""
    parts = urllib.parse.urlsplit(url)
    endpoint = dict(urllib.parse.parse_qsl(parts.query)).get("endpoint", "")
    path = urllib.parse.unquote(parts.path).strip("/")
    return (parts.scheme, parts.netloc, endpoint), f"/{path}/" if path else "/"
