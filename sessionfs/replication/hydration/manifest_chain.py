"""Reads a session's chain of generations: ``<n>.json``, those on their way out, and ``manifest.json``, the newest.

``manifest.json`` alone says which generation is the newest. A ``<n>.json`` above it is a commit that never happened: it is no generation, but what
it names may be somebody's. ``manifest.json`` may differ from its own ``<n>.json`` in epoch and holder, never in its entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import trio

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.errors import CorruptDataError, NotFoundError, ObjectNotFoundError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ObjectStat

_READ_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class Newest:
    """What ``manifest.json`` says.

    Attributes:
        manifest: The newest generation; one with the number 0 names nothing yet.
        stat: The object.
        raw: Its stored bytes.
    """

    manifest: Manifest
    stat: ObjectStat
    raw: bytes


@dataclass(frozen=True, slots=True)
class ListedChain:
    """What one listing shows of a session's manifests, by generation.

    Attributes:
        kept: ``<n>.json``.
        retired: ``retired/<n>.json``.
        has_newest: Whether there is a ``manifest.json``.
        strange: Keys there that are none of ours.
    """

    kept: dict[int, ObjectStat]
    retired: dict[int, ObjectStat]
    has_newest: bool
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation, as a list of them shows it.

    Attributes:
        manifest: What it names; None when it cannot be read.
        number: Which generation.
        state: ``newest``, ``kept``, ``retired`` (on its way out), ``unfinished`` (never committed) or ``unreadable``.
    """

    manifest: Manifest | None
    number: int
    state: Literal["newest", "kept", "retired", "unfinished", "unreadable"]


class ManifestChain:
    """Reads manifests.

    Args:
        store: The bucket.
    """

    def __init__(self, store: TrioStore) -> None:
        self._store = store

    async def newest(self, session: SessionId) -> Newest | None:
        """Read ``manifest.json``; None when there is none.

        Raises:
            CorruptDataError, UnsupportedFormatError: It cannot be read.
            UnavailableError, AccessError: Nothing is known.
        """
        key = keys.manifest_key(session)
        try:
            found, raw = await self._store.read_with_stat(key, tries=READ_TRIES)
        except ObjectNotFoundError:
            return None
        return Newest(_checked(manifests.decode(raw, key), session, key, None), found, raw)

    async def listed(self, session: SessionId) -> ListedChain:
        """List a session's manifests."""
        prefix = keys.manifest_prefix(session)
        found, _ = await self._store.list_all(prefix, whole_segments=False)
        kept: dict[int, ObjectStat] = {}
        retired: dict[int, ObjectStat] = {}
        strange: list[str] = []
        newest = keys.manifest_key(session)
        for stat in found:
            number = keys.parse_generation_key(session, stat.key)
            if number is not None:
                is_retired = stat.key.startswith(keys.retired_prefix(session))
                (retired if is_retired else kept)[number] = stat
            elif stat.key != newest:
                strange.append(stat.key)
        return ListedChain(kept, retired, any(stat.key == newest for stat in found), tuple(strange))

    async def generations(self, session: SessionId) -> list[Generation]:
        """Read every generation of a session, the oldest first.

        Raises:
            CorruptDataError, UnsupportedFormatError: ``manifest.json`` cannot be read; of other manifests only the unreadable state says so.
            UnavailableError, AccessError: Nothing is known.
        """
        newest = await self.newest(session)
        listed = await self.listed(session)
        found: dict[int, Manifest | None] = {}

        async def read(number: int) -> None:
            try:
                found[number] = await self.read(session, number)
            except CorruptDataError:
                found[number] = None
            except NotFoundError:
                return  # collected meanwhile

        await for_each(sorted({*listed.kept, *listed.retired}), read, limit=_READ_AT_ONCE)
        top = newest.manifest.generation if newest is not None else 0
        if newest is not None and top:
            found.setdefault(top, newest.manifest)
        readable = {number: one for number, one in found.items() if one is not None}
        lost = abandoned(readable, newest.manifest) if newest is not None else frozenset()
        return [
            Generation(one, number, _state(number, one, top, lost, listed))
            for number, one in sorted(found.items())
        ]

    async def read(self, session: SessionId, generation: int) -> Manifest:
        """Read one generation: ``<n>.json``, else ``manifest.json`` when it is that one, else the one on its way out.

        Raises:
            NotFoundError: There is no such generation (any more).
            CorruptDataError, UnsupportedFormatError: It cannot be read.
            UnavailableError, AccessError: Nothing is known.
        """
        damage: CorruptDataError | None = None
        try:
            return await self._read(session, generation, keys.generation_key(session, generation))
        except ObjectNotFoundError:
            pass
        except CorruptDataError as problem:
            damage = problem
        try:
            # The newest has its bytes twice.
            newest = await self.newest(session)
            if newest is not None and newest.manifest.generation == generation:
                return newest.manifest
        except CorruptDataError as problem:
            damage = damage or problem
        try:
            return await self._read(session, generation, keys.retired_key(session, generation))
        except ObjectNotFoundError:
            if damage is not None:
                raise damage from None
            raise NotFoundError(
                f"session {session} has no generation {generation}",
                remedy=f"'sessionfs generations STORE {session}' lists them",
            ) from None

    async def _read(self, session: SessionId, generation: int, key: str) -> Manifest:
        return _checked(
            manifests.decode(await self._store.read(key, tries=READ_TRIES), key), session, key, generation
        )


class NewerGenerations:
    """The generations after one, read when they are asked for, each once; the next one first.

    Args:
        chain: Reads them.
        session: The session.
        generation: The one that is being read.
    """

    def __init__(self, chain: ManifestChain, session: SessionId, generation: int) -> None:
        self._chain = chain
        self._session = session
        self._generation = generation
        self._numbers: list[int] | None = None
        self._entries: dict[int, dict[bytes, manifests.ManifestEntry]] = {}
        self._lock = trio.Lock()

    async def at(self, index: int, path: bytes) -> tuple[bool, manifests.ManifestEntry | None]:
        """Look a path up in the generation that is `index` steps newer, from 0.

        Returns:
            Whether there is such a generation, and its entry of the path; an unreadable generation names nothing.
        """
        # Many files are looked for at once; each manifest is read for all of them.
        async with self._lock:
            number = await self._number(index)
            if number is None:
                return False, None
            if number not in self._entries:
                self._entries[number] = await self._read(number)
        return True, self._entries[number].get(path)

    async def _number(self, index: int) -> int | None:
        if self._numbers is None:
            listed = await self._chain.listed(self._session)
            self._numbers = sorted(
                number for number in {*listed.kept, *listed.retired} if number > self._generation
            )
        return self._numbers[index] if index < len(self._numbers) else None

    async def _read(self, number: int) -> dict[bytes, manifests.ManifestEntry]:
        try:
            found = await self._chain.read(self._session, number)
        except (CorruptDataError, NotFoundError):
            return {}
        return {entry.path: entry for entry in found.entries}


def abandoned(found: Mapping[int, Manifest], newest: Manifest) -> frozenset[int]:
    """Give the generations that were never committed: the chain of *previous* leaves them out."""
    lost: set[int] = set()
    current: Manifest | None = newest
    # The older layout does not say what came before it.
    while current is not None and current.generation and current.format != manifests.OLDER_FORMAT:
        lost |= {number for number in found if current.previous < number < current.generation}
        current = found.get(current.previous) if current.previous < current.generation else None
    return frozenset(lost)


def _state(
    number: int, found: Manifest | None, newest: int, lost: frozenset[int], listed: ListedChain
) -> Literal["newest", "kept", "retired", "unfinished", "unreadable"]:
    if found is None:
        return "unreadable"
    if number == newest:
        return "newest"
    if number in lost or number > newest:
        return "unfinished"
    return "kept" if number in listed.kept else "retired"


def _checked(found: Manifest, session: SessionId, key: str, generation: int | None) -> Manifest:
    """Refuse a manifest of another session or generation; the older layout names neither."""
    if found.format == manifests.OLDER_FORMAT:
        return replace(found, session=session)
    if found.session != session:
        raise CorruptDataError(f"{key} is a manifest of session {found.session!r}")
    if generation is not None and found.generation != generation:
        raise CorruptDataError(f"{key} is the manifest of generation {found.generation}")
    return found
