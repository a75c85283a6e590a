"""Copies the first bytes of a file on the same disk: shared blocks where the disk can share them. Blocks: call it in a thread."""

from __future__ import annotations

import errno
import fcntl
import os

_FICLONE = 0x40049409
"""Source: ioctl_ficlone(2)."""
_COPY_BYTES = 64 << 20
_CANNOT = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def copy_first_bytes(source: int, target: str, size_bytes: int) -> None:
    """Make a file of another file's first bytes; nothing is left when it fails.

    Args:
        source: Descriptor of the file, readable; its offset does not move.
        target: Path of the new file, which must not be there.
        size_bytes: How many.

    Raises:
        OSError: The disk is full; the file is shorter (EIO).
    """
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if not _shares(made, source, size_bytes):
            _copy(made, source, size_bytes)
    except BaseException:
        os.unlink(target)
        raise
    finally:
        os.close(made)


def _shares(made: int, source: int, size_bytes: int) -> bool:
    try:
        fcntl.ioctl(made, _FICLONE, source)
    except OSError:
        return False
    if os.fstat(made).st_size < size_bytes:
        raise OSError(errno.EIO, "the file became shorter")
    os.ftruncate(made, size_bytes)
    return True


def _copy(made: int, source: int, size_bytes: int) -> None:
    offset, within_kernel = 0, True
    while offset < size_bytes:
        count = min(_COPY_BYTES, size_bytes - offset)
        try:
            if within_kernel:
                copied = os.copy_file_range(source, made, count, offset, offset)
            else:
                os.lseek(made, offset, os.SEEK_SET)
                copied = os.sendfile(made, source, offset, count)
        except OSError as problem:
            if not within_kernel or problem.errno not in _CANNOT:
                raise
            within_kernel = False
            continue
        if copied == 0:
            raise OSError(errno.EIO, "the file became shorter")
        offset += copied
