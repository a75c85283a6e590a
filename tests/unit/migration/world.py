"""A store with one of everything, and how a migration of it is run."""

from __future__ import annotations

from dataclasses import dataclass, field

from sessionfs.formats import ownership
from sessionfs.formats.migration import records
from sessionfs.formats.ownership import BeatRecord, OwnerRecord
from sessionfs.migration.inventory import place_of
from sessionfs.migration.liveness import Liveness
from sessionfs.migration.migration import Migration, Result
from sessionfs.migration.plan import Plan
from sessionfs.migration.survey import Survey
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.names import SessionId, session_id
from sessionfs.model.roots import named_unit
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.trio_store import TrioStore
from sessionfs.stores.base import ObjectMetadata, ObjectStore, Token, Unconditional
from sessionfs.stores.memory import MemoryStore
from tests.unit.replication.maintenance.world import Author, HandClock

SETTINGS = ReplicationSettings(
    retry_minimum_seconds=0, retry_maximum_seconds=0, concurrent_uploads=4, part_bytes=5 << 20
)
SOURCE_URL = "file:///source"
FIRST, SECOND = session_id("s1"), session_id("s2")
RUN = named_unit("eval/run7")
LOG = b"".join(b'{"seq":%d}\n' % number for number in range(200))

Contents = dict[str, tuple[bytes, ObjectMetadata]]
"""Bytes and metadata by key."""


@dataclass
class World:
    """Two stores.

    Attributes:
        source: Where everything is.
        destination: Where it is to be.
        clock: Of this host.
        url: Of the source, as the record names it.
        said: Why the survey waited.
    """

    source: ObjectStore
    destination: ObjectStore
    clock: Clock = field(default_factory=HandClock)
    url: str = SOURCE_URL
    said: list[str] = field(default_factory=list)

    async def plan(self, *scope: SessionId) -> Plan:
        """Survey both."""
        source = TrioStore(self.source, self.clock, SETTINGS)
        survey = Survey(
            source,
            TrioStore(self.destination, self.clock, SETTINGS),
            self._liveness(source),
            source_url=self.url,
        )
        return await survey.plan(frozenset(scope) or None)

    async def migrate(self, *scope: SessionId) -> Result:
        """Survey both, and bring what is missing."""
        return await self.carry_out(await self.plan(*scope))

    async def carry_out(self, plan: Plan) -> Result:
        """Bring what is missing."""
        source = TrioStore(self.source, self.clock, SETTINGS)
        migration = Migration(
            source,
            self.source,
            TrioStore(self.destination, self.clock, SETTINGS),
            self.clock,
            SETTINGS,
            self._liveness(source),
            source_url=self.url,
        )
        return await migration.run(plan)

    def record(self) -> records.MigrationRecord:
        """What the destination says of its migration."""
        with self.destination.get(records.RECORD_KEY, byte_range=None, expected=None) as body:
            return records.decode_record(body.read(), records.RECORD_KEY)

    def _liveness(self, source: TrioStore) -> Liveness:
        return Liveness(source, self.clock, on_wait=self.said.append)


def filled_source(clock: HandClock | None = None) -> MemoryStore:
    """A store with two sessions of two generations, a shared root, an archive, conflicts, an index, and notes of hosts."""
    store = MemoryStore(clock or HandClock())
    for session in (FIRST, SECOND, RUN):
        author = Author(store, HandClock(), session)
        author.commit({b"a": b"1", b"d": None, b"d/log.jsonl": LOG, b"link": "a"})
        author.commit({b"a": b"other", b"d": None, b"d/log.jsonl": LOG + LOG, b"link": "a", b"empty": b""})
        live = keys.live_key(session, b"a", is_directory=False)
        assert live is not None
        put(store, keys.conflict_key(live, stamp="20260131T235959.123456Z", holder="h"), b"aside")
        note_owner(store, session, state="released")
    put(store, "archive/sessions/x/blocks/1/0", b"block")
    put(store, "archive/sessions/x/checkpoints/1", b"{}")
    put(store, "archive/sessions/x/latest", b"1")
    put(store, "sessions.json.corrupt-1700000000", b"{")
    put(store, "sessions.json", b'{"s1":{},"s2":{}}', content_type="application/json")
    put(store, "probe/abc", b"scratch")
    return store


def put(store: ObjectStore, key: str, body: bytes, *, content_type: str = "text/plain") -> Token:
    """Put an object, whatever is there."""
    metadata = ObjectMetadata({"mtime": "1.000000000"}, content_type)
    return store.put(key, body, condition=Unconditional(), metadata=metadata)


def note_owner(
    store: ObjectStore, session: SessionId, *, state: str = "held", holder: str = "h" * 32
) -> None:
    """Write an ownership record."""
    record = OwnerRecord(
        session=session,
        holder=holder,
        epoch=1,
        state="held" if state == "held" else "released",
        host="elsewhere",
    )
    put(store, keys.owner_key(session), ownership.encode(record))


def beat(
    store: ObjectStore, *, counter: int = 1, lease_seconds: float = 60.0, holder: str = "h" * 32
) -> None:
    """Write a beat."""
    record = BeatRecord(holder=holder, counter=counter, lease_seconds=lease_seconds)
    put(store, keys.beat_key(holder), ownership.encode(record))


def contents(store: ObjectStore) -> Contents:
    """Everything that a migration brings, with its metadata."""
    found: Contents = {}
    for page in store.list_all(""):
        for stat in page.objects:
            if place_of(stat.key) is not None:
                with store.get(stat.key, byte_range=None, expected=None) as body:
                    assert body.stat.metadata is not None
                    found[stat.key] = (body.read(), body.stat.metadata)
    return found


def everything(store: ObjectStore) -> dict[str, tuple[bytes, Token]]:
    """Every object of a store, with its token: equal only when nobody wrote."""
    found: dict[str, tuple[bytes, Token]] = {}
    for page in store.list_all(""):
        for stat in page.objects:
            with store.get(stat.key, byte_range=None, expected=None) as body:
                found[stat.key] = (body.read(), stat.token)
    return found
