"""Brings a generation to a directory of this host.

Order: everything is built and verified in a staging directory beside the target, then one rename. A run that dies leaves nothing but the staging
directory, which the next run removes; the target is whole or not there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import names
from sessionfs.model.errors import ConflictError, CorruptDataError, InvalidRequestError, SessionFSError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.manifest_chain import ManifestChain, NewerGenerations
from sessionfs.replication.maintenance.in_place import AT_ONCE, Progress, no_progress
from sessionfs.replication.maintenance.verified_bytes import VerifiedBytes, disk_error
from sessionfs.replication.trio_store import TrioStore
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.open_below import short_path

_PRIVATE = 0o700
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Restored:
    """What was done.

    Attributes:
        generation: Which generation.
        directory: Where it is now.
        files: Files, links and directories.
        bytes: Length of the files.
    """

    generation: int
    directory: str
    files: int
    bytes: int


class Restoration:
    """Restores generations aside.

    Args:
        store: The bucket.
        settings: Which files are private.
    """

    def __init__(self, store: TrioStore, settings: ReplicationSettings) -> None:
        self._chain = ManifestChain(store)
        self._bytes = VerifiedBytes(store)
        self._private = Exclusions(settings.private_globs)

    async def restore(
        self, session: SessionId, generation: int, to_directory: str, *, progress: Progress = no_progress
    ) -> Restored:
        """Bring a generation to a directory: contents, modes, times, extended attributes, links; owners when this is root.

        Args:
            session: The session.
            generation: Which generation.
            to_directory: Absolute path; it must not exist, or be an empty directory.
            progress: Told of each file.

        Raises:
            NotFoundError: There is no such generation.
            InvalidRequestError: It says that the session was removed, or the target is in use.
            CorruptDataError: It cannot be read, or bytes are nowhere; the target is not there then.
            ConflictError: Another run restores to the same place.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: The store does not answer.
        """
        found = await self._chain.read(session, generation)
        if found.removed:
            raise InvalidRequestError(
                f"generation {generation} of {session} says that the session was removed",
                remedy=f"name the one before it, {found.previous}",
            )
        _require_tree(found, session)
        _require_free(to_directory)
        try:
            with _staging(to_directory) as tree:
                await self._build(session, found, tree, progress)
                await trio.to_thread.run_sync(tree.publish, to_directory)
        except OSError as problem:
            raise disk_error(f"cannot restore to {to_directory}", problem) from None
        entries = found.entries
        return Restored(generation, to_directory, len(entries), sum(entry.size_bytes for entry in entries))

    async def _build(self, session: SessionId, found: Manifest, tree: _Tree, progress: Progress) -> None:
        newer = NewerGenerations(self._chain, session, found.generation)
        firsts, others = _by_first_name(found.entries)
        done = 0

        async def bring(entry: ManifestEntry) -> None:
            nonlocal done
            try:
                if stat.S_ISLNK(entry.mode):
                    tree.link(entry, entry.target or await self._bytes.read(session, entry, newer))
                else:
                    await self._bring_file(session, entry, newer, tree)
            except OSError as problem:
                raise disk_error(f"cannot restore {names.display(entry.path)}", problem) from None
            done += 1
            progress(done, len(firsts))

        for entry in found.entries:
            if stat.S_ISDIR(entry.mode):
                tree.directory(entry.path)
        await for_each(firsts, bring, limit=AT_ONCE)
        for entry, first in others:
            tree.second_name(entry.path, first)
        directories = [entry for entry in found.entries if stat.S_ISDIR(entry.mode)]
        for entry in sorted(directories, key=lambda entry: -entry.path.count(b"/") - bool(entry.path)):
            tree.finish_directory(entry)

    async def _bring_file(
        self, session: SessionId, entry: ManifestEntry, newer: NewerGenerations, tree: _Tree
    ) -> None:
        mode = stat.S_IMODE(entry.mode)
        if self._private.match(entry.path):
            mode = 0o600
        descriptor = tree.new_file(entry.path)
        try:
            await self._bytes.write(session, entry, newer, descriptor)
            await trio.to_thread.run_sync(_finish_file, descriptor, entry, mode)
        finally:
            os.close(descriptor)


class _Tree:
    """The staging directory; paths of any length, no link is followed."""

    def __init__(self, parent: str, name: str) -> None:
        self.parent = parent
        self.name = name
        self._made: set[bytes] = {b""}

    @contextmanager
    def _at(self, path: bytes) -> Iterator[bytes]:
        above = path.rpartition(b"/")[0]
        if above:
            self.directory(above)
        with short_path(self.parent, self.name, path) as short:
            yield short

    def directory(self, path: bytes) -> None:
        """Make a directory and those above it."""
        if path in self._made:
            return
        self._made.add(path)
        with self._at(path) as short:
            os.mkdir(short, _PRIVATE)

    def new_file(self, path: bytes) -> int:
        """Make an empty file; give its descriptor."""
        with self._at(path) as short:
            return os.open(short, _NEW, 0o600)

    def link(self, entry: ManifestEntry, target: bytes) -> None:
        """Make a symbolic link."""
        with self._at(entry.path) as short:
            os.symlink(target, short)
            if os.geteuid() == 0:
                os.chown(short, entry.uid, entry.gid, follow_symlinks=False)
            os.utime(short, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)

    def second_name(self, path: bytes, first: bytes) -> None:
        """Give a file another name."""
        with self._at(path) as short, self._at(first) as of:
            os.link(of, short, follow_symlinks=False)

    def finish_directory(self, entry: ManifestEntry) -> None:
        """Give a directory its attributes, when nothing is put into it any more."""
        with self._at(entry.path) as short:
            descriptor = os.open(short, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _finish(descriptor, entry, stat.S_IMODE(entry.mode))
        finally:
            os.close(descriptor)

    def publish(self, target: str) -> None:
        """Rename the whole to its place."""
        os.rename(os.path.join(self.parent, self.name), target)
        descriptor = os.open(self.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _staging(target: str) -> Iterator[_Tree]:
    """Give an empty staging directory beside a target, of this run alone; it is removed unless it was renamed."""
    parent, name = os.path.split(target)
    tree = _Tree(parent, f".{name}.sessionfs-restore")
    path = os.path.join(parent, tree.name)
    _remove_tree(path)
    os.makedirs(parent, exist_ok=True)
    os.mkdir(path, _PRIVATE)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield tree
        except (SessionFSError, OSError, trio.Cancelled, KeyboardInterrupt):
            _remove_tree(path, locked=True)
            raise
    finally:
        os.close(descriptor)


def _remove_tree(path: str, *, locked: bool = False) -> None:
    """Remove what a run that died left.

    Raises:
        ConflictError: A living run uses it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConflictError(
            f"another run restores there: {path} is in use", remedy="wait for it, or name another directory"
        ) from None
    finally:
        os.close(descriptor)
    for directory, below, _ in os.walk(path):
        os.chmod(directory, _PRIVATE)
        for name in below:
            if not os.path.islink(os.path.join(directory, name)):
                os.chmod(os.path.join(directory, name), _PRIVATE)
    shutil.rmtree(path)


def _finish_file(descriptor: int, entry: ManifestEntry, mode: int) -> None:
    _finish(descriptor, entry, mode)
    os.fsync(descriptor)


def _finish(descriptor: int, entry: ManifestEntry, mode: int) -> None:
    for name, value in entry.xattrs.items():
        if name.startswith(b"user."):
            os.setxattr(descriptor, name, value)
    if os.geteuid() == 0:
        os.fchown(descriptor, entry.uid, entry.gid)
    elif (entry.uid, entry.gid) != (os.geteuid(), os.getegid()):
        mode &= ~_SPECIAL_BITS  # they would give this user's rights, not the owner's
    os.fchmod(descriptor, mode)
    os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))


def _by_first_name(
    entries: tuple[ManifestEntry, ...],
) -> tuple[list[ManifestEntry], list[tuple[ManifestEntry, bytes]]]:
    """Part the names of files: one for each file, and the further ones with the path of the first."""
    firsts: list[ManifestEntry] = []
    others: list[tuple[ManifestEntry, bytes]] = []
    groups: dict[tuple[int, str, int], bytes] = {}
    for entry in entries:
        if stat.S_ISDIR(entry.mode):
            continue
        group = (entry.link_group, entry.sha256, entry.mode)
        if entry.link_group and group in groups:
            others.append((entry, groups[group]))
            continue
        groups[group] = entry.path
        firsts.append(entry)
    return firsts, others


def _require_tree(found: Manifest, session: SessionId) -> None:
    """Refuse a manifest that puts something into what is no directory: a link there could lead anywhere."""
    kinds = {entry.path: stat.S_IFMT(entry.mode) for entry in found.entries}
    for path in kinds:
        above = path.rpartition(b"/")[0]
        while above:
            if kinds.get(above, stat.S_IFDIR) != stat.S_IFDIR:
                raise CorruptDataError(
                    f"generation {found.generation} of {session} has {names.display(path)} in something that is no directory"
                )
            above = above.rpartition(b"/")[0]
    if kinds.get(b"", stat.S_IFDIR) != stat.S_IFDIR:
        raise CorruptDataError(f"generation {found.generation} of {session} has a root that is no directory")


def _require_free(target: str) -> None:
    try:
        taken = bool(os.listdir(target))
    except FileNotFoundError:
        return
    except OSError as problem:
        raise InvalidRequestError(
            f"cannot restore to {target}: {problem.strerror}", remedy="name a new directory"
        ) from None
    if taken:
        raise InvalidRequestError(f"{target} is not empty", remedy="name a new directory")
