"""A former owner appended to a named object of a session that is not held here: nobody else remembers what was named of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.model import keys
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.commit.commit_world import read_generation
from tests.unit.replication.commit.control_world import (
    ControlWorld,
    claim_session,
    commit_session,
    other_host,
)
from tests.unit.replication.uploads import tree_world

from .hosts import PREFIX, SESSION, Host, body_of
from .named_bytes import fence, put_of_epoch, read, sha

KEY = PREFIX + "f"
NAMED = b"named" * 300
GROWN = NAMED + b" and more"


def prefixes(host: Host) -> list[tuple[str, int, bool]]:
    """What is named of the object, and whether it surely begins with it."""
    found = host.journal.prefixes(KEY)
    return [(prefix.sha256, prefix.size_bytes, prefix.is_proven) for prefix in found]


UNPROVEN = [(sha(NAMED), len(NAMED), False)]


@pytest.fixture
def released(host: Host) -> Host:
    """This host committed the session and gave it up; the bytes are in the bucket alone."""
    host.make(b"")
    file = host.make(b"f", NAMED)
    host.upload()
    host.commit(epoch=2)
    host.journal.name_settled(PREFIX)
    host.journal.update_session(SESSION, owner_state="released", epoch=2)
    assert host.journal.is_named(KEY)
    host.evict([file])
    return host


async def test_a_comparison_keeps_what_is_named_of_an_object_that_grew(
    released: Host, store: ObjectStore
) -> None:
    put_of_epoch(store, "f", GROWN, 1)
    await released.hydrator.refresh_session(SESSION)
    known = released.journal.object(KEY)
    assert known is not None
    assert known.sha256 == sha(GROWN)
    assert not released.journal.is_named(KEY)
    assert prefixes(released) == UNPROVEN


async def test_the_same_when_old_bytes_had_to_leave_this_disk_first(host: Host, store: ObjectStore) -> None:
    host.make(b"")
    file = host.make(b"f", NAMED)
    host.upload()
    host.commit(epoch=2)
    host.journal.name_settled(PREFIX)
    host.journal.update_session(SESSION, owner_state="released", epoch=2)
    put_of_epoch(store, "f", GROWN, 1)
    assert (await host.hydrator.refresh_session(SESSION)).files == [file]
    assert host.journal.is_named(KEY)
    host.evict([file])
    await host.hydrator.refresh_session(SESSION)
    assert prefixes(host) == UNPROVEN


async def test_a_fetch_that_follows_an_object_that_grew_keeps_it_too(
    released: Host, store: ObjectStore
) -> None:
    put_of_epoch(store, "f", GROWN, 1)
    fetched = await released.hydrator.fetch(released.number(b"f"))
    assert body_of(released, fetched) == GROWN
    assert prefixes(released) == UNPROVEN


async def test_what_grew_twice_keeps_all_that_was_named(released: Host, store: ObjectStore) -> None:
    put_of_epoch(store, "f", GROWN, 1)
    await released.hydrator.refresh_session(SESSION)
    released.journal.name_object(KEY)
    put_of_epoch(store, "f", GROWN + b" and more", 1)
    await released.hydrator.refresh_session(SESSION)
    assert prefixes(released) == [*UNPROVEN, (sha(GROWN), len(GROWN), False)]


async def test_what_another_commit_says_of_it_counts_and_not_what_was_named_here(
    released: Host, other: Host, store: ObjectStore
) -> None:
    """Whoever committed since has copied aside what he overwrote, or names it anew."""
    await other.hydrator.open_session(SESSION)
    await other.materialise()
    put_of_epoch(store, "f", b"another owner's, and longer " * 100, 3)
    await other.hydrator.refresh_session(SESSION)
    other.commit(epoch=3)
    await released.hydrator.refresh_session(SESSION)
    assert prefixes(released) == []


# --- the whole way: released, grown, claimed again, rewritten


async def released_by_its_second_owner(directory: Path) -> ControlWorld:
    """A committed; b took the session over, changed nothing, and gave it up."""
    store = MemoryStore()
    a = ControlWorld(directory / "a", store)
    a.write(b"f", NAMED)
    await commit_session(a)
    b = await other_host(directory / "b", store)
    await claim_session(b, force=True)
    async with b.at_work() as control:
        await control.release(tree_world.SESSION)
    row = b.row()
    assert (row.owner_state, row.manifest_token) == (
        "released",
        store.head("sessions/s1.manifest/manifest.json").token,
    )
    return b


async def test_a_generation_is_read_after_its_object_grew_between_two_claims_and_was_rewritten(
    tmp_path: Path,
) -> None:
    b = await released_by_its_second_owner(tmp_path)
    b.put_of_epoch(b"f", GROWN, 1)
    await b.drop(await b.hydrator.refresh_session(tree_world.SESSION))
    await claim_session(b)
    assert b.kept_by_content() == {}
    b.write(b"f", b"other")
    await b.settle()
    assert read_generation(b.memory, 1) == {b"f": NAMED}


async def test_a_claim_that_writes_the_newest_generation_again_is_no_other_generation(
    released: Host, store: ObjectStore
) -> None:
    """Its token is another; what the journal says is named, still is."""
    key = keys.manifest_key(SESSION)
    put_of_epoch(store, "f", GROWN, 1)
    fence(store, manifests.decode(read(store, key), key), 2)
    await released.hydrator.refresh_session(SESSION)
    assert prefixes(released) == UNPROVEN


async def test_the_same_bytes_put_again_by_a_tool_without_a_sum_stay_named(
    released: Host, store: ObjectStore
) -> None:
    store.put(KEY, NAMED, condition=Unconditional(), metadata=ObjectMetadata())
    await released.hydrator.refresh_session(SESSION)
    assert prefixes(released) == UNPROVEN
