"""Brings a checkpoint back: beside the directory, verified, then renamed into its place.

Invariants:

* The directory is absent or empty before, and whole after; a restore that fails or is cancelled leaves it as it was. (One whose process is
  killed may leave a directory ``.restoring-...`` beside it, which nothing reads.)
* No byte is shown that was not verified: each block and tail as it comes, each file as a whole at the end.
* Whatever a manifest says, nothing is written outside the new directory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from sessionfs.formats.archive.records import BLOCK_BYTES, ArchivedFile, ManifestRecord
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    LocalDiskError,
    NotFoundError,
)
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.sessions.archive import archive_keys
from sessionfs.sessions.archive.objects import Objects
from sessionfs.sessions.port import checked_path

REQUESTS_AT_ONCE = 8

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_BYTES = 1 << 20
_OCCUPIED = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}


@dataclass(frozen=True, slots=True)
class _Target:
    file: ArchivedFile
    descriptor: int


@dataclass(frozen=True, slots=True)
class _Piece:
    target: _Target
    index: int


def checked_target(directory: str) -> str:
    """Check that a directory can be restored to; its absolute path is given.

    Raises:
        AlreadyExistsError: Something is there that is no empty directory.
        NotFoundError: The directory above is missing.
        LocalDiskError: It cannot be looked at.
    """
    directory = os.path.abspath(directory)
    with _disk_errors(directory):
        if not os.path.isdir(os.path.dirname(directory)):
            raise NotFoundError(f"there is no directory {os.path.dirname(directory)!r}")
        if os.path.lexists(directory) and (
            os.path.islink(directory) or not os.path.isdir(directory) or os.listdir(directory)
        ):
            raise _occupied(directory)
    return directory


def check_paths(manifest: ManifestRecord, name: str) -> None:
    """Check that every path of a manifest can be a file below a directory.

    Raises:
        CorruptDataError: One cannot.
    """
    for file in manifest.files:
        try:
            checked_path(file.path)
        except InvalidRequestError as error:
            raise CorruptDataError(f"{name} has a path that no session has: {error}") from None


class Restoration:
    """One restore of one checkpoint.

    Args:
        objects: The archive's objects.
        clock: Names the directory beside.
        manifest: The checkpoint; its paths were checked.
        directory: Absolute; it was checked.
    """

    def __init__(self, objects: Objects, clock: Clock, manifest: ManifestRecord, directory: str) -> None:
        self._objects = objects
        self._manifest = manifest
        self._directory = directory
        self._beside = os.path.join(os.path.dirname(directory), f".restoring-{clock.unique_id()}")

    async def restore(self) -> None:
        """Fetch, verify, and rename.

        Raises:
            AlreadyExistsError: The directory was filled meanwhile.
            CorruptDataError: An object is missing or wrong.
            LocalDiskError: The disk refused.
            UnavailableError, AccessError: The store did not give an object.
        """
        targets: list[_Target] = []
        try:
            await trio.to_thread.run_sync(self._make_files, targets)
            pieces = [_Piece(target, index) for target in targets for index in _indices(target.file)]
            await for_each(pieces, self._fetch, limit=REQUESTS_AT_ONCE)
            await trio.to_thread.run_sync(self._verify, targets, trio.from_thread.check_cancelled)
            await trio.to_thread.run_sync(self._show)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._clean_up, targets)

    def _make_files(self, targets: list[_Target]) -> None:
        with _disk_errors(self._beside):
            os.mkdir(self._beside)
            for file in self._manifest.files:
                path = os.path.join(self._beside, file.path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                mode = 0o600 if file.is_private else 0o666
                targets.append(_Target(file, os.open(path, _NEW_FILE, mode)))

    async def _fetch(self, piece: _Piece) -> None:
        file, session = piece.target.file, self._manifest.session
        is_tail = piece.index == file.blocks
        if is_tail:
            key = archive_keys.tail_key(session, file.tail_checkpoint, file.generation)
        else:
            key = archive_keys.block_key(session, file.generation, piece.index)
        try:
            body = await self._objects.get(key)
        except FileNotFoundError:
            raise CorruptDataError(f"{key} is missing, a checkpoint needs it for {file.path!r}") from None
        is_right = len(body) == file.tail_bytes if is_tail else file.is_block(piece.index, body)
        if not is_right:
            raise CorruptDataError(f"{key} has not the bytes that {file.path!r} had")
        await trio.to_thread.run_sync(self._write, piece.target.descriptor, body, piece.index * BLOCK_BYTES)

    def _write(self, descriptor: int, body: bytes, start: int) -> None:
        with _disk_errors(self._beside):
            view = memoryview(body)
            while view:
                written = os.pwrite(descriptor, view, start)
                view, start = view[written:], start + written

    def _verify(self, targets: list[_Target], check_cancelled: Callable[[], None]) -> None:
        for target in targets:
            digest = hashlib.sha256()
            with _disk_errors(self._beside):
                for start in range(0, target.file.size, _READ_BYTES):
                    check_cancelled()
                    digest.update(os.pread(target.descriptor, _READ_BYTES, start))
                os.fsync(target.descriptor)
            if digest.hexdigest() != target.file.sha256:
                raise CorruptDataError(f"{target.file.path!r} has not the bytes that it had")

    def _show(self) -> None:
        with _disk_errors(self._directory):
            for below, _, _ in os.walk(self._beside):
                _sync(below)
            if os.path.lexists(self._directory):
                os.chmod(self._beside, stat.S_IMODE(os.lstat(self._directory).st_mode))
            try:
                os.rename(self._beside, self._directory)
            except OSError as error:
                if error.errno in _OCCUPIED:
                    raise _occupied(self._directory) from None
                raise
            _sync(os.path.dirname(self._directory))

    def _clean_up(self, targets: list[_Target]) -> None:
        for target in targets:
            os.close(target.descriptor)
        shutil.rmtree(self._beside, ignore_errors=True)


def _indices(file: ArchivedFile) -> range:
    """Number the blocks of a file, and its tail behind them."""
    return range(file.blocks + (1 if file.tail_bytes else 0))


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _occupied(directory: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"{directory} is no empty directory", remedy="restore into another")


@contextmanager
def _disk_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalDiskError(
            f"{path} cannot be restored: {error.strerror}", errno_number=error.errno or 0
        ) from error
