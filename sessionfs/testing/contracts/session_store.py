"""What every session store does, as data: ids, sentences and checks.

A factory gives a fresh, empty backend: a `SessionStore`, a `SessionPlace` (it is wrapped), or a pair of session stores over the same bytes, as two
hosts open them; promises about two writers are tried on the pair, and on two tasks of one store where there is only that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sessionfs.model.clock import SystemClock
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.store.place_session_store import PlaceSessionStore
from sessionfs.sessions.store.session_store import SessionStore
from sessionfs.testing.contracts.promise import Promise
from sessionfs.testing.contracts.session_store_checks import (
    bad_requests,
    files,
    indexes,
    lines,
    two_writers,
)

Backend = SessionStore | SessionPlace | tuple[SessionStore, SessionStore]
"""What a factory gives."""

_Check = Callable[[SessionStore, SessionStore], Awaitable[None]]


def stores_of(backend: Backend) -> tuple[SessionStore, SessionStore]:
    """Give the two stores of a backend, twice the same where there is one."""
    if isinstance(backend, tuple):
        return backend
    if isinstance(backend, SessionPlace):
        clock = SystemClock()
        return PlaceSessionStore(backend, clock), PlaceSessionStore(backend, clock)
    return backend, backend


def _promise(name: str, sentence: str, check: _Check) -> Promise[Backend]:
    async def try_it(backend: Backend) -> None:
        await check(*stores_of(backend))

    return Promise(name, sentence, try_it)


PROMISES: tuple[Promise[Backend], ...] = tuple(
    _promise(name, sentence, check)
    for module in (files, lines, indexes, two_writers, bad_requests)
    for name, sentence, check in module.PROMISES
)
"""All promises of a session store."""
