"""What the replication process asks of the daemon, answered between two operations of programs."""

from __future__ import annotations

from typing import Protocol

from sessionfs.formats.commit_messages import Barrier, BarrierHeld, FrozenAt, FrozenImage, Thaw
from sessionfs.formats.link_messages import (
    AnyMessage,
    BeginImage,
    Done,
    EndImage,
    Evict,
    Evicted,
    ImageGrant,
    LogConsumed,
)
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.errors import InternalError
from sessionfs.working_copy.intent_log import IntentLog


class CoreSide(Protocol):
    """The part of the Core that the replication process asks things of."""

    def begin_image(self, number: int) -> ImageGrant:
        """Say how a file stands between two writes."""

    def end_image(self, number: int) -> ImageGrant:
        """Say how it stands after it was read."""

    def evict(self, message: Evict, path: bytes = b"") -> bool:
        """Remove a clean file's bytes if nothing uses them."""

    def barrier(self, message: Barrier) -> BarrierHeld:
        """Note how a session's changing files stand, and keep those bytes."""

    def frozen_image(self, message: FrozenImage) -> FrozenAt:
        """Say where a frozen file's bytes are."""

    def thaw(self, message: Thaw) -> None:
        """Let a commit's kept bytes go."""

    def note_session_state(self, state: SessionState) -> None:
        """Learn who owns a session, and how its last commit ended."""

    def note_log_consumed(self, position: int) -> None:
        """Learn up to where the journal holds the log."""


class RequestsOfReplication:
    """Answers them.

    Args:
        core: Knows the open files.
        log: Cut when the journal holds it.
    """

    def __init__(self, core: CoreSide, log: IntentLog) -> None:
        self._core = core
        self._log = log

    async def handle(self, message: AnyMessage) -> AnyMessage:
        """Answer one request.

        Raises:
            InternalError: It is none of the daemon's.
        """
        match message:
            case BeginImage(number=number):
                return self._core.begin_image(number)
            case EndImage(number=number):
                return self._core.end_image(number)
            case Evict():
                return Evicted(self._core.evict(message, message.path))
            case LogConsumed(log_position=position):
                self._core.note_log_consumed(position)
                self._log.cut(position)
                return Done()
        return self._of_commits(message)

    def _of_commits(self, message: AnyMessage) -> AnyMessage:
        match message:
            case Barrier():
                return self._core.barrier(message)
            case FrozenImage():
                return self._core.frozen_image(message)
            case Thaw():
                self._core.thaw(message)
                return Done()
            case SessionState():
                self._core.note_session_state(message)
                return Done()
        raise InternalError(f"the daemon does not answer {type(message).__name__}")
