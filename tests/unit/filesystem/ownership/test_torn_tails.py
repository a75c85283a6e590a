"""A line that a dead host left unfinished is kept beside the log before the first append, and never otherwise."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sessionfs.filesystem.ownership import torn_tails
from sessionfs.formats.commit_messages import Barrier, FrozenImage
from sessionfs.formats.ownership_messages import Claimed, SessionState
from tests.unit.filesystem.conftest import ME, Rig, answer

WHOLE = b'{"n": 1}\n{"n": 2}\n'
TORN = WHOLE + b'{"n": 3, "te'
APPEND = os.O_WRONLY | os.O_APPEND


async def taken_over(rig: Rig, body: bytes, *, name: bytes = b"log.jsonl", is_unclean: bool = True) -> int:
    """A session taken over from a host that did not end, with one log in the bucket; gives the log's number."""
    root = rig.remote.add_session("s")
    number = rig.remote.add_file(root, name, body)
    rig.remote.claims = [Claimed(is_unclean=is_unclean)]
    await rig.look(b"s", name)
    return number


async def append(rig: Rig, number: int, line: bytes = b'{"n": 4}\n') -> bytes:
    """Append a line; gives what the log holds then."""
    opened = await answer(rig.core.open(number, APPEND, ME))
    assert await answer(rig.core.write(opened.handle, 0, line)) == len(line)
    rig.core.release(opened.handle)
    return await rig.read(number)


def beside(rig: Rig) -> dict[str, bytes]:
    """What is in the session besides the log, by name."""
    return {
        path.name: path.read_bytes()
        for path in Path(rig.layout.sessions, "s").iterdir()
        if ".torn-" in path.name
    }


def staged(rig: Rig, name: str) -> bytes:
    return Path(rig.layout.staging, name).read_bytes()


async def test_a_torn_line_is_kept_beside_the_log_before_the_first_append(rig: Rig) -> None:
    number = await taken_over(rig, TORN)
    assert await append(rig, number) == WHOLE + b'{"n": 4}\n'
    ((name, fragment),) = beside(rig).items()
    assert fragment == b'{"n": 3, "te'
    assert re.fullmatch(r"log\.jsonl\.torn-\d{8}T\d{6}\.\d{6}Z", name)
    told = ["CREATE", "WRITTEN", "TRUNCATE", "OPEN_WRITE", "WRITTEN", "RELEASE_WRITE"]
    assert rig.operations()[-6:] == told
    created = rig.records()[-6][2]
    assert (created.name, created.number) == (name.encode(), 0)
    assert (await rig.look(b"s", name.encode())).size == len(fragment)


async def test_a_torn_line_is_moved_once(rig: Rig) -> None:
    number = await taken_over(rig, TORN)
    await append(rig, number, b"half a li")
    assert await append(rig, number, b"ne\n") == WHOLE + b"half a line\n"
    assert len(beside(rig)) == 1


@pytest.mark.parametrize("body", [b"", WHOLE])
async def test_a_whole_log_is_left_alone(rig: Rig, body: bytes) -> None:
    number = await taken_over(rig, body)
    assert await append(rig, number) == body + b'{"n": 4}\n'
    assert beside(rig) == {}


async def test_a_log_of_one_torn_line_becomes_empty(rig: Rig) -> None:
    number = await taken_over(rig, b'{"n": 1, "te')
    assert await append(rig, number) == b'{"n": 4}\n'
    assert list(beside(rig).values()) == [b'{"n": 1, "te']


async def test_a_long_torn_line_is_found_to_its_beginning(rig: Rig) -> None:
    number = await taken_over(rig, WHOLE + b"x" * 300_000)
    assert await append(rig, number) == WHOLE + b'{"n": 4}\n'
    assert list(beside(rig).values()) == [b"x" * 300_000]


async def test_what_is_too_long_for_a_line_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torn_tails, "_LONGEST_LINE_BYTES", 1000)
    body = WHOLE + b"x" * 300_000
    number = await taken_over(rig, body)
    assert await append(rig, number) == body + b'{"n": 4}\n'
    assert beside(rig) == {}


async def test_a_clean_hand_over_edits_nothing(rig: Rig) -> None:
    number = await taken_over(rig, TORN, is_unclean=False)
    assert await append(rig, number) == TORN + b'{"n": 4}\n'
    assert beside(rig) == {}


async def test_a_later_clean_hand_over_edits_nothing(rig: Rig) -> None:
    number = await taken_over(rig, TORN)
    root = (await rig.look(b"s")).number
    await answer(rig.core.mkdir(root, b"taken", 0o755, ME))
    rig.core.note_session_state(SessionState("s", owned=False, holder="host b"))
    rig.remote.claims = [Claimed()]
    assert await append(rig, number) == TORN + b'{"n": 4}\n'
    assert beside(rig) == {}


async def test_a_claim_of_what_is_owned_already_does_not_hide_the_torn_line(rig: Rig) -> None:
    number = await taken_over(rig, TORN)
    root = (await rig.look(b"s")).number
    await answer(rig.core.mkdir(root, b"taken", 0o755, ME))
    await rig.core._loading.claim(rig.core._sessions.sessions[b"s"])
    assert await append(rig, number) == WHOLE + b'{"n": 4}\n'


async def test_other_names_are_no_logs(rig: Rig) -> None:
    number = await taken_over(rig, TORN, name=b"notes.txt")
    assert await append(rig, number) == TORN + b'{"n": 4}\n'
    assert beside(rig) == {}


async def test_a_log_made_here_is_never_edited(rig: Rig) -> None:
    await taken_over(rig, TORN)
    root = (await rig.look(b"s")).number
    number = await rig.file(root, b"mine.jsonl", TORN)
    assert await append(rig, number) == TORN + b'{"n": 4}\n'
    assert beside(rig) == {}


async def test_a_log_that_a_program_here_wrote_to_is_never_edited(rig: Rig) -> None:
    number = await taken_over(rig, TORN)
    opened = await answer(rig.core.open(number, os.O_WRONLY, ME))
    rig.core.write(opened.handle, len(TORN), b'xt": 1}')
    rig.core.release(opened.handle)
    assert (await append(rig, number, b"\n")).startswith(TORN)
    assert beside(rig) == {}


async def test_reading_a_torn_log_edits_nothing(rig: Rig) -> None:
    number = await taken_over(rig, TORN)
    root = (await rig.look(b"s")).number
    await answer(rig.core.mkdir(root, b"claims-the-session", 0o755, ME))
    assert await rig.read(number) == TORN
    assert beside(rig) == {}


async def test_a_commit_keeps_the_log_as_it_stood(rig: Rig) -> None:
    number = await taken_over(rig, TORN)
    assert await rig.read(number) == TORN
    rig.core.barrier(Barrier("s", "c1", [number], rig.log.position))
    assert await append(rig, number) == WHOLE + b'{"n": 4}\n'
    assert staged(rig, rig.core.frozen_image(FrozenImage("c1", number)).staged) == TORN


async def test_a_name_that_is_long_already_still_gets_its_fragment(rig: Rig) -> None:
    name = b"n" * 249 + b".jsonl"
    number = await taken_over(rig, TORN, name=name)
    assert await append(rig, number) == WHOLE + b'{"n": 4}\n'
    assert [len(kept) for kept in beside(rig)] == [255]
