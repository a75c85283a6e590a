"""Brings in what the working copy lacks: the names of a directory, a session's news, the bytes of a file.

Everything that waits for the replication process is here, each once at a time per directory, session and file. What it brings is applied
without waiting, so that no call sees half of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

import msgspec
import structlog
import trio

from sessionfs.filesystem.inodes import Directory, Node, Session, failure
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_messages import Entry, Fetched, SessionRefreshed
from sessionfs.model.errors import SessionFSError

_log = structlog.get_logger(__name__)

_CHANGES = stat.S_IWUSR | stat.S_IXUSR


class _Flight:
    """One wait that others join."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: BaseException | None = None


class Loading:
    """Waits for the replication process.

    Args:
        volume: The mount.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._table = volume.table
        self._flights: dict[tuple[str, int | str], _Flight] = {}

    @property
    def waits(self) -> int:
        """How many waits are under way."""
        return len(self._flights)

    def is_ready(self, directory: Directory) -> bool:
        """Say whether a directory's names can be answered at once."""
        session = directory.session
        return directory.loaded and not (
            session is not None and session.foreign and self._volume.is_due(session)
        )

    async def then(self, directory: Directory, call: Callable[..., Any], *arguments: Any) -> Any:
        """Answer a call once a directory's names are known."""
        await self.ready(directory)
        result = call(*arguments)
        return await result if isawaitable(result) else result

    async def then_bring(self, node: Node, call: Callable[..., Any], *arguments: Any) -> Any:
        """Answer a call once a file's bytes are here."""
        await self.bring(node)
        result = call(*arguments)
        return await result if isawaitable(result) else result

    async def ready(self, directory: Directory) -> None:
        """Return when a directory's names are known and, in a foreign session, young enough."""
        session = directory.session
        if session is not None and self._volume.is_due(session):
            await self.once(("session", session.id), lambda: self._refresh(session))
        while not directory.loaded:
            if not directory.places and not self._table.is_session_root(directory):
                directory.loaded = True
                return
            await self.once(("directory", directory.number), lambda: self._load(directory))

    async def bring(self, node: Node) -> None:
        """Return when a file's bytes are in the working copy.

        Raises:
            OSError: EIO after ``fetch_timeout_seconds``; ESTALE when the file was removed meanwhile.
            SessionFSError: Why they cannot be had.
        """
        while node.entry is not None:
            if not node.places:
                raise failure(errno.ESTALE)
            await self.once(("file", node.number), lambda: self._fetch(node))

    async def once(self, key: tuple[str, int | str], work: Callable[[], Awaitable[None]]) -> None:
        """Do something that waits, or wait for whoever does it already.

        Raises:
            OSError: EIO after ``fetch_timeout_seconds``.
            SessionFSError: What the work raised.
        """
        flight = self._flights.get(key)
        if flight is not None:
            await flight.done.wait()
            if flight.error is not None:
                raise (
                    failure(errno.EIO)
                    if not isinstance(flight.error, SessionFSError | OSError)
                    else flight.error
                )
            return
        flight = self._flights[key] = _Flight()
        try:
            with trio.fail_after(self._volume.settings.fetch_timeout_seconds):
                await work()
        except trio.TooSlowError:
            _log.warning("fetch.timed_out", what=key[0], of=str(key[1]))
            flight.error = failure(errno.EIO)
            raise flight.error from None
        except BaseException as problem:
            flight.error = problem
            raise
        finally:
            del self._flights[key]
            flight.done.set()

    # --- sessions

    async def _refresh(self, session: Session) -> None:
        volume = self._volume
        news: SessionRefreshed | None = None
        # What is known stays shown while the store does not answer; the lag holds while it does.
        with trio.move_on_after(volume.settings.foreign_lag_seconds):
            try:
                news = await volume.remote.refresh_session(session.id)
            except SessionFSError as problem:
                _log.warning("session.refresh_failed", session_id=session.id, reason=problem.message)
        session.refreshed_seconds = volume.clock.elapsed_seconds()
        if news is None or not session.foreign:
            return
        session.foreign = news.foreign
        if not news.directories and not news.files:
            return
        session.stale.update(news.files)
        for node in list(self._table.by_number.values()):
            if node.session is not session:
                continue
            if isinstance(node, Directory):
                node.loaded = False
            elif node.number in session.stale:
                self.drop(node)

    def drop(self, node: Node) -> None:
        """Remove old bytes of a foreign session's file, unless somebody has it open."""
        session = node.session
        if session is None or node.handles or node.number not in session.stale:
            return
        session.stale.discard(node.number)
        if node.entry is not None or not node.places:
            return
        status = self._table.status(node)
        for parent, name in node.places:
            self._drop_name(parent, name, node.number)
            parent.loaded = False
        node.entry = entry_of(node.number, node.places[0][1], status)
        node.drop_cache = True
        self._volume.note(Operation.EVICTED, node.number)
        self._volume.notifier.invalidate_inode(node.number)

    def _drop_name(self, parent: Directory, name: bytes, number: int) -> None:
        descriptor = self._table.descriptor(parent)
        with _Unlocked(descriptor, as_root=self._volume.as_root):
            try:
                inode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_ino
                self._table.evict_from_disk(parent, name, number, inode)
            except FileNotFoundError:
                return

    # --- directories

    async def _load(self, directory: Directory) -> None:
        session = directory.session
        if session is not None and session.stale and session.foreign:
            self._drop_unknown(directory, session)
        # Set first: whoever asks for a new look while this one is under way gets one.
        directory.loaded = True
        try:
            children = await self._volume.remote.list_children(directory.number)
        except BaseException:
            directory.loaded = False
            raise
        if directory.loaded:
            self._apply(directory, children.entries)

    def _drop_unknown(self, directory: Directory, session: Session) -> None:
        """Remove old bytes of files that the kernel does not know."""
        table = self._table
        for name in table.names_on_disk(directory):
            override = directory.overrides.get(name)
            status = os.stat(name, dir_fd=table.descriptor(directory), follow_symlinks=False)
            number = (
                status.st_ino
                if override is None
                else override
                if isinstance(override, int)
                else override.number
            )
            if number in session.stale and number not in table.by_number and stat.S_ISREG(status.st_mode):
                session.stale.discard(number)
                self._drop_name(directory, name, number)
                self._volume.note(Operation.EVICTED, number)

    def _apply(self, directory: Directory, entries: list[Entry]) -> None:
        on_disk = set(self._table.names_on_disk(directory))
        overrides: dict[bytes, Entry | int] = {}
        made: list[Entry] = []
        for entry in entries:
            overrides[entry.name] = entry.number
            here = entry.name in on_disk
            if stat.S_ISREG(entry.mode):
                if not here or entry.nlink > 1:
                    overrides[entry.name] = entry
                if not here:
                    self._describe(entry, directory)
            elif not here:
                made.append(entry)
        foreign = directory.session is not None and directory.session.foreign
        gone = [name for name in directory.overrides if name not in overrides and name in on_disk]
        if made or (foreign and gone):
            self._rearrange(directory, made, gone if foreign else [])
        directory.overrides = overrides

    def _describe(self, entry: Entry, directory: Directory) -> None:
        """Take new attributes of a known file whose bytes are not here; what was changed here meanwhile wins."""
        node = self._table.by_number.get(entry.number)
        session = directory.session
        if node is not None and node.entry is not None and (session is None or session.foreign):
            node.entry = entry
            self._volume.notifier.invalidate_inode(node.number)

    def _rearrange(self, directory: Directory, made: list[Entry], gone: list[bytes]) -> None:
        """Make remote directories and symlinks, and remove what another host removed; the directory's times stay."""
        descriptor = self._table.descriptor(directory)
        with _Unlocked(descriptor, as_root=self._volume.as_root):
            for name in gone:
                self._remove_tree(directory, name)
            for entry in made:
                self._make(descriptor, entry)
                self._volume.note(Operation.MATERIALISED, entry.number)

    def _make(self, descriptor: int, entry: Entry) -> None:
        try:
            if stat.S_ISDIR(entry.mode):
                os.mkdir(entry.name, 0o700, dir_fd=descriptor)
            else:
                os.symlink(entry.target, entry.name, dir_fd=descriptor)
        except FileExistsError:
            return
        place = b"/proc/self/fd/%d/%s" % (descriptor, entry.name)
        self._adorn(place, entry)

    def _adorn(self, place: bytes, entry: Entry) -> None:
        """Give a file on disk the attributes that the bucket describes, times last."""
        is_link = stat.S_ISLNK(entry.mode)
        if self._volume.as_root:
            os.chown(place, entry.uid, entry.gid, follow_symlinks=False)
        for name, value in entry.xattrs.items():
            try:
                os.setxattr(place, name, value, follow_symlinks=False)
            except OSError as problem:
                _log.warning("xattr.not_kept", name=name.decode("utf-8", "replace"), reason=problem.strerror)
        if not is_link:
            os.chmod(place, stat.S_IMODE(entry.mode))
        os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)

    def _remove_tree(self, parent: Directory, name: bytes) -> None:
        """Remove local copies of what another host removed; nothing of ours is in a foreign session."""
        override = parent.overrides.get(name)
        number = override if isinstance(override, int) else override.number if override is not None else 0
        node = self._table.by_number.get(number)
        descriptor = self._table.descriptor(parent)
        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if node is not None and not isinstance(node, Directory):
            self._table.remove_from_disk(node, parent, name, copies=status.st_nlink)
            self._table.remove_place(node, parent, name)
        elif stat.S_ISDIR(status.st_mode):
            if isinstance(node, Directory):
                self._table.hold(node)
                self._table.remove_place(node, parent, name)
            _remove_below(descriptor, name)
        else:
            os.unlink(name, dir_fd=descriptor)
        self._volume.notifier.invalidate_entry(parent.number, name)

    # --- bytes

    async def _fetch(self, node: Node) -> None:
        volume = self._volume
        before = node.entry
        try:
            fetched = await volume.remote.fetch(node.number)
        except SessionFSError as problem:
            _log.warning("fetch.failed", number=node.number, reason=problem.message)
            raise
        staged = os.path.join(os.fsencode(volume.layout.staging), os.fsencode(fetched.staged))
        if _is_outdated(node, before, fetched):
            os.unlink(staged)  # it was truncated, removed or changed elsewhere meanwhile
            return
        self._install(node, fetched, staged, unchanged=node.entry is before)

    def _install(self, node: Node, fetched: Fetched, staged: bytes, *, unchanged: bool) -> None:
        table, entry = self._table, node.entry
        if unchanged or entry is None:
            entry = fetched.entry
        os.chmod(staged, 0o600)
        self._adorn(staged, entry)
        parent, name = node.places[0]
        descriptor = table.descriptor(parent)
        with _Unlocked(descriptor, as_root=self._volume.as_root):
            os.rename(staged, name, dst_dir_fd=descriptor)
        self.settled_here(node, parent, name)
        self._volume.note(Operation.FETCHED, node.number)

    def settled_here(self, node: Node, parent: Directory, name: bytes) -> None:
        """Note that a file's bytes came to one of its names; its other known names are linked to it."""
        links = node.entry.nlink if node.entry is not None else 1
        node.entry = None
        node.acl = node.capability = None
        parent.overrides[name] = node.number
        linked = 1
        for directory, other in node.places[1:]:
            descriptor = self._table.descriptor(directory)
            with _Unlocked(descriptor, as_root=self._volume.as_root):
                os.link(
                    name,
                    other,
                    src_dir_fd=self._table.descriptor(parent),
                    dst_dir_fd=descriptor,
                    follow_symlinks=False,
                )
            directory.overrides[other] = node.number
            linked += 1
        node.absent_names = max(0, links - linked)

    def evict(self, node: Node, status: os.stat_result) -> None:
        """Remove a clean file's bytes; its names and attributes stay."""
        place = self._volume.xattr_path(node)
        entry = entry_of(node.number, node.places[0][1], status)
        xattrs = {
            os.fsencode(name): os.getxattr(place, name, follow_symlinks=False)
            for name in os.listxattr(place, follow_symlinks=False)
        }
        entry = msgspec.structs.replace(entry, xattrs=xattrs)
        for parent, name in node.places:
            with _Unlocked(self._table.descriptor(parent), as_root=self._volume.as_root):
                if parent is node.places[0][0] and name == node.places[0][1]:
                    self._table.evict_from_disk(parent, name, node.number, status.st_ino)
                else:
                    os.unlink(name, dir_fd=self._table.descriptor(parent))
            parent.overrides[name] = msgspec.structs.replace(entry, name=name)
        node.entry = entry
        self._volume.note(Operation.EVICTED, node.number)

    def make_empty(self, node: Node) -> None:
        """Give a file whose bytes are not here an empty body instead of fetching what would be cut off."""
        entry = node.entry
        if entry is None:
            return
        parent, name = node.places[0]
        descriptor = self._table.descriptor(parent)
        with _Unlocked(descriptor, as_root=self._volume.as_root):
            created = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=descriptor
            )
        os.close(created)
        place = b"/proc/self/fd/%d/%s" % (descriptor, name)
        self._adorn(place, entry)
        os.utime(place)
        self.settled_here(node, parent, name)


class _Unlocked:
    """Keeps a directory's times, and lets a daemon that is not root change one that its owner may not."""

    def __init__(self, descriptor: int, *, as_root: bool) -> None:
        self._descriptor = descriptor
        self._as_root = as_root
        self._locked = False

    def __enter__(self) -> None:
        self._before = os.stat(b".", dir_fd=self._descriptor)
        self._locked = not self._as_root and self._before.st_mode & _CHANGES != _CHANGES
        if self._locked:
            os.chmod(b".", stat.S_IMODE(self._before.st_mode) | 0o700, dir_fd=self._descriptor)

    def __exit__(self, *_: object) -> None:
        if self._locked:
            os.chmod(b".", stat.S_IMODE(self._before.st_mode), dir_fd=self._descriptor)
        os.utime(b".", ns=(self._before.st_atime_ns, self._before.st_mtime_ns), dir_fd=self._descriptor)


def _is_outdated(node: Node, before: Entry | None, fetched: Fetched) -> bool:
    """Whether fetched bytes have no place any more, or are not those that are described by now."""
    if node.entry is None or not node.places:
        return True
    return node.entry is not before and node.entry.size_bytes != fetched.entry.size_bytes


def entry_of(number: int, name: bytes, status: os.stat_result) -> Entry:
    """Describe a file whose bytes leave the working copy."""
    return Entry(
        name=name, number=number, present=False, mode=status.st_mode, uid=status.st_uid, gid=status.st_gid,
        size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, nlink=status.st_nlink,
    )  # fmt: skip


def _remove_below(descriptor: int, name: bytes) -> None:
    """Remove a directory with everything in it."""
    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        for child in os.listdir(below):
            try:
                os.unlink(child, dir_fd=below)
            except IsADirectoryError:
                _remove_below(below, os.fsencode(child))
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=descriptor)
