"""What is raised when several logs were to be stored, and some could not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from sessionfs.model.errors import SessionFSError
from sessionfs.model.names import SessionId


class FlushFailedError(ExceptionGroup[SessionFSError | OSError]):
    """Some logs could not be flushed, or closed; the others were.

    Attributes:
        by_session: What each of them raised.
    """

    by_session: Mapping[SessionId, SessionFSError | OSError]

    def __new__(cls, by_session: Mapping[SessionId, SessionFSError | OSError]) -> Self:
        """Make the error of these sessions, at least one."""
        shown = "; ".join(f"{session}: {error}" for session, error in sorted(by_session.items()))
        self = super().__new__(cls, f"events were not stored: {shown}", list(by_session.values()))
        self.by_session = dict(by_session)
        return self

    def derive(self, excs: Sequence[Exception], /) -> ExceptionGroup[Any]:  # type: ignore[override]
        """Give the part of it with these errors, as ``except*`` and cancel scopes do."""
        # Of the two forms that a group has, only this one can be asked for: there are no other errors in it.
        some = {session: error for session, error in self.by_session.items() if error in excs}
        return FlushFailedError(some) if len(some) == len(excs) else ExceptionGroup(self.message, excs)
