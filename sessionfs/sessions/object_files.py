"""The files of a session straight in the bucket: each an object under its own name, with the metadata that a mount gives it.

* Changes are conditional (`object_changes`); what the newest generation names of a key is kept first (`named_bytes`).
* An append is a server-side copy with a tail where the store can and the file is long enough, else the whole file again under the token that was
  read; when another writer won, it is done again on what is there then: nobody's bytes are lost. A directory store appends in place.
* A lost answer is settled by the write id in the metadata, never by repeating blindly. An append whose answer was lost and upon which another
  writer appended before it could be looked at is written again: at least once, as every append here; readers drop it by its ``seq``.
* The directories above a file get their markers once, as in a mount.
"""

from __future__ import annotations

import hashlib
import os
import stat as modes
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from sessionfs.formats import object_metadata
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import READ_TRIES, TrioStore
from sessionfs.sessions.named_bytes import NamedBytes
from sessionfs.sessions.object_changes import ObjectChanges
from sessionfs.sessions.port import FileStat, SessionFiles, checked_path
from sessionfs.stores.base import ByteRange, ObjectMetadata, ObjectStat, Token
from sessionfs.stores.local_directory import LocalDirectoryStore

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
        self._changes = ObjectChanges(session, store, clock, named, epoch=epoch)
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
        self,
        path: str,
        body: bytes,
        *,
        is_private: bool = False,
        is_new: bool = False,
        base: FileStat | None = None,
    ) -> FileStat:
        """Put the object; what a generation names of it is kept first."""
        key = self._key(path)
        sha256 = hashlib.sha256(body).hexdigest()

        def metadata() -> ObjectMetadata:
            return self._changes.metadata(key, sha256, mode=0o600 if is_private else 0o644)

        await self._make_directories(path)
        if is_new:
            token, sent = await self._changes.put_new(key, body, metadata)
        elif base is not None:
            revision = Token(base.revision)
            token, sent = await self._changes.put_over(key, os.fsencode(path), body, revision, metadata)
        else:
            token, sent = await self._changes.put(key, os.fsencode(path), body, metadata)
        modified_ns = object_metadata.decode_time(sent.user["mtime"], 0)
        return FileStat(path, len(body), modified_ns, token)

    async def append(
        self, path: str, tail: bytes, *, base: FileStat | None = None, is_synced: bool = False
    ) -> FileStat:
        """Add to the object as it is then."""
        key = self._key(path)
        if base is None or not base.size_bytes:
            await self._make_directories(path)
        found = None
        if self._local is not None:
            found = await self._append_in_place(self._local, key, tail, base, is_synced=is_synced)
        if found is None:
            found = await self._changes.append(key, tail, Token(base.revision) if base is not None else None)
        return _shown(path, found)

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
        await self.remove_key(self._key(path))

    async def remove_key(self, key: str) -> None:
        """Delete an object below the session's prefix, whatever its name; as `remove`."""
        live = keys.parse_live_key(key)
        is_file = live is not None and not live.is_directory
        await self._changes.delete(key, live.path if live is not None and is_file else None)
        self._markers.discard(key)

    async def rename(self, path: str, new: str) -> None:
        """Copy on the server, then delete what was copied: a crash between leaves both."""
        key, target = self._key(path), self._key(new)
        if key == target:
            await self.stat(path)
            return
        await self._make_directories(new)
        try:
            await self._changes.rename(key, target, os.fsencode(path), os.fsencode(new))
        except NotFoundError:
            raise self._missing(path) from None

    async def sync(self, path: str = "") -> None:
        """Flush what was appended in place; everything else is in the bucket when its call returns."""
        local = self._local
        if local is None:
            return
        wanted = [self._key(path)] if path else []
        if not path:
            found, _ = await self._store.list_all(keys.session_prefix(self._session), whole_segments=False)
            wanted = [one.key for one in found if not one.key.endswith("/")]
        for key in wanted:
            await trio.to_thread.run_sync(local.sync, key)

    # --- how

    def _key(self, path: str) -> str:
        key = keys.live_key(self._session, os.fsencode(checked_path(path)), is_directory=False)
        if key is None:
            raise InvalidRequestError(f"path {path[:60]!r}... has no key in the bucket: it is too long")
        return key

    async def _append_in_place(
        self, local: LocalDirectoryStore, key: str, tail: bytes, base: FileStat | None, *, is_synced: bool
    ) -> ObjectStat | None:
        """Add to a file of this host; None when there is none yet."""
        expected = Token(base.revision) if base is not None else None

        def extend() -> ObjectStat:
            return local.extend(
                key, tail, expected=expected, forget=_OF_OTHER_BYTES, is_synced=is_synced,
                before=lambda: self._store.guard(key),
            )  # fmt: skip

        try:
            found = await trio.to_thread.run_sync(extend)
        except ObjectNotFoundError:
            if base is not None:
                raise PreconditionFailedError(f"{key!r} is gone") from None
            return None
        self._changes.note(key, found.token)
        return found

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
                with suppress(AlreadyExistsError):  # somebody else's is as good
                    await self._changes.put_new(key, b"", partial(self._marker, key))
                self._markers.add(key)

    def _marker(self, key: str) -> ObjectMetadata:
        return self._changes.metadata(key, "", kind=modes.S_IFDIR, mode=0o755)

    def _missing(self, path: str) -> NotFoundError:
        return NotFoundError(f"session {self._session} has no file {path!r}")


def _shown(path: str, found: ObjectStat) -> FileStat:
    modified_ns = found.modified_ns
    if found.metadata is not None:
        modified_ns = object_metadata.decode_time(found.metadata.user.get("mtime", ""), modified_ns)
    return FileStat(path, found.size_bytes, modified_ns, found.token)
