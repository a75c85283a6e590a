"""Opening sessions, merging them with what is here, listing them."""

from __future__ import annotations

import hashlib
import os
import stat

import pytest
import trio

from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.model import keys
from sessionfs.model.errors import (
    InvalidSessionIdError,
    UnavailableError,
)
from sessionfs.stores.base import Unconditional
from sessionfs.testing.faulty_store import FaultyStore, Interfere, Pass

from .hosts import LINK, PREFIX, SESSION, Host, away, put, put_plain, put_session


async def test_a_session_appears_with_remote_numbers_and_nothing_on_the_disk(
    host: Host, store: FaultyStore
) -> None:
    put_session(store)
    found = await host.hydrator.open_session(SESSION)
    assert found.exists
    assert found.foreign
    assert found.root is not None
    assert found.root.number >= FIRST_REMOTE_NUMBER
    assert not found.root.present
    children = host.journal.remote_entries(host.number(b""))
    assert [(entry.name, entry.present) for entry in children] == [(b"d", False), (b"l", False)]
    assert children[1].target == b"d/f"
    node = host.journal.node(host.number(b"d/f"))
    assert node is not None
    assert (node.size_bytes, node.mtime_ns) == (3, 1_600_000_000_123_456_789)
    known = host.journal.object(PREFIX + "d/f")
    assert known is not None
    assert (known.number, known.write_id) == (node.number, "w")
    assert host.journal.all_work() == []


async def test_a_known_session_is_answered_without_the_store(host: Host, store: FaultyStore) -> None:
    put_session(store)
    first = await host.hydrator.open_session(SESSION)
    store.calls.clear()
    assert await host.hydrator.open_session(SESSION) == first
    assert store.calls == []


async def test_a_session_that_is_nowhere_is_not_remembered(host: Host, store: FaultyStore) -> None:
    assert not (await host.hydrator.open_session(SESSION)).exists
    put(store, "")
    assert (await host.hydrator.open_session(SESSION)).exists


async def test_two_requests_for_one_session_read_it_once(host: Host, store: FaultyStore) -> None:
    put_session(store)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(host.hydrator.open_session, SESSION)
    assert [method for method, _ in store.calls].count("list_page") == 1


async def test_a_text_that_is_no_session_id_is_refused(host: Host) -> None:
    with pytest.raises(InvalidSessionIdError):
        await host.hydrator.open_session("a/b")


async def test_an_unknown_session_is_an_error_while_the_store_is_away(host: Host, store: FaultyStore) -> None:
    away(store, "get")
    with pytest.raises(UnavailableError):
        await host.hydrator.open_session(SESSION)


async def test_a_session_of_this_disk_opens_while_the_store_is_away(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.journal.update_session(SESSION, known=False)
    away(store, "get")
    found = await host.hydrator.open_session(SESSION)
    assert found.exists
    assert not found.foreign
    row = host.journal.session(SESSION)
    assert row is not None
    assert not row.known
    assert (await host.hydrator.open_session(SESSION)).exists
    row = host.journal.session(SESSION)
    assert row is not None
    assert row.known


async def test_keys_that_cannot_be_shown_are_announced(host: Host, store: FaultyStore) -> None:
    put_plain(store, "x")
    put_plain(store, "x/y")
    await host.hydrator.open_session(SESSION)
    assert [name for name, _ in host.events] == ["session.keys.skipped"]
    assert host.events[0][1]["key"] == PREFIX + "x"


async def test_a_session_removed_here_stays_gone_while_its_deletes_are_owed(
    host: Host, store: FaultyStore
) -> None:
    put_session(store)
    host.make(b"")
    host.journal.unlink(1, b"s")
    assert not (await host.hydrator.open_session(SESSION)).exists
    assert await host.hydrator.list_sessions() == []


# --- merging with what is here


async def test_equal_files_become_known_and_stay_clean(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.make(b"f", b"abc")
    host.make(b"l", target=b"f")
    host.upload()
    for key in ("", "f", "l"):
        host.journal.drop_object(PREFIX + key)
    host.journal.update_session(SESSION, known=False)
    put(store, "only/there", b"remote")
    await host.hydrator.open_session(SESSION)
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    assert known.token == store.head(PREFIX + "f").token
    assert host.journal.object(PREFIX + "l") is not None
    assert host.journal.work(PREFIX + "f") is None
    node = host.journal.node(host.number(b"f"))
    assert node is not None
    assert node.clean_identity[0] == 3
    assert host.number(b"only/there") >= FIRST_REMOTE_NUMBER
    assert host.journal.conflicts() == []


async def test_a_differing_file_stays_ours_and_the_buckets_is_kept_aside(
    host: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"f", b"ours")
    host.make(b"l", target=b"ours")
    host.make(b"kind", b"file here")
    host.journal.update_session(SESSION, known=False)
    put(store, "f", b"them")
    put(store, "l", b"theirs", mode=LINK)
    put(store, "kind/inside", b"directory there")
    await host.hydrator.open_session(SESSION)
    known = host.journal.object(PREFIX + "f")
    assert known is not None
    assert known.token == store.head(PREFIX + "f").token
    assert host.journal.work(PREFIX + "f") is not None
    kept = {conflict.path: conflict.key for conflict in host.journal.conflicts()}
    assert set(kept) == {"f", "l"}
    with store.get(kept["f"], byte_range=None, expected=None) as body:
        assert body.read() == b"them"
    assert [name for name, _ in host.events] == ["session.conflict.kept"] * 2
    assert host.read(b"f") == b"ours"
    assert host.journal.resolve(SESSION, b"kind/inside") is None


async def test_a_file_whose_object_is_known_is_left_to_the_uploader(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.make(b"f", b"ours")
    host.upload()
    before = host.journal.object(PREFIX + "f")
    host.journal.update_session(SESSION, known=False)
    put(store, "f", b"them")
    await host.hydrator.open_session(SESSION)
    assert host.journal.object(PREFIX + "f") == before
    assert host.journal.conflicts() == []


async def test_an_object_that_moves_while_it_is_kept_aside_is_left_to_the_uploader(
    host: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"f", b"ours")
    host.journal.update_session(SESSION, known=False)
    put(store, "", mode=stat.S_IFDIR | 0o700)
    put(store, "f", b"them")
    store.plan("copy", Interfere(lambda: put(store, "f", b"new")))
    await host.hydrator.open_session(SESSION)
    assert host.journal.object(PREFIX + "f") is None
    assert host.journal.conflicts() == []
    assert host.journal.object(PREFIX) is not None


# --- lists


async def test_sessions_of_the_bucket_and_of_this_disk_are_listed(host: Host, store: FaultyStore) -> None:
    for session in ("b", "a", "bad%id"):
        put(store, "f", b"x", session=session)
    store.put(
        keys.manifest_key(SESSION),
        b"x",
        condition=Unconditional(),
        metadata=store.head("sessions/a/f").metadata or pytest.fail("no metadata"),
    )
    host.make(b"", session="here")
    assert await host.hydrator.list_sessions() == ["a", "b", "here"]


async def test_a_list_is_asked_again_after_its_time(host: Host, store: FaultyStore) -> None:
    put(store, "f", session="a")
    assert await host.hydrator.list_sessions() == ["a"]
    put(store, "f", session="b")
    host.clock.seconds += 4.9
    assert await host.hydrator.list_sessions() == ["a"]
    host.clock.seconds += 0.1
    assert await host.hydrator.list_sessions() == ["a", "b"]
    host.clock.seconds += 5
    away(store, "list_page")
    assert await host.hydrator.list_sessions() == ["a", "b"]


async def test_no_list_is_an_error_and_never_an_empty_one(host: Host, store: FaultyStore) -> None:
    away(store, "list_page")
    with pytest.raises(UnavailableError):
        await host.hydrator.list_sessions()


async def test_what_cannot_be_read_here_counts_as_differing(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    host.make(b"d", None)
    host.make(b"f", b"ours")
    host.make(b"l", target=b"ours")
    host.journal.update_session(SESSION, known=False)
    put(store, "d/", mode=stat.S_IFDIR | 0o700)
    put(store, "f", b"them")
    put(store, "l", b"them", mode=LINK)
    for path in (b"f", b"l"):
        os.unlink(host.disk(path))
    os.rmdir(host.disk(b"d"))
    await host.hydrator.open_session(SESSION)
    assert {conflict.path for conflict in host.journal.conflicts()} == {"f", "l"}
    assert host.journal.work(PREFIX + "d/") is not None


async def test_a_file_that_is_not_here_is_compared_by_its_sha256(host: Host, store: FaultyStore) -> None:
    host.make(b"")
    same, differs = host.make(b"same", b"abc"), host.make(b"differs", b"abc")
    digest = hashlib.sha256(b"abc").hexdigest()
    for number in (same, differs):
        host.journal.update_node(number, present=False, sha256=digest)
    host.journal.update_session(SESSION, known=False)
    put(store, "same", b"abc")
    put(store, "differs", b"xyz")
    await host.hydrator.open_session(SESSION)
    assert host.journal.object(PREFIX + "same") is not None
    assert [conflict.path for conflict in host.journal.conflicts()] == ["differs"]


async def test_an_object_that_moved_before_it_is_kept_aside_is_left_to_the_uploader(
    host: Host, store: FaultyStore
) -> None:
    host.make(b"")
    host.make(b"f", b"ours")
    host.journal.update_session(SESSION, known=False)
    put(store, "f", b"them")
    store.plan("head", Pass(), Interfere(lambda: put(store, "f", b"new")))
    await host.hydrator.open_session(SESSION)
    assert host.journal.object(PREFIX + "f") is None
