r"""Session ids and file names, and the one spelling of a file name inside a key.

A file name is any byte string that Linux allows. In a key it is UTF-8 text: bytes that are no valid UTF-8, control
characters, ``%`` and ``\`` are written ``%XX`` (upper case), everything else is kept as it is. Each name has
exactly one spelling and each spelling one name; a segment that is not a name's one spelling decodes to
None.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NewType

from sessionfs.model.errors import InvalidSessionIdError

SessionId = NewType("SessionId", str)

MAX_SESSION_ID_BYTES = 128
MAX_NAME_BYTES = 255

SIBLING_SUFFIXES = (
    ".owner",
    ".manifest",
    ".snapshot.json",
    ".objects",
    ".conflicts",
)
"""Suffixes of the keys beside a session; no session id ends in one."""

CONTROL_DIRECTORY = b".sessionfs"
"""The hidden control directory of every session; never listed, never uploaded."""

_DRIVE_PREFIX = re.compile(r"^[A-Za-z]:")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")
_INVALID_BYTE = re.compile("[\udc80-\udcff]")
_ESCAPED = re.compile(r"[%\\\x00-\x1f\x7f-\x9f\ufffe\uffff]")
_PLAIN = re.compile(rb"[ !-$&-\[\]-~]+")


def session_id(text: str) -> SessionId:
    r"""Check a session id.

    Args:
        text: One path component, at most 128 bytes of UTF-8.

    Returns:
        The same text, typed.

    Raises:
        InvalidSessionIdError: It is empty, ``.`` or ``..``, too long, contains ``/``, ``\``, NUL or a control character,
            starts with a drive prefix or a dot-directory of ours, or ends in a sibling suffix.
    """
    problem = ""
    if text in {"", ".", ".."}:
        problem = "is empty or a dot directory"
    elif any(character in "/\\\0" or unicodedata.category(character) in {"Cc", "Cs"} for character in text):
        problem = "contains a slash, a backslash, NUL or a control character"
    elif "%" in text:
        problem = "contains a percent sign"
    elif len(text.encode("utf-8")) > MAX_SESSION_ID_BYTES:
        problem = f"is longer than {MAX_SESSION_ID_BYTES} bytes"
    elif _DRIVE_PREFIX.match(text):
        problem = "starts with a drive prefix"
    elif text.endswith(SIBLING_SUFFIXES):
        problem = "ends in a suffix that sessionfs keeps for itself"
    elif text == CONTROL_DIRECTORY.decode():
        problem = "is the control directory"
    if problem:
        raise InvalidSessionIdError(f"session id {text!r} {problem}")
    return SessionId(text)


def session_id_from_name(name: bytes) -> SessionId:
    """Check a directory name of the mount's root as a session id.

    Raises:
        InvalidSessionIdError: As for `session_id`, and when the bytes are no valid UTF-8.
    """
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidSessionIdError(f"session id {name!r} is no valid UTF-8") from None
    return session_id(text)


def encode_name(name: bytes) -> str:
    r"""Give the key segment of one file name.

    Args:
        name: 1 to 255 bytes without ``/`` and NUL.

    Returns:
        Text without control characters, ``\`` and ``/``; ``%`` only as part of ``%XX``.
    """
    if _PLAIN.fullmatch(name):
        return name.decode("ascii")
    pieces: list[str] = []
    for character in name.decode("utf-8", "surrogateescape"):
        code = ord(character)
        if _INVALID_BYTE.match(character):
            pieces.append(f"%{code - 0xDC00:02X}")
        elif _ESCAPED.match(character):
            pieces.extend(f"%{byte:02X}" for byte in character.encode("utf-8"))
        else:
            pieces.append(character)
    return "".join(pieces)


def decode_name(segment: str) -> bytes | None:
    """Give the file name that a key segment spells.

    Args:
        segment: One segment of a key.

    Returns:
        The name's bytes, or None when no name has this spelling (another tool wrote the key).
    """
    if segment in {"", ".", ".."}:
        return None
    try:
        raw = segment.encode("utf-8")
    except UnicodeEncodeError:
        return None
    name = _ESCAPE.sub(lambda match: bytes([int(match.group(1), 16)]), raw)
    if b"/" in name or b"\0" in name or name in {b".", b".."} or len(name) > MAX_NAME_BYTES:
        return None
    return name if encode_name(name) == segment else None


def display(path: bytes) -> str:
    """Give a path as a person reads it: one line, no control characters, never an error."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
