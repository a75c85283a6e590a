"""A bucket with a committed session, an owner that only fences, and a store that dies at a step."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import trio

from sessionfs.formats import commit_marker, content_alias, object_metadata
from sessionfs.formats import manifest as manifests
from sessionfs.formats.content_alias import ContentAlias
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.model.errors import ObjectNotFoundError, SessionAlreadyOwnedError
from sessionfs.model.names import SessionId, session_id
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.manifest_chain import ManifestChain, NewerGenerations
from sessionfs.replication.maintenance.chain_writing import marker_of
from sessionfs.replication.maintenance.verified_bytes import VerifiedBytes
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import (
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStore,
    Token,
    Unconditional,
)
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import Fault, FaultyStore

S = session_id("s")
SETTINGS = ReplicationSettings(retry_minimum_seconds=0, retry_maximum_seconds=0, keep_generations=3)
HOUR_NS = 3600 * 1_000_000_000
LINK = stat.S_IFLNK | 0o777
_Result = TypeVar("_Result")


class HandClock:
    """Time moves by a millisecond at every look, and by hand."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000
        self.ids = 0

    def wall_ns(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns

    def elapsed_seconds(self) -> float:
        return self.now_ns / 1e9

    def jitter(self) -> float:
        return 0.0

    def unique_id(self) -> str:
        self.ids += 1
        return f"{self.ids:032x}"


class KilledError(BaseException):
    """The process is gone."""


class MortalStore(FaultyStore):
    """Dies at one call, before or after it was applied; counts calls."""

    def __init__(self, inner: ObjectStore, *, at: int = -1, is_applied: bool = False) -> None:
        super().__init__(inner)
        self.at = at
        self.is_applied = is_applied
        self.dead = False

    def _apply(self, fault: Fault, request: Callable[[], _Result], key: str) -> _Result:
        if self.dead:
            raise KilledError
        is_last = len(self.calls) >= self.at > 0
        if is_last:
            self.dead = True
        if is_last and not self.is_applied:
            raise KilledError
        result = super()._apply(fault, request, key)
        if is_last:
            raise KilledError
        return result


@dataclass
class FencingOwner:
    """Fences the chain as ownership does, and keeps who owns what in memory: ownership itself is tested elsewhere."""

    store: TrioStore
    clock: HandClock
    holder: str = "h" * 32
    epoch: int = 0
    held: set[str] = field(default_factory=set)
    refused: str = ""
    lost_after: int = -1
    asked: int = 0

    async def claim(self, session: SessionId) -> Claim:
        if self.refused:
            raise SessionAlreadyOwnedError(
                f"session {session} is owned by {self.refused}", holder=self.refused
            )
        key = keys.manifest_key(session)
        condition: Condition
        try:
            found, raw = await self.store.read_with_stat(key)
            before = manifests.decode(raw, key)
            condition = IfMatch(found.token)
        except ObjectNotFoundError:
            before, condition = Manifest(session, 0), IfAbsent()
        self.epoch = before.epoch + 1
        fenced = replace(before, epoch=self.epoch, holder=self.holder)
        raw, encoding = manifests.encode(fenced)
        metadata = ObjectMetadata({"sessionfs-write": self.clock.unique_id()}, "application/json", encoding)
        outcome = await self.store.put(key, raw, condition=condition, metadata=metadata)
        self.held.add(session)
        return Claim(self.epoch, manifest=fenced, manifest_token=getattr(outcome, "token", ""))

    async def release(self, session: SessionId) -> None:
        self.held.discard(session)

    def may_change(self, session: str) -> bool:
        self.asked += 1
        return session in self.held and not 0 <= self.lost_after < self.asked


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@dataclass
class Author:
    """Plays a mount: commits trees, with copy before overwrite and aliases for named prefixes."""

    store: ObjectStore
    clock: HandClock
    session: SessionId = S
    number: int = 0
    epoch: int = 1
    entries: dict[bytes, ManifestEntry] = field(default_factory=dict)
    prefixes: dict[bytes, list[ManifestEntry]] = field(default_factory=dict)
    bodies: dict[bytes, bytes] = field(default_factory=dict)

    def commit(
        self,
        tree: Mapping[bytes, bytes | str | None],
        *,
        modes: Mapping[bytes, int] | None = None,
        aliases: bool = True,
        removed: bool = False,
        extra: Callable[[ManifestEntry], ManifestEntry] = lambda entry: entry,
    ) -> Manifest:
        """Commit a tree: bytes are files, None directories, text links."""
        wanted = dict(tree) if removed else {b"": None, **tree}
        for path in self.entries.keys() - wanted.keys():
            self._keep(path, aliases=aliases)
            self._delete(self.entries.pop(path))
            self.bodies.pop(path, None)
        entries: dict[bytes, ManifestEntry] = {}
        for path, content in wanted.items():
            mode = (modes or {}).get(path, 0)
            entries[path] = extra(self._put(path, content, mode, aliases=aliases))
        self.entries = entries
        previous, self.number = self.number, self.number + 1
        manifest = Manifest(
            self.session,
            self.number,
            tuple(entries[path] for path in sorted(entries)),
            previous=previous,
            created_at=f"2026-01-31T00:00:{self.number:02d}.000000Z",
            trigger="turn",
            epoch=self.epoch,
            removed=removed,
        )
        raw, encoding = manifests.encode(manifest)
        metadata = ObjectMetadata({}, "application/json", encoding)
        for key in (keys.generation_key(self.session, self.number), keys.manifest_key(self.session)):
            self.store.put(key, raw, condition=Unconditional(), metadata=metadata)
        marker = marker_of(manifest, hashlib.sha256(raw).hexdigest(), None, completed_at=manifest.created_at)
        self.store.put(
            keys.commit_marker_key(self.session),
            commit_marker.encode(marker),
            condition=Unconditional(),
            metadata=ObjectMetadata(),
        )
        return manifest

    def write(self, path: bytes, body: bytes) -> Token:
        """Upload a file that no generation names yet, with copy before overwrite."""
        if path in self.entries and not body.startswith(self.bodies[path]):
            self._keep(path, aliases=True)
        entry = self._entry(path, body, stat.S_IFREG | 0o644, sha(body))
        return self._store(entry, body)

    def _put(self, path: bytes, content: bytes | str | None, mode: int, *, aliases: bool) -> ManifestEntry:
        if isinstance(content, bytes):
            body, kind = content, stat.S_IFREG | (mode or 0o644)
        elif content is None:
            body, kind = b"", stat.S_IFDIR | (mode or 0o755)
        else:
            body, kind = os.fsencode(content), LINK
        entry = self._entry(path, body, kind, "" if content is None else sha(body))
        if isinstance(content, str):
            entry = replace(entry, target=body)
        old = self.entries.get(path)
        if old is not None and (old.sha256, old.mode) == (entry.sha256, entry.mode):
            return old
        if old is not None:
            if old.type == entry.type == "file" and body.startswith(self.bodies[path]):
                self.prefixes.setdefault(path, []).append(old)
            else:
                self._keep(path, aliases=aliases)
                if old.type != entry.type:
                    self._delete(old)
        self.bodies[path] = body
        key = keys.live_key(self.session, path, is_directory=content is None)
        if key is None:
            self.store.put(
                keys.content_key(self.session, entry.sha256),
                body,
                condition=Unconditional(),
                metadata=ObjectMetadata({"sessionfs-sha256": entry.sha256}),
            )
            return entry
        return replace(entry, token=self._store(entry, body))

    def _entry(self, path: bytes, body: bytes, mode: int, sha256: str) -> ManifestEntry:
        mtime_ns = 1_600_000_000_000_000_001 + len(body)
        size_bytes = 0 if stat.S_ISDIR(mode) else len(body)
        return ManifestEntry(
            path, mode, size_bytes, sha256, uid=os.getuid(), gid=os.getgid(), mtime_ns=mtime_ns
        )

    def _store(self, entry: ManifestEntry, body: bytes) -> Token:
        key = keys.live_key(self.session, entry.path, is_directory=stat.S_ISDIR(entry.mode))
        assert key is not None
        user = object_metadata.encode(
            FileAttributes(entry.mode, entry.uid, entry.gid, entry.mtime_ns),
            Provenance(sha(body), self.clock.unique_id(), self.epoch, "l"),
        )
        return self.store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata(user))

    def _keep(self, path: bytes, *, aliases: bool) -> None:
        entry = self.entries[path]
        key = keys.live_key(self.session, path, is_directory=False)
        if stat.S_ISDIR(entry.mode) or key is None or not entry.token:
            return
        whole = self.store.head(key)
        assert whole.metadata is not None
        sum_of_whole = object_metadata.decode_provenance(whole.metadata.user).sha256
        self.store.copy(
            key,
            keys.content_key(self.session, sum_of_whole),
            source_token=whole.token,
            condition=Unconditional(),
            metadata=ObjectMetadata({"sessionfs-sha256": sum_of_whole}),
        )
        shorter = [*self.prefixes.pop(path, []), *([entry] if entry.sha256 != sum_of_whole else [])]
        for prefix in shorter if aliases else []:
            self.store.put(
                keys.alias_key(self.session, prefix.sha256),
                content_alias.encode(ContentAlias(sum_of_whole, prefix.size_bytes)),
                condition=Unconditional(),
                metadata=ObjectMetadata(),
            )

    def _delete(self, entry: ManifestEntry) -> None:
        key = keys.live_key(self.session, entry.path, is_directory=stat.S_ISDIR(entry.mode))
        if key is not None:
            self.store.delete(key, condition=Unconditional())


Tree = dict[bytes, tuple[int, bytes, int]]
"""Mode, bytes and time of each path."""


def tree_of(manifest: Manifest, author: Author) -> Tree:
    """What a generation that an author just committed holds."""
    return {
        entry.path: (
            entry.mode,
            b"" if stat.S_ISDIR(entry.mode) else author.bodies[entry.path],
            entry.mtime_ns,
        )
        for entry in manifest.entries
    }


async def hydrate(
    store: ObjectStore, session: SessionId = S, generation: int | None = None
) -> tuple[int, Tree]:
    """Read a generation as an empty host does, byte for byte verified; the newest when none is named."""
    reading = TrioStore(store, HandClock(), SETTINGS)
    chain, verified = ManifestChain(reading), VerifiedBytes(reading)
    newest = await chain.newest(session)
    assert newest is not None
    found = newest.manifest if generation is None else await chain.read(session, generation)
    newer = NewerGenerations(chain, session, found.generation)
    tree: Tree = {}
    for entry in found.entries:
        body = b"" if stat.S_ISDIR(entry.mode) else await verified.read(session, entry, newer)
        tree[entry.path] = (entry.mode, body, entry.mtime_ns)
    return found.generation, tree


def all_objects(store: MemoryStore) -> dict[str, bytes]:
    """Every object of a store."""
    return {key: stored.body for key, stored in store._contents.objects.items()}


def cloned(store: MemoryStore, clock: HandClock) -> MemoryStore:
    """A store with the same objects, for another run from the same start."""
    other = MemoryStore(clock)
    other._contents.objects.update(store._contents.objects)
    other._contents.numbers = iter(range(1_000_000, 2_000_000))
    return other


async def run_and_die(action: Callable[[MortalStore], object], store: MortalStore) -> bool:
    """Run something until the store dies; whether it did."""
    try:
        result = action(store)
        assert hasattr(result, "__await__")
        await result
    except BaseException as problem:
        if not _is_kill(problem):
            raise
        return True
    return store.dead


def _is_kill(problem: BaseException) -> bool:
    if isinstance(problem, BaseExceptionGroup):
        return any(_is_kill(inner) for inner in problem.exceptions)
    return isinstance(problem, KilledError | trio.Cancelled)
