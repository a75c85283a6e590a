"""A session made of another's generation, on the server."""

from __future__ import annotations

import pytest

from sessionfs.formats import commit_marker
from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import ConflictError, InvalidRequestError, NotFoundError, SessionFSError
from sessionfs.model.names import SessionId, session_id
from sessionfs.replication.hydration.manifest_chain import ManifestChain
from sessionfs.replication.maintenance.fork import Fork, Forked
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.test_in_place import FIRST, SECOND
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

NEW = session_id("new")


@pytest.fixture
def trees(author: Author) -> list[Tree]:
    return [tree_of(author.commit(tree), author) for tree in (FIRST, SECOND)]


async def fork(
    store: TrioStore, clock: HandClock, generation: int | None = None, new_id: SessionId = NEW
) -> Forked:
    return await Fork(store, FencingOwner(store, clock), clock, SETTINGS).fork(S, new_id, generation)


def put_plain(store: ObjectStore, key: str, body: bytes = b"") -> None:
    store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())


async def is_session(store: ObjectStore, session: SessionId = NEW) -> bool:
    """Whether a host that looks at a session's manifest takes it for one."""
    newest = await ManifestChain(TrioStore(store, HandClock(), SETTINGS)).newest(session)
    return newest is not None and not newest.manifest.removed and newest.manifest.generation > 0


async def test_a_fork_has_what_the_newest_generation_names(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    done = await fork(store, clock)
    assert await hydrate(memory, NEW) == (1, trees[1])
    assert (done.of, done.of_generation, done.objects) == ("s", 2, len(trees[1]))
    marker = commit_marker.decode(all_objects(memory)["sessions/new.snapshot.json"], "marker")
    assert (marker.generation, marker.trigger) == (1, "fork")


async def test_a_fork_of_a_past_generation_sends_only_named_prefixes(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    done = await fork(store, clock, 1)
    assert await hydrate(memory, NEW) == (1, trees[0])
    assert done.sent_bytes == len(b"line 1\n") + len(b"d/same")


async def test_the_original_is_not_touched(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    before = all_objects(memory)
    await fork(store, clock)
    after = all_objects(memory)
    assert {key: body for key, body in after.items() if not key.startswith("sessions/new")} == before


async def test_a_fork_goes_on_when_the_original_moves(
    memory: MemoryStore, store: TrioStore, author: Author, clock: HandClock
) -> None:
    first = tree_of(author.commit({b"a": b"one", b"b": b"two"}), author)

    class Moving(MortalStore):
        moved = False

        def copy(self, source: str, target: str, **more: object) -> object:  # type: ignore[override]
            if not self.moved:
                self.moved = True
                author.commit({b"a": b"1", b"b": b"2"})
            return super().copy(source, target, **more)  # type: ignore[arg-type]

    await fork(TrioStore(Moving(memory), clock, SETTINGS), clock, 1)
    assert await hydrate(memory, NEW) == (1, first)


async def test_a_thousand_files_cost_one_request_each(
    author: Author, memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    author.commit({b"%04d" % number: b"%d" % number for number in range(1000)})
    before = sum(store.requests.values())
    done = await fork(store, clock)
    spent = sum(store.requests.values()) - before
    print(f"fork of 1,000 files: {spent} requests, {dict(store.requests)}, {done.sent_bytes} bytes")
    assert spent <= 1001 + 22
    assert done.sent_bytes == 0


@pytest.mark.parametrize(
    "key",
    [
        "sessions/new/",
        "sessions/new/file",
        "sessions/new.snapshot.json",
        "sessions/new.objects/ab/x",
        "sessions/new.conflicts/f/x",
    ],
)
async def test_an_id_with_anything_under_it_is_refused(
    key: str, trees: list[Tree], memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    put_plain(memory, key)
    before = all_objects(memory)
    with pytest.raises(ConflictError, match="session new already"):
        await fork(store, clock)
    assert all_objects(memory) == before


async def test_a_session_with_generations_is_refused_and_one_that_was_removed_too(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    await fork(store, clock)
    with pytest.raises(ConflictError, match="already"):
        await fork(store, clock)
    other = session_id("other")
    raw, _ = manifests.encode(Manifest(other, 4, removed=True))
    put_plain(memory, keys.manifest_key(other), raw)
    with pytest.raises(ConflictError, match="already"):
        await fork(store, clock, new_id=other)


async def test_nothing_is_made_of_what_was_never_committed(
    store: TrioStore, memory: MemoryStore, clock: HandClock
) -> None:
    with pytest.raises(NotFoundError, match="no generation yet"):
        await fork(store, clock)
    with pytest.raises(NotFoundError, match="no generation 3"):
        await fork(store, clock, 3)
    assert all_objects(memory) == {}


async def test_nothing_is_made_of_a_removal(
    trees: list[Tree], author: Author, store: TrioStore, clock: HandClock
) -> None:
    author.commit({}, removed=True)
    with pytest.raises(InvalidRequestError, match="name the one before it, 2"):
        await fork(store, clock)


async def test_a_fork_whose_bytes_are_lost_is_no_session(
    trees: list[Tree], memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    memory.delete("sessions/s/new", condition=Unconditional())
    with pytest.raises(SessionFSError, match="are in no object"):
        await fork(store, clock)
    assert not await is_session(memory)


async def test_a_path_that_has_no_key_under_the_longer_id_is_kept_by_its_content(
    author: Author, memory: MemoryStore, store: TrioStore, clock: HandClock
) -> None:
    path = b"/".join([b"x" * 200] * 4 + [b"y" * 209])
    assert keys.live_key(S, path, is_directory=False) is not None
    first = tree_of(author.commit({path: b"far away"}), author)
    await fork(store, clock)
    assert await hydrate(memory, NEW) == (1, first)
    assert keys.live_key(NEW, path, is_directory=False) is None


async def test_killed_at_any_step_there_is_no_half_session_and_the_next_run_completes(
    trees: list[Tree], memory: MemoryStore, clock: HandClock
) -> None:
    async def action(mortal: MortalStore) -> None:
        await fork(TrioStore(mortal, clock, SETTINGS), clock, 1)

    whole = MortalStore(cloned(memory, clock))
    assert not await run_and_die(action, whole)
    assert len(whole.calls) > 25
    for at in range(1, len(whole.calls) + 1):
        for is_applied in (False, True):
            bucket = cloned(memory, clock)
            assert await run_and_die(action, MortalStore(bucket, at=at, is_applied=is_applied))
            if await is_session(bucket):
                assert await hydrate(bucket, NEW) == (1, trees[0])
                continue
            assert any(
                key == "sessions/new.manifest/manifest.json" for key in all_objects(bucket)
            ) or not any(key.startswith("sessions/new/") for key in all_objects(bucket))
            assert not await run_and_die(action, MortalStore(bucket)), (at, is_applied)
            _, tree = await hydrate(bucket, NEW)
            assert tree == trees[0]
        assert (await hydrate(bucket))[1] == trees[1]
