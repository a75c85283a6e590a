"""Changes of one object, each under a condition on what was seen of it: puts, appends, deletes, copies, done anew when another writer was faster.

* Nothing is replaced or removed that was not looked at: an attempt whose answer was lost and that arrives late meets a condition that does not hold
  any more.
* The write ids of such attempts are remembered for the length of a call: when one of them is what is there, it landed.
* A call that fails after such an attempt has an outcome that nobody knows, and says so: repeating it might do it twice.
"""

from __future__ import annotations

import hashlib
import os
import stat as modes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sessionfs.formats import object_metadata
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AlreadyExistsError,
    ConcurrentRequestError,
    NotFoundError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import READ_TRIES, Landed, Moved, NotLanded, TrioStore, write_id_of
from sessionfs.replication.uploads.key_upload import content_type_of
from sessionfs.sessions.named_bytes import NamedBytes
from sessionfs.stores.base import Condition, IfAbsent, IfMatch, ObjectMetadata, ObjectStat, Token

ATTEMPTS = 50
"""How often a change is done anew because others won; each time another one got through."""
_SMALL_BYTES = 64 << 10
"""A body up to this is sent to a key that nobody looked at, in the hope that it is new."""


class Attempts:
    """The attempts of one call whose answers were lost."""

    def __init__(self) -> None:
        self._sent: set[str] = set()

    def note(self, metadata: ObjectMetadata) -> None:
        """An attempt was sent, is not there, and may arrive later."""
        self._sent.add(metadata.user["sessionfs-write"])

    def is_one(self, found: ObjectStat | None) -> bool:
        """Whether what is there is one of them."""
        return found is not None and write_id_of(found) in self._sent

    @contextmanager
    def known(self, what: str) -> Iterator[None]:
        """Let a failure say what it leaves open.

        Raises:
            OutcomeUnknownError: The store did not answer, after an attempt that may still arrive.
        """
        try:
            yield
        except UnavailableError as problem:
            if not self._sent:
                raise
            raise OutcomeUnknownError(
                f"{what} may have been done: {problem.message}", remedy="look first"
            ) from problem


class ObjectChanges:
    """Changes objects of one session.

    Args:
        session: Whose.
        store: The bucket.
        clock: Times and names of attempts.
        named: Keeps what generations name.
        epoch: Gives the epoch under which this host owns the session, 0 while it does not.
    """

    def __init__(
        self,
        session: SessionId,
        store: TrioStore,
        clock: Clock,
        named: NamedBytes,
        *,
        epoch: Callable[[], int],
    ) -> None:
        self._session = session
        self._store = store
        self._clock = clock
        self._named = named
        self._epoch = epoch
        self._seen: dict[str, Token] = {}

    def forget(self, key: str) -> None:
        """Look at a key before it is changed the next time."""
        self._seen.pop(key, None)

    def note(self, key: str, token: Token) -> None:
        """What was seen of a key last: so the next change may be tried without a look."""
        self._seen[key] = token

    async def put(
        self, key: str, path: bytes, body: bytes, metadata: Callable[[], ObjectMetadata]
    ) -> tuple[Token, ObjectMetadata]:
        """Replace an object, or make it.

        Args:
            key: The key.
            path: Its path, for what generations name.
            body: The bytes.
            metadata: Gives metadata with a write id of its own for each attempt.
        """
        attempts = Attempts()
        with attempts.known(f"the write of {key!r}"):
            condition: Condition | None = self._guess(key, len(body))
            for _ in range(ATTEMPTS):
                if condition is None:
                    condition = await self._condition(key)
                if isinstance(condition, IfMatch):
                    await self._keep(key, path, condition.token)
                sent = metadata()
                outcome = await self._sent(key, body, condition, sent, attempts)
                if isinstance(outcome, Landed):
                    self.note(key, outcome.token)
                    return outcome.token, sent
                # What an earlier attempt left is ours to replace like anything else.
                self.forget(key)
                condition = None
        raise self._contended(key)

    async def put_new(
        self, key: str, body: bytes, metadata: Callable[[], ObjectMetadata]
    ) -> tuple[Token, ObjectMetadata]:
        """Make an object.

        Raises:
            AlreadyExistsError: There is one.
        """
        return await self._put_once(key, body, IfAbsent(), metadata)

    async def put_over(
        self, key: str, path: bytes, body: bytes, base: Token, metadata: Callable[[], ObjectMetadata]
    ) -> tuple[Token, ObjectMetadata]:
        """Replace an object that is still the one that was seen.

        Raises:
            PreconditionFailedError: It is another, or gone.
        """
        await self._keep(key, path, base)
        return await self._put_once(key, body, IfMatch(base), metadata)

    async def _put_once(
        self, key: str, body: bytes, condition: Condition, metadata: Callable[[], ObjectMetadata]
    ) -> tuple[Token, ObjectMetadata]:
        attempts = Attempts()
        with attempts.known(f"the write of {key!r}"):
            for _ in range(ATTEMPTS):
                sent = metadata()
                outcome = await self._sent(key, body, condition, sent, attempts)
                if (
                    isinstance(outcome, Moved)
                    and attempts.is_one(outcome.found)
                    and outcome.found is not None
                ):
                    outcome = Landed(outcome.found.token)
                if isinstance(outcome, Landed):
                    self.note(key, outcome.token)
                    return outcome.token, sent
                if isinstance(outcome, Moved):
                    self.forget(key)
                    if isinstance(condition, IfAbsent):
                        raise AlreadyExistsError(f"{key!r} is there already")
                    raise PreconditionFailedError(f"{key!r} was changed by somebody else")
        raise self._contended(key)

    async def append(self, key: str, tail: bytes, base: Token | None) -> ObjectStat:
        """Add to an object as it is then, or to `base` only.

        Raises:
            PreconditionFailedError: It is not `base`.
        """
        attempts = Attempts()
        with attempts.known(f"the append to {key!r}"):
            for _ in range(ATTEMPTS):
                live = await self._store.head(key, tries=READ_TRIES)
                if live is not None and attempts.is_one(live):
                    return self._noted(live)
                if base is not None and (live is None or live.token != base):
                    raise PreconditionFailedError(f"{key!r} was changed by somebody else")
                found = await self._append_once(key, live, tail, attempts)
                if found is not None:
                    return self._noted(found)
        raise self._contended(key)

    def _noted(self, found: ObjectStat) -> ObjectStat:
        self.note(found.key, found.token)
        return found

    async def _append_once(
        self, key: str, live: ObjectStat | None, tail: bytes, attempts: Attempts
    ) -> ObjectStat | None:
        can = self._store.capabilities
        if live is not None and can.append_by_copy and live.size_bytes >= can.minimum_part_bytes:
            metadata = self.metadata(key, "", like=live)
            outcome: Landed | NotLanded | Moved | None
            try:
                outcome = await self._store.append(
                    key, iter((tail,)), base=live, metadata=metadata, before_complete=_go_on
                )
            except ConcurrentRequestError:
                return None
            size_bytes = live.size_bytes + len(tail)
        else:
            before = b""
            if live is not None:
                try:
                    before = await self._store.read(key, expected=live.token, tries=READ_TRIES)
                except (ObjectNotFoundError, PreconditionFailedError):
                    return None
            body = before + tail
            metadata = self.metadata(key, hashlib.sha256(body).hexdigest(), like=live)
            condition = IfMatch(live.token) if live is not None else IfAbsent()
            outcome = await self._sent(key, body, condition, metadata, attempts)
            size_bytes = len(body)
        if isinstance(outcome, NotLanded):
            attempts.note(metadata)
        if not isinstance(outcome, Landed):
            return None
        return ObjectStat(key, size_bytes, outcome.token, self._clock.wall_ns(), metadata)

    async def delete(self, key: str, path: bytes | None) -> None:
        """Remove an object, whatever it is by then.

        Args:
            key: The key.
            path: Its path, for what generations name; None when no path has the key.
        """
        self.forget(key)
        for _ in range(ATTEMPTS):
            live = await self._store.head(key, tries=READ_TRIES)
            if live is None:
                return
            if path is not None:
                await self._named.keep(self._session, path, live, is_owned=self._epoch() > 0)
            if await self._deleted(live) is not None:
                return
        raise self._contended(key)

    async def rename(self, key: str, target: str, path: bytes, new: bytes) -> None:
        """Copy on the server, then delete what was copied, and only that.

        Raises:
            NotFoundError: There is nothing.
        """
        self.forget(key)
        self.forget(target)
        ours: Token | None = None
        for _ in range(ATTEMPTS):
            live = await self._store.head(key, tries=READ_TRIES)
            if live is None and ours is None:
                raise NotFoundError(f"there is no {key!r}")
            if live is None:
                return
            condition = await self._condition(target)
            if isinstance(condition, IfMatch) and condition.token != ours:
                await self._keep(target, new, condition.token)
            ours = await self._copied(live, target, condition)
            if ours is None:
                continue
            await self._named.keep(self._session, path, live, is_owned=self._epoch() > 0)
            if await self._deleted(live) is not None:
                return
        raise self._contended(key)

    async def _copied(self, live: ObjectStat, target: str, condition: Condition) -> Token | None:
        metadata = live.metadata or ObjectMetadata()
        user = {**metadata.user, "sessionfs-write": self._clock.unique_id()}
        copied = ObjectMetadata(user, metadata.content_type, metadata.content_encoding)
        try:
            outcome = await self._store.copy(
                live.key, target, source_token=live.token, condition=condition, metadata=copied
            )
        except ConcurrentRequestError:
            return None
        return outcome.token if isinstance(outcome, Landed) else None

    async def _deleted(self, live: ObjectStat) -> bool | None:
        """Delete what was seen; None when something else is there."""
        for _ in range(ATTEMPTS):
            try:
                outcome = await self._store.delete(live.key, condition=IfMatch(live.token))
            except ConcurrentRequestError:
                continue
            if isinstance(outcome, Landed):
                return True
            if isinstance(outcome, Moved):
                return None
        raise self._contended(live.key)

    # --- how

    def metadata(
        self,
        key: str,
        sha256: str,
        *,
        kind: int = modes.S_IFREG,
        mode: int = 0o644,
        like: ObjectStat | None = None,
    ) -> ObjectMetadata:
        """Give the metadata of a new attempt.

        Args:
            key: The object's key.
            sha256: Of the bytes, "" when not known.
            kind: Type bits.
            mode: Permission bits.
            like: The object that grows: whose it is and who may read it stays.
        """
        now_ns = self._clock.wall_ns()
        attributes = FileAttributes(kind | mode, os.geteuid(), os.getegid(), now_ns)
        lineage, content_type = "", content_type_of(key, kind | mode)
        if like is not None and like.metadata is not None:
            old = object_metadata.decode_attributes(
                like.metadata.user, modified_ns=now_ns, is_directory=False
            )
            attributes = FileAttributes(old.mode, old.uid, old.gid, now_ns)
            lineage = object_metadata.decode_provenance(like.metadata.user).lineage
            content_type = like.metadata.content_type
        provenance = Provenance(
            sha256, self._clock.unique_id(), self._epoch(), lineage or self._clock.unique_id()
        )
        return ObjectMetadata(object_metadata.encode(attributes, provenance), content_type)

    def _guess(self, key: str, size_bytes: int) -> Condition | None:
        """A condition for a first attempt without a look; None to look."""
        if key in self._seen:
            return IfMatch(self._seen[key])
        return IfAbsent() if size_bytes <= _SMALL_BYTES else None

    async def _condition(self, key: str) -> Condition:
        live = await self._store.head(key, tries=READ_TRIES)
        return IfAbsent() if live is None else IfMatch(live.token)

    async def _keep(self, key: str, path: bytes, token: Token) -> None:
        """Keep what a generation names of a key, before what was seen of it is replaced."""
        if not await self._named.names(self._session, path, is_owned=self._epoch() > 0):
            return
        live = await self._store.head(key, tries=READ_TRIES)
        if live is not None and live.token == token:
            await self._named.keep(self._session, path, live, is_owned=self._epoch() > 0)

    async def _sent(
        self, key: str, body: bytes, condition: Condition, metadata: ObjectMetadata, attempts: Attempts
    ) -> Landed | NotLanded | Moved | None:
        """Send a put; None when the store was busy with the key."""
        try:
            outcome = await self._store.put(key, body, condition=condition, metadata=metadata)
        except ConcurrentRequestError:
            return None
        if isinstance(outcome, NotLanded):
            attempts.note(metadata)
        return outcome

    def _contended(self, key: str) -> UnavailableError:
        return UnavailableError(f"{key!r} is changed all the time by others", remedy="try again")


def _go_on() -> None:
    """Let an upload complete."""
