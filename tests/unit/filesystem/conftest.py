from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from sessionfs.filesystem.core import Core
from sessionfs.formats import intent_records
from sessionfs.formats.intent_records import HEADER_BYTES, Intent, Operation, Outcome
from sessionfs.model.clock import SystemClock
from sessionfs.model.settings import FilesystemSettings
from sessionfs.testing.fake_remote import FakeRemote
from sessionfs.working_copy.intent_log import IntentLog
from sessionfs.working_copy.layout import ROOT_NUMBER, StateLayout


@dataclass(frozen=True)
class Somebody:
    uid: int
    gid: int
    pid: int = 0


ME = Somebody(os.geteuid(), os.getegid())


async def answer(result: Any) -> Any:
    """Wait if the call has to."""
    return await result if isawaitable(result) else result


class SettableLease:
    """A lease as a test wants it."""

    def __init__(self) -> None:
        self.deadline_seconds = math.inf
        self.is_outage = False


class Rig:
    """A Core on a state directory, as an engine would use it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.layout = StateLayout(str(root))
        self.layout.create()
        self.remote = FakeRemote(self.layout)
        self.settings = FilesystemSettings(**settings)
        self.lease = SettableLease()
        self.start()

    def start(self) -> None:
        clock = SystemClock()
        self.log = IntentLog(self.layout.intent_log, boot_id="0" * 36, clock=clock)
        self.core = Core(
            layout=self.layout, log=self.log, remote=self.remote, settings=self.settings, clock=clock,
            control_socket="/control", groups=lambda _pid: (), lease=self.lease,
        )  # fmt: skip

    def stop(self) -> None:
        self.core.close()
        self.log.close()

    async def session(self, name: bytes = b"s") -> int:
        """Make a session; gives its root's number."""
        made = await answer(self.core.mkdir(ROOT_NUMBER, name, 0o755, ME))
        return int(made.number)

    async def file(self, parent: int, name: bytes, body: bytes = b"") -> int:
        """Make a file; gives its number."""
        opened, shown = await answer(self.core.create(parent, name, 0o644, os.O_RDWR | os.O_EXCL, ME))
        if body:
            assert self.core.write(opened.handle, 0, body) == len(body)
        self.core.release(opened.handle)
        return int(shown.number)

    async def look(self, *path: bytes) -> Any:
        """Walk a path from the root; gives the attributes of its end."""
        number, shown = ROOT_NUMBER, None
        for name in path:
            shown = await answer(self.core.lookup(number, name, ME))
            number = shown.number
        return shown

    async def read(self, number: int) -> bytes:
        opened = await answer(self.core.open(number, os.O_RDONLY, ME))
        body: bytes = await answer(self.core.read(opened.handle, 0, 1 << 20))
        self.core.release(opened.handle)
        return body

    async def names(self, number: int) -> list[bytes]:
        handle = await answer(self.core.opendir(number, ME))
        listed = [name for name, *_ in await answer(self.core.readdir(handle, 0))]
        self.core.releasedir(handle)
        return sorted(set(listed) - {b".", b".."})

    def records(self) -> list[tuple[str, int, Any]]:
        """Give what the log holds as (operation, errno, intent), without the record of the start."""
        with open(self.layout.intent_log, "rb") as file:
            raw = file.read()
        found = [record for record, _ in intent_records.decode_records(raw[HEADER_BYTES:])]
        outcomes = {record.sequence: record for record in found if isinstance(record, Outcome)}
        return [
            (Operation(record.operation).name, outcomes[record.sequence].errno, record)
            for record in found
            if isinstance(record, Intent) and record.operation != Operation.STARTED
        ]

    def operations(self) -> list[str]:
        return [operation for operation, _, _ in self.records()]


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    umask = os.umask(0)
    os.umask(umask)
    made: list[Rig] = []

    def make(**settings: Any) -> Rig:
        made.append(Rig(tmp_path / f"state{len(made)}", **settings))
        return made[-1]

    yield make
    for rig in made:
        rig.stop()
    os.umask(umask)


@pytest.fixture
def rig(rigs: Callable[..., Rig]) -> Rig:
    return rigs()
