"""Whether the place answers: one outage is one event when it begins and one when it ends, however many requests found it.

Under the policy ``strict`` writes are refused while it lasts; the place is asked again at most every `probe_seconds`, and the first answer, to
whatever question, ends the outage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AccessError,
    InvalidRequestError,
    OutcomeUnknownError,
    OwnershipLostError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.sessions.workspace.observation import events
from sessionfs.sessions.workspace.observation.event_history import EventHistory


@runtime_checkable
class HasTrouble(Protocol):
    """A place that takes writes while nothing reaches the bucket, and says so."""

    @property
    def trouble(self) -> str:
        """Why nothing reaches the bucket now, "" when nothing stands in the way."""


class StorageHealth:
    """The state of a place as one workspace sees it.

    Args:
        shown: The session, for errors.
        history: Told when an outage begins and ends.
        clock: When.
        is_strict: Refuse writes while the place does not answer.
        probe_seconds: How often a refused writer asks again, from 0.
        trouble: Why nothing reaches the bucket, as far as the place says so; "" when nothing stands in the way.
    """

    def __init__(
        self,
        shown: str,
        history: EventHistory,
        clock: Clock,
        *,
        is_strict: bool,
        probe_seconds: float,
        trouble: Callable[[], str],
    ) -> None:
        self._shown = shown
        self._history = history
        self._clock = clock
        self._is_strict = is_strict
        self._probe_seconds = probe_seconds
        self._trouble = trouble
        self._since_seconds = 0.0
        self._asked_seconds = 0.0
        self._is_lost = False
        self.reason = ""
        """Why the place cannot be used, "" while it can."""

    @contextmanager
    def watched(self, *, is_blob: bool = False) -> Iterator[None]:
        """Learn from how a request to the place ends.

        Args:
            is_blob: Its failure says nothing about the session's files: it begins no outage.
        """
        try:
            yield
        except (UnavailableError, OutcomeUnknownError) as problem:
            if not is_blob:
                self.failed(problem.message)
            raise
        except OwnershipLostError as problem:
            if not self._is_lost:
                self._is_lost = True
                self._history.add(events.OWNER_LOST, details={"holder": problem.holder})
            raise
        except (InvalidRequestError, AccessError):
            # No answer of the place: it may not have been asked, and it does not take writes of this program.
            raise
        except SessionFSError:
            self._note_answer(is_blob=is_blob)
            raise
        else:
            self._note_answer(is_blob=is_blob)

    def _note_answer(self, *, is_blob: bool) -> None:
        trouble = self._trouble()
        if not trouble:
            self.answered()
        elif not is_blob:
            self.failed(trouble)

    def failed(self, reason: str) -> None:
        """The place does not answer."""
        self._asked_seconds = self._clock.elapsed_seconds()
        if not self.reason:
            self._since_seconds = self._asked_seconds
            self._history.add(events.STORAGE_DEGRADED, details={"reason": reason})
        self.reason = reason

    def answered(self) -> None:
        """The place answers."""
        if self.reason:
            lasted = self._clock.elapsed_seconds() - self._since_seconds
            self._history.add(events.STORAGE_RECOVERED, details={"seconds": round(lasted, 3)})
        self.reason = ""

    async def require_writable(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Go on when a write may be sent.

        Args:
            probe: A question to the place, without side effects; asked under `watched`.

        Raises:
            UnavailableError: Writes are refused until the place answers.
        """
        if not self._is_strict or not self.reason:
            return
        if self._clock.elapsed_seconds() - self._asked_seconds >= self._probe_seconds:
            await probe()
        if self.reason:
            raise UnavailableError(
                f"writes to {self._shown} are refused while its place does not answer: {self.reason}",
                remedy="try again when the place answers, or use the policy degrade",
            )
