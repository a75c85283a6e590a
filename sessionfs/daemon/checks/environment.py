"""What this machine must offer before anything can be mounted. Looks only; changes nothing."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass

from sessionfs.model.errors import MountError


@dataclass(frozen=True, slots=True)
class FuseEnvironment:
    """Where the machine keeps its FUSE; the paths differ only in tests.

    Attributes:
        device: The character device.
        fusermount: The setuid program that mounts for ordinary users.
        configuration: Where ``user_allow_other`` is.
        uid: Who mounts.
    """

    device: str = "/dev/fuse"
    fusermount: str = "fusermount3"
    configuration: str = "/etc/fuse.conf"
    uid: int = -1

    @property
    def is_root(self) -> bool:
        """Whether the one who mounts is root."""
        return (os.geteuid() if self.uid < 0 else self.uid) == 0

    def check_device(self) -> None:
        """Require a device that can be opened.

        Raises:
            MountError: It cannot.
        """
        try:
            os.close(os.open(self.device, os.O_RDWR | os.O_CLOEXEC))
        except OSError as problem:
            if problem.errno in {errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR}:
                remedy = "run 'modprobe fuse' as root; in a container: start it with --device /dev/fuse"
                raise MountError(
                    f"{self.device} is missing: this kernel offers no FUSE", remedy=remedy
                ) from None
            remedy = "run 'chmod 666 /dev/fuse' as root; in a container: allow it the device 10:229"
            raise MountError(f"{self.device} cannot be opened: {problem.strerror}", remedy=remedy) from None

    def check_fusermount(self) -> None:
        """Require the program that mounts for ordinary users; root does without.

        Raises:
            MountError: It is missing.
        """
        if not self.is_root and shutil.which(self.fusermount) is None:
            raise MountError(
                f"{self.fusermount} is missing", remedy="install the package fuse3: apt-get install fuse3"
            )

    def allows_others(self) -> bool:
        """Say whether ordinary users may let other users see their mounts."""
        try:
            with open(self.configuration, encoding="utf-8", errors="replace") as file:
                return any(line.strip() == "user_allow_other" for line in file)
        except OSError:
            return False

    def check_allow_other(self) -> None:
        """Require that ``--allow-other`` will be accepted.

        Raises:
            MountError: It will not.
        """
        if not self.is_root and not self.allows_others():
            raise MountError(
                f"--allow-other needs the line 'user_allow_other' in {self.configuration}",
                remedy=f"as root: echo user_allow_other >> {self.configuration}",
            )
