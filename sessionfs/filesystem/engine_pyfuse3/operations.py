"""pyfuse3's calls, answered by the Core.

Every handler ends in a reply or a `FUSEError`: any other exception would end pyfuse3's loop, and the mount with it.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import pyfuse3
import structlog
from pyfuse3 import FUSEError

from sessionfs.filesystem.core import Core
from sessionfs.filesystem.data import Opened
from sessionfs.filesystem.engine_pyfuse3.loop import Reactor
from sessionfs.filesystem.errno_map import errno_of
from sessionfs.filesystem.volume import Attributes
from sessionfs.model.errors import SessionFSError

_log = structlog.get_logger(__name__)

_CAPABILITY = b"security.capability"
_NO_DATA = errno.ENODATA


def _entry(shown: Attributes) -> pyfuse3.EntryAttributes:
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = shown.number
    entry.st_mode = shown.mode
    entry.st_nlink = shown.nlink
    entry.st_uid = shown.uid
    entry.st_gid = shown.gid
    entry.st_rdev = shown.rdev
    entry.st_size = shown.size
    entry.st_blocks = shown.blocks
    entry.st_atime_ns = shown.atime_ns
    entry.st_mtime_ns = shown.mtime_ns
    entry.st_ctime_ns = shown.ctime_ns
    entry.attr_timeout = shown.attr_timeout
    entry.entry_timeout = shown.entry_timeout
    return entry


def _file_info(opened: Opened) -> pyfuse3.FileInfo:
    return pyfuse3.FileInfo(opened.handle, opened.direct, opened.keep_cache)


def _fail(call: str, problem: Exception) -> NoReturn:
    """Turn any exception into a reply."""
    if isinstance(problem, FUSEError):
        raise problem
    if not isinstance(problem, OSError):
        if isinstance(problem, SessionFSError):
            _log.warning("call.failed", call=call, kind=type(problem).__name__, reason=problem.message)
        else:
            _log.error("call.broke", call=call, exc_info=problem)
    raise FUSEError(errno_of(problem)) from None


class Operations(pyfuse3.Operations):
    """pyfuse3's calls on a `Core`.

    Args:
        core: Answers.
        reactor: Is told before a call waits.
    """

    supports_dot_lookup = True
    enable_writeback_cache = False

    def __init__(self, core: Core, reactor: Reactor) -> None:
        super().__init__()
        self.enable_acl = core.settings.default_permissions
        self._core = core
        self._wake_another = reactor.wake_another

    async def _answer(self, call: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call that may wait."""
        try:
            result = operation(*arguments)
            if isinstance(result, Awaitable):
                self._wake_another()
                result = await result
            return result
        except Exception as problem:  # noqa: BLE001 - anything else would end the mount
            _fail(call, problem)

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        """Find a name."""
        try:
            shown = self._core.lookup(parent_inode, name, ctx)
            if not isinstance(shown, Attributes):
                self._wake_another()
                shown = await shown
            return _entry(shown)
        except Exception as problem:  # noqa: BLE001
            _fail("lookup", problem)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Take lookups back."""
        for number, lookups in inode_list:
            try:
                self._core.forget(number, lookups)
            except Exception as problem:  # noqa: BLE001 - there is no reply to fail
                _log.error("call.broke", call="forget", exc_info=problem)

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:  # noqa: ARG002 - pyfuse3 passes it
        """Give attributes."""
        try:
            return _entry(self._core.getattr(inode))
        except Exception as problem:  # noqa: BLE001
            _fail("getattr", problem)

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: Any,
    ) -> pyfuse3.EntryAttributes:
        """Change attributes."""
        try:
            shown = self._core.setattr(
                inode,
                ctx,
                mode=attr.st_mode if fields.update_mode else None,
                uid=attr.st_uid if fields.update_uid else None,
                gid=attr.st_gid if fields.update_gid else None,
                size=attr.st_size if fields.update_size else None,
                atime_ns=attr.st_atime_ns if fields.update_atime else None,
                mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
                handle=fh,
            )
            if not isinstance(shown, Attributes):
                self._wake_another()
                shown = await shown
            return _entry(shown)
        except Exception as problem:  # noqa: BLE001
            _fail("setattr", problem)

    async def readlink(self, inode: int, ctx: Any) -> bytes:  # noqa: ARG002 - pyfuse3 passes it
        """Give a symlink's text."""
        try:
            return self._core.readlink(inode)
        except Exception as problem:  # noqa: BLE001
            _fail("readlink", problem)

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: Any
    ) -> pyfuse3.EntryAttributes:
        """Make a file, fifo, socket or device."""
        return _entry(await self._answer("mknod", self._core.mknod, parent_inode, name, mode, rdev, ctx))

    async def mkdir(self, parent_inode: int, name: bytes, mode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        """Make a directory or a session."""
        return _entry(await self._answer("mkdir", self._core.mkdir, parent_inode, name, mode, ctx))

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: Any
    ) -> pyfuse3.EntryAttributes:
        """Make a symlink."""
        return _entry(await self._answer("symlink", self._core.symlink, parent_inode, name, target, ctx))

    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: Any
    ) -> pyfuse3.EntryAttributes:
        """Give a file another name."""
        return _entry(await self._answer("link", self._core.link, inode, new_parent_inode, new_name, ctx))

    async def unlink(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        """Remove a name."""
        await self._answer("unlink", self._core.unlink, parent_inode, name, ctx)

    async def rmdir(self, parent_inode: int, name: bytes, ctx: Any) -> None:
        """Remove an empty directory."""
        await self._answer("rmdir", self._core.rmdir, parent_inode, name, ctx)

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: Any,
    ) -> None:
        """Rename."""
        await self._answer(
            "rename", self._core.rename, parent_inode_old, name_old, parent_inode_new, name_new, flags, ctx
        )

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: Any
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """Make and open a file."""
        try:
            made = self._core.create(parent_inode, name, mode & 0o7777, flags, ctx)
            if not isinstance(made, tuple):
                self._wake_another()
                made = await made
            return _file_info(made[0]), _entry(made[1])
        except Exception as problem:  # noqa: BLE001
            _fail("create", problem)

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        """Open a file."""
        try:
            opened = self._core.open(inode, flags, ctx)
            if not isinstance(opened, Opened):
                self._wake_another()
                opened = await opened
            return _file_info(opened)
        except Exception as problem:  # noqa: BLE001
            _fail("open", problem)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        """Read."""
        try:
            found = self._core.read(fh, off, size)
            if not isinstance(found, bytes):
                self._wake_another()
                found = await found
            return found
        except Exception as problem:  # noqa: BLE001
            _fail("read", problem)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write."""
        try:
            written = self._core.write(fh, off, buf)
            if not isinstance(written, int):
                self._wake_another()
                written = await written
            return written
        except Exception as problem:  # noqa: BLE001
            _fail("write", problem)

    async def flush(self, fh: int) -> None:
        """Nothing is held back: what a write returned is in the working copy."""

    async def release(self, fh: int) -> None:
        """Close a handle."""
        try:
            self._core.release(fh)
        except Exception as problem:  # noqa: BLE001
            _fail("release", problem)

    async def fsync(self, fh: int, datasync: bool) -> None:
        """Bring a file to the disk or the bucket."""
        self._wake_another()
        try:
            await self._core.fsync(fh, data_only=datasync)
        except Exception as problem:  # noqa: BLE001
            _fail("fsync", problem)

    async def opendir(self, inode: int, ctx: Any) -> int:
        """Open a directory."""
        return int(await self._answer("opendir", self._core.opendir, inode, ctx))

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List names with their attributes; each one the kernel takes is known to it once more."""
        entries = await self._answer("readdir", self._core.readdir, fh, start_id)
        try:
            for name, shown, cookie, found in entries:
                if not pyfuse3.readdir_reply(token, name, _entry(shown), cookie):
                    return
                if found is not None:
                    self._core.adopt(fh, name, found)
        except Exception as problem:  # noqa: BLE001
            _fail("readdir", problem)

    async def releasedir(self, fh: int) -> None:
        """Close a directory."""
        self._core.releasedir(fh)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:  # noqa: ARG002 - pyfuse3 passes it
        """Bring names to the disk or the bucket."""
        await self._answer("fsyncdir", self._core.fsyncdir, fh)

    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:  # noqa: ARG002 - pyfuse3 passes it
        """Describe the disk."""
        disk = await self._answer("statfs", self._core.statfs)
        shown = pyfuse3.StatvfsData()
        for name in (
            "f_bsize",
            "f_frsize",
            "f_blocks",
            "f_bfree",
            "f_bavail",
            "f_files",
            "f_ffree",
            "f_favail",
        ):
            setattr(shown, name, getattr(disk, name))
        shown.f_namemax = 255
        return shown

    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        """Give an extended attribute; the kernel asks for one before every write."""
        if name == _CAPABILITY and self._core.lacks_capability(inode):
            raise FUSEError(_NO_DATA)
        return bytes(await self._answer("getxattr", self._core.getxattr, inode, name, ctx))

    async def listxattr(self, inode: int, ctx: Any) -> Sequence[bytes]:  # noqa: ARG002 - pyfuse3 passes it
        """List the names of extended attributes."""
        names: Sequence[bytes] = await self._answer("listxattr", self._core.listxattr, inode)
        return names

    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: Any) -> None:
        """Set an extended attribute."""
        await self._answer("setxattr", self._core.setxattr, inode, name, value, ctx)

    async def removexattr(self, inode: int, name: bytes, ctx: Any) -> None:
        """Remove an extended attribute."""
        await self._answer("removexattr", self._core.removexattr, inode, name, ctx)

    async def access(self, inode: int, mode: int, ctx: Any) -> bool:
        """Say whether an access is allowed."""
        return bool(await self._answer("access", self._core.access, inode, mode, ctx))
