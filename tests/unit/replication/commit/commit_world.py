"""A host that commits, over a memory store; and a reader of generations that shares no code with the product."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sessionfs.formats.commit_messages import Barrier, BarrierHeld, Committed
from sessionfs.model import keys
from sessionfs.model.errors import SessionFSError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.commit.committer import Committer
from sessionfs.replication.commit.composition import committer_of
from sessionfs.replication.uploads.authority import Authority, SoleWriter
from sessionfs.stores.base import ObjectStore
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.layout import StateLayout
from tests.unit.replication.copying_freezer import CopyingFreezer
from tests.unit.replication.uploads.tree_world import FAST, SESSION, World


def _nothing() -> None:
    """Nothing happens."""


class Freezer(CopyingFreezer):
    """Lets something happen right after the cut.

    Attributes:
        after_barrier: Called once the cut is taken.
    """

    def __init__(self, layout: StateLayout, log: DirectLog) -> None:
        super().__init__(layout, lambda: log.position)
        self._log = log
        self.after_barrier: Callable[[], None] = _nothing

    async def barrier(self, request: Barrier) -> BarrierHeld:
        held = await super().barrier(request)
        self._log.waiting = self.after_barrier
        return held


class DirectLog:
    """The log of a world whose records are applied at once; what `waiting` does happens right after the cut."""

    def __init__(self) -> None:
        self.position = 0
        self.waiting: Callable[[], None] = _nothing

    def apply(self) -> bool:
        return False

    def apply_up_to(self, limit: int) -> None:
        """Nothing waits."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        yield
        action, self.waiting = self.waiting, _nothing
        action()


class CommitWorld(World):
    """One host with a committer."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: ReplicationSettings = FAST,
        store: ObjectStore | None = None,
        authority: Authority | None = None,
        mount_point: str = "",
    ) -> None:
        self.authority = authority or SoleWriter()
        super().__init__(directory, settings=settings, store=store, mount_point=mount_point)

    def start(self) -> None:
        super().start()
        self.log = DirectLog()
        self.freezer = Freezer(self.layout, self.log)
        self.committer: Committer = committer_of(
            journal=self.journal,
            store=self.trio_store,
            layout=self.layout,
            settings=self.settings,
            clock=self.clock,
            exclusions=Exclusions(self.settings.exclude_globs),
            log=self.log,
            uploader=self.uploader,
            freezer=self.freezer,
            authority=self.authority,
            raise_event=self.journal.add_event,
        )

    async def commit(self, trigger: str = "test", *, is_turn: bool = False) -> Committed:
        problem: SessionFSError | None = None
        report = Committed(SESSION, 0)
        async with self.running():
            try:
                report = await self.committer.commit(SESSION, trigger, is_turn=is_turn)
            except SessionFSError as error:
                problem = error
        if problem is not None:
            raise problem
        return report

    def tree(self) -> dict[bytes, bytes | None]:
        """What is on this disk: bytes of files and links, None for directories."""
        return tree_of_disk(self.path(b""))


def tree_of_disk(root: bytes) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            whole = os.path.join(directory, name)
            path = os.path.relpath(whole, root)
            if os.path.islink(whole):
                found[path] = b"-> " + os.readlink(whole)
            elif os.path.isdir(whole):
                found[path] = None
            else:
                found[path] = Path(os.fsdecode(whole)).read_bytes()
    return found


class MissingBytesError(Exception):
    """A generation names bytes that are nowhere."""


def read_generation(store: ObjectStore, generation: int | None = None) -> dict[bytes, bytes | None]:
    """Give what a generation says, byte for byte, from the bucket alone; the newest when no number is given."""

    def get(key: str) -> bytes | None:
        try:
            with store.get(key, byte_range=None, expected=None) as body:
                return body.read()
        except Exception:  # noqa: BLE001 - whatever it is, it is not there
            return None

    prefix = f"sessions/{SESSION}"
    name = "manifest" if generation is None else f"{generation:010d}"
    raw = get(f"{prefix}.manifest/{name}.json")
    if raw is None:
        raise MissingBytesError(f"no manifest {name}")
    found: dict[bytes, bytes | None] = {}
    manifest = json.loads(raw)
    for entry in manifest["entries"]:
        path = entry["path"].encode()
        if not path:
            continue
        if entry["type"] == "directory":
            found[path] = None
        elif entry["type"] == "symlink":
            found[path] = b"-> " + entry["target"].encode()
        else:
            found[path] = _bytes_of(get, prefix, entry)
    return found


def _bytes_of(get: Callable[[str], bytes | None], prefix: str, entry: dict[str, Any]) -> bytes:
    size, sha256 = entry["size"], entry["sha256"]
    objects = f"{prefix}.objects"
    alias = get(f"{objects}/{sha256[:2]}/{sha256}.alias")
    candidates = [f"{prefix}/{entry['path']}", f"{objects}/{sha256[:2]}/{sha256}"]
    if alias is not None:
        of = json.loads(alias)["of"]
        candidates.append(f"{objects}/{of[:2]}/{of}")
    for key in candidates:
        body = get(key)
        if body is not None and hashlib.sha256(body[:size]).hexdigest() == sha256:
            return body[:size]
    raise MissingBytesError(entry["path"])


def live_objects(store: ObjectStore) -> dict[bytes, bytes]:
    """Live files by path."""
    found: dict[bytes, bytes] = {}
    for page in store.list_all(keys.session_prefix(SESSION)):
        for one in page.objects:
            live = keys.parse_live_key(one.key)
            if live is not None and not live.is_directory:
                with store.get(one.key, byte_range=None, expected=None) as body:
                    found[live.path] = body.read()
    return found
