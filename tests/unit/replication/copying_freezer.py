"""The daemon's part of a commit, in a few lines: every changing file is copied at the barrier."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable

from sessionfs.formats.commit_messages import Barrier, BarrierHeld, FrozenAt, FrozenFile, FrozenImage, Thaw
from sessionfs.working_copy.layout import StateLayout


def _nothing() -> None:
    """Nothing happens."""


class CopyingFreezer:
    """Copies.

    Args:
        layout: The state directory.
        position: Gives the log's end.

    Attributes:
        in_place: Paths that are not copied: the test only appends to them.
        at_barrier: Called at the barrier, before anything is noted.
        barriers: How many there were.
    """

    def __init__(self, layout: StateLayout, position: Callable[[], int]) -> None:
        self._layout = layout
        self._position = position
        self.in_place: set[bytes] = set()
        self.at_barrier: Callable[[], None] = _nothing
        self.barriers = 0
        self._staged: dict[tuple[str, int], str] = {}

    async def barrier(self, request: Barrier) -> BarrierHeld:
        self.at_barrier()
        self.barriers += 1
        frozen: list[FrozenFile] = []
        for number, path in request.paths.items():
            whole = os.path.join(os.fsencode(self._layout.sessions), request.session.encode(), path)
            status = os.lstat(whole)
            frozen.append(
                FrozenFile(
                    number, status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns,
                    status.st_ctime_ns, 0, {},
                )
            )  # fmt: skip
            if stat.S_ISREG(status.st_mode) and path not in self.in_place:
                name = f"frozen-{request.commit}-{number}"
                shutil.copy(whole, os.path.join(os.fsencode(self._layout.staging), name.encode()))
                self._staged[request.commit, number] = name
        return BarrierHeld(self._position(), frozen, 0.001)

    async def frozen_image(self, request: FrozenImage) -> FrozenAt:
        return FrozenAt(staged=self._staged.get((request.commit, request.number), ""))

    async def thaw(self, request: Thaw) -> None:
        for key in [key for key in self._staged if key[0] == request.commit]:
            os.unlink(os.path.join(self._layout.staging, self._staged.pop(key)))
