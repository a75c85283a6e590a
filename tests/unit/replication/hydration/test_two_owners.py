"""One host writes, uploads and commits, and dies; another takes over and does the same, then a third. Every generation still reads byte for byte."""

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
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.uploads.authority import SoleWriter
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.exclusions import Exclusions
from tests.unit.replication.commit.commit_world import CommitWorld, read_generation
from tests.unit.replication.uploads.tree_world import FAST, SESSION

from .hosts import Host, body_of
from .named_bytes import read
from .test_catch_up import upload

Tree = dict[bytes, bytes | None]
NAMES = (b"a", b"b.log", b"d/c", b"d/e.jsonl")


class Owner(SoleWriter):
    """An owner of some epoch."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def epoch(self, session: str) -> int:  # noqa: ARG002 - the same for all
        return self._epoch


class Writer:
    """An owner, doing anything."""

    def __init__(self, world: CommitWorld, seed: int, trees: dict[int, Tree]) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.trees = trees

    async def work(self) -> None:
        """Write, upload and commit; then only write and upload, and die."""
        for _ in range(25):
            await self.act()
        await self.commit()
        for _ in range(5):
            self.change()
            if self.random.random() < 0.5:
                await self.world.settle()

    async def commit(self) -> None:
        report = await self.world.commit(is_turn=self.random.random() < 0.3)
        self.trees[report.generation] = self.world.tree()

    def _has(self, name: bytes) -> bool:
        return os.path.lexists(self.world.path(name))

    async def act(self) -> None:
        match self.random.randrange(6):
            case 0:
                await self.world.settle()
            case 1:
                await self.commit()
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


def claimed(host: Host, epoch: int) -> Claim:
    """What ownership does: the fence, and the journal's row."""
    key = keys.manifest_key(SESSION)
    fenced = replace(manifests.decode(read(host.bucket, key), key), epoch=epoch, holder="taker")
    raw, encoding = manifests.encode(fenced)
    metadata = ObjectMetadata(content_encoding=encoding)
    token = host.bucket.put(key, raw, condition=Unconditional(), metadata=metadata)
    host.journal.update_session(SESSION, owner_state="held", epoch=epoch)
    return Claim(epoch, manifest=fenced, manifest_token=token)


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


async def take_over(directory: Path, store: MemoryStore, trees: dict[int, Tree], epoch: int) -> None:
    """Open, claim and catch up, and compare everything with what was committed and what was uploaded."""
    tail, named = live_of(store), trees[max(trees)]
    host = Host(directory / "state", store)
    await host.hydrator.open_session(SESSION)
    key = keys.manifest_key(SESSION)
    is_exact = manifests.decode(read(store, key), key).recovery == "committed"
    if is_exact:
        assert await tree_of(host, SESSION) == named
    await host.hydrator.catch_up(SESSION, claimed(host, epoch))
    await upload(host, Owner(epoch))
    after = live_of(store)
    assert await tree_of(host, SESSION) == after
    if is_exact:
        assert after.keys() == named.keys()
        for path, body in after.items():
            assert body == named[path] or (body == tail[path] and is_grown_log(path, body, named[path])), path
    else:
        assert after == tail
    assert read_generation(store) == named
    for generation, tree in trees.items():
        await host.hydrator.open_session(f"{SESSION}%g{generation}")
        assert await tree_of(host, f"{SESSION}%g{generation}") == tree, generation
    await host.materialise(SESSION)
    host.journal.close()


@pytest.mark.parametrize("recovery", ["committed", "live"])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_one_owner_did_the_next_has_the_whole_truth(
    tmp_path: Path, seed: int, recovery: str
) -> None:
    store, trees = MemoryStore(), dict[int, Tree]()
    settings = msgspec.structs.replace(FAST, recovery=recovery)
    for epoch in (1, 2, 3):
        directory = tmp_path / str(epoch)
        if epoch > 1:
            await take_over(directory, store, trees, epoch)
        world = CommitWorld(directory, settings=settings, store=store, authority=Owner(epoch))
        if epoch == 1:
            world.make_directory(b"d")
        await Writer(world, seed * 10 + epoch, trees).work()
    await take_over(tmp_path / "last", store, trees, 4)
