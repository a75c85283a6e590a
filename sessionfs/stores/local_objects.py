"""Objects of a directory store as files: tokens, metadata in extended attributes, directory markers, disk errors.

A file object keeps its metadata in ``user.sessionfs.meta.<name>``, ``user.sessionfs.content-type`` and
``user.sessionfs.content-encoding``; a directory that is a marker keeps all of it in the one attribute ``user.sessionfs.marker``
(JSON), because one attribute is replaced whole or not at all. A directory without it is no object. While something is added to a file in place,
``user.sessionfs.appending`` says how long it was: readers see no more, and the next writer takes away what a dead one left.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat as modes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from sessionfs.model.errors import (
    AccessError,
    CorruptDataError,
    InvalidKeyError,
    ObjectNotFoundError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.stores.base import ObjectMetadata, ObjectStat, Token
from sessionfs.stores.request_checks import collision

META_PREFIX = "user.sessionfs.meta."
CONTENT_TYPE = "user.sessionfs.content-type"
CONTENT_ENCODING = "user.sessionfs.content-encoding"
MARKER = "user.sessionfs.marker"
_APPENDING = "user.sessionfs.appending"
"""On a file to which something is being added: its length before."""

_NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR})
_NO_ATTRIBUTE = frozenset({errno.ENODATA, errno.EOPNOTSUPP})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class _Marker(msgspec.Struct, frozen=True):
    """The attribute of a directory that is a marker object."""

    token: str
    modified_ns: int
    user: dict[str, str] = {}
    content_type: str = "application/octet-stream"
    content_encoding: str = ""


def disk_error(error: OSError, what: str) -> SessionFSError:
    """Give the error of our tree for a disk that refused before anything changed."""
    text = f"{what}: {error.strerror}"
    if error.errno in _REFUSED:
        return AccessError(
            text, remedy="check the permissions of the store's directory and how its disk is mounted"
        )
    if error.errno == errno.ENAMETOOLONG:
        return InvalidKeyError(text)
    return UnavailableError(text)


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Give ``OSError`` inside the block its meaning.

    Raises:
        SessionFSError: As `disk_error`.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(error, what) from error


def is_missing(error: OSError) -> bool:
    """Whether the error says that the name does not exist."""
    return error.errno in _NOTHING_THERE


def stat_of_file(key: str, found: os.stat_result, metadata: ObjectMetadata | None) -> ObjectStat:
    """Describe a file object.

    Its token is made of inode, ctime, mtime and size. The time of change alone is too coarse (a tick of the kernel) to tell
    two puts apart when the inode number is used again; the store sets mtime to the nanosecond.
    """
    token = Token(f"{found.st_ino:x}-{found.st_ctime_ns:x}-{found.st_mtime_ns:x}-{found.st_size:x}")
    return ObjectStat(key, found.st_size, token, found.st_mtime_ns, metadata)


def open_file(path: str, key: str, access: int = os.O_RDONLY) -> int:
    """Open a file object, for reading unless told otherwise.

    Raises:
        ObjectNotFoundError: There is none: nothing, a directory, or something that is no plain file.
        OSError: The disk refused.
    """
    try:
        descriptor = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if is_missing(error) or error.errno in {errno.ELOOP, errno.ENXIO}:
            raise ObjectNotFoundError(f"no object {key!r}") from None
        raise
    if not modes.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ObjectNotFoundError(f"no object {key!r}")
    return descriptor


def write_metadata(descriptor: int, metadata: ObjectMetadata) -> None:
    """Put metadata on a file that no key names yet."""
    for name, value in metadata.user.items():
        os.setxattr(descriptor, META_PREFIX + name, value.encode("ascii"))
    os.setxattr(descriptor, CONTENT_TYPE, metadata.content_type.encode("ascii"))
    if metadata.content_encoding:
        os.setxattr(descriptor, CONTENT_ENCODING, metadata.content_encoding.encode("ascii"))


def is_private(metadata: ObjectMetadata) -> bool:
    """Whether nobody but the owner may read an object, by the ``mode`` in its user metadata (``formats/object_metadata``)."""
    mode = metadata.user.get("mode", "")
    return mode.isdigit() and modes.S_ISREG(int(mode)) and not int(mode) & 0o077


def forget_metadata(descriptor: int, user_names: Iterable[str]) -> None:
    """Take user metadata off a file; what it does not have is left out."""
    for name in user_names:
        _remove_attribute(descriptor, META_PREFIX + name)


def read_metadata(descriptor: int) -> ObjectMetadata:
    """Read a file's metadata; a file put there by hand has none."""
    user: dict[str, str] = {}
    content_type, content_encoding = ObjectMetadata().content_type, ""
    for name in os.listxattr(descriptor):
        if not name.startswith("user.sessionfs."):
            continue
        try:
            value = os.getxattr(descriptor, name).decode("utf-8", "replace")
        except OSError as error:
            if error.errno in _NO_ATTRIBUTE:
                continue  # an append took it off meanwhile
            raise
        if name.startswith(META_PREFIX):
            user[name[len(META_PREFIX) :]] = value
        elif name == CONTENT_TYPE:
            content_type = value
        elif name == CONTENT_ENCODING:
            content_encoding = value
    return ObjectMetadata(user, content_type, content_encoding)


def write_marker(path: str, metadata: ObjectMetadata, *, token: Token, modified_ns: int) -> None:
    """Make an existing directory a marker object, and see it on the disk."""
    marker = _Marker(
        token, modified_ns, dict(metadata.user), metadata.content_type, metadata.content_encoding
    )
    os.setxattr(path, MARKER, msgspec.json.encode(marker))
    sync_directory(path)


def read_marker(path: str, key: str) -> ObjectStat | None:
    """Describe a directory's marker; None when the directory is no object or does not exist.

    Raises:
        CorruptDataError: The attribute cannot be read.
        OSError: The disk refused.
    """
    try:
        raw = os.getxattr(path, MARKER, follow_symlinks=False)
    except OSError as error:
        if is_missing(error) or error.errno in _NO_ATTRIBUTE:
            return None
        raise
    try:
        marker = msgspec.json.decode(raw, type=_Marker)
    except msgspec.DecodeError as error:
        raise CorruptDataError(f"the marker of {key!r} cannot be read: {error}") from error
    metadata = ObjectMetadata(marker.user, marker.content_type, marker.content_encoding)
    return ObjectStat(key, 0, Token(marker.token), marker.modified_ns, metadata)


def sync_directory(path: str) -> None:
    """Flush a directory's entries; one that was removed meanwhile has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if is_missing(error):
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(root: str, path: str, key: str) -> None:
    """Make `path` and what is missing above it, each entry flushed.

    Raises:
        ConflictError: An object has the name of a directory that is wanted.
        OSError: The disk refused.
    """
    missing: list[str] = []
    current = path
    while current != root and not os.path.isdir(current):
        missing.append(current)
        current = os.path.dirname(current)
    for directory in reversed(missing):
        try:
            os.mkdir(directory)
        except (FileExistsError, NotADirectoryError):
            raise collision(key) from None
        sync_directory(os.path.dirname(directory))


def remove_empty_directories(root: str, path: str) -> None:
    """Remove a directory and the ones above it, as far as they are empty and no marker."""
    current = path
    while current != root:
        if read_marker(current, current) is not None:
            return
        try:
            os.rmdir(current)
        except OSError as error:
            if is_missing(error):
                current = os.path.dirname(current)
                continue
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
                return
            raise
        current = os.path.dirname(current)


def copy_bytes(source: int, target: int, size_bytes: int) -> None:
    """Copy the first bytes of a file to another's present position: by reference where the filesystem can.

    Raises:
        UnavailableError: The source is shorter than it was.
        OSError: The disk refused.
    """
    offset = 0
    while offset < size_bytes:
        try:
            copied = os.copy_file_range(source, target, size_bytes - offset, offset_src=offset)
        except OSError as error:
            if error.errno not in {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
                raise
            copied = _copy_piece(source, target, offset, size_bytes - offset)
        if copied == 0:
            raise UnavailableError("the file that is copied has become shorter")
        offset += copied


def write_all(descriptor: int, body: bytes) -> None:
    """Write every byte."""
    view = memoryview(body)
    while view:
        view = view[os.write(descriptor, view) :]


def write_behind(descriptor: int, tail: bytes, size_bytes: int, *, modified_ns: int) -> None:
    """Write every byte behind a file's end, or none; a writer that dies in between leaves a note of where the end was.

    Within one page the kernel does a write as a whole, whoever is killed: no note is needed.
    """
    is_noted = size_bytes % mmap.PAGESIZE + len(tail) > mmap.PAGESIZE
    if is_noted:
        os.setxattr(descriptor, _APPENDING, b"%d" % size_bytes)
    try:
        write_all(descriptor, tail)
        os.utime(descriptor, ns=(modified_ns, modified_ns))
        if is_noted:
            os.removexattr(descriptor, _APPENDING)
    except OSError:
        os.ftruncate(descriptor, size_bytes)
        _remove_attribute(descriptor, _APPENDING)
        raise


def undo_torn(descriptor: int) -> None:
    """Take away what a writer left that died while it added to a file; the store's lock is held."""
    noted = noted_size(descriptor)
    if noted is not None and noted < os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, noted)
    _remove_attribute(descriptor, _APPENDING)


def whole_status(descriptor: int) -> tuple[os.stat_result, int]:
    """Look at a file without waiting for whoever adds to it: its status, and its length without what is being added at this moment."""
    found = os.fstat(descriptor)
    while True:
        noted = noted_size(descriptor)
        if noted is not None:
            # Since the note nothing was taken away: the file is as long as it says, or longer.
            found = os.fstat(descriptor)
            return found, min(noted, found.st_size)
        # Nobody was adding at the moment between: of a length that is the same before and after, all is there.
        again = os.fstat(descriptor)
        if again.st_size == found.st_size:
            return again, again.st_size
        found = again


def noted_size(file: int | str) -> int | None:
    """Give the length without what is being added to a file, by descriptor or path; None while nothing is, and when it is gone."""
    try:
        noted = os.getxattr(file, _APPENDING)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTE or is_missing(error):
            return None
        raise
    return int(noted) if noted.isdigit() else None


def _remove_attribute(descriptor: int, name: str) -> None:
    try:
        os.removexattr(descriptor, name)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise


def _copy_piece(source: int, target: int, offset: int, size_bytes: int) -> int:
    piece = os.pread(source, min(size_bytes, 1 << 20), offset)
    write_all(target, piece)
    return len(piece)
