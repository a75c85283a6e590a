"""Which manifests and objects nobody needs any more: pure, from what was listed and read.

* A generation beyond those that are kept is retired, and so is a commit that never happened once it is a day old.
* An object below ``.objects/`` goes when no manifest names it: kept, pending (numbered above the newest), or retired less than a day ago; neither
  directly nor as the target of an alias. One younger than a day never goes: a dying owner may have just written it.
* An upload in parts that was begun more than a day ago is given up.
* A retired manifest goes a day after it was retired, once nothing that only it named is left.

Names of newer generations need no look of their own: retention keeps a suffix of the chain, so what a generation needs of a newer one is named by
one that is kept as well. Ages are by the server's clock on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import abandoned
from sessionfs.stores.base import ObjectStat, UploadUnderWay

GRACE_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Everything that a plan is made of.

    Attributes:
        session: The session.
        now_ns: The server's time.
        newest: ``manifest.json``.
        kept: ``<n>.json`` by generation, with their objects.
        retired: ``retired/<n>.json`` by generation, with their objects.
        content: Objects below ``.objects/``.
        aliases: For each alias there: the sum of the object it points to.
        keep_generations: How many generations stay.
        uploads: Uploads in parts that were begun for the session's keys.
    """

    session: SessionId
    now_ns: int
    newest: Manifest
    kept: Mapping[int, tuple[Manifest, ObjectStat]]
    retired: Mapping[int, tuple[Manifest, ObjectStat]]
    content: tuple[ObjectStat, ...]
    aliases: Mapping[str, str]
    keep_generations: int
    uploads: tuple[UploadUnderWay, ...] = ()


@dataclass(frozen=True, slots=True)
class GarbagePlan:
    """What would go.

    Attributes:
        session: The session.
        to_retire: Generations that move to ``retired/``, the oldest first.
        to_remove: Objects below ``.objects/`` that go, aliases first.
        to_expire: Retired manifests that go.
        young: Objects that nothing names and that are less than a day old.
        to_abort: Uploads in parts that are given up.
    """

    session: SessionId
    to_retire: tuple[tuple[int, ObjectStat], ...] = ()
    to_remove: tuple[ObjectStat, ...] = ()
    to_expire: tuple[tuple[int, ObjectStat], ...] = ()
    young: tuple[ObjectStat, ...] = ()
    to_abort: tuple[UploadUnderWay, ...] = ()

    @property
    def bytes(self) -> int:
        """Length of what goes."""
        gone = [*self.to_remove, *(found for _, found in self.to_expire)]
        return sum(found.size_bytes for found in gone)


def plan(surveyed: Surveyed) -> GarbagePlan:
    """Say what goes."""
    retiring = generations_to_retire(surveyed)
    needed = sums_of(surveyed.newest)
    expiring: dict[int, tuple[Manifest, ObjectStat]] = {}
    for found, _ in surveyed.kept.values():
        needed |= sums_of(found)
    for number, (found, stored) in surveyed.retired.items():
        if _age_ns(surveyed, stored) >= GRACE_NS:
            expiring[number] = (found, stored)
        else:
            needed |= sums_of(found)
    removed, young, left = _objects(surveyed, needed)
    to_expire = [
        (number, stored)
        for number, (found, stored) in sorted(expiring.items())
        if not (sums_of(found) - needed) & left
    ]
    return GarbagePlan(
        surveyed.session,
        tuple((number, surveyed.kept[number][1]) for number in sorted(retiring)),
        removed,
        tuple(to_expire),
        young,
        tuple(one for one in surveyed.uploads if surveyed.now_ns - one.started_ns >= GRACE_NS),
    )


def generations_to_retire(surveyed: Surveyed) -> set[int]:
    """Give the generations beyond those that stay; of a removed session only its newest stays."""
    numbers = {number for number in surveyed.kept if number <= surveyed.newest.generation}
    lost = abandoned({number: found for number, (found, _) in surveyed.kept.items()}, surveyed.newest)
    real = sorted(numbers - lost)
    keep = 1 if surveyed.newest.removed else surveyed.keep_generations
    old_lost = {number for number in lost if _age_ns(surveyed, surveyed.kept[number][1]) >= GRACE_NS}
    return set(real[:-keep]) | old_lost


def sums_of(found: Manifest) -> set[str]:
    """Give the sums that a manifest names."""
    return {entry.sha256 for entry in found.entries if entry.sha256}


def _objects(
    surveyed: Surveyed, needed: set[str]
) -> tuple[tuple[ObjectStat, ...], tuple[ObjectStat, ...], set[str]]:
    """Give the objects that go, those that are only too young, and the sums of all that stay."""
    sums = {found.key: keys.parse_content_key(surveyed.session, found.key) for found in surveyed.content}
    is_young = {found.key: _age_ns(surveyed, found) < GRACE_NS for found in surveyed.content}
    targets = {
        surveyed.aliases[key]
        for key, parsed in sums.items()
        if parsed is not None
        and parsed[1]
        and key in surveyed.aliases
        and (parsed[0] in needed or is_young[key])
    }
    gone: list[tuple[bool, ObjectStat]] = []
    young: list[ObjectStat] = []
    left: set[str] = set()
    for found in surveyed.content:
        parsed = sums[found.key]
        if parsed is None:
            continue  # another tool's
        sha256, is_alias = parsed
        if sha256 in needed or (not is_alias and sha256 in targets):
            left.add(sha256)
        elif is_young[found.key]:
            left.add(sha256)
            young.append(found)
        else:
            gone.append((not is_alias, found))
    gone.sort(key=lambda pair: (pair[0], pair[1].key))
    return tuple(found for _, found in gone), tuple(young), left


def _age_ns(surveyed: Surveyed, found: ObjectStat) -> int:
    return surveyed.now_ns - found.modified_ns
