"""Commits sessions: the order of the steps.

1. Databases are pinned; then the cut: the daemon freezes what is changing, and the log is applied up to that position and no further.
2. The tree is noted; in the same transaction everything settled in it counts as named, so that nothing uploaded from now on destroys it.
3. What was owed is uploaded. What an earlier owner left uncommitted, and this generation names, is copied aside: a late request of that owner
   could still replace it, and would not copy it.
4. One listing: what is not as it should be is put right first.
5. ``<n>.json``, ``manifest.json`` (the commit point), the marker, the report, the event.

A commit that fails, or dies, leaves the generation before as it was: it has only added objects, and what it replaced was copied aside. The session
stays *changed*, and the next commit takes everything up again.
"""

from __future__ import annotations

import msgspec
import trio

from sessionfs.formats import commit_marker
from sessionfs.formats.commit_messages import Committed
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys, names
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import (
    InternalError,
    ObjectNotFoundError,
    OwnershipLostError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.bringing import Bringing, Brought
from sessionfs.replication.commit.cutting import Cut, Cuts, pending
from sessionfs.replication.commit.entries import Entries
from sessionfs.replication.commit.hashing import Hashing
from sessionfs.replication.commit.listing_check import ListingCheck
from sessionfs.replication.commit.manifest_chain import EarlierCommitError, ManifestChain, Published
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.authority import Authority
from sessionfs.replication.uploads.conflicts import RaiseEvent
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.upload_journal import UploadJournal

_ASKED_BY_NOBODY = frozenset({"timer", "retry", "sigterm"})
"""Triggers behind which no person or program stands: they do not confirm deletions that the brake holds."""
_CHECKS = 3
Fields = dict[str, str | int | float | bool]


class Committer:
    """Commits one session at a time; several sessions may be under way together.

    Args:
        journal: The tree, and what the bucket holds.
        store: Counts requests.
        clock: Times.
        uploader: Brings what is owed.
        authority: This host's epoch, and its permission.
        cuts: Takes cuts.
        bringing: Brings cuts to the bucket.
        hashing: Hashes what other tools put there.
        entries: Builds entries.
        check: Compares with a listing.
        chain: Writes manifests.
        raise_event: Told of every commit.
        recovery: What manifests say of recovery when the session does not say otherwise.
    """

    def __init__(
        self,
        *,
        journal: UploadJournal,
        store: TrioStore,
        clock: Clock,
        uploader: Uploader,
        authority: Authority,
        cuts: Cuts,
        bringing: Bringing,
        hashing: Hashing,
        entries: Entries,
        check: ListingCheck,
        chain: ManifestChain,
        raise_event: RaiseEvent,
        recovery: str,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._uploader = uploader
        self._authority = authority
        self._cuts = cuts
        self._bringing = bringing
        self._hashing = hashing
        self._entries = entries
        self._check = check
        self._chain = chain
        self._raise_event = raise_event
        self._recovery = recovery
        self._locks: dict[str, trio.Lock] = {}
        for row in journal.sessions():
            # A commit that died must not leave its session looking committed.
            if journal.meta(pending(row.id)):
                journal.update_session(row.id, changed=True)
                journal.set_meta(pending(row.id), "")

    async def commit(self, session: SessionId, trigger: str, *, is_turn: bool = False) -> Committed:
        """Commit a session that this host owns.

        Returns:
            The report; of the newest generation when nothing has changed since.

        Raises:
            ObjectNotFoundError: There is no such session here.
            OwnershipLostError: Another host owns it now; nothing was committed.
            SessionFSError: Not committed, as far as is known.
        """
        async with self._locks.setdefault(session, trio.Lock()):
            row = self._journal.session(session)
            if row is None or row.tree_of:
                raise ObjectNotFoundError(f"there is no session {session} here")
            is_removed = self._journal.child(ROOT_NUMBER, session.encode()) is None
            if not is_turn and not self._has_changed(row) and not await self._has_moved_database(row):
                return _report_of(row, trigger)
            started_seconds, requests = self._clock.elapsed_seconds(), sum(self._store.requests.values())
            try:
                self._require_answer(row.id)
                report = await self._try_twice(row, trigger, is_removed=is_removed, is_turn=is_turn)
            except BaseException as problem:
                self._note_failure(session, trigger, problem)
                raise
            duration = self._clock.elapsed_seconds() - started_seconds
            sent = sum(self._store.requests.values()) - requests
            report = msgspec.structs.replace(report, duration_seconds=duration, requests=sent)
            self._tell(report)
            return report

    async def _try_twice(
        self, row: SessionRow, trigger: str, *, is_removed: bool, is_turn: bool
    ) -> Committed:
        """Commit; when an earlier commit turns out to have arrived, take note of it and commit on top of it."""
        for is_last in (False, True):
            try:
                if is_removed:
                    return await self._commit_removed(row)
                return await self._commit(row, trigger, is_turn=is_turn)
            except EarlierCommitError as earlier:
                found = await self._chain.read_found(earlier.found)
                self._note_commit(
                    Published(found, earlier.found.token, ""), recovery=found.recovery, turn=row.turn
                )
                row = self._journal.session(row.id) or row
                if is_last:
                    raise UnavailableError(
                        f"an earlier commit of session {row.id} arrived late", remedy="commit again"
                    ) from None
        raise InternalError("the second try commits, or says why not")

    def _has_changed(self, row: SessionRow) -> bool:
        return row.changed or row.generation == 0 or self._journal.owes(row.id)

    async def _has_moved_database(self, row: SessionRow) -> bool:
        return await self._cuts.has_moved_database(row.id)

    # --- a session that exists

    async def _commit(self, row: SessionRow, trigger: str, *, is_turn: bool) -> Committed:
        commit = self._clock.unique_id()
        cut = await self._cuts.take(row, commit, confirms_deletions=trigger not in _ASKED_BY_NOBODY)
        try:
            sent_objects, sent_bytes = self._uploader.take_sent(row.id)
            brought = await self._bring(cut, commit)
            disk = await trio.to_thread.run_sync(self._entries.read_disk, row.id, cut.noted)
            noted = [one for one in cut.noted if one.path not in brought.left_out]
            entries = self._entries.build(noted, brought.contents, disk)
            more_objects, more_bytes = self._uploader.take_sent(row.id)
            recovery = "committed" if is_turn or row.recovery == "committed" else self._recovery
            self._require_authority(row.id, cut.epoch)
            # A claim of ours that came meanwhile has fenced the chain again.
            base = self._journal.session(row.id) or row
            body = Manifest(
                row.id, base.generation + 1, tuple(entries), previous=base.generation,
                created_at=utc_text(self._clock.wall_ns()), trigger=trigger, epoch=cut.epoch,
                holder=row.holder, recovery="committed" if recovery == "committed" else "live",
            )  # fmt: skip
            published = await self._chain.publish(body, base.manifest_token)
            for database in cut.databases.values():
                self._cuts.note_committed(database)
            turn = row.turn + is_turn
            self._note_commit(published, recovery=recovery, turn=turn)
            if brought.left_out:
                self._journal.update_session(row.id, changed=True)
            uploaded = sent_objects + more_objects + brought.stored
            report = Committed(
                session=row.id,
                generation=published.manifest.generation,
                trigger=trigger,
                turn=turn,
                completed_at=utc_text(self._clock.wall_ns()),
                objects=len(entries),
                bytes=sum(entry.size_bytes for entry in entries),
                objects_uploaded=uploaded,
                objects_skipped=max(0, len(entries) - uploaded),
                bytes_uploaded=sent_bytes + more_bytes + brought.stored_bytes,
                barrier_seconds=cut.pause_seconds,
                moving=[names.display(path) for path in brought.moving],
                manifest_key=keys.generation_key(row.id, published.manifest.generation),
                manifest_sha256=published.sha256,
            )
            await self._put_marker(report, published)
            return report
        finally:
            with trio.CancelScope(shield=True):
                await self._cuts.end(cut, commit)

    async def _bring(self, cut: Cut, commit: str) -> Brought:
        session = cut.row.id
        await self._cuts.image_databases(cut)
        problems = dict(await self._bringing.flush(cut.wanted))
        self._require_epoch(session, cut.epoch)
        await self._cuts.keep_adopted(cut)
        unsure: set[str] = set()
        for _ in range(_CHECKS):
            compared = await self._check.check(session)
            unsure |= compared.unsure
            if not compared.wrong:
                break
            problems |= await self._bringing.flush(compared.wrong)
        else:
            raise UnavailableError(
                f"somebody else keeps changing objects of session {session}", remedy="find who writes there"
            )
        cut.noted = await self._hashing.hash_all(session, cut.noted)
        unsure &= {one.known.key for one in cut.noted if one.known is not None}
        if unsure:
            problems |= await self._bringing.flush(unsure)
        cut.noted = await self._bringing.renew(
            session, cut.noted, unsure, is_cold=self._cuts.is_cold(session)
        )
        return await self._bringing.locate(
            session,
            commit,
            cut.noted,
            databases=cut.databases,
            problems=problems,
            is_cold=self._cuts.is_cold(session),
        )

    def _require_answer(self, session: SessionId) -> None:
        """While ownership is only presumed nothing can be sent: whoever waits for the commit is told at once."""
        if not self._authority.epoch(session):
            raise UnavailableError(
                f"session {session} cannot be committed: the store does not say who owns it",
                remedy="it is tried again when the store answers",
            )

    def _require_epoch(self, session: SessionId, epoch: int) -> None:
        """A session that was lost, and perhaps claimed again, since the cut is another one: what others did is not in the cut."""
        now = self._authority.epoch(session)
        if epoch and not now:
            raise OwnershipLostError(f"session {session} was taken over while it was committed")
        if now != epoch:
            raise UnavailableError(
                f"session {session} was claimed anew while it was committed", remedy="commit again"
            )

    def _require_authority(self, session: SessionId, epoch: int) -> None:
        self._require_epoch(session, epoch)
        if not self._authority.may_change(session):
            raise UnavailableError(
                f"session {session} cannot be committed: this host's ownership is not confirmed now",
                remedy="it is tried again when the store answers",
            )

    # --- a session that was removed

    async def _commit_removed(self, row: SessionRow) -> Committed:
        """Commit that a session was removed: a valid empty session for whoever opens it, restorable until gc."""
        epoch = self._authority.epoch(row.id)
        with self._journal.transaction():
            self._journal.release_held(row.id)
        problems = await self._bringing.flush(self._journal.owed_keys(row.id))
        self._require_epoch(row.id, epoch)
        if problems:
            raise UnavailableError(f"session {row.id} is not removed yet: {next(iter(problems.values()))}")
        self._require_authority(row.id, epoch)
        body = Manifest(
            row.id, row.generation + 1, previous=row.generation, created_at=utc_text(self._clock.wall_ns()),
            trigger="removed", epoch=epoch, holder=row.holder, removed=True,
        )  # fmt: skip
        published = await self._chain.publish(body, row.manifest_token)
        self._note_commit(published, recovery="", turn=0)
        self._journal.update_session(row.id, changed=False)
        report = Committed(row.id, published.manifest.generation, "removed", completed_at=body.created_at)
        await self._put_marker(report, published)
        return report

    # --- what is remembered and told

    def _note_commit(self, published: Published, *, recovery: str, turn: int) -> None:
        manifest = published.manifest
        with self._journal.transaction():
            self._journal.update_session(
                manifest.session,
                generation=manifest.generation,
                manifest_token=published.token,
                committed_at=manifest.created_at,
                recovery=recovery,
                turn=turn,
            )
            self._journal.set_meta(pending(manifest.session), "")
            self._journal.drop_unused_blocks()

    async def _put_marker(self, report: Committed, published: Published) -> None:
        session = SessionId(report.session)
        marker = commit_marker.of_generation(
            published.manifest,
            published.sha256,
            turn=report.turn,
            completed_at=report.completed_at,
            objects_uploaded=report.objects_uploaded,
            bytes_uploaded=report.bytes_uploaded,
        )
        try:
            await self._chain.put_marker(marker)
        except SessionFSError as problem:
            # The commit is done; the marker may lag, and the next commit writes it anew.
            self._raise_event("session.marker.lagging", {"session_id": session, "problem": problem.message})

    def _note_failure(self, session: SessionId, trigger: str, problem: BaseException) -> None:
        with self._journal.transaction():
            self._journal.update_session(session, changed=True)
            self._journal.set_meta(pending(session), "")
            if isinstance(problem, SessionFSError):
                fields: Fields = {
                    "session_id": session,
                    "trigger": trigger,
                    "ok": False,
                    "problem": problem.message,
                }
                self._raise_event("session.snapshot.result", fields)
        if isinstance(problem, OwnershipLostError):
            self._authority.lose(session, holder=problem.holder, reason=problem.message)

    def _tell(self, report: Committed) -> None:
        self._raise_event(
            "session.snapshot.result",
            {
                "session_id": report.session,
                "trigger": report.trigger,
                "generation": report.generation,
                "objects": report.objects,
                "bytes": report.bytes,
                "uploaded": report.objects_uploaded,
                "skipped": report.objects_skipped,
                "bytes_uploaded": report.bytes_uploaded,
                "duration": round(report.duration_seconds, 3),
                "ok": True,
            },
        )


def _report_of(row: SessionRow, trigger: str) -> Committed:
    return Committed(
        row.id, row.generation, trigger, turn=row.turn, completed_at=row.committed_at, is_unchanged=True
    )
