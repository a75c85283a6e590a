"""One live session, or one shared root, for a program that works in it: files, events, blobs, journal, metadata, generations.

``workspace`` and ``shared_root`` are what programs use, ``blocking`` the same without an event loop; ``observation`` finds out what changed.
Everything goes through ``sessions/port.py``, so that the place may be a bucket, a directory, a working copy or a mount. May import what
``sessions`` may.
"""

from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import NewSession, Workspace

__all__ = ["NewSession", "Workspace", "WorkspaceOptions"]
