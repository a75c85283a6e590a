"""Copy before overwrite for doors that work on the bucket itself: what the newest generation of a session names stays readable.

While the session is owned here nobody else commits, and what is known of the newest manifest stays true; else it is looked at before every change
that replaces or removes something: one small request. An append changes nothing of it: the named bytes are the beginning of what is there then.
A commit of another host between that look and the change is not seen: whoever cannot have that claims the session.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from sessionfs.formats.manifest import ManifestEntry
from sessionfs.model import keys
from sessionfs.model.errors import ConflictError, ObjectNotFoundError, UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.hydration.manifest_chain import ManifestChain
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore
from sessionfs.stores.base import ByteRange, ObjectMetadata, ObjectStat, Unconditional

_TRIES = 3
Kept = Literal["not named", "kept", "gone"]


@dataclass(slots=True)
class _Known:
    """What is known of a session's newest manifest."""

    entries: dict[bytes, ManifestEntry]
    token: str


class NamedBytes:
    """Keeps what generations name.

    Args:
        store: The bucket.
    """

    def __init__(self, store: TrioStore) -> None:
        self._store = store
        self._chain = ManifestChain(store)
        self._known: dict[SessionId, _Known] = {}

    def forget(self, session: SessionId) -> None:
        """Look again at the next change, also while the session is owned here."""
        self._known.pop(session, None)

    async def names(self, session: SessionId, path: bytes, *, is_owned: bool) -> bool:
        """Whether the newest generation names bytes of a path.

        Args:
            session: The session.
            path: The path.
            is_owned: Nobody else can have committed since the last look.

        Raises:
            SessionFSError: The store refused or did not answer.
        """
        entry = (await self._entries(session, is_owned=is_owned)).get(path)
        return entry is not None and entry.type == "file" and entry.sha256 != "" and entry.size_bytes > 0

    async def keep(self, session: SessionId, path: bytes, live: ObjectStat, *, is_owned: bool) -> Kept:
        """Make sure that what the newest generation names of a path outlives a change of its object.

        Args:
            session: The session.
            path: The path.
            live: Its object now.
            is_owned: As for `names`.

        Returns:
            Whether there was anything to keep; ``gone`` when the object has not had it for some time: whoever replaced it kept it.

        Raises:
            UnavailableError: It could not be copied: the object must not change now.
            SessionFSError: The store refused or did not answer.
        """
        if not await self.names(session, path, is_owned=is_owned):
            return "not named"
        entry = (await self._entries(session, is_owned=True))[path]
        key = keys.content_key(session, entry.sha256)
        for _ in range(_TRIES):
            if await self._store.head(key, tries=READ_TRIES) is not None:
                return "kept"
            if live.token == entry.token:
                outcome = await self._store.copy(
                    live.key, key, source_token=live.token, condition=Unconditional(),
                    metadata=live.metadata or ObjectMetadata(),
                )  # fmt: skip
                if isinstance(outcome, Landed):
                    return "kept"
                continue
            kept = await self._keep_beginning(key, entry, live)
            if kept is not None:
                return kept
        raise UnavailableError(
            f"what a generation names of {live.key!r} could not be kept", remedy="try again"
        )

    async def _keep_beginning(self, key: str, entry: ManifestEntry, live: ObjectStat) -> Kept | None:
        """Put the beginning of an object that has grown since; None when that should be tried again."""
        if live.size_bytes < entry.size_bytes:
            return "gone"
        try:
            body = await self._store.read(
                live.key, byte_range=ByteRange(0, entry.size_bytes), expected=live.token, tries=READ_TRIES
            )
        except (ConflictError, ObjectNotFoundError):
            return "gone"
        if hashlib.sha256(body).hexdigest() != entry.sha256:
            return "gone"
        outcome = await self._store.put(key, body, condition=Unconditional(), metadata=ObjectMetadata())
        return "kept" if isinstance(outcome, Landed) else None

    async def _entries(self, session: SessionId, *, is_owned: bool) -> dict[bytes, ManifestEntry]:
        known = self._known.get(session)
        if known is not None and is_owned:
            return known.entries
        stat = await self._store.head(keys.manifest_key(session), tries=READ_TRIES)
        if stat is None:
            known = _Known({}, "")
        elif known is None or known.token != stat.token:
            newest = await self._chain.newest(session)
            entries = newest.manifest.entries if newest is not None else ()
            token = newest.stat.token if newest is not None else ""
            known = _Known({entry.path: entry for entry in entries}, token)
        self._known[session] = known
        return known.entries
