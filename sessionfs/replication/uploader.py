"""Keeps the bucket equal to the tree: decides when each key's turn comes, runs it, and deals with errors.

Invariants:

* One task per key, at most ``concurrent_uploads`` at once, and the order rules of ``uploads/schedule.py``.
* Nothing is polled while idle: the loop sleeps until `wake`, or until the next row is due.
* A row leaves the journal only by `KeyUpload.process`; an error lets it wait, with its reason.
* While the store does not answer, one request at a time asks whether it is back.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import structlog
import trio

from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import SessionFSError, UnavailableError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication import retry_policy
from sessionfs.replication.retry_policy import Kind
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploads.aside.keeping import Keeping
from sessionfs.replication.uploads.aside.parking import Parking
from sessionfs.replication.uploads.attempts import Attempts
from sessionfs.replication.uploads.authority import Authority, SoleWriter
from sessionfs.replication.uploads.conflicts import Conflicts, RaiseEvent
from sessionfs.replication.uploads.key_upload import NOT_OURS, KeyUpload, Processed
from sessionfs.replication.uploads.outage import Outage
from sessionfs.replication.uploads.sqlite_image import DatabaseImages
from sessionfs.replication.uploads.stable_image import ImageGate, StableImages
from sessionfs.replication.uploads.subjects import Subjects
from sessionfs.replication.uploads.turns import FAR_NS, Turns
from sessionfs.replication.uploads.working_files import WorkingFiles
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal, Work

FLUSH_SECONDS = 60.0

_NANOSECONDS = 1_000_000_000
_SHORTEST_PAUSE_SECONDS = 0.001
_PROBE_PAUSE_SECONDS = 1.0
_DRAIN_GRACE_SECONDS = 2.0
_HURRIED_BACKOFF_SECONDS = 1.0
_DISK_PAUSE_SECONDS = 1.0
_log = structlog.get_logger("sessionfs.uploader")


class _Flush:
    """Somebody waits for keys."""

    def __init__(self, versions: dict[str, int]) -> None:
        self.versions = versions
        self.ended = trio.Event()
        self.problems: dict[str, str] = {}
        self.outage = ""
        self.moves = 0

    def settle(self, key: str, problem: str = "") -> None:
        """A key is there, or cannot come."""
        del self.versions[key]
        self.moves += 1
        if problem:
            self.problems[key] = problem
        if not self.versions:
            self.ended.set()

    def fail(self, problem: str) -> None:
        """None of the others comes now."""
        self.outage = problem
        self.ended.set()


class Uploader:
    """The upload half of the replication process.

    Args:
        journal: What is wanted, known and owed.
        store: The bucket.
        layout: The state directory.
        settings: Delays, limits, back-off.
        clock: Time and randomness.
        exclusions: Names that never leave this host.
        image_gate: The daemon's word on files that programs write; None when there is none.
        mount_point: Where the working copy is mounted, "" when it is not.
        raise_event: Told of uploads, conflicts and outages.
        on_clean: Called when a key is as it should be.
        on_arrived: Called when old puts were found to have arrived, and their keys are owed: also of a session that was given up since.
        authority: Says which sessions may be changed; None when nobody else writes.

    Attributes:
        in_flight: Keys that are under way.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        settings: ReplicationSettings,
        clock: Clock,
        exclusions: Exclusions,
        *,
        image_gate: ImageGate | None,
        mount_point: str,
        raise_event: RaiseEvent,
        on_clean: Callable[[], None] = lambda: None,
        on_arrived: Callable[[], None] = lambda: None,
        authority: Authority | None = None,
    ) -> None:
        self._journal = journal
        self._store = store
        self._settings = settings
        self._on_clean = on_clean
        self._on_arrived = on_arrived
        self._clock = clock
        self._outage = Outage(settings, clock, raise_event)
        self._attempts = Attempts(journal, store, clock)
        self.files = WorkingFiles(layout)
        self.databases = DatabaseImages(self.files, layout, clock, mount_point)
        images = StableImages(self.files, self.databases, clock, image_gate)
        self.subjects = Subjects(journal, self.files, images)
        authority = authority or SoleWriter()
        parking = Parking(journal, store, layout, clock)
        self.keeping = Keeping(journal, store, parking, clock)
        self._keys = self._key_upload(parking, authority, exclusions, raise_event)
        self.sender = self._keys.sender
        self.in_flight: set[str] = set()
        self._sessions: Counter[str] = Counter()
        self._woken = trio.Event()
        self._progress = trio.Event()
        self._turns = Turns(
            journal,
            settings,
            clock,
            in_flight=self.in_flight,
            sessions=self._sessions,
            is_hurried=self.is_hurried,
            urgent=lambda: self._urgent,
            may_change=authority.may_change,
        )
        self._drain_until_seconds = float("-inf")
        self._urgent: Counter[str] = Counter()
        self._flushes: list[_Flush] = []
        self._answered = 0
        self._is_resumed = False
        self._is_probing = False
        self._is_looking = False

    def _key_upload(
        self, parking: Parking, authority: Authority, exclusions: Exclusions, raise_event: RaiseEvent
    ) -> KeyUpload:
        return KeyUpload(
            self._journal,
            self._store,
            subjects=self.subjects,
            parking=parking,
            keeping=self.keeping,
            authority=authority,
            settings=self._settings,
            clock=self._clock,
            exclusions=exclusions,
            attempts=self._attempts,
            conflicts=Conflicts(self._journal, self._store, self._clock, raise_event),
            raise_event=raise_event,
        )

    # --- what others see

    @property
    def degraded(self) -> str:
        """Why the store cannot be used now, "" when it can."""
        return self._outage.reason

    @property
    def uploads(self) -> int:
        """Files brought to the bucket since the start."""
        return self._keys.uploads

    @property
    def uploaded_bytes(self) -> int:
        """Bytes sent for them."""
        return self._keys.uploaded_bytes

    def take_sent(self, session: str) -> tuple[int, int]:
        """Give how many objects, and bytes for them, were brought for a session since this was asked last."""
        return self._keys.sent_objects.pop(session, 0), self._keys.sent_bytes.pop(session, 0)

    def wake(self) -> None:
        """Say that keys were marked."""
        self._turns.note_change()
        self._woken.set()

    def retry(self) -> None:
        """Try everything again now; the rows were released in the journal before."""
        self._outage.ask_now()
        self.wake()

    async def run(self) -> None:
        """Work until cancelled."""
        self.settle_unknown()
        async with trio.open_nursery() as nursery:
            while True:
                self._woken = trio.Event()
                with trio.move_on_after(self._start_due(nursery)):
                    await self._woken.wait()

    def settle_unknown(self) -> None:
        """Let the keys be looked at whose puts a dead process left without an answer; once."""
        if self._is_resumed:
            return
        self._is_resumed = True
        now_ns = self._clock.wall_ns()
        with self._journal.transaction():
            for key in self._attempts.resume():
                live = keys.parse_live_key(key)
                if live is not None:
                    self._journal.mark(key, live.session, now_ns)
                else:
                    for write_id, _settled in self._journal.attempts(key):
                        self._journal.end_attempt(write_id)
        self.wake()

    async def flush(self, wanted: Iterable[str], timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Bring keys into the bucket now; returns when their present state is there.

        Args:
            wanted: Live keys.
            timeout_seconds: How long nothing may move.

        Raises:
            UnavailableError: It did not work, or not in time; the message says why.
        """
        problems = await self.flush_each(wanted, timeout_seconds)
        if problems:
            key, problem = next(iter(problems.items()))
            raise UnavailableError(f"{key!r} is held back: {problem}")

    async def flush_each(self, wanted: Iterable[str], timeout_seconds: float) -> dict[str, str]:
        """As `flush`; what cannot come for a reason of its own does not keep the others.

        Returns:
            Why, by key; empty when all came.

        Raises:
            UnavailableError: The store does not answer, or nothing moved for so long.
        """
        flush = _Flush({})
        for key in wanted:
            row = self._journal.work(key)
            if row is None:
                continue
            if row.held or row.state != "owed":
                flush.problems[key] = row.reason or "many files were deleted"
                continue
            flush.versions[key] = row.version
            if row.not_before_ns:
                self._journal.defer_work(key, not_before_ns=0, reason=row.reason, tries=row.tries)
        if not flush.versions:
            return flush.problems
        flushed = list(flush.versions)
        self._outage.ask_now()
        self._flushes.append(flush)
        self._urgent.update(flushed)
        self.wake()
        try:
            await self._wait_for(flush, timeout_seconds)
        finally:
            self._flushes.remove(flush)
            self._urgent -= Counter(flushed)
        if flush.outage:
            raise UnavailableError(flush.outage)
        if flush.versions:
            key = next(iter(flush.versions))
            left = self._journal.work(key)
            reason = f": {left.reason}" if left is not None and left.reason else ""
            raise UnavailableError(f"{key!r} was not in the bucket in time{reason}")
        return flush.problems

    async def _wait_for(self, flush: _Flush, timeout_seconds: float) -> None:
        """Wait for the end, as long as something moves."""
        moves = -1
        while moves != flush.moves and not flush.ended.is_set():
            moves = flush.moves
            with trio.move_on_after(timeout_seconds):
                await flush.ended.wait()

    async def drain(self, seconds: float) -> int:
        """Bring everything into the bucket now.

        Args:
            seconds: How long to wait; 0 only hurries and gives the present number.

        Returns:
            How many keys are left, held and stuck ones included.
        """
        self.settle_unknown()
        now = self._clock.elapsed_seconds()
        if now > self._drain_until_seconds:
            self._turns.forget_backoff()
            self._outage.ask_now()
        self._drain_until_seconds = max(self._drain_until_seconds, now + seconds + _DRAIN_GRACE_SECONDS)
        self.wake()
        with trio.move_on_after(seconds):
            while self._journal.oldest_work(FAR_NS, 1):
                await self._progress.wait()
        return sum(count for count, _oldest in self._journal.work_counts().values())

    def give_up(self, session: str) -> None:
        """A session is another host's: nobody waits for its keys any longer."""
        for flush in self._flushes:
            for key in [key for key in flush.versions if keys.session_of_key(key) == session]:
                flush.settle(key, NOT_OURS)

    def hold(self, key: str) -> bool:
        """Keep a key from being touched until `release`.

        Returns:
            False when it is under way, and nothing was done.
        """
        if key in self.in_flight:
            return False
        self.in_flight.add(key)
        return True

    def release(self, key: str) -> None:
        """Let a held key be touched again."""
        self.in_flight.discard(key)
        if self._outage.reason or self._journal.oldest_work(FAR_NS, 1):
            self.wake()

    def is_hurried(self, key: str) -> bool:
        """Whether a key does not wait for its file to be quiet."""
        return self._urgent[key] > 0 or self._is_draining()

    def _is_draining(self) -> bool:
        return self._clock.elapsed_seconds() <= self._drain_until_seconds

    # --- which is next

    def _start_due(self, nursery: trio.Nursery) -> float:
        """Start what may run; give the seconds until there may be more."""
        now = self._clock.elapsed_seconds()
        if self._outage.reason:
            return self._start_probe(nursery, now)
        pauses = [float("inf")]
        check = self._attempts.next_check_seconds()
        if check is not None and not self._is_looking:
            if check <= now:
                self._is_looking = True
                nursery.start_soon(self._look_late)
            else:
                pauses.append(check - now)
        chosen = self._turns.choose(partial(self._launch, nursery))
        if chosen is not None:
            pauses.append(max(_SHORTEST_PAUSE_SECONDS, chosen))
        return min(pauses)

    # --- running one key

    def _launch(self, nursery: trio.Nursery, row: Work, make_safe: bool) -> None:
        """Run a key in its own task."""
        self.in_flight.add(row.key)
        self._sessions[row.session] += 1
        nursery.start_soon(self._run_one, row.key, row.session, make_safe)

    async def _run_one(self, key: str, session: str, make_safe: bool) -> None:
        # What was sent before an outage was seen says nothing about its end.
        is_probe = self._outage.reason != ""
        try:
            if make_safe:
                await self._keys.make_safe(key)
            result = await self._keys.process(key)
            self._note_answers(is_probe=is_probe)
            if isinstance(result, Processed):
                self._note_processed(key, result.version)
            else:
                self._outage.keys.pop(key, None)
                self._defer(key, result.reason)
        except SessionFSError as error:
            self._note_answers(is_probe=is_probe)
            self._failed(key, error)
        except sqlite3.Error as problem:
            # The journal's disk: nothing was decided, the row is as it was.
            _log.warning("the journal cannot be written", key=key, problem=str(problem))
            await trio.sleep(_DISK_PAUSE_SECONDS)
        except OSError as problem:
            self._stick(key, f"it cannot be read: {problem.strerror}")
        except Exception as problem:  # noqa: BLE001 - one key's fault must not stop the others
            _log.exception("upload failed", key=key)
            self._stick(key, f"a fault of ours: {problem!r}")
        finally:
            self.in_flight.discard(key)
            self._sessions[session] -= 1
            if not self._sessions[session]:
                del self._sessions[session]
            if self._journal.work(key) is not None:
                self._turns.note_change()
            self._progress.set()
            self._progress = trio.Event()
            self._woken.set()

    def _note_processed(self, key: str, version: int) -> None:
        clean = self._journal.work(key) is None
        if clean:
            self._on_clean()
        for flush in self._flushes:
            if key in flush.versions and (clean or version >= flush.versions[key]):
                flush.settle(key)

    def _defer(self, key: str, reason: str, *, least_seconds: float = 0.0) -> None:
        row = self._journal.work(key)
        if row is None:
            return
        tries = row.tries + 1
        pause = retry_policy.backoff_seconds(tries, self._settings, self._clock)
        if self.is_hurried(key):
            pause = min(pause, _HURRIED_BACKOFF_SECONDS)
        not_before_ns = self._clock.wall_ns() + int(max(pause, least_seconds) * _NANOSECONDS)
        self._journal.defer_work(key, not_before_ns=not_before_ns, reason=reason, tries=tries)

    def _stick(self, key: str, reason: str) -> None:
        _log.warning("upload stuck", key=key, reason=reason)
        self._journal.stick_work(key, reason)
        for flush in self._flushes:
            if key in flush.versions:
                flush.settle(key, reason)

    def _failed(self, key: str, error: SessionFSError) -> None:
        kind = retry_policy.classify(error)
        if kind is Kind.PERMANENT:
            self._stick(key, str(error))
            return
        least = self._settings.access_retry_seconds if kind is Kind.ACCESS else 0.0
        self._defer(key, str(error), least_seconds=least)
        if kind in {Kind.OUTAGE, Kind.ACCESS}:
            self._outage.keys[key] = kind
            self._note_outage(kind, str(error))

    def _note_outage(self, kind: Kind, message: str) -> None:
        self._outage.failed(kind, message, hurried=self._is_draining())
        if self._outage.reason:
            for flush in self._flushes:
                flush.fail(self._outage.reason)

    def _note_answers(self, *, is_probe: bool) -> None:
        if self._store.changes_answered != self._answered:
            self._answered = self._store.changes_answered
            if is_probe or not self._outage.reason:
                self._note_recovered()

    def _note_recovered(self) -> None:
        for key in self._outage.answered():
            if self._journal.work(key) is not None:
                self._journal.defer_work(key, not_before_ns=0, reason="", tries=0)
        self._turns.note_change()

    # --- the store is away

    def _start_probe(self, nursery: trio.Nursery, now: float) -> float:
        """Ask with one request whether the store is back: with the oldest row that may run, else with a listing."""
        if self.in_flight or self._is_probing:
            return float("inf")
        if now < self._outage.next_probe_seconds:
            return self._outage.next_probe_seconds - now
        self._outage.next_probe_seconds = now + _PROBE_PAUSE_SECONDS
        self._answered = self._store.changes_answered
        row = self._turns.row_for_probe(self._outage.keys)
        if row is not None:
            self._launch(nursery, row, False)  # noqa: FBT003 - start_soon has no keywords
        else:
            self._is_probing = True
            nursery.start_soon(self._probe)
        return float("inf")

    async def _probe(self) -> None:
        try:
            await self._store.list_page(keys.PROBE_PREFIX, page=None, whole_segments=True, limit=1)
            self._note_recovered()
        except SessionFSError as error:
            self._note_outage(Kind.OUTAGE if retry_policy.is_transient(error) else Kind.ACCESS, str(error))
        finally:
            self._is_probing = False
            self._woken.set()

    async def _look_late(self) -> None:
        try:
            arrived = await self._attempts.look_late(self.in_flight)
            for key in arrived:
                live = keys.parse_live_key(key)
                if live is not None:
                    self._journal.mark(key, live.session, self._clock.wall_ns())
            if arrived:
                self._on_arrived()
        except SessionFSError as error:
            _log.warning("late puts not looked at", problem=str(error))
        finally:
            self._is_looking = False
            self.wake()
