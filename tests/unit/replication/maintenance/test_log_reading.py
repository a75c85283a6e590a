"""Logs from the bucket: whole lines, once."""

from __future__ import annotations

import pytest

from sessionfs.formats.logs import zstd_log
from sessionfs.model.errors import ConflictError, CorruptDataError, InvalidRequestError, NotFoundError
from sessionfs.replication.maintenance.log_reading import LogReader
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.memory import MemoryStore
from sessionfs.testing.faulty_store import FaultyStore, Interfere, Pass
from tests.unit.replication.maintenance.world import SETTINGS, Author, HandClock, S

LINES = [b'{"seq":%d,"pad":"%s"}' % (number, b"x" * (number % 70)) for number in range(3000)]
RAW = b"".join(line + b"\n" for line in LINES)


@pytest.fixture
def reader(store: TrioStore) -> LogReader:
    return LogReader(store)


async def all_lines(reader: LogReader, path: bytes) -> list[bytes]:
    return [line async for line in reader.lines(await reader.find(S, path))]


async def test_repeated_and_torn_lines_are_not_shown(author: Author, reader: LogReader) -> None:
    author.write(b"log.jsonl", b'{"seq":1}\n{"seq":2}\n{"seq":1}\n{"seq":2}\n{"seq":3}\n{"seq":')
    assert await all_lines(reader, b"log.jsonl") == [b'{"seq":1}', b'{"seq":2}', b'{"seq":3}']


async def test_a_sealed_segment_reads_like_the_log_it_was(author: Author, reader: LogReader) -> None:
    author.write(b"j/e-001.jsonl.zst", b"".join(zstd_log.seal(LINES, frame_bytes=5000)))
    assert await all_lines(reader, b"j/e-001.jsonl.zst") == LINES


async def test_segments_come_before_the_log_in_their_order(author: Author, reader: LogReader) -> None:
    for name, lines in {
        b"j/e-010.jsonl.zst": [b"third"],
        b"j/e-9.jsonl.zst": [b"second"],
        b"j/e-001.jsonl.zst": [b"first"],
        b"j/ee-001.jsonl.zst": [b"of another log"],
        b"j/e-001.jsonl.zst.bak": [b"of nobody"],
    }.items():
        author.write(name, b"".join(zstd_log.seal(lines)))
    author.write(b"j/e.jsonl", b"last\n")
    logs = await reader.segments(S, b"j/e.jsonl")
    assert [[line async for line in reader.lines(log)] for log in logs] == [
        [b"first"],
        [b"second"],
        [b"third"],
        [b"last"],
    ]
    assert await reader.tail(logs, 3) == [b"second", b"third", b"last"]


async def test_seq_begins_anew_in_each_segment(author: Author, reader: LogReader) -> None:
    author.write(b"e-1.jsonl.zst", b"".join(zstd_log.seal([b'{"seq":1}', b'{"seq":2}'])))
    author.write(b"e.jsonl", b'{"seq":1}\n')
    assert await reader.tail(await reader.segments(S, b"e.jsonl"), 9) == [
        b'{"seq":1}',
        b'{"seq":2}',
        b'{"seq":1}',
    ]


@pytest.mark.parametrize("count", [1, 10, 700, 3000, 9000])
async def test_a_tail_has_the_last_lines(count: int, author: Author, reader: LogReader) -> None:
    author.write(b"log.jsonl", RAW + b'{"seq":2999}\n{"torn')
    assert await reader.tail([await reader.find(S, b"log.jsonl")], count) == LINES[-count:]


async def test_a_tail_reads_no_more_than_it_needs(author: Author, memory: MemoryStore) -> None:
    author.write(b"log.jsonl", RAW * 40)
    faulty = FaultyStore(memory)
    reader = LogReader(TrioStore(faulty, HandClock(), SETTINGS))
    await reader.tail([await reader.find(S, b"log.jsonl")], 5)
    assert [method for method, _ in faulty.calls] == ["head", "get"]


async def test_windows_going_back_give_the_whole_file(author: Author, reader: LogReader) -> None:
    author.write(b"log.jsonl", RAW)
    found: list[bytes] = []
    log = await reader.find(S, b"log.jsonl")
    end: int | None = None
    while end != 0:
        window = await reader.window(log, end, 5000)
        found = [*window.lines, *found]
        end = window.start
    assert found == LINES


async def test_a_log_that_grows_meanwhile_is_read_on(author: Author, memory: MemoryStore) -> None:
    author.commit({b"log": RAW})
    faulty = FaultyStore(memory)
    reader = LogReader(TrioStore(faulty, HandClock(), SETTINGS))
    log = await reader.find(S, b"log")
    faulty.plan("get", Interfere(lambda: author.write(b"log", RAW + b"more\n")))
    assert [line async for line in reader.lines(log)] == LINES
    faulty.assert_all_used()


async def test_a_log_that_is_replaced_meanwhile_is_not_mixed(author: Author, memory: MemoryStore) -> None:
    author.commit({b"log": RAW})
    faulty = FaultyStore(memory)
    reader = LogReader(TrioStore(faulty, HandClock(), SETTINGS))
    log = await reader.find(S, b"log")
    faulty.plan("get", Pass(), Interfere(lambda: author.write(b"log", b"short\n")))
    assert await reader.window(log, None, 100)
    with pytest.raises(ConflictError, match="replaced while it was read"):
        await reader.window(log, None, 100)


async def test_what_is_no_log_is_said(author: Author, reader: LogReader) -> None:
    with pytest.raises(NotFoundError, match="no s/none in the store"):
        await reader.find(S, b"none")
    author.write(b"e-1.jsonl.zst", b"no frame\n")
    log = await reader.find(S, b"e-1.jsonl.zst")
    with pytest.raises(CorruptDataError, match=r"e-1\.jsonl\.zst"):
        [line async for line in reader.lines(log)]
    with pytest.raises(InvalidRequestError, match="sealed"):
        await reader.window(log, None, 10)


async def test_an_empty_log_has_no_lines(author: Author, reader: LogReader) -> None:
    author.write(b"log", b"")
    assert await all_lines(reader, b"log") == []
    assert await reader.tail([await reader.find(S, b"log")], 3) == []
