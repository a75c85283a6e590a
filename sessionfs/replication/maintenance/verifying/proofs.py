"""What objects really hold: the sums of their first bytes, at every length that some manifest names.

An object is read once, a range at a time, pinned to the token it was listed with. The quick form believes what metadata says, and that a longer
object begins as it should.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import trio

from sessionfs.formats import object_metadata
from sessionfs.model.errors import ObjectNotFoundError, PreconditionFailedError
from sessionfs.replication.hydration.named_content import EMPTY_SHA256
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.stores.base import ByteRange, ObjectStat

_RANGE_BYTES = 8 << 20
Wanted = Mapping[int, set[str]]
"""Sums that are looked for, by length."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One object.

    Attributes:
        key: Its key.
        token: Which state of it.
        size_bytes: Length.
        whole: sha256 of all of it; in the quick form what its metadata says, "" when that says nothing.
        stated: sha256 in its metadata, "" for another tool's.
        epoch: In its metadata.
        prefixes: The sums of its first bytes at the wanted lengths, with those lengths.
    """

    key: str
    token: str
    size_bytes: int
    whole: str
    stated: str
    epoch: int
    prefixes: Mapping[str, int]

    def holds(self, sha256: str) -> bool:
        """Whether it is, or begins with, these bytes."""
        return sha256 in self.prefixes or sha256 == self.whole


class Prover:
    """Looks at objects.

    Args:
        store: The bucket.
        is_quick: Believe metadata.
    """

    def __init__(self, store: TrioStore, *, is_quick: bool) -> None:
        self._store = store
        self._is_quick = is_quick

    async def prove(self, listed: ObjectStat, wanted: Wanted) -> Proof | None:
        """Look at an object; None when it changed or went while it was looked at.

        Raises:
            UnavailableError, AccessError: Nothing is known.
        """
        try:
            return await (self._headed(listed, wanted) if self._is_quick else self._hashed(listed, wanted))
        except (ObjectNotFoundError, PreconditionFailedError):
            return None

    async def _headed(self, listed: ObjectStat, wanted: Wanted) -> Proof | None:
        found = await self._store.head(listed.key, tries=READ_TRIES)
        if found is None or found.token != listed.token:
            return None
        provenance = object_metadata.decode_provenance(found.metadata.user if found.metadata else {})
        shorter = {
            sha256: size for size, sums in wanted.items() for sha256 in sums if size < found.size_bytes
        }
        return Proof(
            found.key,
            found.token,
            found.size_bytes,
            provenance.sha256,
            provenance.sha256,
            provenance.epoch,
            shorter,
        )

    async def _hashed(self, listed: ObjectStat, wanted: Wanted) -> Proof:
        digest = hashlib.sha256()
        prefixes: dict[str, int] = {EMPTY_SHA256: 0}
        lengths = {size for size in wanted if 0 < size <= listed.size_bytes}
        edges = sorted({*range(0, listed.size_bytes, _RANGE_BYTES), *lengths, listed.size_bytes, 0})
        stated: ObjectStat | None = None
        for start, end in itertools.pairwise(edges):
            stated, raw = await self._store.read_with_stat(
                listed.key, byte_range=ByteRange(start, end), expected=listed.token, tries=READ_TRIES
            )
            await trio.to_thread.run_sync(digest.update, raw)
            if end in lengths:
                prefixes[digest.hexdigest()] = end
        if stated is None or stated.metadata is None:
            stated = await self._store.head(listed.key, tries=READ_TRIES)
        user = stated.metadata.user if stated is not None and stated.metadata is not None else {}
        provenance = object_metadata.decode_provenance(user)
        return Proof(
            listed.key,
            listed.token,
            listed.size_bytes,
            digest.hexdigest(),
            provenance.sha256,
            provenance.epoch,
            prefixes,
        )
