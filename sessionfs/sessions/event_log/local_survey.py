"""Looks at the headers of a whole directory store: many sessions in one thread, instead of two threads' errands for each.

What is looked for is `finding`'s business; here its questions are answered by the store itself, in the calling thread, so that none of them waits.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import trio

from sessionfs.formats import object_metadata
from sessionfs.model import keys
from sessionfs.model.errors import InternalError, NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.sessions.event_log import finding
from sessionfs.sessions.event_log.finding import LogStat
from sessionfs.sessions.object_place import ObjectPlace
from sessionfs.sessions.port import FileStat, SessionPlace
from sessionfs.stores.base import ByteRange, ObjectStore
from sessionfs.stores.local_directory import open_for_reading

_AT_ONCE = 256
"""Sessions a thread looks at before a cancelled caller is heard."""

Result = TypeVar("Result")


def directory_of(place: SessionPlace) -> ObjectStore | None:
    """Give the directory store that a place works on itself; None when it works on anything else.

    Raises:
        BucketNotFoundError: The directory is gone.
    """
    if isinstance(place, ObjectPlace) and place.store.url.startswith("file:"):
        return open_for_reading(place.store.url)
    return None


async def survey(store: ObjectStore, sessions: Sequence[SessionId]) -> list[LogStat]:
    """Describe the logs of sessions, in their order; those without one are left out.

    Args:
        store: A directory store.
        sessions: Which.

    Raises:
        SessionFSError: The disk refused.
    """
    found: list[LogStat] = []
    for start in range(0, len(sessions), _AT_ONCE):
        some = sessions[start : start + _AT_ONCE]
        found += await trio.to_thread.run_sync(_look, store, some, abandon_on_cancel=True)
    return found


def _look(store: ObjectStore, sessions: Sequence[SessionId]) -> list[LogStat]:
    seen = [_run(finding.describe_any(_StoreFiles(store, session))) for session in sessions]
    return [one for one in seen if one is not None]


class _StoreFiles:
    """What `finding` asks of a session's files, answered at once."""

    def __init__(self, store: ObjectStore, session: SessionId) -> None:
        self._store = store
        self.session = session

    async def stat(self, path: str) -> FileStat:
        """As `SessionFiles.stat`."""
        found = self._store.head(self._key(path))
        modified_ns = found.modified_ns
        if found.metadata is not None:
            modified_ns = object_metadata.decode_time(found.metadata.user.get("mtime", ""), modified_ns)
        return FileStat(path, found.size_bytes, modified_ns, found.token)

    async def read(self, path: str, start: int, end: int) -> bytes:
        """As `SessionFiles.read`."""
        with self._store.get(self._key(path), byte_range=ByteRange(start, end), expected=None) as body:
            return body.read()

    def _key(self, path: str) -> str:
        key = keys.live_key(self.session, path.encode(), is_directory=False)
        if key is None:
            raise NotFoundError(f"session {self.session} has no file {path!r}")
        return key


def _run(looking: Coroutine[Any, Any, Result]) -> Result:
    """Run to its end what never waits."""
    try:
        looking.send(None)
    except StopIteration as ended:
        result: Result = ended.value
        return result
    raise InternalError("a question to a directory store waited")
