"""What an error says about the store, and which sessions this host may think its own without its answer. Pure."""

from __future__ import annotations

from sessionfs.model.errors import SessionFSError, ThrottledError
from sessionfs.replication.ownership.notes import HELD
from sessionfs.replication.retry_policy import Kind, classify
from sessionfs.working_copy.journal_tree import SessionRow


def is_unanswered(error: SessionFSError) -> bool:
    """Whether an error says nothing about who owns what: no answer, too busy to answer, or access refused (expired credentials)."""
    return isinstance(error, ThrottledError) or classify(error) in {Kind.OUTAGE, Kind.ACCESS}


def is_thought_ours(row: SessionRow) -> bool:
    """Whether this host held a session and never gave it up, or changed it before it could ask (also: in a version without ownership)."""
    return row.owner_state == HELD or (row.owner_state == "" and row.written)


def may_be_presumed(row: SessionRow, *, has_news: bool) -> bool:
    """Whether programs may write a session while the store does not say whose it is.

    Only one that this state directory owned last and never gave up, or that was made here and never seen in the bucket; never one that may have been
    changed elsewhere since this host looked.

    Args:
        row: The session as the journal has it.
        has_news: Somebody else may have owned it.
    """
    is_made_here = row.written and row.known and not row.manifest_token and not row.owner_state
    return not has_news and (row.owner_state == HELD or is_made_here)
