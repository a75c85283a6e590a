"""The files of a session straight in the bucket: each an object under its own name, with the metadata that a mount gives it.

* A write is one put; what the newest generation names of the key is kept first (`named_bytes`).
* An append is a server-side copy with a tail where the store can and the file is long enough, else the whole file again under the token that was
  read; when another writer won, it is done again on what is there then: nobody's bytes are lost. A directory store appends in place.
* A lost answer is settled by the write id in the metadata, never by repeating blindly.
* The directories above a file get their markers once, as in a mount.
"""

from __future__ import annotations

import hashlib
import os
import stat as modes
from collections.abc import Callable

import trio

from sessionfs.formats import object_metadata
from sessionfs.formats.object_metadata import FileAttributes, Provenance
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AlreadyExistsError,
    ConcurrentRequestError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import READ_TRIES, Landed, Moved, NotLanded, TrioStore
from sessionfs.sessions.named_bytes import NamedBytes
from sessionfs.sessions.port import FileStat, SessionFiles, checked_path
from sessionfs.stores.base import (
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMetadata,
    ObjectStat,
    Token,
    Unconditional,
)
from sessionfs.stores.local_directory import LocalDirectoryStore

_ATTEMPTS = 50
"""How often a change is done anew because others won; each time another one got through."""
_WHOLE = 1 << 50
_OF_OTHER_BYTES = ("sessionfs-sha256", "sessionfs-write", "mtime")
"""User metadata that an append in place makes wrong: without it the file is read as one that another tool wrote."""


class ObjectFiles(SessionFiles):
    """Files of one session.

    Args:
        session: Whose.
        store: The bucket.
        clock: Times and names of attempts.
        named: Keeps what generations name.
        epoch: Gives the epoch under which this host owns the session, 0 while it does not.
        local: The same store when it is a directory of this host, for appends in place.
    """

    def __init__(
        self,
        session: SessionId,
        store: TrioStore,
        clock: Clock,
        named: NamedBytes,
        *,
        epoch: Callable[[], int],
        local: LocalDirectoryStore | None = None,
    ) -> None:
        self._session = session
        self._store = store
        self._clock = clock
        self._named = named
        self._epoch = epoch
        self._local = local
        self._markers: set[str] = set()

    @property
    def session(self) -> SessionId:
        """Whose files."""
        return self._session

    async def stat(self, path: str) -> FileStat:
        """Look at the object."""
        found = await self._store.head(self._key(path), tries=READ_TRIES)
        if found is None:
            raise self._missing(path)
        return _shown(path, found)

    async def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Read the object or a part of it; a whole one is compared with its sha256."""
        key = self._key(path)
        if start < 0 or (end is not None and end < 0):
            raise InvalidRequestError(f"range {start}..{end} of {path!r} is negative")
        if end is not None and end <= start:
            await self.stat(path)
            return b""
        part = ByteRange(start, _WHOLE if end is None else end) if start or end is not None else None
        try:
            found, body = await self._store.read_with_stat(key, byte_range=part, tries=READ_TRIES)
        except ObjectNotFoundError:
            raise self._missing(path) from None
        if part is None and found.metadata is not None:
            sha256 = object_metadata.decode_provenance(found.metadata.user).sha256
            if sha256 and hashlib.sha256(body).hexdigest() != sha256:
                raise CorruptDataError(
                    f"{key!r} has other bytes than its sha256 says", remedy="write it again"
                )
        return body

    async def write(
        self, path: str, body: bytes, *, is_private: bool = False, is_new: bool = False
    ) -> FileStat:
        """Put the object; what a generation names of it is kept first."""
        key = self._key(path)
        await self._make_directories(path)
        for _ in range(_ATTEMPTS):
            condition: Condition = IfAbsent()
            if not is_new:
                condition = await self._replacing(path, key)
            metadata = self._metadata(hashlib.sha256(body).hexdigest(), mode=0o600 if is_private else 0o644)
            outcome = await self._put(key, body, condition, metadata)
            if isinstance(outcome, Landed):
                return self._written(path, outcome.token, len(body), metadata)
            if is_new and isinstance(outcome, Moved):
                raise AlreadyExistsError(f"{path!r} of session {self._session} is there already")
        raise self._contended(path)

    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        """Add to the object as it is then."""
        key = self._key(path)
        if base is None or not base.size_bytes:
            await self._make_directories(path)
        for _ in range(_ATTEMPTS):
            found = await self._append_in_place(path, key, tail, base, is_synced=is_synced)
            if found is None:
                found = await self._append_by_request(path, key, tail, base)
            if found is not None:
                return found
        raise self._contended(path)

    async def list(self, below: str = "") -> list[FileStat]:
        """List the objects of paths."""
        prefix = keys.session_prefix(self._session)
        if below:
            prefix = self._key(below) + "/"
        found: list[FileStat] = []
        for one in (await self._store.list_all(prefix, whole_segments=False))[0]:
            live = keys.parse_live_key(one.key)
            if live is not None and not live.is_directory:
                found.append(_shown(os.fsdecode(live.path), one))
        if below:
            alone = await self._store.head(self._key(below), tries=READ_TRIES)
            found += [_shown(below, alone)] if alone is not None else []
        return sorted(found, key=lambda one: os.fsencode(one.path))

    async def remove(self, path: str) -> None:
        """Delete the object; what a generation names of it is kept first."""
        key = self._key(path)
        for _ in range(_ATTEMPTS):
            live = await self._store.head(key, tries=READ_TRIES)
            if live is None:
                return
            await self._named.keep(self._session, os.fsencode(path), live)
            try:
                outcome = await self._store.delete(key, condition=IfMatch(live.token))
            except ConcurrentRequestError:
                continue
            if isinstance(outcome, Landed):
                return
        raise self._contended(path)

    async def rename(self, path: str, new: str) -> None:
        """Copy on the server, then delete: a crash between leaves both."""
        key, target = self._key(path), self._key(new)
        if key == target:
            await self.stat(path)
            return
        await self._make_directories(new)
        for _ in range(_ATTEMPTS):
            live = await self._store.head(key, tries=READ_TRIES)
            if live is None:
                raise self._missing(path)
            condition = await self._replacing(new, target)
            metadata = live.metadata or ObjectMetadata()
            user = {**metadata.user, "sessionfs-write": self._clock.unique_id()}
            copied = ObjectMetadata(user, metadata.content_type, metadata.content_encoding)
            try:
                outcome = await self._store.copy(
                    key, target, source_token=live.token, condition=condition, metadata=copied
                )
            except ConcurrentRequestError:
                continue
            if isinstance(outcome, Landed):
                await self.remove(path)
                return
        raise self._contended(path)

    async def sync(self, path: str = "") -> None:
        """Flush what was appended in place; everything else is in the bucket when its call returns."""
        local = self._local
        if local is None:
            return
        wanted = [path] if path else [one.path for one in await self.list()]
        for one in wanted:
            key = self._key(one)
            await trio.to_thread.run_sync(local.sync, key)

    # --- how

    def _key(self, path: str) -> str:
        key = keys.live_key(self._session, os.fsencode(checked_path(path)), is_directory=False)
        if key is None:
            raise InvalidRequestError(f"path {path[:60]!r}... has no key in the bucket: it is too long")
        return key

    async def _replacing(self, path: str, key: str) -> Condition:
        """Keep what a generation names of a key, and give the condition under which it may be replaced."""
        if not await self._named.names(self._session, os.fsencode(path)):
            return Unconditional()
        live = await self._store.head(key, tries=READ_TRIES)
        if live is None:
            return IfAbsent()
        await self._named.keep(self._session, os.fsencode(path), live)
        return IfMatch(live.token)

    async def _put(
        self, key: str, body: bytes, condition: Condition, metadata: ObjectMetadata
    ) -> Landed | NotLanded | Moved:
        try:
            return await self._store.put(key, body, condition=condition, metadata=metadata)
        except ConcurrentRequestError:
            return NotLanded()

    async def _append_in_place(
        self, path: str, key: str, tail: bytes, base: FileStat | None, *, is_synced: bool
    ) -> FileStat | None:
        local = self._local
        if local is None:
            return None
        expected = Token(base.revision) if base is not None else None
        self._store.guard(key)

        def extend() -> ObjectStat:
            return local.extend(key, tail, expected=expected, forget=_OF_OTHER_BYTES, is_synced=is_synced)

        try:
            return _shown(path, await trio.to_thread.run_sync(extend))
        except ObjectNotFoundError:
            if base is not None:
                raise PreconditionFailedError(f"{path!r} of session {self._session} is gone") from None
            return None

    async def _append_by_request(
        self, path: str, key: str, tail: bytes, base: FileStat | None
    ) -> FileStat | None:
        """Add to the object once; None when another writer was faster, and it must be done again."""
        live = await self._store.head(key, tries=READ_TRIES)
        if base is not None and (live is None or live.token != base.revision):
            raise PreconditionFailedError(f"{path!r} of session {self._session} was changed by somebody else")
        lineage = ""
        if live is not None and live.metadata is not None:
            lineage = object_metadata.decode_provenance(live.metadata.user).lineage
        can = self._store.capabilities
        if live is not None and can.append_by_copy and live.size_bytes >= can.minimum_part_bytes:
            return await self._append_by_copy(path, live, tail, lineage)
        before = b""
        if live is not None:
            try:
                before = await self._store.read(key, expected=live.token, tries=READ_TRIES)
            except (ObjectNotFoundError, PreconditionFailedError):
                self._require_unchanged(path, base)
                return None
        body = before + tail
        metadata = self._metadata(hashlib.sha256(body).hexdigest(), lineage=lineage)
        outcome = await self._put(key, body, IfMatch(live.token) if live else IfAbsent(), metadata)
        if isinstance(outcome, Landed):
            return self._written(path, outcome.token, len(body), metadata)
        if isinstance(outcome, Moved):
            self._require_unchanged(path, base)
        return None

    async def _append_by_copy(
        self, path: str, live: ObjectStat, tail: bytes, lineage: str
    ) -> FileStat | None:
        metadata = self._metadata("", lineage=lineage)
        try:
            outcome = await self._store.append(
                live.key, iter((tail,)), base=live, metadata=metadata, before_complete=_go_on
            )
        except ConcurrentRequestError:
            return None
        if isinstance(outcome, Landed):
            return self._written(path, outcome.token, live.size_bytes + len(tail), metadata)
        return None

    def _require_unchanged(self, path: str, base: FileStat | None) -> None:
        """Another writer was faster: only an append to whatever is there may be done again."""
        if base is not None:
            raise PreconditionFailedError(f"{path!r} of session {self._session} was changed by somebody else")

    async def _make_directories(self, path: str) -> None:
        parts = path.split("/")[:-1]
        wanted = [keys.session_prefix(self._session)]
        for depth in range(1, len(parts) + 1):
            above = os.fsencode("/".join(parts[:depth]))
            key = keys.live_key(self._session, above, is_directory=True)
            if key is not None:
                wanted.append(key)
        for key in wanted:
            if key not in self._markers:
                # Somebody else's is as good.
                await self._put(key, b"", IfAbsent(), self._metadata("", kind=modes.S_IFDIR, mode=0o755))
                self._markers.add(key)

    def _metadata(
        self, sha256: str, *, kind: int = modes.S_IFREG, mode: int = 0o644, lineage: str = ""
    ) -> ObjectMetadata:
        attributes = FileAttributes(kind | mode, os.geteuid(), os.getegid(), self._clock.wall_ns())
        provenance = Provenance(
            sha256, self._clock.unique_id(), self._epoch(), lineage or self._clock.unique_id()
        )
        return ObjectMetadata(object_metadata.encode(attributes, provenance))

    def _written(self, path: str, token: Token, size_bytes: int, metadata: ObjectMetadata) -> FileStat:
        modified_ns = object_metadata.decode_time(metadata.user["mtime"], 0)
        return FileStat(path, size_bytes, modified_ns, token)

    def _missing(self, path: str) -> NotFoundError:
        return NotFoundError(f"session {self._session} has no file {path!r}")

    def _contended(self, path: str) -> UnavailableError:
        return UnavailableError(
            f"{path!r} of session {self._session} is changed all the time by others", remedy="try again"
        )


def _shown(path: str, found: ObjectStat) -> FileStat:
    modified_ns = found.modified_ns
    if found.metadata is not None:
        modified_ns = object_metadata.decode_time(found.metadata.user.get("mtime", ""), modified_ns)
    return FileStat(path, found.size_bytes, modified_ns, found.token)


def _go_on() -> None:
    """Let an upload complete."""
