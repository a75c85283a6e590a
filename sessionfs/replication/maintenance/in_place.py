"""Brings a past generation back to a session's live objects, as a new generation.

Order, which is the promise: claim; everything that will be replaced or removed is kept; removals (what is a file now may be a directory
then); the generation's content, by copies on the server; ``<n+1>.json``; ``manifest.json``; the marker; release. Until ``manifest.json`` is
written, the generation before is whole: live or kept. A run that was killed is completed by the next one, which leaves what is in place already.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from sessionfs.formats import object_metadata
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.object_metadata import FileAttributes
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import InvalidRequestError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.manifest_chain import ManifestChain, NewerGenerations
from sessionfs.replication.hydration.named_content import is_content
from sessionfs.replication.maintenance.chain_writing import ChainWriter
from sessionfs.replication.maintenance.holding import Exclusive, Held, holding
from sessionfs.replication.maintenance.keeping import Keeping
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.maintenance.placing import Placing
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectStat

AT_ONCE = 10
"""Requests under way at once."""

Progress = Callable[[int, int], None]
"""Told how many steps are done, and of how many."""


def no_progress(_done: int, _of: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class RestoredInPlace:
    """What was done.

    Attributes:
        generation: The new generation.
        placed: Objects written.
        kept: Objects kept before they were replaced or removed.
        removed: Objects removed.
        sent_bytes: Bytes that left this host.
    """

    generation: int
    placed: int
    kept: int
    removed: int
    sent_bytes: int


@dataclass(slots=True)
class _Plan:
    """What differs between the live objects and the wanted generation."""

    wanted: dict[str, ManifestEntry]
    named: dict[str, ManifestEntry]
    tokens: dict[str, str] = field(default_factory=dict)
    to_place: dict[str, ObjectStat | None] = field(default_factory=dict)
    to_keep: list[ObjectStat] = field(default_factory=list)
    to_adopt: list[ObjectStat] = field(default_factory=list)
    to_remove: dict[str, ObjectStat | None] = field(default_factory=dict)

    def is_named(self, found: ObjectStat) -> bool:
        """Whether the newest generation names exactly this object."""
        named = self.named.get(found.key)
        return named is not None and (found.token, found.size_bytes) == (named.token, _object_bytes(named))

    def compare_named(self, found: ObjectStat) -> None:
        """Note what must happen to an object that the newest generation names."""
        named, entry = self.named[found.key], self.wanted[found.key]
        if _same_object(named, entry):
            self.tokens[found.key] = found.token
            return
        self.to_place[found.key] = found
        if named.sha256 != entry.sha256:
            self.to_keep.append(found)

    def compare(self, key: str, found: ObjectStat | None, epoch: int) -> None:
        """Note what must happen to any other object.

        Args:
            key: Its key.
            found: With its metadata; None when it is gone.
            epoch: Ours. What an earlier owner wrote, and no generation names yet, may still be changed by a late request of that owner: when it
                is as it should be, it is kept by its content too.
        """
        entry = self.wanted[key]
        if found is not None and _is_in_place(found, entry):
            self.tokens[key] = found.token
            if not key.endswith("/") and _epoch_of(found) < epoch:
                self.to_adopt.append(found)
            return
        self.to_place[key] = found
        if found is not None and not is_content(found, entry):
            self.to_keep.append(found)

    def settle(self, key: str, found: ObjectStat | None) -> None:
        """Note what a key has, now that its bytes are kept."""
        if key in self.to_remove:
            self.to_remove[key] = found
        else:
            self.to_place[key] = found


class InPlaceRestoration:
    """Restores sessions in place.

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

    async def restore(
        self, session: SessionId, generation: int, *, progress: Progress = no_progress
    ) -> RestoredInPlace:
        """Make a past generation the newest again.

        Raises:
            NotFoundError: There is no such generation.
            InvalidRequestError: It says that the session was removed.
            SessionAlreadyOwnedError, OwnershipLostError: Another host owns the session.
            CorruptDataError: Bytes of the generation are nowhere; the newest generation is as it was.
            SessionFSError: The store refused, or did not answer.
        """
        target = await self._chain.read(session, generation)
        if target.removed:
            raise InvalidRequestError(
                f"generation {generation} of {session} says that the session was removed",
                remedy=f"name the one before it, {target.previous}",
            )
        async with holding(self._exclusive, session) as held:
            return await self._restore(held, target, progress)

    async def _restore(self, held: Held, target: Manifest, progress: Progress) -> RestoredInPlace:
        patient = PatientStore(self._store, self._clock, self._settings, held.check)
        prefix = keys.session_prefix(held.session)
        listed, _ = await self._store.list_all(prefix, whole_segments=False)
        live = {stat.key: stat for stat in listed}
        plan = await self._plan(held, target, live)
        done = 0
        total = len(plan.to_adopt) + len(plan.to_keep) + len(plan.to_remove) + len(plan.to_place)

        def step() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        keeping = Keeping(patient, self._clock, held.session, held.epoch)

        async def keep(found: ObjectStat) -> None:
            plan.settle(found.key, await keeping.keep(found, plan.named.get(found.key)))
            step()

        async def adopt(found: ObjectStat) -> None:
            await keeping.keep(found, plan.wanted[found.key])
            step()

        async def remove(key: str) -> None:
            found = plan.to_remove[key]
            if found is not None:
                await patient.delete(key, found.token)
            step()

        await for_each(plan.to_adopt, adopt, limit=AT_ONCE)
        await for_each(plan.to_keep, keep, limit=AT_ONCE)
        for group in removal_order(plan.to_remove):
            await for_each(group, remove, limit=AT_ONCE)
        sent_bytes = await self._place(held, target, plan, live, patient, step)
        entries = [replace(entry, token=self._token_of(held, plan, entry)) for entry in target.entries]
        body = Manifest(
            held.session,
            0,
            tuple(entries),
            trigger="restore",
            recovery=held.newest.recovery if held.newest is not None else "live",
        )
        committed = await ChainWriter(patient, self._clock, self._settings).commit(held, body)
        return RestoredInPlace(
            committed.manifest.generation,
            len(plan.to_place),
            len(plan.to_keep),
            len(plan.to_remove),
            sent_bytes,
        )

    # --- the plan

    async def _plan(self, held: Held, target: Manifest, live: dict[str, ObjectStat]) -> _Plan:
        plan = _Plan(
            _by_key(held.session, target.entries),
            _by_key(held.session, held.newest.entries if held.newest is not None else ()),
        )

        async def look(key: str) -> None:
            found = live.get(key)
            if found is None:
                plan.to_place[key] = None
            elif plan.is_named(found):
                plan.compare_named(found)
            else:
                plan.compare(key, await self._store.head(key, tries=READ_TRIES), held.epoch)

        await for_each(sorted(plan.wanted), look, limit=AT_ONCE)
        for key, found in live.items():
            # A key that no path can name is another tool's, and stays.
            if (
                key not in plan.wanted
                and key != keys.session_prefix(held.session)
                and keys.parse_live_key(key)
            ):
                plan.to_remove[key] = found
                if not (key.endswith("/") and not found.size_bytes):
                    plan.to_keep.append(found)
        plan.to_keep.sort(key=lambda found: found.key)
        return plan

    # --- the content

    async def _place(
        self,
        held: Held,
        target: Manifest,
        plan: _Plan,
        live: dict[str, ObjectStat],
        patient: PatientStore,
        step: Callable[[], None],
    ) -> int:
        placing = Placing(patient, held.epoch)
        newer = NewerGenerations(self._chain, held.session, target.generation)
        sent_bytes = 0

        async def place(key: str) -> None:
            nonlocal sent_bytes
            found = plan.to_place[key]
            condition: Condition = IfMatch(found.token) if found is not None else IfAbsent()
            placed = await placing.place(
                held.session, plan.wanted[key], key, condition=condition, newer=newer, live=live
            )
            plan.tokens[key] = placed.token
            sent_bytes += placed.sent_bytes
            step()

        for group in placing_order(plan.to_place):
            await for_each(group, place, limit=AT_ONCE)
        return sent_bytes

    def _token_of(self, held: Held, plan: _Plan, entry: ManifestEntry) -> str:
        key = keys.live_key(held.session, entry.path, is_directory=stat.S_ISDIR(entry.mode))
        return plan.tokens.get(key, "") if key is not None else ""


def removal_order(found: Iterable[str]) -> list[list[str]]:
    """Group keys so that files go before the markers above them: in a directory store one lies in the other."""
    every = list(found)
    markers = sorted((key for key in every if key.endswith("/")), key=lambda key: -key.count("/"))
    depths = sorted({key.count("/") for key in markers}, reverse=True)
    files = [key for key in every if not key.endswith("/")]
    return [files, *([key for key in markers if key.count("/") == depth] for depth in depths)]


def placing_order(found: Iterable[str]) -> list[list[str]]:
    """Group keys so that the markers of directories come before what is in them."""
    return [sorted(group) for group in reversed(removal_order(found))]


def _by_key(session: SessionId, entries: Iterable[ManifestEntry]) -> dict[str, ManifestEntry]:
    found: dict[str, ManifestEntry] = {}
    for entry in entries:
        key = keys.live_key(session, entry.path, is_directory=stat.S_ISDIR(entry.mode))
        # Without a token a file has its bytes below .objects/; the key is another's, or there is none.
        if key is not None:
            found[key] = entry
    return found


def _object_bytes(entry: ManifestEntry) -> int:
    return 0 if stat.S_ISDIR(entry.mode) else entry.size_bytes


def _same_object(first: ManifestEntry, other: ManifestEntry) -> bool:
    """Whether two entries are kept by equal objects: bytes and the attributes in the metadata."""
    return (
        first.mode,
        first.sha256,
        _object_bytes(first),
        first.uid,
        first.gid,
        first.mtime_ns,
    ) == (other.mode, other.sha256, _object_bytes(other), other.uid, other.gid, other.mtime_ns)


def _epoch_of(found: ObjectStat) -> int:
    return object_metadata.decode_provenance(found.metadata.user).epoch if found.metadata else 0


def _is_in_place(found: ObjectStat, entry: ManifestEntry) -> bool:
    if found.metadata is None:
        return False
    is_directory = stat.S_ISDIR(entry.mode)
    attributes = object_metadata.decode_attributes(
        found.metadata.user, modified_ns=found.modified_ns, is_directory=is_directory
    )
    wanted = FileAttributes(entry.mode, entry.uid, entry.gid, entry.mtime_ns)
    return attributes == wanted and (is_directory or is_content(found, entry))
