"""Names: lookup, create, mkdir, mknod, symlink, readlink, and listings."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Iterator

from sessionfs.filesystem.control.shared_roots import SharedRoots
from sessionfs.filesystem.data import Data, Opened
from sessionfs.filesystem.inodes import Directory, Found, Node, failure
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.permissions import READ, SEARCH, WRITE, Caller
from sessionfs.filesystem.sessions_root import SessionsRoot
from sessionfs.filesystem.volume import Attributes, Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.model.names import CONTROL_DIRECTORY

Listed = tuple[bytes, Attributes, int, Found | None]
"""Name, attributes, the cookie behind it, and what `Namespace.adopt` needs when the kernel took it."""


class Listing:
    """An open directory.

    Attributes:
        node: The directory.
        names: Its names when reading began.
    """

    __slots__ = ("names", "node")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.names: list[bytes] | None = None


class Namespace:
    """Calls about names.

    Args:
        volume: The mount.
        loading: Brings in what is not here.
        sessions: The root.
        shared: The directories above the shared roots.
        data: Opens files.
    """

    def __init__(
        self, volume: Volume, loading: Loading, sessions: SessionsRoot, shared: SharedRoots, data: Data
    ) -> None:
        self._volume = volume
        self._shared = shared
        self._loading = loading
        self._sessions = sessions
        self._data = data
        self._table = volume.table
        self._listings: dict[int, Listing] = {}

    # --- finding

    def lookup(self, number: int, name: bytes, caller: Caller) -> Attributes | Awaitable[Attributes]:
        """Find a name; the kernel knows its inode once more afterwards, unless the number is 0.

        Raises:
            OSError: EACCES, ESTALE, ENOTDIR, ENAMETOOLONG.
        """
        table, volume = self._table, self._volume
        parent = table.by_number.get(number)
        if parent.__class__ is not Directory or name in (b".", b".."):
            return self._lookup_special(table.node(number), name)
        if parent is table.root:
            return self._shared.top() if name == CONTROL_DIRECTORY else self._sessions.lookup(name)
        if not self._loading.is_ready(parent):
            return self._loading.then(parent, self.lookup, number, name, caller)
        if caller.uid:
            volume.require(caller, parent, SEARCH)
        if table.hides(parent, name):
            return self._sessions.control.directory(parent)
        try:
            found = table.find(parent, name)
        except FileNotFoundError:
            return volume.absent(parent)
        node = table.obtain(parent, name, found)
        node.lookups += 1
        status = found[1]
        shown = volume.attributes(node) if status is None else volume.shown_node(node, status)
        shown.entry_timeout = volume.name_timeout(parent)
        return shown

    def _lookup_special(self, node: Node, name: bytes) -> Attributes | Awaitable[Attributes]:
        if name == b".." and node.places:
            node = node.places[0][0]
        elif name not in (b".", b".."):
            if node.kind != stat.S_IFDIR:
                raise failure(errno.ENOTDIR)
            control = self._shared if node.session is None else self._sessions.control
            return control.lookup(node, name)
        node.lookups += 1
        return self._volume.attributes(node)

    def readlink(self, number: int) -> bytes:
        """Give a symlink's text.

        Raises:
            OSError: EINVAL for anything else.
        """
        descriptor, name = self._table.location(self._table.node(number))
        return os.readlink(name, dir_fd=descriptor)

    # --- making

    def create(
        self, number: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Opened, Attributes] | Awaitable[tuple[Opened, Attributes]]:
        """Make and open a file; open the one that is there unless O_EXCL is given.

        Raises:
            OSError: What ``open(2)`` gives.
        """
        parent = self._volume.changing(number, name, caller)
        if not self._loading.is_ready(parent):
            return self._loading.then(parent, self.create, number, name, mode, flags, caller)
        if caller.uid:
            self._volume.require(caller, parent, WRITE | SEARCH)
        if not self._loading.gate.admits(parent.session, caller):
            return self._loading.then_owned(parent.session, self.create, number, name, mode, flags, caller)
        self._loading.gate.require_commits(parent.session, caller)
        descriptors: list[int] = []

        def make(directory: int) -> os.stat_result:
            opened = os.open(
                name, self._data.disk_flags(flags) | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory
            )
            descriptors.append(opened)
            return os.fstat(opened)

        try:
            node, shown = self._make(Operation.CREATE, parent, name, stat.S_IFREG | mode, caller, make)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return self._open_existing(parent, name, flags, caller)
        except OSError:
            if descriptors:
                os.close(descriptors[0])
            raise
        try:
            opened = self._data.register(node, descriptors[0], flags, caller, mode=mode, size_bytes=0)
        except OSError:
            self._table.forget(node.number, 1)
            raise
        return opened, shown

    async def _open_existing(
        self, parent: Directory, name: bytes, flags: int, caller: Caller
    ) -> tuple[Opened, Attributes]:
        node = self._table.obtain(parent, name, self._table.find(parent, name))
        if node.kind == stat.S_IFLNK:
            raise failure(errno.ELOOP)
        node.lookups += 1
        try:
            opened = self._data.open(node.number, flags & ~(os.O_CREAT | os.O_EXCL), caller)
            result = opened if isinstance(opened, tuple) else await opened
            return result, self._volume.attributes(node)
        except BaseException:
            self._table.forget(node.number, 1)
            raise

    def mkdir(
        self, number: int, name: bytes, mode: int, caller: Caller
    ) -> Attributes | Awaitable[Attributes]:
        """Make a directory; in the root, a session.

        Raises:
            OSError: What ``mkdir(2)`` gives; EINVAL for a bad session id.
        """
        mode = stat.S_IMODE(mode)
        if number == self._table.root.number:
            return self._sessions.make(name, mode, caller)
        above = self._table.by_number.get(number)
        if above is not None and self._shared.has(above):
            return self._shared.make(above, name, mode, caller)

        def make(directory: int) -> os.stat_result:
            os.mkdir(name, mode, dir_fd=directory)
            return os.stat(name, dir_fd=directory, follow_symlinks=False)

        return self._make_named(Operation.MKDIR, number, name, stat.S_IFDIR | mode, caller, make)

    def mknod(
        self, number: int, name: bytes, mode: int, device: int, caller: Caller
    ) -> Attributes | Awaitable[Attributes]:
        """Make a file, fifo, socket or device.

        Raises:
            OSError: What ``mknod(2)`` gives.
        """

        def make(directory: int) -> os.stat_result:
            os.mknod(name, mode, device, dir_fd=directory)
            return os.stat(name, dir_fd=directory, follow_symlinks=False)

        return self._make_named(Operation.MKNOD, number, name, mode, caller, make)

    def symlink(
        self, number: int, name: bytes, target: bytes, caller: Caller
    ) -> Attributes | Awaitable[Attributes]:
        """Make a symlink; its text is kept as it is.

        Raises:
            OSError: What ``symlink(2)`` gives.
        """

        def make(directory: int) -> os.stat_result:
            os.symlink(target, name, dir_fd=directory)
            return os.stat(name, dir_fd=directory, follow_symlinks=False)

        return self._make_named(Operation.SYMLINK, number, name, stat.S_IFLNK | 0o777, caller, make)

    def _make_named(
        self, operation: Operation, number: int, name: bytes, mode: int, caller: Caller,
        make: Callable[[int], os.stat_result],
    ) -> Attributes | Awaitable[Attributes]:  # fmt: skip
        parent = self._volume.changing(number, name, caller)
        if not self._loading.is_ready(parent):
            return self._loading.then(parent, self._make_named, operation, number, name, mode, caller, make)
        if caller.uid:
            self._volume.require(caller, parent, WRITE | SEARCH)
        if not self._loading.gate.admits(parent.session, caller):
            return self._loading.then_owned(
                parent.session, self._make_named, operation, number, name, mode, caller, make
            )
        return self._make(operation, parent, name, mode, caller, make)[1]

    def _make(
        self, operation: Operation, parent: Directory, name: bytes, mode: int, caller: Caller,
        make: Callable[[int], os.stat_result],
    ) -> tuple[Node, Attributes]:  # fmt: skip
        """Record, make, give to the caller; undone when the last step fails."""
        volume, table = self._volume, self._table
        if name in parent.overrides:
            raise failure(errno.EEXIST)
        directory = table.descriptor(parent)
        sequence = volume.begin(
            operation, parent=parent.number, name=name, mode=mode, uid=caller.uid, gid=caller.gid
        )
        try:
            status = make(directory)
            if volume.as_root and (caller.uid or caller.gid):
                status = self._give(parent, directory, name, status, mode, caller)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=status.st_ino)
        node = table.obtain(parent, name, (status.st_ino, status, None))
        node.lookups += 1
        node.capability = False
        if node.__class__ is Directory:
            node.loaded = True
        shown = volume.shown(status.st_ino, status, parent.session)
        shown.entry_timeout = volume.name_timeout(parent)
        return node, shown

    def _give(
        self,
        parent: Directory,
        directory: int,
        name: bytes,
        status: os.stat_result,
        mode: int,
        caller: Caller,
    ) -> os.stat_result:
        inherits = self._table.status(parent).st_mode & stat.S_ISGID
        try:
            os.chown(
                name, caller.uid, -1 if inherits else caller.gid, dir_fd=directory, follow_symlinks=False
            )
            if mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(mode):
                os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=directory)  # chown took these bits
        except OSError:
            if stat.S_ISDIR(mode):
                os.rmdir(name, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)
            raise
        return os.stat(name, dir_fd=directory, follow_symlinks=False)

    # --- listings

    def opendir(self, number: int, caller: Caller) -> int | Awaitable[int]:
        """Open a directory for reading its names.

        Raises:
            OSError: EACCES, ESTALE, ENOTDIR.
        """
        node = self._table.node(number)
        if node.__class__ is Directory and not self._loading.is_ready(node):
            return self._loading.then(node, self.opendir, number, caller)
        if node.__class__ is Directory:
            self._volume.require(caller, node, READ)
        elif node.kind != stat.S_IFDIR:
            raise failure(errno.ENOTDIR)
        handle = self._volume.next_handle()
        self._listings[handle] = Listing(node)
        return handle

    def releasedir(self, handle: int) -> None:
        """Close a directory."""
        self._listings.pop(handle, None)

    def listing_node(self, handle: int) -> Node:
        """Give the directory of an open listing.

        Raises:
            OSError: EBADF.
        """
        listing = self._listings.get(handle)
        if listing is None:
            raise failure(errno.EBADF)
        return listing.node

    def readdir(self, handle: int, offset: int) -> Iterator[Listed] | Awaitable[Iterator[Listed]]:
        """Give the names from a cookie on, each once; 0 takes a new look.

        Raises:
            OSError: EBADF, ESTALE.
        """
        listing = self._listings.get(handle)
        if listing is None:
            raise failure(errno.EBADF)
        node = listing.node
        if offset == 0 or listing.names is None:
            if node is self._table.root:
                return self._read_root(listing, offset)
            if node.__class__ is not Directory:
                return self._read_control(listing, offset)
            if not self._loading.is_ready(node):
                return self._loading.then(node, self.readdir, handle, offset)
            listing.names = self._names(node)
        return self._entries(listing, offset)

    async def _read_root(self, listing: Listing, offset: int) -> Iterator[Listed]:
        listing.names = await self._sessions.names()
        return self._entries(listing, offset)

    async def _read_control(self, listing: Listing, offset: int) -> Iterator[Listed]:
        control = self._shared if listing.node.session is None else self._sessions.control
        names = control.names(listing.node)
        listing.names = names if isinstance(names, list) else await names
        return self._entries(listing, offset)

    def _names(self, directory: Directory) -> list[bytes]:
        if not directory.places:
            return []  # removed while open
        names = self._table.names_on_disk(directory)
        if directory.overrides:
            known = set(names)
            names.extend(name for name in directory.overrides if name not in known)
        return [name for name in names if not self._table.hides(directory, name)]

    def _entries(self, listing: Listing, offset: int) -> Iterator[Listed]:
        node, names = listing.node, listing.names or []
        if offset == 0:
            yield b".", self._attributes_of(node), 1, None
        if offset <= 1:
            above = node.places[0][0] if node.places else self._table.root
            yield b"..", self._attributes_of(above), 2, None
        for index in range(max(0, offset - 2), len(names)):
            name = names[index]
            if node is self._table.root:
                shown = self._sessions.listed(name)
                yield name, shown, index + 3, (shown.number, None, None)
            elif node.__class__ is not Directory:
                control = self._shared if node.session is None else self._sessions.control
                shown = control.listed(node, name)
                yield name, shown, index + 3, (shown.number, None, None)
            else:
                entry = self._entry(node, name)
                if entry is not None:
                    yield name, entry[0], index + 3, entry[1]

    def _attributes_of(self, node: Node) -> Attributes:
        if node.__class__ is Directory:
            return self._volume.attributes(node)
        return (self._shared if self._shared.has(node) else self._sessions.control).attributes(node)

    def _entry(self, parent: Directory, name: bytes) -> tuple[Attributes, Found] | None:
        try:
            found = self._table.find(parent, name)
        except FileNotFoundError:
            return None  # removed since reading began
        number, status, entry = found
        node = self._table.by_number.get(number)
        if node is not None:
            shown = self._volume.attributes(node) if status is None else self._volume.shown_node(node, status)
        elif status is not None:
            shown = self._volume.shown(number, status, parent.session)
        elif entry is not None:
            shown = self._volume.described(number, entry, parent.session, unlinked=False)
        else:
            return None
        shown.entry_timeout = self._volume.name_timeout(parent)
        return shown, found

    def adopt(self, handle: int, name: bytes, found: Found) -> None:
        """Note that the kernel took a listed name: it knows the inode once more."""
        parent = self._listings[handle].node
        if parent is self._table.root or parent.__class__ is not Directory:
            self._sessions.control.adopt(found[0])
        elif isinstance(parent, Directory):
            self._table.obtain(parent, name, found).lookups += 1
