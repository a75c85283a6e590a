"""``sessionfs ls``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.options import absolute, config_option, connect, json_option
from sessionfs.cli.output import console, print_json, size_text

if TYPE_CHECKING:
    from sessionfs.stores.base import ObjectStat, ObjectStore


@dataclass(slots=True)
class SessionSummary:
    """What the store's listing says of one session.

    Attributes:
        id: Its id.
        size_bytes: Of its files.
        files: How many.
        changed_ns: When the store last saw a change, nanoseconds since the epoch.
    """

    id: str
    size_bytes: int = 0
    files: int = 0
    changed_ns: int = 0

    def add(self, found: ObjectStat) -> None:
        """Count one object."""
        self.changed_ns = max(self.changed_ns, found.modified_ns)
        if not found.key.endswith("/"):
            self.files += 1
            self.size_bytes += found.size_bytes

    def to_json(self) -> dict[str, Any]:
        """Give the session as in ``ls --json``."""
        return {"id": self.id, "size_bytes": self.size_bytes, "files": self.files, "changed": self.changed}

    @property
    def changed(self) -> str:
        """When it changed, as text, UTC."""
        moment = datetime.fromtimestamp(self.changed_ns // 1_000_000_000, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


@click.command()
@click.argument("place", metavar="[STORE|DIR]", required=False)
@config_option
@json_option
def ls(place: str | None, config: str | None, as_json: bool) -> None:
    """List the sessions of a store, or of the store of a mount.

    Without an argument: the store of the settings, else the embedded default. What a mount still owes is not counted.
    """
    from sessionfs.cli.settings_sources import load_settings, store_url  # noqa: PLC0415
    from sessionfs.stores.open_store import open_store  # noqa: PLC0415

    url = (place and _store_of_mount(place)) or store_url(place, load_settings(flags={}, config=config))
    store = open_store(url)
    try:
        sessions = summaries(store)
    finally:
        store.close()
    if as_json:
        print_json([session.to_json() for session in sessions])
        return
    if not sessions:
        click.echo(f"no sessions in {url}")
        return
    from rich.table import Table  # noqa: PLC0415 - rich only when something is drawn

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("session", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("changed", no_wrap=True)
    for session in sessions:
        changed = session.changed.replace("T", " ").removesuffix("Z") + " UTC"
        table.add_row(session.id, size_text(session.size_bytes), str(session.files), changed)
    console().print(table)


def summaries(store: ObjectStore) -> list[SessionSummary]:
    """Read the store's listing, never an object.

    Returns:
        Sessions sorted by id.

    Raises:
        SessionFSError: The store did not answer, or refused.
    """
    from sessionfs.model.keys import SESSIONS_PREFIX, parse_live_key  # noqa: PLC0415

    found: dict[str, SessionSummary] = {}
    for page in store.list_all(SESSIONS_PREFIX):
        for entry in page.objects:
            live = parse_live_key(entry.key)
            if live is not None:
                found.setdefault(live.session, SessionSummary(live.session)).add(entry)
    return [found[identifier] for identifier in sorted(found)]


def _store_of_mount(place: str) -> str:
    """Give the URL of the store of a mount; "" when the place is none."""
    from sessionfs.daemon.checks.mount_points import mount_of  # noqa: PLC0415

    if "://" in place:
        return ""
    entry = mount_of(absolute(os.path.expanduser(place)))
    if entry is None:
        return ""
    with connect(entry.mount_point) as daemon:
        return str(daemon.call("status")["store"])
