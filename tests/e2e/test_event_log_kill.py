"""Writers of an event log that are killed, and writers that race: real processes on a real store.

What each prefix of a batch gives is told in tests/unit/sessions/event_log/test_recovery.py; here the prefixes are left by processes that died.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from sessionfs.model.clock import SystemClock
from sessionfs.model.names import SessionId
from sessionfs.sessions.event_log import Event, EventLog, Header, open_event_log
from sessionfs.sessions.object_place import ObjectPlace, open_object_place
from sessionfs.stores.open_store import open_store

S1 = SessionId("s1")
WHOLE = 1 << 20
"""More bytes than the frame has: the writer dies right behind it."""

WRITER = '''
import itertools, os, random, signal, sys
import trio
from sessionfs.model.clock import SystemClock
from sessionfs.sessions.event_log import Event, EventLogSettings, Header, open_event_log
from sessionfs.sessions.object_place import open_object_place
from sessionfs.stores import local_directory
from sessionfs.stores.open_store import open_store

url, text_bytes, cuts = sys.argv[1], int(sys.argv[2]), [int(cut) for cut in sys.argv[3:]]
cut, noise = -1, random.Random(1)

def die_in_the_middle(descriptor, body, *_where, **_when):
    """Leave the first bytes of an append, as a kill in the middle of the write does."""
    os.write(descriptor, bytes(body)[:cut])
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_object_place(open_store(url), SystemClock()) as place, \\
            open_event_log(place, EventLogSettings(batch_window_seconds=60)) as log:
        await place.claim("s1", force=True)
        try:
            writer = await log.open_to_write("s1")
        except Exception:
            writer = await log.create(Header(id="s1", created_at=1))
        for number in itertools.count():
            if cut >= 0 and number == 1:
                local_directory.write_behind = die_in_the_middle
            await writer.append([
                Event(writer.next_seq + n, 1, "message.user", data={"text": noise.randbytes(text_bytes).hex()})
                for n in range(4)
            ])
            await writer.flush()
            print(writer.next_seq, flush=True)

for cut in cuts:
    # A process of its own dies for each, on a store of its own.
    child = os.fork()
    if not child:
        url = f"{url}-{cut}"
        break
    os.waitpid(child, 0)
else:
    if cuts:
        sys.exit()
trio.run(main)
'''

RACER = """
import sys
import trio
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import SessionAlreadyOwnedError
from sessionfs.sessions.event_log import Event, open_event_log
from sessionfs.sessions.object_place import open_object_place
from sessionfs.stores.open_store import open_store

async def main():
    async with open_object_place(open_store(sys.argv[1]), SystemClock()) as place, open_event_log(place) as log:
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            writer = await log.open_to_write("s1")
        except SessionAlreadyOwnedError:
            print("refused", flush=True)
            return
        await writer.append([Event(writer.next_seq, 1, "x.won")])
        await writer.flush()
        print("won", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)

trio.run(main)
"""


@contextmanager
def child(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is dead at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[ObjectPlace, EventLog]]:
    async with open_object_place(open_store(url), SystemClock()) as place, open_event_log(place) as log:
        yield place, log


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def recovered(url: str) -> tuple[list[Event], list[Event]]:
    """What a reader sees after a writer died, and what the next writer has; one more event is appended."""
    async with opened(url) as (place, log):
        seen = await (await log.open("s1", "read")).read()
        await place.claim(S1, force=True)
        writer = await log.open_to_write("s1")
        kept = await writer.read()
        await writer.append([Event(writer.next_seq, 2, "x.after")])
        await writer.close()
        after = await (await log.open("s1", "read")).read()
        assert [event.seq for event in after] == list(range(len(kept) + 1))
        assert after[:-1] == kept
        await place.release(S1)
    return seen, kept


def test_a_writer_killed_in_the_middle_of_a_frame_loses_only_what_was_not_complete(tmp_path: Path) -> None:
    cuts = (0, 1, 12, 160, 220, 270, WHOLE)
    with child(WRITER, str(tmp_path / "store"), "40", *map(str, cuts)) as writer:
        assert writer.stdout is not None
        assert writer.stdout.read().split() == ["4"] * len(cuts), "a writer lived on"
    counts = []
    for cut in cuts:
        seen, kept = trio.run(recovered, str(tmp_path / f"store-{cut}"))
        assert len(seen) == (8 if cut == WHOLE else 4), f"a frame torn at {cut} is read"
        assert kept[: len(seen)] == seen
        counts.append(len(kept))
    assert counts == [4, 4, 4, 5, 6, 7, 8]


def test_writers_killed_at_any_moment_lose_nothing_that_was_flushed(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    flushed, sizes = 0, []
    for rounds in (1, 3, 2):
        # Frames of a megabyte: a kill meets the writer in the middle of one.
        with child(WRITER, url, "150000") as writer:
            for _ in range(rounds):
                flushed = int(line_of(writer))
            os.kill(writer.pid, signal.SIGKILL)
            rest = writer.stdout.read().split() if writer.stdout else []
            flushed = max([flushed, *map(int, rest)])
        seen, kept = trio.run(recovered, url)
        assert len(seen) >= flushed
        assert kept[: len(seen)] == seen
        assert [event.seq for event in kept] == list(range(len(kept)))
        sizes.append(len(kept))
        flushed = len(kept) + 1
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_a_reader_of_a_living_writer_sees_whole_events_in_order_and_never_fewer(tmp_path: Path) -> None:
    url = str(tmp_path / "store")

    async def follow() -> list[int]:
        counts: list[int] = []
        async with opened(url) as (_, log):
            reader = await log.open("s1", "read")
            while len(set(counts)) < 8:
                found = await reader.read()
                assert [event.seq for event in found] == list(range(len(found)))
                counts.append(len(found))
        return counts

    with child(WRITER, url, "50000") as writer:
        assert line_of(writer) == "4"
        counts = trio.run(follow)
    assert counts == sorted(counts)
    assert all(count % 4 == 0 for count in counts), "a part of a frame was read"


@pytest.fixture(params=["file", pytest.param("seaweedfs", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "store")
    found: str = request.getfixturevalue("store_url")
    return found


def test_of_processes_that_race_for_a_log_exactly_one_may_write(url: str) -> None:
    async def begin() -> None:
        async with opened(url) as (_, log):
            writer = await log.create(Header(id="s1", created_at=1))
            await writer.append([Event(0, 1, "session.started")])

    async def stored() -> list[str]:
        async with opened(url) as (_, log):
            return [event.type for event in await (await log.open("s1", "read")).read()]

    trio.run(begin)
    with ExitStack() as stack:
        racers = [stack.enter_context(child(RACER, url)) for _ in range(2)]
        for racer in racers:
            assert line_of(racer) == "ready"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        assert sorted(line_of(racer) for racer in racers) == ["refused", "won"]
        assert trio.run(stored) == ["session.started", "x.won"]
