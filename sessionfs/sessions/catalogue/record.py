"""What a catalogue holds of a session, its limits, and the row that both databases keep it in.

Invariants:

* A record that passed `checked` is one that every catalogue and every index can hold, byte for byte.
* Text is one line of valid Unicode: no control characters, so no NUL, which PostgreSQL has no place for.
* Sessions are ordered by the UTF-8 bytes of their ids, which is the order of their code points.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sessionfs.model import names
from sessionfs.model.errors import (
    CorruptDataError,
    InvalidRequestError,
    InvalidSessionIdError,
    SessionFSError,
    TooLargeError,
)
from sessionfs.model.names import SessionId

MAX_TENANT_BYTES = 128
MAX_STATUS_BYTES = 64
MAX_TITLE_BYTES = 1024
MAX_CHECKPOINT_BYTES = 512
MAX_LABELS = 64
MAX_LABEL_NAME_BYTES = 128
MAX_LABEL_VALUE_BYTES = 1024
MAX_METADATA_BYTES = 64 << 10
MAX_NUMBER = 1 << 53
"""Of times and revisions: every reader of JSON can hold it."""
MAX_PAGE = 1000
DEFAULT_PAGE = 100

COLUMNS = "id, tenant, created_at_ms, updated_at_ms, status, title, labels, metadata, checkpoint, revision"
"""Of a row, in the order of `to_row` and `from_row`."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One session, as a catalogue knows it.

    Attributes:
        tenant: Whose it is, 1 to 128 bytes; a session never moves to another.
        id: The session, by the rules of ``model/names``; one id is one session, whatever the tenant.
        created_at_ms: Milliseconds since the epoch, up to 2**53; 0 in a draft: `Catalogue.create` sets it.
        updated_at_ms: Time of the last change, likewise; the catalogue sets it.
        status: One line, up to 64 bytes, for the caller to choose.
        title: One line, up to 1024 bytes, for people.
        labels: Up to 64; names of 1 to 128 bytes, values up to 1024.
        metadata: Up to 64 KiB that nobody here looks into.
        checkpoint: The newest checkpoint in the archive, up to 512 bytes; "" when there is none.
        revision: 1 when made, one more with each change; 0 in a draft. The catalogue sets it.
    """

    tenant: str
    id: SessionId
    created_at_ms: int = 0
    updated_at_ms: int = 0
    status: str = ""
    title: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: bytes = field(default=b"", repr=False)
    checkpoint: str = ""
    revision: int = 0


Records = list[SessionRecord]


def checked(record: SessionRecord, *, least_revision: int) -> SessionRecord:
    """Check a record; it is given back with labels of its own, so that a caller's later change of them is none of the record.

    Args:
        record: The record.
        least_revision: 0 for a draft, which has just that; 1 for one that exists.

    Raises:
        InvalidSessionIdError: Its id is none.
        TooLargeError: Something is longer than it may be, or there are too many labels.
        InvalidRequestError: Anything else is no value of its kind.
    """
    checked_tenant(record.tenant)
    checked_id(record.id)
    for name, number in (("created_at_ms", record.created_at_ms), ("updated_at_ms", record.updated_at_ms)):
        _checked_number(name, number)
    _checked_text("status", record.status, MAX_STATUS_BYTES)
    _checked_text("title", record.title, MAX_TITLE_BYTES)
    _checked_text("checkpoint", record.checkpoint, MAX_CHECKPOINT_BYTES)
    _checked_bytes("metadata", record.metadata, MAX_METADATA_BYTES)
    revision = _checked_number("revision", record.revision)
    if revision < least_revision or (least_revision == 0 and revision):
        wanted = f"at least {least_revision}" if least_revision else "0: it is new"
        raise InvalidRequestError(f"revision {revision} of session {record.id!r} is to be {wanted}")
    return replace(record, labels=_checked_labels(record.labels))


def checked_tenant(tenant: object) -> str:
    """Check a tenant's name; it is given back.

    Raises:
        TooLargeError: It is longer than 128 bytes.
        InvalidRequestError: It is empty, no text, or has control characters.
    """
    return _checked_text("tenant", tenant, MAX_TENANT_BYTES, may_be_empty=False)


def checked_id(session: object) -> SessionId:
    """Check a session id; it is given back.

    Raises:
        InvalidSessionIdError: It is none.
    """
    if not isinstance(session, str):
        raise InvalidSessionIdError(f"session id {session!r} is no text")
    return names.session_id(session)


def checked_page(after: object, limit: object) -> tuple[str, int]:
    """Check the place and size of a page of a listing.

    Args:
        after: An id, which need not exist; "" for the start.
        limit: 1 to 1000.

    Raises:
        InvalidSessionIdError: `after` is neither.
        InvalidRequestError: The limit is out of range.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_PAGE:
        raise InvalidRequestError(f"a limit of {limit!r} is not within 1 to {MAX_PAGE}")
    return ("" if after == "" else checked_id(after)), limit


def next_revision(revision: int) -> int:
    """Give the revision behind one.

    Raises:
        TooLargeError: There is none.
    """
    if revision >= MAX_NUMBER:
        raise TooLargeError(f"a session has no revision behind {MAX_NUMBER}")
    return revision + 1


def to_row(record: SessionRecord) -> tuple[object, ...]:
    """Give the values of a record's row, as `COLUMNS` names them; labels are canonical JSON."""
    labels = json.dumps(dict(record.labels), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return (
        record.id,
        record.tenant,
        record.created_at_ms,
        record.updated_at_ms,
        record.status,
        record.title,
        labels,
        record.metadata,
        record.checkpoint,
        record.revision,
    )


def from_row(row: Sequence[object]) -> SessionRecord:
    """Give the record of a row.

    Raises:
        CorruptDataError: No catalogue of ours wrote it.
    """
    session, tenant, created, updated, status, title, labels, metadata, checkpoint, revision = row
    try:
        read = SessionRecord(
            tenant=checked_tenant(tenant),
            id=checked_id(session),
            created_at_ms=_checked_number("created_at_ms", created),
            updated_at_ms=_checked_number("updated_at_ms", updated),
            status=_checked_text("status", status, MAX_STATUS_BYTES),
            title=_checked_text("title", title, MAX_TITLE_BYTES),
            labels=_checked_labels(json.loads(_checked_text("labels", labels, MAX_METADATA_BYTES << 4))),
            metadata=_checked_bytes("metadata", metadata, MAX_METADATA_BYTES),
            checkpoint=_checked_text("checkpoint", checkpoint, MAX_CHECKPOINT_BYTES),
            revision=_checked_number("revision", revision),
        )
    except (SessionFSError, ValueError, RecursionError) as problem:
        raise CorruptDataError(f"the record of session {session!r} cannot be read: {problem}") from None
    return read


def _checked_text(what: str, text: object, most_bytes: int, *, may_be_empty: bool = True) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError(f"{what} is a {type(text).__name__}, text is due")
    # Before the walk over its characters: what is far too long costs nothing.
    if len(text) > most_bytes or len(text.encode("utf-8", "surrogatepass")) > most_bytes:
        raise TooLargeError(f"{what} is longer than {most_bytes} bytes")
    if not text and not may_be_empty:
        raise InvalidRequestError(f"{what} is empty")
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in text):
        raise InvalidRequestError(f"{what} {text!r} has a control character or half a character")
    return text


def _checked_bytes(what: str, raw: object, most_bytes: int) -> bytes:
    if not isinstance(raw, bytes):
        raise InvalidRequestError(f"{what} is a {type(raw).__name__}, bytes are due")
    if len(raw) > most_bytes:
        raise TooLargeError(f"{what} is longer than {most_bytes} bytes")
    return raw


def _checked_number(what: str, number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MAX_NUMBER:
        raise InvalidRequestError(f"{what} {number!r} is no number within 0 to {MAX_NUMBER}")
    return number


def _checked_labels(labels: object) -> dict[str, str]:
    if not isinstance(labels, Mapping):
        raise InvalidRequestError(f"labels are a {type(labels).__name__}, names with values are due")
    if len(labels) > MAX_LABELS:
        raise TooLargeError(f"{len(labels)} labels are more than {MAX_LABELS}")
    return {
        _checked_text("a label's name", name, MAX_LABEL_NAME_BYTES, may_be_empty=False): _checked_text(
            f"label {name!r}", value, MAX_LABEL_VALUE_BYTES
        )
        for name, value in labels.items()
    }
