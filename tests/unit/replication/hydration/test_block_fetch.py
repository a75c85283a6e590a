"""Large files block by block: each verified, from wherever its content is, into one sparse file."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest
import trio

from sessionfs.formats.link_message import Entry
from sessionfs.formats.manifest import BLOCK_BYTES
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, LocalDiskError, ObjectNotFoundError, UnavailableError
from sessionfs.stores.base import Unconditional
from sessionfs.testing.faulty_store import FaultyStore, Truncate

from .hosts import PREFIX, SESSION, Host, away, body_of, drop, put
from .named_bytes import alias, commit, keep, put_named, put_raw, sha

BODY = random.Random(3).randbytes(2 * BLOCK_BYTES + 500)
TAIL = b"and more behind it"
LAST = 2


class Part:
    """The file in staging into which a daemon lets blocks be written."""

    def __init__(self, host: Host, path: bytes = b"f", *, session: str = SESSION, body: bytes = BODY) -> None:
        self.host = host
        self.number = host.number(path, session)
        self.sha256 = sha(body)
        self.name = f"partial-{host.clock.unique_id()}"
        self.path = Path(host.layout.staging, self.name)
        self.path.touch()
        os.truncate(self.path, len(body))

    async def fetch(self, block: int) -> bytes:
        """Bring a block; gives what is in its place."""
        blocks = self.host.hydrator.blocks
        await blocks.fetch(self.number, block, partial=self.name, sha256=self.sha256)
        return self.path.read_bytes()[block * BLOCK_BYTES :][:BLOCK_BYTES]

    def finish(self) -> Entry:
        return self.host.hydrator.blocks.finish(self.number, partial=self.name, sha256=self.sha256)


def block_of(body: bytes, block: int) -> bytes:
    return body[block * BLOCK_BYTES :][:BLOCK_BYTES]


async def opened(host: Host, store: FaultyStore, *, body: bytes = BODY) -> Part:
    """A session of one committed large file, as a host without it sees it."""
    commit(store, put_named(store, ""), put_named(store, "f", body), recovery="live")
    await host.hydrator.open_session(SESSION)
    store.calls.clear()
    return Part(host, body=body)


def gets(store: FaultyStore) -> list[str]:
    return [key for method, key in store.calls if method == "get"]


def blocks_of(host: Host, path: bytes = b"f", session: str = SESSION) -> str:
    entry = host.journal.entry(b"f", host.number(path, session))
    assert entry is not None
    return entry.blocks_of


async def test_a_block_comes_in_one_request_and_no_other_bytes_do(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    assert blocks_of(host) == sha(BODY)
    before = host.store.downloaded_bytes
    assert await part.fetch(LAST) == BODY[-500:]
    assert store.calls == [("get", PREFIX + "f")]
    assert host.store.downloaded_bytes - before == 500
    assert part.path.read_bytes()[:-500] == bytes(2 * BLOCK_BYTES)
    assert await part.fetch(0) == BODY[:BLOCK_BYTES]
    assert await part.fetch(1) == BODY[BLOCK_BYTES:-500]
    entry = part.finish()
    assert (entry.name, entry.number, entry.size_bytes) == (b"f", part.number, len(BODY))
    assert part.path.read_bytes() == BODY
    assert not host.events


async def test_only_what_has_sums_of_all_its_blocks_comes_by_blocks(host: Host, store: FaultyStore) -> None:
    put(store, "", b"")
    put(store, "g", BODY)
    commit(store, put_named(store, ""), put_named(store, "f", b"short"), recovery="live")
    await host.hydrator.open_session(SESSION)
    assert blocks_of(host) == ""
    assert blocks_of(host, b"g") == ""
    part = Part(host, b"g")
    with pytest.raises(ObjectNotFoundError):
        await part.fetch(0)


async def test_requests_for_one_block_at_once_share_a_download(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    found: list[bytes] = []

    async def ask() -> None:
        found.append(await part.fetch(1))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert found == [block_of(BODY, 1)] * 5
    assert len(gets(store)) == 1


async def test_a_connection_that_ends_early_is_tried_again(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    store.plan("get", Truncate(100))
    assert await part.fetch(1) == block_of(BODY, 1)


async def test_a_store_that_is_away_is_said_to_everybody_and_no_damage(
    host: Host, store: FaultyStore
) -> None:
    part = await opened(host, store)
    away(store, "get")
    errors: list[UnavailableError] = []

    async def ask() -> None:
        with pytest.raises(UnavailableError) as problem:
            await part.fetch(1)
        errors.append(problem.value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert len(errors) == 3
    assert host.hydrator.problem_of(part.number) == ""
    assert await part.fetch(1) == block_of(BODY, 1)


async def test_a_bad_block_is_announced_once_and_good_ones_still_come(host: Host, store: FaultyStore) -> None:
    bad = BODY[:BLOCK_BYTES] + b"X" + BODY[BLOCK_BYTES + 1 :]
    named = put_named(store, "f", BODY)
    put(store, "f", bad, sha256=sha(BODY))
    commit(store, put_named(store, ""), named, recovery="live")
    await host.hydrator.open_session(SESSION)
    part = Part(host)
    assert await part.fetch(0) == block_of(BODY, 0)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match="has other bytes from 8388608 to 16777216"):
            await part.fetch(1)
    assert await part.fetch(LAST) == block_of(BODY, LAST)
    assert [name for name, _ in host.events] == ["session.file.corrupt"]
    assert "s/f" in host.hydrator.problem_of(part.number)


async def test_a_bad_block_comes_from_the_copy_that_was_kept(host: Host, store: FaultyStore) -> None:
    named = put_named(store, "f", BODY)
    put(store, "f", BODY[:-1] + b"X", sha256=sha(BODY))
    keep(store, BODY)
    commit(store, put_named(store, ""), named, recovery="live")
    await host.hydrator.open_session(SESSION)
    part = Part(host)
    assert await part.fetch(LAST) == block_of(BODY, LAST)
    assert await part.fetch(0) == block_of(BODY, 0)
    assert [name for name, _ in host.events] == ["session.file.corrupt"]


async def test_an_object_that_grew_still_gives_its_first_blocks(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    assert await part.fetch(0) == block_of(BODY, 0)
    put(store, "f", BODY + TAIL, write_id="w2")
    assert await part.fetch(LAST) == BODY[-500:]
    store.calls.clear()
    assert await part.fetch(1) == block_of(BODY, 1)
    assert store.calls == [("get", PREFIX + "f")]
    assert part.finish().size_bytes == len(BODY)


async def test_a_replaced_file_is_read_on_from_its_kept_copy(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    assert await part.fetch(0) == block_of(BODY, 0)
    keep(store, BODY)
    put(store, "f", b"other", write_id="w2")
    await host.hydrator.refresh_session(SESSION)
    host.journal.drop_unused_blocks()
    assert await part.fetch(1) == block_of(BODY, 1)
    with pytest.raises(ObjectNotFoundError, match="other bytes by now"):
        part.finish()


async def test_first_bytes_of_a_kept_longer_content_serve(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    whole = BODY + TAIL
    put_raw(store, keys.content_key(SESSION, sha(whole)), whole, sha256=sha(whole))
    alias(store, BODY, whole)
    put(store, "f", b"other", write_id="w2")
    assert await part.fetch(LAST) == BODY[-500:]
    assert await part.fetch(0) == block_of(BODY, 0)


async def test_a_newer_generation_that_only_grew_serves(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    whole = BODY + TAIL
    grown = put_named(store, "f", whole)
    commit(store, put_named(store, ""), grown, generation=2, recovery="live")
    keep(store, whole)
    put(store, "f", b"other", write_id="w2")
    commit(store, put_named(store, ""), put_named(store, "f", b"other"), generation=3, recovery="live")
    assert await part.fetch(1) == block_of(BODY, 1)


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_replaced_content_that_is_nowhere_is_no_damage(
    host: Host, store: FaultyStore, is_known: bool
) -> None:
    part = await opened(host, store)
    await part.fetch(0)
    put(store, "f", b"other", write_id="w2")
    if is_known:
        await host.hydrator.refresh_session(SESSION)
    with pytest.raises(ObjectNotFoundError, match="replaced while it was read"):
        await part.fetch(1)
    assert not host.events
    assert host.hydrator.problem_of(part.number) == ""
    assert body_of(host, await host.hydrator.fetch(part.number)) == b"other"


async def test_a_file_that_another_host_removed_is_read_on_from_its_kept_copy(
    host: Host, store: FaultyStore
) -> None:
    part = await opened(host, store)
    await part.fetch(0)
    keep(store, BODY)
    drop(store, "f")
    commit(store, put_named(store, ""), generation=2, recovery="live")
    await host.hydrator.refresh_session(SESSION)
    assert host.journal.node(part.number) is None
    assert await part.fetch(1) == block_of(BODY, 1)
    store.delete(keys.content_key(SESSION, sha(BODY)), condition=Unconditional())
    with pytest.raises(ObjectNotFoundError):
        await part.fetch(LAST)


async def test_bytes_of_an_exact_tree_and_of_a_past_generation_come_by_blocks(
    host: Host, store: FaultyStore
) -> None:
    commit(store, put_named(store, ""), put_named(store, "f", BODY))
    keep(store, BODY)
    put(store, "f", b"uncommitted tail", write_id="w2")
    await host.hydrator.open_session(SESSION)
    await host.hydrator.open_session("s%g1")
    for session in (SESSION, "s%g1"):
        assert blocks_of(host, session=session) == sha(BODY)
        part = Part(host, session=session)
        assert await part.fetch(LAST) == BODY[-500:]
        assert await part.fetch(1) == block_of(BODY, 1)
    store.delete(keys.content_key(SESSION, sha(BODY)), condition=Unconditional())
    with pytest.raises(CorruptDataError, match="no object holds the bytes of s/f of generation 1"):
        await Part(host, session="s%g1").fetch(0)


async def test_a_file_that_is_here_by_now_is_not_finished(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    for block in range(3):
        await part.fetch(block)
    await host.materialise()
    with pytest.raises(ObjectNotFoundError):
        part.finish()


async def test_a_file_in_staging_that_is_gone_is_no_damage(host: Host, store: FaultyStore) -> None:
    part = await opened(host, store)
    part.path.unlink()
    with pytest.raises(LocalDiskError):
        await part.fetch(0)
    assert not host.events


async def test_the_whole_that_came_by_blocks_is_the_one_that_was_committed(
    host: Host, store: FaultyStore
) -> None:
    part = await opened(host, store)
    async with trio.open_nursery() as nursery:
        for block in range(3):
            nursery.start_soon(part.fetch, block)
    assert hashlib.sha256(part.path.read_bytes()).hexdigest() == part.finish().blocks_of
