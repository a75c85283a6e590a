"""Whoever hears the events alone, and fetches what each says is new, has the files: whatever was done, by whomever, in any order."""

from __future__ import annotations

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionfs.sessions.workspace.observation.events import WorkspaceEvent
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Disk, MemoryPlace

paths = st.sampled_from(["a", "b", "c/d"])
bodies = st.text(alphabet="xy", max_size=6).map(str.encode)
steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "remove", "rename", "look", "restart"]),
        st.booleans(),
        paths,
        paths,
        bodies,
    ),
    max_size=25,
)


class Mirror:
    """Files as the events say; each event is held against what they were before."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.files: dict[str, bytes] = {}

    def __call__(self, event: WorkspaceEvent) -> None:
        if not event.name.startswith("session.file."):
            return
        kind = event.name.removeprefix("session.file.")
        if kind == "deleted":
            assert event.bytes_added == -len(self.files.pop(event.path))
        elif kind == "renamed":
            self.files[event.path] = self.files.pop(event.old_path)
            assert len(self.files[event.path]) == event.size
        else:
            assert (kind == "created") == (event.path not in self.files)
            self._apply(event, self.files.get(event.path, b""), self._disk.bodies("s")[event.path])

    def _apply(self, event: WorkspaceEvent, before: bytes, now: bytes) -> None:
        assert event.bytes_added == event.size - len(before)
        now = now[: event.size]
        assert len(now) == event.size
        # The claim itself: what is said to be as it was, is.
        assert before[: event.offset] == now[: event.offset]
        assert event.is_append == (now.startswith(before) and before != b"")
        if event.is_all_new:
            assert before == b""
        self.files[event.path] = before[: event.offset] + now[event.offset :]


@settings(max_examples=80, deadline=None)
@given(steps)
def test_the_events_alone_tell_all_files(plan: list[tuple[str, bool, str, str, bytes]]) -> None:
    trio.run(_run, plan)


async def _run(plan: list[tuple[str, bool, str, str, bytes]]) -> None:
    disk = Disk()
    mirror = Mirror(disk)
    options = WorkspaceOptions(subscriber=mirror)
    while True:
        async with Workspace.open(MemoryPlace(disk), "s", options=options) as workspace:
            # What was there before is not announced without a local directory: the mirror takes it as a reader would.
            mirror.files = disk.bodies("s")
            while plan and plan[0][0] != "restart":
                await _step(workspace, disk, plan.pop(0))
            await workspace.changes()
            assert mirror.files == disk.bodies("s")
        if not plan:
            return
        plan.pop(0)


async def _step(workspace: Workspace, disk: Disk, step: tuple[str, bool, str, str, bytes]) -> None:
    kind, is_foreign, path, new, body = step
    there = disk.bodies("s")
    if kind == "look":
        await workspace.changes()
    elif kind in {"remove", "rename"} and path not in there:
        return
    elif is_foreign:
        _by_others(disk, kind, path, new, body)
    elif kind == "write":
        await workspace.write_file(path, body)
    elif kind == "append":
        await workspace.append_file(path, body)
    elif kind == "remove":
        await workspace.remove_file(path)
    else:
        await workspace.rename_file(path, new)


def _by_others(disk: Disk, kind: str, path: str, new: str, body: bytes) -> None:
    there = disk.bodies("s")
    if kind == "write":
        disk.put("s", path, body)
    elif kind == "append":
        disk.put("s", path, there.get(path, b"") + body)
    elif kind == "remove":
        disk.remove("s", path)
    elif path != new:
        disk.put("s", new, there[path])
        disk.remove("s", path)
