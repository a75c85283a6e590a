"""Whether somebody writes the source: then it is refused, before anything is written.

A session is in use when its ownership record is held and its holder beats. A beat younger than the lease says so at once. The store's clock and
this host's may differ, so a beat that looks older, and not by more than `SKEW_SECONDS`, is looked at again after half a lease: a holder beats at
least four times in a lease. Without a beat nobody holds anything; an owner that died leaves one that stands still.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from sessionfs.formats import ownership
from sessionfs.formats.ownership import OwnerRecord
from sessionfs.migration.inventory import Inventory
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import ObjectNotFoundError, SessionAlreadyOwnedError
from sessionfs.model.names import SessionId
from sessionfs.model.roots import shown_id
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ObjectStat

SKEW_SECONDS = 900.0
"""Servers refuse requests of a host whose clock differs by more.

Source: docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, RequestTimeTooSkewed: 15 minutes.
"""
_NANOSECONDS = 1e9
_READERS = 16
_HOLDER_DIGITS = 8


class Liveness:
    """Looks whether a store is at rest.

    Args:
        store: The source.
        clock: This host's.
        on_wait: Told why it takes time.
    """

    def __init__(self, store: TrioStore, clock: Clock, *, on_wait: Callable[[str], None]) -> None:
        self._store = store
        self._clock = clock
        self._on_wait = on_wait

    async def require_at_rest(self, here: Inventory, scope: frozenset[SessionId] | None = None) -> None:
        """Require that nobody holds a session and lives.

        Args:
            here: The source's listing.
            scope: The sessions that matter, None for all.

        Raises:
            SessionAlreadyOwnedError: Somebody does.
            CorruptDataError, UnsupportedFormatError: A record cannot be read.
            SessionFSError: The store does not answer.
        """
        held = await self._held(here, scope)
        doubtful: dict[str, OwnerRecord] = {}
        wait_seconds = 0.0
        for holder, record in held.items():
            beat = here.beats[holder]
            lease_seconds = await self._lease_seconds(beat.key)
            age_seconds = (self._clock.wall_ns() - beat.modified_ns) / _NANOSECONDS
            if age_seconds < lease_seconds:
                raise self._in_use(record)
            if age_seconds < lease_seconds + SKEW_SECONDS:
                doubtful[holder] = record
                wait_seconds = max(wait_seconds, lease_seconds / 2)
        if doubtful:
            self._on_wait(f"waiting {wait_seconds:.0f} s to see whether an owner of the source lives")
            await trio.sleep(wait_seconds)
        for holder, record in doubtful.items():
            if await self._has_moved(here.beats[holder]):
                raise self._in_use(record)

    async def _held(self, here: Inventory, scope: frozenset[SessionId] | None) -> dict[str, OwnerRecord]:
        """Give a held record for each holder that has a beat."""
        held: dict[str, OwnerRecord] = {}
        if not here.beats:
            return held

        async def read(item: tuple[SessionId, ObjectStat]) -> None:
            _, found = item
            try:
                raw = await self._store.read(found.key, tries=READ_TRIES)
            except ObjectNotFoundError:
                return
            record = ownership.decode_owner(raw, found.key)
            if record.state == "held" and record.holder in here.beats:
                held[record.holder] = record

        wanted = sorted(item for item in here.owners.items() if scope is None or item[0] in scope)
        await for_each(wanted, read, limit=_READERS)
        return held

    async def _lease_seconds(self, key: str) -> float:
        try:
            raw = await self._store.read(key, tries=READ_TRIES)
        except ObjectNotFoundError:
            return 0.0
        return ownership.decode_beat(raw, key).lease_seconds

    async def _has_moved(self, before: ObjectStat) -> bool:
        found = await self._store.head(keys.beat_key(_holder_of(before)), tries=READ_TRIES)
        return found is not None and found.token != before.token

    def _in_use(self, record: OwnerRecord) -> SessionAlreadyOwnedError:
        who = record.host or record.holder[:_HOLDER_DIGITS]
        return SessionAlreadyOwnedError(
            f"session {shown_id(record.session)} of {self._store.url} is in use by {who}",
            holder=record.holder,
            remedy="end the mount there: sessionfs umount DIR; then run this again",
        )


def _holder_of(beat: ObjectStat) -> str:
    return beat.key.removeprefix(keys.HOSTS_PREFIX).removesuffix(".json")
