"""Machines that share a bucket: journal, lease page and `Ownership` of each, with clocks that only the test moves."""

from __future__ import annotations

import itertools
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sessionfs.formats import manifest as manifests
from sessionfs.formats import ownership
from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.formats.ownership import BeatRecord, OwnerRecord
from sessionfs.formats.ownership_messages import SessionState
from sessionfs.model import keys
from sessionfs.model.errors import ObjectNotFoundError, SessionFSError
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.ownership.holdings import Claim
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata, ObjectStore, Unconditional
from sessionfs.testing.faulty_store import Fault, FaultyStore
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.lease_page import LeasePage
from sessionfs.working_copy.upload_journal import UploadJournal

SESSION = SessionId("s")
SETTINGS = ReplicationSettings(retry_minimum_seconds=0, retry_maximum_seconds=0)
BOOT_ID = "boot"
LEASE_SECONDS = 60.0
Result = TypeVar("Result")
Fields = Mapping[str, str | int | float | bool]


class Killed(BaseException):
    """The process ends here."""


class HandClock:
    """Stands still until the test moves it; the wall clock is an hour ahead for every further machine."""

    def __init__(self, name: str, *, hours_ahead: int = 0) -> None:
        self.seconds = 1000.0
        self._name = name
        self._hours_ahead = hours_ahead
        self._ids = itertools.count(1)

    def wall_ns(self) -> int:
        return 1_800_000_000_000_000_000 + int((self._hours_ahead * 3600 + self.seconds) * 1e9)

    def elapsed_seconds(self) -> float:
        return self.seconds

    def jitter(self) -> float:
        return 0.0

    def unique_id(self) -> str:
        return f"{self._name}{next(self._ids):031x}"


class MortalStore(FaultyStore):
    """Ends the process at one call, counted from the first, right before or right after the store did it."""

    kill_at = 0
    after = False
    has_killed = False

    def _apply(self, fault: Fault, request: Callable[[], Result], key: str) -> Result:
        if len(self.calls) != self.kill_at:
            return super()._apply(fault, request, key)
        if self.after:
            with suppress(SessionFSError):
                super()._apply(fault, request, key)
        self.has_killed = True
        raise Killed

    def forget_plans(self) -> None:
        """Let nothing more happen."""
        self._planned.clear()
        self.kill_at, self.has_killed = 0, False


class Bucket:
    """The bucket as it is."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def read(self, key: str) -> bytes | None:
        try:
            with self.store.get(key, byte_range=None, expected=None) as body:
                return body.read()
        except ObjectNotFoundError:
            return None

    def record(self, session: SessionId = SESSION) -> OwnerRecord | None:
        raw = self.read(keys.owner_key(session))
        return ownership.decode_owner(raw, "record") if raw is not None else None

    def manifest(self, session: SessionId = SESSION) -> Manifest | None:
        raw = self.read(keys.manifest_key(session))
        return manifests.decode(raw, "manifest") if raw is not None else None

    def manifest_token(self, session: SessionId = SESSION) -> str:
        return self.store.head(keys.manifest_key(session)).token

    def beats(self) -> dict[str, BeatRecord]:
        found: dict[str, BeatRecord] = {}
        for page in self.store.list_all(keys.HOSTS_PREFIX):
            for listed in page.objects:
                raw = self.read(listed.key)
                assert raw is not None
                beat = ownership.decode_beat(raw, listed.key)
                found[beat.holder] = beat
        return found

    def put_record(self, record: OwnerRecord) -> None:
        self._put(keys.owner_key(SessionId(record.session)), ownership.encode(record))

    def put_beat(self, beat: BeatRecord) -> None:
        self._put(keys.beat_key(beat.holder), ownership.encode(beat))

    def put_manifest(self, manifest: Manifest) -> str:
        raw, _ = manifests.encode(manifest)
        self._put(keys.manifest_key(SessionId(manifest.session)), raw)
        return self.manifest_token(SessionId(manifest.session))

    def _put(self, key: str, raw: bytes) -> None:
        self.store.put(key, raw, condition=Unconditional(), metadata=ObjectMetadata())


class Machine:
    """One state directory; `start` begins a process on it."""

    def __init__(self, directory: Path, name: str, store: ObjectStore, *, hours_ahead: int = 0) -> None:
        self.name = name
        self.store = MortalStore(store)
        self.bucket = Bucket(store)
        self.clock = HandClock(name, hours_ahead=hours_ahead)
        self.layout = StateLayout(str(directory))
        self.layout.create()
        self.journal = UploadJournal(self.layout.journal, clock=self.clock)
        self.settings = SETTINGS
        self.events: list[tuple[str, Fields]] = []
        self.told: list[SessionState] = []
        self.claimed: list[tuple[SessionId, Claim]] = []
        self.start()

    def start(self) -> Ownership:
        """Begin a process: only the disk is left of the one before."""
        self.store.kill_at = 0
        self.page = LeasePage.open(self.layout.lease, BOOT_ID)
        self.owner = Ownership(
            self.journal,
            TrioStore(self.store, self.clock, self.settings),
            self.settings,
            self.clock,
            page=self.page,
            raise_event=lambda name, fields: self.events.append((name, fields)),
            tell=self.told.append,
            host=f"host-{self.name}",
            on_claimed=lambda session, claim: self.claimed.append((session, claim)),
        )
        return self.owner

    def kill_at(self, call: int, *, after: bool) -> None:
        """End the process at its next calls' number `call`."""
        self.store.kill_at = len(self.store.calls) + call
        self.store.after = after

    def close(self) -> None:
        self.journal.close()

    # --- the journal

    def make(self, session: SessionId = SESSION) -> None:
        """The session is made here."""
        self.journal.add_session(session, 100, known=True, written=True)

    def hydrate(self, session: SessionId = SESSION) -> None:
        """The session is read from the bucket here."""
        if self.journal.session(session) is None:
            self.journal.add_session(session, 100, known=True, written=False)
        manifest = self.bucket.manifest(session)
        if manifest is not None:
            self.journal.update_session(
                session, manifest_token=self.bucket.manifest_token(session), generation=manifest.generation
            )

    def row(self, session: SessionId = SESSION) -> SessionRow:
        row = self.journal.session(session)
        assert row is not None
        return row

    # --- what it does

    async def own(self, session: SessionId = SESSION, *, force: bool = False) -> Claim:
        """Claim, and take over what others did, as the service does."""
        claim = await self.owner.claim(session, force=force)
        if claim.is_news:
            self.owner.note_caught_up(session)
        return claim

    def commit(self, session: SessionId = SESSION) -> bool:
        """Commit the next generation, if the manifest is still the one that the journal knows."""
        before = self.bucket.manifest(session)
        if before is None or self.bucket.manifest_token(session) != self.row(session).manifest_token:
            return False
        entry = ManifestEntry(
            b"f", stat.S_IFREG | 0o644, 1, sha256=f"{before.generation + 1:064x}", token="t"
        )
        after = replace(
            before,
            generation=before.generation + 1,
            previous=before.generation,
            entries=(entry,),
            epoch=self.owner.epoch(session),
            holder=self.owner.holder,
        )
        raw, _ = manifests.encode(after)
        condition = IfMatch(self.bucket.store.head(keys.manifest_key(session)).token)
        metadata = ObjectMetadata()
        number = keys.generation_key(session, after.generation)
        self.bucket.store.put(number, raw, condition=IfAbsent(), metadata=metadata)
        token = self.bucket.store.put(keys.manifest_key(session), raw, condition=condition, metadata=metadata)
        self.journal.update_session(session, manifest_token=token, generation=after.generation)
        return True

    def pass_time(self, seconds: float) -> None:
        self.clock.seconds += seconds

    async def beat_for(self, seconds: float) -> None:
        """Let time pass with the loop running."""
        end = self.clock.seconds + seconds
        while self.clock.seconds < end:
            pause = await self.owner.pulse()
            await self.owner.settle()
            self.clock.seconds = min(end, self.clock.seconds + pause)

    # --- what is seen

    def is_outage(self) -> bool:
        """What the daemon reads."""
        return self.page.is_outage

    def named(self, event: str) -> list[Fields]:
        return [fields for name, fields in self.events if name == event]

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """Collect the calls made inside the block, as ``method key``."""
        before = len(self.store.calls)
        made: list[str] = []
        yield made
        made.extend(f"{method} {key}" for method, key in self.store.calls[before:])
