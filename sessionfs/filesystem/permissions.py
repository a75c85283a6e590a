"""Who may do what: owner, group, others, supplementary groups, POSIX ACLs, sticky directories.

Used when the kernel does not check itself (``default_permissions`` off). User 0 may do everything but execute a file that
nobody may execute.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Collection
from typing import Protocol

READ, WRITE, SEARCH = 4, 2, 1
"""Kinds of access, as in ``access(2)``."""

_ACL_ENTRY = struct.Struct("<HHI")
_ACL_HEADER_BYTES = 4
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20


class Caller(Protocol):
    """The process that made a request."""

    @property
    def uid(self) -> int:
        """User."""

    @property
    def gid(self) -> int:
        """Group."""

    @property
    def pid(self) -> int:
        """Process; 0 when it lives in another process namespace."""


class Owned(Protocol):
    """Something with an owner and a mode."""

    mode: int
    uid: int
    gid: int


Groups = Callable[[int], Collection[int]]


def supplementary_groups(pid: int) -> Collection[int]:
    """Read a process's supplementary groups; none when it cannot be seen.

    Source: proc(5), /proc/pid/status.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Groups:"):
                    return {int(group) for group in line.split()[1:]}
    except OSError:
        pass
    return ()


class Permissions:
    """Decides.

    Args:
        groups: Gives the supplementary groups of a process.
        enabled: Whether to check at all; the kernel does when False.
    """

    def __init__(self, groups: Groups, *, enabled: bool) -> None:
        self._groups = groups
        self.enabled = enabled

    def in_group(self, caller: Caller, gid: int) -> bool:
        """Say whether the caller belongs to a group."""
        return caller.gid == gid or gid in self._groups(caller.pid)

    def allows(self, caller: Caller, file: Owned, wanted: int, acl: bytes = b"") -> bool:
        """Say whether the caller has an access.

        Args:
            caller: Who asks.
            file: Mode and owner.
            wanted: Bits of `READ`, `WRITE` and `SEARCH` (execute, for files).
            acl: The value of ``system.posix_acl_access``, empty for none.
        """
        if not self.enabled or not wanted:
            return True
        mode = file.mode
        if caller.uid == 0:
            return not (wanted & SEARCH and not stat.S_ISDIR(mode) and not mode & 0o111)
        if caller.uid == file.uid:
            return (mode >> 6) & wanted == wanted
        if acl:
            return self._acl_allows(caller, file, wanted, acl)
        if self.in_group(caller, file.gid):
            return (mode >> 3) & wanted == wanted
        return mode & wanted == wanted

    def require(self, caller: Caller, file: Owned, wanted: int, acl: bytes = b"") -> None:
        """Refuse a caller without an access.

        Raises:
            OSError: EACCES.
        """
        if not self.allows(caller, file, wanted, acl):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def require_owner(self, caller: Caller, file: Owned) -> None:
        """Refuse a caller who does not own the file.

        Raises:
            OSError: EPERM.
        """
        if self.enabled and caller.uid not in (0, file.uid):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def require_removal(self, caller: Caller, directory: Owned, file: Owned) -> None:
        """Refuse removing or replacing another's file in a sticky directory.

        Raises:
            OSError: EPERM.
        """
        if not self.enabled or not directory.mode & stat.S_ISVTX:
            return
        if caller.uid not in (0, directory.uid, file.uid):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def require_owner_change(self, caller: Caller, file: Owned, uid: int | None, gid: int | None) -> None:
        """Refuse giving a file away, or to a group the owner does not belong to.

        Raises:
            OSError: EPERM.
        """
        if not self.enabled or caller.uid == 0:
            return
        owner = caller.uid == file.uid
        if uid is not None and not (owner and uid == file.uid):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        if gid is not None and not (owner and (gid == file.gid or self.in_group(caller, gid))):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def chmod_mode(self, caller: Caller, file: Owned, mode: int) -> int:
        """Give the mode that chmod sets: setgid is dropped for callers outside the group."""
        if self.enabled and caller.uid != 0 and mode & stat.S_ISGID and not self.in_group(caller, file.gid):
            return mode & ~stat.S_ISGID
        return mode

    def _acl_allows(self, caller: Caller, file: Owned, wanted: int, acl: bytes) -> bool:
        """Apply the access check algorithm of acl(5)."""
        mask = 7
        other = file.mode & 7
        named_user: int | None = None
        groups: list[tuple[int, int]] = []
        for tag, granted, number in _ACL_ENTRY.iter_unpack(acl[_ACL_HEADER_BYTES:]):
            if tag == _USER and number == caller.uid:
                named_user = granted
            elif tag == _GROUP_OBJ:
                groups.append((file.gid, granted))
            elif tag == _GROUP:
                groups.append((number, granted))
            elif tag == _MASK:
                mask = granted
            elif tag == _OTHER:
                other = granted
        if named_user is not None:
            return named_user & mask & wanted == wanted
        own = {caller.gid, *self._groups(caller.pid)}
        matching = [granted for number, granted in groups if number in own]
        if matching:
            return any(granted & mask & wanted == wanted for granted in matching)
        return other & wanted == wanted
