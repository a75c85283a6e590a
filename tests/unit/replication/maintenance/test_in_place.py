"""A past generation comes back in place, as a new generation."""

from __future__ import annotations

import stat

import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import (
    InvalidRequestError,
    NotFoundError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
)
from sessionfs.replication.maintenance.in_place import InPlaceRestoration, RestoredInPlace
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore, Interfere, Pass
from tests.unit.replication.maintenance.world import (
    SETTINGS,
    Author,
    FencingOwner,
    HandClock,
    MortalStore,
    S,
    Tree,
    all_objects,
    cloned,
    hydrate,
    run_and_die,
    tree_of,
)

FIRST: dict[bytes, bytes | str | None] = {
    b"d": None,
    b"d/same": b"same",
    b"d/edited": b"before",
    b"log": b"line 1\n",
    b"gone": b"gone later",
    b"link": "d/same",
    b"kind": b"a file first",
}
SECOND: dict[bytes, bytes | str | None] = {
    b"d": None,
    b"d/same": b"same",
    b"d/edited": b"after!",
    b"log": b"line 1\nline 2\n",
    b"new": b"new",
    b"link": "new",
    b"kind": None,
    b"kind/inside": b"inside",
}


@pytest.fixture
def trees(author: Author) -> list[Tree]:
    return [tree_of(author.commit(tree), author) for tree in (FIRST, SECOND)]


async def restore(
    store: TrioStore, owner: FencingOwner, clock: HandClock, generation: int = 1
) -> RestoredInPlace:
    return await InPlaceRestoration(store, owner, clock, SETTINGS).restore(S, generation)


async def test_the_content_comes_back_as_a_new_generation(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    done = await restore(store, owner, clock)
    assert await hydrate(memory) == (3, trees[0])
    assert done.generation == 3
    assert (await hydrate(memory, generation=2))[1] == trees[1]
    assert (await hydrate(memory, generation=1))[1] == trees[0]
    assert owner.held == set()


async def test_live_objects_are_what_the_new_generation_names(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    await restore(store, owner, clock)
    live = {key: body for key, body in all_objects(memory).items() if key.startswith("sessions/s/")}
    assert live == {
        f"sessions/s/{path.decode()}{'/' if stat.S_ISDIR(mode) and path else ''}": body
        for path, (mode, body, _) in trees[0].items()
    }


async def test_only_what_has_no_object_of_its_own_is_sent(
    trees: list[Tree], store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    done = await restore(store, owner, clock)
    # The log's first line begins a longer object; the link's target is in the manifest.
    assert done.sent_bytes == len(b"line 1\n") + len(b"d/same")


async def test_a_file_that_is_as_it_was_costs_nothing(
    memory: MemoryStore, store: TrioStore, author: Author, owner: FencingOwner, clock: HandClock
) -> None:
    tree: dict[bytes, bytes | str | None] = {b"%03d" % number: b"%d" % number for number in range(300)}
    author.commit(tree)
    author.commit({**tree, b"007": b"changed"})
    before = sum(store.requests.values())
    done = await restore(store, owner, clock)
    # Claim 2, read 1, list 1, keep 1, find and copy 2, commit 3.
    assert sum(store.requests.values()) - before <= 12
    assert (done.placed, done.kept, done.removed) == (1, 1, 0)


async def test_attributes_alone_are_copied_on_the_server(
    memory: MemoryStore, store: TrioStore, author: Author, owner: FencingOwner, clock: HandClock
) -> None:
    first = tree_of(author.commit({b"f": b"bytes"}), author)
    author.commit({b"f": b"bytes"}, modes={b"f": 0o600})
    done = await restore(store, owner, clock)
    assert (done.placed, done.kept, done.sent_bytes) == (1, 0, 0)
    assert (await hydrate(memory))[1] == first


async def test_bytes_that_no_generation_names_are_kept_beside_the_session(
    trees: list[Tree],
    memory: MemoryStore,
    store: TrioStore,
    author: Author,
    owner: FencingOwner,
    clock: HandClock,
) -> None:
    author.write(b"new", b"not committed")
    memory.put("sessions/s/alien", b"of another tool", condition=Unconditional(), metadata=ObjectMetadata())
    await restore(store, owner, clock)
    aside = {
        key: body for key, body in all_objects(memory).items() if key.startswith("sessions/s.conflicts/")
    }
    assert sorted(aside.values()) == [b"not committed", b"of another tool"]
    assert all(key.split("/")[2] in {"new", "alien"} for key in aside)
    assert (await hydrate(memory, generation=2))[1] == trees[1]


async def test_what_was_appended_after_the_last_commit_does_not_hide_what_it_named(
    trees: list[Tree],
    memory: MemoryStore,
    store: TrioStore,
    author: Author,
    owner: FencingOwner,
    clock: HandClock,
) -> None:
    author.write(b"log", b"line 1\nline 2\nline 3\n")
    await restore(store, owner, clock)
    assert (await hydrate(memory, generation=2))[1] == trees[1]


async def test_a_late_request_of_an_earlier_owner_cannot_hurt_what_was_in_place_already(
    trees: list[Tree],
    memory: MemoryStore,
    store: TrioStore,
    author: Author,
    owner: FencingOwner,
    clock: HandClock,
) -> None:
    author.write(b"gone", b"gone later")  # by the earlier owner, and no newest generation names it
    await restore(store, owner, clock)
    author.write(b"gone", b"of the past")
    assert await hydrate(memory) == (3, trees[0])


async def test_a_key_that_no_path_has_stays(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    memory.put("sessions/s/100%", b"strange", condition=Unconditional(), metadata=ObjectMetadata())
    await restore(store, owner, clock)
    assert all_objects(memory)["sessions/s/100%"] == b"strange"


async def test_a_removed_session_comes_back(
    trees: list[Tree],
    memory: MemoryStore,
    store: TrioStore,
    author: Author,
    owner: FencingOwner,
    clock: HandClock,
) -> None:
    author.commit({}, removed=True)
    await restore(store, owner, clock, 2)
    assert await hydrate(memory) == (4, trees[1])
    with pytest.raises(InvalidRequestError, match="removed"):
        await restore(store, owner, clock, 3)


async def test_a_generation_that_does_not_exist_changes_nothing(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    before = all_objects(memory)
    with pytest.raises(NotFoundError, match="no generation 7"):
        await restore(store, owner, clock, 7)
    assert all_objects(memory) == before


async def test_a_session_that_another_host_owns_is_not_touched(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    before = all_objects(memory)
    owner.refused = "other"
    with pytest.raises(SessionAlreadyOwnedError):
        await restore(store, owner, clock)
    assert all_objects(memory) == before


@pytest.mark.parametrize("lost_after", range(0, 12, 2))
async def test_nothing_is_changed_once_ownership_is_lost(
    lost_after: int,
    trees: list[Tree],
    memory: MemoryStore,
    store: TrioStore,
    owner: FencingOwner,
    clock: HandClock,
) -> None:
    owner.lost_after = lost_after
    with pytest.raises(OwnershipLostError):
        await restore(store, owner, clock)
    assert await hydrate(memory) == (2, trees[1])


async def test_a_commit_of_a_later_owner_is_not_overwritten(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    theirs, _ = manifests.encode(Manifest(S, 8, epoch=9))

    def commit() -> None:
        memory.put(keys.manifest_key(S), theirs, condition=Unconditional(), metadata=ObjectMetadata())

    faulty = FaultyStore(memory)
    intruded = TrioStore(faulty, clock, SETTINGS)
    probe = MortalStore(cloned(memory, clock))
    probing = TrioStore(probe, clock, SETTINGS)
    await restore(probing, FencingOwner(probing, clock), clock)
    puts = [key for method, key in probe.calls if method == "put"]
    faulty.plan("put", *(Pass() for _ in puts[: puts.index(keys.generation_key(S, 3))]), Interfere(commit))
    with pytest.raises(OwnershipLostError):
        await restore(intruded, FencingOwner(intruded, clock), clock)
    faulty.assert_all_used()
    assert all_objects(memory)[keys.manifest_key(S)] == theirs


async def test_killed_at_any_step_the_newest_generation_is_whole_and_the_next_run_completes(
    trees: list[Tree], memory: MemoryStore, author: Author, clock: HandClock
) -> None:
    author.write(b"log", b"line 1\nline 2\nline 3\n")

    async def action(mortal: MortalStore) -> None:
        dying = TrioStore(mortal, clock, SETTINGS)
        await restore(dying, FencingOwner(dying, clock), clock)

    whole = MortalStore(cloned(memory, clock))
    assert not await run_and_die(action, whole)
    assert len(whole.calls) > 25
    for at in range(1, len(whole.calls) + 1):
        for is_applied in (False, True):
            bucket = cloned(memory, clock)
            mortal = MortalStore(bucket, at=at, is_applied=is_applied)
            assert await run_and_die(action, mortal)
            generation, tree = await hydrate(bucket)
            assert tree == (trees[1] if generation == 2 else trees[0]), (at, is_applied)
            assert not await run_and_die(action, MortalStore(bucket))
            generation, tree = await hydrate(bucket)
            assert generation >= 3
            assert tree == trees[0]
            assert (await hydrate(bucket, generation=2))[1] == trees[1]
            assert (await hydrate(bucket, generation=1))[1] == trees[0]
