"""What a run would do: made from two listings and the destination's journal, and printed by ``--dry-run``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sessionfs.formats.migration.records import Entry
from sessionfs.migration.inventory import INDEX, Phase, Unit
from sessionfs.migration.journal import JournalState
from sessionfs.model.errors import ConflictError, InvalidKeyError
from sessionfs.model.names import SessionId
from sessionfs.stores.base import Capabilities, ObjectStat
from sessionfs.stores.request_checks import check_key


@dataclass(frozen=True, slots=True)
class Step:
    """One object to bring to the destination.

    Attributes:
        source: As the source's listing has it.
        there: What the destination has under its key, None for nothing.
        known: What is known of that object, None when a run stopped before it said so.
    """

    source: ObjectStat
    there: ObjectStat | None = None
    known: Entry | None = None


@dataclass(slots=True)
class UnitPlan:
    """What is done for one unit.

    Attributes:
        unit: Which.
        steps: By phase, in order.
        stale: Objects at the destination that the source no longer has, the ones that name others first.
    """

    unit: Unit
    steps: dict[Phase, list[Step]] = field(default_factory=dict)
    stale: list[ObjectStat] = field(default_factory=list)

    def batches(self) -> Iterator[list[Step]]:
        """Give the steps in order: those of one batch may be done at once.

        Of directories and what is below them, the outer ones come first: a server that keeps keys as folders may lose the marker of a folder when
        something below it is put at the same moment (SeaweedFS 4.48: 2 of 400).
        """
        for phase in sorted(self.steps):
            markers: dict[int, list[Step]] = {}
            others: list[Step] = []
            for step in self.steps[phase]:
                key = step.source.key
                batch = markers.setdefault(key.count("/"), []) if key.endswith("/") else others
                batch.append(step)
            yield from (markers[depth] for depth in sorted(markers))
            if others:
                yield others


@dataclass(slots=True)
class Plan:
    """What a run would do.

    Attributes:
        scope: The sessions that were asked for, None for everything.
        source: Every object that is migrated, by key.
        settled: Entries of those that are at the destination already, byte for byte.
        units: Units with something to do.
        journal: Of the destination.
        left_out: Keys of the source that are not migrated: of other tools, or such as no request can name.
    """

    scope: frozenset[SessionId] | None
    source: dict[str, ObjectStat]
    settled: dict[str, Entry] = field(default_factory=dict)
    units: list[UnitPlan] = field(default_factory=list)
    journal: JournalState = field(default_factory=JournalState)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to do at all."""
        record = self.journal.record
        state = "complete" if self.scope is None else "partial"
        return not self.units and record is not None and record.state in {state, "complete"}

    @property
    def index(self) -> UnitPlan | None:
        """What is done for the index, None for nothing."""
        return next((unit for unit in self.units if unit.unit.name == INDEX), None)

    @property
    def bodies(self) -> list[UnitPlan]:
        """What is done for everything but the index."""
        return [unit for unit in self.units if unit.unit.name != INDEX]

    def steps(self) -> Iterator[Step]:
        """Give every step."""
        for unit in self.units:
            for phase in unit.steps.values():
                yield from phase

    def to_json(self) -> dict[str, Any]:
        """Give the plan's figures as in ``migrate --json``."""
        steps = list(self.steps())
        return {
            "objects": len(self.source),
            "bytes": sum(found.size_bytes for found in self.source.values()),
            "to_copy": len(steps),
            "bytes_to_copy": sum(step.source.size_bytes for step in steps),
            "unchanged": len(self.settled),
            "stale": sum(len(unit.stale) for unit in self.units),
            "left_out": sorted(self.left_out),
        }


def require_storable(plan: Plan, capabilities: Capabilities) -> None:
    """Require that the destination can keep every key.

    Args:
        plan: What is to be brought there.
        capabilities: The destination's.

    Raises:
        InvalidKeyError: It cannot keep one; nothing was written.
        ConflictError: It cannot keep two of them at once; nothing was written.
    """
    for key in sorted(plan.source):
        try:
            check_key(key, capabilities)
        except InvalidKeyError as problem:
            raise InvalidKeyError(
                f"the destination cannot keep an object of the source: {problem.message}",
                remedy="rename that file, or choose a destination without this limit",
            ) from None
        if not capabilities.maximum_segment_bytes:
            continue
        # A store with a limit for segments keeps them as names of files.
        ancestor = key.rstrip("/")
        while "/" in ancestor:
            ancestor = ancestor.rpartition("/")[0]
            if ancestor in plan.source:
                raise ConflictError(
                    f"the destination cannot keep {ancestor!r} beside {key!r}",
                    remedy="rename one of them, or choose a destination that is no directory",
                )
        if key.endswith("/") and key[:-1] in plan.source:
            raise ConflictError(
                f"the destination cannot keep {key[:-1]!r} beside {key!r}",
                remedy="remove one of them, or choose a destination that is no directory",
            )
