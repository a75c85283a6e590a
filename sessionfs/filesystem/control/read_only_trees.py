"""Trees that are shown below ``.sessionfs`` and that nobody may change: past generations, bytes kept aside, keys no path can name.

Each is a session of its own, ``<id>%g3``, ``<id>%conflicts``, ``<id>%unnamed``, which the replication process describes and which lives in
the working copy beside the others; no real session id has a percent sign, so that it is in no listing of the mount's root. A past generation
never changes: it is asked for once. The other two are asked for again when they are older than ``foreign_lag_seconds``.
"""

from __future__ import annotations

import math

from sessionfs.filesystem.hydration.session_places import SessionPlaces
from sessionfs.filesystem.inodes import Node, Session
from sessionfs.filesystem.loading import Loading
from sessionfs.filesystem.volume import SHORT_TIMEOUT_SECONDS, Attributes, Volume

_NEVER = -math.inf


class ReadOnlyTrees:
    """Opens them.

    Args:
        volume: The mount.
        loading: Brings in what is not here.
        places: Root directories.
    """

    def __init__(self, volume: Volume, loading: Loading, places: SessionPlaces) -> None:
        self._volume = volume
        self._loading = loading
        self._places = places
        self._known: dict[str, Session] = {}
        self._asked_seconds: dict[str, float] = {}

    def known(self, owner: Session, tree: str) -> Session | None:
        """Give a tree that was opened before, None for one that was not (or is not there any more)."""
        return self._known.get(f"{owner.id}%{tree}")

    async def open(self, owner: Session, tree: str, *, lasting: bool) -> Attributes | None:
        """Find a tree; the kernel knows its root once more afterwards.

        Args:
            owner: The session it is of.
            tree: What follows the percent sign, as ``g3``.
            lasting: Whether it never changes.

        Returns:
            Its root's attributes, None when there is no such tree.

        Raises:
            OSError: The disk refused.
            SessionFSError: The store could not say.
        """
        identifier = f"{owner.id}%{tree}"
        if not (lasting and identifier in self._known) and self._is_old(identifier):
            await self._loading.once(("tree", identifier), lambda: self._ask(identifier, lasting=lasting))
        session = self._known.get(identifier)
        return self._shown(session) if session is not None else None

    def listed(self, owner: Session, tree: str) -> Attributes | None:
        """Describe a tree in a listing, None for one that was not opened yet."""
        session = self.known(owner, tree)
        node = self._volume.table.by_number.get(session.number) if session is not None else None
        return self._described(node) if node is not None else None

    def _is_old(self, identifier: str) -> bool:
        age_seconds = self._volume.clock.elapsed_seconds() - self._asked_seconds.get(identifier, _NEVER)
        return age_seconds > self._volume.settings.foreign_lag_seconds

    async def _ask(self, identifier: str, *, lasting: bool) -> None:
        found = await self._volume.remote.open_session(identifier)
        if not found.exists or found.root is None:
            self._known.pop(identifier, None)
            return
        self._asked_seconds[identifier] = self._volume.clock.elapsed_seconds()
        self._places.make(identifier.encode(), found.root)
        session = self._known.get(identifier)
        if session is None or session.number != found.root.number:
            # A foreign session that was compared at the end of time: the kernel keeps nothing of it for long, and
            # it is never compared.
            session = Session(
                identifier, found.root.number, foreign=not lasting, refreshed_seconds=math.inf, read_only=True
            )
            self._known[identifier] = session
        elif not lasting:
            self._places.loaded_again(session)

    def _shown(self, session: Session) -> Attributes:
        node = self._places.directory(session)
        node.lookups += 1
        return self._described(node)

    def _described(self, node: Node) -> Attributes:
        shown = self._volume.attributes(node)
        shown.attr_timeout = shown.entry_timeout = SHORT_TIMEOUT_SECONDS
        return shown
