"""The life of one mount through pyfuse3, which keeps its state in globals: one mount per process."""

from __future__ import annotations

import contextlib
import subprocess

import pyfuse3
import trio

from sessionfs.filesystem.core import Core
from sessionfs.filesystem.engine_pyfuse3.loop import KernelNotifier, Reactor
from sessionfs.filesystem.engine_pyfuse3.operations import Operations
from sessionfs.model.errors import MountError

MAX_WAITING_REQUESTS = 1000
"""Requests that may wait for the store at once before others have to wait too."""
GRACE_SECONDS = 1.0
"""How long requests that wait may still be answered once the mount ends."""


class Pyfuse3Engine:
    """One mount through pyfuse3."""

    def __init__(self) -> None:
        self._mount_point = ""
        self._reactor = Reactor(on_end=self._end_waits)
        self._waits = trio.CancelScope()
        self._notifier = KernelNotifier()
        self._mounted = False

    def mount(self, core: Core, mount_point: str, options: set[str]) -> None:
        """Mount; requests wait until `serve` runs.

        Args:
            core: Answers.
            mount_point: An existing, empty directory.
            options: As for ``-o``: ``fsname=...``, ``allow_other``, ``suid``, ``dev``; ``default_permissions`` and ``allow_other`` are added as
                the settings say.

        Raises:
            MountError: The kernel or libfuse refused.
        """
        wanted = {"subtype=sessionfs", *map(_ascii_option, options)}
        if core.settings.default_permissions:
            wanted.add("default_permissions")
        if core.settings.allow_other:
            wanted.add("allow_other")
        try:
            pyfuse3.init(Operations(core, self._reactor), mount_point, wanted)
        except (RuntimeError, OSError) as problem:
            raise MountError(
                f"cannot mount on {mount_point}: {problem}",
                remedy="the line that fuse printed says why; sessionfs doctor checks the machine",
            ) from None
        self._mount_point = mount_point
        self._mounted = True
        core.set_notifier(self._notifier)

    async def serve(self) -> None:
        """Answer requests until the mount ends, by `unmount` or from outside."""
        self._notifier.start()
        try:
            with self._reactor.installed(), self._waits:
                await pyfuse3.main(max_tasks=MAX_WAITING_REQUESTS)
        finally:
            self._notifier.close()

    def unmount(self) -> None:
        """Let `serve` return; requests under way have `GRACE_SECONDS`, then they fail as the mount goes."""
        self._notifier.close()
        with contextlib.suppress(Exception):
            pyfuse3.terminate()
        self._reactor.close()

    def _end_waits(self) -> None:
        self._waits.deadline = min(self._waits.deadline, trio.current_time() + GRACE_SECONDS)

    def close(self) -> None:
        """Remove the mount, lazily if somebody uses it. Call it when `serve` has returned."""
        if not self._mounted:
            return
        self._mounted = False
        if self._notifier.ended():
            pyfuse3.close(unmount=True)
        else:
            # A notification hangs in the kernel: tearing the session down under it would crash.
            subprocess.run(["fusermount3", "-u", "-z", self._mount_point], check=False, capture_output=True)


def _ascii_option(option: str) -> str:
    """Spell an option as libfuse takes it: ASCII, with commas of a value escaped."""
    name, equals, value = option.partition("=")
    value = value.replace("\\", "\\\\").replace(",", "\\,")
    return (name + equals + value).encode("ascii", "replace").decode()
