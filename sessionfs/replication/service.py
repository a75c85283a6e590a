"""The replication process's work: follows the intent log, uploads, hydrates, answers the daemon.

Tasks: the uploader's loop, the sweep, and one task per request of the daemon. Everything that touches the
journal runs on the loop, between awaits, so a transaction is never interleaved with another.

Start: the log is applied; after a changed boot (or a lost journal) the working copy is walked; then the loops
run and puts that a dead process left unknown are settled. The store may be away all that time.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec
import structlog
import trio

from sessionfs.formats import link_messages as messages
from sessionfs.formats import ownership_messages
from sessionfs.formats.commit_messages import (
    Barrier,
    BarrierHeld,
    Commit,
    CommitAll,
    FrozenAt,
    FrozenImage,
    GenerationNumbers,
    ListGenerations,
    Thaw,
)
from sessionfs.formats.link_message import Message, SessionRefreshed
from sessionfs.formats.link_messages import AnyMessage, ImageGrant, ResolveConflict
from sessionfs.formats.ownership_messages import Release, ReleaseAll, SessionState
from sessionfs.model import clock as clocks
from sessionfs.model import keys, roots
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    InternalError,
    NotFoundError,
    OwnershipLostError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.replication.commit.composition import committer_of
from sessionfs.replication.eviction import Evictor
from sessionfs.replication.hydrator import Hydrator
from sessionfs.replication.log_following import LOG_LOST, LogFollower
from sessionfs.replication.ownership.estrangement import Estrangement
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.reporting import Reporting
from sessionfs.replication.session_control import SessionControl
from sessionfs.replication.sweeper import Sweeper
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploader import Uploader
from sessionfs.stores.base import ObjectStore
from sessionfs.working_copy.deletion_brake import DeletionBrake
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.intent_log import IntentLogReader
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.lease_page import LeasePage
from sessionfs.working_copy.reconciliation.reconcile import Reconciliation
from sessionfs.working_copy.record_application import RecordApplication
from sessionfs.working_copy.upload_journal import UploadJournal

_log = structlog.get_logger("sessionfs.replication")


class DaemonSide(Protocol):
    """The daemon as the replication process sees it."""

    async def begin_image(self, number: int) -> ImageGrant:
        """Ask how a file stands between two writes."""

    async def end_image(self, number: int) -> ImageGrant:
        """Ask again after it was read."""

    async def barrier(self, request: Barrier) -> BarrierHeld:
        """Ask to freeze what is changing in a session."""

    async def frozen_image(self, request: FrozenImage) -> FrozenAt:
        """Ask where frozen bytes are."""

    async def thaw(self, request: Thaw) -> None:
        """Let frozen bytes go."""

    async def evict(self, request: messages.Evict) -> bool:
        """Ask to remove a clean file's bytes."""

    def log_consumed(self, position: int) -> None:
        """Say that the log may be cut."""

    def session_state(self, state: SessionState) -> None:
        """Say how a session stands."""


class ReplicationService:
    """The replication process without its process.

    Args:
        store: The bucket.
        layout: The state directory.
        settings: How bytes travel.
        clock: Time and randomness.
        mount_point: Where the working copy is mounted: SQLite databases are read through it. "" reads the working copy itself.
        daemon: The other side.
    """

    def __init__(
        self,
        store: ObjectStore,
        layout: StateLayout,
        settings: ReplicationSettings,
        *,
        clock: Clock,
        mount_point: str,
        daemon: DaemonSide,
    ) -> None:
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._journal = UploadJournal(layout.journal, clock=clock)
        self._brake = DeletionBrake(
            limit_files=settings.deletion_brake_files, window_seconds=settings.max_upload_delay_seconds
        )
        exclusions = Exclusions(settings.exclude_globs)
        self._application = RecordApplication(
            self._journal, layout, exclusions=exclusions, on_delete=self._note_deletion
        )
        self._log = LogFollower(
            IntentLogReader(layout.intent_log),
            self._journal,
            self._application,
            on_applied=self._note_applied,
            on_consumed=self._note_consumed,
        )
        self._daemon = daemon
        self._store = TrioStore(store, clock, settings)
        self._page = LeasePage.open(layout.lease, clocks.boot_id())
        self._ownership = self._make_ownership()
        self._store.guard = self._ownership.guard
        self._uploader = self._make_uploader(exclusions, mount_point)
        self._hydrator = Hydrator(
            self._journal,
            self._store,
            layout,
            settings,
            clock,
            exclusions,
            raise_event=self._journal.add_event,
            set_aside=self._set_aside,
        )
        self._control = self._session_control(exclusions)
        self._reporting = self._make_reporting(exclusions)
        self._sweeper = Sweeper(self._journal, layout, settings, clock, exclusions, wake=self._uploader.wake)
        self._evictor = Evictor(
            self._journal, self._store, layout, settings, exclusions, daemon=daemon, uploader=self._uploader
        )
        self._refreshed: set[str] = set()
        self._handlers = self._handler_table()

    def _make_reporting(self, exclusions: Exclusions) -> Reporting:
        return Reporting(
            self._journal,
            self._uploader,
            self._store,
            self._layout,
            self._clock,
            exclusions,
            ownership=self._ownership,
            commit_problem=self._control.problem,
            fetch_problem=self._hydrator.problem_of,
        )

    def _make_ownership(self) -> Ownership:
        return Ownership(
            self._journal,
            self._store,
            self._settings,
            self._clock,
            page=self._page,
            raise_event=self._journal.add_event,
            tell=self._tell_state,
            host=socket.gethostname(),
            on_claimed=self._note_claimed,
            on_permitted=self._note_permitted,
        )

    def _make_uploader(self, exclusions: Exclusions, mount_point: str) -> Uploader:
        return Uploader(
            self._journal,
            self._store,
            self._layout,
            self._settings,
            self._clock,
            exclusions,
            image_gate=self._daemon,
            mount_point=mount_point,
            raise_event=self._journal.add_event,
            on_clean=self._note_clean,
            on_arrived=self._note_arrived,
            authority=self._ownership,
        )

    def _session_control(self, exclusions: Exclusions) -> SessionControl:
        committer = committer_of(
            journal=self._journal,
            store=self._store,
            layout=self._layout,
            settings=self._settings,
            clock=self._clock,
            exclusions=exclusions,
            log=self._log,
            uploader=self._uploader,
            freezer=self._daemon,
            authority=self._ownership,
            raise_event=self._journal.add_event,
        )
        estrangement = Estrangement(
            self._journal, self._store, self._clock, exclusions, uploader=self._uploader,
            holder=lambda: self._ownership.holder, raise_event=self._journal.add_event,
        )  # fmt: skip
        return SessionControl(
            self._journal,
            ownership=self._ownership,
            estrangement=estrangement,
            committer=committer,
            hydrator=self._hydrator,
            uploader=self._uploader,
            layout=self._layout,
            settings=self._settings,
            clock=self._clock,
            tell=self._daemon.session_state,
        )

    def _handler_table(self) -> dict[type[Message], Callable[..., Awaitable[AnyMessage]]]:
        return {
            messages.OpenSession: self._open_session,
            messages.ListSessions: self._list_sessions,
            messages.ListChildren: self._list_children,
            messages.RefreshSession: self._refresh_session,
            messages.Fetch: self._fetch,
            messages.FetchBlock: self._fetch_block,
            messages.FinishBlocks: self._finish_blocks,
            messages.Flush: self._flush,
            messages.Describe: self._describe,
            messages.LogGrew: self._note_growth,
            messages.GetStatus: self._status,
            messages.Drain: self._drain,
            CommitAll: self._commit_all,
            Commit: self._commit,
            ownership_messages.Claim: self._claim,
            Release: self._release,
            ReleaseAll: self._release_all,
            ListGenerations: self._list_generations,
            ResolveConflict: self._resolve_conflict,
            messages.Retry: self._retry,
            messages.ListConflicts: self._list_conflicts,
            messages.ListEvents: self._list_events,
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled; reports started once the log was applied."""
        self.start()
        task_status.started()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log.run)
            nursery.start_soon(self._ownership.run)
            nursery.start_soon(self._adopt_then_upload)
            nursery.start_soon(self._control.run)
            nursery.start_soon(self._sweeper.run)
            nursery.start_soon(self._evictor.run)

    def start(self) -> None:
        """Apply the log, and walk the working copy when the page cache or the journal was lost."""
        boot_id = clocks.boot_id()
        self._log.find_place()
        self._log.apply()
        # A journal that has never been compared with the disk: it is new, or its process died too early.
        is_new = self._journal.meta("boot_id") == ""
        if is_new:
            self._forget_known()
        reconciliation = Reconciliation(self._journal, self._layout, now_ns=self._clock.wall_ns())
        reconciliation.forget_removed()
        if is_new or self._journal.meta("boot_id") != boot_id or self._journal.meta(LOG_LOST):
            findings = reconciliation.run()
            _log.info(
                "working copy compared",
                entries=findings.entries,
                owed=findings.owed,
                missing=findings.missing[:20],
                unreadable=findings.unreadable[:20],
            )
        with self._journal.transaction():
            self._journal.set_meta("boot_id", boot_id)
            self._journal.set_meta(LOG_LOST, "")

    def _forget_known(self) -> None:
        """What the log tells of sessions says nothing of the bucket: they are read there before they count as known."""
        with self._journal.transaction():
            for row in self._journal.sessions():
                self._journal.update_session(row.id, known=False)

    async def handle(self, message: AnyMessage) -> AnyMessage:
        """Answer one request of the daemon.

        Raises:
            SessionFSError: The request failed.
        """
        handler = self._handlers.get(type(message))
        if handler is None:
            raise InternalError(f"unknown request {type(message).__name__}")
        return await handler(message)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()
        self._page.close()

    # --- the log

    def _note_applied(self) -> None:
        self._apply_brake()
        self._sweeper.note_activity()
        self._evictor.note_activity()
        self._control.note_applied()
        if self._journal.owes_anything():
            self._uploader.wake()

    def _note_consumed(self, position: int) -> None:
        self._daemon.log_consumed(position)

    async def _note_growth(self, _message: messages.LogGrew) -> AnyMessage:
        self._log.note_growth()
        return messages.Done()

    # --- sessions as a whole

    def _tell_state(self, state: SessionState) -> None:
        self._control.note_lost(state)

    async def _set_aside(self, session: SessionId) -> int:
        return await self._control.set_aside(session)

    def _note_claimed(self, session: SessionId, claim: Claim) -> None:
        self._control.note_claimed(session, claim)

    def _note_permitted(self) -> None:
        self._uploader.wake()

    async def _adopt_then_upload(self) -> None:
        """Ask the bucket about sessions whose journal was lost before their files are put: most are equal there."""
        for row in self._journal.sessions():
            tries = 0
            while not row.known:
                try:
                    await self._hydrator.open_session(row.id)
                    break
                except SessionFSError as problem:
                    tries += 1
                    pause = retry_policy.backoff_seconds(tries, self._settings, self._clock)
                    _log.warning("session not adopted yet", session=row.id, problem=str(problem))
                    await trio.sleep(pause)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._uploader.run)
            await self._control.resume()

    def _note_arrived(self) -> None:
        self._control.note_applied()

    def _note_clean(self) -> None:
        self._evictor.note_activity()

    # --- the brake on mass deletion

    def _note_deletion(self, session: str, key: str) -> None:
        self._brake.note(session, key, self._clock.elapsed_seconds())

    def _apply_brake(self) -> None:
        fresh = self._brake.fresh()
        held = self._journal.held_counts()
        for session, count in held.items():
            # Most of it may have been made again since: what is left is no mass.
            if self._is_mass(session, count):
                with self._journal.transaction():
                    self._journal.hold_work(self._gone(fresh.pop(session, ())))
            else:
                self._journal.release_held(session)
                self._uploader.wake()
        if not fresh:
            return
        for session, deleted in self._brake.recent(self._clock.elapsed_seconds()).items():
            gone = self._gone(deleted) if session in fresh else []
            if self._is_mass(session, len(gone)):
                with self._journal.transaction():
                    self._journal.hold_work(gone)
                _log.warning("deletions held", session=session, files=len(gone))

    def _gone(self, deleted: Iterable[str]) -> list[str]:
        """Those that were not made again since, nor deleted in the bucket."""
        return [key for key in deleted if self._journal.object(key) and not self._journal.wanted(key)]

    def _is_mass(self, session: str, deleted_files: int) -> bool:
        before = self._journal.count_objects(keys.session_prefix(SessionId(session)))
        return self._brake.is_mass(deleted_files, files_before=before)

    # --- requests

    async def _open_session(self, message: messages.OpenSession) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        row = self._journal.session(message.session)
        found = await self._hydrator.open_session(message.session)
        is_first = row is not None and row.known and message.session not in self._refreshed
        if found.exists and is_first and not found.foreign:
            # Of a foreign session the daemon asks for the news itself: it must hear what is old on its disk.
            await self._refresh_at_first_use(message.session, message.patience_seconds)
            # It may have been lost by what was seen.
            found = await self._hydrator.open_session(message.session)
        self._refreshed.add(message.session)
        self._uploader.wake()
        owned = not found.read_only and self._control.is_open(message.session)
        return msgspec.structs.replace(found, owned=owned)

    async def _refresh_at_first_use(self, session: str, patience_seconds: float) -> None:
        """Another tool may have written since this host last looked; without an answer the journal's is given."""
        try:
            with trio.move_on_after(patience_seconds):
                await self._compare(session)
        except (UnavailableError, NotFoundError, OwnershipLostError) as problem:
            _log.warning("session not compared with the bucket", session=session, problem=str(problem))

    async def _list_sessions(self, message: messages.ListSessions) -> AnyMessage:
        if message.shared:
            return messages.SessionNames(await self._hydrator.list_shared_roots())
        return messages.SessionNames(await self._hydrator.list_sessions())

    async def _list_children(self, message: messages.ListChildren) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        return messages.Children(self._journal.remote_entries(message.directory))

    async def _refresh_session(self, message: messages.RefreshSession) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        try:
            return await self._compare(message.session, message.known)
        finally:
            # What was taken over may have to be put right in the bucket.
            self._uploader.wake()

    async def _compare(self, session: str, known: int | None = None) -> SessionRefreshed:
        """Compare a session with the bucket; the proof of a later owner ends our ownership first."""
        before = self._journal.session(session)
        try:
            return await self._hydrator.refresh_session(session, known)
        except OwnershipLostError as problem:
            now = self._journal.session(session)
            # A claim of ours that came meanwhile knows all of it.
            if before is not None and now is not None and now.epoch == before.epoch:
                await self._control.judge_loss(session, problem)
        return await self._hydrator.refresh_session(session, known)

    async def _fetch(self, message: messages.Fetch) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        return await self._hydrator.fetch(message.number)

    async def _fetch_block(self, message: messages.FetchBlock) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        await self._hydrator.blocks.fetch(
            message.number, message.block, partial=message.partial, sha256=message.sha256
        )
        return messages.BlockFetched()

    async def _finish_blocks(self, message: messages.FinishBlocks) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        entry = self._hydrator.blocks.finish(message.number, partial=message.partial, sha256=message.sha256)
        return messages.BlocksFinished(entry)

    async def _flush(self, message: messages.Flush) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        node = self._journal.node(message.number)
        wanted: list[str] = []
        if node is not None:
            numbers = [message.number]
            if node.is_directory:
                numbers += [number for _, number in self._journal.children(message.number)]
            if self._application.note_unrecorded(numbers, self._clock.wall_ns()):
                self._uploader.wake()
            for number in numbers:
                wanted.extend(self._live_keys(number))
            if node.is_directory:
                wanted.extend(self._gone_keys(message.number))
        await self._uploader.flush(wanted)
        return messages.Done()

    def _gone_keys(self, directory: int) -> list[str]:
        """Keys of names that were removed from a directory, and are still to go from the bucket."""
        prefixes = [key for key in self._live_keys(directory) if key.endswith("/")]
        return [key for prefix in prefixes for key in self._journal.work_in(prefix)]

    def _live_keys(self, number: int) -> list[str]:
        node = self._journal.node(number)
        if node is None:
            return []
        found = (
            keys.live_key(session, path, is_directory=node.is_directory)
            for session, path in self._journal.paths_of(number)
        )
        return [key for key in found if key is not None]

    async def _describe(self, message: messages.Describe) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        return self._reporting.describe(message.number)

    async def _status(self, message: messages.GetStatus) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        return self._reporting.status()

    async def _drain(self, message: messages.Drain) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        self._application.note_unrecorded(self._journal.nodes_with_writers(), self._clock.wall_ns())
        await self._uploader.drain(message.seconds)
        return self._reporting.drained()

    async def _commit_all(self, message: CommitAll) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        await self._control.commit_all(message.trigger)
        return messages.Done()

    async def _commit(self, message: Commit) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        session = roots.unit_id(message.session)
        return await self._control.commit(session, message.trigger, is_turn=message.is_turn)

    async def _claim(self, message: ownership_messages.Claim) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        return await self._control.claim(
            roots.unit_id(message.session), force=message.force, known=message.known
        )

    async def _release(self, message: Release) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        await self._control.release(roots.unit_id(message.session))
        return messages.Done()

    async def _release_all(self, _message: ReleaseAll) -> AnyMessage:
        await self._control.release_all()
        return messages.Done()

    async def _list_generations(self, message: ListGenerations) -> AnyMessage:
        return GenerationNumbers(await self._hydrator.list_generations(message.session))

    async def _resolve_conflict(self, message: ResolveConflict) -> AnyMessage:
        await self._log.catch_up(message.log_position)
        self._journal.drop_conflict(message.key)
        return messages.Done()

    async def _retry(self, _message: messages.Retry) -> AnyMessage:
        # Deletions already asked for are confirmed too, also those whose records were not read yet.
        self._log.apply()
        self._brake.forget()
        with self._journal.transaction():
            self._journal.release_work()
        self._uploader.retry()
        return messages.Done()

    async def _list_conflicts(self, _message: messages.ListConflicts) -> AnyMessage:
        return messages.ConflictList(self._journal.conflicts())

    async def _list_events(self, message: messages.ListEvents) -> AnyMessage:
        return messages.EventList(self._journal.events(message.after, message.limit))
