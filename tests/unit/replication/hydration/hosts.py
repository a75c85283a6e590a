"""A host for tests: a state directory with everything of replication but the uploader and the daemon, which the test plays."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from sessionfs.formats import manifest as manifests
from sessionfs.formats import object_metadata
from sessionfs.formats.intent_records import Intent, Operation, Outcome
from sessionfs.formats.link_message import Entry
from sessionfs.formats.link_messages import (
    Fetched,
)
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.model.errors import UnavailableError
from sessionfs.model.names import SessionId, session_id
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydrator import Hydrator
from sessionfs.replication.remote_tree import RemoteTreeReader
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Token, Unconditional
from sessionfs.testing.faulty_store import FailBefore, FaultyStore
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.record_application import RecordApplication
from sessionfs.working_copy.upload_journal import UploadJournal

SESSION = session_id("s")
SETTINGS = ReplicationSettings(retry_minimum_seconds=0, retry_maximum_seconds=0)
LINK = stat.S_IFLNK | 0o777
PREFIX = "sessions/s/"
Fields = Mapping[str, str | int | float | bool]


class StepClock:
    """Every look at the wall clock is ten seconds after the last."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000
        self.seconds = 0.0
        self.ids = 0

    def wall_ns(self) -> int:
        self.now_ns += 10_000_000_000
        return self.now_ns

    def elapsed_seconds(self) -> float:
        return self.seconds

    def jitter(self) -> float:
        return 0.0

    def unique_id(self) -> str:
        self.ids += 1
        return f"{self.ids:032x}"


def put(
    store: ObjectStore,
    path: str,
    body: bytes = b"",
    *,
    mode: int = stat.S_IFREG | 0o644,
    mtime_ns: int = 1_600_000_000_123_456_789,
    sha256: str | None = None,
    write_id: str = "w",
    lineage: str = "l",
    session: str = SESSION,
) -> Token:
    """Store an object as the uploader does; a path that ends in a slash (or is empty) is a directory."""
    if path == "" or path.endswith("/"):
        mode = stat.S_IFDIR | stat.S_IMODE(mode if not stat.S_ISREG(mode) else 0o755)
    digest = hashlib.sha256(body).hexdigest() if sha256 is None else sha256
    user = object_metadata.encode(
        FileAttributes(mode, 1000, 1001, mtime_ns), Provenance(digest, write_id, 0, lineage)
    )
    key = f"sessions/{session}/{path}"
    return store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata(user))


def put_plain(store: ObjectStore, path: str, body: bytes = b"", *, session: str = SESSION) -> Token:
    """Store an object as another tool does."""
    key = f"sessions/{session}/{path}"
    return store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())


def put_session(store: ObjectStore) -> None:
    """Store a small session: a directory, a file in it, and a link."""
    put(store, "")
    put(store, "d/", mode=stat.S_IFDIR | 0o700)
    put(store, "d/f", b"abc")
    put(store, "l", b"d/f", mode=LINK)


def drop(store: ObjectStore, path: str) -> None:
    """Delete an object as another host does."""
    store.delete(PREFIX + path, condition=Unconditional())


def away(store: FaultyStore, method: str, times: int = 5) -> None:
    """Let the next calls of a method find no store."""
    store.plan(method, *(FailBefore(UnavailableError("away")) for _ in range(times)))


def reader_of(store: ObjectStore, *, globs: tuple[str, ...] = SETTINGS.exclude_globs) -> RemoteTreeReader:
    """Give a reader of a store."""
    trio_store = TrioStore(store, StepClock(), SETTINGS)
    return RemoteTreeReader(trio_store, Exclusions(globs), private_globs=SETTINGS.private_globs, owner=(7, 8))


def put_manifest(store: ObjectStore, manifest: Manifest) -> None:
    """Commit a generation as its owner does: ``<n>.json``, then ``manifest.json``."""
    raw, encoding = manifests.encode(manifest)
    metadata = ObjectMetadata(content_encoding=encoding)
    session = SessionId(manifest.session)
    if manifest.generation:
        key = keys.generation_key(session, manifest.generation)
        store.put(key, raw, condition=Unconditional(), metadata=metadata)
    store.put(keys.manifest_key(session), raw, condition=Unconditional(), metadata=metadata)


def _xattrs(path: bytes) -> dict[bytes, bytes]:
    names = [name for name in os.listxattr(path) if name.startswith("user.")]
    return {os.fsencode(name): os.getxattr(path, name) for name in names}


def body_of(host: Host, fetched: Fetched) -> bytes:
    """Read a staged file."""
    return Path(host.layout.staging, fetched.staged).read_bytes()


class Host:
    """One host of a bucket."""

    def __init__(self, root: Path, store: ObjectStore, *, settings: ReplicationSettings = SETTINGS) -> None:
        self.clock = StepClock()
        self.layout = StateLayout(str(root))
        self.layout.create()
        self.bucket = store
        self.journal = UploadJournal(self.layout.journal, clock=self.clock)
        self.store = TrioStore(store, self.clock, settings)
        self.events: list[tuple[str, Fields]] = []
        self.exclusions = Exclusions(settings.exclude_globs)
        self.application = RecordApplication(
            self.journal, self.layout, exclusions=self.exclusions, on_delete=lambda _session, _key: None
        )
        self.sequence = 0
        self.settings = settings
        self.hydrator = self.new_hydrator()

    def new_hydrator(self) -> Hydrator:
        """As after a restart of the replication process."""
        return Hydrator(
            self.journal,
            self.store,
            self.layout,
            self.settings,
            self.clock,
            self.exclusions,
            raise_event=lambda name, fields: self.events.append((name, fields)),
        )

    # --- the daemon

    def disk(self, path: bytes = b"", session: str = SESSION) -> bytes:
        """Where a path is in the working copy."""
        base = os.path.join(os.fsencode(self.layout.sessions), os.fsencode(session))
        return os.path.join(base, path) if path else base

    def note(
        self, operation: Operation, number: int, *, parent: int = 0, name: bytes = b"", mode: int = -1
    ) -> None:
        """Log one operation that was applied."""
        self.sequence += 1
        intent = Intent(
            self.sequence, operation, number, parent, name, mode=mode, wall_ns=self.clock.wall_ns()
        )
        self.application.apply([(intent, Outcome(self.sequence, 0, number))], self.sequence)

    def make(
        self, path: bytes, body: bytes | None = None, *, target: bytes = b"", session: str = SESSION
    ) -> int:
        """Create a file, directory (body None) or link through the mount; the root's path is empty."""
        where = self.disk(path, session)
        above, _, name = path.rpartition(b"/")
        parent = self.number(above, session) if path else ROOT_NUMBER
        operation = Operation.SYMLINK if target else Operation.MKDIR if body is None else Operation.CREATE
        if target:
            os.symlink(target, where)
        elif body is None:
            os.mkdir(where)
        else:
            Path(os.fsdecode(where)).write_bytes(body)
        status = os.lstat(where)
        self.note(operation, status.st_ino, parent=parent, name=name or session.encode(), mode=status.st_mode)
        return status.st_ino

    def number(self, path: bytes, session: str = SESSION) -> int:
        """Number of a path that exists."""
        number = self.journal.resolve(session, path)
        assert number is not None
        return number

    def evict(self, numbers: Iterable[int]) -> None:
        """Drop what is on this disk of some numbers, the deepest first."""
        for number in sorted(numbers, key=lambda number: -len(self.journal.paths_of(number)[0][1])):
            for session, path in self.journal.paths_of(number):
                where = self.disk(path, session)
                if os.path.isdir(where) and not os.path.islink(where):
                    os.rmdir(where)
                elif os.path.lexists(where):
                    os.unlink(where)
            self.note(Operation.EVICTED, number)

    async def materialise(self, session: str = SESSION) -> None:
        """Bring a whole session into the working copy, as a program that reads everything does."""
        directories: list[tuple[bytes, Entry]] = []
        for path, number, _ in sorted(self.journal.below(self.number(b"", session), b"")):
            node = self.journal.node(number)
            assert node is not None
            where = self.disk(path, session)
            if node.present:
                continue
            entry = self.journal.entry(b"x", number)
            assert entry is not None
            if node.is_directory:
                os.mkdir(where)
                directories.append((where, entry))
            elif stat.S_ISLNK(node.mode):
                os.symlink(entry.target, where)
                os.utime(where, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
            else:
                await self._install(number, where)
            self.note(Operation.FETCHED if stat.S_ISREG(node.mode) else Operation.MATERIALISED, number)
        for where, entry in reversed(directories):
            os.chmod(where, stat.S_IMODE(entry.mode))
            os.utime(where, ns=(entry.mtime_ns, entry.mtime_ns))

    async def _install(self, number: int, where: bytes) -> None:
        fetched = await self.hydrator.fetch(number)
        staged = os.fsencode(os.path.join(self.layout.staging, fetched.staged))
        for name, value in fetched.entry.xattrs.items():
            os.setxattr(staged, name, value)
        os.chmod(staged, stat.S_IMODE(fetched.entry.mode))
        os.utime(staged, ns=(fetched.entry.mtime_ns, fetched.entry.mtime_ns))
        os.rename(staged, where)
        for session, path in self.journal.paths_of(number):
            if not self.is_on_disk(path, session):
                os.link(where, self.disk(path, session))

    # --- the uploader

    def upload(self, session: SessionId = SESSION) -> None:
        """Bring everything that is owed into the bucket."""
        for work in self.journal.all_work():
            if work.session != session:
                continue
            wanted = self.journal.wanted(work.key)
            if wanted is None:
                if self.journal.object(work.key) is not None:
                    self.bucket.delete(work.key, condition=Unconditional())
                    self.journal.drop_object(work.key)
            else:
                self._put(work.key, wanted.path, wanted.node.number, session)
            self.journal.finish_work(work.key, work.version)

    def _put(self, key: str, path: bytes, number: int, session: SessionId) -> None:
        where = self.disk(path, session)
        status = os.lstat(where)
        body = b""
        if stat.S_ISLNK(status.st_mode):
            body = os.readlink(where)
        elif stat.S_ISREG(status.st_mode):
            body = Path(os.fsdecode(where)).read_bytes()
        digest = hashlib.sha256(body).hexdigest()
        write_id = self.clock.unique_id()
        token = put(
            self.bucket,
            key.removeprefix(keys.session_prefix(session)),
            body,
            mode=status.st_mode,
            mtime_ns=status.st_mtime_ns,
            write_id=write_id,
            session=session,
        )
        self.journal.put_object(
            KnownObject(
                key,
                number,
                token,
                write_id,
                digest,
                len(body),
                status.st_mode,
                1000,
                1001,
                status.st_mtime_ns,
                "l",
            )
        )
        if stat.S_ISREG(status.st_mode):
            self.journal.update_node(
                number,
                sha256=digest,
                clean_size=status.st_size,
                clean_mtime_ns=status.st_mtime_ns,
                clean_ctime_ns=status.st_ctime_ns,
            )

    def commit(
        self,
        session: SessionId = SESSION,
        *,
        recovery: Literal["live", "committed"] = "live",
        removed: bool = False,
        epoch: int = 0,
    ) -> Manifest:
        """Commit what was uploaded, as the owner does."""
        row = self.journal.session(session)
        assert row is not None
        entries = () if removed else tuple(self._entries(session, row.root))
        manifest = Manifest(
            session,
            row.generation + 1,
            entries,
            row.generation,
            recovery=recovery,
            removed=removed,
            epoch=epoch,
        )
        put_manifest(self.bucket, manifest)
        token = self.bucket.head(keys.manifest_key(session)).token
        self.journal.update_session(
            session, generation=manifest.generation, manifest_token=token, changed=False, written=False
        )
        return manifest

    def _entries(self, session: SessionId, root: int) -> Iterator[ManifestEntry]:
        groups: dict[int, int] = {}
        for path, number, is_directory in self.journal.below(root, b""):
            key = keys.live_key(session, path, is_directory=is_directory)
            known = self.journal.object(key) if key is not None else None
            if known is None:
                continue
            where = self.disk(path, session)
            group = 0
            if not is_directory and len(self.journal.names_of(number)) > 1:
                group = groups.setdefault(number, len(groups) + 1)
            yield ManifestEntry(
                path,
                known.mode,
                known.size_bytes,
                "" if is_directory else known.sha256,
                known.token,
                known.uid,
                known.gid,
                known.mtime_ns,
                {} if stat.S_ISLNK(known.mode) else _xattrs(where),
                os.readlink(where) if stat.S_ISLNK(known.mode) else b"",
                group,
            )

    def read(self, path: bytes) -> bytes:
        """Read a file of the working copy."""
        return Path(os.fsdecode(self.disk(path))).read_bytes()

    def write(self, path: bytes, body: bytes) -> None:
        """Rewrite a file of the working copy in place."""
        Path(os.fsdecode(self.disk(path))).write_bytes(body)

    def is_on_disk(self, path: bytes = b"", session: str = SESSION) -> bool:
        """Whether the working copy has a path."""
        return os.path.lexists(self.disk(path, session))

    def staged(self) -> list[str]:
        """Names in staging."""
        return sorted(os.listdir(self.layout.staging))
