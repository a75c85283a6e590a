"""Messages about who may write a session (see ``link_messages``)."""

from __future__ import annotations

from sessionfs.formats.link_message import NOTHING_TOLD, Message, SessionRefreshed


class Claim(Message, frozen=True):
    """Become the owner of a session before the first change. Reply: `Claimed`, or `Failure` of ``SessionAlreadyOwnedError``.

    Attributes:
        session: The session.
        log_position: Operations the answer must know.
        force: Take over although the holder's beat did not stand still for the whole lease.
        known: The version that was heard last (`SessionRefreshed`).
    """

    session: str
    log_position: int
    force: bool = False
    known: int = NOTHING_TOLD


class Claimed(Message, frozen=True):
    """Reply to `Claim`.

    Attributes:
        changes: What changed in the bucket since this host last looked, as for `RefreshSession`; None for nothing. Whoever removed
            something old asks again: the answer of a session that is owned already says what is still old.
        is_unclean: It was taken over from a holder that did not end: its last line of a log may be torn.
    """

    changes: SessionRefreshed | None = None
    is_unclean: bool = False


class Release(Message, frozen=True):
    """Give a session up after a last commit. Reply: `Done`, when the record says so."""

    session: str
    log_position: int


class ReleaseAll(Message, frozen=True):
    """Give up every session that owes nothing and has no uncommitted change. Reply: `Done`."""


class SessionState(Message, frozen=True):
    """Notice from the replication process: a session's owner or the outcome of its commits changed.

    Attributes:
        session: The session.
        owned: Whether this host owns it.
        holder: Who owns it, for people.
        commit_problem: Why its last commit failed, "" when it did not.
    """

    session: str
    owned: bool
    holder: str = ""
    commit_problem: str = ""
