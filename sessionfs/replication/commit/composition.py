"""The parts of a committer, put together."""

from __future__ import annotations

from sessionfs.model.clock import Clock
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.commit.bringing import Bringing
from sessionfs.replication.commit.committer import Committer
from sessionfs.replication.commit.cutting import Cuts, Cutting, Freezer
from sessionfs.replication.commit.databases import Databases
from sessionfs.replication.commit.entries import Entries
from sessionfs.replication.commit.frozen_bytes import FrozenBytes
from sessionfs.replication.commit.hashing import Hashing
from sessionfs.replication.commit.listing_check import ListingCheck
from sessionfs.replication.commit.manifest_chain import ManifestChain
from sessionfs.replication.commit.noting import Noting
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.authority import Authority
from sessionfs.replication.uploads.conflicts import Conflicts, RaiseEvent
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_FLUSH_SECONDS = 60.0
"""So long nothing of a commit's uploads may move."""


def committer_of(
    *,
    journal: UploadJournal,
    store: TrioStore,
    layout: StateLayout,
    settings: ReplicationSettings,
    clock: Clock,
    exclusions: Exclusions,
    log: Cutting,
    uploader: Uploader,
    freezer: Freezer,
    authority: Authority,
    raise_event: RaiseEvent,
) -> Committer:
    """Give a committer; for the arguments see `Committer` and its parts."""
    hashing = Hashing(journal, store, layout, clock, uploader)
    frozen = FrozenBytes(journal, store, uploader.files, layout, clock, settings, freezer.frozen_image)
    return Committer(
        journal=journal,
        store=store,
        clock=clock,
        uploader=uploader,
        authority=authority,
        cuts=Cuts(
            journal,
            clock,
            log=log,
            freezer=freezer,
            uploader=uploader,
            authority=authority,
            noting=Noting(journal, uploader.files, exclusions),
            databases=Databases(uploader.files, uploader.databases),
        ),
        bringing=Bringing(
            journal,
            uploader,
            frozen,
            authority,
            hashing=hashing,
            immutable=Exclusions(settings.immutable_globs),
            flush_seconds=_FLUSH_SECONDS,
        ),
        hashing=hashing,
        entries=Entries(journal, layout),
        check=ListingCheck(
            journal,
            store,
            clock,
            Conflicts(journal, store, clock, raise_event),
            authority,
            is_in_flight=uploader.in_flight.__contains__,
            raise_event=raise_event,
        ),
        chain=ManifestChain(store, clock, settings),
        raise_event=raise_event,
        recovery=settings.recovery,
    )
