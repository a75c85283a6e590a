"""The local files that a checkpoint is made of: found, opened and summed.

Invariants:

* Only regular files are taken, and no symlink is followed at any depth: what is neither is refused, not left out.
* A file is as long as it was when it was opened. What is added meanwhile belongs to the next checkpoint; one that became shorter is refused.
* A file continues what is known of it when it begins with all of those bytes, tail included. Else it was rewritten.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

from sessionfs.formats.archive.records import BLOCK_BYTES, MAX_FILES, ArchivedFile, crc
from sessionfs.model.errors import (
    ConflictError,
    InvalidRequestError,
    LocalDiskError,
    NotFoundError,
    TooLargeError,
)
from sessionfs.sessions.port import checked_path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: to open a named pipe must not wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MISSING = {errno.ENOENT}
_ANOTHER_KIND = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}


@dataclass(frozen=True, slots=True)
class Source:
    """A file that is open for reading.

    Attributes:
        path: Relative to the directory.
        descriptor: Closed with the stack that was given to `open_sources`.
        size_bytes: Length when it was opened.
        is_private: Its mode lets nobody but the owner read or write it.
    """

    path: str
    descriptor: int
    size_bytes: int
    is_private: bool

    def read(self, start: int, length: int) -> bytes:
        """Read bytes that were there when it was opened.

        Raises:
            ConflictError: The file is shorter by now.
            LocalDiskError: The disk refused.
        """
        pieces: list[bytes] = []
        while length:
            try:
                piece = os.pread(self.descriptor, length, start)
            except OSError as error:
                raise _disk_error(error, self.path) from error
            if not piece:
                raise ConflictError(f"{self.path!r} was cut while it was read", remedy="publish again")
            pieces.append(piece)
            start, length = start + len(piece), length - len(piece)
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Summed:
    """What a file held when it was read.

    Attributes:
        source: The file.
        continues: What is known of it and still its beginning; None for a new or rewritten file.
        sha256: Of the whole.
        block_crcs: As `ArchivedFile.block_crcs`.
        new_block_sums: sha256 of each complete block behind those of `continues`, in order.
        tail: What is behind the last complete block.
    """

    source: Source
    continues: ArchivedFile | None
    sha256: str
    block_crcs: bytes
    new_block_sums: tuple[bytes, ...]
    tail: bytes

    @property
    def is_unchanged(self) -> bool:
        """Whether it has the bytes that are known, and no other."""
        return self.continues is not None and self.continues.size == self.source.size_bytes


def find_paths(directory: str) -> list[str]:
    """Give the paths of all files below a directory.

    Raises:
        TooLargeError: There are more than `MAX_FILES`.
        NotFoundError: There is no such directory.
        LocalDiskError: It cannot be listed.
    """
    found: list[str] = []
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(os.path.join(directory, below)) as entries:
                for entry in entries:
                    path = f"{below}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{path}/")
                    else:
                        found.append(path)
        except OSError as error:
            raise _disk_error(error, os.path.join(directory, below)) from error
        _check_number(found)
    return found


def checked_paths(paths: Sequence[str]) -> list[str]:
    """Give paths in the order of a manifest.

    Raises:
        InvalidRequestError: One is no path of a session's file, is no valid UTF-8, or is there twice.
        TooLargeError: There are more than `MAX_FILES`.
    """
    _check_number(paths)
    for path in paths:
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequestError(f"path {path!r} is no valid UTF-8") from None
        checked_path(path)
    ordered = sorted(paths, key=lambda path: path.split("/"))
    twice = [path for path, after in pairwise(ordered) if path == after]
    if twice:
        raise InvalidRequestError(f"path {twice[0]!r} is there twice")
    return ordered


def open_sources(directory: str, paths: Sequence[str], closing: ExitStack) -> list[Source]:
    """Open files until a stack is closed.

    Args:
        directory: Where they are.
        paths: As `checked_paths` gives them.
        closing: Closes what was opened, also when this fails.

    Raises:
        InvalidRequestError: One is no regular file, or below a symlink.
        NotFoundError: One does not exist.
        LocalDiskError: One cannot be opened.
    """
    sources: list[Source] = []
    for path in paths:
        source = _open(directory, path)
        closing.callback(os.close, source.descriptor)
        sources.append(source)
    return sources


def sum_source(source: Source, known: ArchivedFile | None, check_cancelled: Callable[[], None]) -> Summed:
    """Read a file once, and say what it holds.

    Args:
        source: The file.
        known: What an earlier checkpoint has under its path, None for nothing.
        check_cancelled: Called between pieces; what it raises ends the reading.

    Raises:
        ConflictError: The file is shorter by now.
        LocalDiskError: The disk refused.
    """
    if known is not None and known.size > source.size_bytes:
        known = None
    digest = hashlib.sha256()
    crcs: list[bytes] = []
    new_sums: list[bytes] = []
    tail = b""
    for index, start in enumerate(range(0, source.size_bytes, BLOCK_BYTES)):
        check_cancelled()
        body = source.read(start, min(BLOCK_BYTES, source.size_bytes - start))
        if known is not None and start < known.size <= start + len(body):
            prefix = digest.copy()
            prefix.update(memoryview(body)[: known.size - start])
            if prefix.hexdigest() != known.sha256:
                return sum_source(source, None, check_cancelled)
        digest.update(body)
        if len(body) < BLOCK_BYTES:
            tail = body
            continue
        crcs.append(crc(body))
        if known is None or index >= known.blocks:
            new_sums.append(hashlib.sha256(body).digest())
    return Summed(source, known, digest.hexdigest(), b"".join(crcs), tuple(new_sums), tail)


def _open(directory: str, path: str) -> Source:
    *above, name = path.split("/")
    try:
        parent = os.open(directory, _DIRECTORY)
        try:
            for component in above:
                below = os.open(component, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
                parent = below
            descriptor = os.open(name, _FILE, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        if error.errno in _ANOTHER_KIND:
            raise InvalidRequestError(f"{path!r} is no regular file, or below a symlink") from None
        raise _disk_error(error, path) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise InvalidRequestError(f"{path!r} is no regular file")
    return Source(path, descriptor, status.st_size, not status.st_mode & 0o077)


def _check_number(paths: Sequence[str]) -> None:
    if len(paths) > MAX_FILES:
        raise TooLargeError(f"a checkpoint has at most {MAX_FILES} files, here are more")


def _disk_error(error: OSError, path: str) -> NotFoundError | LocalDiskError:
    if error.errno in _MISSING:
        return NotFoundError(f"there is no {path!r}")
    return LocalDiskError(f"{path!r} cannot be read: {error.strerror}", errno_number=error.errno or 0)
