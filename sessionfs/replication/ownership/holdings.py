"""What this process owns now, in memory; the journal and the bucket decide what it owns after a restart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sessionfs.formats.manifest import Manifest
from sessionfs.replication.ownership.acquisition import How


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim gave.

    Attributes:
        epoch: Ours; 0 while ownership is only presumed.
        is_presumed: The store did not answer: programs may write, nothing is sent until that is settled.
        manifest: ``manifest.json`` after the fence: the base of everything; generation 0 for a session that has none. None while presumed, and when
            a session is claimed that is ours and has no news.
        manifest_token: Its token: the condition of the next commit. "" while presumed.
        is_news: The bucket may hold what our journal does not know: clean files may be old, owed ones are conflicts. Nothing
            of the session is sent until `Ownership.note_caught_up`.
        how: What allowed it; "" while presumed.
        record_token: Of the ownership record.
    """

    epoch: int
    is_presumed: bool = False
    manifest: Manifest | None = None
    manifest_token: str = ""
    is_news: bool = False
    how: How | Literal[""] = ""
    record_token: str = ""

    @property
    def is_unclean(self) -> bool:
        """Whether it was taken from a holder that did not end."""
        return self.how in {"taken", "forced"}

    def without_news(self) -> Claim:
        """What is kept of it once everything it brought was taken over."""
        return replace(self, manifest=None, is_news=False, how="resumed")


@dataclass(slots=True)
class Holding:
    """One session that is ours.

    Attributes:
        claim: How it became so.
        is_confirmed: The record was ours when it was read last; False after the lease ran out, until it is read again.
    """

    claim: Claim
    is_confirmed: bool = True

    @property
    def is_settled(self) -> bool:
        """Whether it is known to be ours."""
        return self.is_confirmed and not self.claim.is_presumed

    @property
    def may_send(self) -> bool:
        """Whether its objects may be changed, as far as only this session is concerned."""
        return self.is_settled and not self.claim.is_news
