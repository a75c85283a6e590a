"""Who says that this host may change a session's objects, and with which epoch it stamps them."""

from __future__ import annotations

from typing import Protocol

FIRST_EPOCH = 1


class Authority(Protocol):
    """Ownership as uploads see it. Asked before every changing request."""

    def epoch(self, session: str) -> int:
        """Epoch of this host's ownership."""

    def may_change(self, session: str) -> bool:
        """Whether a changing request may be sent now: the session is owned, and the lease lasts for one more."""

    def lose(self, session: str, *, holder: str, reason: str) -> None:
        """Take note of a proof that another host owns the session."""

    def latest_epoch(self, session: str) -> int:
        """The highest epoch of an object that proves no other owner."""

    async def is_ours_still(self, session: str, object_epoch: int, reason: str) -> bool:
        """Whether the session is ours although an object shows a later epoch; if not, it counts as lost.

        Raises:
            SessionFSError: The store does not answer.
        """


class SoleWriter:
    """For a store that nobody else writes: tests, and work on a scratch copy."""

    def epoch(self, session: str) -> int:  # noqa: ARG002 - the same for all
        """The first."""
        return FIRST_EPOCH

    def may_change(self, session: str) -> bool:  # noqa: ARG002 - as above
        """Always."""
        return True

    def lose(self, session: str, *, holder: str, reason: str) -> None:
        """Nobody can take what only one writes."""

    def latest_epoch(self, session: str) -> int:  # noqa: ARG002 - as above
        """The first."""
        return FIRST_EPOCH

    async def is_ours_still(self, session: str, object_epoch: int, reason: str) -> bool:  # noqa: ARG002 - as above
        """Nobody can take what only one writes."""
        return True
