"""``sessionfs ls``."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from sessionfs.cli.options import absolute, config_option, connect, json_option
from sessionfs.cli.output import console, print_json, size_text
from sessionfs.model.errors import CorruptDataError, NotFoundError
from sessionfs.model.roots import shown_id

if TYPE_CHECKING:
    from sessionfs.model.names import SessionId
    from sessionfs.stores.base import ObjectStat, ObjectStore


_READERS = 16


@dataclass(slots=True)
class SessionSummary:
    """What the store's listing and two small records say of one session.

    Attributes:
        id: Its id.
        size_bytes: Of its files.
        files: How many.
        changed_ns: When the store last saw a change, nanoseconds since the epoch.
        has_owner: Whether there is an ownership record.
        has_marker: Whether there is a marker of the last commit.
        owner: Who may write it, as a person reads it; "" for nobody.
        generation: Of the last commit, 0 for none.
        committed_at: When that was, as text, "" for never.
        is_removed: The session was removed: what is left of it are remains.
    """

    id: str
    size_bytes: int = 0
    files: int = 0
    changed_ns: int = 0
    has_owner: bool = False
    has_marker: bool = False
    owner: str = ""
    generation: int = 0
    committed_at: str = ""
    is_removed: bool = False

    def add(self, found: ObjectStat) -> None:
        """Count one object."""
        self.changed_ns = max(self.changed_ns, found.modified_ns)
        if not found.key.endswith("/"):
            self.files += 1
            self.size_bytes += found.size_bytes

    def to_json(self) -> dict[str, Any]:
        """Give the session as in ``ls --json``."""
        return {
            "id": self.id,
            "owner": self.owner,
            "size_bytes": self.size_bytes,
            "files": self.files,
            "generation": self.generation,
            "committed_at": self.committed_at,
            "changed": self.changed,
        }

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
    """List the sessions of a store, or of the store of a mount, and then its plugins and evaluation runs.

    Without an argument: the store of the settings, else the embedded default. What a mount still owes is not counted.
    The owner is the host that may write a session; removed sessions are not listed.
    """
    from sessionfs.cli.settings_sources import load_settings, store_url  # noqa: PLC0415
    from sessionfs.stores.open_store import open_store  # noqa: PLC0415

    url = (place and _store_of_mount(place)) or store_url(place, load_settings(flags={}, config=config))
    store = open_store(url, max_connections=_READERS)
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
    table.add_column("owner", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("generation", justify="right", no_wrap=True)
    table.add_column("changed", no_wrap=True)
    for session in sessions:
        changed = session.changed.replace("T", " ").removesuffix("Z") + " UTC"
        generation = str(session.generation or "-")
        size = size_text(session.size_bytes)
        table.add_row(session.id, session.owner or "-", size, str(session.files), generation, changed)
    console().print(table)


def summaries(store: ObjectStore) -> list[SessionSummary]:
    """Read the store's listing, and of each session its ownership record and its marker; never a file.

    Returns:
        Sessions sorted by id, then shared roots; those that were removed left out.

    Raises:
        SessionFSError: The store did not answer, or refused.
    """
    found = _listed(store)
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(lambda session: _read_records(store, session), found))
    return [session for session in found if not session.is_removed]


def _listed(store: ObjectStore) -> list[SessionSummary]:
    from sessionfs.model import keys  # noqa: PLC0415

    found: dict[SessionId, SessionSummary] = {}
    records: set[str] = set()
    for prefix in (keys.SESSIONS_PREFIX, *keys.SHARED_PREFIXES):
        for page in store.list_all(prefix):
            for entry in page.objects:
                live = keys.parse_live_key(entry.key)
                if live is not None:
                    found.setdefault(live.session, SessionSummary(shown_id(live.session))).add(entry)
                elif entry.key.endswith((".owner/owner.json", ".snapshot.json")):
                    records.add(entry.key)
    for identifier, session in found.items():
        session.has_owner = keys.owner_key(identifier) in records
        session.has_marker = keys.commit_marker_key(identifier) in records
    return [found[identifier] for identifier in sorted(found, key=lambda one: (one.startswith("%"), one))]


def _read_records(store: ObjectStore, session: SessionSummary) -> None:
    """Read what two small objects say; one that cannot be read says nothing here: ``verify`` names it."""
    from sessionfs.formats import commit_marker, manifest, ownership  # noqa: PLC0415
    from sessionfs.model import keys, roots  # noqa: PLC0415

    identifier = roots.named_unit(session.id)
    if session.has_owner:
        with suppress(NotFoundError, CorruptDataError):
            key = keys.owner_key(identifier)
            record = ownership.decode_owner(_read(store, key), key)
            if record.state == "held":
                session.owner = record.host or record.holder[:8]
    if session.has_marker:
        with suppress(NotFoundError, CorruptDataError):
            key = keys.commit_marker_key(identifier)
            marker = commit_marker.decode(_read(store, key), key)
            session.generation, session.committed_at = marker.generation, marker.completed_at
            if marker.objects == 0:
                # Only a removed session has a generation without even its root; its manifest is a few lines.
                key = keys.manifest_key(identifier)
                session.is_removed = manifest.decode(_read(store, key), key).removed


def _read(store: ObjectStore, key: str) -> bytes:
    with store.get(key, byte_range=None, expected=None) as body:
        return body.read()


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
