"""Brings in what the working copy lacks: the names of a directory, a session's news, the bytes of a file.

Everything that waits for the replication process is here, each once at a time per directory, session and file. What it brings is applied
without waiting, so that no call sees half of it.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

import msgspec
import structlog
import trio

from sessionfs.filesystem.barrier.freezing import Freezing
from sessionfs.filesystem.hydration.foreign_changes import ForeignChanges
from sessionfs.filesystem.hydration.partial_files import PartialFiles
from sessionfs.filesystem.hydration.placing import Unlocked, adorn, entry_of, remove_below
from sessionfs.filesystem.inodes import Directory, Node, Session, failure
from sessionfs.filesystem.ownership.claims import Claims
from sessionfs.filesystem.ownership.gate import Gate
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import Entry
from sessionfs.formats.link_messages import (
    Fetched,
)
from sessionfs.model.errors import SessionFSError

_log = structlog.get_logger(__name__)


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

    Attributes:
        gate: What every change passes.
        freezing: Kept bytes of commits.
        claims: Makes this host the owner of sessions.
        partials: Large files that are read before they are here.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._table = volume.table
        self._changes = ForeignChanges(volume)
        self.freezing = Freezing(volume)
        self.gate = Gate(volume)
        self.claims = Claims(volume, self._changes, self.freezing)
        self.partials = PartialFiles(volume, once=self.once, place=self._place, bring=self.bring)
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

    async def then_kept(self, node: Node, call: Callable[..., Any], *arguments: Any) -> Any:
        """Answer a call that takes a file's last name away once what its readers still want is here, or cannot be had."""
        try:
            await self.bring(node)
        except (OSError, SessionFSError):
            self.partials.give_up(node)
        result = call(*arguments)
        return await result if isawaitable(result) else result

    async def then_owned(self, session: Session | None, call: Callable[..., Any], *arguments: Any) -> Any:
        """Answer a call once this host owns the session.

        Raises:
            SessionFSError: As `claim`.
        """
        if session is not None:
            await self.claim(session)
        result = call(*arguments)
        return await result if isawaitable(result) else result

    async def claim(self, session: Session, *, force: bool = False) -> None:
        """Become a session's owner, and take over what its last owner changed.

        Args:
            session: The session.
            force: Take over from a holder that may still live.

        Raises:
            SessionAlreadyOwnedError: Another host owns it.
            SessionFSError: The store did not answer, or refused.
            OSError: EIO after ``fetch_timeout_seconds``.
        """
        key = ("claim by force" if force else "claim", session.id)
        # Taking over many files takes its time: the wait for the replication process ends by itself.
        await self.once(key, lambda: self.claims.claim(session, force=force), limited=False)

    async def ready(self, directory: Directory) -> None:
        """Return when a directory's names are known and, in a foreign session, young enough."""
        session = directory.session
        if session is not None and self._volume.is_due(session):
            await self.compare(session)
        while not directory.loaded:
            if not directory.places and not self._table.is_session_root(directory):
                directory.loaded = True
                return
            await self.once(("directory", directory.number), lambda: self._load(directory))

    async def compare(self, session: Session) -> None:
        """Compare a foreign session with the bucket; without an answer in time, what is known stays."""
        await self.once(("session", session.id), lambda: self._changes.refresh(session))

    async def bring(self, node: Node) -> None:
        """Return when a file's bytes are in the working copy.

        Raises:
            OSError: ESTALE when the file was removed meanwhile.
            SessionFSError: Why they cannot be had; nothing came for ``fetch_timeout_seconds``.
        """
        while node.entry is not None:
            if not node.places:
                raise failure(errno.ESTALE)
            # A large file takes its time: how long nothing may come is watched where the bytes arrive.
            await self.once(("file", node.number), lambda: self._fetch(node), limited=False)

    async def once(
        self, key: tuple[str, int | str], work: Callable[[], Awaitable[None]], *, limited: bool = True
    ) -> None:
        """Do something that waits, or wait for whoever does it already.

        Args:
            key: What it is about.
            work: Does it.
            limited: Whether it ends after ``fetch_timeout_seconds``; else every wait in it ends by itself.

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
            with trio.fail_after(self._volume.settings.fetch_timeout_seconds if limited else math.inf):
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

    # --- directories

    async def _load(self, directory: Directory) -> None:
        session = directory.session
        if session is not None and session.stale:
            self._changes.drop_unknown(directory, session)
        looks = directory.looks
        children = await self._volume.remote.list_children(directory.number)
        if directory.looks == looks:  # else a new look was asked for meanwhile
            self._apply(directory, children.entries)
            directory.loaded = True

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
        before, directory.overrides = directory.overrides, overrides
        for name, override in before.items():
            now = overrides.get(name)
            if now is None and name in on_disk and not foreign:
                continue
            if now is None or _number(now) != _number(override):
                self._changes.lose(directory, name, _number(override))

    def _describe(self, entry: Entry, directory: Directory) -> None:
        """Take new attributes of a known file whose bytes are not here; what was changed here meanwhile wins."""
        node = self._table.by_number.get(entry.number)
        session = directory.session
        if node is None or node.entry is None or not (session is None or session.foreign):
            return
        if not self.partials.keeps(node, entry):
            node.entry = entry
            self._volume.notifier.invalidate_inode(node.number)

    def _rearrange(self, directory: Directory, made: list[Entry], gone: list[bytes]) -> None:
        """Make remote directories and symlinks, and remove what another host removed; the directory's times stay."""
        descriptor = self._table.descriptor(directory)
        with Unlocked(descriptor, as_root=self._volume.as_root):
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
        adorn(place, entry, as_root=self._volume.as_root)

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
            remove_below(descriptor, name)
        else:
            os.unlink(name, dir_fd=descriptor)
        self._volume.notifier.invalidate_entry(parent.number, name)

    # --- bytes

    async def _fetch(self, node: Node) -> None:
        if await self.partials.complete(node) or node.entry is None or not node.places:
            return
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
        self.partials.replaced(node)

    def _place(self, node: Node, entry: Entry, path: str, before: Entry) -> None:
        fetched = Fetched(os.path.basename(path), entry)
        self._install(node, fetched, os.fsencode(path), unchanged=node.entry is before)

    def _install(self, node: Node, fetched: Fetched, staged: bytes, *, unchanged: bool) -> None:
        table, entry = self._table, node.entry
        if unchanged or entry is None:
            entry = fetched.entry
        os.chmod(staged, 0o600)
        # Just used: what is evicted first was used long ago.
        adorn(staged, entry, as_root=self._volume.as_root, used_ns=self._volume.clock.wall_ns())
        parent, name = node.places[0]
        descriptor = table.descriptor(parent)
        with Unlocked(descriptor, as_root=self._volume.as_root):
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
            with Unlocked(descriptor, as_root=self._volume.as_root):
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

    def drop(self, node: Node) -> None:
        """Remove old bytes of a foreign session's file, unless somebody has it open."""
        self._changes.drop(node)

    def evict(self, node: Node, status: os.stat_result, *, blocks_of: str = "") -> None:
        """Remove a clean file's bytes; its names and attributes stay.

        Args:
            node: The file.
            status: As it is.
            blocks_of: As in `Entry`.
        """
        place = self._volume.xattr_path(node)
        entry = entry_of(node.number, node.places[0][1], status)
        xattrs = {
            os.fsencode(name): os.getxattr(place, name, follow_symlinks=False)
            for name in os.listxattr(place, follow_symlinks=False)
        }
        entry = msgspec.structs.replace(entry, xattrs=xattrs, blocks_of=blocks_of)
        with self._volume.evicting(node.number):
            for parent, name in node.places:
                with Unlocked(self._table.descriptor(parent), as_root=self._volume.as_root):
                    if parent is node.places[0][0] and name == node.places[0][1]:
                        self._table.evict_from_disk(parent, name, node.number, status.st_ino)
                    else:
                        os.unlink(name, dir_fd=self._table.descriptor(parent))
                parent.overrides[name] = msgspec.structs.replace(entry, name=name)
        node.entry = entry

    def make_empty(self, node: Node) -> None:
        """Give a file whose bytes are not here an empty body instead of fetching what would be cut off."""
        entry = node.entry
        if entry is None:
            return
        parent, name = node.places[0]
        descriptor = self._table.descriptor(parent)
        with Unlocked(descriptor, as_root=self._volume.as_root):
            created = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=descriptor
            )
        self.partials.cut(node, b"/proc/self/fd/%d" % created)
        os.close(created)
        place = b"/proc/self/fd/%d/%s" % (descriptor, name)
        adorn(place, entry, as_root=self._volume.as_root)
        os.utime(place)
        self.settled_here(node, parent, name)


def _number(override: Entry | int) -> int:
    return override if isinstance(override, int) else override.number


def _is_outdated(node: Node, before: Entry | None, fetched: Fetched) -> bool:
    """Whether fetched bytes have no place any more, or are not those that are described by now."""
    if node.entry is None or not node.places:
        return True
    return node.entry is not before and node.entry.size_bytes != fetched.entry.size_bytes
