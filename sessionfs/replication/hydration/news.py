"""What other hosts changed in a session that is known here: from a listing, or from the manifest alone.

Which of both is said by the setting ``at`` and the manifest. The setting under which a tree was taken over is remembered beside it, so that a mount
with another setting takes it over anew.
"""

from __future__ import annotations

from sessionfs.replication.hydration.comparison import Comparison, Differences, is_ours, require_chain
from sessionfs.replication.hydration.exact_comparison import ExactComparison
from sessionfs.replication.hydration.survey import RemoteTree, Survey
from sessionfs.replication.hydration.tree_rows import TreeRows
from sessionfs.replication.ownership.notes import HELD, latest_epoch
from sessionfs.replication.remote_tree import KnownManifest, RemoteTreeReader
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.upload_journal import UploadJournal


class News:
    """Takes over what other hosts changed.

    Args:
        journal: What is known here.
        reader: Reads the bucket.
        comparison: Compares with a listing.
        exact: Compares with a generation.
        at: The setting.
    """

    def __init__(
        self,
        journal: UploadJournal,
        reader: RemoteTreeReader,
        *,
        comparison: Comparison,
        exact: ExactComparison,
        at: str,
    ) -> None:
        self._journal = journal
        self._reader = reader
        self._comparison = comparison
        self._exact = exact
        self._at = at

    def add(self, tree: RemoteTree) -> None:
        """Write the rows of a session that is not known here."""
        survey = tree.survey
        with self._journal.transaction():
            TreeRows(self._journal, survey.session).add_session(tree)
            self._exact.note_exact(survey.session, exact=survey.is_exact)
            self.note_taken(survey.session)
            if survey.is_exact:
                self._comparison.forget_read(survey.session)
            else:
                self._comparison.note_read(survey)

    def note_merged(self, survey: Survey) -> None:
        """Note that a session of this disk was merged with what a listing showed."""
        self._exact.note_exact(survey.session, exact=False)
        self.note_taken(survey.session)
        self._comparison.note_read(survey)

    def note_taken(self, session: str) -> None:
        """Note that what is here was taken over under the present setting."""
        self._journal.set_meta(f"at:{session}", self._at)

    async def take(self, row: SessionRow) -> Differences:
        """Compare a session with the bucket, and take over what changed there and is clean here.

        Raises:
            OwnershipLostError: The session is held, and the bucket shows a later owner. Nothing was changed.
            UnavailableError, AccessError, CorruptDataError, UnsupportedFormatError: Nothing was changed.
        """
        was_exact = self._exact.is_exact(row.id)
        is_taken = self._journal.meta(f"at:{row.id}") == self._at
        before = self._comparison.before(row.id)
        known = KnownManifest(row.manifest_token, was_exact) if is_taken else KnownManifest()
        survey = await self._reader.survey(row.id, known=known, is_ours=is_ours(row))
        if survey.is_exact:
            return await self._take_exact(row, survey)
        now = self._journal.session(row.id)
        most_epoch = now.epoch if now is not None and now.owner_state == HELD else -1
        if most_epoch >= 0 and survey.manifest is not None:
            require_chain(row.id, survey.manifest, most_epoch)
        # Tokens and times that were never seen in a listing prove nothing.
        if most_epoch >= 0:
            most_epoch = latest_epoch(self._journal, row.id, most_epoch)
        found = await self._comparison.compare(survey, before, everything=was_exact, most_epoch=most_epoch)
        with self._journal.transaction():
            self._exact.note_exact(row.id, exact=False)
            self.note_taken(row.id)
        return found

    async def _take_exact(self, row: SessionRow, survey: Survey) -> Differences:
        if survey.manifest_unchanged:
            return Differences()
        tree = await self._reader.exact(survey)
        now = self._journal.session(row.id)
        if now is None or is_ours(now):
            # Claimed meanwhile: the claim takes over what there is.
            return Differences()
        with self._journal.transaction():
            found = self._exact.compare(now, tree)
            self._exact.note_exact(row.id, exact=True)
            self._comparison.forget_read(row.id)
            if not found.present(self._journal):
                # Else the next comparison reads it again, and goes on.
                TreeRows(self._journal, row.id).note_manifest(survey)
                self.note_taken(row.id)
        return found
