"""What another host changed in a session that is only read here.

Old bytes, links and directories are dropped from the working copy, the deepest first, and each drop is noted; then the
bucket is asked again at once, because the replication process takes over what has changed only when nothing old is left
here. Directories that stay get their new attributes.

Nothing of ours is lost: the first change made here ends all this, a file that is open keeps its bytes until it is closed,
and a directory in which anything is left stays.
"""

from __future__ import annotations

import os
import stat

import structlog
import trio

from sessionfs.filesystem.hydration.placing import Unlocked, adorn, entry_of, reached
from sessionfs.filesystem.inodes import Directory, Node, Session
from sessionfs.filesystem.volume import Volume
from sessionfs.formats.link_message import Entry, SessionRefreshed
from sessionfs.formats.link_messages import (
    FIRST_REMOTE_NUMBER,
)
from sessionfs.model.errors import SessionFSError

_log = structlog.get_logger(__name__)

_ROUNDS = 4
_PATIENCE = 0.9
"""Share of the fetch timeout that a look may take: what is known is shown, and not an error."""
_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ForeignChanges:
    """Takes over what another host changed.

    Args:
        volume: The mount.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._table = volume.table

    async def refresh(self, session: Session) -> None:
        """Compare a session with the bucket; without an answer in time, what is known stays shown."""
        settings = self._volume.settings
        held: list[int] = []
        is_answered = False
        try:
            with trio.move_on_after(
                min(settings.foreign_lag_seconds, settings.fetch_timeout_seconds * _PATIENCE)
            ):
                for _ in range(_ROUNDS):
                    if not await self._round(session, held):
                        break
                is_answered = True
        finally:
            session.refreshed_seconds = self._volume.clock.elapsed_seconds()
            if not is_answered:
                # The answer may come too late to be heard, and the journal knows more by then.
                self._look_again(session)
            for descriptor in held:
                os.close(descriptor)

    async def _round(self, session: Session, held: list[int]) -> bool:
        """Look once; say whether something was dropped, and another look is needed."""
        try:
            news = await self._volume.remote.refresh_session(session.id, known=session.version)
        except SessionFSError as problem:
            _log.warning("session.refresh_failed", session_id=session.id, reason=problem.message)
            return False
        if not session.foreign or not session.number:
            return False
        session.foreign = news.foreign
        if not news.foreign:
            self._told(session, news)
            self._redescribe_all(session, news)
            return False
        dropped = self.take_over(session, news, held)
        if session.owned and not session.stale and not dropped:
            session.foreign = False  # what was still read here when it was claimed has left
        return dropped

    def take_over(self, session: Session, news: SessionRefreshed, held: list[int]) -> bool:
        """Apply news, without waiting.

        Args:
            session: The session.
            news: What changed.
            held: Receives descriptors of directories that were dropped, to be closed when the journal has forgotten their numbers.

        Returns:
            Whether something was dropped, and another look is needed.
        """
        self._told(session, news)
        return self._take(session, news, held)

    def _told(self, session: Session, news: SessionRefreshed) -> None:
        session.version = news.version
        if news.directories or news.files:
            self._look_again(session)

    def _look_again(self, session: Session) -> None:
        for node in self._table.by_number.values():
            if node.session is session and isinstance(node, Directory):
                self._table.unload(node)

    def _take(self, session: Session, news: SessionRefreshed, held: list[int]) -> bool:
        """Apply news. Without an await: nobody sees half of it, and nobody opens what is dropped."""
        dropped = False
        for number in sorted(news.files, key=lambda one: news.paths.get(one, b"").count(b"/"), reverse=True):
            try:
                dropped |= self._drop_number(session, number, news.paths.get(number, b""), held)
            except OSError as problem:
                _log.warning("foreign.not_dropped", session_id=session.id, reason=problem.strerror)
        self._redescribe_all(session, news)
        return dropped

    # --- what is old goes

    def _drop_number(self, session: Session, number: int, path: bytes, held: list[int]) -> bool:
        node = self._table.by_number.get(number)
        if node is None:
            session.stale.add(number)
            return bool(path) and self._drop_at(session, number, path, held)
        if isinstance(node, Directory):
            return self._drop_directory(node, session)
        session.stale.add(number)
        node.next_note_seconds = 0.0
        return self.drop(node)

    def drop(self, node: Node) -> bool:
        """Remove what is here of an old file or link, unless somebody has it open.

        Returns:
            Whether it left.
        """
        session = node.session
        if session is None or node.handles or node.number not in session.stale:
            return False
        session.stale.discard(node.number)
        if node.entry is not None or not node.places:
            return False
        status = self._table.status(node)
        with self._volume.evicting(node.number):
            for parent, name in node.places:
                self._drop_name(parent, name, node.number)
                self._table.unload(parent)
        node.entry = entry_of(node.number, node.places[0][1], status)
        node.drop_cache = True
        self._volume.notifier.invalidate_inode(node.number)
        return True

    def _drop_name(self, parent: Directory, name: bytes, number: int) -> None:
        descriptor = self._table.descriptor(parent)
        with Unlocked(descriptor, as_root=self._volume.as_root):
            try:
                inode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_ino
                self._table.evict_from_disk(parent, name, number, inode)
            except FileNotFoundError:
                return

    def drop_unknown(self, directory: Directory, session: Session) -> None:
        """Remove old files and links of a directory that the kernel does not know."""
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
            if number in session.stale and number not in table.by_number and not stat.S_ISDIR(status.st_mode):
                session.stale.discard(number)
                with self._volume.evicting(number):
                    self._drop_name(directory, name, number)

    def _drop_at(self, session: Session, number: int, path: bytes, held: list[int]) -> bool:
        """Remove something old that the kernel does not know."""
        try:
            with reached(self._table, session.number, path) as (parent, name):
                status = os.stat(name, dir_fd=self._table.descriptor(parent), follow_symlinks=False)
                if status.st_ino in self._table.by_number:
                    return False
                if not stat.S_ISDIR(status.st_mode):
                    with self._volume.evicting(number):
                        self._drop_name(parent, name, number)
                else:
                    # Its inode number may not be given away before the journal has forgotten it.
                    held.append(os.open(name, _DIRECTORY_FLAGS, dir_fd=self._table.descriptor(parent)))
                    if not self._remove_empty(parent, name, number):
                        return False
                if parent.number:
                    self._table.unload(parent)
        except FileNotFoundError:
            return False
        session.stale.discard(number)
        return True

    def _drop_directory(self, node: Directory, session: Session) -> bool:
        table = self._table
        is_root = table.is_session_root(node)
        if not node.places and not is_root:
            return False
        parent, name = (table.root, session.name) if is_root else node.places[0]
        table.hold(node)
        if not self._remove_empty(parent, name, node.number):
            return False
        if is_root:
            session.number = 0  # the next lookup asks for the session anew
        else:
            table.unload(parent)
        table.remove_place(node, parent, name)
        self._volume.notifier.invalidate_entry(parent.number, name)
        table.settle(node)
        return True

    def _remove_empty(self, parent: Directory, name: bytes, number: int) -> bool:
        descriptor = self._table.descriptor(parent)
        try:
            with self._volume.evicting(number), Unlocked(descriptor, as_root=self._volume.as_root):
                os.rmdir(name, dir_fd=descriptor)
        except OSError:
            return False  # something is left in it
        return True

    # --- what stays is described anew

    def _redescribe_all(self, session: Session, news: SessionRefreshed) -> None:
        for entry in news.attributes:
            try:
                self._redescribe(session, entry, news.paths.get(entry.number, b""))
            except OSError as problem:
                _log.warning("foreign.not_described", session_id=session.id, reason=problem.strerror)

    def _redescribe(self, session: Session, entry: Entry, path: bytes) -> None:
        """Give a directory that is here the attributes that it has in the bucket now."""
        if not path or not stat.S_ISDIR(entry.mode):
            return
        with reached(self._table, session.number, path) as (parent, name):
            descriptor = os.open(name, _DIRECTORY_FLAGS, dir_fd=self._table.descriptor(parent))
        try:
            adorn(b"/proc/self/fd/%d/." % descriptor, entry, as_root=self._volume.as_root)
        finally:
            os.close(descriptor)
        node = self._table.by_number.get(entry.number)
        if isinstance(node, Directory):
            node.acl = None
            self._volume.forget_names(node)
            self._volume.notifier.invalidate_inode(node.number)

    # --- names that mean something else now

    def lose(self, directory: Directory, name: bytes, number: int) -> None:
        """Note that a name is gone from the bucket, or means something else."""
        node = self._table.by_number.get(number)
        if node is None or (directory, name) not in node.places:
            return
        self._table.remove_place(node, directory, name)
        if not node.places and number < FIRST_REMOTE_NUMBER:
            node.reserved = True
        self._volume.notifier.invalidate_entry(directory.number, name)
        if not isinstance(node, Directory):
            self._table.settle(node)
