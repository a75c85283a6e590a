"""SQLite databases in a commit: each is imaged by SQLite itself, as it was just before the cut.

Order: a read transaction is pinned on every owed database that somebody may write, *before* the barrier (inside it, the mount answers nobody); after
the barrier the online backup copies what the transaction shows. A database in WAL mode goes on meanwhile; one with a rollback journal lets
its writers wait. The image stands alone, without side files, and has passed ``quick_check``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import structlog
import trio

from sessionfs.model.names import SessionId
from sessionfs.replication.commit.frozen_bytes import Measured
from sessionfs.replication.uploads.sqlite_image import DatabaseImages
from sessionfs.replication.uploads.stable_image import Image, Known, image_of_database, measure_image
from sessionfs.replication.uploads.working_files import SQLITE_MAGIC, Identity, WorkingFiles, identity_of
from sessionfs.working_copy.exclusions import SQLITE_SIDE_SUFFIXES
from sessionfs.working_copy.writers import has_writer

_WRITTEN_SUFFIXES = (b"-wal", b"-journal")
_log = structlog.get_logger("sessionfs.commit")


@dataclass(slots=True)
class DatabaseCut:
    """One database as a commit sees it. Close it.

    Attributes:
        session: Its session.
        path: Inside it.
        raw: The database file, open for reading.
        seen: How the file stood before the transaction was pinned.
        connection: The pinned transaction, None when it was copied or could not be pinned.
        image: A descriptor of the image, -1 until it is made.
        measured: The image's bytes, None until it is made.
        state: How the database stood before its transaction was pinned.
    """

    session: SessionId
    path: bytes
    raw: int
    seen: os.stat_result
    connection: sqlite3.Connection | None
    image: int = -1
    measured: Measured | None = None
    state: tuple[Identity | None, ...] = ()

    async def prepare(self, known: Known) -> Image | None:
        """Give the image to the uploader, with descriptors of its own."""
        return await trio.to_thread.run_sync(
            image_of_database, os.dup(self.image), os.dup(self.raw), self.seen, known
        )

    def close(self) -> None:
        """End the transaction, and let the files go."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
        for descriptor in (self.raw, self.image):
            if descriptor >= 0:
                os.close(descriptor)
        self.raw = self.image = -1


class Databases:
    """Finds, pins and images the databases that a commit must take.

    Args:
        files: The working copy.
        images: Talks to SQLite.
    """

    def __init__(self, files: WorkingFiles, images: DatabaseImages) -> None:
        self._files = files
        self._images = images
        self._imaged: dict[tuple[str, bytes], tuple[Identity | None, ...]] = {}

    async def pin(
        self, session: SessionId, paths: Iterable[bytes], owed: Collection[bytes]
    ) -> dict[bytes, DatabaseCut]:
        """Pin every database among changing files.

        Args:
            session: The session.
            paths: Of files that may have changed, inside the session.
            owed: Those of them that are owed; of the others, one that did not move since its last image is left out.

        Returns:
            By path; each must be closed.
        """
        found = await trio.to_thread.run_sync(self._find, session, list(paths), owed)
        for cut in found.values():
            cut.state = await trio.to_thread.run_sync(self._state, cut)
            try:
                cut.connection = await trio.to_thread.run_sync(self._images.pin, session, cut.path)
            except sqlite3.Error as problem:
                # Not SQLite's after all, or locked: then its bytes are taken as any file's, or once more.
                _log.warning("database not pinned", path=os.fsdecode(cut.path), problem=str(problem))
        return found

    async def find(self, session: SessionId, paths: Iterable[bytes]) -> list[bytes]:
        """Name the databases among owed files that `pin` would pin."""
        names = list(paths)
        found = await trio.to_thread.run_sync(self._find, session, names, names)
        for cut in found.values():
            cut.close()
        return list(found)

    async def has_moved(self, session: SessionId, paths: Iterable[bytes]) -> bool:
        """Whether one of these files is a database in which something happened since its last image: not every write has a record of its own."""
        found = await trio.to_thread.run_sync(self._find, session, list(paths), ())
        for cut in found.values():
            cut.close()
        return bool(found)

    async def image(self, cut: DatabaseCut) -> None:
        """Make the image of a database.

        Raises:
            sqlite3.Error: SQLite could not copy it.
            OSError: This host's disk refused.
        """
        await trio.to_thread.run_sync(self._image, cut)

    def _find(
        self, session: SessionId, paths: list[bytes], owed: Collection[bytes]
    ) -> dict[bytes, DatabaseCut]:
        found: dict[bytes, DatabaseCut] = {}
        for path in dict.fromkeys(paths):
            cut = self._look(session, path)
            if cut is not None and path not in owed and self._imaged.get((session, path)) == self._state(cut):
                # Open, and nothing happened to it since the last image.
                cut.close()
            elif cut is not None:
                found[path] = cut
        return found

    def _state(self, cut: DatabaseCut) -> tuple[Identity | None, ...]:
        """What moves whenever the database does: the file, its log and its journal."""
        sides = (self._files.status(cut.session, cut.path + suffix) for suffix in _WRITTEN_SUFFIXES)
        return (identity_of(cut.seen), *(identity_of(side) if side is not None else None for side in sides))

    def _look(self, session: SessionId, path: bytes) -> DatabaseCut | None:
        """A file that is a database in use, or one with something beside it; one at rest is a file like any other."""
        try:
            descriptor = self._files.open(session, path)
        except OSError:
            return None
        keep = False
        try:
            if os.pread(descriptor, len(SQLITE_MAGIC), 0) != SQLITE_MAGIC:
                return None
            if not has_writer(descriptor) and not self._has_side(session, path):
                return None
            keep = True
            return DatabaseCut(session, path, descriptor, os.fstat(descriptor), None)
        except OSError:
            return None
        finally:
            if not keep:
                os.close(descriptor)

    def _has_side(self, session: SessionId, path: bytes) -> bool:
        sides = (self._files.status(session, path + suffix) for suffix in SQLITE_SIDE_SUFFIXES)
        return any(side is not None and side.st_size for side in sides)

    def _image(self, cut: DatabaseCut) -> None:
        if cut.connection is not None:
            source, cut.connection = cut.connection, None
            cut.image = self._images.copy_pinned(source, cut.seen.st_size)
        else:
            made = self._images.take(cut.session, cut.path, cut.raw, in_use=False)
            if isinstance(made, int):
                cut.image = made
            elif made is None:
                cut.image = os.dup(cut.raw)
            else:
                raise sqlite3.OperationalError(made.reason)
        cut.measured = Measured(*measure_image(cut.image))

    def note_committed(self, cut: DatabaseCut) -> None:
        """A generation has the image: until the database moves, no other is needed."""
        self._imaged[cut.session, cut.path] = cut.state
