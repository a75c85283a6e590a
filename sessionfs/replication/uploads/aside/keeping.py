"""Copy before overwrite: what a generation names stays readable, whatever happens to its key.

Before a put, copy, rename or delete takes the key of an object that the newest generation or a commit under way names, and the new bytes are not
the old ones with more behind them, the whole object is copied to ``.objects/<sha256>``, always, also when that key exists; then each shorter
content of it that a generation names gets a small note there. Only then the journal forgets that the key was named. An object that another
owner's late request has replaced cannot be copied any more: he copied it himself, unless he only appended; then it is cut off his.

So what older generations name has moved already, and nobody needs to know more than the newest generation and the one under way.
"""

from __future__ import annotations

import stat

from sessionfs.formats import content_alias
from sessionfs.formats.content_alias import ContentAlias
from sessionfs.model import keys
from sessionfs.model.clock import Clock
from sessionfs.model.errors import UnavailableError
from sessionfs.model.names import SessionId
from sessionfs.replication.trio_store import READ_TRIES, Landed, TrioStore
from sessionfs.replication.uploads.aside.parking import Parking
from sessionfs.replication.uploads.attempts import known_object
from sessionfs.replication.uploads.content_source import Content, has_content, is_extension
from sessionfs.stores.base import ObjectMetadata, Unconditional
from sessionfs.working_copy.known_content import KnownObject, Prefix
from sessionfs.working_copy.upload_journal import UploadJournal


class Keeping:
    """Copies named contents aside.

    Args:
        journal: Knows what is named.
        store: Copies.
        parking: Copies a whole object to the key of its content.
        clock: Names of attempts.
    """

    def __init__(self, journal: UploadJournal, store: TrioStore, parking: Parking, clock: Clock) -> None:
        self._journal = journal
        self._store = store
        self._parking = parking
        self._clock = clock

    async def before_change(self, known: KnownObject, content: Content | None) -> None:
        """Make sure that what generations name of an object outlives a change of its key.

        Args:
            known: The object that the key is known to hold.
            content: What takes its place; None when the object is deleted.

        Raises:
            UnavailableError: It could not be copied: the key must not change now.
            SessionFSError: The store refused or did not answer.
        """
        named, prefixes = self._journal.is_named(known.key), self._journal.prefixes(known.key)
        if not named and not prefixes:
            return
        if content is not None and (has_content(known, content) or is_extension(content, known)):
            return
        if (
            stat.S_ISREG(known.mode)
            and known.size_bytes
            and not known.key.endswith("/")
            and (named or await self._may_be_named(known, prefixes))
        ):
            await self.keep(known, prefixes)
        with self._journal.transaction():
            now = self._journal.object(known.key)
            if now is not None and now.token == known.token:
                proven = [one for one in prefixes if one.is_proven]
                unproven_bytes = _common_bytes(prefixes, content)
                if content is not None and not known.number:
                    # It was found, and no file of this host came from it: the bytes here may begin with all that was named before.
                    unproven_bytes = content.size_bytes
                self._journal.forget_named(
                    known.key,
                    above_bytes=_common_bytes(proven, content),
                    unproven_above_bytes=unproven_bytes,
                )

    async def keep(self, known: KnownObject, prefixes: list[Prefix]) -> None:
        """Copy an object to the key of its content, and note the shorter contents that it begins with.

        Raises:
            UnavailableError: An answer was lost.
            SessionFSError: The store refused or did not answer.
        """
        live = keys.parse_live_key(known.key)
        if live is None:
            return
        sha256 = await self._parking.park(known)
        if not sha256:
            await self._keep_beginnings(live.session, known, prefixes)
        for prefix in prefixes if sha256 else ():
            if prefix.size_bytes < known.size_bytes and prefix.sha256 != sha256:
                # Somebody else's object has replaced the one that was named, and perhaps not by appending.
                if not prefix.is_proven and not await self._parking.begins_with(
                    known, prefix.sha256, prefix.size_bytes
                ):
                    continue
                key = keys.alias_key(live.session, prefix.sha256)
                await self._put_alias(key, ContentAlias(of=sha256, size=prefix.size_bytes))

    async def _may_be_named(self, known: KnownObject, prefixes: list[Prefix]) -> bool:
        """Whether generations may name anything of an object that was found where theirs had been."""
        for prefix in prefixes:
            if prefix.is_proven or await self._may_have(known, prefix):
                return True
        found = await self._store.head(known.key, tries=READ_TRIES)
        return found is None or found.token != known.token

    async def has(self, session: SessionId, *, number: int, sha256: str, size_bytes: int) -> bool:
        """Whether bytes are under the key of their content; one that the journal does not know is looked for.

        Args:
            session: The session.
            number: Whose bytes they are.
            sha256: Of them.
            size_bytes: Their length.

        Raises:
            UnavailableError, AccessError: Nothing is known.
        """
        if self._journal.object(keys.content_key(session, sha256)) is not None:
            return True
        return await self._parking.find(session, number, sha256, size_bytes) is not None

    async def _keep_beginnings(self, session: SessionId, known: KnownObject, prefixes: list[Prefix]) -> None:
        """Somebody else has replaced an object. If he appended, and did not know it as named, what was named is nowhere but in his."""
        found = await self._store.head(known.key, tries=READ_TRIES)
        if found is None:
            return
        longer = known_object(found, known.key, known.number)
        named = [
            prefix
            for prefix in (Prefix(known.sha256, known.size_bytes), *prefixes)
            if prefix.sha256 and await self._may_have(longer, prefix)
        ]
        sha256 = await self._parking.park(longer) if named else ""
        if named and not sha256:
            raise UnavailableError(f"{known.key!r} changes while it is copied aside")
        for prefix in named:
            if prefix.size_bytes == longer.size_bytes:
                continue
            key = keys.alias_key(session, prefix.sha256)
            await self._put_alias(key, ContentAlias(of=sha256, size=prefix.size_bytes))

    async def _may_have(self, found: KnownObject, prefix: Prefix) -> bool:
        """Whether an object begins with named bytes, or may be just them."""
        if prefix.size_bytes == found.size_bytes:
            return found.sha256 in {"", prefix.sha256}
        return await self._parking.begins_with(found, prefix.sha256, prefix.size_bytes)

    async def _put_alias(self, key: str, alias: ContentAlias) -> None:
        metadata = ObjectMetadata({"sessionfs-write": self._clock.unique_id()}, "application/json")
        outcome = await self._store.put(
            key, content_alias.encode(alias), condition=Unconditional(), metadata=metadata
        )
        if not isinstance(outcome, Landed):
            raise UnavailableError(f"{key!r} was sent, and not seen to arrive")


def _common_bytes(prefixes: list[Prefix], content: Content | None) -> int:
    """How much of what is named the new bytes begin with as well: it stays named."""
    if content is None:
        return 0
    own = {content.sha256, content.prefix_sha256} - {""}
    return max((prefix.size_bytes for prefix in prefixes if prefix.sha256 in own), default=0)
