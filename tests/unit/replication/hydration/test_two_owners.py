"""One host writes, uploads and commits, and dies; another takes over. Whatever the first did: every generation still reads byte for byte."""

from __future__ import annotations

import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from sessionfs.formats import manifest as manifests
from sessionfs.model import keys
from sessionfs.replication.hydration.takeover.tail import LOG_GLOBS
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.exclusions import Exclusions
from tests.unit.replication.commit.commit_world import CommitWorld, read_generation
from tests.unit.replication.uploads.tree_world import FAST, SESSION

from .hosts import Host, body_of
from .named_bytes import read
from .test_catch_up import Claimed, upload

Tree = dict[bytes, bytes | None]
NAMES = (b"a", b"b.log", b"d/c", b"d/e.jsonl")


class Writer:
    """The first owner, doing anything."""

    def __init__(self, directory: Path, store: MemoryStore, seed: int, *, recovery: str) -> None:
        settings = msgspec.structs.replace(FAST, recovery=recovery)
        self.world = CommitWorld(directory, settings=settings, store=store)
        self.random = random.Random(seed)
        self.trees: dict[int, Tree] = {}
        self.world.make_directory(b"d")

    def _has(self, name: bytes) -> bool:
        return os.path.lexists(self.world.path(name))

    async def act(self) -> None:
        match self.random.randrange(6):
            case 0:
                await self.world.settle()
            case 1:
                report = await self.world.commit(is_turn=self.random.random() < 0.3)
                self.trees[report.generation] = self.world.tree()
            case _:
                self.change()

    def change(self) -> None:
        world, name = self.world, self.random.choice(NAMES)
        match self.random.randrange(6):
            case 0 | 1 if self._has(name):
                world.append(name, self._bytes())
            case 2 if self._has(name):
                world.unlink(name)
            case 3 if self._has(name) and not self._has(b"moved"):
                world.rename(name, b"moved")
            case 4 if self._has(b"moved"):
                world.rename(b"moved", name)
            case _:
                world.write(name, self._bytes())

    def _bytes(self) -> bytes:
        return self.random.randbytes(self.random.choice((3, 300, 3000)))


def claimed(host: Host) -> Claimed:
    """What ownership does: the fence, and the journal's row."""
    key = keys.manifest_key(SESSION)
    fenced = replace(manifests.decode(read(host.bucket, key), key), epoch=9, holder="taker")
    raw, encoding = manifests.encode(fenced)
    token = host.bucket.put(
        key, raw, condition=Unconditional(), metadata=ObjectMetadata(content_encoding=encoding)
    )
    host.journal.update_session(SESSION, owner_state="held", epoch=9)
    return Claimed(9, fenced, token)


async def tree_of(host: Host, session: str) -> Tree:
    """Fetch everything of a session or a read-only tree."""
    root = host.journal.child(1, session.encode())
    assert root is not None
    found: Tree = {}
    for path, node in host.journal.tree(root):
        if stat.S_ISDIR(node.mode):
            found[path] = None
        else:
            fetched = await host.hydrator.fetch(node.number)
            found[path] = body_of(host, fetched)
    del found[b""]
    return found


def live_of(store: MemoryStore) -> Tree:
    prefix = keys.session_prefix(SESSION)
    objects = (found for page in store.list_all(prefix) for found in page.objects)
    found: Tree = {}
    for one in objects:
        path = one.key.removeprefix(prefix)
        if path:
            found[path.rstrip("/").encode()] = None if path.endswith("/") else read(store, one.key)
    return found


def is_grown_log(path: bytes, now: bytes | None, named: bytes | None) -> bool:
    is_log = Exclusions(LOG_GLOBS).match(path)
    return is_log and now is not None and named is not None and now.startswith(named)


@pytest.mark.parametrize("recovery", ["committed", "live"])
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_the_first_owner_did_the_second_has_the_whole_truth(
    tmp_path: Path, seed: int, recovery: str
) -> None:
    store = MemoryStore()
    writer = Writer(tmp_path / "a", store, seed, recovery=recovery)
    for _ in range(30):
        await writer.act()
    report = await writer.world.commit()
    writer.trees[report.generation] = writer.world.tree()
    for _ in range(5):
        writer.change()
        if writer.random.random() < 0.5:
            await writer.world.settle()
    newest = max(writer.trees)
    tail, named = live_of(store), writer.trees[newest]
    host = Host(tmp_path / "b", store)
    await host.hydrator.open_session(SESSION)
    key = keys.manifest_key(SESSION)
    is_exact = manifests.decode(read(store, key), key).recovery == "committed"
    if is_exact:
        assert await tree_of(host, SESSION) == named
    await host.hydrator.catch_up(SESSION, claimed(host))
    await upload(host)
    after = live_of(store)
    assert await tree_of(host, SESSION) == after
    if is_exact:
        assert after.keys() == named.keys()
        for path, body in after.items():
            assert body == named[path] or (body == tail[path] and is_grown_log(path, body, named[path])), path
    else:
        assert after == tail
    assert read_generation(store) == named
    for generation, tree in writer.trees.items():
        await host.hydrator.open_session(f"{SESSION}%g{generation}")
        assert await tree_of(host, f"{SESSION}%g{generation}") == tree, generation
    host.journal.close()
