"""Shared roots on the replication side: listed apart from sessions, opened, owed and read back as sessions are."""

from __future__ import annotations

import hashlib
import stat

import pytest

from sessionfs.formats import object_metadata
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import InvalidSessionIdError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.maintenance.verifying.verification import Verification
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.testing.faulty_store import FaultyStore

from .hosts import SETTINGS, Host, away, body_of, put, put_manifest

RUN = SessionId("%eval%run7")
PLUGIN = SessionId("%agents%a%plugins%p")
UNITS = [PLUGIN, RUN, SessionId("%plugins%x")]


def put_file(store: FaultyStore, unit: SessionId, path: bytes, body: bytes) -> None:
    """Store a file of a shared root as the uploader does."""
    key = keys.live_key(unit, path, is_directory=False)
    assert key is not None
    attributes = FileAttributes(stat.S_IFREG | 0o644, 1000, 1001, 1)
    user = object_metadata.encode(attributes, Provenance(hashlib.sha256(body).hexdigest(), "w", 0, "l"))
    store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata(user))


def put_key(store: FaultyStore, key: str) -> None:
    store.put(key, b"x", condition=Unconditional(), metadata=ObjectMetadata())


@pytest.fixture
def units(store: FaultyStore) -> FaultyStore:
    """A bucket with a root of each kind, a session, records beside, and what is no root."""
    put(store, "f", b"x", session="plugins")
    for unit in UNITS:
        put_file(store, unit, b"f", unit.encode())
        put_key(store, keys.owner_key(unit))
    for key in (
        "agents/b/data/f",
        "agents/c/plugins/p.manifest/manifest.json",
        "eval/bad%id/f",
        "other/x/f",
        "eval/run9",
    ):
        put_key(store, key)
    return store


async def test_sessions_and_shared_roots_are_listed_apart(host: Host, units: FaultyStore) -> None:
    host.make(b"", session="%plugins%here")
    host.make(b"", session="here")
    units.calls.clear()
    assert await host.hydrator.list_sessions() == ["here", "plugins"]
    assert len(units.calls) == 1
    assert await host.hydrator.list_shared_roots() == [*UNITS[:2], "%plugins%here", UNITS[2]]


async def test_a_list_of_roots_is_kept_for_its_time_and_never_empty_by_an_error(
    host: Host, units: FaultyStore
) -> None:
    away(units, "list_page")
    with pytest.raises(UnavailableError):
        await host.hydrator.list_shared_roots()
    units.plan("list_page")
    assert await host.hydrator.list_shared_roots() == UNITS
    put_file(units, SessionId("%eval%new"), b"f", b"x")
    assert await host.hydrator.list_shared_roots() == UNITS
    host.clock.seconds += 5
    assert await host.hydrator.list_shared_roots() == [
        "%agents%a%plugins%p",
        "%eval%new",
        "%eval%run7",
        "%plugins%x",
    ]


@pytest.mark.parametrize("unit", UNITS)
async def test_a_root_is_opened_and_its_files_are_fetched(
    host: Host, units: FaultyStore, unit: SessionId
) -> None:
    found = await host.hydrator.open_session(unit)
    assert (found.exists, found.foreign, found.read_only) == (True, True, False)
    fetched = await host.hydrator.fetch(host.number(b"f", unit))
    assert body_of(host, fetched) == unit.encode()
    assert host.journal.all_work() == []
    assert [row.id for row in host.journal.sessions()] == [unit]


async def test_what_no_root_can_be_called_is_not_asked_for(host: Host, store: FaultyStore) -> None:
    for text in ("%eval", "%other%x", "%eval%a%b", "%eval%run7%x", "%agents%a%plugins"):
        with pytest.raises(InvalidSessionIdError):
            await host.hydrator.open_session(text)
    assert store.calls == []


async def test_a_generation_of_a_root_is_a_tree_of_its_own(host: Host, units: FaultyStore) -> None:
    sha256 = hashlib.sha256(RUN.encode()).hexdigest()
    entries = (
        ManifestEntry(b"", stat.S_IFDIR | 0o755, 0, ""),
        ManifestEntry(b"f", stat.S_IFREG | 0o644, len(RUN), sha256),
    )
    put_manifest(units, Manifest(RUN, 1, entries))
    assert await host.hydrator.list_generations(RUN) == [1]
    found = await host.hydrator.open_session(f"{RUN}%g1")
    assert (found.exists, found.read_only) == (True, True)
    fetched = await host.hydrator.fetch(host.number(b"f", f"{RUN}%g1"))
    assert body_of(host, fetched) == RUN.encode()
    assert await host.hydrator.list_shared_roots() == UNITS
    assert not (await host.hydrator.open_session(f"{RUN}%g2")).exists


async def test_changes_of_a_root_are_owed_under_its_own_keys(host: Host) -> None:
    host.make(b"", session=RUN)
    host.make(b"f", b"x", session=RUN)
    assert {row.key for row in host.journal.all_work()} == {"eval/run7/", "eval/run7/f"}
    assert {row.session for row in host.journal.all_work()} == {RUN}
    assert host.journal.work_summaries(5)[RUN].sample == ("eval/run7/", "eval/run7/f")


async def test_every_root_with_anything_in_the_bucket_is_verified(host: Host, units: FaultyStore) -> None:
    found = await Verification(host.store, SystemClock(), SETTINGS).sessions()
    assert found == ["plugins", PLUGIN, "%agents%c%plugins%p", RUN, "%eval%run9", "%plugins%x"]
