"""The fence: whoever acquires a session puts its epoch into the chain of manifests before it reads anything there.

``manifest.json`` is rewritten with our epoch and holder and the same everything else, only if it is the one read; where there is none, generation 0
without entries is put, only if there is none. After that no commit of an older epoch can land: its condition names a manifest that is gone. What the
fence wrote **is** the base of the session. It differs from ``<n>.json`` in epoch and holder only, so the marker names ``<n>.json``.

A manifest that moved meanwhile (the last commit of the owner before) is read and fenced anew, as long as the record is still ours. One with a later
epoch was fenced by a later owner. A removed session stays removed.

The older layout knows paths only: its fence is a manifest of this format with the same paths, without sums and tokens: *unknown*, not *empty*.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

import trio

from sessionfs.formats import manifest as manifests
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.clock import Clock, utc_text
from sessionfs.model.errors import (
    ConcurrentRequestError,
    ObjectNotFoundError,
    OwnershipLostError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.ownership.watching import READ_TRIES
from sessionfs.replication.trio_store import Landed, TrioStore
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectMetadata, Token

_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Base:
    """``manifest.json`` as it was read.

    Attributes:
        manifest: None when there is none.
        token: "" when there is none.
    """

    manifest: Manifest | None = None
    token: str = ""

    @property
    def epoch(self) -> int:
        """Of whoever wrote it; 0 when there is none, or it is of a version without ownership."""
        return self.manifest.epoch if self.manifest is not None else 0


@dataclass(frozen=True, slots=True)
class Fenced:
    """The manifest after the fence.

    Attributes:
        manifest: Ours.
        token: Of ``manifest.json``.
    """

    manifest: Manifest
    token: str


@dataclass(frozen=True, slots=True)
class Outranked:
    """The chain has another owner's epoch that is not below ours.

    Attributes:
        epoch: That epoch.
    """

    epoch: int


class Fence:
    """Fences chains of manifests.

    Args:
        store: The bucket.
        clock: Names of attempts.
        recovery: What the manifest of a session without any says.
    """

    def __init__(self, store: TrioStore, clock: Clock, *, recovery: Literal["live", "committed"]) -> None:
        self._store = store
        self._clock = clock
        self._recovery: Literal["live", "committed"] = recovery

    async def read(self, session: SessionId) -> Base:
        """Read ``manifest.json``.

        Raises:
            CorruptDataError, UnsupportedFormatError: It cannot be read; nothing is written then.
            SessionFSError: The store does not answer.
        """
        key = keys.manifest_key(session)
        try:
            found, raw = await self._store.read_with_stat(key, tries=READ_TRIES, urgent=True)
        except ObjectNotFoundError:
            return Base()
        manifest = await trio.to_thread.run_sync(manifests.decode, raw, key)
        return Base(manifest, found.token)

    async def put(
        self,
        session: SessionId,
        *,
        epoch: int,
        holder: str,
        base: Base,
        note: Callable[[Base], object],
        is_ours: Callable[[], Awaitable[bool]],
    ) -> Fenced | Outranked:
        """Put our epoch into the chain.

        Args:
            session: The session.
            epoch: Ours.
            holder: Ours.
            base: The manifest as it was read, at any time: what it is now decides.
            note: Told of the manifest that is fenced, before the fence is sent.
            is_ours: Says whether the record is still ours; asked when the manifest moved.

        Raises:
            OwnershipLostError: The record is no longer ours.
            CorruptDataError, UnsupportedFormatError: The manifest cannot be read; nothing is written.
            UnavailableError: It moves again and again.
            SessionFSError: The store does not answer.
        """
        for _ in range(_ROUNDS):
            manifest = base.manifest
            if manifest is not None and manifest.epoch >= epoch:
                if (manifest.epoch, manifest.holder) != (epoch, holder):
                    return Outranked(manifest.epoch)
                # An attempt of this very acquisition that was not seen to arrive.
                return Fenced(manifest, base.token)
            note(base)
            ours = self._fencing(session, base, epoch, holder)
            token = await self._send(session, ours, base)
            if token:
                return Fenced(ours, token)
            if not await is_ours():
                raise OwnershipLostError(f"session {session} was taken over while it was claimed")
            base = await self.read(session)
        raise UnavailableError(f"the manifest of session {session} changes all the time", remedy="try again")

    def _fencing(self, session: SessionId, base: Base, epoch: int, holder: str) -> Manifest:
        if base.manifest is None:
            return Manifest(
                session,
                0,
                created_at=utc_text(self._clock.wall_ns()),
                trigger="claim",
                epoch=epoch,
                holder=holder,
                recovery=self._recovery,
            )
        return replace(base.manifest, session=session, epoch=epoch, holder=holder, format=manifests.FORMAT)

    async def _send(self, session: SessionId, ours: Manifest, base: Base) -> str:
        """Send a fence; give its token, "" when it is not seen to have landed."""
        raw, encoding = await trio.to_thread.run_sync(manifests.encode, ours)
        condition: Condition = IfMatch(Token(base.token)) if base.token else IfAbsent()
        write_id = self._clock.unique_id()
        metadata = ObjectMetadata({"sessionfs-write": write_id}, "application/json", encoding)
        try:
            outcome = await self._store.put(
                keys.manifest_key(session), raw, condition=condition, metadata=metadata, urgent=True
            )
        except ConcurrentRequestError:
            await trio.sleep(self._clock.jitter())
            return ""
        return outcome.token if isinstance(outcome, Landed) else ""
