"""What is in a store, and in which order it may appear in another: pure sorting of a listing.

Every key is one of four things: copied; a note of a host that works with the store (owners, beats, scratch, the journal of a migration);
another tool's, which no session and no part of the program reads; or one that no request can name.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from sessionfs.formats.migration.records import PAGES_PREFIX, RECORD_KEY
from sessionfs.model import keys, names, roots
from sessionfs.model.errors import InvalidKeyError
from sessionfs.model.names import SessionId
from sessionfs.stores.base import ObjectStat

INDEX_KEY = "sessions.json"
INDEX = ""
"""Name of the unit that ``sessions.json`` and its quarantined forms make: the last one."""
ARCHIVE = "archive"
_ARCHIVE_PREFIX = "archive/"
_ASIDE_PREFIX = f"{INDEX_KEY}.corrupt-"
_OWNER_SUFFIX = ".owner"


class Phase(enum.IntEnum):
    """When an object of a unit is copied: the later ones name the earlier ones."""

    BYTES = 0
    GENERATIONS = 1
    NEWEST = 2
    MARKER = 3


@dataclass(frozen=True, slots=True)
class Unit:
    """What is copied as one: a session, a shared root, the archive, or the index.

    Attributes:
        name: As in keys, such as ``sessions/s1``; `ARCHIVE` or `INDEX`.
        id: Of the session or shared root, None for the others.
    """

    name: str
    id: SessionId | None = None


@dataclass(slots=True)
class Inventory:
    """A listing, sorted.

    Attributes:
        objects: What is copied, by unit and phase.
        owners: Ownership records, by unit.
        beats: Beats, by holder.
        pages: Keys of a migration's journal and record.
        others: Keys of other tools.
        unnameable: Keys that no request can name.
    """

    objects: dict[Unit, dict[Phase, list[ObjectStat]]] = field(default_factory=dict)
    owners: dict[SessionId, ObjectStat] = field(default_factory=dict)
    beats: dict[str, ObjectStat] = field(default_factory=dict)
    pages: dict[str, ObjectStat] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    unnameable: list[str] = field(default_factory=list)

    def add(self, found: ObjectStat) -> None:
        """Sort one object in."""
        key = found.key
        if not _is_nameable(key):
            self.unnameable.append(key)
        elif key == RECORD_KEY or key.startswith(PAGES_PREFIX):
            self.pages[key] = found
        elif key.startswith(keys.HOSTS_PREFIX):
            self.beats[key.removeprefix(keys.HOSTS_PREFIX).removesuffix(".json")] = found
        elif not key.startswith(keys.PROBE_PREFIX):
            self._add_kept(found)

    def _add_kept(self, found: ObjectStat) -> None:
        owner = _owner_of(found.key)
        if owner is not None:
            self.owners[owner] = found
            return
        place = place_of(found.key)
        if place is None:
            self.others.append(found.key)
            return
        unit, phase = place
        self.objects.setdefault(unit, {}).setdefault(phase, []).append(found)

    def stats(self, scope: frozenset[SessionId] | None = None) -> dict[str, ObjectStat]:
        """Give what is copied by its key, of all units or of those in scope."""
        return {
            found.key: found
            for unit, phases in self.objects.items()
            if in_scope(unit, scope)
            for phase in phases.values()
            for found in phase
        }


def of_listing(listing: Iterable[ObjectStat]) -> Inventory:
    """Sort a listing of a whole store."""
    inventory = Inventory()
    for found in listing:
        inventory.add(found)
    return inventory


def in_scope(unit: Unit, scope: frozenset[SessionId] | None) -> bool:
    """Whether a unit is meant; a scope of named sessions has neither the archive nor the index."""
    return scope is None or unit.id in scope


def place_of(key: str) -> tuple[Unit, Phase] | None:
    """Say of which unit an object is and when it is copied; None for what is not copied."""
    if key == INDEX_KEY:
        return Unit(INDEX), Phase.MARKER
    if key.startswith(_ASIDE_PREFIX):
        return Unit(INDEX), Phase.BYTES
    if key.startswith(_ARCHIVE_PREFIX):
        return Unit(ARCHIVE), _archive_phase(key)
    session = keys.session_of_key(key)
    if session is not None:
        return Unit(roots.key_base(session), session), Phase.BYTES
    beside = _beside(key)
    session = keys.session_with(beside) if beside.endswith(names.SIBLING_SUFFIXES) else None
    if session is None or beside.endswith(_OWNER_SUFFIX):
        return None
    return Unit(roots.key_base(session), session), _phase_beside(session, key)


def _phase_beside(session: SessionId, key: str) -> Phase:
    if key == keys.commit_marker_key(session):
        return Phase.MARKER
    if key == keys.manifest_key(session):
        return Phase.NEWEST
    return Phase.GENERATIONS if key.startswith(keys.manifest_prefix(session)) else Phase.BYTES


def _archive_phase(key: str) -> Phase:
    segments = key.split("/")
    if segments[-1] == "latest":
        return Phase.NEWEST
    return Phase.GENERATIONS if "checkpoints" in segments else Phase.BYTES


def _owner_of(key: str) -> SessionId | None:
    beside = _beside(key)
    return keys.session_with(beside) if beside.endswith(_OWNER_SUFFIX) else None


def _beside(key: str) -> str:
    """The first segments of a key, as many as name a unit; "" when it has fewer."""
    depth = roots.key_depth(key.partition("/")[0])
    segments = key.split("/")
    return "/".join(segments[:depth]) if depth and len(segments) >= depth else ""


def _is_nameable(key: str) -> bool:
    try:
        keys.validate_any_key(key)
    except InvalidKeyError:
        return False
    return True
