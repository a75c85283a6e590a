"""What is known of a file's bytes without having them: sums of consecutive pieces, the last of which can grow.

A pure append extends the last piece: nothing that was read is read again. A fingerprint outlives a restart (`dump`, `load`): then its last piece
is closed, and what is appended begins another.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

UNKNOWN = ""
"""Sum of a piece whose bytes nobody looked at: no bytes match it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive bytes of a file.

    Attributes:
        size_bytes: How many.
        sha256: Their sum; "" when it is not known.
    """

    size_bytes: int
    sha256: str


class Fingerprint:
    """Sums of a file's bytes from its first to its last.

    Args:
        closed: The pieces before the one that grows.
    """

    def __init__(self, closed: tuple[Piece, ...] = ()) -> None:
        self._closed = closed
        # Made when it is needed: most files of a large session never grow.
        self._open: hashlib._Hash | None = None
        self._open_bytes = 0

    @classmethod
    def of(cls, body: bytes) -> Fingerprint:
        """Give that of bytes."""
        made = cls()
        made.extend(body)
        return made

    @classmethod
    def unknown(cls, size_bytes: int) -> Fingerprint:
        """Give that of a file of which only the length is known."""
        return cls((Piece(size_bytes, UNKNOWN),) if size_bytes else ())

    @property
    def size_bytes(self) -> int:
        """Length of the file."""
        return sum(piece.size_bytes for piece in self._closed) + self._open_bytes

    def extend(self, tail: bytes) -> None:
        """The file grew by these bytes."""
        if self._open is None:
            self._open = hashlib.sha256()
        self._open.update(tail)
        self._open_bytes += len(tail)

    def dump(self) -> tuple[Piece, ...]:
        """Give the pieces, the one that grows among them."""
        if self._open is None or not self._open_bytes:
            return self._closed
        return (*self._closed, Piece(self._open_bytes, self._open.hexdigest()))


class Comparison:
    """Bytes of a file as it is now, in order, against the fingerprint of what it was.

    Args:
        before: What it was.
    """

    def __init__(self, before: Fingerprint) -> None:
        self.now = Fingerprint()
        self._pieces = list(before.dump())
        self._sum = hashlib.sha256()
        self._sum_bytes = 0
        self.same_bytes = 0
        """So many first bytes are proved to be the same."""

    def feed(self, chunk: bytes) -> None:
        """The next bytes."""
        self.now.extend(chunk)
        rest = memoryview(chunk)
        while rest and self._pieces:
            piece = self._pieces[0]
            taken = rest[: piece.size_bytes - self._sum_bytes]
            self._sum.update(taken)
            self._sum_bytes += len(taken)
            rest = rest[len(taken) :]
            if self._sum_bytes < piece.size_bytes:
                continue
            if self._sum.hexdigest() != piece.sha256:
                self._pieces.clear()
                return
            self.same_bytes += piece.size_bytes
            self._pieces.pop(0)
            self._sum, self._sum_bytes = hashlib.sha256(), 0


class KnownBytes:
    """The bytes of small files that were written or read last, for the exact place where a rewrite begins.

    Args:
        budget_bytes: All of them together.
        file_bytes: No file that is longer is kept.
    """

    def __init__(self, budget_bytes: int, file_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._file_bytes = file_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._total_bytes = 0

    def get(self, path: str) -> bytes | None:
        """Give a file's bytes, None when they are not kept."""
        return self._kept.get(path)

    def put(self, path: str, body: bytes) -> None:
        """Keep a file's bytes if they are few."""
        self.forget(path)
        if len(body) > self._file_bytes:
            return
        self._kept[path] = body
        self._total_bytes += len(body)
        while self._total_bytes > self._budget_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._total_bytes -= len(oldest)

    def append(self, path: str, tail: bytes) -> None:
        """A file grew."""
        body = self._kept.get(path)
        if body is not None:
            self.put(path, body + tail)

    def forget(self, path: str) -> bytes | None:
        """Keep a file's bytes no longer; gives them."""
        body = self._kept.pop(path, None)
        self._total_bytes -= len(body or b"")
        return body


def common_prefix_bytes(first: bytes, second: bytes) -> int:
    """Say how many first bytes two texts share."""
    low, high = 0, min(len(first), len(second))
    one, other = memoryview(first), memoryview(second)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
