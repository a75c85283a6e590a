"""How a workspace is opened: plain data, checked when it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sessionfs.model.clock import Clock, SystemClock
from sessionfs.model.errors import InvalidRequestError, SettingsError
from sessionfs.model.session_ids import FORMS, RANDOM_HEX
from sessionfs.sessions.workspace.observation.events import Subscriber

DEGRADE = "degrade"
STRICT = "strict"

_AGE = re.compile(r"([1-9][0-9]{0,8})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceOptions:
    """How a workspace works.

    Attributes:
        policy: While the place does not answer: ``degrade`` lets each write try, ``strict`` refuses writes.
        id_format: Of ids that are made: ``random_hex``, ``timestamp`` or ``datetime_short``.
        local_directory: Where this host keeps what helps: blobs, events of earlier runs; "" for nothing. It may serve many workspaces.
        blob_cache_bytes: So many bytes of blobs stay below `local_directory`; 0 for none.
        journal_segment_bytes: The active journal is sealed when it has this length, from 1.
        event_limit: So many events are kept, from 1.
        sum_bytes: So many bytes are read when a session is recalled that this host has not seen, to know what changes later.
        close_seconds: How long the end of a workspace may take whose block an error or a cancellation left.
        probe_seconds: How often a writer that is refused asks the place again.
        subscriber: Told every event; see ``observation/events.py``.
        clock: Times and names.
    """

    policy: str = DEGRADE
    id_format: str = RANDOM_HEX
    local_directory: str = ""
    blob_cache_bytes: int = 256 << 20
    journal_segment_bytes: int = 4 << 20
    event_limit: int = 10_000
    sum_bytes: int = 16 << 20
    close_seconds: float = 30.0
    probe_seconds: float = 1.0
    subscriber: Subscriber | None = None
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        if self.policy not in {DEGRADE, STRICT}:
            raise SettingsError(f"policy {self.policy!r} is neither {DEGRADE} nor {STRICT}")
        if self.id_format not in FORMS:
            raise SettingsError(f"id format {self.id_format!r} is none of {', '.join(FORMS)}")
        for name in ("journal_segment_bytes", "event_limit"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1")
        for name in ("blob_cache_bytes", "sum_bytes", "close_seconds", "probe_seconds"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{name} must not be negative")


def age_seconds(text: str) -> int:
    """Read an age as ``30d`` or ``12h``.

    Args:
        text: A whole number from 1, and one of s, m, h, d, w.

    Raises:
        InvalidRequestError: It is none.
    """
    match = _AGE.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"age {text!r} is no number with s, m, h, d or w", remedy="as 30d or 12h")
    return int(match[1]) * _SECONDS[match[2]]
