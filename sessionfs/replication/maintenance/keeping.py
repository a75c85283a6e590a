"""Copy before overwrite, for work that has no journal: what the newest generation names of a live object is kept by its content first.

Only the newest generation need be known: what older ones name is kept already, or begins what the newest names. Bytes that no generation names
(another tool's, or a dead owner's last ones) go beside the session, below ``.conflicts/``: nothing is dropped.
"""

from __future__ import annotations

import hashlib
import itertools
import stat

import trio

from sessionfs.formats import content_alias, object_metadata
from sessionfs.formats.content_alias import ContentAlias
from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import OwnershipLostError, PreconditionFailedError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.named_content import is_content, sha256_of
from sessionfs.replication.maintenance.patient_store import PatientStore
from sessionfs.replication.trio_store import READ_TRIES, Landed
from sessionfs.replication.uploads.conflicts import aside_copy
from sessionfs.stores.base import ByteRange, IfAbsent, ObjectStat, Unconditional

_RANGE_BYTES = 8 << 20


class Keeping:
    """Keeps live objects before they are replaced or removed.

    Args:
        patient: Sends requests.
        clock: Stamps of what goes beside the session.
        session: Whose objects they are.
        epoch: The owner's; an object of a later one means that it is none any more.
    """

    def __init__(self, patient: PatientStore, clock: Clock, session: SessionId, epoch: int) -> None:
        self._patient = patient
        self._clock = clock
        self._session = session
        self._epoch = epoch

    async def keep(self, listed: ObjectStat, named: ManifestEntry | None) -> ObjectStat | None:
        """Keep a live object's bytes in another place.

        Args:
            listed: The object, from a listing.
            named: The newest generation's entry of its path.

        Returns:
            The object whose bytes are kept now, to be replaced on the condition that it is still there; None when nothing is there any more.

        Raises:
            OwnershipLostError: A later owner wrote it.
            PreconditionFailedError: It changed meanwhile.
            SessionFSError: The store refused, or did not answer.
        """
        if (
            named is not None
            and named.sha256
            and (listed.token, listed.size_bytes) == (named.token, named.size_bytes)
        ):
            await self._copy(listed, named.sha256)
            return listed
        found = await self._patient.store.head(listed.key, tries=READ_TRIES)
        if found is None:
            return None
        self._require_ours(found)
        if found.key.endswith("/") and not found.size_bytes:
            return found
        if named is not None and is_content(found, named):
            await self._copy(found, named.sha256)
        elif named is None or not await self._keep_prefix(found, named):
            await self._keep_aside(found)
        return found

    def _require_ours(self, found: ObjectStat) -> None:
        epoch = object_metadata.decode_provenance(found.metadata.user).epoch if found.metadata else 0
        if epoch > self._epoch:
            raise OwnershipLostError(
                f"{found.key} was written by a later owner of session {self._session}",
                remedy="run the command again when that owner has released it",
            )

    async def _copy(self, found: ObjectStat, sha256: str) -> None:
        outcome = await self._patient.copy(
            found.key,
            keys.content_key(self._session, sha256),
            source_token=found.token,
            condition=Unconditional(),
            metadata=self._patient.content_metadata(sha256, epoch=self._epoch),
        )
        if not isinstance(outcome, Landed):
            raise PreconditionFailedError(
                f"{found.key} was changed by somebody else meanwhile", remedy="run it again"
            )

    async def _keep_prefix(self, found: ObjectStat, named: ManifestEntry) -> bool:
        """Keep an object that begins with what the newest generation names, and the alias that says so."""
        grown = found.size_bytes > named.size_bytes or not sha256_of(found)
        if (
            not stat.S_ISREG(named.mode)
            or not named.sha256
            or not grown
            or found.size_bytes < named.size_bytes
        ):
            return False
        prefix, whole = await self._sums(found, named.size_bytes)
        if prefix != named.sha256:
            return False
        await self._copy(found, whole)
        if whole != named.sha256:
            await self._patient.put(
                keys.alias_key(self._session, named.sha256),
                content_alias.encode(ContentAlias(whole, named.size_bytes)),
                condition=Unconditional(),
                metadata=self._patient.record_metadata(),
            )
        return True

    async def _sums(self, found: ObjectStat, prefix_bytes: int) -> tuple[str, str]:
        """Hash an object's first bytes and all of them, a range at a time."""
        digest = hashlib.sha256()
        prefix = ""
        edges = sorted({*range(0, found.size_bytes, _RANGE_BYTES), prefix_bytes, found.size_bytes})
        for start, end in itertools.pairwise(edges):
            if start == prefix_bytes:
                prefix = digest.hexdigest()
            raw = await self._patient.store.read(
                found.key, byte_range=ByteRange(start, end), expected=found.token, tries=READ_TRIES
            )
            await trio.to_thread.run_sync(digest.update, raw)
        whole = digest.hexdigest()
        return prefix if prefix_bytes < found.size_bytes else whole, whole

    async def _keep_aside(self, found: ObjectStat) -> None:
        plan = aside_copy(found.key, found, self._clock)
        outcome = await self._patient.copy(
            found.key,
            plan.target,
            source_token=found.token,
            condition=IfAbsent(),
            metadata=plan.metadata,
        )
        if not isinstance(outcome, Landed):
            raise PreconditionFailedError(f"{found.key} could not be kept aside", remedy="run it again")
