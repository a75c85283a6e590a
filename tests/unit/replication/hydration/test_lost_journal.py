"""A working copy whose journal was lost: never an older host's bytes over a newer owner's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.formats import ownership
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydrator import Hydrator
from sessionfs.testing.faulty_store import FaultyStore
from sessionfs.working_copy.reconciliation.reconcile import Reconciliation

from .hosts import PREFIX, SESSION, Host, body_of, put
from .named_bytes import commit, kept_aside, put_named, put_raw


@pytest.fixture
def host(tmp_path: Path, store: FaultyStore) -> Iterator[Host]:
    """A host that claimed the session with epoch 3, uploaded it, and lost its journal."""
    before = Host(tmp_path / "a", store)
    before.make(b"")
    before.make(b"same", b"same")
    before.make(b"f", b"first")
    before.upload()
    before.journal.close()
    for name in os.listdir(before.layout.root):
        if name.startswith("journal.db"):
            os.unlink(os.path.join(before.layout.root, name))
    made = Host(tmp_path / "a", store)
    os.setxattr(made.disk(), "user.sessionfs.epoch", b"3")
    yield made
    made.journal.close()


def walk(host: Host) -> None:
    """What the service does with a journal that is new."""
    Reconciliation(host.journal, host.layout, now_ns=1).run()
    host.journal.update_session(SESSION, known=False)


def put_record(store: FaultyStore, epoch: int, *, holder: str = "h" * 32) -> None:
    record = OwnerRecord(session=SESSION, holder=holder, epoch=epoch)
    put_raw(store, keys.owner_key(SESSION), ownership.encode(record))


class SettingAside:
    """Plays the part of ownership that puts owed files aside."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.files: list[str] = []

    async def __call__(self, session: SessionId) -> int:
        for work in self.host.journal.session_work(session):
            if not work.key.endswith("/"):
                self.files.append(work.key.removeprefix(PREFIX))
            self.host.journal.finish_work(work.key, work.version)
        return len(self.files)


def hydrator(host: Host, set_aside: SettingAside) -> Hydrator:
    return Hydrator(
        host.journal, host.store, host.layout, host.settings, host.clock, host.exclusions,
        raise_event=lambda name, fields: host.events.append((name, fields)), set_aside=set_aside,
    )  # fmt: skip


async def test_what_changed_here_is_owed_while_nobody_else_owned_the_session(
    host: Host, store: FaultyStore
) -> None:
    put_record(store, 3)
    host.write(b"f", b"ours is newer")
    walk(host)
    aside = SettingAside(host)
    await hydrator(host, aside).open_session(SESSION)
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    assert known.token == store.head(PREFIX + "f").token
    assert host.journal.work(PREFIX + "f") is not None
    assert aside.files == []
    assert kept_aside(store) == {"f": b"first"}
    row = host.journal.session(SESSION)
    assert row is not None
    assert (row.epoch, row.owner_state, row.holder) == (3, "held", "h" * 32)
    assert row.owner_token == store.head(keys.owner_key(SESSION)).token


async def test_a_newer_owners_bytes_win_and_ours_are_set_aside(host: Host, store: FaultyStore) -> None:
    put_record(store, 4)
    put(store, "f", b"theirs")
    put(store, "new", b"of theirs")
    host.write(b"f", b"ours")
    host.write(b"only-here", b"ours")
    walk(host)
    aside = SettingAside(host)
    merged = hydrator(host, aside)
    found = await merged.open_session(SESSION)
    assert (found.foreign, found.owned) == (True, False)
    assert sorted(aside.files) == ["f", "only-here"]
    assert host.journal.all_work() == []
    assert kept_aside(store) == {}
    stale = await merged.refresh_session(SESSION)
    assert set(stale.files) == {host.number(b"f"), host.number(b"only-here")}
    host.evict(stale.files)
    await merged.refresh_session(SESSION)
    assert host.journal.resolve(SESSION, b"only-here") is None
    assert body_of(host, await merged.fetch(host.number(b"f"))) == b"theirs"
    assert host.journal.resolve(SESSION, b"new") is not None
    node = host.journal.node(host.number(b"same"))
    assert node is not None
    assert node.present


async def test_attributes_of_a_newer_owner_win_too(host: Host, store: FaultyStore) -> None:
    put_record(store, 4)
    put(store, "same", b"same", mode=stat.S_IFREG | 0o600)
    walk(host)
    aside = SettingAside(host)
    merged = hydrator(host, aside)
    await merged.open_session(SESSION)
    assert aside.files == []
    assert (await merged.refresh_session(SESSION)).files == [host.number(b"same")]


async def test_the_manifests_epoch_counts_when_there_is_no_record(host: Host, store: FaultyStore) -> None:
    commit(store, put_named(store, ""), put_named(store, "f", b"theirs"), recovery="live", epoch=4)
    walk(host)
    aside = SettingAside(host)
    await hydrator(host, aside).open_session(SESSION)
    assert aside.files == ["f"]


async def test_a_copy_that_was_never_claimed_yields_to_an_owner(host: Host, store: FaultyStore) -> None:
    os.removexattr(host.disk(), "user.sessionfs.epoch")
    put_record(store, 1)
    put(store, "f", b"theirs")
    walk(host)
    aside = SettingAside(host)
    await hydrator(host, aside).open_session(SESSION)
    assert aside.files == ["f"]


async def test_ours_waits_for_the_claim_when_nobody_sets_it_aside(host: Host, store: FaultyStore) -> None:
    put_record(store, 4)
    put(store, "f", b"theirs")
    walk(host)
    assert (await host.hydrator.open_session(SESSION)).foreign
    assert [work.key for work in host.journal.all_work()] == [PREFIX + "f"]
    assert host.read(b"f") == b"first"


async def test_a_record_that_cannot_be_read_changes_nothing(host: Host, store: FaultyStore) -> None:
    put_raw(store, keys.owner_key(SESSION), b"torn")
    walk(host)
    with pytest.raises(CorruptDataError, match="owner"):
        await host.hydrator.open_session(SESSION)
    row = host.journal.session(SESSION)
    assert row is not None
    assert not row.known


async def test_sums_of_rebuilt_rows_come_from_the_newest_manifest(host: Host, store: FaultyStore) -> None:
    put_record(store, 3)
    named = [put_named(store, ""), put_named(store, "same", b"same"), put_named(store, "f", b"first")]
    commit(store, *named, recovery="live", epoch=3)
    walk(host)
    store.calls.clear()
    await host.hydrator.open_session(SESSION)
    assert [key for method, key in store.calls if method == "head"] == [keys.generation_key(SESSION, 1)]
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    assert known.sha256 == named[2].sha256
    assert kept_aside(store) == {}
