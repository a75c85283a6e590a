"""The lease, where both processes read it: a few mapped bytes in the state directory.

The replication process writes, the daemon reads. So the daemon knows when the lease is over also while the replication process hangs, is stopped or
is gone. Each value is one aligned word: a reader sees the old one or the new one.

::

    byte 0    u64   magic and version
    byte 8    f64   deadline, seconds on CLOCK_BOOTTIME; 0 for no lease
    byte 16   f64   1 while the store does not answer
    byte 64   text  boot id: the deadline of another boot, or of a copy of this directory on another machine, is none

A replication process that starts again leaves the deadline as it is: the last confirmed beat of the one before counts on, and nobody else can
have taken over before it ends.
"""

from __future__ import annotations

import mmap
import os
from typing import Self

from sessionfs.model.errors import LocalDiskError

_MAGIC = 0x7366_6C65_6173_6501
_PAGE_BYTES = 4096
_BOOT_ID_BYTES = 64
_DEADLINE, _OUTAGE = 1, 2


class LeasePage:
    """Until when this host surely owns its sessions. Make it with `open`.

    Args:
        page: The mapped file.
    """

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._view = memoryview(page)
        # Native words: anything else is written byte by byte.
        self._words = self._view.cast("Q")
        self._numbers = self._view.cast("d")

    @classmethod
    def open(cls, path: str, boot_id: str) -> Self:
        """Open the page, or make it: without a lease when it is new, of another boot, or unreadable.

        Args:
            path: The file; see ``layout``.
            boot_id: Of this boot; see ``model/clock.py``.

        Raises:
            LocalDiskError: The file cannot be made.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Written, not only extended: a full disk must not end a process at its first store into the page.
                if os.fstat(descriptor).st_size < _PAGE_BYTES:
                    os.pwrite(descriptor, bytes(_PAGE_BYTES), 0)
                page = mmap.mmap(descriptor, _PAGE_BYTES)
            finally:
                os.close(descriptor)
        except OSError as problem:
            raise LocalDiskError(
                f"cannot make {path}: {problem.strerror}", errno_number=problem.errno or 0
            ) from None
        made = cls(page)
        made._adopt(boot_id)
        return made

    def _adopt(self, boot_id: str) -> None:
        wanted = boot_id.encode().ljust(_BOOT_ID_BYTES, b"\0")[:_BOOT_ID_BYTES]
        place = slice(_BOOT_ID_BYTES, 2 * _BOOT_ID_BYTES)
        if self._words[0] == _MAGIC and self._page[place] == wanted:
            return
        self._words[0] = 0
        self._numbers[_DEADLINE] = 0.0
        self._numbers[_OUTAGE] = 0.0
        self._page[place] = wanted
        self._words[0] = _MAGIC

    @property
    def deadline_seconds(self) -> float:
        """Until when the lease lasts, on ``Clock.elapsed_seconds``; 0 for no lease."""
        return self._numbers[_DEADLINE]

    @property
    def is_outage(self) -> bool:
        """Whether the store did not answer when it was asked last."""
        return self._numbers[_OUTAGE] != 0.0

    def set_deadline(self, seconds: float) -> None:
        """Let the lease last until a time; 0 ends it."""
        self._numbers[_DEADLINE] = seconds

    def set_outage(self, *, is_outage: bool) -> None:
        """Note whether the store answers."""
        self._numbers[_OUTAGE] = 1.0 if is_outage else 0.0

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._numbers.release()
        self._view.release()
        self._page.close()
