"""A store, hosts with an archive in it, and their files."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from sessionfs.formats.archive.records import BLOCK_BYTES, ManifestRecord, decode_manifest
from sessionfs.model.clock import SystemClock
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import TrioStore
from sessionfs.sessions.archive.archive import Archive, NoteCheckpoint
from sessionfs.sessions.archive.stored_objects import StoredObjects
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Unconditional
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore

CLOCK = SystemClock()
SETTINGS = ReplicationSettings(retry_minimum_seconds=0, retry_maximum_seconds=0)
SESSION = "s1"


def objects_in(store: ObjectStore) -> StoredObjects:
    return StoredObjects(TrioStore(store, CLOCK, SETTINGS), CLOCK, SETTINGS)


class Host:
    """A host with files of a session, and an archive in a store that other hosts may use too."""

    def __init__(
        self,
        directory: Path,
        store: ObjectStore,
        *,
        note_checkpoint: NoteCheckpoint | None = None,
        is_forgetful: bool = False,
    ) -> None:
        self.files = directory / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self.notes = directory / "state" / SESSION / "uploaded.json"
        self.restored = directory / "restored"
        self.archive = Archive(
            objects_in(store),
            CLOCK,
            state_directory=None if is_forgetful else str(directory / "state"),
            note_checkpoint=note_checkpoint,
        )

    def write(self, path: str, body: bytes) -> None:
        (self.files / path).parent.mkdir(parents=True, exist_ok=True)
        (self.files / path).write_bytes(body)

    def append(self, path: str, tail: bytes) -> None:
        with (self.files / path).open("ab") as file:
            file.write(tail)

    def contents(self, directory: Path | None = None) -> dict[str, bytes]:
        root = directory or self.files
        return {
            path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
        }

    async def publish(self) -> str:
        return (await self.archive.publish(SESSION, str(self.files))).id

    async def restore(self, checkpoint: str = "") -> dict[str, bytes]:
        """Restore into a fresh directory, and give what is there."""
        target = self.restored.with_name(f"restored-{CLOCK.unique_id()}")
        await self.archive.restore(SESSION, str(target), checkpoint=checkpoint)
        return self.contents(target)


class World:
    """One store, counted, and a first host."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = FaultyStore(MemoryStore())
        self.host = self.new_host("first")

    def new_host(self, name: str, *, note_checkpoint: NoteCheckpoint | None = None) -> Host:
        return Host(self.directory / name, self.store, note_checkpoint=note_checkpoint)

    def sent(self) -> Counter[str]:
        """Count the puts since the last call, by kind of object."""
        kinds = Counter(key.split("/")[3] for method, key in self.store.calls if method == "put")
        self.store.calls.clear()
        return kinds

    def listed(self) -> list[str]:
        return sorted(stat.key for page in self.store.inner.list_all("archive/") for stat in page.objects)

    def body(self, key: str) -> bytes:
        with self.store.inner.get(key, byte_range=None, expected=None) as body:
            return body.read()

    def overwrite(self, key: str, body: bytes) -> None:
        self.store.inner.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())

    def manifest(self, checkpoint: str) -> ManifestRecord:
        key = f"archive/sessions/{SESSION}/checkpoints/{checkpoint}"
        return decode_manifest(self.body(key), key)

    def generation(self, checkpoint: str, path: str) -> str:
        return next(file.generation for file in self.manifest(checkpoint).files if file.path == path)


def blocks(number: int) -> bytes:
    """Give bytes of a number of complete blocks, no two alike."""
    return os.urandom(number * BLOCK_BYTES)
