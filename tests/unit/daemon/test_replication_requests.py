"""What the replication process may ask of the daemon, and what it is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessionfs.daemon.replication_requests import RequestsOfReplication
from sessionfs.formats.commit_messages import Barrier, BarrierHeld, FrozenAt, FrozenImage, Thaw
from sessionfs.formats.link_messages import (
    AnyMessage,
    BeginImage,
    Done,
    EndImage,
    Evict,
    Evicted,
    GetStatus,
    ImageGrant,
    LogConsumed,
)
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import InternalError
from sessionfs.working_copy.intent_log import IntentLog

GRANT = ImageGrant(1, 2, 3)


class Answers:
    """A Core that answers the same and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def begin_image(self, number: int) -> ImageGrant:
        self.asked.append(("begin", number))
        return GRANT

    def end_image(self, number: int) -> ImageGrant:
        self.asked.append(("end", number))
        return GRANT

    def evict(self, message: Evict, path: bytes = b"") -> bool:
        self.asked.append(("evict", message.number, path))
        return True

    def barrier(self, message: Barrier) -> BarrierHeld:
        self.asked.append(("barrier", message.session))
        return BarrierHeld(5, [], 0.5)

    def frozen_image(self, message: FrozenImage) -> FrozenAt:
        self.asked.append(("frozen", message.number))
        return FrozenAt("x")

    def thaw(self, message: Thaw) -> None:
        self.asked.append(("thaw", message.commit))

    def note_session_state(self, state: SessionState) -> None:
        self.asked.append(("state", state))

    def note_log_consumed(self, position: int) -> None:
        self.asked.append(("consumed", position))


STATE = SessionState("s", owned=False, holder="far")


@pytest.mark.parametrize(
    ("message", "asked", "reply"),
    [
        (BeginImage(7), ("begin", 7), GRANT),
        (EndImage(7), ("end", 7), GRANT),
        (Evict(7, 1, 2, 3, b"s/a"), ("evict", 7, b"s/a"), Evicted(done=True)),
        (Barrier("s", "c", [7], 0), ("barrier", "s"), BarrierHeld(5, [], 0.5)),
        (FrozenImage("c", 7), ("frozen", 7), FrozenAt("x")),
        (Thaw("c"), ("thaw", "c"), Done()),
        (STATE, ("state", STATE), Done()),
        (LogConsumed(0), ("consumed", 0), Done()),
    ],
)
async def test_each_request_is_answered_by_the_core(
    tmp_path: Path, message: AnyMessage, asked: tuple[Any, ...], reply: AnyMessage
) -> None:
    core = Answers()
    log = IntentLog(str(tmp_path / "intent.log"), boot_id="boot", clock=SystemClock())
    assert await RequestsOfReplication(core, log).handle(message) == reply
    assert core.asked == [asked]


async def test_a_request_that_is_none_of_the_daemons_is_an_error(tmp_path: Path) -> None:
    log = IntentLog(str(tmp_path / "intent.log"), boot_id="boot", clock=SystemClock())
    with pytest.raises(InternalError, match="does not answer GetStatus"):
        await RequestsOfReplication(Answers(), log).handle(GetStatus(0))
