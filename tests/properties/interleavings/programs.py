"""What programs do on the hosts of a search, and what must be left of it: every byte that was written, until a program that saw it replaced it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

import trio

from sessionfs.model.errors import SessionFSError

from .hosts import ME, Host, answer

PATHS = (b"a", b"b.log", b"d/c", b"d/e.log", b"m")
_READ_BYTES = 1 << 20


@dataclass
class Version:
    """Bytes that a program wrote, and was told so.

    Attributes:
        where: Host and path, for people.
        over: Why they need not be anywhere any more, "" when they must.
    """

    where: str
    over: str = ""


@dataclass
class Truth:
    """All versions, by their bytes: no two writes have the same."""

    versions: dict[bytes, Version] = field(default_factory=dict)
    by_sum: dict[str, bytes] = field(default_factory=dict)
    serial: int = 0

    def fresh(self, host: str, size_bytes: int) -> bytes:
        """Make bytes that were never written; a line."""
        self.serial += 1
        head = f"{host}{self.serial}:".encode()
        return head + bytes(97 + self.serial % 26 for _ in range(max(0, size_bytes - len(head)))) + b"\n"

    def wrote(self, body: bytes, where: str) -> None:
        """A program wrote this, and was told so."""
        if body and body not in self.versions:
            self.versions[body] = Version(where)
            self.by_sum[hashlib.sha256(body).hexdigest()] = body
        elif body and self.versions[body].over:
            self.versions[body] = Version(where)

    def replaced(self, body: bytes | None, why: str) -> None:
        """A program replaced what it could see; of another tool's file nobody may know what it was."""
        if body == b"sha256:":
            for version in self.versions.values():
                if version.where.startswith("tool"):
                    version.over = version.over or why
            return
        if body and body.startswith(b"sha256:"):
            body = self.by_sum.get(body[len(b"sha256:") :].decode())
        if body in self.versions and not self.versions[body].over:
            self.versions[body].over = why

    def needed(self) -> dict[bytes, str]:
        """What must be somewhere."""
        return {body: version.where for body, version in self.versions.items() if not version.over}


class Programs:
    """Programs on one host."""

    def __init__(self, host: Host, truth: Truth) -> None:
        self.host = host
        self.truth = truth
        self._open: tuple[Any, int, bytes] | None = None
        self._alone = trio.Lock()

    async def do(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Run one, whatever comes of it."""

        async def run() -> None:
            async with self._alone:
                if self.host.is_up and not self.host.is_paused:
                    await call(*arguments)

        try:
            await self.host.run_program(run)
        except (OSError, SessionFSError):
            return

    async def _place(self, path: bytes) -> tuple[int, bytes]:
        above, _, name = path.rpartition(b"/")
        return await self.host.directory(above), name

    def _shown(self, path: bytes) -> bytes | None:
        """What is at a path now."""
        here = self.host.read_now(path)
        if not self.host.is_serving:
            self._replaced_loosely()
            return here
        return here if here is not None else self.host.tree().get(path)

    async def write(self, path: bytes, size_bytes: int) -> None:
        """Make a file, or write it anew."""
        core = self.host.core
        parent, name = await self._place(path)
        found = await answer(core.lookup(parent, name, ME))
        if not found.number:
            opened, _ = await answer(core.create(parent, name, 0o644, os.O_RDWR | os.O_EXCL, ME))
        else:
            opened = await answer(core.open(found.number, os.O_RDWR, ME))
        try:
            await self._rewrite(opened.handle, path, self.truth.fresh(self.host.name, size_bytes))
        finally:
            core.release(opened.handle)

    async def _rewrite(self, handle: int, path: bytes, body: bytes) -> None:
        core, where = self.host.core, f"{self.host.name} {path.decode()}"
        before = await answer(core.read(handle, 0, _READ_BYTES))
        node = core._volume.handles[handle].node
        waits = core.setattr(node.number, ME, size=0)
        if isawaitable(waits):
            if node.session is None or not node.session.owned:
                self._replaced_loosely()
            await waits
        self.truth.replaced(before, f"written anew by {where}")
        await answer(core.write(handle, 0, body))
        self._note(handle, body, path)

    async def append(self, path: bytes, size_bytes: int) -> None:
        """Append to a file."""
        core = self.host.core
        parent, name = await self._place(path)
        found = await answer(core.lookup(parent, name, ME))
        if not found.number:
            return
        opened = await answer(core.open(found.number, os.O_RDWR | os.O_APPEND, ME))
        try:
            await self._grow(opened.handle, path, self.truth.fresh(self.host.name, size_bytes))
        finally:
            core.release(opened.handle)

    async def _grow(self, handle: int, path: bytes, tail: bytes) -> None:
        core = self.host.core
        before = await answer(core.read(handle, 0, _READ_BYTES))
        await answer(core.write(handle, len(before), tail))
        after = await answer(core.read(handle, 0, _READ_BYTES))
        if after.endswith(tail):
            self.truth.replaced(after[: -len(tail)], f"appended to by {self.host.name} {path.decode()}")
        self._note(handle, after, path)

    def _note(self, handle: int, body: bytes, path: bytes) -> None:
        """Note what was written, if the file still is the one at its path."""
        held = self.host.core._volume.handles.get(handle)
        if held is None or held.descriptor < 0:
            return
        try:
            same = os.path.samestat(os.fstat(held.descriptor), os.lstat(self.host.disk(path)))
        except OSError:
            return
        if same and held.node.places:
            self.truth.wrote(body, f"{self.host.name} {path.decode()}")

    async def hold(self, path: bytes) -> None:
        """Open a log and keep it open."""
        if self._open is not None:
            return
        core = self.host.core
        parent, name = await self._place(path)
        found = await answer(core.lookup(parent, name, ME))
        if found.number:
            opened = await answer(core.open(found.number, os.O_RDWR | os.O_APPEND, ME))
            self._open = (core, opened.handle, path)

    async def go_on(self, size_bytes: int) -> None:
        """Append to what is held open."""
        if self._open is not None and self._open[0] is self.host.core:
            _, handle, path = self._open
            await self._grow(handle, path, self.truth.fresh(self.host.name, size_bytes))

    async def let_go(self) -> None:
        """Close what is held open."""
        held, self._open = self._open, None
        if held is not None and held[0] is self.host.core and self.host.is_up:
            held[0].release(held[1])

    async def remove(self, path: bytes) -> None:
        """Remove a file, whether its bytes are here or not."""
        core = self.host.core
        parent, name = await self._place(path)
        await self._own(parent)
        before = self._shown(path)
        waits = core.unlink(parent, name, ME)
        if waits is not None:
            before = None
            self._replaced_loosely()
            await waits
        self.truth.replaced(before, f"removed by {self.host.name}")

    async def move(self, path: bytes, new: bytes) -> None:
        """Rename a file over whatever has the new name."""
        core = self.host.core
        parent, name = await self._place(path)
        new_parent, new_name = await self._place(new)
        await self._own(parent)
        before = self._shown(new)
        waits = core.rename(parent, name, new_parent, new_name, 0, ME)
        if waits is not None:
            before = None
            self._replaced_loosely()
            await waits
        if path != new:
            self.truth.replaced(before, f"replaced by {self.host.name}'s {path.decode()}")

    async def _own(self, directory: int) -> None:
        """Let the session be ours, and a directory be known, so that the next call need not wait."""
        core = self.host.core
        if not (await core._sessions.session("s")).owned:
            await core.session_requests.claim("s", force=False)
        core.releasedir(await answer(core.opendir(directory, ME)))

    def _replaced_loosely(self) -> None:
        """The session was lost meanwhile: it is not known what exactly is replaced."""
        for version in self.truth.versions.values():
            if not version.over:
                version.over = "perhaps removed"
