"""A working copy, its journal and an uploader over a memory store: operations are done on the disk and told as records."""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import trio

from sessionfs.formats import object_metadata
from sessionfs.formats.intent_records import Intent, Operation, Outcome
from sessionfs.model import keys
from sessionfs.model.clock import SystemClock
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.authority import Authority
from sessionfs.replication.uploads.stable_image import ImageGate
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata, ObjectStat, ObjectStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import Fault, FaultyStore, Pass
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout
from sessionfs.working_copy.record_application import RecordApplication
from sessionfs.working_copy.upload_journal import UploadJournal

SESSION = SessionId("s1")
FAST = ReplicationSettings(
    upload_delay_seconds=0.0,
    max_upload_delay_seconds=0.0,
    retry_minimum_seconds=0.01,
    retry_maximum_seconds=0.05,
    access_retry_seconds=0.05,
    copy_minimum_bytes=1000,
    append_minimum_bytes=1000,
    concurrent_uploads=4,
)
_HOUR_NS = 3_600_000_000_000


class LaterClock(SystemClock):
    """An hour ahead of the disk's times: no change is of this very tick."""

    def wall_ns(self) -> int:
        return super().wall_ns() + _HOUR_NS


async def until(condition: Callable[[], object]) -> None:
    """Return when something has become true."""
    for _ in range(10_000):
        if condition():
            return
        await trio.sleep(0.001)
    raise AssertionError("it never became true")


class FileFaults(FaultyStore):
    """Planned faults hit requests about files: directories change with them, in no fixed order."""

    def _next(self, method: str, key: str) -> Fault:
        if key.endswith("/"):
            self.calls.append((method, key))
            return Pass()
        return super()._next(method, key)


class World:
    """One host.

    Args:
        directory: Where its state is.
        settings: The uploader's.
        store: Shared with other hosts; a new one when None.

    Attributes:
        authority: Who says what may be sent; None when nobody else writes.
    """

    authority: Authority | None = None

    def __init__(
        self,
        directory: Path,
        *,
        settings: ReplicationSettings = FAST,
        store: ObjectStore | None = None,
        gate: ImageGate | None = None,
        mount_point: str = "",
    ) -> None:
        self.clock = LaterClock()
        self.layout = StateLayout(str(directory / "state"))
        self.layout.create()
        self.settings = settings
        self.memory = store or MemoryStore()
        self.store = FileFaults(self.memory)
        self.gate = gate
        self.mount_point = mount_point
        self.journal = UploadJournal(self.layout.journal, clock=self.clock)
        weakref.finalize(self, self.journal.close)
        self.application = RecordApplication(
            self.journal,
            self.layout,
            exclusions=Exclusions(settings.exclude_globs),
            on_delete=lambda *_: None,
        )
        self._sequence = 0
        self.start()
        if self.journal.session(SESSION) is None:
            os.mkdir(self.path(b""))
            self.tell(
                Operation.MKDIR,
                parent=ROOT_NUMBER,
                name=SESSION.encode(),
                mode=0o755,
                made=self.status(b"").st_ino,
            )

    def start(self) -> None:
        """Begin a process: nothing but the journal and the disk is left of the one before."""
        self.trio_store = TrioStore(self.store, self.clock, self.settings)
        self.uploader = Uploader(
            self.journal,
            self.trio_store,
            self.layout,
            self.settings,
            self.clock,
            Exclusions(self.settings.exclude_globs),
            image_gate=self.gate,
            mount_point=self.mount_point,
            raise_event=self.journal.add_event,
            authority=self.authority,
        )

    # --- running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.uploader.run)
            yield
            nursery.cancel_scope.cancel()

    async def settle(self, seconds: float = 10.0) -> None:
        """Run until nothing is owed."""
        async with self.running():
            left = await self.uploader.drain(seconds)
        assert left == 0, [(row.key, row.reason, row.state) for row in self.journal.all_work()]

    # --- the disk and the log

    def path(self, path: bytes) -> bytes:
        whole = os.path.join(os.fsencode(self.layout.sessions), SESSION.encode(), path)
        return whole.rstrip(b"/")

    def status(self, path: bytes) -> os.stat_result:
        return os.lstat(self.path(path))

    def number(self, path: bytes) -> int:
        number = self.journal.resolve(SESSION, path)
        assert number is not None, path
        return number

    def tell(self, operation: Operation, *, made: int = 0, **fields: object) -> None:
        self._sequence += 1
        values = {"wall_ns": self.clock.wall_ns(), **fields}
        intent = Intent(self._sequence, operation, **values)  # type: ignore[arg-type]
        self.application.apply([(intent, Outcome(self._sequence, 0, made or intent.number))], self._sequence)
        self.uploader.wake()

    def _place(self, path: bytes) -> tuple[int, bytes]:
        parent, _, name = path.rpartition(b"/")
        return self.number(parent), name

    def write(self, path: bytes, body: bytes) -> None:
        """Make or rewrite a file."""
        is_new = not os.path.lexists(self.path(path))
        if not is_new and not self.is_here(path):
            self.fetch(path)
        with open(self.path(path), "r+b" if not is_new else "wb") as file:
            file.truncate(0)
            file.write(body)
        self._told_write(path, is_new=is_new)

    def append(self, path: bytes, tail: bytes) -> None:
        with open(self.path(path), "ab") as file:
            file.write(tail)
        self._told_write(path, is_new=False)

    def _told_write(self, path: bytes, *, is_new: bool) -> None:
        if is_new:
            parent, name = self._place(path)
            status = self.status(path)
            self.tell(Operation.CREATE, parent=parent, name=name, mode=status.st_mode, made=status.st_ino)
        else:
            self.tell(Operation.WRITTEN, number=self.number(path))

    def make_directory(self, path: bytes) -> None:
        os.mkdir(self.path(path))
        parent, name = self._place(path)
        self.tell(Operation.MKDIR, parent=parent, name=name, mode=0o755, made=self.status(path).st_ino)

    def make_symlink(self, path: bytes, target: bytes) -> None:
        os.symlink(target, self.path(path))
        parent, name = self._place(path)
        self.tell(Operation.SYMLINK, parent=parent, name=name, made=self.status(path).st_ino)

    def make_fifo(self, path: bytes) -> None:
        os.mkfifo(self.path(path))
        parent, name = self._place(path)
        self.tell(
            Operation.MKNOD,
            parent=parent,
            name=name,
            mode=stat.S_IFIFO | 0o644,
            made=self.status(path).st_ino,
        )

    def link(self, path: bytes, new: bytes) -> None:
        parent, name = self._place(new)
        if self.is_here(path):
            os.link(self.path(path), self.path(new))
        self.tell(Operation.LINK, number=self.number(path), new_parent=parent, new_name=name)

    def unlink(self, path: bytes) -> None:
        parent, name = self._place(path)
        if self.is_here(path):
            os.unlink(self.path(path))
        self.tell(Operation.UNLINK, number=self.number(path), parent=parent, name=name)

    def remove_directory(self, path: bytes) -> None:
        parent, name = self._place(path)
        os.rmdir(self.path(path))
        self.tell(Operation.RMDIR, number=self.number(path), parent=parent, name=name)

    def rename(self, path: bytes, new: bytes) -> None:
        parent, name = self._place(path)
        new_parent, new_name = self._place(new)
        number = self.number(path)
        if self.is_here(path):
            os.rename(self.path(path), self.path(new))
        elif os.path.lexists(self.path(new)):
            os.unlink(self.path(new))
        self.tell(
            Operation.RENAME,
            number=number,
            parent=parent,
            name=name,
            new_parent=new_parent,
            new_name=new_name,
        )

    def exchange(self, path: bytes, other: bytes) -> None:
        parent, name = self._place(path)
        new_parent, new_name = self._place(other)
        first, second, third = self.path(path), self.path(other), self.path(b".exchange")
        for source, target in ((first, third), (second, first), (third, second)):
            if os.path.lexists(source):
                os.rename(source, target)
        self.tell(
            Operation.EXCHANGE,
            number=self.number(path),
            parent=parent,
            name=name,
            new_parent=new_parent,
            new_name=new_name,
        )

    def change_mode(self, path: bytes, mode: int) -> None:
        if self.is_here(path):
            os.chmod(self.path(path), mode)
        self.tell(Operation.SETATTR, number=self.number(path), mode=mode)

    # --- bytes that are only in the bucket

    def is_here(self, path: bytes) -> bool:
        node = self.journal.node(self.number(path))
        assert node is not None
        return node.present

    @contextmanager
    def _keeping_time_above(self, path: bytes) -> Iterator[None]:
        above = self.path(path.rpartition(b"/")[0])
        before = os.stat(above)
        yield
        os.utime(above, ns=(before.st_atime_ns, before.st_mtime_ns))

    def evict(self, path: bytes) -> None:
        """Remove a clean file's bytes from this disk, as the daemon would."""
        number = self.number(path)
        # The daemon never gives a number twice; here the inode is kept so that the disk does not either.
        os.link(self.path(path), os.path.join(self.layout.trash, str(number)))
        for _, name in self.journal.paths_of(number):
            with self._keeping_time_above(name):
                os.unlink(self.path(name))
        self.tell(Operation.EVICTED, number=number)

    def fetch(self, path: bytes) -> None:
        """Bring them back."""
        number = self.number(path)
        node = self.journal.node(number)
        assert node is not None
        os.unlink(os.path.join(self.layout.trash, str(number)))
        known = next(known for known in self.journal.objects_of(number) if known.sha256 == node.sha256)
        with self.memory.get(known.key, byte_range=None, expected=None) as body:
            raw = body.read()
        names = [name for _, name in self.journal.paths_of(number)]
        with self._keeping_time_above(names[0]):
            Path(os.fsdecode(self.path(names[0]))).write_bytes(raw)
        os.chmod(self.path(names[0]), stat.S_IMODE(node.mode))
        os.utime(self.path(names[0]), ns=(node.mtime_ns, node.mtime_ns))
        for name in names[1:]:
            with self._keeping_time_above(name):
                os.link(self.path(names[0]), self.path(name))
        self.tell(Operation.FETCHED, number=number)

    # --- what the bucket has

    def key(self, path: bytes, *, is_directory: bool = False) -> str:
        key = keys.live_key(SESSION, path, is_directory=is_directory)
        assert key is not None
        return key

    def stat(self, path: bytes) -> ObjectStat:
        return self.memory.head(self.key(path))

    def body(self, key: str) -> bytes:
        with self.memory.get(key, byte_range=None, expected=None) as body:
            return body.read()

    def bucket(self) -> dict[str, bytes]:
        """Live objects with their bytes."""
        return {
            stat.key: self.body(stat.key)
            for page in self.memory.list_all(keys.session_prefix(SESSION))
            for stat in page.objects
        }

    def kept_aside(self) -> list[bytes]:
        return [
            self.body(stat.key)
            for page in self.memory.list_all(keys.conflicts_prefix(SESSION))
            for stat in page.objects
        ]

    def put_foreign(self, path: bytes, body: bytes) -> None:
        """Another tool writes an object, whatever is there."""
        key = self.key(path)
        if key in self.bucket():
            stat = self.memory.head(key)
            self.memory.delete(key, condition=_match(stat))
        self.memory.put(key, body, condition=IfAbsent(), metadata=ObjectMetadata())

    def events(self, name: str) -> list[dict[str, str | int | float | bool]]:
        return [event.fields for event in self.journal.events(0, 10_000) if event.name == name]

    def calls(self, method: str) -> list[str]:
        return [key for called, key in self.store.calls if called == method]

    def assert_equal(self, tree: dict[bytes, bytes | None]) -> None:
        """Compare the bucket with a tree: paths with bytes, None for directories."""
        wanted = {self.key(path, is_directory=body is None): body or b"" for path, body in tree.items()}
        wanted[keys.session_prefix(SESSION)] = b""
        assert self.bucket() == wanted
        for path, body in tree.items():
            stat_ = self.memory.head(self.key(path, is_directory=body is None))
            self._assert_attributes(path, stat_, body)

    def _assert_attributes(self, path: bytes, found: ObjectStat, body: bytes | None) -> None:
        assert found.metadata is not None
        user = found.metadata.user
        attributes = object_metadata.decode_attributes(user, modified_ns=0, is_directory=body is None)
        assert user["sessionfs-sha256"] == hashlib.sha256(body or b"").hexdigest()
        node = self.journal.node(self.number(path))
        assert node is not None
        if node.present:
            status = self.status(path)
            assert (attributes.mode, attributes.uid, attributes.gid, attributes.mtime_ns) == (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                status.st_mtime_ns,
            ), path
        else:
            assert (attributes.mode, attributes.mtime_ns) == (node.mode, node.mtime_ns), path


def _match(found: ObjectStat) -> IfMatch:
    return IfMatch(found.token)
