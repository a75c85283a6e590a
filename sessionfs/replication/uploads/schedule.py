"""Which key is next: pure functions over the journal's rows, and the rules of order between keys.

Rules of order:

* A put of ``x`` waits for the deletes of ``x/`` and ``x/...``, a put of ``x/y`` for the delete of ``x``, and neither runs while the other is
  under way: a store may not hold both.
* A directory's marker and what is below it are never under way together: a server that makes folders by itself (SeaweedFS) may lose the
  marker's metadata to the folder that it makes for a child at the same moment.
* A delete waits until the content of the object has arrived under every other name it has in the tree.
* A put that replaces bytes of another inode waits in the same way when those bytes are only in the bucket.

The last two can wait for each other (two names exchanged): `find_knot` gives the row that goes first then, its bytes brought to safety
before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sessionfs.model import keys
from sessionfs.model.settings import ReplicationSettings
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal, Work

_NANOSECONDS = 1_000_000_000
_LATEST_START = 0.85
"""Share of the longest delay after which an upload starts, so that it also ends within it."""


def due_ns(work: Work, known_size_bytes: int, settings: ReplicationSettings, now_ns: int) -> int:
    """When a row should run, wall clock.

    Args:
        work: The row.
        known_size_bytes: Length of what the bucket has: what an upload replaces costs again.
        settings: The delays.
        now_ns: The wall clock; a change from its future means that the clock was set back.
    """
    if work.changed_ns > now_ns:
        return work.not_before_ns
    growth = settings.growth_bytes_per_second
    quiet = settings.upload_delay_seconds
    if growth:
        quiet = max(quiet, known_size_bytes / growth)
    latest = settings.max_upload_delay_seconds * _LATEST_START
    after = min(
        work.changed_ns + int(min(quiet, latest) * _NANOSECONDS),
        work.first_owed_ns + int(latest * _NANOSECONDS),
    )
    return max(after, work.not_before_ns)


def fair_order(rows: Iterable[Work], under_way: Mapping[str, int]) -> Iterator[Work]:
    """Give rows oldest first, taking turns between sessions.

    Args:
        rows: Oldest first.
        under_way: Uploads in flight by session; a session with fewer is served first.
    """
    queues: dict[str, deque[Work]] = {}
    for row in rows:
        queues.setdefault(row.session, deque()).append(row)
    served = Counter(under_way)
    while queues:
        session = min(queues, key=lambda name: (served[name], queues[name][0].first_owed_ns))
        served[session] += 1
        yield queues[session].popleft()
        if not queues[session]:
            del queues[session]


@dataclass(frozen=True, slots=True)
class Blockers:
    """Keys that must go first.

    Attributes:
        related: They cannot be in the bucket together with this one.
        content: They still need the bytes that this one removes.
    """

    related: frozenset[str] = field(default_factory=frozenset)
    content: frozenset[str] = field(default_factory=frozenset)

    @property
    def all(self) -> frozenset[str]:
        """Both."""
        return self.related | self.content


def blockers(journal: UploadJournal, key: str, in_flight: Collection[str]) -> Blockers:
    """Say what a key waits for.

    Args:
        journal: The tree, the known objects and the rows.
        key: The key.
        in_flight: Keys that are under way.
    """
    wanted = journal.wanted(key)
    related: set[str] = set()
    if wanted is not None:
        related.update(
            other
            for other in journal.related_work(key)
            if other in in_flight or journal.wanted(other) is None
        )
        related.update(other for other in in_flight if _contains(other, key) or _contains(key, other))
    known = journal.object(key)
    content: set[str] = set()
    if known is not None and _removes_content(journal, known, wanted.node.number if wanted else None):
        content.update(
            other
            for other in _names(journal, known.number)
            if other != key and journal.work(other) is not None
        )
    return Blockers(frozenset(related), frozenset(content))


def find_knot(blocked: Mapping[str, Blockers]) -> str | None:
    """Give a key that must go first because all blocked keys wait for each other.

    Args:
        blocked: Everything that is due and blocked, oldest first, when nothing is in flight.

    Returns:
        The oldest key in a knot that waits for content only; None when somebody outside can still untie it.
    """
    knot = dict(blocked)
    while True:
        free = [key for key, found in knot.items() if not found.all <= knot.keys()]
        if not free:
            break
        for key in free:
            del knot[key]
    return next((key for key, found in knot.items() if not found.related), None)


def _contains(marker: str, key: str) -> bool:
    """Whether a key is a directory's marker and another lies below that directory."""
    return marker.endswith("/") and marker != key and key.startswith(marker)


def _removes_content(journal: UploadJournal, known: KnownObject, wanted_number: int | None) -> bool:
    if not known.number or wanted_number == known.number:
        return False
    node = journal.node(known.number)
    return node is not None and (wanted_number is None or not node.present)


def _names(journal: UploadJournal, number: int) -> Iterator[str]:
    node = journal.node(number)
    for session, path in journal.paths_of(number):
        key = keys.live_key(session, path, is_directory=node is not None and node.is_directory)
        if key is not None:
            yield key
