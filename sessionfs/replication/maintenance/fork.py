"""A new session with what a generation of another names; copies on the server only, named prefixes excepted.

Order, so that no host ever takes a half fork for a session: claim the new id (its owner record, and an empty ``manifest.json``); rewrite that as
*removed*, with the trigger ``fork``: listed nowhere; the objects; ``0000000001.json``; ``manifest.json`` with the entries; the marker; release. A run
that was killed is completed by the next one.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace

from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model import keys, roots
from sessionfs.model.clock import Clock
from sessionfs.model.errors import ConflictError, InvalidRequestError, NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.manifest_chain import ManifestChain, NewerGenerations
from sessionfs.replication.maintenance.chain_writing import ChainWriter
from sessionfs.replication.maintenance.holding import Exclusive, Held, holding
from sessionfs.replication.maintenance.in_place import AT_ONCE, Progress, no_progress, placing_order
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.maintenance.placing import Placing
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectStat, Token

TRIGGER = "fork"


@dataclass(frozen=True, slots=True)
class Forked:
    """What was done.

    Attributes:
        session: The new session.
        of: The session it was made of.
        of_generation: Which generation of that.
        objects: Files, directories and links.
        bytes: Their length.
        sent_bytes: Bytes that left this host.
    """

    session: str
    of: str
    of_generation: int
    objects: int
    bytes: int
    sent_bytes: int


class Fork:
    """Forks sessions.

    Args:
        store: The bucket.
        exclusive: Ownership.
        clock: Times and write ids.
        settings: How long to back off.
    """

    def __init__(
        self, store: TrioStore, exclusive: Exclusive, clock: Clock, settings: ReplicationSettings
    ) -> None:
        self._store = store
        self._exclusive = exclusive
        self._clock = clock
        self._settings = settings
        self._chain = ManifestChain(store)

    async def fork(
        self,
        session: SessionId,
        new_id: SessionId,
        generation: int | None = None,
        *,
        progress: Progress = no_progress,
    ) -> Forked:
        """Make a session of a generation.

        Args:
            session: What to copy.
            new_id: The new session.
            generation: Which generation; None for the newest.
            progress: Told of each object.

        Raises:
            NotFoundError: There is no such generation.
            ConflictError: There is something under the new id already.
            InvalidRequestError: The generation says that the session was removed.
            CorruptDataError: Bytes of the generation are nowhere; the new id is no session.
            SessionAlreadyOwnedError, OwnershipLostError: Another host makes this session at the same time.
            SessionFSError: The store refused, or did not answer.
        """
        source = await self._source(session, generation)
        await self._require_unused(new_id)
        async with holding(self._exclusive, new_id) as held:
            if held.newest is not None and not _is_unborn(held.newest):
                raise _exists(new_id)
            return await self._fork(held, source, progress)

    async def _source(self, session: SessionId, generation: int | None) -> Manifest:
        if generation is None:
            newest = await self._chain.newest(session)
            found = newest.manifest if newest is not None else None
        else:
            found = await self._chain.read(session, generation)
        if found is None or not found.generation:
            raise NotFoundError(
                f"session {session} has no generation yet",
                remedy=f"'sessionfs snapshot DIR/{roots.mount_path(session)}' makes one",
            )
        if found.removed:
            raise InvalidRequestError(
                f"generation {found.generation} of {session} says that the session was removed",
                remedy=f"name the one before it, {found.previous}",
            )
        return found

    async def _require_unused(self, new_id: SessionId) -> None:
        """Refuse an id with anything under it, but for what a fork that was killed left."""
        newest = await self._chain.newest(new_id)
        if newest is not None and not _is_unborn(newest.manifest):
            raise _exists(new_id)
        is_half_fork = newest is not None and newest.manifest.trigger == TRIGGER
        prefixes = [keys.conflicts_prefix(new_id), keys.retired_prefix(new_id)]
        if not is_half_fork:
            prefixes += [keys.session_prefix(new_id), keys.objects_prefix(new_id)]
        for prefix in prefixes:
            page = await self._store.list_page(prefix, page=None, whole_segments=False, limit=1, tries=5)
            if page.objects:
                raise _exists(new_id)
        if await self._store.head(keys.commit_marker_key(new_id), tries=5) is not None:
            raise _exists(new_id)

    async def _fork(self, held: Held, source: Manifest, progress: Progress) -> Forked:
        patient = PatientStore(self._store, self._clock, self._settings, held.check)
        writer = ChainWriter(patient, self._clock, self._settings)
        held = await writer.hide(held, TRIGGER)
        tokens, sent_bytes = await self._copy(held, source, patient, progress)
        entries = [self._entry(held.session, entry, tokens) for entry in source.entries]
        body = Manifest(held.session, 0, tuple(entries), trigger=TRIGGER, recovery=source.recovery)
        committed = await writer.commit(held, body)
        return Forked(
            held.session,
            source.session,
            source.generation,
            len(entries),
            sum(entry.size_bytes for entry in committed.manifest.entries),
            sent_bytes,
        )

    async def _copy(
        self, held: Held, source: Manifest, patient: PatientStore, progress: Progress
    ) -> tuple[dict[str, str], int]:
        origin = roots.unit_id(source.session)
        listed, _ = await self._store.list_all(keys.session_prefix(origin), whole_segments=False)
        live = {found.key: found for found in listed}
        there = await self._there(held.session)
        wanted = {_target(held.session, entry): entry for entry in source.entries}
        placing = Placing(patient, held.epoch)
        newer = NewerGenerations(self._chain, origin, source.generation)
        tokens: dict[str, str] = {}
        sent_bytes = 0

        async def place(key: str) -> None:
            nonlocal sent_bytes
            condition: Condition = IfMatch(Token(there[key].token)) if key in there else IfAbsent()
            placed = await placing.place(
                origin, wanted[key], key, condition=condition, newer=newer, live=live
            )
            tokens[key] = placed.token
            sent_bytes += placed.sent_bytes
            progress(len(tokens), len(wanted))

        for key in there.keys() - wanted.keys():
            await patient.delete(key, there[key].token)
        for group in placing_order(wanted):
            await for_each(group, place, limit=AT_ONCE)
        return tokens, sent_bytes

    async def _there(self, new_id: SessionId) -> dict[str, ObjectStat]:
        """What a killed run left; placed again, because a listing does not tell whether it is the same."""
        found: dict[str, ObjectStat] = {}
        for prefix in (keys.session_prefix(new_id), keys.objects_prefix(new_id)):
            listed, _ = await self._store.list_all(prefix, whole_segments=False)
            found.update({stat.key: stat for stat in listed})
        return found

    def _entry(self, new_id: SessionId, entry: ManifestEntry, tokens: dict[str, str]) -> ManifestEntry:
        key = _target(new_id, entry)
        return replace(entry, token=tokens[key] if keys.parse_live_key(key) is not None else "")


def _target(new_id: SessionId, entry: ManifestEntry) -> str:
    """Where an entry's object goes: under its path, or under its content when its path has no key there."""
    key = keys.live_key(new_id, entry.path, is_directory=stat.S_ISDIR(entry.mode))
    return key if key is not None else keys.content_key(new_id, entry.sha256)


def _is_unborn(found: Manifest) -> bool:
    """Whether a manifest names nothing and never did: a fresh fence, or what a killed fork left."""
    return found.generation == 0 and not found.entries


def _exists(new_id: SessionId) -> ConflictError:
    return ConflictError(
        f"there is a session {new_id} already, or something under its id", remedy="name another id"
    )
