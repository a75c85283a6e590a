"""Ids for new sessions, in three forms; each is a session id by the rules of ``names``.

==================  ===========================  ================================================================
form                as                           two made at once
==================  ===========================  ================================================================
``random_hex``      32 hexadecimal digits        never meet
``timestamp``       ``20260131T235959.123456Z``  meet in the same microsecond
``datetime_short``  ``260131-2359-1a2b``         meet once in 65,536 within a minute
==================  ===========================  ================================================================

Ids of the last two forms sort by time. Who makes a session with one tries another when it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from sessionfs.model import names
from sessionfs.model.clock import Clock, sortable_stamp
from sessionfs.model.errors import InvalidRequestError
from sessionfs.model.names import SessionId

RANDOM_HEX = "random_hex"
TIMESTAMP = "timestamp"
DATETIME_SHORT = "datetime_short"

_NANOSECONDS = 1_000_000_000
_RANDOM_DIGITS = 4


def new_session_id(clock: Clock, form: str = RANDOM_HEX) -> SessionId:
    """Give an id for a new session.

    Args:
        clock: Time and randomness.
        form: ``random_hex``, ``timestamp`` or ``datetime_short``.

    Raises:
        InvalidRequestError: There is no such form.
    """
    make = _FORMS.get(form)
    if make is None:
        raise InvalidRequestError(f"there is no id format {form!r}", remedy=f"use one of {', '.join(FORMS)}")
    return names.session_id(make(clock))


def _datetime_short(clock: Clock) -> str:
    moment = datetime.fromtimestamp(clock.wall_ns() // _NANOSECONDS, UTC)
    return f"{moment:%y%m%d-%H%M}-{clock.unique_id()[-_RANDOM_DIGITS:]}"


_FORMS: dict[str, Callable[[Clock], str]] = {
    RANDOM_HEX: lambda clock: clock.unique_id(),
    TIMESTAMP: lambda clock: sortable_stamp(clock.wall_ns()),
    DATETIME_SHORT: _datetime_short,
}
FORMS = tuple(_FORMS)
"""Names of the forms."""
