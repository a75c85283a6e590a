"""Retention: what this host keeps of sessions that ended long ago is removed. Local only: no request is sent anywhere, the bucket keeps everything.

A session that is open, that did not end (it was abandoned, or its process died), or that something is owed of, is kept whatever its age.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from sessionfs.model import roots
from sessionfs.model.errors import InvalidSessionIdError
from sessionfs.sessions.workspace.local_state import ENDED, ended_ns, local_disk, try_lock
from sessionfs.sessions.workspace.options import age_seconds

if TYPE_CHECKING:
    from sessionfs.model.clock import Clock
    from sessionfs.model.names import SessionId

_NANOSECONDS = 1_000_000_000


def _nothing(_session: SessionId) -> bool:
    return False


async def remove_expired(
    local_directory: str,
    age: str,
    clock: Clock,
    *,
    is_owed: Callable[[SessionId], bool] = _nothing,
    remove_working_copy: Callable[[SessionId], None] | None = None,
) -> list[SessionId]:
    """Remove what this host keeps of sessions that ended longer ago than an age.

    Args:
        local_directory: As of `WorkspaceOptions`. One that does not exist holds nothing.
        age: As ``30d`` or ``12h``.
        clock: Now.
        is_owed: Whether bytes of a session did not reach its place yet, where the place keeps a working copy; such a session is kept.
        remove_working_copy: Removes the working copy of a session, where the place keeps one; called in a thread.

    Returns:
        Whose was removed, sorted.

    Raises:
        InvalidRequestError: `age` is none; nothing was removed.
        LocalDiskError: The disk refused; what was removed until then is gone.
    """
    before_ns = clock.wall_ns() - age_seconds(age) * _NANOSECONDS

    def remove() -> list[SessionId]:
        with local_disk(local_directory):
            return [
                unit
                for unit in _units(local_directory)
                if _remove_one(local_directory, unit, before_ns, is_owed, remove_working_copy)
            ]

    return await trio.to_thread.run_sync(remove)


def _remove_one(
    local_directory: str,
    unit: SessionId,
    before_ns: int,
    is_owed: Callable[[SessionId], bool],
    remove_working_copy: Callable[[SessionId], None] | None,
) -> bool:
    lock = try_lock(local_directory, unit)
    if lock is None:
        return False
    directory = os.path.join(local_directory, unit)
    try:
        ended = ended_ns(directory)
        if ended is None or ended > before_ns or is_owed(unit):
            return False
        if remove_working_copy is not None:
            remove_working_copy(unit)
        for entry in list(os.scandir(directory)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != ENDED:
                os.unlink(entry.path)
        # The mark goes last: what a crash leaves is removed next time.
        shutil.rmtree(directory)
        return True
    finally:
        os.close(lock)


def _units(local_directory: str) -> list[SessionId]:
    try:
        entries = sorted(entry.name for entry in os.scandir(local_directory) if entry.is_dir())
    except FileNotFoundError:
        return []
    found: list[SessionId] = []
    for name in entries:
        try:
            found.append(roots.unit_id(name))
        except InvalidSessionIdError:
            continue
    return found
