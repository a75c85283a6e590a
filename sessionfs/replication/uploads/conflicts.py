"""Bytes of somebody else under a key of ours are kept aside before ours take the key; nothing is overwritten unseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sessionfs.model import keys, names
from sessionfs.model.clock import Clock, sortable_stamp
from sessionfs.replication.trio_store import Landed, TrioStore, write_id_of
from sessionfs.replication.uploads.attempts import known_object
from sessionfs.stores.base import IfAbsent, ObjectMetadata, ObjectStat
from sessionfs.working_copy.upload_journal import UploadJournal

RaiseEvent = Callable[[str, Mapping[str, str | int | float | bool]], None]
HOLDER_DIGITS = 8
"""So much of a holder's, or a writer's, name is in the keys of what is kept of his."""


@dataclass(frozen=True, slots=True)
class AsideCopy:
    """How an object is kept aside.

    Attributes:
        target: Where its bytes go.
        holder: Who wrote them, "unknown" for another tool.
        metadata: Its own, with a write id that settles a lost answer of the copy.
    """

    target: str
    holder: str
    metadata: ObjectMetadata


def aside_copy(key: str, found: ObjectStat, clock: Clock) -> AsideCopy:
    """Plan how the object at a live key is kept aside."""
    holder = write_id_of(found)[:HOLDER_DIGITS] or "unknown"
    target = keys.conflict_key(key, stamp=sortable_stamp(clock.wall_ns()), holder=holder)
    metadata = found.metadata or ObjectMetadata()
    user = {**metadata.user, "sessionfs-write": clock.unique_id()}
    return AsideCopy(target, holder, replace(metadata, user=user))


class Conflicts:
    """Keeps bytes aside.

    Args:
        journal: Lists them.
        store: Copies them.
        clock: Names them.
        raise_event: Told of each.
    """

    def __init__(
        self, journal: UploadJournal, store: TrioStore, clock: Clock, raise_event: RaiseEvent
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._raise_event = raise_event

    async def keep_aside(self, key: str, found: ObjectStat) -> bool:
        """Copy an object to its own key beside the session.

        Args:
            key: The live key.
            found: The object there.

        Returns:
            Whether exactly that object is kept; False when it moved meanwhile, or the answer was lost.

        Raises:
            SessionFSError: The store refused or did not answer.
        """
        plan = aside_copy(key, found, self._clock)
        target = plan.target
        outcome = await self._store.copy(
            key, target, source_token=found.token, condition=IfAbsent(), metadata=plan.metadata
        )
        if not isinstance(outcome, Landed):
            return False
        with self._journal.transaction():
            # Another name of the file may have lost these bytes: here they are.
            self._journal.put_object(replace(known_object(found, target, 0), token=outcome.token))
            self._journal.add_conflict(target, live_key=key, holder=plan.holder)
            self.announce(key, target, plan.holder)
        return True

    def announce(self, key: str, kept: str, holder: str) -> None:
        """Tell that two writers met.

        Args:
            key: The live key.
            kept: Key of the other writer's bytes.
            holder: Who wrote them.
        """
        live = keys.parse_live_key(key)
        self._raise_event(
            "session.conflict.kept",
            {
                "session_id": live.session if live else "",
                "path": names.display(live.path) if live else key,
                "key": kept,
                "holder": holder,
            },
        )
