"""The record and the journal of a migration, kept at the destination.

``migration.json`` says where the destination's objects come from and how far that is; ``migration/<10 digits>.json`` are the pages of the
journal, numbered from 1, never changed once written. A page says two things:

* `Intent`: a key that the migration is about to write, with its length. Only such a key may be replaced when its bytes are not known.
* `Entry`: an object that was copied and read back. A later page's entry of the same key counts.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
import zstandard

from sessionfs.formats import versioned_json
from sessionfs.model.errors import CorruptDataError

FORMAT = 1
RECORD_KEY = "migration.json"
PAGES_PREFIX = "migration/"
MAX_PAGE_BYTES = 1 << 28
"""A page that unpacks to more is refused."""

State = Literal["copying", "partial", "complete"]
"""``copying``: no reader may take the destination for a store yet; ``partial``: only some sessions were asked for, and they are whole."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_PAGE = re.compile(r"migration/(\d{10})\.json")
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class MigrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a destination's objects come from.

    Attributes:
        source: Canonical URL of the source.
        source_id: Its identity, the same for every spelling of its URL.
        state: How far it is.
        started_at: Time of the last run's start, as text.
        finished_at: Time as text, "" while a run is not done.
        checksum: Of everything at the destination, "" while a run is not done.
        objects: How many that is.
        bytes: Their length.
        format: Always `FORMAT`.
    """

    source: str
    source_id: str
    state: State
    started_at: str = ""
    finished_at: str = ""
    checksum: str = ""
    objects: _Count = 0
    bytes: _Count = 0
    format: int = FORMAT


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """A key that is about to be written.

    Attributes:
        key: The key.
        size_bytes: Length of what will be there.
    """

    key: str
    size_bytes: _Count


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An object that was copied, and read back at the destination.

    Attributes:
        key: The key, the same at both ends.
        size_bytes: Length.
        source_token: Of the object at the source.
        source_modified_ns: Its time there: a server's token may not move when only metadata does.
        token: Of the object at the destination.
        sha256: Of the bytes.
        metadata_sha256: As `checksum.metadata_sha256`.
        content_type: At the source.
    """

    key: str
    size_bytes: _Count
    source_token: str
    source_modified_ns: int
    token: str
    sha256: str
    metadata_sha256: str
    content_type: str


class JournalPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the journal.

    Attributes:
        intents: What is about to be written.
        entries: What was copied and read back.
        format: Always `FORMAT`.
    """

    intents: tuple[Intent, ...] = ()
    entries: tuple[Entry, ...] = ()
    format: int = FORMAT


def page_key(number: int) -> str:
    """Key of a page; pages count from 1."""
    return f"{PAGES_PREFIX}{number:010d}.json"


def page_number(key: str) -> int | None:
    """Number of the page that has a key; None for any other key."""
    found = _PAGE.fullmatch(key)
    return int(found.group(1)) if found else None


def encode_record(record: MigrationRecord) -> bytes:
    """Give a record's canonical JSON."""
    return versioned_json.encode(record)


def decode_record(raw: bytes, key: str) -> MigrationRecord:
    """Read a record.

    Raises:
        UnsupportedFormatError: A format this version does not know.
        CorruptDataError: No such record.
    """
    if versioned_json.decode_format(raw, key, supported=FORMAT) is None:
        raise CorruptDataError(f"{key} has no format")
    return versioned_json.decode(raw, MigrationRecord, key)


def encode_page(page: JournalPage) -> bytes:
    """Give a page's bytes: JSON in zstd, which its first bytes say."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(versioned_json.encode(page))


def decode_page(raw: bytes, key: str) -> JournalPage:
    """Read a page; as `decode_record`."""
    text = raw
    if raw.startswith(_ZSTD_MAGIC):
        try:
            with zstandard.ZstdDecompressor().stream_reader(raw) as reader:
                text = reader.read(MAX_PAGE_BYTES + 1)
        except (zstandard.ZstdError, MemoryError) as problem:
            raise CorruptDataError(f"{key} cannot be unpacked: {problem}") from None
    if len(text) > MAX_PAGE_BYTES:
        raise CorruptDataError(f"{key} is longer than {MAX_PAGE_BYTES} bytes")
    if versioned_json.decode_format(text, key, supported=FORMAT) is None:
        raise CorruptDataError(f"{key} has no format")
    return versioned_json.decode(text, JournalPage, key)
