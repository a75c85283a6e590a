"""The order in which a mount ends, and what is left when a step fails."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import trio
import trio.lowlevel

from sessionfs.daemon import shutdown as shutdown_module
from sessionfs.daemon.control.protocol import Progress
from sessionfs.daemon.shutdown import Shutdown
from sessionfs.formats.link_messages import (
    Drained,
)
from sessionfs.model.errors import (
    ConflictError,
    CorruptDataError,
    MountError,
    SessionFSError,
    UnavailableError,
)

BOTH_TIMES = ["block", "drain", "commit unmount", "unmount", "gone", "drain", "commit unmount", "give up"]


@dataclass
class Stage:
    """Everything a shutdown touches, writing down in which order.

    Attributes:
        owed: Files owed; each drain brings one away unless `stuck`.
        busy: How many unmounts are refused.
    """

    owed: int = 0
    stuck: bool = False
    busy: float = 0
    away: bool = False
    late_write: bool = False
    released: bool = False
    hopeless: bool = False
    commit_fails: int = 0
    release_error: SessionFSError | None = None
    release_hangs: bool = False
    turns: list[str] = field(default_factory=list)
    turn_hangs: bool = False
    commit_error: SessionFSError = field(default_factory=lambda: UnavailableError("no route"))
    steps: list[str] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    # the gate
    def block_writers(self, reason: str) -> None:
        assert reason
        self.steps.append("block")

    def allow_writers(self) -> None:
        self.steps.append("allow")

    # the client
    async def drain(self, seconds: float) -> Drained:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise UnavailableError("nobody there")
        if seconds and self.owed and not self.stuck:
            self.owed -= 1
        self._step("drain")
        left = [f"s/{n}" for n in range(self.owed)]
        return Drained(self.owed, self.owed * 10, left, "slow" * self.stuck, self.owed * self.hopeless)

    async def commit_all(self, trigger: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.commit_fails:
            self.commit_fails -= 1
            raise self.commit_error
        self.steps.append(f"commit {trigger}")

    async def commit(self, session: str, trigger: str, *, is_turn: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        self.steps.append(f"commit {session} {trigger} {is_turn}")
        if self.turn_hangs:
            await trio.sleep_forever()
        if session == "t":
            raise UnavailableError("no route")

    async def release_all(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.release_hangs:
            await trio.sleep_forever()
        if self.release_error is not None:
            raise self.release_error
        self.steps.append("give up")

    async def retry(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise UnavailableError("nobody there")
        self.released = True

    # the mount
    def unmount_plainly(self, mount_point: str) -> bool:
        assert mount_point == "/mnt"
        if self.busy:
            self.busy -= 1
            return False
        self._step("unmount")
        if self.late_write:
            self.late_write = False
            self.owed += 1
        return True

    def unmount_lazily(self, _mount_point: str) -> bool:
        self._step("detach")
        return True

    async def show(self, progress: Progress) -> None:
        self.progress.append(progress)

    def _step(self, name: str) -> None:
        if self.steps[-1:] != [name]:
            self.steps.append(name)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(shutdown_module, "_unmount_plainly", made.unmount_plainly)
    monkeypatch.setattr(shutdown_module, "_unmount_lazily", made.unmount_lazily)
    monkeypatch.setattr(shutdown_module, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(shutdown_module, "_COMMIT_RETRY_SECONDS", 0.01)
    return made


def ending(stage: Stage) -> Shutdown:
    return Shutdown(
        stage,
        stage,  # type: ignore[arg-type]  # the three calls of the client that a shutdown makes
        mount_point=lambda: "/mnt",
        on_unmounted=lambda: stage.steps.append("gone"),
        pending_turns=lambda: stage.turns,
    )


async def test_everything_is_brought_away_and_committed_before_the_mount_goes(stage: Stage) -> None:
    stage.owed = 3
    shutdown = ending(stage)
    result = await shutdown.run(trigger="unmount", timeout_seconds=None, progress=stage.show)
    assert (result.owed_files, result.left) == (0, [])
    assert stage.steps == BOTH_TIMES
    assert [shown.owed_files for shown in stage.progress] == [2, 1]
    assert shutdown.completed.is_set()
    assert not shutdown.active


@pytest.mark.parametrize(("trigger", "released"), [("unmount", True), ("sigterm", False)])
async def test_held_deletions_are_released_by_a_person_and_not_by_a_signal(
    stage: Stage, trigger: str, released: bool
) -> None:
    await ending(stage).run(trigger=trigger, timeout_seconds=5)
    assert stage.released is released


async def test_files_that_wait_for_a_person_do_not_hold_the_unmount_for_ever(stage: Stage) -> None:
    stage.owed, stage.stuck, stage.hopeless = 2, True, True
    result = await ending(stage).run(trigger="unmount", timeout_seconds=None)
    assert (result.owed_files, result.left) == (2, ["s/0", "s/1"])
    assert "unmount" in stage.steps


async def test_what_the_last_open_file_wrote_is_brought_away_too(stage: Stage) -> None:
    stage.late_write = True
    result = await ending(stage).run(trigger="unmount", timeout_seconds=None)
    assert result.owed_files == 0
    assert stage.steps == BOTH_TIMES


async def test_after_the_timeout_the_mount_goes_and_what_is_left_is_named(stage: Stage) -> None:
    stage.owed, stage.stuck = 2, True
    result = await ending(stage).run(trigger="unmount", timeout_seconds=0.05)
    assert (result.owed_files, result.owed_bytes, result.left) == (2, 20, ["s/0", "s/1"])
    assert result.degraded == "slow"
    assert "unmount" in stage.steps


async def test_abandoning_brings_nothing_away_and_commits_nothing(stage: Stage) -> None:
    stage.owed = 2
    result = await ending(stage).run(trigger="unmount", timeout_seconds=None, abandon=True)
    assert result.owed_files == 2
    assert stage.steps == ["block", "drain", "unmount", "gone", "drain"]


@pytest.mark.parametrize("trigger", ["unmount", "sigterm"])
async def test_sessions_are_given_up_once_and_last(stage: Stage, trigger: str) -> None:
    await ending(stage).run(trigger=trigger, timeout_seconds=5)
    assert stage.steps.count("give up") == 1
    assert stage.steps[-1] == "give up"


async def test_a_signal_commits_finished_turns_before_everything_else(stage: Stage) -> None:
    stage.turns = ["t", "s"]
    await ending(stage).run(trigger="sigterm", timeout_seconds=5)
    assert stage.steps[:5] == [
        "block",
        "commit t sigterm True",
        "commit s sigterm True",
        "drain",
        "commit sigterm",
    ]


async def test_a_turn_that_cannot_be_committed_uses_up_no_more_than_the_budget(stage: Stage) -> None:
    stage.turns, stage.turn_hangs = ["s"], True
    with trio.fail_after(5):
        await ending(stage).run(trigger="sigterm", timeout_seconds=0.1)
    assert "unmount" in stage.steps


async def test_an_unmount_by_hand_has_the_time_to_keep_the_usual_order(stage: Stage) -> None:
    stage.turns = ["s"]
    await ending(stage).run(trigger="unmount", timeout_seconds=5)
    assert stage.steps == BOTH_TIMES


async def test_sessions_that_cannot_be_given_up_do_not_hold_the_end(stage: Stage) -> None:
    stage.release_error = UnavailableError("no route")
    result = await ending(stage).run(trigger="unmount", timeout_seconds=None)
    assert result.owed_files == 0


async def test_giving_up_ends_with_the_time_there_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown_module, "_RELEASE_MINIMUM_SECONDS", 0.01)
    stage.release_hangs = True
    with trio.fail_after(5):
        result = await ending(stage).run(trigger="sigterm", timeout_seconds=0.1)
    assert result.owed_files == 0


async def test_a_mount_in_use_stays_and_takes_writers_again(stage: Stage) -> None:
    stage.busy = math.inf
    shutdown = ending(stage)
    with pytest.raises(MountError, match="/mnt is in use"):
        await shutdown.run(trigger="unmount", timeout_seconds=None)
    assert stage.steps[-1] == "allow"
    assert not shutdown.completed.is_set()
    stage.busy = 0
    await shutdown.run(trigger="unmount", timeout_seconds=None)
    assert shutdown.completed.is_set()


async def test_a_mount_in_use_for_a_moment_is_tried_again(stage: Stage) -> None:
    stage.busy = 2
    await ending(stage).run(trigger="unmount", timeout_seconds=None)
    assert "unmount" in stage.steps


async def test_force_detaches_a_mount_in_use(stage: Stage) -> None:
    stage.busy = math.inf
    await ending(stage).run(trigger="unmount", timeout_seconds=None, force=True)
    assert "detach" in stage.steps
    assert "allow" not in stage.steps


async def test_a_client_that_hangs_up_before_the_mount_is_gone_changes_nothing(stage: Stage) -> None:
    stage.owed, stage.stuck = 1, True
    shutdown = ending(stage)
    with trio.move_on_after(0.05):
        await shutdown.run(trigger="unmount", timeout_seconds=None)
    assert stage.steps == ["block", "drain", "allow"]
    assert not shutdown.active


async def test_one_shutdown_at_a_time_and_a_signal_hurries_it(stage: Stage) -> None:
    stage.owed, stage.stuck = 1, True
    shutdown = ending(stage)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: shutdown.run(trigger="unmount", timeout_seconds=None))
        await trio.sleep(0.02)
        with pytest.raises(ConflictError, match="already"):
            await shutdown.run(trigger="sigterm", timeout_seconds=1)
        with trio.fail_after(5):
            shutdown.hurry(0)
            await shutdown.completed.wait()
    assert shutdown.result is not None
    assert shutdown.result.owed_files == 1


async def test_no_answer_is_never_taken_for_nothing_owed(stage: Stage) -> None:
    stage.away = True
    result = await ending(stage).run(trigger="unmount", timeout_seconds=0.05)
    assert result.owed_files == -1
    assert "did not answer" in result.left[0]


async def test_a_commit_that_fails_is_tried_again_within_the_time(stage: Stage) -> None:
    stage.commit_fails = 2
    await ending(stage).run(trigger="sigterm", timeout_seconds=5)
    assert "commit sigterm" in stage.steps


async def test_manifests_that_cannot_be_written_are_named_as_left_behind(stage: Stage) -> None:
    stage.commit_fails, stage.commit_error = 6, CorruptDataError("s: bad manifest")
    result = await ending(stage).run(trigger="unmount", timeout_seconds=None)
    assert stage.steps == ["block", "drain", "unmount", "gone", "drain", "give up"]
    assert result.owed_files == 1
    assert "bad manifest" in result.left[0]


async def test_manifests_that_need_more_time_than_there_is_are_left_behind(stage: Stage) -> None:
    stage.commit_fails = 10_000
    result = await ending(stage).after_unmount(seconds=0.05)
    assert result.owed_files == 1
    assert "manifests" in result.left[0]
    assert result.degraded == "no route"


async def test_a_mount_taken_away_from_outside_is_drained_within_the_budget(stage: Stage) -> None:
    stage.owed = 1
    result = await ending(stage).after_unmount(seconds=5)
    assert result.owed_files == 0
    assert stage.steps == ["gone", "drain", "commit unmount", "give up"]


async def test_a_drain_alone_ends_nothing(stage: Stage) -> None:
    stage.owed, stage.stuck = 1, True
    result = await ending(stage).drain(timeout_seconds=0.05, progress=stage.show)
    assert result.owed_files == 1
    assert stage.steps == ["drain"]
