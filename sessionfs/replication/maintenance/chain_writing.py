"""Commits a generation without a journal, by the chain's one writer, and hides a session that is being made.

The order of a commit's steps is in ``replication/commit/manifest_chain.py``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sessionfs.formats import commit_marker
from sessionfs.formats import manifest as manifests
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import OwnershipLostError, SessionFSError
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.commit.manifest_chain import ManifestChain, Published
from sessionfs.replication.maintenance.holding import Held
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.trio_store import Landed
from sessionfs.stores.base import IfAbsent, IfMatch, Token


class ChainWriter:
    """Writes manifests and markers.

    Args:
        patient: Sends requests.
        clock: Times.
        settings: How long to back off.
    """

    def __init__(self, patient: PatientStore, clock: Clock, settings: ReplicationSettings) -> None:
        self._patient = patient
        self._clock = clock
        self._chain = ManifestChain(patient.store, clock, settings)

    async def commit(self, held: Held, body: Manifest) -> Published:
        """Make a generation the newest. A marker that cannot be written lags: the commit counts, ``verify`` says so, and the next one writes it anew.

        Args:
            held: The session, owned.
            body: Entries, trigger, recovery; numbers, times and owner are filled in.

        Raises:
            OwnershipLostError: ``manifest.json`` is no longer our fence.
            SessionFSError: The store refused or did not answer.
        """
        previous = held.newest.generation if held.newest is not None else 0
        body = replace(
            body,
            session=held.session,
            generation=previous + 1,
            previous=previous,
            created_at=utc_text(self._clock.wall_ns()),
            epoch=held.epoch,
            holder=held.holder,
            format=manifests.FORMAT,
        )
        held.check()
        published = await self._chain.publish(body, held.token)
        completed_at = utc_text(self._clock.wall_ns())
        marker = marker_of(published.manifest, published.sha256, held.newest, completed_at=completed_at)
        with suppress(SessionFSError):
            await self._chain.put_marker(marker)
        return published

    async def hide(self, held: Held, trigger: str) -> Held:
        """Let ``manifest.json`` say that a session without a generation is none, until one is committed.

        Raises:
            OwnershipLostError: ``manifest.json`` is no longer our fence.
        """
        hidden = Manifest(
            held.session, 0, trigger=trigger, epoch=held.epoch, holder=held.holder, removed=True
        )
        raw, encoding = manifests.encode(hidden)
        outcome = await self._patient.put(
            keys.manifest_key(held.session),
            raw,
            condition=IfMatch(Token(held.token)) if held.token else IfAbsent(),
            metadata=self._patient.record_metadata(encoding=encoding),
        )
        if not isinstance(outcome, Landed):
            raise OwnershipLostError(
                f"session {held.session} was taken by another owner", remedy="name another id"
            )
        return replace(held, token=outcome.token, newest=hidden)


def marker_of(body: Manifest, sha256: str, before: Manifest | None, *, completed_at: str) -> CommitMarker:
    """Make the marker of a generation of which only the one before it says what was sent.

    Args:
        body: The generation.
        sha256: Of the stored bytes of its ``<n>.json``.
        before: The generation before it; what has the same path and token there counts as skipped.
        completed_at: Time as text.
    """
    had = {(entry.path, entry.token) for entry in before.entries} if before is not None else set()
    fresh = [entry for entry in body.entries if (entry.path, entry.token) not in had]
    return commit_marker.of_generation(
        body,
        sha256,
        completed_at=completed_at,
        objects_uploaded=len(fresh),
        bytes_uploaded=sum(entry.size_bytes for entry in fresh),
    )
