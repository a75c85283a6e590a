"""The steps of one claim: the record, the fence, and what the journal is told.

The beat is in the bucket before, and the caller lets one claim of a session run at a time.

A process may die between any two steps: the record is recognised by the next (``notes``), which fences with an epoch of its own.
"""

from __future__ import annotations

from functools import partial

from sessionfs.model.clock import Clock
from sessionfs.model.errors import ObjectNotFoundError, OwnershipLostError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.ownership.acquisition import Acquired, Acquisition
from sessionfs.replication.ownership.fence import Base, Fence, Fenced
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.notes import OwnershipNotes
from sessionfs.replication.ownership.watching import Watching
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploads.conflicts import RaiseEvent
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.upload_journal import UploadJournal

_FENCES = 3
_RISK = "what the owner before still owed is not in the bucket; its late requests are kept aside"


class Claiming:
    """Claims sessions.

    Args:
        journal: The sessions.
        store: The bucket.
        settings: The lease, and what a new session recovers.
        clock: Times and names of attempts.
        notes: What the journal remembers.
        raise_event: Told of every acquisition.
        host: Name of this machine, for people.

    Attributes:
        acquisition: The record alone.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        settings: ReplicationSettings,
        clock: Clock,
        notes: OwnershipNotes,
        *,
        raise_event: RaiseEvent,
        host: str,
    ) -> None:
        self._journal = journal
        self._notes = notes
        self._raise_event = raise_event
        self._fence = Fence(store, clock, recovery=settings.recovery)
        watching = Watching(store, clock, settings.lease_seconds)
        self.acquisition = Acquisition(store, clock, notes, watching, self._fence, host=host)

    def row(self, session: SessionId) -> SessionRow:
        """Read a session's row.

        Raises:
            ObjectNotFoundError: It is not known here: it must be opened or made first.
        """
        row = self._journal.session(session)
        if row is None:
            raise ObjectNotFoundError(f"session {session} is not known on this host")
        return row

    async def claim(self, session: SessionId, holder: str, *, force: bool) -> Claim:
        """Run the steps.

        Args:
            session: The session.
            holder: Who we are.
            force: Take it although its holder may live.

        Raises:
            SessionAlreadyOwnedError: Another host owns it.
            OwnershipLostError: Another host took it over meanwhile.
            CorruptDataError, UnsupportedFormatError: The record or the manifest cannot be read.
            ObjectNotFoundError: No such session here.
            SessionFSError: The store does not answer; the record may be ours.
        """
        acquired = await self.acquisition.acquire(self.row(session), holder, force=force)
        for _ in range(_FENCES):
            fenced = await self._fence.put(
                session,
                epoch=acquired.epoch,
                holder=holder,
                base=acquired.base or await self._fence.read(session),
                note=lambda base: self._judge(session, base),
                is_ours=partial(self._is_ours, session, acquired.token),
            )
            if isinstance(fenced, Fenced):
                return self._note_fenced(session, acquired, fenced)
            # An epoch that this record did not give: the record was lost once, and began anew. Ours must be above it.
            if not await self._is_ours(session, acquired.token):
                raise OwnershipLostError(f"session {session} was taken over while it was claimed")
            acquired = await self.acquisition.acquire(self.row(session), holder, least_epoch=fenced.epoch + 1)
        raise UnavailableError(f"the manifest of session {session} changes all the time", remedy="try again")

    def _judge(self, session: SessionId, base: Base) -> None:
        self._notes.judge(self.row(session), base.manifest, base.token)

    async def _is_ours(self, session: SessionId, token: str) -> bool:
        found = await self.acquisition.read(session)
        return found is not None and found.stat.token == token

    def _note_fenced(self, session: SessionId, acquired: Acquired, fenced: Fenced) -> Claim:
        is_news = self._notes.has_news(session)
        fields: dict[str, str | int | float | bool] = {
            "session_id": session,
            "epoch": acquired.epoch,
            "how": acquired.how,
        }
        if acquired.how in {"taken", "forced"} and acquired.former is not None:
            fields["holder"] = acquired.former.host or acquired.former.holder
        if acquired.how == "forced":
            fields["risk"] = _RISK
        with self._journal.transaction():
            if not is_news:
                self._notes.note_base(session, fenced.manifest, fenced.token)
            self._raise_event("session.owner.acquired", fields)
        return Claim(
            epoch=acquired.epoch,
            manifest=fenced.manifest,
            manifest_token=fenced.token,
            is_news=is_news,
            how=acquired.how,
            record_token=acquired.token,
        )
