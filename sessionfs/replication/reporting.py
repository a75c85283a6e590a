"""What the replication process says of itself: status, and how one file stands."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from sessionfs.formats.link_messages import (
    Description,
    Drained,
    SessionStatus,
    Status,
)
from sessionfs.model import keys, names, roots
from sessionfs.model.clock import Clock
from sessionfs.replication.ownership.owner import Ownership
from sessionfs.replication.trio_store import TrioStore
from sessionfs.replication.uploader import Uploader
from sessionfs.working_copy.exclusions import Exclusions
from sessionfs.working_copy.journal_tree import Node, SessionRow
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal, Work, WorkSummary

_NANOSECONDS = 1_000_000_000
_MEASURED_ROWS = 2000
_DRAINED_ROWS = 200
"""What is left is asked for five times a second."""
_NAMED_PATHS = 25


class Reporting:
    """Answers questions; changes nothing.

    Args:
        journal: What is owed.
        uploader: What is under way.
        store: Counts of requests.
        layout: Where sizes are read.
        clock: Ages are counted from it.
        exclusions: Names that never leave this host.
        ownership: Who owns what.
        commit_problem: Gives why a session's last commit failed, "" when it did not.
        fetch_problem: Gives why a file's bytes could not be had, "" when nothing is known against it.
    """

    def __init__(
        self,
        journal: UploadJournal,
        uploader: Uploader,
        store: TrioStore,
        layout: StateLayout,
        clock: Clock,
        exclusions: Exclusions,
        *,
        ownership: Ownership,
        commit_problem: Callable[[str], str],
        fetch_problem: Callable[[int], str],
    ) -> None:
        self._fetch_problem = fetch_problem
        self._ownership = ownership
        self._commit_problem = commit_problem
        self._journal = journal
        self._uploader = uploader
        self._store = store
        self._layout = layout
        self._clock = clock
        self._exclusions = exclusions

    def status(self) -> Status:
        """Say how everything stands."""
        owed = self._journal.work_summaries(_MEASURED_ROWS)
        conflicts = self._journal.conflict_counts()
        sessions = [
            SessionStatus(
                id=session.id,
                owner=session.holder,
                owned_here=self._ownership.owns(session.id),
                state=_session_state(owed.get(session.id)),
                owed_files=owed[session.id].rows if session.id in owed else 0,
                owed_bytes=self._bytes(owed.get(session.id)),
                oldest_owed_seconds=self._age_seconds(owed.get(session.id)),
                generation=session.generation,
                committed_at=session.committed_at,
                conflicts=conflicts.get(session.id, 0),
                epoch=session.epoch,
                commit_problem=self._commit_problem(session.id),
            )
            for session in self._journal.sessions()
            if not session.tree_of and not roots.is_tree_of_the_past(session.id)
        ]
        held = self._journal.held_count()
        return Status(
            sessions=sessions,
            degraded=self._uploader.degraded,
            owed_files=sum(session.rows for session in owed.values()),
            owed_bytes=sum(session.owed_bytes for session in sessions),
            uploaded_bytes=self._uploader.uploaded_bytes,
            uploads=self._uploader.uploads,
            requests=dict(self._store.requests),
            downloaded_bytes=self._store.downloaded_bytes,
            held=f"{held} deletions wait for `sessionfs retry` or the unmount" if held else "",
        )

    def drained(self) -> Drained:
        """Say what is left."""
        owed = self._journal.work_summaries(_DRAINED_ROWS).values()
        return Drained(
            owed_files=sum(session.rows for session in owed),
            owed_bytes=sum(self._bytes(session) for session in owed),
            paths=[self._shown(row) for row in self._journal.all_work(_NAMED_PATHS)],
            degraded=self._uploader.degraded,
            stuck_files=self._journal.stuck_count(),
        )

    def describe(self, number: int) -> Description:
        """Say how one file stands."""
        node = self._journal.node(number)
        places = self._journal.paths_of(number)
        if node is None or not places:
            return Description(state="local-only", reason="not part of a session")
        session, path = places[0]
        row = self._journal.session(session)
        generation = row.generation if row else 0
        if path and self._exclusions.match(path):
            return Description(state="local-only", reason="excluded by exclude_globs", generation=generation)
        if not (stat.S_ISREG(node.mode) or stat.S_ISDIR(node.mode) or stat.S_ISLNK(node.mode)):
            return Description(state="local-only", reason="no object can hold it", generation=generation)
        problem = self._fetch_problem(number)
        if problem:
            return Description(state="stuck", reason=problem, sha256=node.sha256, generation=generation)
        if row is not None and row.tree_of:
            return Description(state=_place_of(node), sha256=node.sha256, generation=row.tree_of)
        key = keys.live_key(session, path, is_directory=node.is_directory)
        if key is None:
            return Description(
                state="manifest-only", reason="its key would be too long", generation=generation
            )
        return self._describe_key(key, node, row)

    def _describe_key(self, key: str, node: Node, row: SessionRow | None) -> Description:
        known = self._journal.object(key)
        work = self._journal.work(key)
        conflict = self._journal.conflict_of(key)
        if work is not None:
            state = "uploading" if key in self._uploader.in_flight else work.state
        elif conflict:
            state = "conflict"
        else:
            state = "local-only" if known is None and node.present else _place_of(node)
        reason = work.reason if work is not None else ""
        if not reason and conflict:
            reason = f"other bytes are kept at {conflict}"
        return Description(
            state=state,
            reason=reason,
            key=key,
            etag=known.token if known else "",
            sha256=known.sha256 if known else "",
            generation=row.generation if row else 0,
            owner=row.holder if row else "",
        )

    def _age_seconds(self, owed: WorkSummary | None) -> float:
        if owed is None:
            return 0.0
        return round(max(0, self._clock.wall_ns() - owed.oldest_ns) / _NANOSECONDS, 3)

    def _bytes(self, owed: WorkSummary | None) -> int:
        """Bytes owed: measured for some rows, and as many again in proportion for the rest."""
        if owed is None or not owed.sample:
            return 0
        return sum(self._size(key) for key in owed.sample) * owed.rows // len(owed.sample)

    def _size(self, key: str) -> int:
        live = keys.parse_live_key(key)
        if live is None or live.is_directory:
            return 0
        base = os.path.join(os.fsencode(self._layout.sessions), live.session.encode())
        try:
            return os.lstat(os.path.join(base, live.path)).st_size
        except OSError:
            return 0

    def _shown(self, row: Work) -> str:
        live = keys.parse_live_key(row.key)
        if live is None:
            return row.key
        return names.display(roots.mount_path(live.session).encode() + b"/" + live.path)


def _place_of(node: Node) -> str:
    return "clean" if node.present else "remote"


def _session_state(owed: WorkSummary | None) -> str:
    if owed is None:
        return "clean"
    return "stuck" if owed.is_stuck else "owed"
