"""Commits: one manifest of a drained session.

Order, which is the promise: ``<n>.json`` (only if absent; a taken number is skipped), ``manifest.json`` (only if it is the one read: **the commit
point**), then the marker, which may lag. What was noted is consistent: the tree and the objects are read from the journal at
one moment, when nothing is owed. A session that changes meanwhile stays *changed*: the next commit names it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import trio

from sessionfs.formats import commit_marker
from sessionfs.formats import manifest as manifests
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import (
    ConcurrentRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SessionFSError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.generation_entries import GenerationEntries
from sessionfs.replication.trio_store import READ_TRIES, Landed, Moved, NotLanded, TrioStore
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectMetadata, Token, Unconditional
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_COMMIT_TRIES = 3
_NUMBER_TRIES = 1000
_Fields = dict[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class _Base:
    """The newest manifest in the bucket; both are empty when there is none."""

    manifest: Manifest | None
    token: str


class Generations:
    """Commits sessions.

    Args:
        journal: The tree, and what the bucket holds.
        store: The bucket.
        layout: Where extended attributes are read.
        clock: Times.
        exclusions: Names that no manifest names.
    """

    def __init__(
        self,
        journal: UploadJournal,
        store: TrioStore,
        layout: StateLayout,
        clock: Clock,
        exclusions: Exclusions,
    ) -> None:
        self._journal = journal
        self._store = store
        self._clock = clock
        self._entries = GenerationEntries(journal, store, layout, clock, exclusions)
        for row in journal.sessions():
            # A commit that died must not leave its session looking committed.
            if journal.meta(_pending(row.id)):
                journal.update_session(row.id, changed=True)
                journal.set_meta(_pending(row.id), "")

    async def commit_drained(self, session: str, trigger: str) -> int | None:
        """Commit a session that changed and owes nothing.

        Args:
            session: The session.
            trigger: What asked for it.

        Returns:
            The generation; None when the session owes something, has not changed, or is not known.

        Raises:
            PreconditionFailedError: Others commit it again and again.
            UnavailableError, AccessError, OutcomeUnknownError: Not committed, as far as is known.
            CorruptDataError, UnsupportedFormatError: The manifest in the bucket cannot be read; nothing was written.
        """
        row = self._journal.session(session)
        if row is None or not row.changed or session in self._journal.work_counts():
            return None
        started_seconds = self._clock.elapsed_seconds()
        noted = self._entries.note(row)
        with self._journal.transaction():
            self._journal.update_session(session, changed=False)
            self._journal.set_meta(_pending(session), "1")
        try:
            entries = await self._entries.finish(row.id, noted)
            base = await self._read_base(row)
            body = Manifest(row.id, 0, tuple(entries), trigger=trigger)
            committed, token = await self._commit(row.id, body, base)
        except BaseException as problem:
            with self._journal.transaction():
                self._journal.update_session(session, changed=True)
                self._journal.set_meta(_pending(session), "")
                if isinstance(problem, SessionFSError):
                    self._announce(_result(session, trigger) | {"ok": False, "problem": problem.message})
            raise
        with self._journal.transaction():
            self._note_commit(committed, token)
            self._journal.set_meta(_pending(session), "")
            totals = _totals(committed, base.manifest)
            seconds = self._clock.elapsed_seconds() - started_seconds
            fields: _Fields = {"generation": committed.generation, "duration": seconds, "ok": True}
            self._announce(_result(session, trigger) | totals | fields)
        return committed.generation

    async def commit_removed(self, session: str) -> int | None:
        """Commit that a session was removed, when the bucket has a manifest of it.

        Returns:
            The generation; None when there is no manifest, it says so already, or something is owed.

        Raises:
            As `commit_drained`.
        """
        row = self._journal.session(session)
        if row is None or session in self._journal.work_counts():
            return None
        base = await self._read_base(row)
        if base.manifest is None or base.manifest.removed:
            return None
        body = Manifest(row.id, 0, trigger="removed", removed=True)
        committed, token = await self._commit(row.id, body, base)
        with self._journal.transaction():
            self._note_commit(committed, token)
            fields: _Fields = {"generation": committed.generation, "ok": True}
            self._announce(_result(session, "removed") | _totals(committed, None) | fields)
        return committed.generation

    # --- the commit

    async def _read_base(self, row: SessionRow) -> _Base:
        """Read the newest manifest; announce one that somebody else committed."""
        base = await self._read_manifest(row.id)
        ours = base.token == row.manifest_token
        if base.manifest is not None and not ours and not base.manifest.removed:
            self._announce_conflict(base.manifest)
        return base

    async def _read_manifest(self, session: SessionId) -> _Base:
        key = keys.manifest_key(session)
        try:
            found, raw = await self._store.read_with_stat(key, tries=READ_TRIES)
        except ObjectNotFoundError:
            return _Base(None, "")
        return _Base(manifests.decode(raw, key), found.token)

    async def _commit(self, session: SessionId, body: Manifest, base: _Base) -> tuple[Manifest, str]:
        row = self._journal.session(session)
        number = row.generation if row is not None else 0
        for _ in range(_COMMIT_TRIES):
            previous = base.manifest.generation if base.manifest else 0
            number = max(number, previous) + 1
            created_at = utc_text(self._clock.wall_ns())
            body = replace(body, generation=number, previous=previous, created_at=created_at)
            body, raw, encoding = await self._put_generation(session, body)
            number = body.generation
            condition: Condition = IfMatch(Token(base.token)) if base.token else IfAbsent()
            outcome = await self._put(keys.manifest_key(session), raw, condition, encoding)
            if isinstance(outcome, Landed):
                await self._put_marker(session, body, raw, base.manifest)
                return body, outcome.token
            if isinstance(outcome, Moved):
                base = await self._read_manifest(session)
                if base.manifest is not None:
                    self._announce_conflict(base.manifest)
        raise PreconditionFailedError(
            f"session {session} is committed by somebody else at the same time",
            remedy="let one host write it",
        )

    async def _put_generation(self, session: SessionId, body: Manifest) -> tuple[Manifest, bytes, str]:
        """Write ``<n>.json`` under the first free number from the body's on; numbers may have gaps."""
        for number in range(body.generation, body.generation + _NUMBER_TRIES):
            numbered = replace(body, generation=number)
            raw, encoding = manifests.encode(numbered)
            outcome = await self._put(keys.generation_key(session, number), raw, IfAbsent(), encoding)
            if isinstance(outcome, Landed):
                return numbered, raw, encoding
        raise PreconditionFailedError(f"session {session} has no free generation number")

    async def _put_marker(
        self, session: SessionId, body: Manifest, raw: bytes, before: Manifest | None
    ) -> None:
        totals = _totals(body, before)
        marker = CommitMarker(
            session=session,
            generation=body.generation,
            manifest_key=keys.generation_key(session, body.generation),
            manifest_sha256=hashlib.sha256(raw).hexdigest(),
            trigger=body.trigger,
            completed_at=utc_text(self._clock.wall_ns()),
            objects=int(totals["objects"]),
            bytes=int(totals["bytes"]),
            objects_uploaded=int(totals["uploaded"]),
            objects_skipped=int(totals["skipped"]),
            bytes_uploaded=int(totals["bytes_uploaded"]),
        )
        try:
            await self._put(
                keys.commit_marker_key(session), commit_marker.encode(marker), Unconditional(), ""
            )
        except SessionFSError as problem:
            # The commit is done; the marker may lag, and the next commit writes it anew.
            fields: _Fields = {"session_id": session, "problem": problem.message}
            self._journal.add_event("session.marker.lagging", fields)

    async def _put(
        self, key: str, raw: bytes, condition: Condition, encoding: str
    ) -> Landed | NotLanded | Moved:
        metadata = ObjectMetadata({"sessionfs-write": self._clock.unique_id()}, "application/json", encoding)
        for _ in range(_COMMIT_TRIES):
            try:
                return await self._store.put(key, raw, condition=condition, metadata=metadata)
            except ConcurrentRequestError:
                await trio.sleep(self._clock.jitter())
        return NotLanded()

    # --- what is remembered and announced

    def _note_commit(self, committed: Manifest, token: str) -> None:
        self._journal.update_session(
            committed.session,
            generation=committed.generation,
            manifest_token=token,
            committed_at=committed.created_at,
        )

    def _announce(self, fields: _Fields) -> None:
        self._journal.add_event("session.snapshot.result", fields)

    def _announce_conflict(self, theirs: Manifest) -> None:
        fields: _Fields = {"session_id": theirs.session, "generation": theirs.generation}
        self._journal.add_event("session.snapshot.conflict", fields)


def _pending(session: str) -> str:
    return f"commit_pending:{session}"


def _result(session: str, trigger: str) -> _Fields:
    return {"session_id": session, "trigger": trigger}


def _totals(committed: Manifest, before: Manifest | None) -> _Fields:
    """Counts of a commit; *uploaded* is what the generation before did not name with the same token."""
    had = {(entry.path, entry.token) for entry in before.entries} if before else set()
    fresh = [entry for entry in committed.entries if (entry.path, entry.token) not in had]
    return {
        "objects": len(committed.entries),
        "bytes": sum(entry.size_bytes for entry in committed.entries),
        "uploaded": len(fresh),
        "skipped": len(committed.entries) - len(fresh),
        "bytes_uploaded": sum(entry.size_bytes for entry in fresh),
    }
