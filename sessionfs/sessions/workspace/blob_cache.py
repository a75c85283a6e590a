"""Blobs on this host's disk, within a budget: whatever is used least leaves first. Nothing of it is ever the only copy.

Invariants:

* A blob is given only when its bytes have the sum that is its name; one that has not is removed, as if it had never been there.
* A blob appears whole (temporary file, rename). Several processes may share a directory: one that finds a file gone does without.
* A disk that refuses costs the cache, never the blob.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict

import structlog
import trio

_TEMPORARY = ".tmp-"
_log = structlog.get_logger("sessionfs.workspace")


class BlobCache:
    """A directory of blobs.

    Args:
        directory: Made when the first blob comes.
        budget_bytes: All blobs together; a blob that is longer is not kept.
        mark: Gives names for temporary files.
    """

    def __init__(self, directory: str, budget_bytes: int, mark: str) -> None:
        self._directory = directory
        self._budget_bytes = budget_bytes
        self._mark = mark
        self._sizes: OrderedDict[str, int] | None = None
        self._turn = trio.Lock()

    async def get(self, sha256: str) -> bytes | None:
        """Give a blob, None when it is not here."""
        async with self._turn:
            return await trio.to_thread.run_sync(self._get, sha256)

    async def put(self, sha256: str, body: bytes) -> None:
        """Keep a blob, and let others leave for it."""
        if len(body) > self._budget_bytes:
            return
        async with self._turn:
            await trio.to_thread.run_sync(self._put, sha256, body)

    def _get(self, sha256: str) -> bytes | None:
        sizes = self._known()
        path = self._path(sha256)
        try:
            with open(path, "rb") as source:
                body = source.read()
            os.utime(path)
        except OSError:
            sizes.pop(sha256, None)
            return None
        if hashlib.sha256(body).hexdigest() != sha256:
            _log.warning(
                "a cached blob has other bytes than its name says; it is fetched again", sha256=sha256
            )
            self._remove(sha256)
            return None
        sizes[sha256] = len(body)
        sizes.move_to_end(sha256)
        return body

    def _put(self, sha256: str, body: bytes) -> None:
        sizes = self._known()
        path = self._path(sha256)
        temporary = f"{path}{_TEMPORARY}{self._mark}"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(temporary, "wb") as target:
                target.write(body)
            os.replace(temporary, path)
        except OSError as problem:
            _log.warning("a blob is not cached", sha256=sha256, problem=str(problem))
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return
        sizes[sha256] = len(body)
        sizes.move_to_end(sha256)
        while sum(sizes.values()) > self._budget_bytes:
            self._remove(next(iter(sizes)))

    def _remove(self, sha256: str) -> None:
        self._known().pop(sha256, None)
        with contextlib.suppress(OSError):
            os.unlink(self._path(sha256))

    def _known(self) -> OrderedDict[str, int]:
        """What is here, what was used longest ago first; leftovers of a crash are removed."""
        if self._sizes is not None:
            return self._sizes
        found: list[tuple[int, str, int]] = []
        for folder, _, names in os.walk(self._directory):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    if _TEMPORARY in name:
                        os.unlink(path)
                    else:
                        status = os.stat(path)
                        found.append((status.st_mtime_ns, name, status.st_size))
        self._sizes = OrderedDict((name, size) for _, name, size in sorted(found))
        return self._sizes

    def _path(self, sha256: str) -> str:
        return os.path.join(self._directory, sha256[:2], sha256)
