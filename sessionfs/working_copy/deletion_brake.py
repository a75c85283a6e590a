"""The brake on mass deletion: a large batch of deletions waits for a commit or a person, and says so.

A slip (``rm -r`` in the wrong place) is then still whole in the bucket.
"""

from __future__ import annotations

from collections import deque

MINIMUM_FILES = 100
"""Half of a session smaller than this is no mass."""


class DeletionBrake:
    """Watches how many objects of each session are to be deleted within a window.

    Args:
        limit_files: More than this within the window are held.
        window_seconds: How long a deletion counts.
    """

    def __init__(self, *, limit_files: int, window_seconds: float) -> None:
        self._limit_files = limit_files
        self._window_seconds = window_seconds
        self._recent: dict[str, deque[tuple[float, str]]] = {}

    def note(self, session: str, key: str, now_seconds: float) -> None:
        """Count one deletion."""
        self._recent.setdefault(session, deque()).append((now_seconds, key))

    def held(self, session: str, now_seconds: float, *, files_before: int) -> list[str]:
        """Say which deletions must wait.

        Args:
            session: The session.
            now_seconds: On the clock of `note`.
            files_before: Objects the session had in the bucket.

        Returns:
            Keys: empty while the window holds no mass.
        """
        recent = self._recent.get(session)
        if recent is None:
            return []
        while recent and recent[0][0] < now_seconds - self._window_seconds:
            recent.popleft()
        if not recent:
            del self._recent[session]
            return []
        half = len(recent) >= MINIMUM_FILES and 2 * len(recent) > files_before
        return [key for _, key in recent] if len(recent) > self._limit_files or half else []

    def sessions(self) -> list[str]:
        """Sessions with deletions in the window."""
        return list(self._recent)
