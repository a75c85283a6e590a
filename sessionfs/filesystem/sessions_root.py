"""The mount's root, which holds the sessions.

Shared roots (``model/roots.py``) are made, found and removed here too, by ids that begin with a percent sign: no name in the root is one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable

import trio

from sessionfs.filesystem.control.control_files import ControlFiles
from sessionfs.filesystem.errno_map import errno_of
from sessionfs.filesystem.hydration.session_places import SessionPlaces
from sessionfs.filesystem.hydration.whole_sessions import WholeSessions
from sessionfs.filesystem.inodes import Directory, Session, failure
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.permissions import SEARCH, WRITE, Caller
from sessionfs.filesystem.volume import Attributes, Volume
from sessionfs.formats.intent_records import Operation
from sessionfs.formats.link_message import NOTHING_TOLD
from sessionfs.model import roots
from sessionfs.model.errors import InvalidSessionIdError, NotFoundError, SessionFSError, UnavailableError
from sessionfs.model.names import CONTROL_DIRECTORY, SessionId, display, session_id_from_name


class SessionsRoot:
    """Sessions by name.

    Args:
        volume: The mount.
        loading: Brings in what is not here.
        whole: Brings all of a session.
        places: Root directories of sessions.
        control: The ``.sessionfs`` of each.
    """

    def __init__(
        self, volume: Volume, loading: Loading, whole: WholeSessions, places: SessionPlaces, control: ControlFiles
    ) -> None:  # fmt: skip
        self._volume = volume
        self._loading = loading
        self._whole = whole
        self._places = places
        self.control = control
        self._hidden: dict[bytes, Session] = {}
        self._table = volume.table
        self.sessions: dict[bytes, Session] = {}

    # --- sessions

    def lookup(self, name: bytes) -> Attributes | Awaitable[Attributes]:
        """Find a session.

        Raises:
            OSError: ENOENT; ESTALE.
            SessionFSError: The store could not say.
        """
        return self._volume.absent(self._table.root) if name.startswith(b"%") else self.lookup_unit(name)

    def lookup_unit(self, name: bytes) -> Attributes | Awaitable[Attributes]:
        """Find a session or a shared root by its id; as `lookup`."""
        session = self.sessions.get(name)
        if session is not None and session.number:
            if self._volume.is_due(session):
                return self._compared(session, name)
            return self._root_of(session)
        if not self._is_shown(name):
            return self._volume.absent(self._table.root)
        return self._open(name)

    async def _compared(self, session: Session, name: bytes) -> Attributes:
        await self._loading.compare(session)
        return self._root_of(session) if session.number else await self._open(name)

    def _is_shown(self, name: bytes) -> bool:
        try:
            identifier = roots.unit_id(os.fsdecode(name))
        except InvalidSessionIdError:
            return False
        wanted = self._volume.settings.sessions
        return not wanted or identifier in wanted or roots.is_shared_root(identifier)

    def _root_of(self, session: Session) -> Attributes:
        node = self._places.directory(session)
        node.lookups += 1
        shown = self._volume.attributes(node)
        shown.attr_timeout = shown.entry_timeout = self._volume.absent(self._table.root).entry_timeout
        return shown

    async def _open(self, name: bytes) -> Attributes:
        await self._ask(name)
        session = self.sessions.get(name)
        if session is None or not session.number:
            return self._volume.absent(self._table.root)
        return self._root_of(session)

    async def _ask(self, name: bytes) -> None:
        """Ask for a session, once at a time; a whole one takes its time, and every wait for a part of it ends by itself."""
        identifier = name.decode()
        if self._volume.settings.eager:
            await self._loading.once(("whole", identifier), lambda: self._ask_whole(name), limited=False)
        else:
            await self._loading.once(("open", identifier), lambda: self._ask_once(name))

    async def _ask_once(self, name: bytes) -> None:
        session = await self._asked(name)
        if session is None:
            return
        self.sessions[name] = session
        root = self._places.directory(session)
        if self._volume.settings.prefetch and isinstance(root, Directory):
            self._whole.prefetch_later(root)

    async def _ask_whole(self, name: bytes) -> None:
        """Bring a session before it is shown; one that could not be had as a whole stays hidden."""
        with trio.fail_after(self._volume.settings.fetch_timeout_seconds):
            session = await self._asked(name)
        if session is None:
            return
        root = self._places.directory(session)
        if isinstance(root, Directory):
            await self._whole.bring(root)
        self._hidden.pop(name, None)
        self.sessions[name] = session

    async def _asked(self, name: bytes) -> Session | None:
        """Ask the replication process for a session and make its root; None when there is none.

        One that an earlier mount left on this disk is compared with the bucket before anything of it is shown.
        """
        found = await self._volume.remote.open_session(name.decode())
        here = self.sessions.get(name)
        if (here is not None and here.number) or not found.exists or found.root is None:
            return None
        is_fresh = self._places.make(name, found.root)
        now = self._volume.clock.elapsed_seconds()
        session = self._hidden.get(name)
        if session is None or session.number != found.root.number:
            session = Session(
                name.decode(), found.root.number, foreign=found.foreign, refreshed_seconds=now,
                owned=found.owned, read_only=found.read_only,
                # Of what is on this disk an earlier mount may not have heard everything.
                version=found.version if is_fresh or found.owned else NOTHING_TOLD,
            )  # fmt: skip
            if self._volume.settings.eager:
                self._hidden[name] = session
            if session.foreign and not session.read_only and not is_fresh:
                await self._loading.compare(session)
        return session if session.number else None

    async def session(self, identifier: str) -> Session:
        """Give a session by its id, asking for it at first use.

        Raises:
            NotFoundError: There is none, or this mount does not show it.
            SessionFSError: The store could not say.
        """
        name = identifier.encode("utf-8", "surrogateescape")
        session = self.sessions.get(name)
        if (session is None or not session.number) and self._is_shown(name):
            await self._ask(name)
            session = self.sessions.get(name)
        if session is None or not session.number:
            raise NotFoundError(f"there is no session {display(name)!r} in this mount")
        return session

    async def names(self) -> list[bytes]:
        """List the sessions, here and in the bucket; only those here while the store does not answer."""
        names = set(os.listdir(self._volume.layout.sessions))
        try:
            names.update(await self._volume.remote.list_sessions())
        except UnavailableError:
            if not names:
                raise
        shown = sorted(map(os.fsencode, names))
        return [name for name in shown if self._is_shown(name) and not name.startswith(b"%")]

    def listed(self, name: bytes) -> Attributes:
        """Describe a session in a listing; one that was never opened gets a number for the listing only."""
        session = self.sessions.get(name)
        if session is not None and session.number in self._table.by_number:
            shown = self._volume.attributes(self._table.by_number[session.number])
            shown.attr_timeout = shown.entry_timeout = self._volume.absent(self._table.root).entry_timeout
            return shown
        mode = stat.S_IFDIR | 0o755
        return Attributes(self._table.virtual_number(), mode, 2, 0, 0, 0, 4096, 8, 0, 0, 0, 0.0, 0.0)

    async def make(self, name: bytes, mode: int, caller: Caller) -> Attributes:
        """Make a session.

        Raises:
            OSError: EROFS, EINVAL for a bad id, EEXIST, EPERM for a session that this mount does not show, EACCES.
        """
        self._volume.require_changes()
        try:
            identifier = session_id_from_name(name)
        except InvalidSessionIdError:
            raise failure(errno.EINVAL) from None
        if not self._is_shown(name):
            raise failure(errno.EPERM)
        return await self.make_unit(identifier, mode, caller)

    async def make_unit(self, identifier: SessionId, mode: int, caller: Caller) -> Attributes:
        """Make a session or a shared root by its id.

        Raises:
            OSError: EROFS, EEXIST, EACCES.
            SessionFSError: It is not ours.
        """
        volume, name = self._volume, identifier.encode()
        volume.require_changes()
        # The name is settled later when the store does not answer now.
        try:
            await self._ask(name)
        except UnavailableError:
            pass
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
        here = self.sessions.get(name)
        if here is not None and here.number:
            raise failure(errno.EEXIST)
        volume.require(caller, self._table.root, WRITE | SEARCH)
        shown = self._make(identifier, name, mode, caller)
        await self._claim_made(self.sessions[name], shown.number)
        return self._volume.attributes(self._table.node(shown.number))

    async def _claim_made(self, session: Session, number: int) -> None:
        """Become the owner of a session that was just made; one that another host owns is taken away again.

        While the store does not answer it is presumed ours: the name is settled later.

        Raises:
            SessionFSError, OSError: It is not ours.
        """
        try:
            await self._loading.claim(session)
        except (SessionFSError, OSError) as problem:
            if errno_of(problem) == errno.EIO:
                session.own()
                return
            node = self._table.by_number.get(number)
            if isinstance(node, Directory) and session.number:
                self._table.forget(number, 1)
                self._take_away(session, node)
            raise

    def _make(self, identifier: str, name: bytes, mode: int, caller: Caller) -> Attributes:
        volume, table = self._volume, self._table
        sequence = volume.begin(
            Operation.MKDIR,
            parent=table.root.number,
            name=name,
            mode=stat.S_IFDIR | mode,
            uid=caller.uid,
            gid=caller.gid,
        )
        try:
            os.mkdir(name, mode, dir_fd=table.sessions_descriptor)
            if volume.as_root:
                os.chown(name, caller.uid, caller.gid, dir_fd=table.sessions_descriptor)
            status = os.stat(name, dir_fd=table.sessions_descriptor, follow_symlinks=False)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=status.st_ino)
        # Not owned until the claim is answered: whoever changes it meanwhile waits for that.
        session = Session(identifier, status.st_ino, foreign=False, refreshed_seconds=0.0)
        self.sessions[name] = session
        node = table.obtain(table.root, name, (status.st_ino, status, None))
        node.session = session
        if isinstance(node, Directory):
            node.loaded = True
        return self._root_of(session)

    def remove(self, name: bytes, caller: Caller) -> Awaitable[None] | None:
        """Remove an empty session.

        Raises:
            OSError: EROFS, ENOENT, ENOTEMPTY, EACCES, EPERM.
        """
        if name == CONTROL_DIRECTORY:
            raise failure(errno.EPERM)
        if name.startswith(b"%"):
            raise failure(errno.ENOENT)
        return self.remove_unit(name, caller)

    def remove_unit(self, name: bytes, caller: Caller) -> Awaitable[None] | None:
        """Remove an empty session or shared root by its id; as `remove`."""
        volume, table = self._volume, self._table
        volume.require_changes()
        session = self.sessions.get(name)
        node = table.by_number.get(session.number) if session is not None else None
        if session is None or not isinstance(node, Directory):
            raise failure(errno.ENOENT)
        if not self._loading.is_ready(node):
            return self._loading.then(node, self.remove_unit, name, caller)
        volume.require(caller, table.root, WRITE | SEARCH)
        volume.permissions.require_removal(caller, volume.attributes(table.root), volume.attributes(node))
        if node.overrides:
            raise failure(errno.ENOTEMPTY)
        if not self._loading.gate.admits(session, caller):
            return self._loading.then_owned(session, self.remove_unit, name, caller)
        self._take_away(session, node)
        return None

    def _take_away(self, session: Session, node: Directory) -> None:
        volume, table, name = self._volume, self._table, session.name
        table.hold(node)
        sequence = volume.begin(Operation.RMDIR, number=node.number, parent=table.root.number, name=name)
        try:
            os.rmdir(name, dir_fd=table.sessions_descriptor)
        except OSError as problem:
            volume.finish(sequence, error=problem.errno or errno.EIO)
            raise
        volume.finish(sequence, number=node.number)
        volume.recent.forget(node.number)
        del self.sessions[name]
        session.number = 0
        table.remove_place(node, table.root, name)
        table.settle(node)
