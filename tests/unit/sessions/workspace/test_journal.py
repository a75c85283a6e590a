"""The journal: contiguous numbers, sealed segments, and no record that is lost or given twice, wherever a process dies."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from sessionfs.formats.logs import zstd_log
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.sessions.port import SessionPlace
from sessionfs.sessions.workspace.options import WorkspaceOptions
from sessionfs.sessions.workspace.workspace import Workspace

from .world import Disk, Killed, MemoryPlace

ACTIVE = "journal/active.jsonl"
FIRST = "journal/events-001.jsonl.zst"
SECOND = "journal/events-002.jsonl.zst"
SMALL = WorkspaceOptions(journal_segment_bytes=60)


async def records(workspace: Workspace, after: int = 0) -> list[dict[str, Any]]:
    return [record async for record in workspace.journal().replay(after)]


async def test_records_are_numbered_and_come_back_in_order_and_fold_into_a_state(place: SessionPlace) -> None:
    async with Workspace.open(place, "s") as workspace:
        journal = workspace.journal()
        assert await journal.append({"type": "turn", "text": "ü\n"}) == 1
        assert await journal.append({}) == 2
        assert await journal.append_all([{"n": 5}, {"n": 6}]) == 4
        assert await journal.append_all([]) == 4
        assert await workspace.read_file(ACTIVE) == (
            '{"seq":1,"type":"turn","text":"ü\\n"}\n{"seq":2}\n{"seq":3,"n":5}\n{"seq":4,"n":6}\n'.encode()
        )
        assert await records(workspace, 2) == [{"seq": 3, "n": 5}, {"seq": 4, "n": 6}]
        assert await journal.project(lambda total, record: total + record.get("n", 0), 0) == 11
    async with Workspace.open(place, "s") as again:
        assert await again.journal().append({"n": 7}) == 5
        assert [record["seq"] for record in await records(again)] == [1, 2, 3, 4, 5]


async def test_a_long_journal_is_sealed_to_segments_whose_numbers_go_on_after_a_restart(
    place: SessionPlace,
) -> None:
    async with Workspace.open(place, "s", options=SMALL) as workspace:
        for number in range(4):
            await workspace.journal().append({"text": "x" * 30, "n": number})
        assert await workspace.list_files("journal") == [ACTIVE, FIRST, SECOND]
        assert await workspace.read_file(ACTIVE) == b""
        lines = list(zstd_log.lines_of([await workspace.read_file(FIRST)], FIRST))
        assert lines[0].startswith(b'{"seq":1,"text":"xxx')
    async with Workspace.open(place, "s", options=SMALL) as again:
        assert await again.journal().append({"n": 4}) == 5
        await again.journal().rotate()
        await again.journal().rotate()
        assert await again.list_files("journal") == [ACTIVE, FIRST, SECOND, "journal/events-003.jsonl.zst"]
        assert [record["n"] for record in await records(again)] == [0, 1, 2, 3, 4]


async def test_a_thousandth_segment_comes_behind_the_others() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append({"n": 1})
        await workspace.journal().rotate()
        place.disk.put("s", "journal/events-999.jsonl.zst", place.disk.bodies("s")[FIRST])
        place.disk.remove("s", FIRST)
    async with Workspace.open(place, "s") as again:
        await again.journal().append({"n": 2})
        await again.journal().rotate()
        assert "journal/events-1000.jsonl.zst" in place.disk.bodies("s")
        assert [record["n"] for record in await records(again)] == [1, 2]


@pytest.mark.parametrize("is_after", [False, True])
async def test_wherever_the_process_dies_no_record_is_lost_or_given_twice(is_after: bool) -> None:
    died = 0
    for kill_at in range(1, 40):
        disk, acknowledged = Disk(), 0
        place = MemoryPlace(disk)
        place.kill_at, place.is_after = kill_at, is_after
        try:
            async with Workspace.open(place, "s", options=SMALL) as workspace:
                for number in range(1, 8):
                    await workspace.journal().append({"n": number, "text": "x" * 20})
                    acknowledged = number
        except Killed:
            died += 1
        disk.owners.clear()
        async with Workspace.open(MemoryPlace(disk), "s", options=SMALL) as again:
            numbers = [record["n"] for record in await records(again)]
            assert numbers in (list(range(1, acknowledged + 1)), list(range(1, acknowledged + 2)))
            await again.journal().append({"n": len(numbers) + 1})
            assert [record["seq"] for record in await records(again)] == list(range(1, len(numbers) + 2))
    assert died > 10


async def test_a_crash_between_seal_and_cut_leaves_repetitions_that_no_reader_sees() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append_all([{"n": 1}, {"n": 2}])
        body = place.disk.bodies("s")[ACTIVE]
        await workspace.journal().rotate()
    place.disk.put("s", ACTIVE, body)
    async with Workspace.open(place, "s") as again:
        assert await again.journal().append({"n": 3}) == 3
        await again.journal().rotate()
        assert [record["n"] for record in await records(again)] == [1, 2, 3]


async def test_what_is_torn_is_given_to_nobody_and_does_not_spoil_the_next_record() -> None:
    whole = b'{"seq":1,"n":1}\n'
    for torn, expected in ((b'{"seq":2,"n"', [1, 3]), (b"garbage", [1, 3]), (b'{"seq":2,"n":2}', [1, 2, 3])):
        place = MemoryPlace()
        place.disk.put("s", ACTIVE, whole + torn)
        async with Workspace.open(place, "s") as workspace:
            assert [record["n"] for record in await records(workspace)] == [1]
            await workspace.journal().append({"n": 3})
            assert [record["n"] for record in await records(workspace)] == expected


async def test_an_append_without_an_answer_uses_no_number_twice() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append({"n": 1})

        def lose(name: str, path: str) -> None:
            if name == "append":
                place.before = lambda _name, _path: None
                place.disk.put("s", path, place.disk.bodies("s")[path] + b'{"seq":2,"n":2}\n')
                raise OutcomeUnknownError("cut off")

        place.before = lose
        with pytest.raises(OutcomeUnknownError):
            await workspace.journal().append({"n": 2})
        assert await workspace.journal().append({"n": 3}) == 3
        place.is_down = True
        with pytest.raises(UnavailableError):
            await workspace.journal().append({"n": 4})
        place.is_down = False
        assert await workspace.journal().append({"n": 4}) == 4
        assert [record["n"] for record in await records(workspace)] == [1, 2, 3, 4]


async def test_sealing_that_fails_fails_no_append_and_is_done_later() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s", options=SMALL) as workspace:

        def refuse(name: str, path: str) -> None:
            place.is_down = name == "write" and path.endswith(".zst")

        place.before = refuse
        for number in (1, 2):
            assert await workspace.journal().append({"text": "x" * 60}) == number
        place.before, place.is_down = lambda _name, _path: None, False
        assert FIRST not in place.disk.bodies("s")
        assert await workspace.journal().append({}) == 3
        assert place.disk.bodies("s")[ACTIVE] == b""
        assert [record["seq"] for record in await records(workspace)] == [1, 2, 3]


async def test_what_is_acknowledged_and_what_is_sealed_is_durable_before_anything_is_cut() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append({"n": 1})
        assert place.synced == [ACTIVE]
        durable: list[bool] = []
        place.before = lambda name, path: (
            durable.append(FIRST in place.synced) if (name, path) == ("write", ACTIVE) else None
        )
        await workspace.journal().rotate()
        assert durable == [True]


async def test_lines_that_others_add_while_it_is_sealed_stay() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append({"n": 1})

        def add(name: str, path: str) -> None:
            if name == "write" and path.endswith(".zst"):
                place.before = lambda _name, _path: None
                place.disk.put("s", ACTIVE, place.disk.bodies("s")[ACTIVE] + b'{"seq":2,"n":2}\n')

        place.before = add
        await workspace.journal().rotate()
        assert [record["n"] for record in await records(workspace)] == [1, 2]


async def test_a_journal_that_others_rewrite_while_it_is_sealed_is_left_as_they_wrote_it() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().rotate()
        assert place.disk.bodies("s").keys() == {"metadata/session.json"}
        await workspace.journal().append({"n": 1})

        def rewrite(name: str, path: str) -> None:
            if name == "write" and path.endswith(".zst"):
                place.before = lambda _name, _path: None
                place.disk.put("s", ACTIVE, b'{"seq":1,"n":1}{"seq":2')
                place.disk.put("s", FIRST, b"taken")

        place.before = rewrite
        await workspace.journal().rotate()
        assert place.disk.bodies("s")[ACTIVE] == b'{"seq":1,"n":1}{"seq":2'
        # The number was taken in that moment: the next one serves.
        assert place.disk.bodies("s")[FIRST] == b"taken"
        assert SECOND in place.disk.bodies("s")


async def test_a_program_that_takes_every_number_of_a_segment_is_named() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append({"n": 1})

        def take(name: str, path: str) -> None:
            if name == "write" and path.endswith(".zst"):
                place.disk.put("s", path, b"taken")

        place.before = take
        with pytest.raises(AlreadyExistsError, match="another program"):
            await workspace.journal().rotate()


async def test_a_segment_that_is_sealed_while_the_journal_is_read_is_read_too() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append({"n": 1})
        await workspace.journal().rotate()
        await workspace.journal().append({"n": 2})
        found = []
        async for record in workspace.journal().replay():
            found.append(record["n"])
            if record["n"] == 1:
                await workspace.journal().rotate()
                await workspace.journal().append({"n": 3})
        assert found == [1, 2, 3]


async def test_a_segment_that_is_sealed_right_before_the_active_file_is_read_is_read_too() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append_all([{"n": 1}, {"n": 2}])

        def seal(name: str, path: str) -> None:
            if (name, path) == ("read", ACTIVE):
                place.before = lambda _name, _path: None
                lines = place.disk.bodies("s")[ACTIVE].splitlines()
                place.disk.put("s", FIRST, b"".join(zstd_log.seal(lines)))
                place.disk.put("s", ACTIVE, b"")

        place.before = seal
        assert [record["n"] for record in await records(workspace)] == [1, 2]


async def test_tasks_that_append_at_once_get_a_number_each() -> None:
    async with Workspace.open(MemoryPlace(), "s", options=SMALL) as workspace:
        numbers: list[int] = []

        async def append(number: int) -> None:
            numbers.append(await workspace.journal().append({"n": number}))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(append, number)
        assert sorted(numbers) == list(range(1, 21))
        assert [record["seq"] for record in await records(workspace)] == list(range(1, 21))


async def test_a_damaged_journal_is_said_to_be_and_never_skipped() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append_all([{"n": 1}, {"n": 2}])
        await workspace.journal().rotate()
        segment = place.disk.bodies("s")[FIRST]
        place.disk.put("s", FIRST, segment[:-1] + bytes([segment[-1] ^ 1]))
        with pytest.raises(CorruptDataError, match="events-001"):
            await records(workspace)
        place.disk.remove("s", FIRST)
        place.disk.put("s", ACTIVE, b'{"seq":3}\n')
        with pytest.raises(CorruptDataError, match="lacks records 1 to 2"):
            await records(workspace)
        place.disk.put("s", ACTIVE, b"[1]\n")
        with pytest.raises(CorruptDataError, match="no JSON object"):
            await records(workspace)


async def test_a_bad_record_is_refused_and_uses_no_number() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        for bad in ({"seq": 1}, {"a": object()}, {"a": "x" * (17 << 20)}):
            with pytest.raises(InvalidRequestError):
                await workspace.journal().append_all([{"good": 1}, bad])
        with pytest.raises(InvalidRequestError):
            await records(workspace, -1)
        assert ACTIVE not in place.disk.bodies("s")
        assert await workspace.journal().append({"a": 1}) == 1


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_request_whose_answer_was_lost_and_that_arrives_late_costs_no_record(is_first: bool) -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        if not is_first:
            await workspace.journal().append({"n": 1})

        def lose(name: str, path: str) -> None:
            if name in {"append", "write"} and path == ACTIVE:
                place.before = arrive
                raise OutcomeUnknownError("cut off")

        def arrive(name: str, path: str) -> None:
            if name in {"append", "write"} and path == ACTIVE:
                place.before = lambda _name, _path: None
                before = place.disk.bodies("s").get(ACTIVE, b"")
                number = 1 if is_first else 2
                place.disk.put("s", ACTIVE, before + b'{"seq":%d,"n":"late"}\n' % number)

        place.before = lose
        with pytest.raises(OutcomeUnknownError):
            await workspace.journal().append({"n": "late"})
        seq = await workspace.journal().append({"n": "acknowledged"})
        found = await records(workspace)
        assert [record["n"] for record in found][-2:] == ["late", "acknowledged"]
        assert seq == len(found) == (2 if is_first else 3)


async def test_a_record_that_arrives_while_the_active_file_is_cut_or_mended_stays() -> None:
    place = MemoryPlace()
    place.disk.put("s", ACTIVE, b'{"seq":1,"n":1}\ntorn')

    def arrive(name: str, path: str) -> None:
        if (name, path) == ("write", ACTIVE):
            place.before = lambda _name, _path: None
            whole, _, _ = place.disk.bodies("s")[ACTIVE].rpartition(b"\n")
            last = whole.count(b"\n") + 2
            place.disk.put("s", ACTIVE, whole + b'\n{"seq":%d,"n":%d}\n' % (last, last))

    async with Workspace.open(place, "s") as workspace:
        place.before = arrive
        assert await workspace.journal().append({"n": 3}) == 3
        place.before = arrive
        await workspace.journal().rotate()
        assert await workspace.journal().append({"n": 5}) == 5
        assert [record["n"] for record in await records(workspace)] == [1, 2, 3, 4, 5]


async def test_a_journal_that_others_change_all_the_time_is_said_to_be() -> None:
    place = MemoryPlace()
    async with Workspace.open(place, "s") as workspace:
        await workspace.journal().append({"n": 1})

        def change(name: str, path: str) -> None:
            if name in {"append", "write"} and path == ACTIVE:
                place.disk.put("s", ACTIVE, place.disk.bodies("s")[ACTIVE])

        place.before = change
        with pytest.raises(PreconditionFailedError, match="by others"):
            await workspace.journal().append({"n": 2})
        with pytest.raises(PreconditionFailedError, match="by others"):
            await workspace.journal().rotate()
        place.disk.put("s", ACTIVE, place.disk.bodies("s")[ACTIVE] + b"torn")
        with pytest.raises(PreconditionFailedError, match="by others"):
            await workspace.journal().append({"n": 2})
        place.before = lambda _name, _path: None
        assert await workspace.journal().append({"n": 2}) == 2
        assert [record["n"] for record in await records(workspace)] == [1, 2]
