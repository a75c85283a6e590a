"""Keys of the archive's objects.

Layout::

    sessions/<id>/blocks/<generation>/<index>       64 KiB of a file, once
    sessions/<id>/tails/<checkpoint>/<generation>   what is behind a file's last complete block
    sessions/<id>/checkpoints/<checkpoint>          the manifest
    sessions/<id>/latest                            the pointer to the newest; the only object that changes

All are below ``archive/`` in a bucket. ``<id>`` is the session's id; one with other characters than a key may have is spelled with ``%XX``, and one
that would be too long so is named by its sum. No id has a percent sign, so no two sessions meet.
"""

from __future__ import annotations

import hashlib
import re

from sessionfs.model import names

_PLAIN = re.compile(rb"[A-Za-z0-9._-]")
_MAX_SEGMENT_BYTES = 255


def session_segment(session: str) -> str:
    """Give the segment that names a session.

    Raises:
        InvalidSessionIdError: It is no session's id.
    """
    raw = names.session_id(session).encode("utf-8")
    spelled = "".join(chr(byte) if _PLAIN.fullmatch(bytes([byte])) else f"%{byte:02X}" for byte in raw)
    return spelled if len(spelled) <= _MAX_SEGMENT_BYTES else f"%sha256-{hashlib.sha256(raw).hexdigest()}"


def block_key(session: str, generation: str, index: int) -> str:
    """Key of a complete block.

    Args:
        session: The session.
        generation: 32 hexadecimal digits.
        index: From 0.
    """
    return f"sessions/{session_segment(session)}/blocks/{generation}/{index}"


def tail_key(session: str, checkpoint: str, generation: str) -> str:
    """Key of a file's tail as it was sent with a checkpoint."""
    return f"sessions/{session_segment(session)}/tails/{checkpoint}/{generation}"


def manifest_key(session: str, checkpoint: str) -> str:
    """Key of a checkpoint's manifest."""
    return f"sessions/{session_segment(session)}/checkpoints/{checkpoint}"


def pointer_key(session: str) -> str:
    """Key of the pointer to the newest checkpoint."""
    return f"sessions/{session_segment(session)}/latest"
