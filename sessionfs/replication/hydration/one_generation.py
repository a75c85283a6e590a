"""A mount that shows one generation of the past: its sessions are that generation, read-only.

The state directory may have the session as it was at another time, and will have it so again. What differs is taken over as from another host: what
is on this disk of another time is dropped first. A session that has changes here which no generation has is not shown so.
"""

from __future__ import annotations

import trio

from sessionfs.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.comparison import Comparison, Differences, is_ours
from sessionfs.replication.hydration.exact_comparison import ExactComparison
from sessionfs.replication.hydration.fetches.damage import Damage
from sessionfs.replication.hydration.news import News
from sessionfs.replication.hydration.survey import RemoteTree
from sessionfs.replication.hydration.tree_rows import TreeRows
from sessionfs.replication.remote_tree import RemoteTreeReader
from sessionfs.working_copy.journal_tree import SessionRow
from sessionfs.working_copy.layout import ROOT_NUMBER
from sessionfs.working_copy.upload_journal import UploadJournal


class OneGeneration:
    """Shows sessions as one generation.

    Args:
        journal: Where the rows are.
        reader: Reads manifests.
        comparison: Forgets what it saw.
        exact: Compares with the generation.
        news: Takes the session over again, once the mount shows it itself.
        generation: Which; 0 when the mount shows sessions themselves.
    """

    def __init__(
        self,
        journal: UploadJournal,
        reader: RemoteTreeReader,
        *,
        comparison: Comparison,
        exact: ExactComparison,
        news: News,
        generation: int,
    ) -> None:
        self._journal = journal
        self._reader = reader
        self._comparison = comparison
        self._exact = exact
        self._news = news
        self._generation = generation
        self._damage = Damage(reader.chain)

    @property
    def is_wanted(self) -> bool:
        """Whether the mount shows a generation."""
        return self._generation != 0

    async def open(self, session: SessionId) -> int | None:
        """Give a session the generation's tree.

        Returns:
            Number of its root; None when the generation is not there, or says that the session was removed.

        Raises:
            InvalidRequestError: It has changes on this disk that no generation has.
            CorruptDataError, UnsupportedFormatError: The manifest cannot be read.
            UnavailableError, AccessError: Nothing is known.
        """
        row, root = self._journal.session(session), self._root(session)
        if row is not None and root is not None and row.tree_of == self._generation:
            return root
        self._require_clean(session)
        try:
            tree = await self._tree(session)
        except NotFoundError:
            return None
        self._require_clean(session)
        with self._journal.transaction():
            row, root = self._journal.session(session), self._root(session)
            if row is None or root is None:
                TreeRows(self._journal, session).add_session(tree)
            else:
                self._exact.compare(row, tree)
            self._exact.note_exact(session, exact=True)
            self._news.note_taken(session)
            self._comparison.forget_read(session)
            self._journal.update_session(
                session, tree_of=self._generation, generation=self._generation, manifest_token=""
            )
        return self._root(session)

    async def compare(self, row: SessionRow) -> Differences:
        """Find what is on this disk of another time until it is dropped; then there is nothing to ask.

        Raises:
            As `open`, and NotFoundError when the generation is gone.
        """
        if self._journal.meta(_taken(row.id)) == str(row.tree_of):
            return Differences()
        tree = await self._tree(row.id)
        now = self._journal.session(row.id)
        if now is None:
            return Differences()
        found = self._exact.compare(now, tree)
        if not found.present(self._journal):
            self._journal.set_meta(_taken(row.id), str(row.tree_of))
        return found

    async def leave(self, session: SessionId) -> None:
        """Let a session be itself again.

        Raises:
            UnavailableError, AccessError, CorruptDataError, UnsupportedFormatError: It still is the generation.
        """
        row = self._journal.session(session)
        if row is not None:
            await self._news.take(row)
        with self._journal.transaction():
            self._journal.update_session(session, tree_of=0)
            self._journal.set_meta(_taken(session), "")

    def _require_clean(self, session: SessionId) -> None:
        row = self._journal.session(session)
        if row is not None and (self._journal.owes(session) or (is_ours(row) and row.changed)):
            raise InvalidRequestError(
                f"session {session} has changes on this disk that no generation has yet",
                remedy="mount without --at, or with another --state-dir",
            )

    async def _tree(self, session: SessionId) -> RemoteTree:
        try:
            manifest = await self._reader.chain.read(session, self._generation)
        except CorruptDataError as problem:
            raise await self._damage.of_manifest(session, problem, below=self._generation) from None
        if manifest.removed:
            raise NotFoundError(f"session {session} was removed in generation {self._generation}")
        return await trio.to_thread.run_sync(self._reader.trees.tree, session, manifest)

    def _root(self, session: SessionId) -> int | None:
        return self._journal.child(ROOT_NUMBER, session.encode())


def _taken(session: str) -> str:
    return f"generation:{session}"
