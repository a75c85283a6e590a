"""Garbage goes after a day, and nothing that a generation needs."""

from __future__ import annotations

import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys
from sessionfs.model.errors import (
    CorruptDataError,
    NotFoundError,
    OwnershipLostError,
    SessionAlreadyOwnedError,
)
from sessionfs.replication.maintenance.collecting.garbage import Collected, Garbage
from sessionfs.replication.maintenance.collecting.garbage_plan import GRACE_NS
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, Unconditional, UploadUnderWay
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.world import (
    HOUR_NS,
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
    sha,
    tree_of,
)

KEPT = SETTINGS.keep_generations


@pytest.fixture
def trees(author: Author) -> dict[int, Tree]:
    """Six generations: a log that grows and is started anew, and a file that changes every time."""
    found = {}
    for number in range(1, 7):
        log = b"".join(b"line %d\n" % line for line in range(1 if number < 4 else number, number + 1))
        manifest = author.commit({b"log": log, b"f": b"state %d" % number, b"same": b"same"})
        found[number] = tree_of(manifest, author)
    return found


def garbage(store: TrioStore, owner: FencingOwner, clock: HandClock) -> Garbage:
    return Garbage(store, owner, clock, SETTINGS)


async def collect(store: TrioStore, owner: FencingOwner, clock: HandClock) -> Collected:
    return await garbage(store, owner, clock).collect(S)


def content(memory: MemoryStore) -> dict[str, bytes]:
    return {key: body for key, body in all_objects(memory).items() if key.startswith("sessions/s.objects/")}


async def assert_whole(memory: MemoryStore, trees: dict[int, Tree], since: int) -> None:
    for number in range(since, 7):
        assert (await hydrate(memory, generation=number))[1] == trees[number], number


async def test_the_first_run_only_retires(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    clock.now_ns += 10 * GRACE_NS
    before = content(memory)
    done = await collect(store, owner, clock)
    assert (done.retired, done.removed, done.expired) == (3, 0, 0)
    assert content(memory) == before
    assert "sessions/s.manifest/retired/0000000003.json" in all_objects(memory)
    assert "sessions/s.manifest/0000000003.json" not in all_objects(memory)
    await assert_whole(memory, trees, 1)


async def test_a_day_after_it_was_retired_what_only_it_named_goes(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    await collect(store, owner, clock)
    clock.now_ns += 23 * HOUR_NS
    done = await collect(store, owner, clock)
    assert (done.removed, done.expired) == (0, 0)
    clock.now_ns += 2 * HOUR_NS
    done = await collect(store, owner, clock)
    assert done.expired == 3
    assert done.removed >= 3
    assert set(content(memory).values()) >= {b"state 4", b"state 5"}
    assert not {b"state 1", b"state 2", b"state 3"} & set(content(memory).values())
    await assert_whole(memory, trees, 4)
    with pytest.raises(NotFoundError):
        await hydrate(memory, generation=3)
    again = await collect(store, owner, clock)
    assert (again.retired, again.removed, again.expired) == (0, 0, 0)


async def test_a_dry_run_says_exactly_what_then_goes_and_changes_nothing(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    await collect(store, owner, clock)
    clock.now_ns += 2 * GRACE_NS
    before = all_objects(memory)
    plan = await garbage(store, owner, clock).plan(S)
    assert all_objects(memory) == before
    gone = {found.key for found in plan.to_remove} | {found.key for _, found in plan.to_expire}
    await collect(store, owner, clock)
    after = all_objects(memory)
    assert before.keys() - after.keys() == gone
    assert plan.bytes == sum(len(before[key]) for key in gone) > 0


async def test_bytes_that_a_kept_prefix_needs_stay(
    author: Author, memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    named = tree_of(author.commit({b"log": b"a\n"}), author)
    author.write(b"log", b"a\nb\n")  # never named itself
    author.commit({b"log": b"x\n"})
    clock.now_ns += 2 * GRACE_NS
    await collect(store, owner, clock)
    assert (await hydrate(memory, generation=1))[1] == named
    assert b"a\nb\n" in content(memory).values()


async def test_an_older_prefix_without_an_alias_is_found_through_a_newer_generation(
    author: Author, memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    first = tree_of(author.commit({b"log": b"a\n"}), author)
    second = tree_of(author.commit({b"log": b"a\nb\n"}), author)
    author.commit({b"log": b"x\n"}, aliases=False)
    clock.now_ns += 2 * GRACE_NS
    await collect(store, owner, clock)
    assert (await hydrate(memory, generation=1))[1] == first
    assert (await hydrate(memory, generation=2))[1] == second


async def test_young_bytes_that_nothing_names_yet_stay(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    key = keys.content_key(S, sha(b"of a commit under way"))
    memory.put(key, b"of a commit under way", condition=Unconditional(), metadata=ObjectMetadata())
    clock.now_ns += 23 * HOUR_NS
    done = await collect(store, owner, clock)
    assert [found.key for found in done.plan.young] == [key]
    assert key in content(memory)
    clock.now_ns += 2 * HOUR_NS
    await collect(store, owner, clock)
    assert key not in content(memory)


async def test_what_a_commit_that_has_its_number_but_is_not_the_newest_names_stays(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    key = keys.content_key(S, sha(b"pending"))
    memory.put(key, b"pending", condition=Unconditional(), metadata=ObjectMetadata())
    entry = ManifestEntry(b"p", 0o100644, 7, sha(b"pending"))
    raw, _ = manifests.encode(Manifest(S, 7, (entry,), previous=6))
    memory.put(keys.generation_key(S, 7), raw, condition=Unconditional(), metadata=ObjectMetadata())
    clock.now_ns += 3 * GRACE_NS
    await collect(store, owner, clock)
    assert key in content(memory)
    assert keys.generation_key(S, 7) in all_objects(memory)


async def test_a_commit_that_never_happened_does_not_count_as_kept(
    author: Author, memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    author.commit({b"f": b"1"})
    raw, _ = manifests.encode(Manifest(S, 2, previous=1))
    memory.put(keys.generation_key(S, 2), raw, condition=Unconditional(), metadata=ObjectMetadata())
    for number in (3, 4):
        author.number = number - 1
        author.commit({b"f": b"%d" % number})
    raw, _ = manifests.encode(Manifest(S, 3, author_entries(author), previous=1))
    memory.put(keys.generation_key(S, 3), raw, condition=Unconditional(), metadata=ObjectMetadata())
    clock.now_ns += 2 * GRACE_NS
    done = await collect(store, owner, clock)
    assert [number for number, _ in done.plan.to_retire] == [2]


def author_entries(author: Author) -> tuple[ManifestEntry, ...]:
    return tuple(author.entries[path] for path in sorted(author.entries))


async def test_of_a_removed_session_only_its_removal_stays(
    trees: dict[int, Tree],
    author: Author,
    memory: MemoryStore,
    store: TrioStore,
    owner: FencingOwner,
    clock: HandClock,
) -> None:
    author.commit({}, removed=True)
    await collect(store, owner, clock)
    await assert_whole(memory, trees, 1)
    clock.now_ns += 2 * GRACE_NS
    await collect(store, owner, clock)
    assert content(memory) == {}
    assert {key for key in all_objects(memory) if ".manifest/" in key} == {
        "sessions/s.manifest/0000000007.json",
        "sessions/s.manifest/manifest.json",
    }


async def test_another_tools_key_stays(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    memory.put("sessions/s.objects/strange", b"", condition=Unconditional(), metadata=ObjectMetadata())
    clock.now_ns += 3 * GRACE_NS
    await collect(store, owner, clock)
    assert "sessions/s.objects/strange" in all_objects(memory)


@pytest.mark.parametrize("key", ["sessions/s.manifest/manifest.json", "sessions/s.manifest/0000000002.json"])
async def test_a_manifest_that_cannot_be_read_stops_everything(
    key: str,
    trees: dict[int, Tree],
    memory: MemoryStore,
    store: TrioStore,
    owner: FencingOwner,
    clock: HandClock,
) -> None:
    memory.put(key, b"{", condition=Unconditional(), metadata=ObjectMetadata())
    clock.now_ns += 3 * GRACE_NS
    before = content(memory)
    with pytest.raises(CorruptDataError, match=key):
        await collect(store, owner, clock)
    assert content(memory) == before
    assert "sessions/s.manifest/0000000001.json" in all_objects(memory)


async def test_uploads_in_parts_that_were_begun_a_day_ago_are_given_up(
    trees: dict[int, Tree], memory: MemoryStore, clock: HandClock
) -> None:
    class WithUploads(MortalStore):
        aborted: tuple[UploadUnderWay, ...] = ()

        def uploads_under_way(self, prefix: str) -> list[UploadUnderWay]:
            now_ns = clock.wall_ns()
            ages = {"old": 25 * HOUR_NS, "young": 23 * HOUR_NS}
            return [UploadUnderWay(f"{prefix}{name}", name, now_ns - age) for name, age in ages.items()]

        def abort_upload(self, upload: UploadUnderWay) -> None:
            self.aborted = (*self.aborted, upload)

    inner = WithUploads(memory)
    store = TrioStore(inner, clock, SETTINGS)
    done = await collect(store, FencingOwner(store, clock), clock)
    assert done.aborted == 2
    assert {upload.key for upload in inner.aborted} == {"sessions/s/old", "sessions/s.objects/old"}


async def test_a_session_without_a_manifest_is_left_alone(
    memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    key = keys.content_key(S, sha(b"x"))
    memory.put(key, b"x", condition=Unconditional(), metadata=ObjectMetadata())
    clock.now_ns += 3 * GRACE_NS
    before = all_objects(memory)
    await collect(store, owner, clock)
    assert all_objects(memory) == before


async def test_nothing_goes_while_another_host_owns_the_session(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    before = all_objects(memory)
    owner.refused = "other"
    with pytest.raises(SessionAlreadyOwnedError):
        await collect(store, owner, clock)
    assert all_objects(memory) == before
    owner.refused, owner.lost_after = "", 2
    with pytest.raises(OwnershipLostError):
        await collect(store, owner, clock)
    await assert_whole(memory, trees, 1)


async def test_killed_at_any_step_every_kept_generation_is_whole_and_the_next_run_completes(
    trees: dict[int, Tree], memory: MemoryStore, store: TrioStore, owner: FencingOwner, clock: HandClock
) -> None:
    # Half-way between two collections: there is something to retire, to remove and to expire at once.
    await collect(store, owner, clock)
    clock.now_ns += 2 * GRACE_NS
    older = cloned(memory, clock)
    settings = SETTINGS.__class__(retry_minimum_seconds=0, retry_maximum_seconds=0, keep_generations=2)

    async def action(mortal: MortalStore) -> None:
        dying = TrioStore(mortal, clock, settings)
        await Garbage(dying, FencingOwner(dying, clock), clock, settings).collect(S)

    whole = MortalStore(cloned(older, clock))
    assert not await run_and_die(action, whole)
    assert {"copy", "delete"} <= {method for method, _ in whole.calls}
    wanted = content(whole.inner) if isinstance(whole.inner, MemoryStore) else {}
    for at in range(1, len(whole.calls) + 1):
        for is_applied in (False, True):
            bucket = cloned(older, clock)
            assert await run_and_die(action, MortalStore(bucket, at=at, is_applied=is_applied))
            await assert_whole(bucket, trees, 4)
            assert not await run_and_die(action, MortalStore(bucket))
            await assert_whole(bucket, trees, 4)
            assert content(bucket) == wanted
            manifests_left = [key for key in all_objects(bucket) if "/retired/" in key]
            assert manifests_left == ["sessions/s.manifest/retired/0000000004.json"]
