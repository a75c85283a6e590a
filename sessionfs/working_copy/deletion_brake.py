"""The brake on mass deletion: a large batch of deletions waits for a commit or a person, and says so.

A slip (``rm -r`` in the wrong place) is then still whole in the bucket.
"""

from __future__ import annotations

MINIMUM_FILES = 100
"""Half of a session smaller than this is no mass."""


class DeletionBrake:
    """Watches which objects of each session are to be deleted within a window.

    Args:
        limit_files: More than this within the window are held.
        window_seconds: How long a deletion counts.
    """

    def __init__(self, *, limit_files: int, window_seconds: float) -> None:
        self._limit_files = limit_files
        self._window_seconds = window_seconds
        self._recent: dict[str, dict[str, float]] = {}
        self._fresh: dict[str, list[str]] = {}

    def note(self, session: str, key: str, now_seconds: float) -> None:
        """Count one deletion; the same key counts once."""
        self._recent.setdefault(session, {})[key] = now_seconds
        self._fresh.setdefault(session, []).append(key)

    def fresh(self) -> dict[str, list[str]]:
        """Keys noted since the last call, by session."""
        found, self._fresh = self._fresh, {}
        return found

    def forget(self) -> None:
        """A person meant the deletions: none of them counts any more."""
        self._recent.clear()
        self._fresh.clear()

    def recent(self, now_seconds: float) -> dict[str, list[str]]:
        """Keys deleted within the window by session, where there are enough of them to be a mass.

        Args:
            now_seconds: On the clock of `note`.
        """
        since = now_seconds - self._window_seconds
        for session, noted in list(self._recent.items()):
            left = {key: moment for key, moment in noted.items() if moment >= since}
            if left:
                self._recent[session] = left
            else:
                del self._recent[session]
        least = min(MINIMUM_FILES, self._limit_files)
        return {session: list(noted) for session, noted in self._recent.items() if len(noted) >= least}

    def is_mass(self, deleted_files: int, *, files_before: int) -> bool:
        """Whether a batch must wait.

        Args:
            deleted_files: Objects that are to go and were not made again since.
            files_before: Objects the session had in the bucket.
        """
        if deleted_files > self._limit_files:
            return True
        return deleted_files >= MINIMUM_FILES and 2 * deleted_files > files_before
