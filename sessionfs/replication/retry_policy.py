"""When to try again, and what an error means for that: pure.

Back-off has full jitter: any time between zero and the step's limit, which doubles from try to try. Without jitter everything that
one outage stopped would come back in the same instant.
"""

from __future__ import annotations

import enum

from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AccessError,
    BucketNotFoundError,
    ConflictError,
    OutcomeUnknownError,
    PreconditionFailedError,
    ThrottledError,
    UnavailableError,
)
from sessionfs.model.settings import ReplicationSettings

_MOST_DOUBLINGS = 16


class Kind(enum.Enum):
    """What an error asks for."""

    BUSY = "busy"
    """Passes, and concerns this request: back off and repeat it."""
    OUTAGE = "outage"
    """The store does not answer: one request at a time asks whether it is back."""
    ACCESS = "access"
    """A person must act: asked again every ``access_retry_seconds``."""
    PERMANENT = "permanent"
    """Repeating the same request gives the same error."""


def classify(error: Exception) -> Kind:
    """Say what an error asks for."""
    if isinstance(error, ThrottledError | ConflictError):
        return Kind.BUSY
    if isinstance(error, UnavailableError | OutcomeUnknownError):
        return Kind.OUTAGE
    if isinstance(error, AccessError | BucketNotFoundError):
        return Kind.ACCESS
    return Kind.PERMANENT


def is_transient(error: Exception) -> bool:
    """Whether time alone may help; a condition that did not hold never holds by itself."""
    return classify(error) in {Kind.BUSY, Kind.OUTAGE} and not isinstance(error, PreconditionFailedError)


def backoff_seconds(tries: int, settings: ReplicationSettings, clock: Clock) -> float:
    """Give the time to wait after a number of failed tries.

    Args:
        tries: Failed tries, from 1.
        settings: ``retry_minimum_seconds`` is the first step, ``retry_maximum_seconds`` the longest.
        clock: Gives the jitter.
    """
    step = settings.retry_minimum_seconds * float(1 << min(max(tries - 1, 0), _MOST_DOUBLINGS))
    return min(step, settings.retry_maximum_seconds) * clock.jitter()
