"""Which sessions and which shared roots there are: in the bucket, and here.

A listing is kept for ``listing_seconds``; what is here is said as it is now. Sessions and shared roots are listed apart: who looks at sessions sends
no request for the others.
"""

from __future__ import annotations

from sessionfs.model import keys, roots
from sessionfs.model.clock import Clock
from sessionfs.model.errors import AccessError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.upload_journal import UploadJournal

_LISTINGS_AT_ONCE = 8
_NEVER = float("-inf")


async def names_of_sessions(store: TrioStore) -> list[str]:
    """Give the keys and the prefixes directly below ``sessions/``: those of sessions, and of what stands beside them.

    Raises:
        UnavailableError, AccessError: The store does not answer.
    """
    objects, prefixes = await store.list_all(keys.SESSIONS_PREFIX, whole_segments=True, tries=READ_TRIES)
    return [*prefixes, *(found.key for found in objects)]


async def names_of_shared_roots(store: TrioStore) -> list[str]:
    """Give the keys and the prefixes at the level of shared roots of every kind, and of what stands beside them.

    Raises:
        UnavailableError, AccessError: The store does not answer.
    """
    found: list[str] = []
    for shape in roots.SHAPES.values():
        above = [""]
        for component in shape[:-1]:
            above = [f"{prefix}{component}/" for prefix in above] if component else await _below(store, above)
        found += await _below(store, above)
    return found


async def _below(store: TrioStore, prefixes: list[str]) -> list[str]:
    found: list[str] = []

    async def add(prefix: str) -> None:
        objects, below = await store.list_all(prefix, whole_segments=True, tries=READ_TRIES)
        # An object has nothing below it.
        found.extend((*below, *(stat.key for stat in objects)))

    await for_each(prefixes, add, limit=_LISTINGS_AT_ONCE)
    return found


class BucketListing:
    """Names sessions and shared roots.

    Args:
        journal: What is here.
        store: The bucket.
        clock: Ages.
        listing_seconds: How old a listing may be.
    """

    def __init__(
        self, journal: UploadJournal, store: TrioStore, clock: Clock, *, listing_seconds: float
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._listing_seconds = listing_seconds
        self._listed: dict[bool, list[SessionId]] = {}
        self._listed_at: dict[bool, float] = {}
        self._removed: dict[str, str] = {}

    def note_removed(self, session: SessionId, manifest_token: str) -> None:
        """Note that a session was removed in the bucket: something may be left below its prefix."""
        self._removed[session] = manifest_token

    async def sessions(self) -> list[str]:
        """Name the sessions in the bucket and here.

        Raises:
            UnavailableError, AccessError: The store does not answer, and never did.
        """
        return await self._names(are_shared=False)

    async def shared_roots(self) -> list[str]:
        """Name the shared roots in the bucket and here.

        Raises:
            UnavailableError, AccessError: The store does not answer, and never did.
        """
        return await self._names(are_shared=True)

    async def _names(self, *, are_shared: bool) -> list[str]:
        now_seconds = self._clock.elapsed_seconds()
        if now_seconds - self._listed_at.get(are_shared, _NEVER) >= self._listing_seconds:
            try:
                listed = await self._list_bucket(are_shared=are_shared)
            except (UnavailableError, AccessError):
                if are_shared not in self._listed:
                    raise
            else:
                self._listed[are_shared], self._listed_at[are_shared] = listed, now_seconds
        rows = [
            row
            for row in self._journal.sessions()
            if not roots.is_tree_of_the_past(row.id) and roots.is_shared_root(row.id) == are_shared
        ]
        here = {row.id for row in rows if self._journal.child(ROOT_NUMBER, row.id.encode()) is not None}
        removed = {row.id for row in rows if row.written} - here
        return sorted(({*self._listed.get(are_shared, ())} | here) - removed)

    async def _list_bucket(self, *, are_shared: bool) -> list[SessionId]:
        listed = await (names_of_shared_roots if are_shared else names_of_sessions)(self._store)
        found = (keys.session_of_prefix(name) for name in listed if name.endswith("/"))
        return [session for session in found if session is not None and not await self._is_removed(session)]

    async def _is_removed(self, session: SessionId) -> bool:
        """Whether a listed session was removed in the bucket as far as is known."""
        token = self._removed.get(session)
        if token is None:
            return False
        found = await self._store.head(keys.manifest_key(session), tries=READ_TRIES)
        if found is not None and found.token == token:
            return True
        del self._removed[session]
        return False
