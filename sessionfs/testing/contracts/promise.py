"""A promise of a door as data, and what checks need to say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sessionfs.model.errors import SessionFSError

Door = TypeVar("Door")
_Error = TypeVar("_Error", bound=BaseException)

Factory = Callable[[], AbstractAsyncContextManager[Door]]
"""Gives a fresh, empty backend of a door."""


class BrokenPromiseError(AssertionError):
    """A promise does not hold."""


@dataclass(frozen=True, slots=True)
class Promise(Generic[Door]):
    """One thing that every backend of a door does.

    Attributes:
        id: Short name, kept for ever.
        sentence: What is promised.
        check: Tries it on a fresh, empty backend; raises `BrokenPromiseError` when it is broken.
    """

    id: str
    sentence: str
    check: Callable[[Door], Awaitable[None]] = field(repr=False)


def require(holds: bool, otherwise: str) -> None:
    """Go on when a promise holds.

    Raises:
        BrokenPromiseError: It does not.
    """
    if not holds:
        raise BrokenPromiseError(otherwise)


async def require_error(kind: type[_Error], request: Callable[[], Awaitable[object]], doing: str) -> _Error:
    """Require that a request fails in a certain way, and give the error.

    Raises:
        BrokenPromiseError: It succeeds, or fails in another way.
    """
    try:
        await request()
    except kind as error:
        return error
    except SessionFSError as error:
        raise BrokenPromiseError(
            f"{doing} raises {type(error).__name__}, not {kind.__name__}: {error}"
        ) from error
    raise BrokenPromiseError(f"{doing} succeeds, {kind.__name__} is due")
