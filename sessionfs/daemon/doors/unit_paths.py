"""Where the files of a session, or of a shared root, are below a mount."""

from __future__ import annotations

import os

from sessionfs.model import roots
from sessionfs.model.names import SessionId


def unit_path(session: SessionId, path: str = "") -> list[bytes]:
    """Give the components of a path below the mount's root."""
    parts = roots.mount_path(session).encode().split(b"/")
    return parts + (os.fsencode(path).split(b"/") if path else [])
