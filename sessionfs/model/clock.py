"""The only place that reads clocks and randomness; everything else is given one of these."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Time and randomness as a component."""

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch; may jump."""

    def elapsed_seconds(self) -> float:
        """Seconds on CLOCK_BOOTTIME: never jumps, goes on while the machine sleeps."""

    def jitter(self) -> float:
        """A random number in [0, 1)."""

    def unique_id(self) -> str:
        """32 random hexadecimal digits."""


class SystemClock:
    """The machine's clocks and randomness."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def wall_ns(self) -> int:
        """Nanoseconds since the epoch; may jump."""
        return time.time_ns()

    def elapsed_seconds(self) -> float:
        """Seconds on CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def jitter(self) -> float:
        """A random number in [0, 1)."""
        return self._random.random()

    def unique_id(self) -> str:
        """32 random hexadecimal digits."""
        return uuid.uuid4().hex


def utc_text(wall_ns: int) -> str:
    """Give a time as ``2026-01-31T23:59:59.123456Z``, for records that people read."""
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns % 1_000_000_000 // 1000:06d}Z"


def sortable_stamp(wall_ns: int) -> str:
    """Give a time as ``20260131T235959.123456Z``, for keys."""
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{wall_ns % 1_000_000_000 // 1000:06d}Z"


def boot_id() -> str:
    """Identity of this boot of the machine; another value means that the page cache was lost.

    Source: Documentation/admin-guide/sysctl/kernel.rst, random.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
