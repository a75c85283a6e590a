"""Garbage collection of one session, under ownership.

Order: claim; survey and plan; move manifests to ``retired/`` (a copy, then the removal), the oldest first; remove aliases, then objects; remove
retired manifests whose day is over; give up old uploads in parts; release. Stopped anywhere, what is left is a larger heap of the same garbage: the
next run plans anew. A manifest that cannot be read stops everything: nobody knows what it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sessionfs.formats import content_alias
from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import CorruptDataError, ObjectNotFoundError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.manifest_chain import ManifestChain
from sessionfs.replication.maintenance.collecting.garbage_plan import GarbagePlan, Surveyed, plan
from sessionfs.replication.maintenance.holding import Exclusive, Held, holding
from sessionfs.replication.maintenance.in_place import AT_ONCE, Progress, no_progress
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.trio_store import READ_TRIES, Landed, SourceMoved, TrioStore
from sessionfs.stores.base import IfAbsent, ObjectMetadata, ObjectStat, Unconditional

_Stored = dict[int, tuple[Manifest, ObjectStat]]


@dataclass(frozen=True, slots=True)
class Collected:
    """What was done.

    Attributes:
        plan: What was found.
        retired: Generations moved.
        removed: Objects removed.
        removed_bytes: Their length.
        expired: Retired manifests removed.
        aborted: Uploads in parts given up.
    """

    plan: GarbagePlan
    retired: int = 0
    removed: int = 0
    removed_bytes: int = 0
    expired: int = 0
    aborted: int = 0


class Garbage:
    """Collects garbage.

    Args:
        store: The bucket.
        exclusive: Ownership.
        clock: Write ids.
        settings: How many generations are kept.
    """

    def __init__(
        self, store: TrioStore, exclusive: Exclusive, clock: Clock, settings: ReplicationSettings
    ) -> None:
        self._store = store
        self._exclusive = exclusive
        self._clock = clock
        self._settings = settings
        self._chain = ManifestChain(store)

    async def plan(self, session: SessionId) -> GarbagePlan:
        """Say what would go now; the session is not touched, and may be owned by anybody.

        Raises:
            CorruptDataError, UnsupportedFormatError: A manifest cannot be read.
            UnavailableError, AccessError: The store does not answer, or keeps us from writing the scratch object that tells its time.
        """
        surveyed = await self._survey(session, await self._server_time_ns())
        return plan(surveyed) if surveyed is not None else GarbagePlan(session)

    async def collect(self, session: SessionId, *, progress: Progress = no_progress) -> Collected:
        """Remove what nobody needs.

        Raises:
            SessionAlreadyOwnedError, OwnershipLostError: Another host owns the session.
            And as `plan`.
        """
        if await self._chain.newest(session) is None:
            return Collected(GarbagePlan(session))
        async with holding(self._exclusive, session) as held:
            surveyed = await self._survey(session, await self._server_time_ns())
            if surveyed is None:
                return Collected(GarbagePlan(session))
            return await self._collect(held, plan(surveyed), progress)

    async def _collect(self, held: Held, what: GarbagePlan, progress: Progress) -> Collected:
        patient = PatientStore(self._store, self._clock, self._settings, held.check)
        total = len(what.to_retire) + len(what.to_remove) + len(what.to_expire)
        done = retired = removed = removed_bytes = expired = 0

        async def remove(found: ObjectStat) -> None:
            nonlocal done, removed, removed_bytes
            if isinstance(await patient.delete(found.key, found.token), Landed):
                removed += 1
                removed_bytes += found.size_bytes
            done += 1
            progress(done, total)

        for number, found in what.to_retire:
            await self._retire(patient, held.session, number, found)
            retired += 1
            done += 1
            progress(done, total)
        for wanted in (True, False):
            group = [found for found in what.to_remove if found.key.endswith(".alias") is wanted]
            await for_each(group, remove, limit=AT_ONCE)
        for _, found in what.to_expire:
            expired += isinstance(await patient.delete(found.key, found.token), Landed)
            done += 1
            progress(done, total)
        for upload in what.to_abort:
            held.check()
            await self._store.abort_upload(upload)
        return Collected(what, retired, removed, removed_bytes, expired, len(what.to_abort))

    async def _retire(
        self, patient: PatientStore, session: SessionId, number: int, found: ObjectStat
    ) -> None:
        """Move a manifest; one that is there already was moved by a run that was killed, and its day counts from then."""
        described = await self._store.head(found.key, tries=READ_TRIES)
        if described is None:
            return
        metadata = described.metadata or ObjectMetadata()
        outcome = await patient.copy(
            found.key,
            keys.retired_key(session, number),
            source_token=described.token,
            condition=IfAbsent(),
            metadata=patient.record_metadata(encoding=metadata.content_encoding),
        )
        if isinstance(outcome, SourceMoved):
            raise UnavailableError(f"{found.key} changed meanwhile", remedy="run it again")
        await patient.delete(found.key, described.token)

    # --- the survey

    async def _survey(self, session: SessionId, now_ns: int) -> Surveyed | None:
        newest = await self._chain.newest(session)
        if newest is None:
            return None
        listed = await self._chain.listed(session)
        kept = await self._read_all(session, listed.kept)
        retired = await self._read_all(session, listed.retired)
        content, _ = await self._store.list_all(keys.objects_prefix(session), whole_segments=False)
        prefixes = (keys.session_prefix(session), keys.objects_prefix(session))
        uploads = [upload for prefix in prefixes for upload in await self._store.uploads_under_way(prefix)]
        return Surveyed(
            session,
            now_ns,
            newest.manifest,
            kept,
            retired,
            tuple(content),
            await self._aliases(session, content),
            self._settings.keep_generations,
            tuple(uploads),
        )

    async def _read_all(self, session: SessionId, stored: Mapping[int, ObjectStat]) -> _Stored:
        found: _Stored = {}

        async def read(number: int) -> None:
            key = stored[number].key
            raw = await self._store.read(key, tries=READ_TRIES)
            manifest = manifests.decode(raw, key)
            if manifest.session != session and manifest.format != manifests.OLDER_FORMAT:
                raise CorruptDataError(f"{key} is a manifest of session {manifest.session!r}")
            found[number] = (manifest, stored[number])

        await for_each(sorted(stored), read, limit=AT_ONCE)
        return found

    async def _aliases(self, session: SessionId, content: list[ObjectStat]) -> dict[str, str]:
        found: dict[str, str] = {}

        async def read(stored: ObjectStat) -> None:
            try:
                raw = await self._store.read(stored.key, tries=READ_TRIES)
                found[stored.key] = content_alias.decode(raw, stored.key).of
            except ObjectNotFoundError:
                return

        parsed = [(stored, keys.parse_content_key(session, stored.key)) for stored in content]
        await for_each([stored for stored, sums in parsed if sums and sums[1]], read, limit=AT_ONCE)
        return found

    async def _server_time_ns(self) -> int:
        """The store's time: of a scratch object that is written and removed at once."""
        patient = PatientStore(self._store, self._clock, self._settings, lambda: None)
        key = f"{keys.PROBE_PREFIX}{self._clock.unique_id()}"
        metadata = patient.record_metadata()
        outcome = await patient.put(key, b"", condition=Unconditional(), metadata=metadata)
        if not isinstance(outcome, Landed):
            raise UnavailableError(f"{key} could not be written", remedy="try again")
        found = await self._store.head(key, tries=READ_TRIES)
        await patient.delete(key, outcome.token)
        if found is None:
            raise UnavailableError(f"{key} is not there after it was written", remedy="try again")
        return found.modified_ns
