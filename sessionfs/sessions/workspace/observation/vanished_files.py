"""Files that are gone since they were last seen: one that is new and has the bytes of one of them was renamed.

Files that are known as one piece are found by their sum. Those that grew piece by piece over restarts are tried one at a time, by their length: where
several have the same, a rename may show as a removal and a new file, which tells the same bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sessionfs.sessions.workspace.observation.fingerprint import UNKNOWN, Fingerprint, Piece


class VanishedFiles:
    """What is known of the files that are gone."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, Fingerprint] = {}
        self._by_sum: dict[Piece, list[str]] = defaultdict(list)
        self._by_length: dict[int, list[str]] = defaultdict(list)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Give the paths and lengths of those that nobody found again."""
        return iter([(path, known.size_bytes) for path, known in self._fingerprints.items()])

    def __len__(self) -> int:
        """Count them."""
        return len(self._fingerprints)

    def add(self, path: str, known: Fingerprint) -> None:
        """A file is gone."""
        self._fingerprints[path] = known
        pieces = known.dump()
        if len(pieces) == 1:
            self._by_sum[pieces[0]].append(path)
        elif pieces:
            self._by_length[known.size_bytes].append(path)

    def to_compare(self, size_bytes: int) -> Fingerprint:
        """Give what a new file of a length should be compared with; an empty one when there is nothing."""
        paths = self._by_length.get(size_bytes)
        return self._fingerprints[paths[-1]] if paths else Fingerprint()

    def take(self, found: Fingerprint, *, is_same: bool) -> str:
        """Give the path that a new file had, which is no longer gone; "" when it had none.

        Args:
            found: The new file, as one piece.
            is_same: It was compared with `to_compare`, and is that.
        """
        pieces = found.dump()
        if pieces and pieces[0].sha256 == UNKNOWN:
            return ""
        paths = (
            self._by_length[found.size_bytes] if is_same else self._by_sum.get(pieces[0]) if pieces else None
        )
        if not paths:
            return ""
        path = paths.pop()
        del self._fingerprints[path]
        return path
