"""What the destination says of its own migration: the record, and pages of what was intended and what was done.

Invariants:

* A page is put under a number that nobody has: of two migrations into one destination, the second stops at its first page.
* An object at the destination is ours when an entry has its token, or when its key was intended after its last entry and has the length that
  was intended: then a run stopped between the request and the page. Anything else was put there by somebody else.
* Entries are put in batches: a run that stops reads the last batch again, and copies none of it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import trio

from sessionfs.formats.manifest import ZSTD
from sessionfs.formats.migration import records
from sessionfs.formats.migration.records import Entry, Intent, JournalPage, MigrationRecord
from sessionfs.model.errors import ConflictError
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectStat, Token

ENTRIES_A_PAGE = 500
INTENTS_A_PAGE = 20_000
_READERS = 8


class JournalState:
    """What the pages say, put together.

    Attributes:
        record: None when nothing was ever migrated to the destination.
        record_token: Of ``migration.json``.
        entries: The last of each key.
        pending: Keys that were intended after their last entry, with the length.
        last_page: Number of the last page, 0 for none.
    """

    def __init__(self) -> None:
        self.record: MigrationRecord | None = None
        self.record_token = ""
        self.entries: dict[str, Entry] = {}
        self.pending: dict[str, int] = {}
        self.last_page = 0

    def add(self, page: JournalPage) -> None:
        """Take in the next page."""
        for intent in page.intents:
            self.pending[intent.key] = intent.size_bytes
        for entry in page.entries:
            self.entries[entry.key] = entry
            self.pending.pop(entry.key, None)

    def known(self, found: ObjectStat) -> Entry | None:
        """Give the entry of an object at the destination; None when it has none with its token."""
        entry = self.entries.get(found.key)
        if entry is None or (entry.token, entry.size_bytes) != (found.token, found.size_bytes):
            return None
        return entry

    def is_ours(self, found: ObjectStat) -> bool:
        """Whether a migration put an object at the destination."""
        is_under_way = self.record is None or self.record.state == "copying"
        return self.known(found) is not None or (
            is_under_way and self.pending.get(found.key) == found.size_bytes
        )


async def read_record(store: TrioStore) -> tuple[MigrationRecord, str]:
    """Read the record of a store that has one, and give its token; raises as `read_journal`."""
    found, raw = await store.read_with_stat(records.RECORD_KEY, tries=READ_TRIES)
    return records.decode_record(raw, records.RECORD_KEY), found.token


async def read_journal(store: TrioStore, listed: Mapping[str, ObjectStat]) -> JournalState:
    """Read the record and the pages.

    Args:
        store: The destination.
        listed: What its listing has of them, by key.

    Raises:
        CorruptDataError, UnsupportedFormatError: One cannot be read; nothing may be written then.
        SessionFSError: The store does not answer.
    """
    state = JournalState()
    if records.RECORD_KEY not in listed:
        return state
    state.record, state.record_token = await read_record(store)
    numbered = sorted((number, key) for key in listed if (number := records.page_number(key)) is not None)
    pages: dict[int, JournalPage] = {}

    async def read(item: tuple[int, str]) -> None:
        number, key = item
        pages[number] = records.decode_page(await store.read(key, tries=READ_TRIES), key)

    await for_each(numbered, read, limit=_READERS)
    for number in sorted(pages):
        state.add(pages[number])
        state.last_page = number
    return state


class Journal:
    """Writes the journal.

    Args:
        store: The destination.
        state: What was read; goes on as pages are written.
    """

    def __init__(self, store: PatientStore, state: JournalState) -> None:
        self._store = store
        self.state = state
        self._waiting: list[Entry] = []
        self._alone = trio.Lock()

    async def write_record(self, record: MigrationRecord) -> None:
        """Replace the record.

        Raises:
            ConflictError: Another migration changed it.
        """
        token = self.state.record_token
        condition: Condition = IfMatch(Token(token)) if token else IfAbsent()
        raw = records.encode_record(record)
        self.state.record_token = await self._put(records.RECORD_KEY, raw, condition)
        self.state.record = record

    async def intend(self, intents: Iterable[Intent]) -> None:
        """Say what is about to be written, before it is."""
        every = tuple(intents)
        for start in range(0, len(every), INTENTS_A_PAGE):
            await self._write_page(JournalPage(intents=every[start : start + INTENTS_A_PAGE]))

    async def note(self, entry: Entry) -> None:
        """Say that an object was copied and read back; it is put with others."""
        self._waiting.append(entry)
        if len(self._waiting) >= ENTRIES_A_PAGE:
            await self.flush()

    async def flush(self) -> None:
        """Put what is waiting."""
        async with self._alone:
            while self._waiting:
                batch = self._waiting[:ENTRIES_A_PAGE]
                del self._waiting[: len(batch)]
                await self._write_page(JournalPage(entries=tuple(batch)))

    async def _write_page(self, page: JournalPage) -> None:
        self.state.last_page += 1
        key = records.page_key(self.state.last_page)
        await self._put(key, records.encode_page(page), IfAbsent(), encoding=ZSTD)
        self.state.add(page)

    async def _put(self, key: str, raw: bytes, condition: Condition, *, encoding: str = "") -> str:
        metadata = self._store.record_metadata(encoding=encoding)
        outcome = await self._store.put(key, raw, condition=condition, metadata=metadata)
        if isinstance(outcome, Landed):
            return outcome.token
        raise ConflictError(
            f"{key} of {self._store.store.url} was changed by another migration",
            remedy="let one migration at a time write there, and run it again",
        )


def intents_of(stats: Iterable[ObjectStat]) -> Iterator[Intent]:
    """Give the intents to write objects as these."""
    return (Intent(found.key, found.size_bytes) for found in stats)
