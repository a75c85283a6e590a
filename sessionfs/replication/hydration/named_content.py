"""Where the bytes are that a generation names.

Cheapest first, each a guess that its reader proves with the entry's sha256:

1. the live object, pinned to the entry's token;
2. the live object as it is now, when its own metadata has the entry's sha256, or it is longer and may begin with these bytes;
3. ``.objects/<aa>/<sha256>``;
4. the alias there: first bytes of a larger object kept by its content;
5. the same for the path's entries in newer generations, the next one first: a file that only grew begins with these bytes. Retention keeps a suffix
   of the chain, so they exist.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from sessionfs.formats import content_alias, object_metadata
from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, ObjectNotFoundError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import NewerGenerations
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ObjectStat

EMPTY_SHA256 = hashlib.sha256().hexdigest()
"""Of no bytes: a file of that sum needs no source."""


@dataclass(frozen=True, slots=True)
class Source:
    """An object whose first bytes may be the wanted ones; it may also be gone.

    Attributes:
        key: The object's.
        token: It must have it; "" for whatever is there.
        size_bytes: How many of its first bytes.
        is_whole: It is known to be exactly these bytes: by its own sha256, or by its token and length. Never with a token of "". What may be
            copied on the server.
    """

    key: str
    token: str
    size_bytes: int
    is_whole: bool = False


_Step = Callable[[], Awaitable[list[Source]]]


class NamedContent:
    """Finds the bytes of entries.

    Args:
        store: The bucket.
    """

    def __init__(self, store: TrioStore) -> None:
        self._store = store

    def candidates(
        self,
        session: SessionId,
        entry: ManifestEntry,
        newer: NewerGenerations | None = None,
        *,
        live: Mapping[str, ObjectStat] | None = None,
    ) -> AsyncIterator[Source]:
        """Give the places where an entry's bytes may be, cheapest first; each request is made only when it is asked for.

        Args:
            session: The session.
            entry: A file of a generation. Without a sha256 (another tool's file, or the older layout) the live object as it is now is all
                there is.
            newer: The generations after the entry's, None to leave them out.
            live: A listing of the session's live objects by key, of this moment, to spare requests; None when there is none.

        Raises:
            UnavailableError, AccessError: While iterating: nothing is known. An absent object is no error.
        """
        return _Candidates(self._store, session, entry, newer, live)

    async def whole_source(
        self,
        session: SessionId,
        entry: ManifestEntry,
        *,
        live: Mapping[str, ObjectStat] | None = None,
        excluded: frozenset[Source] = frozenset(),
    ) -> Source | None:
        """Find an object that can be copied on the server as an entry's whole content; None when there is none.

        Args:
            session: The session.
            entry: As `candidates`.
            live: As `candidates`.
            excluded: Sources that were tried in vain.
        """
        async for source in self.candidates(session, entry, live=live):
            found = source if source.is_whole else await self._looked_at(source, entry)
            if found is not None and found not in excluded:
                return found
        return None

    async def _looked_at(self, source: Source, entry: ManifestEntry) -> Source | None:
        """Pin an object kept by its content, when it is the entry's whole content."""
        if source.token:
            return None
        found = await self._store.head(source.key, tries=READ_TRIES)
        if found is None or not is_content(found, entry):
            return None
        return Source(source.key, found.token, entry.size_bytes, is_whole=True)


def is_content(found: ObjectStat, entry: ManifestEntry) -> bool:
    """Whether an object is, by its own metadata, exactly an entry's bytes."""
    return found.size_bytes == entry.size_bytes and sha256_of(found) == entry.sha256 != ""


def sha256_of(found: ObjectStat) -> str:
    """The sha256 in an object's metadata, "" when it has none."""
    return object_metadata.decode_provenance(found.metadata.user).sha256 if found.metadata else ""


class _Candidates:
    """The iterator of `NamedContent.candidates`: steps that are taken one by one, no source twice.

    A class, not an asynchronous generator: one that is left half-way needs no closing.
    """

    def __init__(
        self,
        store: TrioStore,
        session: SessionId,
        entry: ManifestEntry,
        newer: NewerGenerations | None,
        live: Mapping[str, ObjectStat] | None,
    ) -> None:
        self._store = store
        self._session = session
        self._entry = entry
        self._newer = newer
        self._live = live
        self._key = keys.live_key(session, entry.path, is_directory=False)
        self._index = 0
        self._found: deque[Source] = deque()
        self._seen: set[tuple[str, str]] = set()
        self._sums = {entry.sha256}
        self._steps: deque[_Step] = deque()
        if entry.sha256:
            self._steps.append(lambda: self._pinned(entry))
        self._steps.append(self._live_now)
        if entry.sha256:
            self._steps.append(lambda: self._kept(entry.sha256))
            self._steps.append(lambda: self._alias(entry))
            self._steps.append(self._in_newer)

    def __aiter__(self) -> AsyncIterator[Source]:
        return self

    async def __anext__(self) -> Source:
        while True:
            while self._found:
                source = self._found.popleft()
                if (source.key, source.token) not in self._seen:
                    self._seen.add((source.key, source.token))
                    return source
            if not self._steps:
                raise StopAsyncIteration
            self._found.extend(await self._steps.popleft()())

    async def _pinned(self, entry: ManifestEntry) -> list[Source]:
        if not entry.token or self._key is None:
            return []
        size_bytes = self._entry.size_bytes
        if self._live is None:
            return [Source(self._key, entry.token, size_bytes)]
        listed = self._live.get(self._key)
        if listed is None or listed.token != entry.token or listed.size_bytes < size_bytes:
            return []
        is_whole = entry is self._entry and listed.size_bytes == size_bytes
        return [Source(self._key, entry.token, size_bytes, is_whole)]

    async def _live_now(self) -> list[Source]:
        if self._key is None or self._is_surely_other(self._key):
            return []
        found = await self._store.head(self._key, tries=READ_TRIES)
        if found is None:
            return []
        if not self._entry.sha256:
            return [Source(self._key, found.token, found.size_bytes, is_whole=True)]
        if is_content(found, self._entry):
            return [Source(self._key, found.token, self._entry.size_bytes, is_whole=True)]
        may_be = found.size_bytes > self._entry.size_bytes or (
            found.size_bytes == self._entry.size_bytes and not sha256_of(found)
        )
        return [Source(self._key, found.token, self._entry.size_bytes)] if may_be else []

    def _is_surely_other(self, key: str) -> bool:
        """Whether the listing shows that the live object cannot begin with the bytes."""
        if self._live is None:
            return False
        listed = self._live.get(key)
        return listed is None or (bool(self._entry.sha256) and listed.size_bytes < self._entry.size_bytes)

    async def _kept(self, sha256: str) -> list[Source]:
        return [Source(keys.content_key(self._session, sha256), "", self._entry.size_bytes)]

    async def _alias(self, entry: ManifestEntry) -> list[Source]:
        key = keys.alias_key(self._session, entry.sha256)
        try:
            alias = content_alias.decode(await self._store.read(key, tries=READ_TRIES), key)
        except (ObjectNotFoundError, CorruptDataError):
            return []
        return await self._kept(alias.of) if alias.size >= self._entry.size_bytes else []

    async def _in_newer(self) -> list[Source]:
        """Take the next newer generation into account, and come back for the one after it."""
        if self._newer is None:
            return []
        exists, entry = await self._newer.at(self._index, self._entry.path)
        if not exists:
            return []
        self._index += 1
        if entry is not None and entry.sha256 and entry.size_bytes >= self._entry.size_bytes:
            named = entry
            self._steps.append(lambda: self._pinned(named))
            if named.sha256 not in self._sums:
                self._sums.add(named.sha256)
                self._steps.append(lambda: self._kept(named.sha256))
                self._steps.append(lambda: self._alias(named))
        self._steps.append(self._in_newer)
        return []
