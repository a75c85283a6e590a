"""Brings the bytes that an entry of a generation names, wherever they are by now: verified, or not at all.

Places are tried cheapest first (``named_content.py``); the first whose bytes verify wins. An absent or moved object is no error, only the next
place's turn; a store that does not answer is one. When no place is left nothing is given: never short, never zeros.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys, names
from sessionfs.model.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fetches.damage import Damage
from sessionfs.replication.hydration.fetches.fetching import ObjectFetcher
from sessionfs.replication.hydration.manifest_chain import ManifestChain, NewerGenerations
from sessionfs.replication.hydration.named_content import EMPTY_SHA256, NamedContent, Source
from sessionfs.replication.trio_store import TrioStore
from sessionfs.working_copy.known_content import KnownObject

_REMEMBERED_CHAINS = 2
_TOLD = 6

Tried = dict[tuple[str, str], str]
"""Why the bytes of a key at a token did not do."""


@dataclass(frozen=True, slots=True)
class Named:
    """Bytes that are wanted.

    Attributes:
        session: The session in the bucket.
        generation: The generation that names them; 0 when none is known.
        entry: Path, length, sha256, token and blocks.
    """

    session: SessionId
    generation: int
    entry: ManifestEntry

    @property
    def shown(self) -> str:
        """The file as a person reads it."""
        return f"{self.session}/{names.display(self.entry.path)}"


class ContentFetcher:
    """Fetches by content.

    Args:
        store: The bucket.
        chain: Reads manifests.
        fetcher: Downloads.
    """

    def __init__(self, store: TrioStore, chain: ManifestChain, fetcher: ObjectFetcher) -> None:
        self._content = NamedContent(store)
        self._chain = chain
        self._fetcher = fetcher
        self._damage = Damage(chain)
        self._newer: OrderedDict[tuple[str, int], NewerGenerations] = OrderedDict()

    async def fetch(self, named: Named, tried: Tried | None = None) -> tuple[str, str]:
        """Bring bytes into staging.

        Args:
            named: Which.
            tried: Objects that need not be tried again; those tried here are added.

        Returns:
            The file's name below the staging directory, and the sha256 of its bytes.

        Raises:
            CorruptDataError: No place has them; it names the file, the generation and what was tried.
            LocalDiskError: The disk is full, or fails.
            UnavailableError, AccessError: Nothing is known.
        """
        if not named.entry.size_bytes and named.entry.sha256 in {"", EMPTY_SHA256}:
            return self._fetcher.empty()
        tried = tried if tried is not None else {}
        if not named.entry.sha256:
            return await self._fetch_unhashed(named, tried)
        is_fresh = (named.session, named.generation) not in self._newer
        found = await self._try_all(named, tried)
        if found is None and not is_fresh:
            # A generation may have been committed, and the bytes have moved, since the chain was read.
            del self._newer[named.session, named.generation]
            found = await self._try_all(named, tried)
        if found is None:
            raise await self.lost(named, tried)
        return found

    def places(self, named: Named, *, anew: bool = False) -> AsyncIterator[Source]:
        """Give the places where bytes may be, as `NamedContent.candidates`.

        Args:
            named: Which.
            anew: Read the generations after it again: one may have been committed, and the bytes have moved.
        """
        if anew:
            self._newer.pop((named.session, named.generation), None)
        return self._content.candidates(named.session, named.entry, self._generations_after(named))

    async def _fetch_unhashed(self, named: Named, tried: Tried) -> tuple[str, str]:
        """Another tool's file: the object of the commit is the only proof of its bytes."""
        entry = named.entry
        key = keys.live_key(named.session, entry.path, is_directory=False)
        if key is not None and entry.token:
            try:
                return await self._fetch_one(entry, Source(key, entry.token, entry.size_bytes, is_whole=True))
            except (ObjectNotFoundError, PreconditionFailedError):
                tried[key, entry.token] = "is another object by now, and it had no sha256"
        raise await self.lost(named, tried)

    async def _try_all(self, named: Named, tried: Tried) -> tuple[str, str] | None:
        async for source in self.places(named):
            if (source.key, source.token) in tried:
                continue
            try:
                return await self._fetch_one(named.entry, source)
            except ObjectNotFoundError:
                tried[source.key, source.token] = "is not there"
            except PreconditionFailedError:
                tried[source.key, source.token] = "is another object by now"
            except CorruptDataError as problem:
                tried[source.key, source.token] = problem.message.removeprefix(source.key).strip()
        return None

    async def _fetch_one(self, entry: ManifestEntry, source: Source) -> tuple[str, str]:
        known = KnownObject(
            source.key, 0, source.token, "", entry.sha256, source.size_bytes, entry.mode, 0, 0, 0, ""
        )
        return await self._fetcher.fetch(known, blocks=entry.blocks, is_prefix=not source.is_whole)

    def _generations_after(self, named: Named) -> NewerGenerations:
        key = (named.session, named.generation)
        found = self._newer.get(key)
        if found is None:
            found = self._newer[key] = NewerGenerations(self._chain, *key)
        self._newer.move_to_end(key)
        while len(self._newer) > _REMEMBERED_CHAINS:
            self._newer.popitem(last=False)
        return found

    async def lost(self, named: Named, tried: Tried) -> CorruptDataError:
        """Give the error of bytes that no place has: what was tried, and what can be done."""
        told = [f"{key} {why}" for (key, _), why in list(tried.items())[:_TOLD]]
        of = f" of generation {named.generation}" if named.generation else ""
        what = f": {'; '.join(told)}" if told else ""
        return CorruptDataError(
            f"no object holds the bytes of {named.shown}{of}{what}",
            remedy=await self._damage.of_file(
                named.session, named.generation, named.entry.path, named.entry.sha256
            ),
        )
