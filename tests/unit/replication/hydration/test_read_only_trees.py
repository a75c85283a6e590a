"""Generations of the past, what was kept aside, and what no path can name: trees beside a session that nothing changes."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

import pytest
import trio

from sessionfs.formats.link_messages import FIRST_REMOTE_NUMBER
from sessionfs.formats.manifest import BLOCK_BYTES, Manifest
from sessionfs.model import keys
from sessionfs.model.errors import (
    CorruptDataError,
    InvalidSessionIdError,
    ObjectNotFoundError,
    UnavailableError,
)
from sessionfs.stores.base import Unconditional
from sessionfs.testing.faulty_store import FaultyStore, Interfere

from .hosts import LINK, PREFIX, SESSION, Host, away, body_of, put, put_manifest, put_plain
from .named_bytes import alias, commit, encoded, entry, keep, put_named, put_raw, sha

FIRST = "s%g1"


def paths(host: Host, tree: str) -> dict[bytes, int]:
    root = host.journal.child(1, tree.encode())
    assert root is not None
    return {path: node.size_bytes for path, node in host.journal.tree(root)}


def put_chain(store: FaultyStore) -> None:
    """Three generations of a log that grew and a file that was rewritten."""
    root, directory = put_named(store, ""), put_named(store, "d/")
    link = put_named(store, "l", b"d/f", mode=LINK)
    for generation in (1, 2, 3):
        log = b"".join(b"%d\n" % number for number in range(generation))
        body = b"version %d" % generation
        commit(
            store, root, directory, link, put_named(store, "log", log), put_named(store, "d/f", body),
            generation=generation, recovery="live",
        )  # fmt: skip
        if generation < 3:
            keep(store, body)
    keep(store, b"0\n1\n2\n")
    put(store, "log", b"rotated")


async def test_a_past_generation_is_read_in_one_request_beside_the_session(
    host: Host, store: FaultyStore
) -> None:
    put_chain(store)
    await host.hydrator.open_session(SESSION)
    before = host.journal.objects_below(PREFIX)
    store.calls.clear()
    found = await host.hydrator.open_session(FIRST)
    assert store.calls == [("get", keys.generation_key(SESSION, 1))]
    assert (found.exists, found.read_only, found.foreign, found.owned) == (True, True, False, False)
    assert found.root is not None
    assert found.root.number >= FIRST_REMOTE_NUMBER
    assert paths(host, FIRST) == {b"": 0, b"d": 0, b"d/f": 9, b"l": 3, b"log": 2}
    assert host.journal.objects_below(PREFIX) == before
    assert host.journal.objects_below("sessions/s%g1/") == []
    row = host.journal.session(FIRST)
    assert row is not None
    assert (row.tree_of, row.known, row.written, row.changed) == (1, True, False, False)
    assert host.journal.all_work() == []
    store.calls.clear()
    assert await host.hydrator.open_session(FIRST) == found
    assert (await host.hydrator.refresh_session(FIRST)).files == []
    assert store.calls == []
    assert await host.hydrator.list_sessions() == ["s"]


async def test_its_bytes_are_those_of_its_time_although_the_log_went_on(
    host: Host, store: FaultyStore
) -> None:
    put_chain(store)
    for generation, log in ((1, b"0\n"), (2, b"0\n1\n"), (3, b"0\n1\n2\n")):
        tree = f"s%g{generation}"
        await host.hydrator.open_session(tree)
        fetched = await host.hydrator.fetch(host.number(b"log", tree))
        assert body_of(host, fetched) == log
        fetched = await host.hydrator.fetch(host.number(b"d/f", tree))
        assert body_of(host, fetched) == b"version %d" % generation
    assert host.events == []


async def test_it_is_read_without_its_manifest_too(host: Host, store: FaultyStore) -> None:
    put_chain(store)
    await host.hydrator.open_session(FIRST)
    host.hydrator = host.new_hydrator()
    store.delete(keys.generation_key(SESSION, 1), condition=Unconditional())
    assert body_of(host, await host.hydrator.fetch(host.number(b"log", FIRST))) == b"0\n"


async def test_a_retired_generation_and_the_newest_without_its_own_manifest_open(
    host: Host, store: FaultyStore
) -> None:
    put_chain(store)
    raw = encoded(Manifest(SESSION, 1, (entry("f", b"abc"),)))
    put_raw(store, keys.retired_key(SESSION, 1), raw)
    for number in (1, 3):
        store.delete(keys.generation_key(SESSION, number), condition=Unconditional())
    assert (await host.hydrator.open_session(FIRST)).exists
    assert list(paths(host, FIRST)) == [b"", b"f"]
    assert (await host.hydrator.open_session("s%g3")).exists
    assert not (await host.hydrator.open_session("s%g9")).exists


async def test_generations_are_listed_without_retired_and_uncommitted_ones(
    host: Host, store: FaultyStore
) -> None:
    assert await host.hydrator.list_generations(SESSION) == []
    put_chain(store)
    put_raw(store, keys.retired_key(SESSION, 5), b"x")
    put_raw(store, keys.generation_key(SESSION, 4), b"died before its commit")
    assert await host.hydrator.list_generations(SESSION) == [1, 2, 3]
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    assert await host.hydrator.list_generations(SESSION) == [1, 2, 3]
    assert [method for method, _ in store.calls] == ["list_page"]


@pytest.mark.parametrize("name", ["s%", "s%g0", "s%gx", "s%other", "%g1", "a/b%g1"])
async def test_other_names_with_a_percent_sign_are_no_trees(host: Host, name: str) -> None:
    with pytest.raises(InvalidSessionIdError):
        await host.hydrator.open_session(name)


async def test_a_store_that_is_away_is_an_error_and_no_missing_generation(
    host: Host, store: FaultyStore
) -> None:
    put_chain(store)
    away(store, "get")
    with pytest.raises(UnavailableError):
        await host.hydrator.open_session(FIRST)
    away(store, "list_page")
    with pytest.raises(UnavailableError):
        await host.hydrator.open_session("s%conflicts")


async def test_a_generation_whose_manifest_is_damaged_or_swapped_offers_the_newest_intact_one(
    host: Host, store: FaultyStore
) -> None:
    put_chain(store)
    put_raw(store, keys.generation_key(SESSION, 2), encoded(Manifest(SESSION, 1)))
    with pytest.raises(CorruptDataError) as refused:
        await host.hydrator.open_session("s%g2")
    assert keys.generation_key(SESSION, 2) in refused.value.message
    assert "--generation 1" in refused.value.remedy
    put_raw(store, keys.generation_key(SESSION, 1), encoded(Manifest("other", 1)))
    with pytest.raises(CorruptDataError) as refused:
        await host.hydrator.open_session("s%g1")
    assert "no other generation" in refused.value.remedy


async def test_hard_links_of_a_generation_are_one_file(host: Host, store: FaultyStore) -> None:
    named = [replace(put_named(store, path, b"linked"), link_group=4) for path in ("one", "two")]
    commit(store, put_named(store, ""), *named, recovery="live")
    await host.hydrator.open_session(FIRST)
    assert host.number(b"one", FIRST) == host.number(b"two", FIRST)


async def test_what_was_kept_aside_can_be_read(host: Host, store: FaultyStore) -> None:
    kept = keys.conflict_key(PREFIX + "d/f", stamp="20260101T000000.000000Z", holder="unknown")
    put_raw(store, kept, b"theirs", sha256=sha(b"theirs"))
    assert (await host.hydrator.open_session("s%conflicts")).read_only
    tree = "s%conflicts"
    path = b"d/f/20260101T000000.000000Z-unknown"
    assert paths(host, tree) == {b"": 0, b"d": 0, b"d/f": 0, path: 6}
    fetched = await host.hydrator.fetch(host.number(path, tree))
    assert body_of(host, fetched) == b"theirs"
    assert stat.S_IMODE(fetched.entry.mode) == 0o444
    later = keys.conflict_key(PREFIX + "g", stamp="20260101T000001.000000Z", holder="w")
    put_raw(store, later, b"more")
    await host.hydrator.open_session(tree)
    assert paths(host, tree)[b"g/20260101T000001.000000Z-w"] == 4
    store.delete(kept, condition=Unconditional())
    with pytest.raises(ObjectNotFoundError):
        await host.hydrator.fetch(host.number(path, tree))
    await host.hydrator.open_session(tree)
    assert list(paths(host, tree)) == [b"", b"g", b"g/20260101T000001.000000Z-w"]
    assert host.events == []


async def test_keys_that_no_path_can_name_can_be_read(host: Host, store: FaultyStore) -> None:
    long = "n" * 300
    for path in ("%41", "x", "x/y", ".sessionfs/status", long):
        put_plain(store, path, path[:5].encode())
    tree = "s%unnamed"
    assert (await host.hydrator.open_session(tree)).exists
    found = paths(host, tree)
    assert set(found) == {
        b"", b"%2541", b"x", b".sessionfs%2Fstatus", b"n" * 240, b"n" * 240 + b"/" + b"n" * 60,
    }  # fmt: skip
    for name, body in (
        (b"%2541", b"%41"),
        (b".sessionfs%2Fstatus", b".sess"),
        (b"n" * 240 + b"/" + b"n" * 60, b"nnnnn"),
    ):
        assert body_of(host, await host.hydrator.fetch(host.number(name, tree))) == body


async def test_a_file_that_changes_after_the_listing_comes_as_it_is_then(
    host: Host, store: FaultyStore
) -> None:
    put_plain(store, "%41", b"one")
    await host.hydrator.open_session("s%unnamed")
    put_plain(store, "%41", b"longer")
    fetched = await host.hydrator.fetch(host.number(b"%2541", "s%unnamed"))
    assert (body_of(host, fetched), fetched.entry.size_bytes) == (b"longer", 6)


async def test_two_openings_at_once_make_one_tree(host: Host, store: FaultyStore) -> None:
    put_chain(store)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(host.hydrator.open_session, FIRST)
    assert [method for method, _ in store.calls].count("get") == 1


async def test_the_wrong_bytes_under_the_right_name_are_never_given(host: Host, store: FaultyStore) -> None:
    put_chain(store)
    put_raw(store, keys.content_key(SESSION, sha(b"version 1")), b"version X", sha256=sha(b"version 1"))
    await host.hydrator.open_session(FIRST)
    number = host.number(b"d/f", FIRST)
    for _ in range(2):
        with pytest.raises(CorruptDataError) as refused:
            await host.hydrator.fetch(number)
    for told in ("s/d/f of generation 1", sha(b"version 1"), "other bytes"):
        assert told in refused.value.message
    assert [name for name, _ in host.events] == ["session.file.corrupt"]
    assert host.events[0][1]["session_id"] == SESSION
    assert host.staged() == []
    assert host.hydrator.problem_of(number)
    keep(store, b"version 1")
    assert body_of(host, await host.hydrator.fetch(number)) == b"version 1"


async def test_a_damaged_newer_generation_does_not_hide_the_one_after_it(
    host: Host, store: FaultyStore
) -> None:
    put_chain(store)
    put_raw(store, keys.generation_key(SESSION, 2), b"torn")
    await host.hydrator.open_session(FIRST)
    assert body_of(host, await host.hydrator.fetch(host.number(b"log", FIRST))) == b"0\n"


async def test_bytes_that_move_with_a_commit_during_the_fetch_are_found(
    host: Host, store: FaultyStore
) -> None:
    put_chain(store)
    await host.hydrator.open_session(FIRST)
    await host.hydrator.fetch(host.number(b"log", FIRST))
    body = b"only in a later generation"
    node = host.journal.node(host.number(b"d/f", FIRST))
    assert node is not None
    host.journal.update_node(node.number, sha256=sha(body), size=len(body))
    host.hydrator._trees._manifests.clear()
    store.delete(keys.generation_key(SESSION, 1), condition=Unconditional())
    keep(store, body + b" and more")
    commit(store, entry("d/f", body + b" and more"), generation=4, recovery="live")
    assert body_of(host, await host.hydrator.fetch(node.number)) == body


async def test_a_large_file_is_verified_block_by_block(host: Host, store: FaultyStore) -> None:
    body = os.urandom(BLOCK_BYTES * 2 + 17)
    named = put_named(store, "big", body)
    assert len(named.blocks) == 3
    commit(store, put_named(store, ""), named)
    await host.hydrator.open_session(FIRST)
    assert body_of(host, await host.hydrator.fetch(host.number(b"big", FIRST))) == body
    bad = bytearray(body)
    bad[BLOCK_BYTES + 3] ^= 1
    put(store, "big", bytes(bad), sha256=named.sha256)
    host.hydrator = host.new_hydrator()
    with pytest.raises(CorruptDataError, match=f"from {BLOCK_BYTES} to {2 * BLOCK_BYTES}"):
        await host.hydrator.fetch(host.number(b"big", FIRST))
    alias(store, body, body + b"tail")
    keep(store, body + b"tail")
    assert body_of(host, await host.hydrator.fetch(host.number(b"big", FIRST))) == body


async def test_sums_that_do_not_fit_the_length_are_not_relied_on(host: Host, store: FaultyStore) -> None:
    body = os.urandom(BLOCK_BYTES + 5)
    named = put_named(store, "big", body)
    host.journal.put_blocks(named.sha256, named.blocks[:1])
    commit(store, put_named(store, ""), replace(named, blocks=()), recovery="live")
    await host.hydrator.open_session(SESSION)
    assert body_of(host, await host.hydrator.fetch(host.number(b"big"))) == body


async def test_a_removed_generation_is_an_empty_tree(host: Host, store: FaultyStore) -> None:
    put_manifest(store, Manifest(SESSION, 1, removed=True))
    assert (await host.hydrator.open_session(FIRST)).exists
    assert list(paths(host, FIRST)) == [b""]


async def test_a_tree_made_while_another_waits_is_kept(host: Host, store: FaultyStore) -> None:
    put_chain(store)
    other = host.new_hydrator()
    async with trio.open_nursery() as nursery:
        for hydrator in (host.hydrator, other):
            nursery.start_soon(hydrator.open_session, FIRST)
            nursery.start_soon(hydrator.open_session, "s%conflicts")
    assert [row.id for row in host.journal.sessions()] == ["s%conflicts", FIRST]
    store.plan("get", Interfere(lambda: None))
    await host.hydrator.fetch(host.number(b"log", FIRST))
