"""Both stores as they are, compared; everything that must be refused is refused here, and nothing is written.

Refused are: a source that somebody writes, a source with nothing in it, a destination with anything that no migration of this source put there,
and a destination that was changed since.
"""

from __future__ import annotations

from sessionfs.formats.migration.records import RECORD_KEY, Entry
from sessionfs.migration.inventory import Inventory, Unit, in_scope, of_listing
from sessionfs.migration.journal import JournalState, read_journal, read_record
from sessionfs.migration.liveness import Liveness
from sessionfs.migration.plan import Plan, Step, UnitPlan
from sessionfs.model.errors import ConflictError, NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.model.roots import shown_id
from sessionfs.replication.maintenance.unfinished_migration import require_whole
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectStat
from sessionfs.stores.store_urls import store_id

_SHOWN = 3


class Survey:
    """Compares two stores.

    Args:
        source: Where everything is.
        destination: Where it is to be; None when the directory does not exist yet.
        liveness: Says whether somebody writes the source.
        source_url: Canonical URL of the source, as its record names it.
    """

    def __init__(
        self, source: TrioStore, destination: TrioStore | None, liveness: Liveness, *, source_url: str
    ) -> None:
        self._source = source
        self._destination = destination
        self._liveness = liveness
        self._source_url = source_url

    async def plan(self, scope: frozenset[SessionId] | None = None) -> Plan:
        """Say what is to be done.

        Args:
            scope: Sessions and shared roots, None for everything.

        Raises:
            SessionAlreadyOwnedError: Somebody writes the source.
            NotFoundError: It has nothing, or not one of the sessions.
            ConflictError: The destination has something that is not from there, or was changed since; or the source itself is the destination
                of a migration that is not done.
            SessionFSError: A store does not answer, or a record cannot be read.
        """
        here = await listed(self._source)
        _require_something(here, scope, self._source.url)
        if RECORD_KEY in here.pages:
            require_whole((await read_record(self._source))[0], self._source.url)
        await self._liveness.require_at_rest(here, scope)
        plan = Plan(scope, here.stats(scope), left_out=[] if scope else here.others + here.unnameable)
        there = Inventory()
        if self._destination is not None:
            there = await listed(self._destination)
            plan.journal = await read_journal(self._destination, there.pages)
            self._require_ours(there, plan.journal, scope)
        _compare(plan, here, there)
        return plan

    def _require_ours(
        self, there: Inventory, journal: JournalState, scope: frozenset[SessionId] | None
    ) -> None:
        """Refuse a destination with anything that no migration of this source put there."""
        url = self._destination.url if self._destination else ""
        strangers = there.others + there.unnameable + [found.key for found in there.owners.values()]
        strangers += [found.key for found in there.beats.values()]
        if journal.record is None:
            strangers = [*there.stats(), *there.pages, *strangers]
            if strangers:
                raise ConflictError(
                    f"{url} is not empty: it has {_sample(strangers)}",
                    remedy="name an empty bucket, prefix or directory",
                )
            return
        if journal.record.source_id != store_id(self._source_url):
            raise ConflictError(
                f"{url} was migrated from {journal.record.source}, not from {self._source_url}",
                remedy="name an empty bucket, prefix or directory",
            )
        strangers += [found.key for found in there.stats(scope).values() if not journal.is_ours(found)]
        if strangers:
            raise ConflictError(
                f"{url} was changed since it was migrated to: {_sample(strangers)}",
                remedy="it is in use, and newer than the source; to migrate anew, name an empty destination",
            )


async def listed(store: TrioStore) -> Inventory:
    """List a whole store, sorted."""
    objects, _ = await store.list_all("", whole_segments=False)
    return of_listing(objects)


def is_same(entry: Entry, found: ObjectStat) -> bool:
    """Whether an object of the source is the one that was copied."""
    seen = (entry.source_token, entry.size_bytes, entry.source_modified_ns)
    return seen == (found.token, found.size_bytes, found.modified_ns)


def _require_something(here: Inventory, scope: frozenset[SessionId] | None, url: str) -> None:
    present = {unit.id for unit in here.objects}
    for session in sorted(scope or ()):
        if session not in present:
            raise NotFoundError(f"{url} has no session {shown_id(session)}")
    if not here.objects:
        raise NotFoundError(f"{url} has nothing to migrate", remedy="name the source with --from")


def _compare(plan: Plan, here: Inventory, there: Inventory) -> None:
    units = {unit for unit in (*here.objects, *there.objects) if in_scope(unit, plan.scope)}
    at_destination = there.stats(plan.scope)
    for unit in sorted(units, key=lambda one: one.name):
        wanted = UnitPlan(unit)
        _add_steps(plan, wanted, here, at_destination)
        wanted.stale = _stale(unit, plan.source, there)
        if wanted.steps or wanted.stale:
            plan.units.append(wanted)


def _add_steps(plan: Plan, wanted: UnitPlan, here: Inventory, at_destination: dict[str, ObjectStat]) -> None:
    for phase, objects in sorted(here.objects.get(wanted.unit, {}).items()):
        steps: list[Step] = []
        for found in objects:
            before = at_destination.get(found.key)
            known = plan.journal.known(before) if before is not None else None
            if known is not None and is_same(known, found):
                plan.settled[found.key] = known
            else:
                steps.append(Step(found, before, known))
        if steps:
            wanted.steps[phase] = steps


def _stale(unit: Unit, source: dict[str, ObjectStat], there: Inventory) -> list[ObjectStat]:
    phases = there.objects.get(unit, {})
    return [
        found for phase in sorted(phases, reverse=True) for found in phases[phase] if found.key not in source
    ]


def _sample(found: list[str]) -> str:
    shown = ", ".join(sorted(found)[:_SHOWN])
    return shown if len(found) <= _SHOWN else f"{shown} and {len(found) - _SHOWN} more"
