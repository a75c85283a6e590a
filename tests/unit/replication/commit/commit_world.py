"""A host that commits, over a memory store; and a reader of generations that shares no code with the product."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from sessionfs.formats import manifest as manifests
from sessionfs.formats import object_metadata
from sessionfs.formats.commit_messages import Barrier, BarrierHeld, Committed, FrozenAt, FrozenImage
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.model.errors import OutcomeUnknownError, SessionFSError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.commit.committer import Committer
from sessionfs.replication.commit.composition import committer_of
from sessionfs.replication.uploads.authority import FIRST_EPOCH, Authority, SoleWriter
from sessionfs.stores.base import Condition, ObjectMetadata, ObjectStore, Token, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.layout import StateLayout
from tests.unit.replication.copying_freezer import CopyingFreezer
from tests.unit.replication.uploads.tree_world import FAST, SESSION, World

Tree = dict[bytes, bytes | None]
SLOW = msgspec.structs.replace(FAST, upload_delay_seconds=30.0, max_upload_delay_seconds=30.0)
"""Nothing is uploaded before a commit asks for it."""


def _nothing() -> None:
    """Nothing happens."""


@dataclass(slots=True)
class Owner:
    """An authority that the test commands.

    Attributes:
        current: The epoch of every session.
        is_permitted: Whether anything may be sent.
        has_later_owner: Whether an object of a later epoch is a later owner's.
        lost: Reasons why sessions were lost.
    """

    current: int = FIRST_EPOCH
    is_permitted: bool = True
    has_later_owner: bool = True
    lost: list[str] = field(default_factory=list)

    def epoch(self, session: str) -> int:
        assert session == SESSION
        return self.current

    def may_change(self, session: str) -> bool:
        assert session == SESSION
        return self.is_permitted

    def latest_epoch(self, session: str) -> int:
        assert session == SESSION
        return self.current

    async def is_ours_still(self, session: str, object_epoch: int, reason: str) -> bool:
        assert object_epoch > self.current
        if self.has_later_owner:
            self.lose(session, holder="", reason=reason)
        return not self.has_later_owner

    def lose(self, session: str, *, holder: str, reason: str) -> None:
        self.lost.append(f"{session} {holder}: {reason}")


class ContentTokenStore(MemoryStore):
    """Its tokens say nothing but the bytes, as those of most buckets: going back to old bytes brings the old token back."""

    def _store(self, key: str, body: bytes, metadata: ObjectMetadata) -> Token:
        super()._store(key, body, metadata)
        stored = self._contents.objects[key]
        token = Token(hashlib.md5(body, usedforsecurity=False).hexdigest())
        self._contents.objects[key] = replace(stored, stat=replace(stored.stat, token=token))
        return token


class LateRequests:
    """Changing requests that nobody saw arrive; the test lets them arrive when it wants.

    Args:
        store: Where they go.
        key: Requests to this key are held back...
        count: ...so many of them.
    """

    def __init__(self, store: MemoryStore, key: str, count: int = 1) -> None:
        self._store = store
        self._key = key
        self._left = count
        self._held: list[Callable[[], object]] = []
        self._put, self._delete = store.put, store.delete
        store.put = self._hold_put  # type: ignore[method-assign]
        store.delete = self._hold_delete  # type: ignore[method-assign]

    def arrive(self) -> None:
        """The first of them arrives: an error is nobody's to see."""
        self._held.pop(0)()

    def _hold_put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        if key == self._key and self._left:
            self._hold(lambda: self._put(key, body, condition=condition, metadata=metadata))
        return self._put(key, body, condition=condition, metadata=metadata)

    def _hold_delete(self, key: str, *, condition: Condition) -> None:
        if key == self._key and self._left:
            self._hold(lambda: self._delete(key, condition=condition))
        self._delete(key, condition=condition)

    def _hold(self, request: Callable[[], object]) -> None:
        self._left -= 1
        self._held.append(request)
        raise OutcomeUnknownError("no answer, as planned")


class Freezer(CopyingFreezer):
    """Lets something happen right after the cut, and to the bytes that are kept.

    Attributes:
        after_barrier: Called once the cut is taken.
        behind: So many barriers find that the log must be read further first.
        lost: Paths whose bytes of the cut cannot be had.
        also: Files that are open for writing, of which the journal knows nothing new.
        asked: How often the place of kept bytes was asked for.
        on_question: Called with the number of the question once it is answered: what happens then, the answer does not tell.
    """

    def __init__(self, layout: StateLayout, log: DirectLog) -> None:
        super().__init__(layout, lambda: log.position)
        self._log = log
        self.after_barrier: Callable[[], None] = _nothing
        self.behind = 0
        self.lost: set[bytes] = set()
        self.also: dict[int, bytes] = {}
        self.asked = 0
        self.on_question: Callable[[int], None] = _no_question
        self._commit = ""
        self._numbers: dict[bytes, int] = {}
        self._lost: set[int] = set()

    async def barrier(self, request: Barrier) -> BarrierHeld:
        if self.behind:
            self.behind -= 1
            self.barriers += 1
            return BarrierHeld(self._log.position, [], 0.001, is_behind=True)
        request = msgspec.structs.replace(request, paths={**request.paths, **self.also})
        held = await super().barrier(request)
        self._commit = request.commit
        self._numbers = {path: number for number, path in request.paths.items()}
        self._lost = {number for path, number in self._numbers.items() if path in self.lost}
        self._log.waiting = self.after_barrier
        sessions = os.path.join(os.fsencode(self._layout.sessions), request.session.encode())
        described = [
            msgspec.structs.replace(file, xattrs=_xattrs(os.path.join(sessions, request.paths[file.number])))
            for file in held.frozen
        ]
        return msgspec.structs.replace(held, frozen=described)

    async def frozen_image(self, request: FrozenImage) -> FrozenAt:
        self.asked += 1
        answer = await super().frozen_image(request)
        self.on_question(self.asked)
        return FrozenAt(is_lost=True) if request.number in self._lost else answer

    def stage(self, path: bytes, body: bytes) -> None:
        """Keep bytes of the cut that were in the file itself until now: it is about to be rewritten."""
        name = f"frozen-late-{self._numbers[path]}"
        Path(self._layout.staging, name).write_bytes(body)
        self._staged[self._commit, self._numbers[path]] = name

    def kept(self) -> list[str]:
        """Names of what is kept now."""
        return sorted(self._staged.values())


def _no_question(_number: int) -> None:
    """Nothing happens."""


def _xattrs(path: bytes) -> dict[bytes, bytes]:
    if os.path.islink(path):
        return {}
    shown = [name for name in os.listxattr(path) if name.startswith("user.") and ".sessionfs." not in name]
    return {os.fsencode(name): os.getxattr(path, name) for name in shown}


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

    authority: Authority

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
        if self.journal.session(SESSION) is not None:
            # As a claim would have noted it.
            self.journal.update_session(SESSION, epoch=self.authority.epoch(SESSION))
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

    def row(self) -> SessionRow:
        row = self.journal.session(SESSION)
        assert row is not None
        return row

    def manifest(self, generation: int | None = None) -> Manifest:
        """What is in the bucket of the newest generation, or of one with a number."""
        key = keys.manifest_key(SESSION) if generation is None else keys.generation_key(SESSION, generation)
        return manifests.decode(self.body(key), key)

    def entries(self) -> dict[bytes, ManifestEntry]:
        """Of the newest generation, by path."""
        return {entry.path: entry for entry in self.manifest().entries}

    def kept_by_content(self) -> dict[str, bytes]:
        """What is below ``.objects/``."""
        pages = self.memory.list_all(keys.objects_prefix(SESSION))
        return {found.key: self.body(found.key) for page in pages for found in page.objects}

    def put_of_epoch(self, path: bytes, body: bytes, epoch: int) -> None:
        """Another owner writes an object, whatever is there."""
        attributes = FileAttributes(0o100644, 0, 0, 0)
        provenance = Provenance(hashlib.sha256(body).hexdigest(), f"another-of-{epoch}", epoch, "another")
        metadata = ObjectMetadata(object_metadata.encode(attributes, provenance))
        self.memory.put(self.key(path), body, condition=Unconditional(), metadata=metadata)

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
