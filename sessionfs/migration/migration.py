"""A run: what the plan says, in the order of the package's docstring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sessionfs.formats.migration.checksum import manifest_checksum
from sessionfs.formats.migration.records import Entry, MigrationRecord, State
from sessionfs.migration.copying import Copying
from sessionfs.migration.inventory import INDEX, in_scope, place_of
from sessionfs.migration.journal import Journal, intents_of
from sessionfs.migration.liveness import Liveness
from sessionfs.migration.plan import Plan, Step, UnitPlan, require_storable
from sessionfs.migration.survey import listed
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import ConflictError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.trio_store import Landed, TrioStore
from sessionfs.stores.base import ObjectStat, ObjectStore
from sessionfs.stores.store_urls import store_id


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended.

    Attributes:
        objects: At the destination now, of what was asked for.
        bytes: Their length.
        checksum: As `manifest_checksum`.
        copied: Objects that were put.
        copied_bytes: Their length.
        kept: Objects that an earlier run had put, found equal by reading them.
        unchanged: Objects of which the journal says that they are there.
        removed: Objects that the source no longer has.
        damaged: Keys whose bytes are not those that their own metadata says, at the source already.
    """

    objects: int
    bytes: int
    checksum: str
    copied: int
    copied_bytes: int
    kept: int
    unchanged: int
    removed: int
    damaged: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the figures as in ``migrate --json``."""
        return {
            "objects": self.objects,
            "bytes": self.bytes,
            "checksum": self.checksum,
            "copied": self.copied,
            "copied_bytes": self.copied_bytes,
            "kept": self.kept,
            "unchanged": self.unchanged,
            "removed": self.removed,
            "damaged": list(self.damaged),
        }


class Migration:
    """Carries a plan out.

    Args:
        source: The source, only read.
        plain_source: The same, for reading a long object while it is sent.
        destination: The destination.
        clock: Times and write ids.
        settings: How much at once.
        liveness: Says whether somebody writes the source.
        source_url: Canonical URL of the source.
        on_progress: Told how many objects were brought, and of how many.
    """

    def __init__(
        self,
        source: TrioStore,
        plain_source: ObjectStore,
        destination: TrioStore,
        clock: Clock,
        settings: ReplicationSettings,
        liveness: Liveness,
        *,
        source_url: str,
        on_progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        self._source = source
        self._destination = destination
        self._clock = clock
        self._settings = settings
        self._liveness = liveness
        self._source_url = source_url
        self._on_progress = on_progress
        self._patient = PatientStore(destination, clock, settings, lambda: None)
        self._copying = Copying(source, plain_source, self._patient, settings)
        self._done = 0
        self._removed = 0

    async def run(self, plan: Plan) -> Result:
        """Bring everything over, and verify it. A plan with nothing to do writes nothing.

        Raises:
            ConflictError: The source or the destination changed meanwhile.
            InvalidKeyError: The destination cannot keep a key; nothing was written.
            CorruptDataError: Bytes that were read back are others.
            SessionFSError: A store does not answer. Whatever it is: the next run goes on.
        """
        require_storable(plan, self._destination.capabilities)
        entries = dict(plan.settled)
        if plan.is_done:
            return self._result(plan, entries)
        journal = Journal(self._patient, plan.journal)
        started_at = utc_text(self._clock.wall_ns())
        await journal.write_record(self._record("copying", started_at))
        await journal.intend(intents_of(step.source for step in plan.steps()))
        with self._copying:
            total = sum(1 for _ in plan.steps())

            async def bring(unit: UnitPlan) -> None:
                await self._bring(unit, journal, entries, total)

            await for_each(plan.bodies, bring, limit=self._settings.concurrent_uploads)
            await journal.flush()
            await self._require_exact(plan, entries)
            # The last look before the index: from then on the destination may be taken for the source.
            await self._require_unchanged(plan)
            if plan.index is not None:
                await bring(plan.index)
            await journal.flush()
        result = self._result(plan, entries)
        await journal.write_record(self._finished(plan, journal, result, started_at))
        return result

    async def _bring(self, unit: UnitPlan, journal: Journal, entries: dict[str, Entry], total: int) -> None:
        """Bring one unit: what names others comes last, and goes first."""

        async def one(step: Step) -> None:
            entry = await self._copying.copy(step)
            entries[entry.key] = entry
            await journal.note(entry)
            self._done += 1
            self._on_progress(self._done, total)

        # First of all, because a file may have become a directory, or the other way round.
        await self._remove(unit)
        for batch in unit.batches():
            await for_each(batch, one, limit=self._settings.concurrent_uploads)

    async def _remove(self, unit: UnitPlan) -> None:
        """Remove what the source no longer has, one after the other: what names others goes first."""
        for found in unit.stale:
            outcome = await self._patient.delete(found.key, found.token)
            if not isinstance(outcome, Landed):
                raise ConflictError(
                    f"{found.key} at {self._destination.url} was changed by somebody else meanwhile",
                    remedy="let nothing else write the destination, and run this again",
                )
            self._removed += 1

    async def _require_unchanged(self, plan: Plan) -> None:
        """Require that the source is what it was at the survey."""
        here = await listed(self._source)
        await self._liveness.require_at_rest(here, plan.scope)
        now = here.stats(plan.scope)
        for key in sorted(now.keys() | plan.source.keys()):
            if _state(now.get(key)) != _state(plan.source.get(key)):
                raise ConflictError(
                    f"{key} of {self._source.url} changed while it was migrated",
                    remedy="end what writes the source (sessionfs umount DIR), and run this again",
                )

    async def _require_exact(self, plan: Plan, entries: dict[str, Entry]) -> None:
        """Require that the destination holds what was read back, and nothing else; the index comes later."""
        there = await listed(self._destination)
        found = {
            stat.key: stat.token
            for unit, phases in there.objects.items()
            if unit.name != INDEX and in_scope(unit, plan.scope)
            for phase in phases.values()
            for stat in phase
        }
        wanted = {key: entry.token for key, entry in entries.items() if not key.startswith("sessions.json")}
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key) != wanted.get(key):
                raise ConflictError(
                    f"{key} at {self._destination.url} was changed by somebody else meanwhile",
                    remedy="let nothing else write the destination, and run this again",
                )

    def _result(self, plan: Plan, entries: dict[str, Entry]) -> Result:
        tally = self._copying.tally
        return Result(
            objects=len(entries),
            bytes=sum(entry.size_bytes for entry in entries.values()),
            checksum=manifest_checksum(entries.values()),
            copied=tally.copied,
            copied_bytes=tally.copied_bytes,
            kept=tally.kept,
            unchanged=len(plan.settled),
            removed=self._removed,
            damaged=tuple(sorted(tally.damaged)),
        )

    def _record(self, state: State, started_at: str) -> MigrationRecord:
        return MigrationRecord(
            source=self._source_url,
            source_id=store_id(self._source_url),
            state=state,
            started_at=started_at,
        )

    def _finished(self, plan: Plan, journal: Journal, result: Result, started_at: str) -> MigrationRecord:
        state: State = "complete"
        if plan.scope is not None:
            # Another run may have stopped half-way through sessions that this one did not touch.
            places = [place_of(key) for key in journal.state.pending]
            untouched = [place for place in places if place and not in_scope(place[0], plan.scope)]
            state = "copying" if untouched else "partial"
        return MigrationRecord(
            source=self._source_url,
            source_id=store_id(self._source_url),
            state=state,
            started_at=started_at,
            finished_at=utc_text(self._clock.wall_ns()),
            checksum=result.checksum,
            objects=result.objects,
            bytes=result.bytes,
        )


def _state(found: ObjectStat | None) -> tuple[str, int, int] | None:
    return (found.token, found.size_bytes, found.modified_ns) if found is not None else None
