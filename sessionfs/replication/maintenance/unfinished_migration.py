"""A store that a migration has not finished is no store yet: whoever reads it would take a part for all."""

from __future__ import annotations

from sessionfs.formats.migration.records import RECORD_KEY, MigrationRecord, decode_record
from sessionfs.model.errors import ConflictError, ObjectNotFoundError, UnavailableError
from sessionfs.stores.base import ObjectStore


def require_whole(record: MigrationRecord | None, url: str) -> None:
    """Refuse a store that a migration has not finished: a reader would take a part for all.

    Args:
        record: What its ``migration.json`` says, None without one.
        url: Of the store.

    Raises:
        ConflictError: Its migration stopped half-way, or goes on.
    """
    if record is not None and record.state == "copying":
        raise ConflictError(
            f"{url} holds a part of {record.source}: a migration began at {record.started_at} and is not done",
            remedy=f"sessionfs migrate --from {record.source} --to {url} goes on where it stopped",
        )


def require_finished(store: ObjectStore) -> None:
    """Refuse an open store that a migration has not finished; one that does not answer is refused by nobody here.

    Raises:
        ConflictError: Its migration stopped half-way, or goes on.
        CorruptDataError, UnsupportedFormatError: Its record cannot be read.
        AccessError, BucketNotFoundError: The store refuses.
    """
    try:
        with store.get(RECORD_KEY, byte_range=None, expected=None) as body:
            raw = body.read()
    except (ObjectNotFoundError, UnavailableError):
        return
    require_whole(decode_record(raw, RECORD_KEY), store.url)
