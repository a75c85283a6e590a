"""The composition root of the daemon: checks, then every component made once and handed its parts.

Order of steps of a start: the checks that change nothing; the state directory and its lock; the replication process,
which admits the store; a stale mount is cleared; the mount; then the report. A start that fails before the report
leaves nothing mounted and, unless its log is worth reading, no state directory that was not there before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog
import trio

from sessionfs.daemon.checks.mount_points import FILESYSTEM_TYPE, mount_source
from sessionfs.daemon.checks.unmount import clear_stale
from sessionfs.daemon.mount_request import MountRequest, Ready, ReplicationRequest
from sessionfs.daemon.replication_child import Child, end_child, start_child, wait_until_started
from sessionfs.daemon.state_lock import StateLock
from sessionfs.model import clock as clocks
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import InternalError, MountError, SessionFSError
from sessionfs.working_copy.layout import StateLayout

if TYPE_CHECKING:
    from sessionfs.daemon.composition import Composition

_FILES_OF_A_START = (
    "lock",
    "replication.lock",
    "intent.log",
    "journal.db",
    "journal.db-wal",
    "journal.db-shm",
    "capabilities.json",
    "lease",
    "control.sock",
    "daemon.log",
)
_log = structlog.get_logger("sessionfs.daemon")

Report = Callable[[Ready], None]


def run_mount(request: MountRequest, report: Report, *, on_state: Callable[[StateLayout], None]) -> int:
    """Mount, serve until the mount is gone, and bring away what is owed.

    Args:
        request: What to mount; already checked by `checks.requests.check_request`.
        report: Called once, when the mount answers.
        on_state: Called when the state directory exists and is ours.

    Returns:
        The exit code: 0, or 4 when bytes stayed behind.

    Raises:
        SessionFSError: The mount could not be made; nothing is left of it.
    """
    clock = SystemClock()
    layout = StateLayout(request.state_root)
    with state_directory(layout) as keep:
        lock = StateLock(layout.lock, mount_point=request.mount_point, clock=clock)
        on_state(layout)
        child = start_child(replication_request(request, first=True))
        try:
            # Imported while the replication process starts: both take a noticeable part of a second.
            from sessionfs.daemon.composition import Composition  # noqa: PLC0415

            degraded = wait_until_started(child)
            if clear_stale(request.mount_point):
                _log.warning("a mount whose daemon had ended was taken away", mount_point=request.mount_point)
            empty_directory(layout.staging)
            empty_directory(layout.trash)

            def ready(warnings: tuple[str, ...]) -> None:
                keep()
                _log.info("mounted", mount_point=request.mount_point, store=request.store_url)
                report(Ready(os.getpid(), warnings))

            composition = Composition(
                request,
                layout=layout,
                clock=clock,
                boot_id=clocks.boot_id(),
                options=fuse_options(request),
                restart_request=replication_request(request, first=False),
            )
            code = _run(composition, child, degraded, ready, lock)
        finally:
            end_child(child)
        lock.release()
    return code


def fuse_options(request: MountRequest) -> frozenset[str]:
    """Give the options of the mount for the kernel and libfuse."""
    options = {f"fsname={mount_source(request.store_url)}", f"subtype={FILESYSTEM_TYPE.partition('.')[2]}"}
    options.update(request.fuse_options)
    if request.settings.filesystem.allow_other:
        options.add("allow_other")
    if request.settings.filesystem.default_permissions:
        options.add("default_permissions")
    if request.settings.filesystem.read_only:
        options.add("ro")
    return frozenset(options)


def _run(
    composition: Composition,
    child: Child,
    degraded: str,
    ready: Callable[[tuple[str, ...]], None],
    lock: StateLock,
) -> int:
    """Run the loop; an error of ours comes out alone, not in the group that a nursery makes of it."""
    try:
        return trio.run(composition.run, child, degraded, ready, lock)
    except BaseExceptionGroup as group:
        ours = group.subgroup(SessionFSError)
        if ours is None or group.split(SessionFSError)[1] is not None:
            raise
        error: BaseException = ours
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def replication_request(request: MountRequest, *, first: bool) -> ReplicationRequest:
    """Give what a replication process must know.

    Args:
        request: What is mounted, or opened by a door.
        first: As in `ReplicationRequest`.
    """
    return ReplicationRequest(
        store_url=request.store_url,
        mount_point=request.mount_point,
        state_root=request.state_root,
        settings=request.settings.replication,
        log_level=request.settings.mount.log_level,
        first=first,
    )


@contextlib.contextmanager
def state_directory(layout: StateLayout) -> Iterator[Callable[[], None]]:
    """Make the state directory; when the store refuses us, remove what this start made of it.

    Args:
        layout: Where it is.

    Yields:
        What to call when the start has succeeded: then everything stays whatever comes.

    Raises:
        LocalDiskError: It cannot be made.
    """
    missing = []
    path = layout.root
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    kept = not missing

    def keep() -> None:
        nonlocal kept
        kept = True

    layout.create()
    try:
        yield keep
    except SessionFSError as error:
        # The log may say more about a mount that failed; about a store that refused us the error says all.
        if not kept and not isinstance(error, MountError | InternalError):
            _remove_fresh(layout, missing)
        raise


def _remove_fresh(layout: StateLayout, made: list[str]) -> None:
    """Remove a state directory that holds nothing but the files of a start; else all of it stays."""
    entries = list(os.scandir(layout.root))
    if not all(_is_of_a_start(entry) for entry in entries):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
    with contextlib.suppress(OSError):
        for path in made:
            os.rmdir(path)


def _is_of_a_start(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir(follow_symlinks=False):
        return not os.listdir(entry.path)
    return entry.name in _FILES_OF_A_START


def empty_directory(directory: str) -> None:
    """Remove everything in a directory."""
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
