"""One listing before the manifest: is everything in the bucket that the generation is going to name, and nothing of somebody else in its place?

It finds what a stale owner's last request changed, what another tool put over an object of ours, and what vanished: each is kept aside and put
right, before the generation is committed. An object of a later owner ends this host's ownership.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import OwnershipLostError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore, write_id_of
from sessionfs.replication.uploads.attempts import known_object
from sessionfs.replication.uploads.authority import Authority
from sessionfs.replication.uploads.conflicts import Conflicts, RaiseEvent
from sessionfs.stores.base import IfMatch, ObjectStat
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.upload_journal import UploadJournal

_log = structlog.get_logger("sessionfs.commit")


@dataclass(slots=True)
class Compared:
    """What a comparison found.

    Attributes:
        wrong: Keys that must be uploaded again before the generation can name them.
        unsure: Keys that were not as known and that the uploader has, or had meanwhile: it looks itself.
    """

    wrong: list[str] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)


class ListingCheck:
    """Compares a session's live objects with the journal.

    Args:
        journal: What the bucket should hold.
        store: The bucket.
        clock: When a key became owed.
        conflicts: Keeps other writers' bytes.
        authority: This host's epoch.
        is_in_flight: Whether a key is under way.
        raise_event: Told of what was put right.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        clock: Clock,
        conflicts: Conflicts,
        authority: Authority,
        *,
        is_in_flight: Callable[[str], bool],
        raise_event: RaiseEvent,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._conflicts = conflicts
        self._authority = authority
        self._is_in_flight = is_in_flight
        self._raise_event = raise_event

    async def check(self, session: SessionId) -> Compared:
        """Compare, and let what is wrong be put right.

        Raises:
            OwnershipLostError: A later owner has written.
            UnavailableError, AccessError: The store did not answer.
        """
        prefix = keys.session_prefix(session)
        before = {known.key: known for known in self._journal.objects_below(prefix)}
        found, _ = await self._store.list_all(prefix, whole_segments=False)
        listed = {one.key: one for one in found}
        compared = Compared()
        for key, known in before.items():
            there = listed.get(key)
            if there is not None and (there.token, there.size_bytes) == (known.token, known.size_bytes):
                continue
            if self._is_busy(key, known):
                compared.unsure.add(key)
            elif await self._repair(session, key, known):
                compared.wrong.append(key)
        for key in listed.keys() - before.keys():
            if not self._is_busy(key, None) and await self._meet_unknown(session, key):
                compared.wrong.append(key)
        return compared

    def _is_busy(self, key: str, known: KnownObject | None) -> bool:
        """Whether the uploader has the key, or had it since the comparison began: then it has looked itself."""
        return (
            self._is_in_flight(key)
            or self._journal.work(key) is not None
            or any(not is_settled for _, is_settled in self._journal.attempts(key))
            or self._journal.object(key) != known
        )

    async def _repair(self, session: SessionId, key: str, known: KnownObject) -> bool:
        """Put an object right that is not the one known; gives whether there was anything to do."""
        there = await self._store.head(key, tries=READ_TRIES)
        if self._is_busy(key, known):
            return True
        if there is None:
            with self._journal.transaction():
                self._journal.lose_object(key)
                self._mark(session, key, "it was gone")
            return True
        now = known_object(there, key, 0)
        if (now.token, now.write_id) == (known.token, known.write_id):
            return False
        await self._require_earlier(session, now)
        if now.sha256 and (now.sha256, now.size_bytes) == (known.sha256, known.size_bytes):
            # The same bytes under another token: a copy onto itself by another tool.
            with self._journal.transaction():
                self._journal.put_object(replace(now, number=known.number))
                self._mark(session, key, "its attributes were changed elsewhere")
            return True
        # A request of our own that arrived late, or twice, brought back what our programs had replaced.
        is_ours = self._is_ours(key, now)
        if not is_ours and not key.endswith("/") and not await self._conflicts.keep_aside(key, there):
            raise UnavailableError(f"{key!r} changes while it is committed", remedy="commit again")
        if self._is_busy(key, known):
            return True
        with self._journal.transaction():
            self._journal.put_object(now)
            self._mark(session, key, f"it was changed by {write_id_of(there)[:8] or 'another tool'}")
        return True

    async def _meet_unknown(self, session: SessionId, key: str) -> bool:
        """An object that this host does not know: a stale owner's goes aside, another tool's stays where it is."""
        there = await self._store.head(key, tries=READ_TRIES)
        if there is None or self._is_busy(key, None):
            return False
        now = known_object(there, key, 0)
        await self._require_earlier(session, now)
        live = keys.parse_live_key(key)
        if live is None or not now.write_id or key.endswith("/"):
            return False
        is_ours = self._is_ours(key, now)
        if not is_ours and not await self._conflicts.keep_aside(key, there):
            raise UnavailableError(f"{key!r} changes while it is committed", remedy="commit again")
        if self._journal.wanted(key) is not None:
            with self._journal.transaction():
                self._journal.put_object(now)
                self._mark(session, key, "a stale owner had put it")
            return True
        await self._remove(session, key, there)
        return False

    def _is_ours(self, key: str, now: KnownObject) -> bool:
        """Whether this host wrote an object. Its epoch says nothing of that: what a tool copied from another session may have the same."""
        is_attempt = any(now.write_id == sent for sent, _ in self._journal.attempts(key))
        return is_attempt or self._journal.was_base(key, now.write_id)

    async def _remove(self, session: SessionId, key: str, there: ObjectStat) -> None:
        outcome = await self._store.delete(key, condition=IfMatch(there.token))
        if isinstance(outcome, Landed):
            self._tell(session, key, "a stale owner had put it")

    async def _require_earlier(self, session: SessionId, now: KnownObject) -> None:
        if now.epoch > self._authority.latest_epoch(session):
            reason = f"{now.key!r} was written by a later owner (epoch {now.epoch})"
            if not await self._authority.is_ours_still(session, now.epoch, reason):
                raise OwnershipLostError(f"session {session} is owned by another host: {reason}")

    def _mark(self, session: SessionId, key: str, reason: str) -> None:
        self._journal.mark(key, session, self._clock.wall_ns())
        self._tell(session, key, reason)

    def _tell(self, session: SessionId, key: str, reason: str) -> None:
        _log.warning("object put right", key=key, reason=reason)
        self._raise_event("session.object.repaired", {"session_id": session, "key": key, "reason": reason})
