"""Reads objects of other tools, which have no sha256, once: a generation names content, and this is the name.

Without it the generation would name nothing but a token, and its bytes could not be found again after the object was copied aside.
"""

from __future__ import annotations

import os
from dataclasses import replace

import structlog
import trio

from sessionfs.model import names
from sessionfs.model.clock import Clock
from sessionfs.model.errors import NotFoundError, PreconditionFailedError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.commit.frozen_bytes import Measured
from sessionfs.replication.commit.held_keys import BusyError, HeldKey
from sessionfs.replication.commit.noting import Noted
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.replication.uploader import Uploader
from sessionfs.replication.uploads.stable_image import measure_image
from sessionfs.stores.base import Token
from sessionfs.working_copy.known_content import KnownObject
from sessionfs.working_copy.layout import StateLayout
from sessionfs.working_copy.upload_journal import UploadJournal

_CONCURRENT = 4
_log = structlog.get_logger("sessionfs.commit")


class Hashing:
    """Hashes objects.

    Args:
        journal: Remembers what was hashed.
        store: Has them.
        layout: Where they are read to.
        clock: Names of what is read.
        uploader: Leaves a key alone meanwhile.
    """

    def __init__(
        self, journal: UploadJournal, store: TrioStore, layout: StateLayout, clock: Clock, uploader: Uploader
    ) -> None:
        self._journal = journal
        self._store = store
        self._layout = layout
        self._clock = clock
        self._uploader = uploader

    async def hash_all(self, session: SessionId, noted: list[Noted]) -> list[Noted]:
        """Give what was noted with the sums of all contents.

        Raises:
            UnavailableError: An object was changed meanwhile, or the store does not answer.
            AccessError: As it says.
            OSError: This host's disk refused.
        """
        found: dict[bytes, KnownObject] = {}

        async def one(path: Noted, known: KnownObject) -> None:
            try:
                async with HeldKey(self._uploader, known.key):
                    found[path.path] = await self.hash_object(known)
            except (BusyError, NotFoundError, PreconditionFailedError):
                raise UnavailableError(
                    f"{session}/{names.display(path.path)} was changed while it was committed",
                    remedy="commit again",
                ) from None

        unhashed = [(path, path.known) for path in noted if path.known is not None and _lacks_sum(path)]
        if not unhashed:
            return noted
        _log.info("objects of other tools are hashed", session=session, objects=len(unhashed))
        await for_each(unhashed, lambda pair: one(*pair), limit=_CONCURRENT)
        return [replace(path, known=found[path.path]) if path.path in found else path for path in noted]

    async def hash_object(self, known: KnownObject) -> KnownObject:
        """Give an object with its sum, and name it; its key is held by the caller.

        Raises:
            ObjectNotFoundError, PreconditionFailedError: It is gone, or another by now.
            UnavailableError, AccessError: The store does not give it.
            OSError: This host's disk refused.
        """
        now = self._journal.object(known.key)
        if now is not None and now.token == known.token and now.sha256:
            return now
        measured = await self._measure(known)
        made = replace(known, sha256=measured.sha256)
        with self._journal.transaction():
            node = self._journal.node(known.number) if known.number else None
            if node is not None and not node.sha256:
                self._journal.update_node(known.number, sha256=measured.sha256)
            if measured.blocks:
                self._journal.put_blocks(measured.sha256, measured.blocks)
            self._journal.put_object(made)
            self._journal.name_object(made.key)
        return made

    async def _measure(self, known: KnownObject) -> Measured:
        path = os.path.join(self._layout.staging, f"hash-{self._clock.unique_id()}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.unlink(path)
            await self._store.download(known.key, descriptor, expected=Token(known.token), tries=READ_TRIES)
            return Measured(*await trio.to_thread.run_sync(measure_image, descriptor))
        finally:
            os.close(descriptor)


def _lacks_sum(one: Noted) -> bool:
    return one.is_regular and one.known is not None and not one.known.sha256 and one.known.size_bytes > 0
