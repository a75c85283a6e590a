"""Generations as a user's tool, on a real server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionfs.model.clock import SystemClock
from sessionfs.model.names import session_id
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.maintenance.collecting.garbage import Garbage
from sessionfs.replication.maintenance.command_ownership import command_ownership
from sessionfs.replication.maintenance.fork import Fork
from sessionfs.replication.maintenance.in_place import InPlaceRestoration
from sessionfs.replication.maintenance.restoration import Restoration
from sessionfs.replication.maintenance.verifying.verification import Verification
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectStore
from sessionfs.stores.open_store import open_store
from sessionfs.testing.s3_servers import SeaweedServer
from tests.unit.replication.maintenance.test_in_place import FIRST, SECOND
from tests.unit.replication.maintenance.test_restoration import read_tree
from tests.unit.replication.maintenance.world import Author, HandClock, S, hydrate, tree_of

pytestmark = pytest.mark.s3

CLOCK = SystemClock()
SETTINGS = ReplicationSettings(keep_generations=2)
NEW = session_id("new")


@pytest.fixture
def store(seaweed: SeaweedServer) -> Iterator[ObjectStore]:
    opened = open_store(seaweed.fresh_bucket())
    yield opened
    opened.close()


@pytest.mark.parametrize("is_bare", [False, True])
async def test_a_session_is_forked_restored_collected_and_verified(
    store: ObjectStore, tmp_path: Path, is_bare: bool
) -> None:
    if is_bare:  # a server with none of the conditions but those of a put
        known = dataclasses.replace(
            store.capabilities,
            conditional_delete=False,
            conditional_copy=False,
            copy_source_match=False,
            conditional_complete=False,
            append_by_copy=False,
        )
        store = store.with_capabilities(known)
    author = Author(store, HandClock())
    first = tree_of(author.commit(FIRST), author)
    second = tree_of(author.commit(SECOND), author)
    bucket = TrioStore(store, CLOCK, SETTINGS)
    async with command_ownership(bucket, SETTINGS, CLOCK, host="here") as owner:
        await Fork(bucket, owner, CLOCK, SETTINGS).fork(S, NEW, 1)
        await InPlaceRestoration(bucket, owner, CLOCK, SETTINGS).restore(S, 1)
        assert (await Garbage(bucket, owner, CLOCK, SETTINGS).collect(S)).retired == 1
    assert await hydrate(store, NEW) == (1, first)
    assert await hydrate(store) == (3, first)
    for number, tree in ((1, first), (2, second), (3, first)):
        assert (await hydrate(store, generation=number))[1] == tree
        target = tmp_path / str(number)
        await Restoration(bucket, SETTINGS).restore(S, number, str(target))
        assert read_tree(target) == tree
    verification = Verification(bucket, CLOCK, SETTINGS)
    assert await verification.sessions() == [NEW, S]
    for session in (NEW, S):
        assert (await verification.verify(session)).findings == []
