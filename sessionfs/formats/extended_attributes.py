"""Extended attributes as bytes: MessagePack in the journal; and the text spelling of byte strings in JSON records.

An xattr's name and a symlink's target are any bytes but NUL. In JSON they are ASCII text: what is not printable ASCII,
and ``%``, is written ``%XX``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from sessionfs.model.errors import CorruptDataError

_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[bytes, bytes])


def pack(xattrs: Mapping[bytes, bytes]) -> bytes:
    """Give the journal's bytes of a file's attributes; none is no bytes."""
    return _encoder.encode(dict(sorted(xattrs.items()))) if xattrs else b""


def unpack(raw: bytes) -> dict[bytes, bytes]:
    """Read `pack`'s bytes.

    Raises:
        CorruptDataError: They are no attributes.
    """
    if not raw:
        return {}
    try:
        return _decoder.decode(raw)
    except msgspec.DecodeError as problem:
        raise CorruptDataError(f"extended attributes in the journal cannot be read: {problem}") from None


def encode_text(raw: bytes) -> str:
    """Spell bytes as printable ASCII."""
    return quote_from_bytes(raw, safe=_PLAIN)


def decode_text(text: str) -> bytes:
    """Read `encode_text`'s spelling; every text is some bytes."""
    return unquote_to_bytes(text.encode("utf-8", "surrogatepass"))


def encode_values(xattrs: Mapping[bytes, bytes]) -> dict[str, str]:
    """Give attributes for JSON: names as text, values in base64."""
    return {encode_text(name): base64.b64encode(value).decode("ascii") for name, value in xattrs.items()}


def decode_values(values: Mapping[str, str], name: str) -> dict[bytes, bytes]:
    """Read `encode_values`' mapping.

    Raises:
        CorruptDataError: A value is no base64; the message names `name`.
    """
    try:
        return {decode_text(key): base64.b64decode(value, validate=True) for key, value in values.items()}
    except (binascii.Error, ValueError):
        raise CorruptDataError(f"{name} has an extended attribute that is no base64") from None
