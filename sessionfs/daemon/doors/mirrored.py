"""The mirrored place of a store: its working copy and upload journal on this host, through the mount that has them, or without any.

A state directory has one user at a time. While a mount runs on it, every door goes through that mount; without one, the first door has it for
itself, and the others are refused as a second mount is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import structlog
import trio

from sessionfs.daemon.checks.requests import check_pattern
from sessionfs.daemon.control.client import ControlClient
from sessionfs.daemon.control.protocol import usable_socket_path
from sessionfs.daemon.doors.in_process.core_place import CorePlace, open_core_place
from sessionfs.daemon.doors.through_mount.mount_place import MountPlace, open_mount_place
from sessionfs.daemon.mount_request import MountRequest, state_base
from sessionfs.daemon.state_lock import read_holder
from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import MountError, SettingsError, StateLockedError, UnavailableError
from sessionfs.model.settings import Settings, resolve
from sessionfs.stores.store_urls import canonical_url, store_id
from sessionfs.working_copy.layout import StateLayout

CLOSE_SECONDS = 60.0
_START_SECONDS = 30.0
_POLL_SECONDS = 0.1


@asynccontextmanager
async def open_mirrored(
    store_url: str,
    *,
    state_directory: str | None = None,
    settings: Settings | None = None,
    close_seconds: float = CLOSE_SECONDS,
    clock: Clock | None = None,
) -> AsyncIterator[CorePlace | MountPlace]:
    """Open the mirrored place of a store.

    Args:
        store_url: As for ``sessionfs mount``: a URL or a directory.
        state_directory: Where state directories are, None for the setting; the one of this store is made in it. Name the one of a mount to go
            through that mount.
        settings: None for those of the environment (``SESSIONFS_...``). A mount that runs has its own.
        close_seconds: How long the end may take to bring away what is owed, from 0; a mount brings it away by itself.
        clock: Time and randomness, None for the machine's.

    Yields:
        The place; what it writes is on this disk, and in the bucket soon after.

    Raises:
        StateLockedError: Another program's door has the state directory and there is no mount; names its process.
        StoreUrlError, SettingsError: The store or a setting cannot be.
        StoreRefusedError, AccessError, NotFoundError: The store cannot be used.
        UnavailableError: The store does not answer, and was never seen before.
        LeftBehindError: At the end: bytes did not reach the bucket in time; they are kept, and the next opening brings them away.
    """
    clock = clock or SystemClock()
    request = _request(store_url, state_directory, settings)
    if not structlog.is_configured():
        _log_trouble_only()
    async with AsyncExitStack() as stack:
        yield await _entered(request, stack, close_seconds, clock)


async def _entered(
    request: MountRequest, stack: AsyncExitStack, close_seconds: float, clock: Clock
) -> CorePlace | MountPlace:
    """Open whichever place there is; a mount that is just being made, or just going, is waited for."""
    layout = StateLayout(request.state_root)
    deadline = trio.current_time() + _START_SECONDS
    while True:
        mount_point = await trio.to_thread.run_sync(_live_mount, layout)
        opening: AbstractAsyncContextManager[CorePlace | MountPlace]
        if mount_point:
            opening = open_mount_place(request, mount_point, clock=clock)
        else:
            opening = open_core_place(request, close_seconds=close_seconds, clock=clock)
        try:
            return await stack.enter_async_context(opening)
        except StateLockedError:
            holder = read_holder(layout.lock)
            if holder is None or not holder.mount_point or trio.current_time() > deadline:
                raise
        except UnavailableError:
            if not mount_point or trio.current_time() > deadline:
                raise
        await trio.sleep(_POLL_SECONDS)


def _live_mount(layout: StateLayout) -> str:
    """Give the mount point of the daemon that has the state directory; "" when none answers."""
    holder = read_holder(layout.lock)
    if holder is None or not holder.mount_point or holder.phase != "running":
        return ""
    try:
        with ControlClient(
            usable_socket_path(layout.control_socket), mount_point=holder.mount_point
        ) as client:
            status = client.call("status")
    except (MountError, UnavailableError):
        return ""
    return str(status["mount"]) if status["daemon_pid"] == holder.pid else ""


def _request(store_url: str, state_directory: str | None, settings: Settings | None) -> MountRequest:
    """Resolve what is to be opened.

    Raises:
        StoreUrlError, SettingsError: It cannot be.
    """
    if settings is None:
        settings = resolve(flags={}, environment=os.environ, file={})
    if settings.replication.at.isdigit():
        raise SettingsError(
            "a mirrored place is for sessions as they are now", remedy="read a generation through a mount"
        )
    check_pattern(settings.filesystem.turn_pattern)
    url = canonical_url(store_url)
    base = state_base(state_directory or settings.mount.state_dir, os.environ)
    return MountRequest(
        store_url=url, mount_point="", state_root=os.path.join(base, store_id(url)), settings=settings
    )


def _log_trouble_only() -> None:
    """Send warnings and errors to standard error: a program that has not configured structlog is not to find our lines in its output."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _drop_what_is_no_trouble,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *_names: structlog.WriteLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _drop_what_is_no_trouble(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if event["level"] in {"debug", "info"}:
        raise structlog.DropEvent
    return event
