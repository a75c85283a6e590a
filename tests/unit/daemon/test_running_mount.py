"""What a running mount answers over the control socket."""

from __future__ import annotations

from typing import Any

import pytest

from sessionfs.daemon.mount_request import MountRequest
from sessionfs.daemon.running_mount import RunningMount
from sessionfs.formats.commit_messages import Committed
from sessionfs.formats.link_messages import Conflict, ConflictList, SessionStatus, Status
from sessionfs.model.errors import NotFoundError
from sessionfs.model.settings import Settings

DOCUMENTED = {
    "id",
    "owner",
    "owned_here",
    "state",
    "owed_files",
    "owed_bytes",
    "oldest_owed_seconds",
    "generation",
    "committed_at",
    "conflicts",
}


class Parts:
    """The replication process, its keeper and the sessions of the Core in one."""

    trouble = ""
    pid = 7

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.session = "s"

    async def status(self) -> Status:
        row = SessionStatus(self.session, "far", owned_here=True, state="clean", owed_files=0, owed_bytes=0,
                            oldest_owed_seconds=0.0, generation=3, committed_at="", conflicts=0)  # fmt: skip
        return Status([row], "", 0, 0, 0, 0, {})

    def problems(self) -> dict[str, str]:
        return {"s": "no route", "t": "other", "%eval%run7": "%eval%run7 is owned elsewhere"}

    async def commit(self, session: str, trigger: str) -> Committed:
        self.asked.append(("commit", session, trigger))
        return Committed(session, 4, trigger=trigger, requests=13)

    async def conflicts(self) -> ConflictList:
        return ConflictList([Conflict(self.session, "f", "eval/run7.conflicts/f/x", "", "far")])

    async def claim(self, session: str, *, force: bool) -> None:
        self.asked.append(("claim", session, force))

    async def release(self, session: str) -> None:
        self.asked.append(("release", session))
        raise NotFoundError(session)

    async def resolve_conflict(self, key: str) -> None:
        self.asked.append(("resolve", key))


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def mount(parts: Any) -> RunningMount:
    request = MountRequest(store_url="file:///s", mount_point="/m", state_root="/t", settings=Settings())
    return RunningMount(
        request, engine=parts, engine_name="fake", client=parts, child=parts, shutdown=parts, sessions=parts
    )


async def test_the_status_keeps_the_documented_names_of_a_session(mount: RunningMount) -> None:
    sessions: Any = (await mount.status())["sessions"]
    assert set(sessions[0]) == DOCUMENTED | {"commit_problem", "epoch"}
    assert (sessions[0]["generation"], sessions[0]["commit_problem"]) == (3, "no route")


async def test_a_snapshot_has_the_names_of_the_commit(mount: RunningMount, parts: Parts) -> None:
    body = await mount.snapshot("s")
    assert (body["generation"], body["trigger"], body["requests"]) == (4, "command", 13)
    assert set(body) == set(Committed.__struct_fields__)
    assert parts.asked == [("commit", "s", "command")]


async def test_claims_releases_and_conflicts_are_passed_on(mount: RunningMount, parts: Parts) -> None:
    await mount.claim("s", force=True)
    await mount.resolve("k")
    with pytest.raises(NotFoundError):
        await mount.release("t")
    assert parts.asked == [("claim", "s", True), ("resolve", "k"), ("release", "t")]


async def test_people_name_shared_roots_by_their_paths(mount: RunningMount, parts: Parts) -> None:
    parts.session = "%eval%run7"
    sessions: Any = (await mount.status())["sessions"]
    assert (sessions[0]["id"], sessions[0]["commit_problem"]) == ("eval/run7", "eval/run7 is owned elsewhere")
    assert (await mount.snapshot("eval/run7"))["session"] == "eval/run7"
    await mount.claim("plugins/x", force=False)
    assert parts.asked == [("commit", "%eval%run7", "command"), ("claim", "%plugins%x", False)]
    (kept,) = (await mount.conflicts()).conflicts
    assert (kept.session, kept.path) == ("eval/run7", "f")
