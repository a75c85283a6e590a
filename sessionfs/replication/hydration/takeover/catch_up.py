"""What a host does between its claim of a session and its first change: one listing, and everything that others did is taken over.

Order: owed files were set aside before (``ownership/estrangement.py``); the listing; what is clean here and moved there becomes remote, and its
token is the base of later puts; in a session that is recovered at a generation the tree becomes that generation and the tail is settled
(``tail.py``); what the newest generation names is noted, so that it is copied aside before it goes.

Bytes on this disk that are old go when the daemon drops them. Until then the session counts as *behind*: the next look goes on, and a commit waits.
That survives a crash.
"""

from __future__ import annotations

from dataclasses import dataclass

from sessionfs.formats.manifest import Manifest, ManifestEntry
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.comparison import Comparison, Differences, require_chain
from sessionfs.replication.hydration.exact_comparison import ExactComparison
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.hydration.survey import RemoteTree, Survey
from sessionfs.replication.hydration.takeover.generation_sources import GenerationSources
from sessionfs.replication.hydration.takeover.tail import Settled, Tail
from sessionfs.replication.hydration.tree_rows import TreeRows
from sessionfs.replication.ownership.notes import latest_epoch
from sessionfs.replication.remote_tree import RemoteTreeReader
from sessionfs.working_copy.known_content import KnownObject, Prefix
from sessionfs.working_copy.upload_journal import UploadJournal

_CONCURRENT = 16


@dataclass(frozen=True, slots=True)
class Base:
    """What a claim found.

    Attributes:
        epoch: Ours.
        manifest: ``manifest.json`` behind the fence, None for none.
        token: Its token, "" for none.
    """

    epoch: int
    manifest: Manifest | None
    token: str


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What was taken over.

    Attributes:
        found: What changed here; its files that are on this disk are to be dropped.
        waiting: Numbers of those.
    """

    found: Differences
    waiting: frozenset[int] = frozenset()


class CatchUp:
    """Takes over what others did.

    Args:
        journal: Written.
        reader: Reads the bucket.
        comparison: Compares with a listing.
        exact: Compares with a generation.
        tail: Settles what the owner before left.
        sources: Says what was copied aside.
    """

    def __init__(
        self,
        journal: UploadJournal,
        reader: RemoteTreeReader,
        *,
        comparison: Comparison,
        exact: ExactComparison,
        tail: Tail,
        sources: GenerationSources,
    ) -> None:
        self._journal = journal
        self._reader = reader
        self._comparison = comparison
        self._exact = exact
        self._tail = tail
        self._sources = sources

    def is_behind(self, session: str) -> bool:
        """Whether old bytes of a session are still on this disk, or taking over was interrupted."""
        return self._journal.meta(_behind(session)) != ""

    async def base_of(self, session: SessionId) -> Base:
        """Read again what a claim found; raises as ``ManifestChain.newest``."""
        newest = await self._reader.chain.newest(session)
        row = self._journal.session(session)
        epoch = row.epoch if row is not None else 0
        return Base(
            epoch, newest.manifest if newest else None, newest.stat.token if newest is not None else ""
        )

    async def run(self, session: SessionId, base: Base) -> CaughtUp:
        """Take over what is in the bucket.

        Raises:
            OwnershipLostError: A later owner has written there.
            UnavailableError, AccessError: What is done stays done; the session stays behind.
        """
        if self._journal.session(session) is None:
            return CaughtUp(Differences())
        if base.manifest is not None:
            require_chain(session, base.manifest, base.epoch)
        if not self.is_behind(session):
            self._journal.set_meta(_behind(session), "1")
        most_epoch = latest_epoch(self._journal, session, base.epoch)
        before = self._comparison.before(session)
        survey = await self._reader.listing(session, base.manifest, base.token)
        settled = Settled()
        if base.manifest is not None and (base.manifest.removed or self._reader.is_exact(base.manifest)):
            found = await self._take_generation(survey, base.manifest)
            settled = await self._tail.settle(
                survey, base.manifest, most_epoch=most_epoch, waiting=found.present(self._journal)
            )
            found.files |= settled.adopted
        else:
            found = await self._comparison.compare(survey, before, everything=True, most_epoch=most_epoch)
        await self._name_contents(session, base.manifest)
        waiting = found.present(self._journal)
        with self._journal.transaction():
            if self._journal.session(session) is not None:
                rows = TreeRows(self._journal, session)
                rows.note_manifest(survey)
                if rows.differs(base.manifest):
                    # What was uploaded after the last commit is taken over, and is in no generation yet.
                    self._journal.update_session(session, changed=True)
            self._exact.note_exact(session, exact=False)
            self._comparison.note_read(survey)
            if not waiting:
                self._journal.set_meta(_behind(session), "")
        return CaughtUp(found, waiting)

    async def _take_generation(self, survey: Survey, manifest: Manifest) -> Differences:
        """Let the tree here be what the generation names; of a removed session nothing stays but what was made here since."""
        tree = RemoteTree(survey, ())
        if not manifest.removed:
            exact = Survey(survey.session, manifest, survey.manifest_token, is_exact=True)
            tree = await self._reader.exact(exact)
        row = self._journal.session(survey.session)
        return self._exact.compare(row, tree, listed=survey.listed) if row is not None else Differences()

    async def _name_contents(self, session: SessionId, manifest: Manifest | None) -> None:
        """Note what the newest generation names; a longer object begins with it unless that was copied aside."""
        with self._journal.transaction():
            longer = TreeRows(self._journal, session).name_contents(manifest)

        async def one(item: tuple[ManifestEntry, KnownObject]) -> None:
            entry, known = item
            prefix = Prefix(entry.sha256, entry.size_bytes, is_proven=False)
            if prefix in self._journal.prefixes(known.key) or await self._sources.is_kept(session, entry):
                return
            if self._journal.object(known.key) == known:
                self._journal.name_prefix(known.key, prefix)

        await for_each(longer, one, limit=_CONCURRENT)


def _behind(session: str) -> str:
    return f"behind:{session}"
