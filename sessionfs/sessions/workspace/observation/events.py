"""Events of a workspace: numbered, with what changed of a file to the byte.

For ``session.file.created`` and ``.updated``, by `offset`, `bytes_added` and `size`:

* ``offset == 0 and bytes_added == size``: all of the file is new;
* ``offset > 0 and offset + bytes_added == size``: a pure append, the bytes before `offset` are as they were;
* anything else is a rewrite.

In all three the first `offset` bytes are as they were, and `bytes_added` is how much longer the file became (negative when it became shorter).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

FILE_CREATED = "session.file.created"
FILE_UPDATED = "session.file.updated"
FILE_DELETED = "session.file.deleted"
FILE_RENAMED = "session.file.renamed"
SNAPSHOT_RESULT = "session.snapshot.result"
STORAGE_DEGRADED = "session.storage.degraded"
STORAGE_RECOVERED = "session.storage.recovered"
OWNER_ACQUIRED = "session.owner.acquired"
OWNER_LOST = "session.owner.lost"


class WorkspaceEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened.

    Attributes:
        number: Position in the workspace's history; larger for later events, with gaps.
        name: As ``session.file.updated``.
        session_id: The session or shared root, as people write it.
        at: When it was found, as ``2026-01-31T23:59:59.123456Z``.
        path: The file, "" when it is about none.
        old_path: What a renamed file was called.
        size: Bytes of the file now, 0 when it is gone.
        offset: So many first bytes are as they were.
        bytes_added: How much longer the file became.
        is_foreign: It was not done through this workspace.
        details: What an event of another kind says.
    """

    number: int
    name: str
    session_id: str
    at: str
    path: str = ""
    old_path: str = ""
    size: int = 0
    offset: int = 0
    bytes_added: int = 0
    is_foreign: bool = False
    details: dict[str, str | int | float | bool] = msgspec.field(default_factory=dict)

    @property
    def is_all_new(self) -> bool:
        """Whether all bytes of the file are new."""
        return self.offset == 0 and self.bytes_added == self.size

    @property
    def is_append(self) -> bool:
        """Whether bytes were only added behind those that were there."""
        return self.offset > 0 and self.offset + self.bytes_added == self.size


Subscriber = Callable[[WorkspaceEvent], None]
"""Told every event as it happens, on the event loop; it must not block."""
