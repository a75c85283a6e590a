"""The hidden directory of a directory store: its lock, its temporary files, and what a crash left of them.

A temporary file is locked by whoever writes it, so that one without a living writer can be told apart and removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sessionfs.model.clock import Clock
from sessionfs.model.errors import AccessError, StoreRefusedError
from sessionfs.stores.local_objects import disk_error

HIDDEN = ".sessionfs-store"


class HiddenDirectory:
    """The hidden directory of one store.

    Args:
        root: The store's directory.
        clock: Names temporary files.
        is_read_only: Nothing is made, looked for or removed there, and no change is let through.
    """

    def __init__(self, root: str, *, clock: Clock, is_read_only: bool = False) -> None:
        self._root = root
        self._is_read_only = is_read_only
        self.path = os.path.join(root, HIDDEN)
        self._temporary = os.path.join(self.path, "tmp")
        self._lock_path = os.path.join(self.path, "lock")
        self._clock = clock

    def prepare(self) -> None:
        """Make it, check the disk, and remove what a crash left.

        Raises:
            StoreRefusedError: The disk folds case or keeps no extended attributes.
            AccessError, UnavailableError: The disk refused.
        """
        if self._is_read_only:
            return
        try:
            os.makedirs(self._temporary, mode=0o700, exist_ok=True)
            self._remove_leftovers()
            self._check_disk()
        except OSError as error:
            raise disk_error(error, f"the store's directory {self.path} cannot be used") from error

    def exists(self) -> bool:
        """Whether the store's directory is still what was opened; a disk that was unmounted leaves nothing there."""
        return os.path.isdir(self._root if self._is_read_only else self._temporary)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store's lock, against threads and processes alike.

        Raises:
            AccessError: The store is only read.
        """
        self._require_writable()
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def temporary_file(self) -> Iterator[tuple[int, str]]:
        """Give an empty file (descriptor, path) that is removed at the end unless it was renamed.

        Raises:
            AccessError: The store is only read.
        """
        self._require_writable()
        descriptor, path = self._create()
        try:
            yield descriptor, path
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
            os.close(descriptor)

    def _require_writable(self) -> None:
        if self._is_read_only:
            raise AccessError(f"the store in {self._root} was opened for reading only")

    def _create(self) -> tuple[int, str]:
        while True:
            path = os.path.join(self._temporary, self._clock.unique_id())
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor, path
            os.close(descriptor)  # another process took it for a leftover before it was locked

    def _remove_leftovers(self) -> None:
        for name in os.listdir(self._temporary):
            path = os.path.join(self._temporary, name)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except (FileNotFoundError, IsADirectoryError):
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            except (BlockingIOError, FileNotFoundError):
                continue
            finally:
                os.close(descriptor)

    def _check_disk(self) -> None:
        with self.temporary_file() as (descriptor, path):
            try:
                os.setxattr(descriptor, "user.sessionfs.check", b"x")
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                raise StoreRefusedError(
                    f"the disk of {self.path} keeps no extended attributes, so no metadata",
                    remedy="use a directory on ext4, xfs or btrfs",
                ) from error
            upper = os.path.join(os.path.dirname(path), os.path.basename(path).upper() + ".CASE")
            folded = os.path.join(os.path.dirname(path), os.path.basename(path).lower() + ".case")
            os.close(os.open(upper, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            try:
                if os.path.lexists(folded):
                    raise StoreRefusedError(
                        f"the disk of {self.path} does not tell upper from lower case",
                        remedy="use a directory on a case-sensitive disk",
                    )
            finally:
                # Whoever opens the store at the same moment takes it for a leftover.
                with suppress(FileNotFoundError):
                    os.unlink(upper)
