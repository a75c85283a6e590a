"""The end-of-turn rule: which lines of which files commit before their write returns."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from sessionfs.filesystem.control.turn_rule import MAX_LINE_BYTES, compiled
from sessionfs.model.errors import SettingsError, UnavailableError

from .conftest import ME, Rig, answer

END = b'{"seq": 4, "type": "turn.completed"}\n'
STEP = b'{"seq": 3, "type": "step"}\n'
TURN = ("s", "turn", True)


class Log:
    """A file that is written through one handle after the other."""

    def __init__(self, rig: Rig, parent: int, name: bytes) -> None:
        self.rig = rig
        self.parent = parent
        self.name = name
        self.handle = 0
        self.size = 0

    async def open(self, flags: int = os.O_WRONLY | os.O_APPEND) -> None:
        found = await answer(self.rig.core.create(self.parent, self.name, 0o644, flags, ME))
        self.handle = found[0].handle

    async def append(self, data: bytes) -> Any:
        """Append; gives how many commits there were when the write returned."""
        if not self.handle:
            await self.open()
        assert await answer(self.rig.core.write(self.handle, self.size, data)) == len(data)
        self.size += len(data)
        return len(self.rig.remote.commits)

    def close(self) -> None:
        self.rig.core.release(self.handle)
        self.handle = 0


@pytest.fixture
def ruled(rigs: Callable[..., Rig]) -> Callable[..., Any]:
    async def make(name: bytes = b"history.jsonl", **settings: Any) -> Log:
        rig = rigs(**{"turn_globs": ("*.jsonl",), **settings})
        return Log(rig, await rig.session(), name)

    return make


async def test_a_line_that_ends_a_turn_commits_before_its_write_returns(ruled: Callable[..., Any]) -> None:
    log = await ruled()
    assert await log.append(STEP) == 0
    assert await log.append(END) == 1
    assert await log.append(STEP) == 1
    assert log.rig.remote.commits == [TURN]


async def test_without_the_rule_nothing_is_looked_at(ruled: Callable[..., Any]) -> None:
    log = await ruled(turn_globs=())
    assert await log.append(END) == 0


@pytest.mark.parametrize(
    ("glob", "directory", "matches"),
    [
        ("*.jsonl", b"", True),
        ("*.jsonl", b"deep", True),
        ("deep/*.jsonl", b"deep", True),
        ("deep/*.jsonl", b"", False),
        ("*.txt", b"", False),
    ],
)
async def test_files_are_chosen_by_name_or_by_path(
    ruled: Callable[..., Any], glob: str, directory: bytes, matches: bool
) -> None:
    log = await ruled(turn_globs=(glob,))
    if directory:
        log.parent = (await answer(log.rig.core.mkdir(log.parent, directory, 0o755, ME))).number
    assert await log.append(END) == matches


async def test_a_line_in_pieces_counts_when_its_newline_is_there(ruled: Callable[..., Any]) -> None:
    log = await ruled()
    for position in range(len(END) - 1):
        assert await log.append(END[position : position + 1]) == 0
    assert await log.append(b"\n") == 1


async def test_several_lines_in_one_write_are_one_commit(ruled: Callable[..., Any]) -> None:
    log = await ruled()
    assert await log.append(STEP + END + STEP + END + b"unfinished") == 1
    assert await log.append(b" line\n") == 1


async def test_the_pattern_never_matches_across_two_lines(ruled: Callable[..., Any]) -> None:
    log = await ruled(turn_pattern=r"(?s)begin.*end")
    assert await log.append(b"begin\nend\n") == 0
    assert await log.append(b"begin and end\n") == 1


async def test_a_line_begun_before_the_file_was_opened_again_counts_whole(ruled: Callable[..., Any]) -> None:
    log = await ruled()
    await log.append(STEP + END[:20])
    log.close()
    log.rig.core.forget((await log.rig.look(b"s", log.name)).number, 10)
    assert await log.append(END[20:]) == 1


async def test_a_line_written_by_offset_counts_where_it_lies(ruled: Callable[..., Any]) -> None:
    log = await ruled()
    await log.open(os.O_RDWR)
    core = log.rig.core
    await answer(core.write(log.handle, 0, STEP + b"x" * 50 + b"\n"))
    await answer(core.write(log.handle, len(STEP), b'"type": "turn'))
    assert log.rig.remote.commits == []
    await answer(core.write(log.handle, len(STEP) + 13, b'.ended"\n'))
    assert log.rig.remote.commits == [TURN]


async def test_a_line_of_more_than_a_mebibyte_ends_no_turn(ruled: Callable[..., Any]) -> None:
    log = await ruled()
    await log.append(b"x" * MAX_LINE_BYTES)
    assert await log.append(END) == 0
    assert await log.append(END) == 1
    await log.append(b"x" * (MAX_LINE_BYTES + 1))
    log.close()
    assert await log.append(END) == 1  # read back from the disk, it is as long
    assert await log.append(b"x" * MAX_LINE_BYTES + END) == 1  # in one write
    assert await log.append(END) == 2


@pytest.mark.parametrize("policy", ["degrade", "strict"])
async def test_a_commit_that_fails_does_not_fail_the_write(ruled: Callable[..., Any], policy: str) -> None:
    log = await ruled(policy=policy)
    log.rig.remote.commit_error = UnavailableError("no route")
    assert await log.append(END) == 0
    assert await log.append(STEP) == 0
    assert log.rig.core.session_requests.problems() == {"s": "no route"}
    assert log.rig.core.session_requests.pending_turns() == ["s"]
    session = log.rig.core._sessions.sessions[b"s"]
    session.owned = False
    assert log.rig.core.session_requests.pending_turns() == []  # another host's turns are its own
    session.owned = True
    log.close()
    if policy == "degrade":
        await log.append(STEP)
    else:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            await log.append(STEP)
    log.rig.remote.commit_error = None
    await log.rig.core.session_requests.commit("s", "command")
    assert log.rig.core.session_requests.problems() == {}
    assert log.rig.core.session_requests.pending_turns() == []
    assert await log.append(END) == 2


async def test_a_synchronous_write_is_on_the_disk_and_committed(ruled: Callable[..., Any]) -> None:
    log = await ruled()
    await log.open(os.O_WRONLY | os.O_APPEND | os.O_SYNC)
    assert await log.append(END) == 1


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(SettingsError, match="turn_pattern is no regular expression"):
        compiled("(")
