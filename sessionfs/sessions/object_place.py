"""Sessions straight in a bucket, or in a directory store of this host: without a mount, a working copy or a journal.

What is written is in the bucket when the call returns. Nobody needs to own a session to write it: writers take turns by conditional puts, as any
tool of an operator would. Whoever claims one keeps others out who ask, mounts among them, and loses it as a mount does.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from sessionfs.model import keys, roots
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    ConcurrentRequestError,
    InvalidRequestError,
    ObjectNotFoundError,
    OwnershipLostError,
    SessionFSError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.model.settings import ReplicationSettings
from sessionfs.replication.hydration.fan_out import for_each
from sessionfs.replication.maintenance.command_ownership import CommandOwnership, command_ownership
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore
from sessionfs.sessions.named_bytes import NamedBytes
from sessionfs.sessions.object_files import ObjectFiles
from sessionfs.sessions.port import SessionPlace
from sessionfs.stores.base import IfAbsent, IfMatch, ObjectMetadata, ObjectStore
from sessionfs.stores.local_directory import LocalDirectoryStore

INDEX_KEY = "sessions.json"
_ATTEMPTS = 20
_CONCURRENT = 16


class ObjectPlace(SessionPlace):
    """A bucket. Opened by `open_object_place`.

    Args:
        store: The bucket.
        clock: Times and names.
        ownership: Who we are when a session is claimed.
        local: The same store when it is a directory of this host.
    """

    def __init__(
        self,
        store: TrioStore,
        clock: Clock,
        ownership: CommandOwnership,
        *,
        local: LocalDirectoryStore | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ownership = ownership
        self._local = local
        self._named = NamedBytes(store)
        self._epochs: dict[SessionId, int] = {}
        self._files: dict[SessionId, ObjectFiles] = {}
        self._claimed_once: set[str] = set()
        guard = store.guard

        def guard_claimed(key: str) -> None:
            # Whoever let a session go, or lost it, writes into it again when it was claimed again.
            if keys.session_of_key(key) in self._claimed_once:
                guard(key)

        store.guard = guard_claimed

    @property
    def store(self) -> TrioStore:
        """The bucket."""
        return self._store

    def files(self, session: SessionId) -> ObjectFiles:
        """Give the files of a session, which need not exist yet."""
        if session not in self._files:
            self._files[session] = ObjectFiles(
                session, self._store, self._clock, self._named,
                epoch=lambda: self._epochs.get(session, 0), local=self._local,
            )  # fmt: skip
        return self._files[session]

    async def list_sessions(self) -> list[SessionId]:
        """Name the sessions that have an object."""
        _, prefixes = await self._store.list_all(keys.SESSIONS_PREFIX, whole_segments=True)
        found = (keys.session_of_prefix(prefix) for prefix in prefixes)
        return sorted(session for session in found if session is not None)

    async def remove_session(self, session: SessionId) -> None:
        """Delete every object of a session, the deepest markers last; what a generation names is kept."""
        is_claimed_for_this = session in self._claimed_once and session not in self._epochs
        if is_claimed_for_this:
            await self.claim(session)
        try:
            await self._remove_all(session)
        finally:
            if is_claimed_for_this:
                with trio.CancelScope(shield=True):
                    await self.release(session)

    async def _remove_all(self, session: SessionId) -> None:
        files = self.files(session)
        found, _ = await self._store.list_all(keys.session_prefix(session), whole_segments=False)
        await for_each(
            [one.key for one in found if not one.key.endswith("/")], files.remove_key, limit=_CONCURRENT
        )
        markers = sorted((one.key for one in found if one.key.endswith("/")), key=len, reverse=True)
        for marker in markers:
            await files.remove_key(marker)
        self._files.pop(session, None)

    async def read_index(self) -> bytes | None:
        """Read ``sessions.json``."""
        try:
            return await self._store.read(INDEX_KEY, tries=READ_TRIES)
        except ObjectNotFoundError:
            return None

    async def write_index(self, body: bytes) -> None:
        """Replace ``sessions.json``; of two writers the later one stays."""
        for _ in range(_ATTEMPTS):
            metadata = ObjectMetadata({"sessionfs-write": self._clock.unique_id()}, "application/json")
            found = await self._store.head(INDEX_KEY, tries=READ_TRIES)
            # A late attempt meets a condition that does not hold any more.
            condition = IfAbsent() if found is None else IfMatch(found.token)
            outcome = await self._put(INDEX_KEY, body, condition, metadata)
            if outcome:
                return
        raise UnavailableError("sessions.json could not be written", remedy="try again")

    async def set_index_aside(self, stamp_seconds: int) -> str | None:
        """Copy it to the first free stamp, then delete it: a crash between leaves both."""
        for _ in range(_ATTEMPTS):
            found = await self._store.head(INDEX_KEY, tries=READ_TRIES)
            if found is None:
                return None
            stamp = max(stamp_seconds, await self._last_stamp() + 1)
            aside = f"{INDEX_KEY}.corrupt-{stamp}"
            try:
                outcome = await self._store.copy(
                    INDEX_KEY, aside, source_token=found.token, condition=IfAbsent(),
                    metadata=ObjectMetadata({"sessionfs-write": self._clock.unique_id()}),
                )  # fmt: skip
                if isinstance(outcome, Landed):
                    gone = await self._store.delete(INDEX_KEY, condition=IfMatch(found.token))
                    if isinstance(gone, Landed):
                        return aside
            except ConcurrentRequestError:
                continue
        raise UnavailableError("sessions.json is changed all the time by others", remedy="try again")

    async def claim(self, session: SessionId, *, force: bool = False) -> None:
        """Own a session, as a mount does."""
        if session in self._epochs and self._ownership.may_change(session):
            return
        # A record that was written is known to have been: else nobody would give it back.
        with trio.CancelScope(shield=True):
            claim = await self._ownership.claim(session, force=force)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            with trio.CancelScope(shield=True), suppress(SessionFSError):
                await self._let_go(session)
            raise
        self._named.forget(session)
        self._claimed_once.add(session)
        self._epochs[session] = claim.epoch

    async def release(self, session: SessionId) -> None:
        """Let others own it."""
        if session in self._epochs and not self._ownership.owns(session):
            del self._epochs[session]
            raise OwnershipLostError(f"session {roots.shown_id(session)} was taken by another owner")
        await self._let_go(session)
        self._epochs.pop(session, None)

    async def _let_go(self, session: SessionId) -> None:
        if self._ownership.owns(session):
            await self._ownership.release(session)

    def owns(self, session: SessionId) -> bool:
        """Whether a change of a session may be sent now under our claim."""
        return session in self._epochs and self._ownership.may_change(session)

    @property
    def makes_generations(self) -> bool:
        """None are made in the bucket itself."""
        return False

    async def commit(self, session: SessionId, trigger: str) -> int:
        """Refuse: generations are made where the working copy is."""
        del trigger
        raise InvalidRequestError(
            f"session {roots.shown_id(session)}: no generation is made in the bucket itself",
            remedy="open it mirrored, or through a mount",
        )

    async def release_all(self) -> None:
        """Let others own everything; what cannot be given back ends with the beats."""
        for session in list(self._epochs):
            with suppress(SessionFSError):
                await self.release(session)

    async def _put(
        self, key: str, body: bytes, condition: IfAbsent | IfMatch, metadata: ObjectMetadata
    ) -> bool:
        try:
            outcome = await self._store.put(key, body, condition=condition, metadata=metadata)
        except ConcurrentRequestError:
            return False
        return isinstance(outcome, Landed)

    async def _last_stamp(self) -> int:
        objects, _ = await self._store.list_all("", whole_segments=True)
        stamps = [one.key.removeprefix(f"{INDEX_KEY}.corrupt-") for one in objects]
        return max((int(stamp) for stamp in stamps if stamp.isdigit()), default=-1)


@asynccontextmanager
async def open_object_place(
    store: ObjectStore, clock: Clock, settings: ReplicationSettings | None = None
) -> AsyncIterator[ObjectPlace]:
    """Open a bucket for doors; at the end everything that is still claimed is released.

    Args:
        store: The bucket, with the capabilities that a probe found.
        clock: Times and names.
        settings: Concurrency, back-off and the lease; None for the defaults.

    Raises:
        NotFoundError: The bucket is not there.
    """
    wanted = settings or ReplicationSettings()
    trio_store = TrioStore(store, clock, wanted)
    local = store if isinstance(store, LocalDirectoryStore) else None
    async with command_ownership(trio_store, wanted, clock, host=socket.gethostname()) as ownership:
        place = ObjectPlace(trio_store, clock, ownership, local=local)
        try:
            yield place
        finally:
            with trio.CancelScope(shield=True):
                await place.release_all()
