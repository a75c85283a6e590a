"""Puts whose outcome is not known, and those that may still arrive late.

A put is in the journal before it is sent. Its answer ends it; without an answer the key is looked at. An attempt that was
not seen there is remembered for an hour: an object that shows up with its write id is ours and out of date, and the present
state is put over it.
"""

from __future__ import annotations

import heapq

from sessionfs.formats import object_metadata
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.replication.trio_store import TrioStore, write_id_of
from sessionfs.stores.base import ObjectStat
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal

REMEMBERED_NS = 3_600_000_000_000
LATE_CHECKS_SECONDS = (5.0, 60.0)


def known_object(stat: ObjectStat, key: str, number: int) -> KnownObject:
    """Give what an object's description tells.

    Args:
        stat: From ``head``, with its metadata.
        key: The key.
        number: Inode whose bytes it has, 0 when unknown.
    """
    user = stat.metadata.user if stat.metadata else {}
    provenance = object_metadata.decode_provenance(user)
    attributes = object_metadata.decode_attributes(
        user, modified_ns=stat.modified_ns, is_directory=key.endswith("/")
    )
    return KnownObject(
        key=key,
        number=number,
        token=stat.token,
        write_id=provenance.write_id,
        sha256=provenance.sha256,
        size_bytes=stat.size_bytes,
        mode=attributes.mode,
        uid=attributes.uid,
        gid=attributes.gid,
        mtime_ns=attributes.mtime_ns,
        lineage=provenance.lineage,
        epoch=provenance.epoch,
    )


class Attempts:
    """Settles puts.

    Args:
        journal: Where they are recorded.
        store: Where they went.
        clock: When to look again.
    """

    def __init__(self, journal: UploadJournal, store: TrioStore, clock: Clock) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._late: list[tuple[float, str]] = []

    def are_unsettled(self, key: str) -> bool:
        """Whether a put to a key has no known outcome."""
        return any(not settled for _, settled in self._journal.attempts(key))

    def is_ours(self, key: str, found: ObjectStat | None) -> bool:
        """Whether an object was written by one of the attempts that are remembered."""
        if found is None:
            return False
        write_id = write_id_of(found)
        return write_id != "" and any(write_id == sent for sent, _ in self._journal.attempts(key))

    def adopt(self, key: str, found: ObjectStat) -> None:
        """Record an object as what the bucket holds."""
        write_id = write_id_of(found)
        with self._journal.transaction():
            self._journal.put_object(known_object(found, key, self._number(key, found)))
            if write_id:
                self._journal.end_attempt(write_id)

    def settle_one(self, key: str, write_id: str) -> None:
        """Record that an attempt was not seen to arrive, and look again later."""
        self._journal.settle_attempt(write_id)
        self._expect(key)

    async def look(self, key: str) -> None:
        """Look at a key and settle every attempt on it.

        Raises:
            UnavailableError, AccessError, BucketNotFoundError: Nothing is known; nothing was changed.
        """
        found = await self._store.head(key)
        with self._journal.transaction():
            if found is not None and self.is_ours(key, found):
                self.adopt(key, found)
            elif found is None and self._journal.object(key) is not None:
                self._journal.lose_object(key)
            for write_id, settled in self._journal.attempts(key):
                if not settled:
                    self.settle_one(key, write_id)

    def resume(self) -> list[str]:
        """Take up what a process that died left behind.

        Returns:
            Keys whose attempts must be settled.
        """
        self._journal.forget_attempts(self._clock.wall_ns() - REMEMBERED_NS)
        for key, _sent_ns in self._journal.attempted_keys(settled=True):
            self._expect(key)
        return [key for key, _sent_ns in self._journal.attempted_keys(settled=False)]

    def next_check_seconds(self) -> float | None:
        """On the elapsed clock; None when nothing may arrive late."""
        return self._late[0][0] if self._late else None

    async def look_late(self, in_flight: set[str]) -> list[str]:
        """Look at the keys whose time has come.

        Args:
            in_flight: Keys that are under way; they are left for later.

        Returns:
            Keys at which an old put arrived.

        Raises:
            UnavailableError, AccessError, BucketNotFoundError: Nothing is known; the rest is looked at later.
        """
        arrived: list[str] = []
        now = self._clock.elapsed_seconds()
        while self._late and self._late[0][0] <= now:
            _, key = heapq.heappop(self._late)
            if not self._journal.attempts(key):
                continue
            if key in in_flight:
                heapq.heappush(self._late, (now + LATE_CHECKS_SECONDS[0], key))
                continue
            try:
                found = await self._store.head(key)
            except BaseException:
                heapq.heappush(self._late, (now + LATE_CHECKS_SECONDS[1], key))
                raise
            if found is not None and key not in in_flight and self.is_ours(key, found):
                self.adopt(key, found)
                arrived.append(key)
        self._journal.forget_attempts(self._clock.wall_ns() - REMEMBERED_NS)
        return arrived

    def _expect(self, key: str) -> None:
        now = self._clock.elapsed_seconds()
        for delay in LATE_CHECKS_SECONDS:
            heapq.heappush(self._late, (now + delay, key))

    def _number(self, key: str, found: ObjectStat) -> int:
        """The inode whose bytes an object of ours has, as far as that is certain."""
        sha256 = known_object(found, key, 0).sha256
        known = self._journal.object(key)
        if known is not None and sha256 and known.sha256 == sha256:
            return known.number
        wanted = self._journal.wanted(key) if keys.parse_live_key(key) else None
        return wanted.node.number if wanted is not None and sha256 and wanted.node.sha256 == sha256 else 0
