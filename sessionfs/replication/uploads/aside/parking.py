"""Brings bytes that are only in the bucket to a key of their own content, before the object that holds them goes.

Needed when names were exchanged: each object must be replaced by the other's bytes, so one of them needs a third place.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

from sessionfs.formats import content_alias, object_metadata
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    CorruptDataError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import READ_TRIES, Landed, SourceMoved, TrioStore
from sessionfs.replication.uploads.attempts import known_object
from sessionfs.stores.base import ByteRange, ObjectMetadata, Token, Unconditional
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_CUT_OFF_BYTES = 64 << 20
"""The most bytes that are read and put back for a file that only a longer object holds."""
_PIECE_BYTES = 8 << 20


class Parking:
    """Parks objects.

    Args:
        journal: Knows them, and the parked ones after.
        store: Copies them.
        layout: Where bytes of an unknown hash are read to.
        clock: Names of attempts.
    """

    def __init__(self, journal: UploadJournal, store: TrioStore, layout: StateLayout, clock: Clock) -> None:
        self._journal = journal
        self._store = store
        self._layout = layout
        self._clock = clock

    async def park(self, known: KnownObject) -> str:
        """Let an object's bytes also be under a key of their content.

        Returns:
            Their sha256; "" when there is nothing to keep, or the object is no longer the one known: its own upload finds out.

        Raises:
            UnavailableError: The answer was lost, or the object moved: nothing may be removed yet.
            SessionFSError: The store refused or did not answer.
        """
        live = keys.parse_live_key(known.key)
        if live is None or live.is_directory or known.size_bytes == 0:
            return ""
        try:
            sha256 = known.sha256 or await self._hash(known)
        except (ObjectNotFoundError, PreconditionFailedError):
            return ""
        target = keys.content_key(live.session, sha256)
        write_id = self._clock.unique_id()
        metadata = ObjectMetadata(
            user=object_metadata.encode(
                FileAttributes(known.mode, known.uid, known.gid, known.mtime_ns),
                Provenance(sha256, write_id, known.epoch, self._clock.unique_id()),
            )
        )
        outcome = await self._store.copy(
            known.key,
            target,
            source_token=Token(known.token),
            condition=Unconditional(),
            metadata=metadata,
        )
        if isinstance(outcome, SourceMoved):
            return ""
        if not isinstance(outcome, Landed):
            raise UnavailableError(f"{known.key!r} could not be copied aside")
        with self._journal.transaction():
            # The number says whose bytes they are; an unknown hash stays unknown, so that both records agree.
            self._journal.put_object(
                replace(known, key=target, token=outcome.token, write_id=write_id, sha256=known.sha256)
            )
        return sha256

    async def find(self, session: SessionId, number: int, sha256: str, size_bytes: int) -> KnownObject | None:
        """Look whether bytes are under the key of their content although the journal does not know it: another owner kept them."""
        key = keys.content_key(session, sha256)
        found = await self._store.head(key, tries=READ_TRIES)
        if found is None or found.size_bytes != size_bytes:
            return None
        known = known_object(found, key, number)
        if known.sha256 != sha256:
            return None
        self._journal.put_object(known)
        return known

    async def find_beginning(
        self, session: SessionId, number: int, sha256: str, size_bytes: int
    ) -> KnownObject | None:
        """As `find`, for bytes that were kept as the beginning of more: they come to the key of their own content."""
        key = keys.alias_key(session, sha256)
        try:
            alias = content_alias.decode(await self._store.read(key, tries=READ_TRIES), key)
        except (ObjectNotFoundError, CorruptDataError):
            return None
        found = await self._store.head(keys.content_key(session, alias.of), tries=READ_TRIES)
        if found is None:
            return None
        return await self.cut_off(session, known_object(found, found.key, number), number, sha256, size_bytes)

    async def cut_off(
        self, session: SessionId, longer: KnownObject, number: int, sha256: str, size_bytes: int
    ) -> KnownObject | None:
        """Let bytes be under the key of their content that are only the first ones of a longer object: somebody appended to it.

        Args:
            session: The session.
            longer: The object.
            number: Whose bytes they are.
            sha256: Of the bytes.
            size_bytes: Their length.

        Returns:
            The object that has them now; None when the longer one does not begin with them.

        Raises:
            UnavailableError: The answer was lost.
            SessionFSError: The store refused or did not answer.
        """
        if not 0 < size_bytes < longer.size_bytes or size_bytes > _CUT_OFF_BYTES:
            return None
        try:
            body = await self._store.read(
                longer.key,
                byte_range=ByteRange(0, size_bytes),
                expected=Token(longer.token),
                tries=READ_TRIES,
            )
        except (ObjectNotFoundError, PreconditionFailedError):
            return None
        if hashlib.sha256(body).hexdigest() != sha256:
            return None
        key, write_id = keys.content_key(session, sha256), self._clock.unique_id()
        attributes = FileAttributes(longer.mode, longer.uid, longer.gid, longer.mtime_ns)
        provenance = Provenance(sha256, write_id, longer.epoch, self._clock.unique_id())
        outcome = await self._store.put(
            key,
            body,
            condition=Unconditional(),
            metadata=ObjectMetadata(user=object_metadata.encode(attributes, provenance)),
        )
        if not isinstance(outcome, Landed):
            raise UnavailableError(f"{key!r} was sent, and not seen to arrive")
        made = replace(
            longer, key=key, number=number, token=outcome.token, write_id=write_id, sha256=sha256,
            size_bytes=size_bytes,
        )  # fmt: skip
        self._journal.put_object(made)
        return made

    async def begins_with(self, longer: KnownObject, sha256: str, size_bytes: int) -> bool:
        """Whether an object is longer than some bytes and begins with them; reads as much of it.

        Raises:
            UnavailableError, AccessError: Nothing is known.
        """
        if not 0 < size_bytes < longer.size_bytes:
            return False
        digest = hashlib.sha256()
        try:
            for start in range(0, size_bytes, _PIECE_BYTES):
                piece = ByteRange(start, min(start + _PIECE_BYTES, size_bytes))
                digest.update(
                    await self._store.read(
                        longer.key, byte_range=piece, expected=Token(longer.token), tries=READ_TRIES
                    )
                )
        except (ObjectNotFoundError, PreconditionFailedError):
            return False
        return digest.hexdigest() == sha256

    async def _hash(self, known: KnownObject) -> str:
        path = os.path.join(self._layout.staging, f"park-{self._clock.unique_id()}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.unlink(path)
            found = await self._store.download(known.key, descriptor, expected=Token(known.token))
        finally:
            os.close(descriptor)
        return found.sha256
