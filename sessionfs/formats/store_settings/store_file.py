"""The file that names a store: ``{"backend": "local"}``, or ``"s3"`` or ``"gcs"`` with bucket, endpoint, prefix and region.

Invariants:

* What cannot be read is an error that names the file, never "no store": an empty list of sessions would look as if all were lost.
* No secret is in it: a field that looks like one is refused, and its value is not repeated.
* ``of_url`` and ``StoreSettings.url`` are each other's inverse for every URL that has such a file.
"""

from __future__ import annotations

import os
import urllib.parse
from typing import Literal

import msgspec

from sessionfs.model.errors import SettingsError

FILE_NAME = "session-store.json"

Backend = Literal["local", "s3", "gcs"]

_SCHEMES: dict[str, Backend] = {"s3": "s3", "gs": "gcs"}
_SAFE_IN_PATH = "/ ~!'()*,;=:@+$&"
_SECRET_WORDS = ("key", "secret", "token", "password")
_FORM = (
    'write {"backend": "local"} or {"backend": "s3", "bucket", "endpoint", "prefix", "region"} '
    'or {"backend": "gcs", "bucket", "prefix"}'
)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A store as the file names it.

    Attributes:
        backend: ``local``: a directory; ``s3`` and ``gcs``: a bucket.
        bucket: The bucket's name; "" for ``local``.
        prefix: Whole segments below which the store is, "" for none; slashes at its ends do not matter.
        endpoint: URL of the server, "" for the vendor's own.
        region: Of the bucket, "" for the environment's.
        directory: Of a ``local`` store, absolute; "" for the default one.
    """

    backend: Backend
    bucket: str = ""
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    directory: str = ""

    def url(self) -> str:
        """Give the URL of the store; "" for the default local directory."""
        if self.backend == "local":
            return "file://" + urllib.parse.quote(self.directory) if self.directory else ""
        text = f"{'s3' if self.backend == 's3' else 'gs'}://{self.bucket}"
        prefix = self.prefix.strip("/")
        if prefix:
            text += "/" + urllib.parse.quote(prefix, safe=_SAFE_IN_PATH)
        region = self.region if self.backend == "s3" else ""
        options = {name: value for name, value in (("endpoint", self.endpoint), ("region", region)) if value}
        return text + ("?" + urllib.parse.urlencode(options, safe=":/") if options else "")


def decode(raw: bytes, name: str) -> StoreSettings:
    """Read the file.

    Args:
        raw: Its bytes.
        name: Its path: named in errors, and what a relative ``directory`` is relative to.

    Raises:
        SettingsError: It is no JSON, names no store, or carries a secret. The message names the file.
    """
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise SettingsError(f"{name} is no JSON: {problem}", remedy=_FORM) from None
    if not isinstance(content, dict):
        raise SettingsError(f"{name} names no store", remedy=_FORM)
    for field in sorted(content.keys() - set(StoreSettings.__struct_fields__)):
        if any(word in field.lower() for word in _SECRET_WORDS):
            raise SettingsError(
                f"{name} has the field {field!r}, and a secret is never in it",
                remedy="set SESSIONFS_ACCESS_KEY_ID and SESSIONFS_SECRET_ACCESS_KEY, or use a profile",
            )
    # Other programs write null where they have no value.
    given = {field: value for field, value in content.items() if value is not None}
    try:
        found = msgspec.convert(given, StoreSettings)
    except msgspec.ValidationError as problem:
        raise SettingsError(f"{name} names no store: {problem}", remedy=_FORM) from None
    if found.backend == "local":
        here = os.path.dirname(os.path.abspath(name))
        directory = os.path.normpath(os.path.join(here, found.directory)) if found.directory else ""
        return StoreSettings(backend="local", directory=directory)
    if not found.bucket or "/" in found.bucket:
        raise SettingsError(f"{name} names no bucket", remedy=_FORM)
    return msgspec.structs.replace(found, prefix=found.prefix.strip("/"), directory="")


def encode(settings: StoreSettings) -> bytes:
    """Give the file's bytes: readable JSON that ends in a newline."""
    return msgspec.json.format(msgspec.json.encode(settings)) + b"\n"


def of_url(url: str, *, default_url: str) -> StoreSettings | None:
    """Give what the file says of a store.

    Args:
        url: Canonical URL of the store.
        default_url: Of the default local directory.

    Returns:
        None for a store that such a file is not written for: another directory, or a backend of a third party.
    """
    if url == default_url:
        return StoreSettings(backend="local")
    parts = urllib.parse.urlsplit(url)
    backend = _SCHEMES.get(parts.scheme)
    if backend is None:
        return None
    options = dict(urllib.parse.parse_qsl(parts.query))
    return StoreSettings(
        backend=backend,
        bucket=parts.netloc,
        prefix=urllib.parse.unquote(parts.path).strip("/"),
        endpoint=options.get("endpoint", ""),
        region=options.get("region", ""),
    )
