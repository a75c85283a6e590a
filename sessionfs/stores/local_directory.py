"""A store in a local directory: keys are files below it, so that ``ls`` and ``cp`` work on it.

Every change is made whole beside the objects and appears by one ``rename``, under a lock file that threads and processes
share: condition, rename and the new token are one step. Bytes and names are on the disk when a call returns.
"""

from __future__ import annotations

import copy as shallow
import os
import stat as modes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import (
    BucketNotFoundError,
    InvalidKeyError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.stores.base import (
    ByteRange,
    Capabilities,
    Condition,
    IfAbsent,
    IfMatch,
    ListPage,
    ObjectBody,
    ObjectMetadata,
    ObjectStat,
    ObjectStore,
    Token,
)
from sessionfs.stores.local_listing import list_directory
from sessionfs.stores.local_objects import (
    MARKER,
    copy_bytes,
    disk_error,
    disk_errors,
    forget_metadata,
    is_missing,
    is_private,
    make_directories,
    open_file,
    read_marker,
    read_metadata,
    remove_empty_directories,
    stat_of_file,
    sync_directory,
    undo_torn,
    whole_status,
    write_all,
    write_behind,
    write_marker,
    write_metadata,
)
from sessionfs.stores.local_temporary import HIDDEN, HiddenDirectory
from sessionfs.stores.request_checks import (
    check_copy,
    check_delete_condition,
    check_key,
    check_limit,
    check_parts_key,
    check_prefix,
    check_put,
    collision,
    condition_text,
)
from sessionfs.stores.store_urls import file_url, parse_file_url

_CAPABILITIES = Capabilities(
    marker_metadata=True, minimum_part_bytes=1, maximum_segment_bytes=255, maximum_put_bytes=1 << 40
)


def open_url(url: str, *, max_connections: int = 32, clock: Clock | None = None) -> ObjectStore:
    """Open ``file:///dir``; its last component is made when it is missing.

    Args:
        url: A ``file:`` URL or a bare path.
        max_connections: Not used: threads wait on the disk.
        clock: The system's when None.

    Raises:
        StoreUrlError: The URL is malformed.
        BucketNotFoundError: The directory above does not exist, or the name is no directory.
        StoreRefusedError: The disk cannot keep a store's promises.
        AccessError, UnavailableError: The disk refused.
    """
    del max_connections
    directory = parse_file_url(url)
    try:
        os.mkdir(directory)
        sync_directory(os.path.dirname(directory))
    except FileExistsError:
        pass
    except OSError as error:
        if is_missing(error):
            raise _no_directory(directory) from error
        raise disk_error(error, f"the store's directory {directory} cannot be made") from error
    return LocalDirectoryStore(directory, clock=clock)


def open_for_reading(url: str) -> ObjectStore:
    """Open ``file:///dir`` without writing anything into it, so also on a disk that is read-only; every change is refused.

    Args:
        url: A ``file:`` URL or a bare path.

    Raises:
        StoreUrlError: The URL is malformed.
        BucketNotFoundError: The directory does not exist.
    """
    return LocalDirectoryStore(parse_file_url(url), is_read_only=True)


class LocalDirectoryStore(ObjectStore):
    """A directory of objects.

    Args:
        directory: Absolute path of an existing directory.
        clock: Gives times of change and names of temporary files; the system's when None.
        is_read_only: Nothing is written there, not even a lock; a change is `AccessError`.

    Raises:
        BucketNotFoundError: It does not exist.
        StoreRefusedError: Its disk folds case or keeps no extended attributes.
    """

    def __init__(self, directory: str, *, clock: Clock | None = None, is_read_only: bool = False) -> None:
        if not os.path.isdir(directory):
            raise _no_directory(directory)
        self._root = os.path.realpath(directory)
        self._clock = clock or SystemClock()
        self._hidden = HiddenDirectory(self._root, clock=self._clock, is_read_only=is_read_only)
        self._hidden.prepare()
        self._capabilities = _CAPABILITIES

    @property
    def url(self) -> str:
        """The directory's ``file:`` URL."""
        return file_url(self._root)

    @property
    def capabilities(self) -> Capabilities:
        """Everything but checksums, unless told otherwise."""
        return self._capabilities

    def with_capabilities(self, capabilities: Capabilities) -> ObjectStore:
        """Give the same directory."""
        other = shallow.copy(self)
        other._capabilities = capabilities  # noqa: SLF001 - its own class
        return other

    def put(self, key: str, body: bytes, *, condition: Condition, metadata: ObjectMetadata) -> Token:
        """Write a temporary file and rename it; for a marker, make the directory and set its attribute."""
        check_put(key, len(body), metadata, self._capabilities)
        if key.endswith("/"):
            return self._put_marker(key, condition, metadata)
        with self._new_file(key, metadata) as (descriptor, path):
            with disk_errors(f"{key!r} cannot be written"):
                write_all(descriptor, body)
            return self._publish(descriptor, path, key, condition)

    def put_parts(
        self,
        key: str,
        parts: Iterable[bytes],
        *,
        condition: Condition,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Stream the parts into a temporary file and rename it."""
        check_parts_key(key, metadata, self._capabilities)
        with self._new_file(key, metadata) as (descriptor, path):
            self._write_parts(descriptor, parts, key)
            before_complete()
            return self._publish(descriptor, path, key, condition)

    def append(
        self,
        key: str,
        tail: Iterable[bytes],
        *,
        base: ObjectStat,
        metadata: ObjectMetadata,
        before_complete: Callable[[], None],
    ) -> Token:
        """Copy the object inside the filesystem, write the tail behind it, rename."""
        check_parts_key(key, metadata, self._capabilities)
        condition = IfMatch(base.token)
        with self._new_file(key, metadata) as (descriptor, path):
            try:
                self._copy_file(key, base.token, descriptor)
            except ObjectNotFoundError:
                raise PreconditionFailedError(f"{key!r} {condition_text(condition)}") from None
            self._write_parts(descriptor, tail, key)
            before_complete()
            return self._publish(descriptor, path, key, condition)

    def get(self, key: str, *, byte_range: ByteRange | None, expected: Token | None) -> ObjectBody:
        """Open the file; what is read is that file, whatever is renamed over its name."""
        check_key(key, self._capabilities)
        if key.endswith("/"):
            stat = self.head(key)
            _require_token(stat, expected)
            return _FileBody(stat, None, 0, 0)
        descriptor, stat = self._open(key)
        try:
            _require_token(stat, expected)
        except PreconditionFailedError:
            os.close(descriptor)
            raise
        start = min(byte_range.start, stat.size_bytes) if byte_range else 0
        end = min(byte_range.end, stat.size_bytes) if byte_range else stat.size_bytes
        return _FileBody(stat, descriptor, start, end)

    def head(self, key: str) -> ObjectStat:
        """Stat the file and read its attributes."""
        check_key(key, self._capabilities)
        if not key.endswith("/"):
            descriptor, stat = self._open(key)
            os.close(descriptor)
            return stat
        with disk_errors(f"{key!r} cannot be read"):
            marker = read_marker(self._path(key), key)
        if marker is None:
            self._require_store()
            raise ObjectNotFoundError(f"no object {key!r}")
        return marker

    def list_page(
        self, prefix: str, *, page: str | None, whole_segments: bool, limit: int = 1000
    ) -> ListPage:
        """Walk the directories in the order of their keys; the page's name is the last entry before it."""
        check_prefix(prefix, self._capabilities)
        check_limit(limit)
        with disk_errors(f"{prefix!r} cannot be listed"):
            found = list_directory(self._root, prefix, after=page, whole_segments=whole_segments, limit=limit)
        if not found.objects and not found.prefixes:
            self._require_store()
        return found

    def delete(self, key: str, *, condition: Condition) -> None:
        """Unlink the file, and the directories above that are left empty and are no markers."""
        check_key(key, self._capabilities)
        check_delete_condition(condition)
        path = self._path(key)
        with self._locked(key):
            found = self._find(key)
            _require(key, found, condition)
            if found is None:
                return
            with disk_errors(f"{key!r} cannot be deleted"):
                if key.endswith("/"):
                    os.removexattr(path, MARKER)
                else:
                    os.unlink(path)
            directory = path if key.endswith("/") else os.path.dirname(path)
            try:
                sync_directory(directory)
                remove_empty_directories(self._root, directory)
                sync_directory(os.path.dirname(directory))
            except OSError as error:
                raise OutcomeUnknownError(f"delete of {key!r} may not survive: {error.strerror}") from error

    def copy(
        self,
        source: str,
        target: str,
        *,
        source_token: Token,
        condition: Condition,
        metadata: ObjectMetadata,
    ) -> Token:
        """Copy inside the filesystem, by reference where it can, and rename."""
        check_copy(source, target, metadata, self._capabilities)
        if source.endswith("/"):
            _require_token(self.head(source), source_token)
            return self._put_marker(target, condition, metadata)
        with self._new_file(target, metadata) as (descriptor, path):
            self._copy_file(source, source_token, descriptor)
            return self._publish(descriptor, path, target, condition)

    def extend(
        self,
        key: str,
        tail: bytes,
        *,
        expected: Token | None,
        forget: Iterable[str] = (),
        is_synced: bool = False,
        before: Callable[[], None] = lambda: None,
    ) -> ObjectStat:
        """Add to an object in place. This is no call of the port: a power cut may leave a part of the tail.

        Args:
            key: The key.
            tail: The bytes.
            expected: The token the object must have, None for any.
            forget: User metadata that speaks of the bytes there were, and is removed.
            is_synced: Return only when the tail would survive a power cut; else `sync` does that.
            before: Called when nothing is waited for any more; what it raises ends the call with nothing added.

        Raises:
            ObjectNotFoundError: No object.
            PreconditionFailedError: The object has another token.
            UnavailableError, AccessError: The disk refused; nothing was added.
            OutcomeUnknownError: It was added, and would perhaps not survive a power cut.
        """
        check_key(key, self._capabilities)
        with disk_errors(f"{key!r} cannot be written"), self._locked(key):
            descriptor, found = self._open_for_more(key, expected)
            try:
                before()
                forget_metadata(descriptor, forget)
                write_behind(descriptor, tail, found.size_bytes, modified_ns=self._clock.wall_ns())
                after = stat_of_file(key, os.fstat(descriptor), None)
            except BaseException:
                os.close(descriptor)
                raise
        try:
            if is_synced:
                os.fdatasync(descriptor)
        except OSError as error:
            raise OutcomeUnknownError(
                f"what was added to {key!r} may not survive: {error.strerror}"
            ) from error
        finally:
            os.close(descriptor)
        return after

    def _open_for_more(self, key: str, expected: Token | None) -> tuple[int, ObjectStat]:
        try:
            descriptor = open_file(self._path(key), key, os.O_WRONLY | os.O_APPEND)
        except ObjectNotFoundError:
            self._require_store()
            raise
        try:
            undo_torn(descriptor)
            found = stat_of_file(key, os.fstat(descriptor), None)
            _require_token(found, expected)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, found

    def sync(self, key: str) -> None:
        """Return when what `extend` added to an object would survive a power cut; one that is gone needs none.

        Raises:
            OutcomeUnknownError: It may not; the kernel says so once only, so that another call proves nothing.
            UnavailableError, AccessError: The disk refused.
        """
        check_key(key, self._capabilities)
        with disk_errors(f"{key!r} cannot be flushed"):
            try:
                descriptor, _ = self._open(key)
            except ObjectNotFoundError:
                return
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                raise OutcomeUnknownError(
                    f"what was added to {key!r} may not survive: {error.strerror}"
                ) from error
            finally:
                os.close(descriptor)

    def _put_marker(self, key: str, condition: Condition, metadata: ObjectMetadata) -> Token:
        token = Token(self._clock.unique_id())
        with self._locked(key):
            _require(key, self._find(key), condition)
            with disk_errors(f"{key!r} cannot be written"):
                path = self._path(key)
                make_directories(self._root, path, key)
                write_marker(path, metadata, token=token, modified_ns=self._clock.wall_ns())
        return token

    @contextmanager
    def _new_file(self, key: str, metadata: ObjectMetadata) -> Iterator[tuple[int, str]]:
        self._require_not_hidden(key)
        manager = self._hidden.temporary_file()
        try:
            descriptor, path = manager.__enter__()
        except OSError as error:
            self._require_store()
            raise disk_error(error, f"{key!r} cannot be written") from error
        try:
            with disk_errors(f"{key!r} cannot be written"):
                write_metadata(descriptor, metadata)
                if is_private(metadata):
                    os.fchmod(descriptor, 0o600)
            yield descriptor, path
        finally:
            manager.__exit__(None, None, None)

    def _publish(self, descriptor: int, path: str, key: str, condition: Condition) -> Token:
        target = self._path(key)
        with disk_errors(f"{key!r} cannot be written"):
            os.fsync(descriptor)
        with self._locked(key):
            _require(key, self._find(key), condition)
            with disk_errors(f"{key!r} cannot be written"):
                now_ns = self._clock.wall_ns()
                os.utime(descriptor, ns=(now_ns, now_ns))
                make_directories(self._root, os.path.dirname(target), key)
                self._rename(path, target, key)
            try:
                token = stat_of_file(key, os.fstat(descriptor), None).token
                sync_directory(os.path.dirname(target))
            except OSError as error:
                raise OutcomeUnknownError(f"put of {key!r} may not survive: {error.strerror}") from error
        return token

    def _rename(self, path: str, target: str, key: str) -> None:
        try:
            os.rename(path, target)
        except IsADirectoryError:
            remove_empty_directories(self._root, target)
            if os.path.isdir(target):
                raise collision(key) from None
            make_directories(self._root, os.path.dirname(target), key)
            os.rename(path, target)

    def _copy_file(self, source: str, token: Token, target: int) -> None:
        descriptor, stat = self._open(source)
        try:
            _require_token(stat, token)
            with disk_errors(f"{source!r} cannot be copied"):
                copy_bytes(descriptor, target, stat.size_bytes)
        finally:
            os.close(descriptor)

    def _write_parts(self, descriptor: int, parts: Iterable[bytes], key: str) -> None:
        for part in parts:
            with disk_errors(f"{key!r} cannot be written"):
                write_all(descriptor, part)

    def _open(self, key: str) -> tuple[int, ObjectStat]:
        with disk_errors(f"{key!r} cannot be read"):
            try:
                descriptor = open_file(self._path(key), key)
            except ObjectNotFoundError:
                self._require_store()
                raise
            try:
                found, size_bytes = whole_status(descriptor)
                shown = stat_of_file(key, found, read_metadata(descriptor))
                return descriptor, replace(shown, size_bytes=size_bytes)
            except OSError:
                os.close(descriptor)
                raise

    def _find(self, key: str) -> ObjectStat | None:
        path = self._path(key)
        with disk_errors(f"{key!r} cannot be read"):
            if key.endswith("/"):
                return read_marker(path, key)
            try:
                found = os.lstat(path)
            except OSError as error:
                if is_missing(error):
                    return None
                raise
            return stat_of_file(key, found, None) if modes.S_ISREG(found.st_mode) else None

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        self._require_not_hidden(key)
        manager = self._hidden.locked()
        try:
            manager.__enter__()
        except OSError as error:
            self._require_store()
            raise disk_error(error, "the store's lock cannot be taken") from error
        try:
            yield
        finally:
            manager.__exit__(None, None, None)

    def _path(self, key: str) -> str:
        self._require_not_hidden(key)
        return os.path.join(self._root, key.rstrip("/"))

    def _require_not_hidden(self, key: str) -> None:
        if key.partition("/")[0] == HIDDEN:
            raise InvalidKeyError(f"{key!r} is where the store keeps its lock and temporary files")

    def _require_store(self) -> None:
        if not self._hidden.exists():
            raise _no_directory(self._root)


class _FileBody(ObjectBody):
    def __init__(self, stat: ObjectStat, descriptor: int | None, start: int, end: int) -> None:
        self.stat = stat
        self._descriptor = descriptor
        self._start = start
        self._end = end

    def chunks(self, size_bytes: int = 1 << 20) -> Iterator[bytes]:
        """Give the bytes; a file that a foreign hand cut short is an error."""
        position = self._start
        while position < self._end:
            if self._descriptor is None:
                raise UnavailableError(f"the body of {self.stat.key!r} was closed")
            with disk_errors(f"{self.stat.key!r} cannot be read"):
                chunk = os.pread(self._descriptor, min(size_bytes, self._end - position), position)
            if not chunk:
                raise UnavailableError(f"{self.stat.key!r} became shorter while it was read")
            position += len(chunk)
            yield chunk

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.close()


def _require(key: str, found: ObjectStat | None, condition: Condition) -> None:
    exists = isinstance(condition, IfAbsent) and found is not None
    moved = isinstance(condition, IfMatch) and (found is None or found.token != condition.token)
    if exists or moved:
        raise PreconditionFailedError(f"{key!r} {condition_text(condition)}")


def _require_token(stat: ObjectStat, expected: Token | None) -> None:
    if expected is not None and stat.token != expected:
        raise PreconditionFailedError(f"{stat.key!r} {condition_text(IfMatch(expected))}")


def _no_directory(directory: str) -> BucketNotFoundError:
    return BucketNotFoundError(
        f"the store's directory {directory} does not exist", remedy="create it, or correct the store URL"
    )
