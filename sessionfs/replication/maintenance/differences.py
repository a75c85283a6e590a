"""What differs between two generations: from their manifests alone."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import Literal

from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import ManifestChain
from sessionfs.replication.trio_store import TrioStore

Kind = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One path.

    Attributes:
        path: Inside the session.
        kind: Only in the second, only in the first, or different.
        what: What changed: ``type``, ``content``, ``mode``, ``owner``, ``time``, ``xattrs``, ``target``, ``links``; empty unless *changed*.
        before_bytes: Length in the first, 0 when it is not there.
        after_bytes: Length in the second, 0 when it is not there.
    """

    path: bytes
    kind: Kind
    what: tuple[str, ...] = ()
    before_bytes: int = 0
    after_bytes: int = 0


class Differences:
    """Compares generations.

    Args:
        store: The bucket.
    """

    def __init__(self, store: TrioStore) -> None:
        self._chain = ManifestChain(store)

    async def diff(self, session: SessionId, first: int, second: int) -> list[Difference]:
        """Give the paths that differ, sorted. Generation 0 is nothing at all.

        Raises:
            NotFoundError: There is no such generation.
            CorruptDataError, UnsupportedFormatError: A manifest cannot be read.
            UnavailableError, AccessError: The store does not answer.
        """
        return compare(await self._read(session, first), await self._read(session, second))

    async def _read(self, session: SessionId, generation: int) -> Manifest:
        return await self._chain.read(session, generation) if generation else Manifest(session, 0)


def compare(first: Manifest, second: Manifest) -> list[Difference]:
    """Give the paths that differ between two manifests, sorted."""
    before = {entry.path: entry for entry in first.entries}
    after = {entry.path: entry for entry in second.entries}
    links_before, links_after = _links(first), _links(second)
    found: list[Difference] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            kind: Kind = "added" if old is None else "removed"
            found.append(Difference(path, kind, (), _bytes(old), _bytes(new)))
            continue
        what = _changes(old, new)
        if links_before.get(path) != links_after.get(path):
            what.append("links")
        if what:
            found.append(Difference(path, "changed", tuple(what), old.size_bytes, new.size_bytes))
    return found


def _changes(old: ManifestEntry, new: ManifestEntry) -> list[str]:
    if old.type != new.type:
        return ["type"]
    pairs = (
        ("content", (old.sha256, old.size_bytes), (new.sha256, new.size_bytes)),
        ("mode", stat.S_IMODE(old.mode), stat.S_IMODE(new.mode)),
        ("owner", (old.uid, old.gid), (new.uid, new.gid)),
        ("time", old.mtime_ns, new.mtime_ns),
        ("xattrs", dict(old.xattrs), dict(new.xattrs)),
        ("target", old.target, new.target),
    )
    is_directory = old.type == "directory"
    return [name for name, one, other in pairs if one != other and not (is_directory and name == "content")]


def _links(found: Manifest) -> dict[bytes, frozenset[bytes]]:
    """For each name of a file with several, all of its names: the numbers of groups say nothing between generations."""
    groups: dict[int, set[bytes]] = {}
    for entry in found.entries:
        if entry.link_group:
            groups.setdefault(entry.link_group, set()).add(entry.path)
    return {path: frozenset(group) for group in groups.values() for path in group}


def _bytes(entry: ManifestEntry | None) -> int:
    return entry.size_bytes if entry is not None else 0
