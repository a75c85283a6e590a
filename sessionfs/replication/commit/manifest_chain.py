"""The chain of manifests: one writer, one line, no number twice.

Order, which is the promise: ``<n>.json`` (only if absent; a taken number is skipped), ``manifest.json`` (only if it is the one that this host's
fence, or its last commit, left there: **the commit point**), then the marker, which may lag. The manifest is never read again to try once more:
whatever else is found there was written by a later owner, and this host owns the session no longer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import trio

from sessionfs.formats import commit_marker
from sessionfs.formats import manifest as manifests
from sessionfs.formats.commit_marker import CommitMarker
from sessionfs.formats.manifest import Manifest
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    ConcurrentRequestError,
    OutcomeUnknownError,
    OwnershipLostError,
    PreconditionFailedError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.retry_policy import backoff_seconds
from sessionfs.replication.trio_store import READ_TRIES, Landed, Moved, NotLanded, TrioStore, write_id_of
from sessionfs.stores.base import (
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStat,
    Token,
    Unconditional,
)

_TRIES = 4
_NUMBER_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Published:
    """A committed generation.

    Attributes:
        manifest: As it was written under its number.
        token: Of ``manifest.json``: the condition of the next commit.
        sha256: Of the stored bytes.
    """

    manifest: Manifest
    token: str
    sha256: str


class EarlierCommitError(Exception):
    """A commit of this process that was given up has arrived after all: the chain goes on from there.

    Attributes:
        found: The manifest's object.
    """

    def __init__(self, found: ObjectStat) -> None:
        super().__init__(found.key)
        self.found = found


class ManifestChain:
    """Writes manifests.

    Args:
        store: The bucket.
        clock: Names of attempts.
        settings: How long to wait between tries.
    """

    def __init__(self, store: TrioStore, clock: Clock, settings: ReplicationSettings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._sent: dict[str, set[str]] = {}

    async def publish(self, body: Manifest, base_token: str) -> Published:
        """Commit a generation.

        Args:
            body: Its manifest; the number is the first that may be free.
            base_token: Of the ``manifest.json`` that this host knows, "" when it knows that there is none.

        Raises:
            EarlierCommitError: One that was thought lost is there; this one is not committed.
            OwnershipLostError: Somebody else wrote ``manifest.json`` since; nothing is committed.
            UnavailableError, AccessError, OutcomeUnknownError: Not committed, as far as is known.
        """
        session = SessionId(body.session)
        numbered, raw, encoding = await self._put_number(session, body)
        condition: Condition = IfMatch(Token(base_token)) if base_token else IfAbsent()
        write_id = self._clock.unique_id()
        self._sent.setdefault(session, set()).add(write_id)
        outcome = await self._put(keys.manifest_key(session), raw, condition, encoding, write_id)
        if isinstance(outcome, Moved):
            if outcome.found is not None and write_id_of(outcome.found) in self._sent[session]:
                raise EarlierCommitError(outcome.found)
            raise OwnershipLostError(
                f"session {session} was taken over by another host: its manifest is not the one this host left",
                remedy="what this host still owed is listed by `sessionfs conflicts`",
            )
        if not isinstance(outcome, Landed):
            raise OutcomeUnknownError(f"the manifest of session {session} was sent, and not seen to arrive")
        self._sent[session].clear()
        return Published(numbered, outcome.token, hashlib.sha256(raw).hexdigest())

    async def read_found(self, found: ObjectStat) -> Manifest:
        """Read the manifest of an earlier commit that has arrived.

        Raises:
            PreconditionFailedError: It is another by now.
            SessionFSError: The store did not answer.
        """
        raw = await self._store.read(found.key, expected=found.token, tries=READ_TRIES)
        return await trio.to_thread.run_sync(manifests.decode, raw, found.key)

    async def put_marker(self, marker: CommitMarker) -> None:
        """Write the marker of a commit.

        Raises:
            SessionFSError: The store refused or did not answer: the marker lags.
        """
        key = keys.commit_marker_key(SessionId(marker.session))
        await self._put(key, commit_marker.encode(marker), Unconditional(), "")

    async def _put_number(self, session: SessionId, body: Manifest) -> tuple[Manifest, bytes, str]:
        """Write ``<n>.json`` under the first free number from the body's on; numbers may have gaps."""
        for number in range(max(1, body.generation), body.generation + _NUMBER_TRIES):
            numbered = replace(body, generation=number)
            raw, encoding = await trio.to_thread.run_sync(manifests.encode, numbered)
            outcome = await self._put(keys.generation_key(session, number), raw, IfAbsent(), encoding)
            if isinstance(outcome, Landed):
                return numbered, raw, encoding
        raise PreconditionFailedError(f"session {session} has no free generation number")

    async def _put(
        self, key: str, raw: bytes, condition: Condition, encoding: str, write_id: str = ""
    ) -> Landed | NotLanded | Moved:
        """Put; every try has the same write id, so that one that arrives late counts as this one."""
        metadata = ObjectMetadata(
            {"sessionfs-write": write_id or self._clock.unique_id()}, "application/json", encoding
        )
        outcome: Landed | NotLanded | Moved = NotLanded()
        for tries in range(1, _TRIES + 1):
            try:
                outcome = await self._store.put(key, raw, condition=condition, metadata=metadata)
            except ConcurrentRequestError:
                outcome = NotLanded()
            if not isinstance(outcome, NotLanded):
                return outcome
            await trio.sleep(backoff_seconds(tries, self._settings, self._clock))
        return outcome
