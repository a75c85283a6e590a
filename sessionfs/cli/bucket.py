"""Commands that work on a store itself: which one, opened with what it can do, and the daemon of this host that may own a session of it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from sessionfs.cli.options import Command, absolute, connect
from sessionfs.cli.output import console, waiting
from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import MountError, SessionFSError, UnavailableError
from sessionfs.model.roots import shown_id

if TYPE_CHECKING:
    from sessionfs.model.settings import Settings
    from sessionfs.replication.trio_store import TrioStore
    from sessionfs.stores.base import ObjectStore

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Place:
    """Which store.

    Attributes:
        url: Its canonical URL.
        mount_point: The mount that was named instead, "" for none.
        settings: Resolved.
    """

    url: str
    mount_point: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Bucket:
    """An open store, for the asynchronous part of a command.

    Attributes:
        store: The store.
        settings: Resolved.
        clock: Time and randomness.
        host: Name of this machine.
    """

    store: TrioStore
    settings: Settings
    clock: Clock
    host: str


def store_argument(command: Command) -> Command:
    """``STORE``: a URL, a directory, or a mount of it."""
    return click.argument("store", metavar="STORE")(command)


def session_id_argument(command: Command) -> Command:
    """``ID``: a session of the store, or a shared root of it (``eval/RUN``, ``plugins/PLUGIN``, ``agents/AGENT/plugins/PLUGIN``)."""
    return click.argument("session", metavar="ID")(command)


def place_of(named: str | None, *, config: str | None) -> Place:
    """Say which store a command is about: a URL, a directory, or the store of a mount that is named.

    Raises:
        StoreUrlError, SettingsError: It names no store.
        MountError: It is a mount whose daemon does not answer.
    """
    from sessionfs.cli.settings_sources import load_settings, store_url  # noqa: PLC0415
    from sessionfs.daemon.checks.mount_points import mount_of  # noqa: PLC0415

    settings = load_settings(flags={}, config=config)
    if named and "://" not in named:
        entry = mount_of(absolute(os.path.expanduser(named)))
        if entry is not None:
            with connect(entry.mount_point) as daemon:
                return Place(str(daemon.call("status")["store"]), entry.mount_point, settings)
    return Place(store_url(named, settings), "", settings)


def on_bucket(
    place: Place, action: Callable[[Bucket], Awaitable[_Result]], *, changes: bool = False
) -> _Result:
    """Open a store and run the asynchronous part of a command.

    Args:
        place: Which store.
        action: The work.
        changes: It changes sessions: the store must refuse a second writer.

    Raises:
        StoreRefusedError: It does not, and ``single_host`` was not set.
        ConflictError: A migration to the store has not finished, and it changes sessions.
        SessionFSError: What the work raises.
    """
    from sessionfs.replication.trio_store import TrioStore  # noqa: PLC0415

    clock = SystemClock()
    settings = place.settings
    store = open_place(place, clock, changes=changes)
    if changes:
        _require_finished(store)

    async def main() -> _Result:
        opened = TrioStore(store, clock, settings.replication)
        return await action(Bucket(opened, settings, clock, socket.gethostname()))

    try:
        return run(main)
    finally:
        store.close()


def _require_finished(store: ObjectStore) -> None:
    from sessionfs.replication.maintenance.unfinished_migration import require_finished  # noqa: PLC0415

    try:
        require_finished(store)
    except BaseException:
        store.close()
        raise


def run(main: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run the asynchronous part of a command; of several errors the one that the user should see is raised."""
    import trio  # noqa: PLC0415

    try:
        return trio.run(main)
    except BaseExceptionGroup as group:
        raise _only(group) from None


def release_here(place: Place, session: str) -> None:
    """Let a mount of this host give up a session of a store, when it owns it.

    Raises:
        SessionFSError: Its daemon cannot: a file is open for writing, or something cannot be uploaded.
    """
    from sessionfs.daemon.checks.mount_points import mount_source, our_mounts  # noqa: PLC0415

    for mount_point in sorted(
        {entry.mount_point for entry in our_mounts() if entry.source == mount_source(place.url)}
    ):
        try:
            daemon = connect(mount_point)
        except MountError:
            continue  # dead, or another user's: ownership in the store decides
        shown = shown_id(session)
        with daemon, waiting(f"releasing {shown}"):
            owned = {row["id"] for row in daemon.call("status")["sessions"] if row["owned_here"]}
            if shown in owned:
                daemon.call("release", session=shown)


@contextmanager
def steps(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal; gives the function to call with the steps done, and of how many."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def open_place(place: Place, clock: Clock, *, changes: bool) -> ObjectStore:
    """Open a store with what this host knows of it; before changes, find out once and remember, as a mount does.

    Raises:
        StoreRefusedError: It does not refuse a second writer, and ``single_host`` was not set.
        SessionFSError: It does not answer, or refuses.
    """
    from sessionfs.daemon.mount_request import state_base  # noqa: PLC0415
    from sessionfs.daemon.replication.admission import admit_store, read_record  # noqa: PLC0415
    from sessionfs.stores.open_store import open_store  # noqa: PLC0415
    from sessionfs.stores.store_urls import scheme_of, store_id  # noqa: PLC0415
    from sessionfs.working_copy.layout import StateLayout  # noqa: PLC0415

    settings = place.settings
    state = os.path.join(state_base(settings.mount.state_dir, os.environ), store_id(place.url))
    layout = StateLayout(state)
    connections = 2 * settings.replication.concurrent_uploads + 4
    if changes and scheme_of(place.url) != "file":
        os.makedirs(state, mode=0o700, exist_ok=True)
        with _logs_apart():
            store, away = admit_store(
                place.url,
                layout=layout,
                clock=clock,
                connections=connections,
                single_host=settings.replication.single_host,
                first=True,
            )
        if away:
            store.close()
            raise UnavailableError(away)
        return store
    store = open_store(place.url, max_connections=connections)
    record = read_record(layout)
    return store if record is None else store.with_capabilities(record.capabilities)


@contextmanager
def _logs_apart() -> Iterator[None]:
    """Keep log lines out of standard output, which is the command's result; warnings go to standard error."""
    import logging  # noqa: PLC0415

    import structlog  # noqa: PLC0415

    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_args: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Give what the user should see of several errors: their own Ctrl-C, else the first of ours."""
    found: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo:
        problem = todo.pop(0)
        if isinstance(problem, BaseExceptionGroup):
            todo.extend(problem.exceptions)
        else:
            found.append(problem)
    for kind in (KeyboardInterrupt, SessionFSError, OSError):
        for problem in found:
            if isinstance(problem, kind):
                return problem
    return group


no_wait_option = click.option(
    "--no-wait", is_flag=True, help="Do not wait to see whether a silent owner lives: refuse at once."
)
