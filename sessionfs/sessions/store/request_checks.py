"""Checks that a session store makes before it calls any backend, and the spelling of what it hands over.

What passes here is safe for every backend: an id or path never leaves its session, a line is one line, and an index reads back as it was written.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessionfs.model import names
from sessionfs.model.errors import CorruptDataError, InvalidRequestError, InvalidSessionIdError
from sessionfs.model.names import SessionId
from sessionfs.sessions.port import checked_path

INDEX_NAME = "sessions.json"


def checked_session(session: object) -> SessionId:
    """Check the id of a session; it is given back.

    Raises:
        InvalidSessionIdError: It breaks the rules of ``model/names.py``, or is no text.
    """
    if not isinstance(session, str):
        raise InvalidSessionIdError(f"session id {session!r} is no text")
    return names.session_id(session)


def checked_file_path(path: object) -> str:
    """Check the path of a file; it is given back.

    Raises:
        InvalidRequestError: As ``port.checked_path``, or it is no text.
    """
    if not isinstance(path, str):
        raise InvalidRequestError(f"path {path!r} is no text")
    try:
        return checked_path(path)
    except UnicodeEncodeError:
        raise InvalidRequestError(f"path {path[:80]!r} is no text that can be a name of files") from None


def checked_body(body: object) -> bytes:
    """Check the bytes of a file; a copy is made of what others could change.

    Raises:
        InvalidRequestError: They are no bytes.
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise InvalidRequestError(f"the bytes of a file are given as {type(body).__name__}", remedy="give bytes")


def checked_length(value: object, what: str, *, least: int) -> int:
    """Check a count of bytes; it is given back.

    Raises:
        InvalidRequestError: It is no whole number from `least` on.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidRequestError(f"{what} {value!r} is no number of bytes from {least} on")
    return value


def line_bytes(line: object) -> bytes:
    """Give one line of a file, with its newline.

    Args:
        line: Text, its UTF-8 bytes, or a JSON object.

    Raises:
        InvalidRequestError: It has a newline, is no UTF-8, or no JSON object.
    """
    if isinstance(line, dict):
        raw = _object_bytes(line, "a line")
    elif isinstance(line, str):
        try:
            raw = line.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequestError("a line has characters that are no UTF-8") from None
    elif isinstance(line, bytes | bytearray | memoryview):
        raw = bytes(line)
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequestError("a line has bytes that are no UTF-8") from None
    else:
        raise InvalidRequestError(
            f"a line is given as {type(line).__name__}", remedy="give text, bytes or a dict"
        )
    if b"\n" in raw:
        raise InvalidRequestError("a line has a newline in it", remedy="append its lines one by one")
    return raw + b"\n"


def index_bytes(index: object) -> bytes:
    """Give the bytes of an index: JSON that people can read.

    Raises:
        InvalidRequestError: It is no JSON object that reads back as it was written.
    """
    if not isinstance(index, dict):
        raise InvalidRequestError(f"the index is given as {type(index).__name__}", remedy="give a dict")
    return msgspec.json.format(_object_bytes(index, "the index"), indent=2) + b"\n"


def read_index_bytes(raw: bytes | None) -> dict[str, Any]:
    """Read the bytes of an index; none are an empty one.

    Raises:
        CorruptDataError: They are no JSON object.
    """
    if raw is None:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptDataError(
            f"{INDEX_NAME} cannot be read: {error}", remedy="quarantine_index sets it aside"
        ) from error


def _object_bytes(value: dict[Any, Any], what: str) -> bytes:
    """Encode an object; what JSON would change on the way (a tuple, a number as key, a NaN) is refused."""
    try:
        raw = msgspec.json.encode(value)
        is_kept = bool(msgspec.json.decode(raw) == value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidRequestError(f"{what} is no JSON object: {error}") from None
    if not is_kept:
        raise InvalidRequestError(
            f"{what} is no JSON object: it would not read back as it is",
            remedy="use text as keys, lists for tuples, and no NaN",
        )
    return raw
