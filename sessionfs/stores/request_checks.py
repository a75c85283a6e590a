"""Checks that every backend makes before it does anything: one place, so that no two stores disagree."""

from __future__ import annotations

import re

from sessionfs.model.errors import ConflictError, InvalidKeyError, InvalidRequestError
from sessionfs.model.keys import validate_any_key, validate_prefix
from sessionfs.stores.base import Capabilities, IfAbsent, IfMatch, ObjectMetadata

MAX_METADATA_BYTES = 2048
MAX_LIST_LIMIT = 1000

_METADATA_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_METADATA_VALUE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")


def check_key(key: str, capabilities: Capabilities) -> None:
    """Check a key of either kind, also against the store's own limit.

    Raises:
        InvalidKeyError: It breaks a rule of ``model/keys.py`` or has a segment longer than the store keeps.
    """
    validate_any_key(key)
    _check_segments(key, capabilities)


def check_prefix(prefix: str, capabilities: Capabilities) -> None:
    """Check a listing prefix.

    Raises:
        InvalidKeyError: It is neither empty nor whole segments ending in a slash, or over the store's limit.
    """
    validate_prefix(prefix)
    _check_segments(prefix, capabilities)


def check_limit(limit: int) -> None:
    """Check the size of a page.

    Raises:
        InvalidRequestError: It is not 1 to 1000.
    """
    if not 1 <= limit <= MAX_LIST_LIMIT:
        raise InvalidRequestError(f"list limit {limit} is not between 1 and {MAX_LIST_LIMIT}")


def check_metadata(metadata: ObjectMetadata) -> None:
    """Check metadata against what every store keeps unchanged: HTTP header text.

    Raises:
        InvalidRequestError: A name is not lower-case ASCII, a value is not printable ASCII without outer spaces, or
            the user metadata is over 2 KiB in all.
    """
    size = 0
    for name, value in metadata.user.items():
        if not _METADATA_NAME.fullmatch(name):
            raise InvalidRequestError(f"metadata name {name!r} is not lower-case ASCII")
        if not _METADATA_VALUE.fullmatch(value):
            raise InvalidRequestError(
                f"metadata value of {name!r} is not printable ASCII without outer spaces"
            )
        size += len(name) + len(value)
    if size > MAX_METADATA_BYTES:
        raise InvalidRequestError(f"user metadata is {size} bytes, at most {MAX_METADATA_BYTES} are kept")
    for text in (metadata.content_type, metadata.content_encoding):
        if not _METADATA_VALUE.fullmatch(text):
            raise InvalidRequestError(f"content type or encoding {text!r} is not printable ASCII")


def check_put(key: str, size_bytes: int, metadata: ObjectMetadata, capabilities: Capabilities) -> None:
    """Check everything about a put but its condition.

    Raises:
        InvalidKeyError: As `check_key`.
        InvalidRequestError: As `check_metadata`; a directory marker with bytes (SeaweedFS drops them without a word);
            more bytes than one put may have.
    """
    check_key(key, capabilities)
    check_metadata(metadata)
    if key.endswith("/") and (size_bytes or metadata.content_encoding):
        raise InvalidRequestError(f"directory marker {key!r} has no bytes of its own")
    if size_bytes > capabilities.maximum_put_bytes:
        raise InvalidRequestError(
            f"{key!r} is {size_bytes} bytes, one put takes {capabilities.maximum_put_bytes}"
        )


def check_parts_key(key: str, metadata: ObjectMetadata, capabilities: Capabilities) -> None:
    """Check a put in parts: never a directory marker.

    Raises:
        InvalidKeyError: As `check_key`, and for a marker's key.
        InvalidRequestError: As `check_metadata`.
    """
    check_key(key, capabilities)
    if key.endswith("/"):
        raise InvalidKeyError(f"directory marker {key!r} is put whole")
    check_metadata(metadata)


def check_copy(source: str, target: str, metadata: ObjectMetadata, capabilities: Capabilities) -> None:
    """Check everything about a copy but its conditions.

    Raises:
        InvalidKeyError: As `check_key`; or only one of the two is a directory marker.
        InvalidRequestError: As `check_metadata`.
    """
    check_key(source, capabilities)
    check_key(target, capabilities)
    if source.endswith("/") != target.endswith("/"):
        raise InvalidKeyError(f"{source!r} and {target!r} are not both directory markers or both files")
    check_metadata(metadata)


def check_delete_condition(condition: object) -> None:
    """Check the condition of a delete.

    Raises:
        InvalidRequestError: It is ``IfAbsent``.
    """
    if isinstance(condition, IfAbsent):
        raise InvalidRequestError("a delete under the condition that nothing is there makes no sense")


def collision(key: str) -> ConflictError:
    """Give the error of a store that cannot keep ``x`` beside ``x/y``."""
    return ConflictError(
        f"{key!r} cannot be stored: a name on its path is a file, or objects are stored below it",
        remedy="this store cannot keep x and x/y at once",
    )


def condition_text(condition: object) -> str:
    """Say a condition in words, for messages."""
    if isinstance(condition, IfAbsent):
        return "exists already"
    if isinstance(condition, IfMatch):
        return f"is not at token {condition.token}"
    return "changed"


def _check_segments(key: str, capabilities: Capabilities) -> None:
    limit = capabilities.maximum_segment_bytes
    if limit and any(len(segment.encode("utf-8")) > limit for segment in key.split("/")):
        raise InvalidKeyError(
            f"key {key[:60]!r}... has a segment longer than {limit} bytes, more than this store keeps"
        )
