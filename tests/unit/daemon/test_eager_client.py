"""A session is here as a whole before it is shown, or not at all."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from sessionfs.daemon.eager_client import EagerClient
from sessionfs.formats.link_messages import (
    AnyMessage,
    Children,
    Done,
    Entry,
    Fetch,
    Fetched,
    ListChildren,
    OpenSession,
    RefreshSession,
    SessionFound,
    SessionRefreshed,
)
from sessionfs.model.clock import SystemClock
from sessionfs.model.errors import CorruptDataError
from sessionfs.replication.link import Handler
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import StateLayout

from .test_replication_client import process as attached


@asynccontextmanager
async def process(client: EagerClient, handler: Handler) -> AsyncIterator[None]:
    """A replication process of this handler, and a client that runs."""
    async with attached(client, handler), trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        await trio.testing.wait_all_tasks_blocked()
        yield
        nursery.cancel_scope.cancel()


def entry(name: bytes, number: int, mode: int = 0o100644, *, present: bool = False) -> Entry:
    return Entry(name, number, present, mode, 0, 0, 1, 0)


class Bucket:
    """A session with files in directories, some of them on this disk."""

    def __init__(self, layout: StateLayout) -> None:
        self.layout = layout
        self.fetched: list[int] = []
        self.bad = 0
        self.gate: trio.Event | None = None
        here = Path(layout.sessions) / "s" / "here"
        here.mkdir(parents=True)
        self.children = {
            10: [entry(b"a", 11), entry(b"dir", 12, 0o040755), entry(b"link", 13, 0o120777)],
            12: [entry(b"b", 14), entry(b"c", 15, present=True)],
            here.stat().st_ino: [entry(b"d", 16)],
        }

    async def answer(self, message: AnyMessage) -> AnyMessage:
        match message:
            case OpenSession(session=name):
                root = entry(b"s", 10, 0o040755, present=True)
                return SessionFound(exists=name == "s", root=root if name == "s" else None)
            case ListChildren(directory=number):
                return Children(self.children.get(number, []))
            case RefreshSession():
                return SessionRefreshed([], [11], foreign=True)
            case Fetch(number=number):
                if number == self.bad:
                    raise CorruptDataError("s/dir/b does not verify")
                self.fetched.append(number)
                if self.gate is not None:
                    await self.gate.wait()
                (Path(self.layout.staging) / f"{number}").write_bytes(b"x")
                return Fetched(str(number), entry(b"?", number))
        return Done()


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    layout = StateLayout(str(tmp_path))
    layout.create()
    return Bucket(layout)


@pytest.fixture
def client(bucket: Bucket) -> EagerClient:
    log = IntentLog(bucket.layout.intent_log, boot_id="boot", clock=SystemClock())
    return EagerClient(log, layout=bucket.layout, timeout_seconds=5)


async def test_every_absent_file_is_staged_before_the_session_is_found(
    bucket: Bucket, client: EagerClient
) -> None:
    async with process(client, bucket.answer):
        assert (await client.open_session("s")).exists
        assert sorted(bucket.fetched) == [11, 14, 16]
        await client.open_session("s")
        assert len(bucket.fetched) == 3
        assert not (await client.open_session("unseen")).exists


async def test_a_staged_file_is_given_out_once_and_without_the_store(
    bucket: Bucket, client: EagerClient
) -> None:
    async with process(client, bucket.answer):
        await client.open_session("s")
    assert (await client.fetch(14)).staged == "14"
    async with process(client, bucket.answer):
        await client.fetch(14)
    assert bucket.fetched.count(14) == 2


async def test_one_file_that_cannot_be_had_fails_the_session_and_leaves_nothing(
    bucket: Bucket, client: EagerClient
) -> None:
    bucket.bad = 14
    async with process(client, bucket.answer):
        with pytest.raises(CorruptDataError, match="s/dir/b"):
            await client.open_session("s")
        assert os.listdir(bucket.layout.staging) == []
        bucket.bad = 0
        assert (await client.open_session("s")).exists


async def test_a_file_that_changed_in_the_bucket_is_fetched_anew(bucket: Bucket, client: EagerClient) -> None:
    async with process(client, bucket.answer):
        await client.open_session("s")
        await client.refresh_session("s")
        assert "11" not in os.listdir(bucket.layout.staging)
        await client.fetch(11)
    assert bucket.fetched.count(11) == 2


async def test_who_gives_up_does_not_stop_the_others(bucket: Bucket, client: EagerClient) -> None:
    async with process(client, bucket.answer):
        bucket.gate = trio.Event()
        with trio.move_on_after(0.1) as given_up:
            await client.open_session("s")
        assert given_up.cancelled_caught
        bucket.gate.set()
        await client.open_session("s")
    assert sorted(bucket.fetched) == [11, 14, 16]
